package integration

import (
	"testing"

	"github.com/tributary-dev/tributary/internal/testpg"
	"github.com/tributary-dev/tributary/pkg/fanout/client"
	"github.com/tributary-dev/tributary/pkg/fanout/scope"
	"github.com/tributary-dev/tributary/pkg/nodeconfig"
)

// Rows are chosen by columns of enums and domains: equal, in a list, and by the
// beginning of the text; at the baseline and as they change.
func TestFilterByEnumAndDomain(t *testing.T) {
	t.Parallel()
	db := testpg.NewDB(t)
	db.Exec(t, `CREATE TYPE mood AS ENUM ('sad', 'very sad', 'o''k')`, `CREATE DOMAIN posint AS int CHECK (value > 0)`, `CREATE DOMAIN small AS posint CHECK (value < 100)`,
		`CREATE DOMAIN feeling AS mood`, `CREATE DOMAIN code AS varchar(10)`,
		`CREATE TABLE f (id int PRIMARY KEY, m mood, s small, e feeling, c code)`,
		`INSERT INTO f VALUES (1,'sad',7,'o''k','ab1'), (2,'very sad',7,'sad','ab2'), (3,'sad',8,'sad','xy3'), (4,NULL,NULL,NULL,NULL)`)
	f := table("public", "f")
	top := startNode(t, "filter/top", nodeconfig.Source{Name: "db", Postgres: database(t, db, f)})
	below := startNode(t, "filter/below", nodeconfig.Source{Name: "up", Fanout: &nodeconfig.Fanout{}}, top)
	for _, tt := range []struct {
		name           string
		where          scope.Condition
		first, changed []string
	}{
		{"enum", scope.Condition{Column: "m", Op: scope.Equal, Values: []string{"sad"}}, []string{"1", "3"}, []string{"2", "3"}},
		{"enum in", scope.Condition{Column: "m", Op: scope.In, Values: []string{"very sad", "o'k", "none"}}, []string{"2"}, []string{"1"}},
		{"enum prefix", scope.Condition{Column: "m", Op: scope.Prefix, Values: []string{"very"}}, []string{"2"}, []string{"1"}},
		{"domain", scope.Condition{Column: "s", Op: scope.Equal, Values: []string{" 07"}}, []string{"1", "2"}, []string{"1", "5"}},
		{"domain of an enum", scope.Condition{Column: "e", Op: scope.Equal, Values: []string{"sad"}}, []string{"2", "3"}, []string{"2", "3", "5"}},
		{"domain of text", scope.Condition{Column: "c", Op: scope.Prefix, Values: []string{"ab"}}, []string{"1", "2"}, []string{"1", "3"}},
	} {
		wanted, err := scope.New(scope.Table{Name: f, Columns: []string{"id"}, Where: []scope.Condition{tt.where}})
		if err != nil {
			t.Fatal(err)
		}
		read := readerOf(t, below, client.WithScope(wanted))
		showsRows(t, read, tt.name, f, tt.first...)
		db.Exec(t, `UPDATE f SET m='very sad' WHERE id=1`, `UPDATE f SET m='sad', s=9, c='xy' WHERE id=2`, `UPDATE f SET c='ab3' WHERE id=3`, `INSERT INTO f VALUES (5,'o''k',7,'sad','x')`)
		if tt.name == "enum in" {
			db.Exec(t, `DELETE FROM f WHERE id=5`)
		}
		showsRows(t, read, tt.name+", changed", f, tt.changed...)
		db.Exec(t, `DELETE FROM f WHERE id=5`, `UPDATE f SET m='sad', s=7, c='ab1' WHERE id=1`, `UPDATE f SET m='very sad', s=7, c='ab2' WHERE id=2`, `UPDATE f SET c='xy3' WHERE id=3`)
		showsRows(t, read, tt.name+", as before", f, tt.first...)
	}
}

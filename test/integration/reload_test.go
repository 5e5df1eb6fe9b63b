package integration

import (
	"testing"

	"github.com/tributary-dev/tributary/internal/testpg"
	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/nodeconfig"
)

// A node takes up other tables of its source while it runs, whatever kind of
// publication it reads: one that it manages, one of all tables, one of a schema.
// So do the nodes below it. A table that is named before it is there follows
// once it has been created.
func TestTablesOfTheConfigurationChange(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, publication string }{
		{"managed", ""},
		{"all tables", `CREATE PUBLICATION p FOR ALL TABLES`},
		{"tables in schema", `CREATE PUBLICATION p FOR TABLES IN SCHEMA public`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			db := testpg.NewDB(t)
			if tt.name == "tables in schema" && db.Server.Major < 15 {
				t.Skip("PostgreSQL 14 has no publications of schemas")
			}
			late, odd := table("public", "late"), table("public", `o"dd.ö`)
			db.Exec(t, createT, `INSERT INTO t VALUES (1, 1, 'x')`, `CREATE TABLE "o""dd.ö" (id int PRIMARY KEY)`, `INSERT INTO "o""dd.ö" VALUES (1)`)
			src := database(t, db, plain)
			if tt.publication != "" {
				db.Exec(t, tt.publication)
				src.Publication = nodeconfig.Publication{Name: "p"}
			}
			top := startNode(t, "reload/top", nodeconfig.Source{Name: "db", Postgres: src})
			below := startNode(t, "reload/below", nodeconfig.Source{Name: "up", Fanout: &nodeconfig.Fanout{}}, top)
			read := readerOf(t, below)
			showsRows(t, read, "at first", plain, "1 1 x")
			tables := func(names ...engine.TableName) {
				t.Helper()
				cfg := *top.cfg
				next := *src
				next.Tables = nil
				for _, n := range names {
					next.Tables = append(next.Tables, nodeconfig.Table{Schema: n.Schema, Name: n.Name})
				}
				cfg.Sources = []nodeconfig.Source{{Name: "db", Postgres: &next}}
				top.write(t, &cfg)
			}
			tables(plain, odd, late)
			db.Exec(t, `INSERT INTO t VALUES (2, 2, 'y')`)
			showsRows(t, read, "with another table", odd, "1")
			db.Exec(t, `CREATE TABLE late (id int PRIMARY KEY)`, `INSERT INTO late VALUES (7)`)
			showsRows(t, read, "once it is there", late, "7")
			db.Exec(t, `INSERT INTO late VALUES (8)`, `INSERT INTO "o""dd.ö" VALUES (2)`)
			showsRows(t, read, "streamed", late, "7", "8")
			showsRows(t, read, "streamed", odd, "1", "2")
			tables(plain, late)
			showsRows(t, read, "taken out", odd)
			db.Exec(t, `INSERT INTO "o""dd.ö" VALUES (3)`, `UPDATE t SET n = 0`)
			showsRows(t, read, "the others go on", plain, "1 0 x", "2 0 y")
			showsRows(t, read, "taken out", odd)
		})
	}
}

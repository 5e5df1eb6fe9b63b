package testnode

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/tributary-dev/tributary/internal/testpg"
	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/nodeconfig"
)

// Postgres returns a source that reads tables of a database; address, where it
// is set, leads to the server by another way. dir gets the password's file.
func Postgres(db *testpg.DB, dir, address string, tables ...engine.TableName) (nodeconfig.Source, error) {
	pass := filepath.Join(dir, "password")
	if err := os.WriteFile(pass, []byte(testpg.Password), 0o600); err != nil {
		return nodeconfig.Source{}, err
	}
	host := nodeconfig.Host{Host: "127.0.0.1", Port: db.Server.Port}
	if _, port, ok := strings.Cut(address, ":"); ok {
		var err error
		if host.Port, err = strconv.Atoi(port); err != nil {
			return nodeconfig.Source{}, err
		}
	}
	pg := &nodeconfig.Postgres{
		PostgresServer: nodeconfig.PostgresServer{
			Hosts: []nodeconfig.Host{host}, Database: db.Name, User: testpg.User, PasswordFile: pass, SSLMode: nodeconfig.SSLDisable,
		},
		Publication: nodeconfig.Publication{Name: "tributary", Managed: true}, Slot: "node_" + strings.ToLower(db.Name),
	}
	for _, t := range tables {
		pg.Tables = append(pg.Tables, nodeconfig.Table{Schema: t.Schema, Name: t.Name})
	}
	return nodeconfig.Source{Name: "db", Postgres: pg}, nil
}

package nodeconfig

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Files that a configuration names and that are not there are named, each with its
// place; those that are there are not.
func TestCheckFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	there := filepath.Join(dir, "there")
	if err := os.WriteFile(there, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	c := &Config{Sources: []Source{{Postgres: &Postgres{PostgresServer: PostgresServer{UserFile: there, PasswordFile: filepath.Join(dir, "gone"), SSLRootCert: dir}}}}}
	err := c.CheckFiles()
	if err == nil {
		t.Fatal("nothing is found")
	}
	lines := strings.Split(err.Error(), "\n")
	if len(lines) != 2 || !strings.HasPrefix(lines[0], "sources[0].postgres.passwordFile: ") || !strings.HasPrefix(lines[1], "sources[0].postgres.sslRootCert: ") || !strings.Contains(lines[1], "is a folder") {
		t.Errorf("%v", err)
	}
	c.Sources[0].Postgres.PasswordFile, c.Sources[0].Postgres.SSLRootCert = there, there
	if err := c.CheckFiles(); err != nil {
		t.Error(err)
	}
}

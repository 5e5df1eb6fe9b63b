package node

import (
	"bytes"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tributary-dev/tributary/pkg/nodeconfig"
)

func TestExitCodes(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	dir := t.TempDir()
	write := func(name string, text []byte) string {
		t.Helper()
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	cfg := nodeconfig.Config{
		Version: nodeconfig.Version, Node: nodeconfig.Node{ID: "n/n"}, DrainTimeout: time.Millisecond,
		Listen:  nodeconfig.Listen{Replication: taken.Addr().String(), HTTP: "127.0.0.1:0"},
		Sources: []nodeconfig.Source{{Name: "in", Ingest: &nodeconfig.Ingest{Volatile: true, Tables: []nodeconfig.IngestTable{{Schema: "public", Name: "t", Columns: []nodeconfig.IngestColumn{{Name: "id", Type: "int8", Key: true}}}}}}},
	}
	cfg.SetDefaults()
	text, err := cfg.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	good, bad := write("good.yaml", text), write("bad.yaml", []byte("version: 1\nnode: {}\n"))
	for name, c := range map[string]struct {
		code int
		args []string
	}{
		"help":               {0, []string{"--help"}},
		"version":            {0, []string{"--version"}},
		"unknown flag":       {2, []string{"--nope"}},
		"argument":           {2, []string{"x"}},
		"log format":         {2, []string{"--log-format", "xml"}},
		"no configuration":   {2, []string{"--config", filepath.Join(dir, "none")}},
		"bad configuration":  {2, []string{"--config", bad}},
		"check":              {0, []string{"--check", "--config", good}},
		"check finds faults": {3, []string{"--check", "--config", bad}},
		"check of nothing":   {2, []string{"--check", "--config", filepath.Join(dir, "none")}},
		"address in use":     {1, []string{"--config", good}},
		"drop-slots":         {2, []string{"drop-slots", "--nope"}},
		"no such slot":       {1, []string{"drop-slots", "--config", good, "s"}},
	} {
		var said bytes.Buffer
		if code := Main(c.args, &said); code != c.code {
			t.Errorf("%s: %d, want %d: %s", name, code, c.code, said.String())
		}
		if name == "help" && !strings.Contains(said.String(), "Exit codes:") {
			t.Errorf("help does not name the exit codes: %s", said.String())
		}
	}
}

package integration

import (
	"fmt"
	"net"
	"net/http/httptest"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tributary-dev/tributary/internal/testnode"
	"github.com/tributary-dev/tributary/internal/testpg"
	"github.com/tributary-dev/tributary/pkg/nodeconfig"
)

// TestCaseK04: what answers at an address speaks another protocol: the node says so, with
// the address and what to do, and reads on once the address is a right one.
func TestCaseK04(t *testing.T) {
	t.Parallel()
	db := testpg.NewDB(t)
	db.Exec(t, createT, "INSERT INTO t VALUES (1, 1, 'one')")
	top := startNode(t, "wrong/top", nodeconfig.Source{Name: "db", Postgres: database(t, db, plain)})
	web, secure := httptest.NewServer(nil), httptest.NewTLSServer(nil)
	t.Cleanup(web.Close)
	t.Cleanup(secure.Close)
	postgres := net.JoinHostPort("127.0.0.1", strconv.Itoa(db.Server.Port))
	fanout := nodeconfig.Source{Name: "up", Fanout: &nodeconfig.Fanout{}}
	at := func(address string) nodeconfig.Source {
		pg := *database(t, db, plain)
		host, port, err := net.SplitHostPort(address)
		if err != nil {
			t.Fatal(err)
		}
		number, err := strconv.Atoi(port)
		if err != nil {
			t.Fatal(err)
		}
		pg.Hosts = []nodeconfig.Host{{Host: host, Port: number}}
		return nodeconfig.Source{Name: "up", Postgres: &pg}
	}
	for name, c := range map[string]struct {
		source  nodeconfig.Source
		address string // of a fan-out source
		reason  string
		says    []string
	}{
		"HTTP":                       {fanout, web.Listener.Addr().String(), "PreflightFailed", []string{"answers, but not with Tributary's protocol", "the address must be a node's fan-out port"}},
		"the node's other port":      {fanout, top.http, "PreflightFailed", []string{"answers, but not with Tributary's protocol"}},
		"PostgreSQL":                 {fanout, postgres, "AuthenticationFailed", []string{"ends the connection before a word", "the address must be a node's fan-out port"}},
		"HTTPS":                      {fanout, secure.Listener.Addr().String(), "AuthenticationFailed", []string{"ends the connection before a word", "set tls of the source"}},
		"HTTP for PostgreSQL":        {at(web.Listener.Addr().String()), "", "Disconnected", []string{"the server cannot be reached", "Check its address"}},
		"Tributary's for PostgreSQL": {at(top.repl), "", "Disconnected", []string{"the server cannot be reached", "Check its address"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			address := c.address
			if address == "" {
				address = net.JoinHostPort(c.source.Postgres.Hosts[0].Host, strconv.Itoa(c.source.Postgres.Hosts[0].Port))
			}
			n, err := testnode.Start(t.Context(), ownProcess(t, testnode.Options{
				Dir: filepath.Join(t.TempDir(), "n"), ID: "wrong/n", Source: c.source,
				Parents: []*testnode.Node{{ID: "far", Repl: c.address}}, Storage: nodeconfig.Storage{Type: nodeconfig.StorageMemory},
			}))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(n.Kill)
			until(t, "the reason", func() error {
				st, err := n.Status()
				if err != nil {
					return err
				}
				s := st.Sources[0]
				if s.State != nodeconfig.StateFailed || s.Reason != c.reason || st.Ready {
					return fmt.Errorf("%+v", s)
				}
				for _, text := range append(c.says, address) {
					if !strings.Contains(s.Message, text) {
						return fmt.Errorf("%q does not say %q", s.Message, text)
					}
				}
				return nil
			})
			if c.address == "" {
				return
			}
			if err := n.Wire(&testnode.Node{ID: top.id, Repl: top.repl}); err != nil {
				t.Fatal(err)
			}
			if err := n.WaitReady(t.Context(), time.Minute); err != nil {
				t.Error(err)
			}
		})
	}
}

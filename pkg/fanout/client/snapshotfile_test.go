package client_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tributary-dev/tributary/internal/testlog"
	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/engine/store"
	"github.com/tributary-dev/tributary/pkg/fanout/client"
	ft "github.com/tributary-dev/tributary/pkg/fanout/fanouttest"
	"github.com/tributary-dev/tributary/pkg/fanout/scope"
	"github.com/tributary-dev/tributary/pkg/fanout/server"
)

// served is a node whose snapshots and state deltas are counted.
type served struct {
	*ft.Node
	registry *prometheus.Registry
}

func serve(t *testing.T, id string, o *ft.Origin, journal int) served {
	t.Helper()
	r := prometheus.NewRegistry()
	n := ft.Start(t, id, ft.Options{Store: store.MemoryOptions{JournalBytes: journal}, Server: server.Config{Registry: r}}, map[string]engine.SyncSource{"pg": o})
	for _, name := range o.Tables {
		ft.Converged(t, o, name, n)
	}
	return served{n, r}
}

func (s served) count(name string) int {
	s.T.Helper()
	all, err := s.registry.Gather()
	if err != nil {
		s.T.Fatal(err)
	}
	for _, f := range all {
		if f.GetName() == "tributary_fanout_"+name {
			return int(f.GetMetric()[0].GetCounter().GetValue())
		}
	}
	s.T.Fatalf("no metric %s", name)
	return 0
}

// session is one life of a client with a file; it returns what the client logged.
func session(t *testing.T, o *ft.Origin, n served, path string, use func(c *client.Client), opts ...client.Option) string {
	t.Helper()
	var l testlog.Buffer
	seen := &told{rows: map[string]string{}}
	opts = append([]client.Option{
		client.WithListener(func(old, fresh *engine.Record, at engine.Position) {
			if (fresh != nil && fresh.Schema.Table == table) || (old != nil && old.Schema.Table == table) {
				seen.listen(old, fresh, at)
			}
		}),
		client.WithUpstreams(n.Address), client.WithSnapshotFile(path), client.WithLogger(slog.New(slog.NewTextHandler(&l, nil))),
	}, opts...)
	c, err := client.New(opts...)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	if err := c.AwaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	ft.Eventually(t, 30*time.Second, func() error {
		all, err := c.All(table)
		if err != nil {
			return err
		}
		rows := map[string]string{}
		for i := range all {
			rows[column(&all[i], 0)] = column(&all[i], 1)
		}
		seen.mu.Lock()
		defer seen.mu.Unlock()
		if want := o.Rows(table); !maps.Equal(rows, want) || !maps.Equal(seen.rows, want) {
			return fmt.Errorf("the client has %d rows, its listener %d, the origin %d", len(rows), len(seen.rows), len(want))
		}
		return nil
	})
	if _, wrong := seen.take(); len(wrong) > 0 {
		t.Errorf("the listener was told wrong: %v", wrong)
	}
	if use != nil {
		use(c)
	}
	return l.String()
}

// A client that starts again goes on from its file: with nothing new, with what
// the journal holds, and with what it no longer holds.
func TestSnapshotFile(t *testing.T) {
	t.Parallel()
	o := ft.NewOrigin(2000, "t", "u")
	n := serve(t, "root", o, 16<<10)
	path := filepath.Join(t.TempDir(), "orders.snapshot")
	o.Write(ft.Change{Table: table, Key: "k000001", Gone: true})
	o.Write(ft.Change{Table: ft.Table("u"), Truncate: true})
	session(t, o, n, path, nil)
	session(t, o, n, path, func(c *client.Client) { // LIVE
		if cols := c.Columns()[table]; len(cols) != 2 || !cols[0].Key {
			t.Errorf("columns: %+v", cols)
		}
		if rows, err := c.All(ft.Table("u")); err != nil || len(rows) != 0 {
			t.Errorf("%d rows of a table that was truncated, %v", len(rows), err)
		}
	})
	o.Put("k000002", "in the journal")
	o.Write(ft.Change{Table: table, Key: "k000003", Gone: true})
	session(t, o, n, path, nil) // DELTA
	if got := n.count("state_deltas_total"); got != 0 {
		t.Errorf("%d state deltas for what the journal holds", got)
	}
	for i := range 300 {
		o.Put(fmt.Sprintf("k%06d", 100+i), strings.Repeat("x", 200))
	}
	o.Write(ft.Change{Table: table, Key: "k000004", Gone: true})
	ft.Converged(t, o, table, n.Node)
	session(t, o, n, path, nil) // STATE_DELTA
	if snapshots, deltas := n.count("snapshots_total"), n.count("state_deltas_total"); snapshots != 1 || deltas != 1 {
		t.Errorf("%d snapshots, %d state deltas; want 1 and 1", snapshots, deltas)
	}
	if _, err := os.Stat(path + ".tmp"); err == nil {
		t.Error("a file is left behind")
	}
}

// The file is written while the client runs, when something has changed and only
// then.
func TestSnapshotFileWhileRunning(t *testing.T) {
	t.Parallel()
	o := ft.NewOrigin(100, "t")
	n := serve(t, "root", o, 1<<20)
	path := filepath.Join(t.TempDir(), "file")
	session(t, o, n, path, func(*client.Client) {
		written := func() time.Time {
			var at time.Time
			ft.Eventually(t, 30*time.Second, func() error {
				info, err := os.Stat(path)
				if err == nil {
					at = info.ModTime()
				}
				return err
			})
			return at
		}
		first := written()
		time.Sleep(200 * time.Millisecond)
		if again := written(); !again.Equal(first) {
			t.Errorf("written again at %s, and nothing has changed since %s", again, first)
		}
		o.Put("k000001", "new")
		ft.Eventually(t, 30*time.Second, func() error {
			if !written().After(first) {
				return fmt.Errorf("not written since %s", first)
			}
			return nil
		})
	}, client.WithSnapshotEvery(20*time.Millisecond))
}

// While no upstream can be reached the file is read from, and marked; then what
// the upstream has takes its place, told to listeners as if nothing had been there.
func TestSnapshotFileWithoutUpstream(t *testing.T) {
	t.Parallel()
	o := ft.NewOrigin(300, "t")
	n := serve(t, "root", o, 1<<20)
	path := filepath.Join(t.TempDir(), "file")
	session(t, o, n, path, nil)
	o.Put("k000001", "since")
	ft.Converged(t, o, table, n.Node)

	other := ft.NewOrigin(40, "t") // has begun another epoch
	twin := serve(t, "root", other, 1<<20)
	foreign := ft.NewOrigin(50, "t")
	elsewhere := serve(t, "elsewhere", foreign, 1<<20)
	for _, c := range []struct {
		name   string
		node   served
		origin *ft.Origin
	}{{"the same log", n, o}, {"another epoch", twin, other}, {"another topology", elsewhere, foreign}} {
		t.Run(c.name, func(t *testing.T) {
			copied := filepath.Join(t.TempDir(), "file")
			good, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(copied, good, 0o600); err != nil {
				t.Fatal(err)
			}
			closed, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			nobody := closed.Addr().String()
			_ = closed.Close()
			var reachable atomic.Bool
			cl, err := client.New(client.WithUpstreams("up.test:1"), client.WithSnapshotFile(copied), client.WithLogger(slog.New(slog.DiscardHandler)), func(cfg *client.Config) {
				cfg.Resolve = func(context.Context, string) ([]string, error) {
					if reachable.Load() {
						return []string{c.node.Address}, nil
					}
					return []string{nobody}, nil
				}
			})
			if err != nil {
				t.Fatal(err)
			}
			defer cl.Close()
			x, err := cl.Index(table, "v")
			if err != nil {
				t.Fatal(err)
			}
			seen := &told{rows: map[string]string{}}
			cl.ListenWithPosition(seen.listen)
			ft.Eventually(t, 30*time.Second, func() error {
				if at, stale := cl.Stale(); !stale || at.IsZero() || time.Since(at) > time.Minute {
					return fmt.Errorf("stale: %t, as of %s", stale, at)
				}
				return nil
			})
			if all, err := cl.All(table); err != nil || len(all) != 300 {
				t.Errorf("%d rows are read from the file, %v", len(all), err)
			}
			r, ok, err := cl.Get(table, "k000001")
			v, _ := client.Text(&r, "v")
			if err != nil || !ok || v == "since" {
				t.Errorf("one row: %q, %t, %v", v, ok, err)
			}
			if rows, err := x.Lookup(v); err != nil || len(rows) == 0 {
				t.Errorf("%d rows by the index, %v", len(rows), err)
			}
			if len(cl.Columns()[table]) != 2 || cl.LastSourcePosition() == "" {
				t.Errorf("columns %v, position %q", cl.Columns(), cl.LastSourcePosition())
			}
			soon, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			if err := cl.AwaitReady(soon); err == nil {
				t.Error("it is ready without an upstream")
			}
			if rows, _ := seen.take(); len(rows) > 0 {
				t.Errorf("a listener was told of %d rows that nobody serves", len(rows))
			}

			reachable.Store(true)
			ft.Eventually(t, 30*time.Second, func() error {
				if _, stale := cl.Stale(); stale {
					return errors.New("it is still the file")
				}
				all, err := cl.All(table)
				if err != nil {
					return err
				}
				rows := map[string]string{}
				for i := range all {
					rows[column(&all[i], 0)] = column(&all[i], 1)
				}
				seen.mu.Lock()
				defer seen.mu.Unlock()
				if want := c.origin.Rows(table); !maps.Equal(rows, want) || !maps.Equal(seen.rows, want) {
					return fmt.Errorf("%d rows, %d told, want %d", len(rows), len(seen.rows), len(want))
				}
				return nil
			})
		})
	}
	if got := n.count("snapshots_total"); got != 1 {
		t.Errorf("%d snapshots of a log that the file has, want 1", got)
	}
}

// A file that is not of use is ignored, for a reason that is logged, and what the
// client has is right all the same.
func TestSnapshotFileOfNoUse(t *testing.T) {
	t.Parallel()
	o := ft.NewOrigin(300, "t")
	n := serve(t, "root", o, 1<<20)
	whole := filepath.Join(t.TempDir(), "whole")
	session(t, o, n, whole, nil)
	good, err := os.ReadFile(whole)
	if err != nil {
		t.Fatal(err)
	}
	o.Write(ft.Change{Table: table, Key: "k000001", Gone: true})
	resealed := func(change func(p []byte) []byte) []byte {
		p := change(bytes.Clone(good[:len(good)-sha256.Size]))
		sum := sha256.Sum256(p)
		return append(p, sum[:]...)
	}
	elsewhere := ft.NewOrigin(50, "t")
	elsewhere.Put("only", "there")
	other := serve(t, "elsewhere", elsewhere, 1<<20)
	foreign := filepath.Join(t.TempDir(), "foreign")
	session(t, elsewhere, other, foreign, nil)
	bytesOf := func(path string) []byte {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	again := ft.NewOrigin(40, "t") // a node of the same name, with another history
	twin := serve(t, "root", again, 1<<20)
	epoch := filepath.Join(t.TempDir(), "epoch")
	session(t, again, twin, epoch, nil)

	for _, c := range []struct {
		name string
		file []byte
		want string
		opts []client.Option
	}{
		{"empty", nil, "not a snapshot of a client", nil},
		{"something else", bytes.Repeat([]byte("text\n"), 100), "not a snapshot of a client", nil},
		{"cut short", good[:len(good)/2], "checksum is wrong", nil},
		{"its end cut off", good[:len(good)-1], "checksum is wrong", nil},
		{"its head only", good[:22], "cut short", nil},
		{"a bit is wrong", func() []byte { p := bytes.Clone(good); p[len(p)/2] ^= 1; return p }(), "checksum is wrong", nil},
		{"a newer format", resealed(func(p []byte) []byte { binary.BigEndian.PutUint32(p[16:], 2); return p }), "it has format 2", nil},
		{"sealed, and not whole", resealed(func(p []byte) []byte { return p[:len(p)-40] }), "is ignored", nil},
		{"of other tables", good, "other tables, columns or rows", []client.Option{client.WithScope(scope.Tables(table))}},
		{"of another topology", bytesOf(foreign), "which the upstream does not have", nil},
		{"of another epoch", bytesOf(epoch), "which the upstream does not have", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "file")
			if err := os.WriteFile(path, c.file, 0o600); err != nil {
				t.Fatal(err)
			}
			before := n.count("snapshots_total")
			log := session(t, o, n, path, nil, c.opts...)
			if !strings.Contains(log, c.want) || !strings.Contains(log, path) {
				t.Errorf("the log does not say %q:\n%s", c.want, log)
			}
			if got := n.count("snapshots_total") - before; got != 1 {
				t.Errorf("%d snapshots, want 1", got)
			}
			// And the file is of use again.
			session(t, o, n, path, nil, c.opts...)
			if got := n.count("snapshots_total") - before; got != 1 {
				t.Errorf("%d snapshots with a new file, want 1", got)
			}
		})
	}
}

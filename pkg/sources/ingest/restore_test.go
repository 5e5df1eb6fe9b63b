package ingest_test

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/engine/store"
	"github.com/tributary-dev/tributary/pkg/fanout/client"
	ft "github.com/tributary-dev/tributary/pkg/fanout/fanouttest"
	"github.com/tributary-dev/tributary/pkg/sources/ingest"
)

// member is a node of a mesh that is written to, with a store on disk.
type member struct {
	*ft.Node
	mesh   *client.Mesh
	source *ingest.Source
	store  *store.Pebble
}

var stock = engine.TableName{Schema: "public", Name: "stock"}

func startMember(t *testing.T, id, dir, address string) *member {
	t.Helper()
	st, err := store.OpenPebble(store.PebbleOptions{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	src, err := ingest.New(ingest.Config{Tables: []ingest.Table{{Name: stock, Columns: []ingest.Column{{Name: "id", Type: "text", Key: true}, {Name: "v", Type: "text"}}}}})
	if err != nil {
		t.Fatal(err)
	}
	n := &member{source: src, store: st}
	n.Node, n.mesh = ft.Member(t, id, ft.Options{Use: st, Address: address}, src, nil)
	t.Cleanup(n.end)
	return n
}

func (n *member) end() {
	n.Stop()
	_ = n.store.Close()
}

func (n *member) put(key, value string) {
	n.T.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	if _, err := n.source.Write(ctx, &ingest.Batch{Ops: []ingest.Op{{Kind: ingest.Put, Table: stock, Row: []ingest.Field{{Column: "id", Value: &key}, {Column: "v", Value: &value}}}}}); err != nil {
		n.T.Fatal(err)
	}
}

func (n *member) remove(key string) {
	n.T.Helper()
	if _, err := n.source.Write(context.Background(), &ingest.Batch{Ops: []ingest.Op{{Kind: ingest.Delete, Table: stock, Row: []ingest.Field{{Column: "id", Value: &key}}}}}); err != nil {
		n.T.Fatal(err)
	}
}

// records returns all that a node holds, with stamps and tombstones.
func (n *member) records() map[string]string {
	v := n.store.View()
	defer v.Close()
	all := map[string]string{}
	if err := v.Scan(stock, nil, func(r *engine.Record) bool {
		all[string(r.Key)] = fmt.Sprintf("%x %s %t", r.Row.Values(), r.Stamp, r.Deleted)
		return true
	}); err != nil {
		n.T.Fatal(err)
	}
	return all
}

// settled waits until the nodes hold the same, and these rows.
func settled(t *testing.T, want map[string]string, nodes ...*member) {
	t.Helper()
	ft.Eventually(t, 30*time.Second, func() error {
		for _, n := range nodes {
			if rows := n.Rows(stock); !maps.Equal(rows, want) {
				return fmt.Errorf("node %s has %v, want %v; status %+v", n.ID, rows, want, n.Engine.Status().Sources)
			}
			if a, b := nodes[0].records(), n.records(); !maps.Equal(a, b) {
				return fmt.Errorf("nodes %s and %s differ:\n%v\n%v", nodes[0].ID, n.ID, a, b)
			}
		}
		return nil
	})
}

func (n *member) status(name string) engine.SourceState {
	for _, s := range n.Engine.Status().Sources {
		if s.Name == name {
			return s
		}
	}
	return engine.SourceState{}
}

func (n *member) epoch(origin string) (e engine.Epoch) {
	for _, a := range n.Engine.Adverts() {
		if a.Log.Origin == origin {
			e = a.Log.Epoch
		}
	}
	return e
}

// R18: a node restored from last night's backup, which then writes. What it had
// written since is read back from its peers before it takes a new epoch, and what is
// newer elsewhere stays.
func TestCaseR18(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	a, b, c := startMember(t, "a", at("a"), ""), startMember(t, "b", at("b"), ""), startMember(t, "c", at("c"), "")
	join := func() {
		a.mesh.SetPeers(ft.Peers(b.Node, c.Node), client.Policy{})
		b.mesh.SetPeers(ft.Peers(a.Node, c.Node), client.Policy{})
		c.mesh.SetPeers(ft.Peers(a.Node, b.Node), client.Policy{})
	}
	join()
	for i := range 20 {
		a.put(fmt.Sprint("k", i), "old")
	}
	want := map[string]string{}
	for i := range 20 {
		want[fmt.Sprint("k", i)] = "old"
	}
	settled(t, want, a, b, c)
	epoch := a.epoch("a#own")

	// Back it up, and go on.
	a.end()
	if err := os.CopyFS(at("backup"), os.DirFS(at("a"))); err != nil {
		t.Fatal(err)
	}
	a = startMember(t, "a", at("a"), a.Address)
	join()
	a.put("k1", "newer at a")
	a.put("k20", "new at a")
	a.remove("k2")
	want["k1"], want["k20"] = "newer at a", "new at a"
	delete(want, "k2")
	settled(t, want, a, b, c)
	b.put("k3", "newer at b")
	want["k3"] = "newer at b"
	settled(t, want, a, b, c)
	if e := a.epoch("a#own"); e != epoch {
		t.Errorf("a restart of a node that has lost nothing has taken it from epoch %s to %s", epoch, e)
	}

	// Restore the backup. It writes at once.
	a.end()
	a = startMember(t, "a", at("backup"), a.Address)
	join()
	a.put("k21", "after the restore")
	a.put("k4", "after the restore")
	want["k21"], want["k4"] = "after the restore", "after the restore"
	settled(t, want, a, b, c)
	for _, n := range []*member{a, b, c} {
		if e := n.epoch("a#own"); e <= epoch {
			t.Errorf("node %s has epoch %s of a, and the one before the restore was %s", n.ID, e, epoch)
		}
	}
	if s := a.status("own"); s.HistoryLost != 1 || s.LastCause == "" {
		t.Errorf("the node does not say that it had lost some of its history: %+v", s)
	}
	if s := b.status("own"); s.HistoryLost != 0 {
		t.Errorf("node b says that it has lost history: %+v", s)
	}

	// And it is a node like any other again.
	a.put("k5", "later")
	b.put("k6", "later")
	want["k5"], want["k6"] = "later", "later"
	settled(t, want, a, b, c)
}

// A restored node whose peers no longer hold what follows its place in its log is
// caught up from their states.
func TestRestoredFarBehind(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	a, b := startMember(t, "a", at("a"), ""), startMember(t, "b", at("b"), "")
	join := func() {
		a.mesh.SetPeers(ft.Peers(b.Node), client.Policy{})
		b.mesh.SetPeers(ft.Peers(a.Node), client.Policy{})
	}
	join()
	a.put("k", "old")
	a.put("gone", "old")
	settled(t, map[string]string{"k": "old", "gone": "old"}, a, b)
	a.end()
	if err := os.CopyFS(at("backup"), os.DirFS(at("a"))); err != nil {
		t.Fatal(err)
	}
	a = startMember(t, "a", at("a"), a.Address)
	join()
	a.remove("gone")
	for i := range 10 {
		a.put(fmt.Sprint("k", i), "new")
	}
	want := map[string]string{"k": "old"}
	for i := range 10 {
		want[fmt.Sprint("k", i)] = "new"
	}
	settled(t, want, a, b)
	a.end()
	// The peer begins anew as well: it has the state, and a log that is empty.
	tx, err := b.store.Begin(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range tx.Logs() {
		if l.ID.Origin == "a#own" {
			if err := tx.TrimLog(l.ID, 0, l.Head); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	a = startMember(t, "a", at("backup"), a.Address)
	join()
	a.put("last", "after the restore")
	want["last"] = "after the restore"
	settled(t, want, a, b)
	if s := a.status("own"); s.HistoryLost != 1 {
		t.Errorf("the node does not say that it had lost some of its history: %+v", s)
	}
}

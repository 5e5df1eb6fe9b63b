package archive_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tributary-dev/tributary/pkg/archive"
	"github.com/tributary-dev/tributary/pkg/archive/dest"
	"github.com/tributary-dev/tributary/pkg/archive/dest/local"
	"github.com/tributary-dev/tributary/pkg/archive/export"
	"github.com/tributary-dev/tributary/pkg/engine"
	ft "github.com/tributary-dev/tributary/pkg/fanout/fanouttest"
	source "github.com/tributary-dev/tributary/pkg/sources/archive"
)

// hooked calls a function before an object is opened.
type hooked struct {
	dest.Destination
	open func()
}

func (h hooked) Open(ctx context.Context, key string, at int64) (io.ReadCloser, error) {
	h.open()
	return h.Destination.Open(ctx, key, at)
}

// The archives of a group are replaced one after the other: one at the very moment that the node reads it as it
// was, and the other later. The node has what they were until both are there, and says which it waits for.
func TestReplacedOneByOne(t *testing.T) {
	t.Parallel()
	o, root := served(t, 300)
	w := exporter(t, root, t.TempDir(), nil)
	w.once(t)
	next := ft.NewOrigin(200, "t", "u")
	again := ft.Start(t, "root", ft.Options{}, map[string]engine.SyncSource{"pg": next})
	w2 := exporter(t, again, t.TempDir(), nil)

	var armed atomic.Bool
	folder, err := local.New(w.folder)
	if err != nil {
		t.Fatal(err)
	}
	late, err := archive.NewReader(archive.ReaderConfig{Prefix: prefix(t1), Table: t1, Destination: hooked{folder, func() {
		if armed.CompareAndSwap(true, false) {
			replace(t, w.folder, w2.folder, t1) // it is read as it was
		}
	}}})
	if err != nil {
		t.Fatal(err)
	}
	edge := ft.Start(t, "edge", ft.Options{}, map[string]engine.SyncSource{"seed": from(t, w.folder, func(c *source.Config) { c.Tables[0].Reader = late }, t1, t2)})
	ft.Converged(t, o, t1, edge)
	ft.Converged(t, o, t2, edge)
	o.Put("k1", "of the first")
	ft.Converged(t, o, t1, root)
	next.Write(ft.Change{Table: t1, Key: "k1", Value: "of the second"}, ft.Change{Table: t2, Key: "k1", Value: "of the second"})
	ft.Converged(t, next, t1, again)
	ft.Converged(t, next, t2, again)
	w2.once(t)
	armed.Store(true)
	w.once(t)
	ft.Eventually(t, 30*time.Second, func() error {
		if st := edge.Engine.Status().Sources[0]; !strings.Contains(st.Message, "the archive of public.u is of an older history") {
			return fmt.Errorf("it says %+v", st)
		}
		return nil
	})
	if armed.Load() {
		t.Error("the archive was not read meanwhile")
	}
	ft.Converged(t, o, t1, edge)
	ft.Converged(t, o, t2, edge)
	replace(t, w.folder, w2.folder, t2)
	ft.Converged(t, next, t2, edge)
	ft.Converged(t, next, t1, edge)
	if n := baselines(edge); n != 2 {
		t.Errorf("%d baselines", n)
	}
}

// replace puts the archive of a table in the place of another, its manifest last.
func replace(t *testing.T, folder, by string, table engine.TableName) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(by, prefix(table)))
	if err != nil {
		t.Error(err)
	}
	for _, manifest := range []bool{false, true} {
		for _, e := range entries {
			if strings.HasSuffix(e.Name(), "manifest.json") != manifest {
				continue
			}
			data, err := os.ReadFile(filepath.Join(by, prefix(table), e.Name()))
			if err != nil {
				t.Error(err)
			}
			at := filepath.Join(folder, prefix(table), e.Name())
			if err := os.WriteFile(at+".new", data, 0o600); err != nil {
				t.Error(err)
			}
			if err := os.Rename(at+".new", at); err != nil {
				t.Error(err)
			}
		}
	}
}

// Archives are replaced by those of another origin, as a takeover under another name does: rows that were
// deleted in between go, at the node, at its readers and at theirs, also if the node is started again meanwhile.
func TestReplacedByAnotherOrigin(t *testing.T) {
	t.Parallel()
	for _, again := range []bool{false, true} {
		t.Run(fmt.Sprint("started again ", again), func(t *testing.T) {
			t.Parallel()
			o, root := served(t, 300)
			w := exporter(t, root, t.TempDir(), nil)
			w.once(t)
			disk := ft.Durable(t)
			seed := func() map[string]engine.SyncSource {
				return map[string]engine.SyncSource{"seed": from(t, w.folder, nil, t1, t2)}
			}
			edge := ft.Start(t, "edge", ft.Options{Use: disk}, seed())
			reader, _ := ft.Child(t, "reader", nil, edge)
			deep, _ := ft.Child(t, "deep", nil, reader)
			all := []*ft.Node{edge, reader, deep}
			ft.Converged(t, o, t1, all...)
			ft.Converged(t, o, t2, all...)
			if again {
				edge.Stop()
			}
			next := ft.NewOrigin(200, "t", "u") // of which 100 rows are gone
			next.Write(ft.Change{Table: t1, Key: "k7", Gone: true}, ft.Change{Table: t2, Key: "k8", Value: "changed"})
			other := ft.Start(t, "other", ft.Options{}, map[string]engine.SyncSource{"pg": next})
			ft.Converged(t, next, t1, other)
			ft.Converged(t, next, t2, other)
			w2 := exporter(t, other, w.folder, func(c *export.Config) { c.TakeOver = true })
			w2.once(t)
			if again {
				all[0] = ft.Start(t, "edge", ft.Options{Use: disk}, seed())
				reader.Stop()
				deep.Stop()
				all[1], _ = ft.ChildWith(t, "reader", ft.Options{Use: reader.Store}, nil, all[0])
				all[2], _ = ft.ChildWith(t, "deep", ft.Options{Use: deep.Store}, nil, all[1])
			}
			for i := range 2 {
				ft.Converged(t, next, t1, all...)
				ft.Converged(t, next, t2, all...)
				next.Write(ft.Change{Table: t1, Key: "k9", Gone: true}, ft.Change{Table: t2, Key: "k300", Value: fmt.Sprint("back", i)})
				ft.Converged(t, next, t2, other)
				w2.once(t)
			}
			if n := len(all[0].Engine.Adverts()); n != 1 {
				t.Errorf("the node serves %d logs", n)
			}
		})
	}
}

// An archive is taken over by a writer that has stamped its rows before the one that it takes it from, since its clock is
// behind or it is older: what it has stands all the same, at a node that follows and at its readers, and what it writes
// from then on.
func TestReplacedByOlderStamps(t *testing.T) {
	t.Parallel()
	for _, behind := range []time.Duration{0, time.Hour} {
		t.Run(fmt.Sprint(behind), func(t *testing.T) {
			t.Parallel()
			next := ft.NewOrigin(100, "t", "u")
			other := ft.Start(t, "other", ft.Options{Now: func() time.Time { return time.Now().Add(-behind) }}, map[string]engine.SyncSource{"pg": next})
			ft.Converged(t, next, t1, other)
			ft.Converged(t, next, t2, other)
			o, root := served(t, 50)
			w := exporter(t, root, t.TempDir(), nil)
			edge := ft.Start(t, "edge", ft.Options{}, map[string]engine.SyncSource{"seed": from(t, w.folder, nil, t1, t2)})
			reader, _ := ft.Child(t, "reader", nil, edge)
			o.Write(ft.Change{Table: t1, Key: "k000001", Value: "newer"}, ft.Change{Table: t1, Key: "k000002", Value: "newer"}, ft.Change{Table: t1, Key: "k000003", Gone: true}, ft.Change{Table: t1, Key: "new", Value: "newer"})
			ft.Converged(t, o, t1, root)
			w.once(t)
			all := []*ft.Node{edge, reader}
			ft.Converged(t, o, t1, all...)
			w2 := exporter(t, other, w.folder, func(c *export.Config) { c.TakeOver = true })
			w2.once(t)
			for i := range 3 {
				ft.Converged(t, next, t1, all...)
				ft.Converged(t, next, t2, all...)
				next.Write(ft.Change{Table: t1, Key: "k000001", Value: fmt.Sprint(i)}, ft.Change{Table: t1, Key: "k000002", Gone: true}, ft.Change{Table: t1, Key: "new", Value: "again"}, ft.Change{Table: t2, Key: "k2", Value: fmt.Sprint(i)})
				ft.Converged(t, next, t1, other)
				ft.Converged(t, next, t2, other)
				w2.once(t)
			}
		})
	}
}

// The archive of a relay, whose rows have the stamps of those that wrote them, is taken over by another relay: rows that
// this one does not have go, and those that it has stay as they are.
func TestReplacedByAnotherRelay(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	d, err := local.New(folder)
	if err != nil {
		t.Fatal(err)
	}
	leaf := engine.LogID{Origin: "leaf#db", Epoch: 1}
	schema := &engine.Schema{ID: 1, Table: t1, Columns: []engine.Column{{Name: "id", Number: 1, TypeName: "text", Key: true}, {Name: "v", Number: 2, TypeName: "text"}}}
	write := func(relay string, epoch engine.Epoch, time engine.Time, keys ...string) {
		t.Helper()
		w, err := archive.OpenWriter(t.Context(), archive.WriterConfig{Destination: d, Prefix: prefix(t1), Table: t1, ID: relay, TakeOver: true})
		if err != nil {
			t.Fatal(err)
		}
		at := archive.NewVector(archive.Cursor{Log: engine.LogID{Origin: relay, Epoch: epoch}, Position: "7", Order: "number", Time: time})
		_, err = w.Base(t.Context(), archive.Base{At: at, Schemas: archive.Schemas{leaf: {schema}}, Rows: func(emit func(*engine.Record) error) error {
			for i, k := range keys {
				row := engine.AppendValue(engine.AppendValue(engine.AppendRowHeader(nil, 1, 2), k), "of "+k)
				r := &engine.Record{Schema: schema, Key: engine.AppendKeyValue(nil, k), Row: row, Stamp: engine.Stamp{Time: engine.Time(100 + i), Origin: leaf.Origin, Epoch: leaf.Epoch}}
				if err := emit(r); err != nil {
					return err
				}
			}
			return nil
		}})
		if err != nil {
			t.Fatal(err)
		}
	}
	write("one#relay", 5, 1000, "a", "b", "c")
	edge := ft.Start(t, "edge", ft.Options{}, map[string]engine.SyncSource{"seed": from(t, folder, nil, t1)})
	reader, _ := ft.Child(t, "reader", nil, edge)
	has := func(want ...string) {
		t.Helper()
		ft.Eventually(t, 30*time.Second, func() error {
			for _, n := range []*ft.Node{edge, reader} {
				rows := n.Rows(t1)
				for _, k := range want {
					if rows[k] != "of "+k {
						return fmt.Errorf("node %s has %v: %+v, %+v", n.ID, rows, n.Engine.Status().Sources, n.Engine.Adverts())
					}
				}
				if len(rows) != len(want) {
					return fmt.Errorf("node %s has %v: %+v, %+v", n.ID, rows, n.Engine.Status().Sources, n.Engine.Adverts())
				}
			}
			return nil
		})
	}
	has("a", "b", "c")
	write("two#relay", 9, 2000, "a", "c", "d")
	has("a", "c", "d")
}

// written is a row of a base that a test writes: "of KEY at TIME".
type written struct {
	key  string
	log  engine.LogID
	time engine.Time
}

// base writes a base of t1 in the name of a writer, which takes the archive over. Rows are of a schema with the ID given.
func base(t *testing.T, folder, writer string, at archive.Vector, schemaID uint32, rows ...written) {
	t.Helper()
	d, err := local.New(folder)
	if err != nil {
		t.Fatal(err)
	}
	w, err := archive.OpenWriter(t.Context(), archive.WriterConfig{Destination: d, Prefix: prefix(t1), Table: t1, ID: writer, TakeOver: true})
	if err != nil {
		t.Fatal(err)
	}
	schema := &engine.Schema{ID: schemaID, Table: t1, Columns: []engine.Column{{Name: "id", Number: 1, TypeName: "text", Key: true}, {Name: "v", Number: 2, TypeName: "text"}}}
	schemas := archive.Schemas{}
	for _, r := range rows {
		schemas[r.log] = []*engine.Schema{schema}
	}
	_, err = w.Base(t.Context(), archive.Base{At: at, Schemas: schemas, Rows: func(emit func(*engine.Record) error) error {
		for _, r := range rows {
			row := engine.AppendValue(engine.AppendValue(engine.AppendRowHeader(nil, schemaID, 2), r.key), fmt.Sprintf("of %s at %d", r.key, r.time))
			rec := &engine.Record{Schema: schema, Key: engine.AppendKeyValue(nil, r.key), Row: row, Stamp: engine.Stamp{Time: r.time, Origin: r.log.Origin, Epoch: r.log.Epoch}}
			if err := emit(rec); err != nil {
				return err
			}
		}
		return nil
	}})
	if err != nil {
		t.Fatal(err)
	}
}

// holds waits until nodes have rows of t1 with these keys, each followed by its time, and no others.
func holds(t *testing.T, nodes []*ft.Node, rows ...string) {
	t.Helper()
	ft.Eventually(t, 30*time.Second, func() error {
		for _, n := range nodes {
			var got []string
			for _, v := range n.Rows(t1) {
				got = append(got, strings.TrimPrefix(v, "of "))
			}
			slices.Sort(got)
			if !slices.Equal(got, rows) {
				return fmt.Errorf("node %s has %q, want %q: %+v, %+v", n.ID, got, rows, n.Engine.Status().Sources, n.Engine.Adverts())
			}
		}
		return nil
	})
}

// The archive of a log that a node writes itself is taken over by a relay, whose log has no schema of its own: rows that the
// relay does not have go, at a node that keeps what it has on disk, at one that is started again, and at their readers.
func TestMintedReplacedByRelay(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	minted := engine.LogID{Origin: "app#ingest", Epoch: 5}
	base(t, folder, "app", archive.NewVector(archive.Cursor{Log: minted, Position: "7", Order: "number", Time: 1000}), 3,
		written{"a", minted, 900}, written{"b", minted, 901}, written{"c", minted, 902})
	disk := ft.Durable(t)
	seed := func() map[string]engine.SyncSource {
		return map[string]engine.SyncSource{"seed": from(t, folder, nil, t1)}
	}
	edge := ft.Start(t, "edge", ft.Options{Use: disk}, seed())
	reader, _ := ft.ChildWith(t, "reader", ft.Options{Use: ft.Durable(t)}, nil, edge)
	has := func(nodes []*ft.Node, keys ...string) { t.Helper(); holds(t, nodes, keys...) }
	has([]*ft.Node{edge, reader}, "a at 900", "b at 901", "c at 902")
	leaf := engine.LogID{Origin: "leaf#db", Epoch: 1}
	base(t, folder, "two", archive.NewVector(archive.Cursor{Log: engine.LogID{Origin: "two#relay", Epoch: 9}, Position: "7", Order: "number", Time: 2000}), 1,
		written{"a", leaf, 1900}, written{"c", leaf, 1901}, written{"d", leaf, 1902})
	has([]*ft.Node{edge, reader}, "a at 1900", "c at 1901", "d at 1902")
	late, _ := ft.ChildWith(t, "late", ft.Options{Use: ft.Durable(t)}, nil, edge) // it gets a snapshot, with the tombstones
	has([]*ft.Node{late}, "a at 1900", "c at 1901", "d at 1902")
	edge.Stop()
	again := ft.Start(t, "edge", ft.Options{Use: disk}, seed())
	has([]*ft.Node{again}, "a at 1900", "c at 1901", "d at 1902")
	after, _ := ft.ChildWith(t, "after", ft.Options{Use: ft.Durable(t)}, nil, again)
	has([]*ft.Node{after}, "a at 1900", "c at 1901", "d at 1902")
	w := exporter(t, again, t.TempDir(), nil)
	w.once(t)
	copied := ft.Start(t, "copied", ft.Options{Use: ft.Durable(t)}, map[string]engine.SyncSource{"seed": from(t, w.folder, nil, t1)})
	has([]*ft.Node{copied}, "a at 1900", "c at 1901", "d at 1902")
}

// The archive of one origin is taken over by one of several, whose rows have older stamps: what they have stands,
// whichever of them wrote it, and what they lack goes.
func TestReplacedBySeveralOrigins(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	x, y, z := engine.LogID{Origin: "x#db", Epoch: 5}, engine.LogID{Origin: "y#db", Epoch: 3}, engine.LogID{Origin: "z#db", Epoch: 4}
	at := func(log engine.LogID, time engine.Time) archive.Cursor {
		return archive.Cursor{Log: log, Position: "0/7", Time: time}
	}
	base(t, folder, "one", archive.NewVector(at(x, 1000)), 1, written{"a", x, 900}, written{"b", x, 901}, written{"c", x, 902}, written{"d", x, 903})
	edge := ft.Start(t, "edge", ft.Options{Use: ft.Durable(t)}, map[string]engine.SyncSource{"seed": from(t, folder, nil, t1)})
	reader, _ := ft.ChildWith(t, "reader", ft.Options{Use: ft.Durable(t)}, nil, edge)
	holds(t, []*ft.Node{edge, reader}, "a at 900", "b at 901", "c at 902", "d at 903")
	base(t, folder, "two", archive.NewVector(at(y, 600), at(z, 700)), 1, written{"a", y, 500}, written{"b", z, 501}, written{"d", y, 950}, written{"e", z, 502}, written{"f", y, 503})
	holds(t, []*ft.Node{edge, reader}, "a at 500", "b at 501", "d at 950", "e at 502", "f at 503")
	late, _ := ft.ChildWith(t, "late", ft.Options{Use: ft.Durable(t)}, nil, edge)
	holds(t, []*ft.Node{late}, "a at 500", "b at 501", "d at 950", "e at 502", "f at 503")
}

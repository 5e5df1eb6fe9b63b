package server_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/engine/store"
	"github.com/tributary-dev/tributary/pkg/fanout/client"
	ft "github.com/tributary-dev/tributary/pkg/fanout/fanouttest"
	"github.com/tributary-dev/tributary/pkg/fanout/server"
	"github.com/tributary-dev/tributary/pkg/fanout/wirepb"
)

// counted starts a node whose server's counters can be read.
func counted(t *testing.T, o *ft.Origin, opt store.MemoryOptions) (n *ft.Node, count func(name string) float64) {
	t.Helper()
	registry := prometheus.NewRegistry()
	n = ft.Start(t, "root", ft.Options{Store: opt, Server: server.Config{Registry: registry}}, map[string]engine.SyncSource{"pg": o})
	ft.Converged(t, o, table, n)
	return n, counter(t, registry)
}

// counter returns what reads the counters of a server.
func counter(t *testing.T, registry *prometheus.Registry) func(name string) float64 {
	return func(name string) float64 {
		t.Helper()
		all, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range all {
			if f.GetName() == "tributary_fanout_"+name {
				return f.GetMetric()[0].GetCounter().GetValue()
			}
		}
		t.Fatalf("no metric %s", name)
		return 0
	}
}

// A reader whose cursor has fallen out of the journal gets what was written
// since: rows, deletes, truncates, in bytes that go with the change and not with
// the table.
func TestStateDelta(t *testing.T) {
	t.Parallel()
	o := ft.NewOrigin(5000, "t", "u")
	n, count := counted(t, o, store.MemoryOptions{JournalBytes: 4 << 10})
	kept := ft.Options{Use: store.NewMemory(store.MemoryOptions{})}
	child, _ := ft.ChildWith(t, "child", kept, nil, n)
	ft.Converged(t, o, table, child)
	ft.Converged(t, o, ft.Table("u"), child)
	child.Stop()
	before, snapshots := count("sent_bytes_total"), count("snapshots_total")
	for i := range 200 {
		o.Put(fmt.Sprintf("k%06d", i), strings.Repeat("y", 100))
	}
	o.Write(ft.Change{Table: table, Key: "k001000", Gone: true}, ft.Change{Table: table, Key: "k000001", Gone: true})
	o.Write(ft.Change{Table: ft.Table("u"), Truncate: true})
	o.Write(ft.Change{Table: ft.Table("u"), Key: "only", Value: "row"})
	ft.Converged(t, o, table, n)
	child, _ = ft.ChildWith(t, "child", kept, nil, n)
	ft.Converged(t, o, table, child)
	ft.Converged(t, o, ft.Table("u"), child)
	if got := count("snapshots_total") - snapshots; got != 0 {
		t.Errorf("%v snapshots", got)
	}
	if got := count("state_deltas_total"); got < 1 {
		t.Errorf("%v state deltas", got)
	}
	if got := count("sent_bytes_total") - before; got > 80<<10 {
		t.Errorf("%v bytes for 200 rows of 100 bytes", got)
	}
	// It goes on from there.
	o.Put("k000002", "after")
	ft.Converged(t, o, table, child)
	// And its own readers were told of it: nothing is missing below.
	below, _ := ft.Child(t, "below", nil, child)
	ft.Converged(t, o, table, below)
}

// A delete that the server has forgotten is one the reader would never hear of:
// it takes a snapshot.
func TestForgottenDeletes(t *testing.T) {
	t.Parallel()
	o := ft.NewOrigin(500, "t")
	n, count := counted(t, o, store.MemoryOptions{JournalBytes: 4 << 10, Tombstones: 10})
	kept := ft.Options{Use: store.NewMemory(store.MemoryOptions{})}
	child, _ := ft.ChildWith(t, "child", kept, nil, n)
	ft.Converged(t, o, table, child)
	child.Stop()
	before := count("snapshots_total")
	for i := range 200 {
		o.Write(ft.Change{Table: table, Key: fmt.Sprintf("k%06d", i), Gone: true})
	}
	ft.Converged(t, o, table, n)
	child, _ = ft.ChildWith(t, "child", kept, nil, n)
	ft.Converged(t, o, table, child)
	if got := count("snapshots_total") - before; got != 1 {
		t.Errorf("%v snapshots, want one", got)
	}
}

// A baseline that takes longer than the journal holds is followed by what was
// written meanwhile, and not by another baseline.
func TestSnapshotLongerThanJournal(t *testing.T) {
	t.Parallel()
	o := ft.NewOrigin(2000, "t")
	n, count := counted(t, o, store.MemoryOptions{JournalBytes: 2 << 10})
	r := open(t, n)
	caps := hello("slow")
	caps.GetHello().Capabilities = append(caps.GetHello().Capabilities, "state-delta")
	r.send(caps)
	log := r.until(func(f *wirepb.Frame) bool { return f.GetAdvert() != nil }).GetAdvert().GetLogs()[0].GetLog()
	r.send(&wirepb.Frame{Kind: &wirepb.Frame_Subscribe{Subscribe: &wirepb.Subscribe{Channel: 1, Log: log, Credit: 4 << 10}}})
	rows := map[string]bool{}
	var at *wirepb.Cursor
	records := 0
	more := func(channel uint32, f *wirepb.Frame) {
		if p := f.GetSnapshotRows(); p != nil {
			records += int(p.GetRecords())
			r.send(&wirepb.Frame{Kind: &wirepb.Frame_Credit{Credit: &wirepb.Credit{Channel: channel, Bytes: uint64(len(p.GetPayload()))}}})
			o.Put(fmt.Sprintf("k%06d", len(rows)), strings.Repeat("z", 200)) // the stream overtakes it, again and again
			rows[fmt.Sprint(len(rows))] = true
		}
	}
	end := r.until(func(f *wirepb.Frame) bool { more(1, f); return f.GetSnapshotEnd() != nil }).GetSnapshotEnd()
	at = end.GetCursors()[0].GetCursor()
	if records != 2000 {
		t.Errorf("%d rows", records)
	}
	r.until(func(f *wirepb.Frame) bool { return f.GetGap() != nil })
	ft.Converged(t, o, table, n)
	r.send(&wirepb.Frame{Kind: &wirepb.Frame_Subscribe{Subscribe: &wirepb.Subscribe{Channel: 2, Log: log, Credit: 1 << 20, From: &wirepb.Subscribe_Cursor{Cursor: at}}}})
	sub := r.until(func(f *wirepb.Frame) bool { return f.GetSubscribed() != nil }).GetSubscribed()
	if sub.GetMode() != wirepb.Mode_MODE_STATE_DELTA || sub.GetStart().GetPosition() != at.GetPosition() {
		t.Fatalf("%v", sub)
	}
	records = 0
	end = r.until(func(f *wirepb.Frame) bool {
		if p := f.GetSnapshotRows(); p != nil {
			records += int(p.GetRecords())
		}
		return f.GetSnapshotEnd() != nil
	}).GetSnapshotEnd()
	if records != len(rows) {
		t.Errorf("%d rows, and %d were written meanwhile", records, len(rows))
	}
	// The join has no gap: what comes next follows where it ended.
	o.Put("next", "row")
	b := r.until(func(f *wirepb.Frame) bool { return f.GetBatch() != nil }).GetBatch()
	if b.GetPrev() != end.GetCursors()[0].GetCursor().GetPosition() {
		t.Errorf("the log goes on from %s, and the rows ended at %v", b.GetPrev(), end.GetCursors()[0])
	}
	if count("snapshots_total") != 1 || count("state_deltas_total") != 1 {
		t.Errorf("%v snapshots, %v deltas", count("snapshots_total"), count("state_deltas_total"))
	}
}

// A slow reader of a busy log with a small journal ends: whatever overtakes it,
// it has every row right.
func TestSlowReaderSmallJournal(t *testing.T) {
	t.Parallel()
	o := ft.NewOrigin(3000, "t")
	n, count := counted(t, o, store.MemoryOptions{JournalBytes: 16 << 10})
	slow, src := ft.Child(t, "slow", func(c *client.Config) { c.Buffer = 1 }, n)
	ft.Converged(t, o, table, slow)
	for i := range 3000 {
		o.Put(fmt.Sprintf("k%06d", i%1500), fmt.Sprint("round ", i))
		if i%300 == 0 {
			src.Pause()
			time.AfterFunc(20*time.Millisecond, src.Resume)
		}
	}
	src.Resume()
	ft.Converged(t, o, table, slow)
	if got := count("snapshots_total"); got != 1 {
		t.Errorf("%v snapshots", got)
	}
	t.Logf("%v gaps, %v state deltas", count("gaps_total"), count("state_deltas_total"))
}

// The deletes that a state delta is to tell of are let go between the choice of the
// mode and its first row: the reader is caught up by a snapshot, in which what was
// deleted is not.
func TestForgottenSinceChosen(t *testing.T) {
	t.Parallel()
	const kept = 50
	o := ft.NewOrigin(500, "t")
	n, _ := counted(t, o, store.MemoryOptions{JournalBytes: 4 << 10, Tombstones: kept})
	r := open(t, n)
	caps := hello("slow")
	caps.GetHello().Capabilities = append(caps.GetHello().Capabilities, "state-delta")
	r.send(caps)
	advert := r.until(func(f *wirepb.Frame) bool { return f.GetAdvert() != nil }).GetAdvert().GetLogs()[0]
	for i := range 100 { // more than the journal holds
		o.Put(fmt.Sprintf("k%06d", i), strings.Repeat("y", 100))
	}
	ft.Converged(t, o, table, n)
	subscribed := func() *wirepb.Subscribed {
		return r.until(func(f *wirepb.Frame) bool { return f.GetSubscribed() != nil }).GetSubscribed()
	}
	// Without credit nothing is read for it yet.
	r.send(&wirepb.Frame{Kind: &wirepb.Frame_Subscribe{Subscribe: &wirepb.Subscribe{Channel: 1, Log: advert.GetLog(), From: &wirepb.Subscribe_Cursor{Cursor: advert.GetHead()}}}})
	if s := subscribed(); s.GetMode() != wirepb.Mode_MODE_STATE_DELTA {
		t.Fatalf("%v", s)
	}
	for i := range 200 {
		o.Write(ft.Change{Table: table, Key: fmt.Sprintf("k%06d", i), Gone: true})
	}
	ft.Converged(t, o, table, n)
	r.send(&wirepb.Frame{Kind: &wirepb.Frame_Credit{Credit: &wirepb.Credit{Channel: 1, Bytes: 1 << 20}}})
	if s := subscribed(); s.GetMode() != wirepb.Mode_MODE_SNAPSHOT {
		t.Fatalf("%v", s)
	}
	records := 0
	r.until(func(f *wirepb.Frame) bool {
		records += int(f.GetSnapshotRows().GetRecords())
		return f.GetSnapshotEnd() != nil
	})
	if records != 300+kept {
		t.Errorf("%d records; there are 300 rows, and the tombstones of %d", records, kept)
	}
}

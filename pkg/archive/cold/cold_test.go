package cold_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"go.uber.org/goleak"

	"github.com/tributary-dev/tributary/pkg/archive"
	"github.com/tributary-dev/tributary/pkg/archive/cold"
	"github.com/tributary-dev/tributary/pkg/archive/dest/desttest"
	"github.com/tributary-dev/tributary/pkg/archive/dest/local"
	"github.com/tributary-dev/tributary/pkg/archive/export"
	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/engine/spill"
	"github.com/tributary-dev/tributary/pkg/engine/store"
	ft "github.com/tributary-dev/tributary/pkg/fanout/fanouttest"
	"github.com/tributary-dev/tributary/pkg/fanout/server"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var table = ft.Table("t")

// watched are archives whose replays are looked at between being read and passed on.
type watched struct {
	*cold.Archives
	gate    chan struct{} // all wait for it
	stalled chan struct{} // the first two wait for it

	began     atomic.Int64
	mu        sync.Mutex
	now, most int
}

func (w *watched) Replay(ctx context.Context, r server.Replay) error {
	begin, in := r.Begin, false
	r.Begin = func(s map[engine.LogID][]*engine.Schema, c map[engine.TableName][]engine.Stamp) error {
		w.mu.Lock()
		w.now++
		in, w.most = true, max(w.most, w.now)
		w.mu.Unlock()
		wait := w.gate
		if w.began.Add(1) <= 2 {
			wait = w.stalled
		}
		select {
		case <-wait:
		case <-ctx.Done():
			return ctx.Err()
		}
		return begin(s, c)
	}
	err := w.Archives.Replay(ctx, r)
	if in {
		w.mu.Lock()
		w.now--
		w.mu.Unlock()
	}
	return err
}

// A16: 200 readers come back at once, all of them too far behind for the log. They are served
// a few at a time, and cost the archive's store one reading of each object; live
// readers go on meanwhile, and readers that take nothing do not keep others from their turn.
func TestCaseA16(t *testing.T) {
	t.Parallel()
	n := 200
	if testing.Short() {
		n = 40
	}
	const waiting = 8
	d, err := local.New(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	counted := desttest.NewFaults(d, nil)
	scratch := spill.NewDir(t.TempDir())
	prefix := func(name engine.TableName) string { return name.String() + "/" }
	archives := cold.New(cold.Config{
		Locate: func(t engine.TableName) (cold.Location, bool) {
			return cold.Location{Archive: "a", Destination: counted, Prefix: prefix(t)}, true
		},
		Waiting: waiting, Scratch: scratch, Logger: ft.Logger("cold"),
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- archives.Run(ctx) }()
	defer func() { cancel(); <-done }()
	w := &watched{Archives: archives, gate: make(chan struct{}), stalled: make(chan struct{})}
	registry := prometheus.NewRegistry()
	count := func(name string) (v float64) {
		all, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range all {
			if strings.HasSuffix(f.GetName(), name) {
				for _, m := range f.GetMetric() {
					v += value(m)
				}
			}
		}
		return v
	}
	o := ft.NewOrigin(600, "t")
	root := ft.Start(t, "root", ft.Options{
		Store: store.MemoryOptions{JournalBytes: 8 << 10, Tombstones: 5}, Server: server.Config{Archives: w, Registry: registry, StallTimeout: time.Minute},
	}, map[string]engine.SyncSource{"pg": o})
	ft.Converged(t, o, table, root)
	x, err := export.New(export.Config{
		Name: "a", Host: root.Engine, Destination: d, Prefix: prefix, Scratch: scratch, Logger: ft.Logger("export"), Policy: archive.Policy{MaxDiffs: 1000},
	})
	if err != nil {
		t.Fatal(err)
	}
	pass := func() {
		t.Helper()
		ft.Converged(t, o, table, root)
		if err := x.Once(t.Context(), false); err != nil {
			t.Fatal(err)
		}
	}
	pass()
	kept, readers := make([]ft.Options, n), make([]*ft.Node, n)
	start := func() {
		for i := range n {
			readers[i], _ = ft.ChildWith(t, fmt.Sprint("reader", i), kept[i], nil, root)
		}
	}
	for i := range n {
		kept[i].Use = store.NewMemory(store.MemoryOptions{})
	}
	start()
	live, _ := ft.Child(t, "live", nil, root)
	ft.Converged(t, o, table, append(readers, live)...)
	for _, r := range readers {
		r.Stop()
	}
	for i := range 8 { // a week of it, each day within what the log holds
		for j := range 20 {
			o.Write(ft.Change{Table: table, Key: fmt.Sprintf("k%06d", i*10+j), Value: strings.Repeat("w", 100)}, ft.Change{Table: table, Key: fmt.Sprintf("k%06d", 599-i*20-j), Gone: true})
		}
		pass()
	}
	archives.Watch(table)
	archives.Look()
	ft.Eventually(t, 30*time.Second, func() error {
		for _, s := range archives.Status() {
			if len(s.Through) > 0 && s.Through[0].Position == root.Engine.Adverts()[0].Head {
				return nil
			}
		}
		return errors.New("the archive has not been looked at")
	})
	snapshots, before := count("snapshots_total"), len(counted.Ops())
	start()
	ft.Eventually(t, time.Minute, func() error {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.now < waiting {
			return fmt.Errorf("%d replays wait for their readers", w.now)
		}
		return nil
	})
	began := time.Now() // all readers wait, and the live one does not
	at := o.Put("live", "goes on")
	ft.Converged(t, o, table, live)
	t.Logf("a live reader had %s after %s", at, time.Since(began))
	close(w.gate)
	ft.Eventually(t, 2*time.Minute, func() error {
		behind := 0
		for _, r := range readers {
			if r.Digest(table) != o.Digest(table) {
				behind++
			}
		}
		if behind > 2 {
			return fmt.Errorf("%d readers are behind", behind)
		}
		return nil
	})
	close(w.stalled)
	ft.Converged(t, o, table, readers...)
	reads := map[string]int{}
	for _, op := range counted.Ops()[before:] {
		if op.Name == "open" {
			reads[op.Key]++
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	t.Logf("%v replays, at most %d at once, %d objects read", count("replays_total"), w.most, len(reads))
	if got := count("replays_total"); int(got) != n || w.most > waiting || count("snapshots_total") != snapshots {
		t.Errorf("%v replays for %d readers, %d at once, and %v snapshots", got, n, w.most, count("snapshots_total")-snapshots)
	}
	if len(reads) == 0 || len(reads) > 9 {
		t.Errorf("%d objects were read", len(reads))
	}
	for key, times := range reads {
		if times != 1 {
			t.Errorf("%s was read %d times", key, times)
		}
	}
}

func value(m *dto.Metric) float64 { return m.GetCounter().GetValue() + m.GetGauge().GetValue() }

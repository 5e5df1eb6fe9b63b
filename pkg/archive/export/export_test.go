package export_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tributary-dev/tributary/pkg/archive"
	"github.com/tributary-dev/tributary/pkg/archive/dest"
	"github.com/tributary-dev/tributary/pkg/archive/dest/desttest"
	"github.com/tributary-dev/tributary/pkg/archive/dest/local"
	"github.com/tributary-dev/tributary/pkg/archive/export"
	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/engine/store"
	ft "github.com/tributary-dev/tributary/pkg/fanout/fanouttest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var t1, t2 = ft.Table("t"), ft.Table("u")

func prefix(t engine.TableName) string { return t.String() + "/" }

func folder(t testing.TB) *local.Dest {
	t.Helper()
	d, err := local.New(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func newExporter(t testing.TB, n *ft.Node, d dest.Destination, change func(*export.Config)) *export.Exporter {
	t.Helper()
	c := export.Config{Name: "a", Host: n.Engine, Destination: d, Prefix: prefix, Logger: ft.Logger("exporter"), Policy: archive.Policy{MaxDiffs: 2}}
	if change != nil {
		change(&c)
	}
	x, err := export.New(c)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// states are what the origin's tables have held, by the position from which on.
type states struct {
	at    []engine.Position
	rows  []map[string]string // of both tables
	start engine.Position
}

func (s *states) note(o *ft.Origin, at engine.Position) {
	all := map[string]string{}
	for _, t := range o.Tables {
		for k, v := range o.Rows(t) {
			all[t.Name+"/"+k] = v
		}
	}
	s.at, s.rows = append(s.at, at), append(s.rows, all)
}

func (s *states) as(table string, at engine.Position) map[string]string {
	rows := map[string]string{}
	for i := range s.at {
		if engine.CompareLSN(s.at[i], at) <= 0 {
			clear(rows)
			for k, v := range s.rows[i] {
				if name, ok := strings.CutPrefix(k, table+"/"); ok {
					rows[name] = v
				}
			}
		}
	}
	return rows
}

// folded returns what an archive holds at its head, and where that is.
func folded(t testing.TB, d dest.Destination, name engine.TableName) (map[string]string, engine.Position) {
	t.Helper()
	r, err := archive.NewReader(archive.ReaderConfig{Destination: d, Prefix: prefix(name), Table: name})
	if err != nil {
		t.Fatal(err)
	}
	f, err := r.Fold(t.Context(), archive.AsOf{})
	if errors.Is(err, archive.ErrNoArchive) || errors.Is(err, archive.ErrNotCovered) {
		return nil, ""
	}
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rows := map[string]string{}
	err = f.Rows(func(r *engine.Record) error {
		if !r.Deleted {
			var cells [2]string
			for i, c := range r.Row.Columns() {
				cells[i] = string(c.Value)
			}
			rows[cells[0]] = cells[1]
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	rep, err := r.Verify(t.Context(), nil)
	if err != nil || len(rep.Problems) > 0 {
		t.Fatalf("%v, %v", err, rep.Problems)
	}
	return rows, f.At()[0].Position
}

// Wherever an exporter fails or is killed, the archives fold to a state that the node
// had, at the position that they claim; the next life goes on from there.
func TestFailsAnywhere(t *testing.T) {
	t.Parallel()
	o := ft.NewOrigin(50, "t", "u")
	root := ft.Start(t, "root", ft.Options{}, map[string]engine.SyncSource{"pg": o})
	ft.Converged(t, o, t1, root)
	var was states
	was.note(o, o.Next())
	was.at[0] = "" // from the start
	n := 0
	step := func() {
		n++
		at := o.Write(ft.Change{Table: t1, Key: fmt.Sprint("k", n), Value: fmt.Sprint(n)}, ft.Change{Table: t1, Key: fmt.Sprintf("k%06d", n%50), Gone: true})
		was.note(o, at)
		if n%2 == 0 {
			was.note(o, o.Write(ft.Change{Table: t2, Truncate: n%8 == 0, Key: "one", Value: fmt.Sprint(n)}))
		}
		ft.Converged(t, o, t1, root)
		ft.Converged(t, o, t2, root)
	}
	// scenario is three passes, the last of which writes another base; it stops at the first failure.
	scenario := func(d dest.Destination) error {
		x := newExporter(t, root, d, nil)
		for range 3 {
			step()
			if err := x.Once(t.Context(), false); err != nil {
				return err
			}
		}
		return nil
	}
	counted := desttest.NewFaults(folder(t), nil)
	if err := scenario(counted); err != nil {
		t.Fatal(err)
	}
	ops := len(counted.Ops())
	if ops < 20 {
		t.Fatalf("%d operations", ops)
	}
	// The writer's own tests fail at each operation of each kind of pass; here it is some
	// of each, other ones each time, and all with SOAK.
	every := 12
	if os.Getenv("SOAK") != "" {
		every = 1
	}
	first := int(time.Now().UnixNano() % int64(every))
	t.Logf("every %d of %d operations, from %d on", every, ops, first+1)
	failures, scenarios := 0, 0
	for j, fault := range []desttest.Fault{desttest.Fail, desttest.Lost, desttest.Late, desttest.Short, desttest.Crash, desttest.CrashIn} {
		name := []string{"fail", "lost", "late", "short", "crash", "crash in"}[j]
		for i := 1 + (first+2*j)%every; i <= ops; i += every {
			scenarios++
			d := folder(t)
			if err := scenario(desttest.NewFaults(d, desttest.At(i, fault))); err != nil {
				failures++
			}
			for round := range 2 { // as it was left, and after the next life
				for _, table := range []engine.TableName{t1, t2} {
					rows, at := folded(t, d, table)
					if rows == nil && round == 0 {
						continue
					}
					if want := was.as(table.Name, at); !maps.Equal(rows, want) {
						t.Fatalf("%s at operation %d: table %s at %s has %d rows, want %d:\n%v\n%v", name, i, table, at, len(rows), len(want), rows, want)
					}
				}
				if err := scenario(d); err != nil {
					t.Fatalf("%s at operation %d, the next life: %v", name, i, err)
				}
			}
		}
	}
	if failures < scenarios/4 {
		t.Errorf("only %d of %d scenarios failed", failures, scenarios)
	}
}

// What falls behind the node's log begins again with a base, and says why; another node
// that takes the place of the first goes on where it was.
func TestGapAndMove(t *testing.T) {
	t.Parallel()
	o := ft.NewOrigin(200, "t", "u")
	root := ft.Start(t, "root", ft.Options{Store: store.MemoryOptions{JournalBytes: 4 << 10}}, map[string]engine.SyncSource{"pg": o})
	ft.Converged(t, o, t1, root)
	d := folder(t)
	x := newExporter(t, root, d, nil)
	once := func(x *export.Exporter) {
		t.Helper()
		if err := x.Once(t.Context(), false); err != nil {
			t.Fatal(err)
		}
	}
	once(x)
	for i := range 200 {
		o.Put(fmt.Sprint("k", i), strings.Repeat("x", 100))
	}
	ft.Converged(t, o, t1, root)
	once(x)
	st := x.Status().Tables[t1]
	if st.Bases != 2 || !strings.Contains(st.LastCause, "holds what follows") || st.Generation != 2 {
		t.Errorf("%+v", st)
	}
	if rows, _ := folded(t, d, t1); !maps.Equal(rows, o.Rows(t1)) {
		t.Errorf("%d rows", len(rows))
	}
	other, _ := ft.Child(t, "other", nil, root)
	ft.Converged(t, o, t1, other)
	y := newExporter(t, other, d, nil)
	if err := y.Once(t.Context(), false); !errors.Is(err, archive.ErrFenced) || !strings.Contains(err.Error(), "root/a") {
		t.Fatalf("a second writer gave %v", err)
	}
	y = newExporter(t, other, d, func(c *export.Config) { c.TakeOver = true })
	o.Put("moved", "on")
	ft.Converged(t, o, t1, other)
	once(y)
	if st := y.Status().Tables[t1]; st.Bases != 1 || st.Generation != 2 { // what was there counts as seen
		t.Errorf("the move wrote a base: %+v", st)
	}
	if rows, _ := folded(t, d, t1); rows["moved"] != "on" {
		t.Errorf("%d rows", len(rows))
	}
	o.Put("late", "writer")
	ft.Converged(t, o, t1, root)
	if err := x.Once(t.Context(), false); !errors.Is(err, archive.ErrFenced) {
		t.Fatalf("the fenced writer gave %v", err)
	}
}

// The node keeps of its log what is not archived; a snapshot is taken on demand, and ends
// with its error if it cannot be.
func TestAcksAndSnapshots(t *testing.T) {
	t.Parallel()
	o := ft.NewOrigin(20, "t", "u")
	disk, err := store.OpenPebble(store.PebbleOptions{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer disk.Close()
	root := ft.Start(t, "root", ft.Options{Use: disk}, map[string]engine.SyncSource{"pg": o})
	ft.Converged(t, o, t1, root)
	var full atomic.Bool
	full.Store(true)
	d := desttest.NewFaults(folder(t), func(desttest.Op) desttest.Fault {
		if full.Load() {
			return desttest.Full
		}
		return desttest.None
	})
	x := newExporter(t, root, d, func(c *export.Config) { c.Interval = 50 * time.Millisecond })
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- x.Run(ctx) }()
	defer func() { cancel(); <-done }()
	ft.Eventually(t, 30*time.Second, func() error {
		if st := x.Status(); st.State != export.StateFull || !strings.Contains(st.Message, "no space") {
			return fmt.Errorf("%+v", st)
		}
		return nil
	})
	if err := x.Snapshot(ctx, t1); err == nil {
		t.Error("a snapshot of nothing was taken")
	}
	full.Store(false)
	acked := func(want engine.Position) {
		t.Helper()
		ft.Eventually(t, 30*time.Second, func() error {
			for _, r := range root.Engine.Status().Readers {
				if r.Reader == "archive/a" && r.At == want && r.Durable {
					return nil
				}
			}
			return fmt.Errorf("%+v, %+v", root.Engine.Status().Readers, x.Status())
		})
	}
	acked(root.Engine.Adverts()[0].Head)
	acked(o.Put("k", "v"))
	generation := x.Status().Tables[t1].Generation
	if err := x.Snapshot(ctx, t1); err != nil {
		t.Fatal(err)
	}
	if st := x.Status(); st.Tables[t1].Generation != generation+1 || st.Tables[t2].Generation != generation || st.Tables[t1].LastCause != "it was asked for" {
		t.Errorf("%+v", st.Tables)
	}
	if err := x.Snapshot(ctx, ft.Table("none")); err == nil || !strings.Contains(err.Error(), "public.none") {
		t.Errorf("a snapshot of no table gave %v", err)
	}
}

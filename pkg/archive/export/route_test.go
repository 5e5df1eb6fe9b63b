package export_test

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/tributary-dev/tributary/pkg/archive"
	"github.com/tributary-dev/tributary/pkg/archive/export"
	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/engine/spill"
	ft "github.com/tributary-dev/tributary/pkg/fanout/fanouttest"
)

// reads counts what is read of a node.
type reads struct {
	engine.Host
	blocks, scans *atomic.Int64 // of logs, of tables
}

func (r reads) View() engine.View { return readsView{r.Host.View(), r} }

type readsView struct {
	engine.View
	of reads
}

func (r readsView) Scan(table engine.TableName, from []byte, fn func(*engine.Record) bool) error {
	r.of.scans.Add(1)
	return r.View.Scan(table, from, fn)
}

func (r readsView) ReadLog(log engine.LogID, after engine.Position, n int) ([]*engine.Block, error) {
	bs, err := r.View.ReadLog(log, after, n)
	r.of.blocks.Add(int64(len(bs)))
	return bs, err
}

func (r readsView) ReadPart(log engine.LogID, after engine.Position, part uint32, n int) ([]*engine.Block, error) {
	bs, err := r.View.ReadPart(log, after, part, n)
	r.of.blocks.Add(int64(len(bs)))
	return bs, err
}

// However many tables there are, and however many of them have changed, what is new in the log is
// read once, and for its base a table once; and where one of them is behind the others, it gets what the others have.
func TestReadsLogOnce(t *testing.T) {
	t.Parallel()
	names := make([]string, 40)
	for i := range names {
		names[i] = fmt.Sprintf("t%02d", i)
	}
	o := ft.NewOrigin(3, names...)
	root := ft.Start(t, "root", ft.Options{}, map[string]engine.SyncSource{"pg": o})
	ft.Converged(t, o, ft.Table("t00"), root)
	var blocks, scans atomic.Int64
	dir := spill.NewDir(t.TempDir())
	d := folder(t)
	for _, history := range []archive.History{archive.Net, archive.Full} {
		prefix := func(n engine.TableName) string { return string(history) + "/" + n.String() }
		// life is a new life of the exporter.
		life := func(tables ...engine.TableName) *export.Exporter {
			return newExporter(t, root, d, func(c *export.Config) {
				c.Name, c.Host, c.Scratch, c.History, c.Policy = string(history), reads{root.Engine, &blocks, &scans}, dir, history, archive.Policy{MaxDiffs: 100}
				c.Prefix, c.Tables = prefix, tables
			})
		}
		writes := 0
		write := func() {
			writes++
			for i := range 60 { // a few tables of the 40, more than what is held in memory of each
				o.Write(
					ft.Change{Table: ft.Table(names[i%8]), Key: fmt.Sprint("k", i), Value: strings.Repeat("v", 20_000)},
					ft.Change{Table: ft.Table("t39"), Key: "one", Value: fmt.Sprint(history, writes, i), Truncate: i == 30},
				)
			}
			ft.Converged(t, o, ft.Table("t39"), root)
			ft.Converged(t, o, ft.Table("t03"), root)
		}
		inLog := func(from engine.Position) (n int64) {
			v := root.Engine.View()
			defer v.Close()
			a := root.Engine.Adverts()[0]
			for from != a.Head {
				bs, err := v.ReadLog(a.Log, from, 1<<20)
				if err != nil || len(bs) == 0 {
					t.Fatal(len(bs), err)
				}
				n, from = n+int64(len(bs)), bs[len(bs)-1].Position
			}
			return n
		}
		pass := func(x *export.Exporter, from engine.Position) {
			t.Helper()
			want := inLog(from)
			blocks.Store(0)
			if err := x.Once(context.Background(), false); err != nil {
				t.Fatal(err)
			}
			if got := blocks.Load(); got != want || got < 10 && from != root.Engine.Adverts()[0].Head {
				t.Errorf("%d blocks were read of the %d that are new", got, want)
			}
		}
		head := func() engine.Position { return root.Engine.Adverts()[0].Head }
		scans.Store(0)
		pass(life(), head())
		if got := scans.Load(); got != int64(len(names)) {
			t.Errorf("for %d bases, tables were read %d times", len(names), got)
		}
		from := head()
		write()
		pass(life(ft.Table("t00"), ft.Table("t07"), ft.Table("t39")), from)
		write()
		pass(life(), from)
		if used := dir.Used(); used != 0 {
			t.Errorf("%d bytes of scratch are left", used)
		}
		for _, n := range names {
			name := ft.Table(n)
			r, err := archive.NewReader(archive.ReaderConfig{Destination: d, Prefix: prefix(name), Table: name})
			if err != nil {
				t.Fatal(err)
			}
			f, err := r.Fold(t.Context(), archive.AsOf{})
			if err != nil {
				t.Fatal(err)
			}
			rows := map[string]string{}
			if err := f.Rows(func(r *engine.Record) error {
				if !r.Deleted {
					var cells [2]string
					for i, c := range r.Row.Columns() {
						cells[i] = string(c.Value)
					}
					rows[cells[0]] = cells[1]
				}
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			f.Close()
			if !maps.Equal(rows, o.Rows(name)) {
				t.Errorf("%s, %s: %d rows, want %d", history, n, len(rows), len(o.Rows(name)))
			}
		}
	}
}

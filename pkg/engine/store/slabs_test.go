package store

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"

	"github.com/tributary-dev/tributary/pkg/engine"
)

func churn(t *testing.T, m *Memory, rng *rand.Rand, rows, writes int, at *engine.Time) {
	t.Helper()
	tx, err := m.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for range writes {
		*at++
		r := benchRecord(rng.IntN(rows), *at)
		if r.Deleted = rng.IntN(4) == 0; r.Deleted {
			r.Row = nil
		}
		if err := tx.Put(&r); err != nil {
			t.Fatal(err)
		}
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
}

// TestDeadRecordsAreLetGo holds the memory of a table that is rewritten many
// times over, in large and small transactions, to a share of its live bytes.
func TestDeadRecordsAreLetGo(t *testing.T) {
	t.Parallel()
	const rows = 20_000
	for _, writes := range []int{1, 50, 5000} {
		t.Run(fmt.Sprintf("writes=%d", writes), func(t *testing.T) {
			t.Parallel()
			m := NewMemory(MemoryOptions{})
			rng := rand.New(rand.NewPCG(1, uint64(writes)))
			fill(t, m, rows)
			at := benchStart
			for n := 0; n < 10*rows; n += writes {
				churn(t, m, rng, rows, writes, &at)
			}
			st := m.Stats()
			if most := st.LiveBytes*3/2 + 2*slabMax; st.SlabBytes > most {
				t.Errorf("%d bytes of slabs for %d live bytes (%d dead), want at most %d", st.SlabBytes, st.LiveBytes, st.DeadBytes, most)
			}
			if st.Rows+st.Tombstones != rows {
				t.Errorf("%d rows and %d tombstones of %d", st.Rows, st.Tombstones, rows)
			}
			live := 0
			v := m.View()
			defer v.Close()
			tab := v.(*view).root.table(benchSchema.Table)
			tab.rows.scan(nil, func(at uint64) bool { live += tab.arena.entry(at).size; return true })
			if live != st.LiveBytes {
				t.Errorf("%d bytes counted as live, there are %d", st.LiveBytes, live)
			}
		})
	}
}

// TestViewKeepsSlabs: what a view needs stays for as long as it is open, and
// goes afterwards.
func TestViewKeepsSlabs(t *testing.T) {
	t.Parallel()
	const rows = 5000
	m := NewMemory(MemoryOptions{})
	rng := rand.New(rand.NewPCG(3, 4))
	fill(t, m, rows)
	at := benchStart
	before := m.View()
	for range 40 {
		churn(t, m, rng, rows, rows/2, &at)
	}
	n := 0
	if err := before.Scan(benchSchema.Table, nil, func(r *engine.Record) bool {
		key, err := engine.DecodeKey(r.Key)
		if err != nil {
			t.Fatal(err)
		}
		id, _ := strconv.Atoi(string(key[0]))
		if r.Stamp.Time != benchStart || string(r.Row) != string(benchRow(id)) {
			t.Fatalf("record %q of an old view is %q at %d", r.Key, r.Row, r.Stamp.Time)
		}
		n++
		return true
	}); err != nil || n != rows {
		t.Fatalf("an old view has %d rows of %d, %v", n, rows, err)
	}
	held := m.Stats()
	if held.Views != 1 {
		t.Fatalf("%d views are counted as open, want 1", held.Views)
	}
	before.Close()
	churn(t, m, rng, rows, 1, &at)
	if st := m.Stats(); st.SlabBytes > held.SlabBytes/2 || st.Views != 0 {
		t.Fatalf("%d bytes of slabs with the view closed, %d while it was open", st.SlabBytes, held.SlabBytes)
	}
	if len(m.retiring) != 0 || len(m.views) != 0 {
		t.Fatalf("%d arenas wait to let go of slabs, %d roots are held", len(m.retiring), len(m.views))
	}
}

// TestRollbackLeavesNoBytes: what was appended is taken back.
func TestRollbackLeavesNoBytes(t *testing.T) {
	t.Parallel()
	m := NewMemory(MemoryOptions{})
	fill(t, m, 1000)
	before := m.Stats()
	for range 20 {
		tx, err := m.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for i := range 3000 {
			r := benchRecord(i, benchStart+1)
			if err := tx.Put(&r); err != nil {
				t.Fatal(err)
			}
		}
		tx.Rollback()
	}
	if after := m.Stats(); after != before {
		t.Fatalf("after rollbacks %+v, before %+v", after, before)
	}
	a := m.current().table(benchSchema.Table).arena
	inUse := 0
	for _, s := range *a.slabs.Load() {
		if s != nil {
			inUse += s.n
		}
	}
	if inUse != a.tail.used {
		t.Fatalf("%d bytes of slabs are in use after rollbacks, the records take %d", inUse, a.tail.used)
	}
}

// TestStageBytes: stages are counted until they are adopted or closed.
func TestStageBytes(t *testing.T) {
	t.Parallel()
	m := NewMemory(MemoryOptions{})
	st := m.NewStage(benchSchema.Table)
	if err := st.Put([]engine.Record{benchRecord(1, 1)}); err != nil {
		t.Fatal(err)
	}
	if m.Stats().StageBytes == 0 {
		t.Fatal("a stage with a row takes no bytes")
	}
	st.Close()
	if n := m.Stats().StageBytes; n != 0 {
		t.Fatalf("%d bytes of stages with none open", n)
	}
	fill(t, m, 10)
	if n := m.Stats().StageBytes; n != 0 {
		t.Fatalf("%d bytes of stages after it was adopted", n)
	}
}

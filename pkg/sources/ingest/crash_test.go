package ingest

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/engine/store"
)

func openCrashable(t testing.TB, fs vfs.FS) engine.Store {
	t.Helper()
	st, err := store.OpenPebble(store.PebbleOptions{
		Dir: "store", FS: fs, TombstoneRetention: -1, Tombstones: -1, TxBytes: 64 << 10, CacheBytes: 64 << 10, MemTableBytes: 256 << 10, BlockCacheBytes: 256 << 10,
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	return st
}

// sent is a batch that a writer sends until it has an answer.
type sent struct {
	batch  *Batch
	result Result
}

// TestCrashes: writers that run side by side have their node crash under them,
// with what was not synced lost, and send again what they had no answer to. In
// the end every batch has been applied once, in the order of the positions that
// were answered; no answer was given to two batches, or taken back.
func TestCrashes(t *testing.T) {
	t.Parallel()
	const writers, crashes = 6, 6
	each := 40
	if testing.Short() {
		each = 15
	}
	disk := vfs.NewCrashableMem()
	var mu sync.Mutex
	var node *life
	down := false
	life0 := 0           // which life the node is in
	var answered []*sent // in the present history
	start := func() { node = live(t, openCrashable(t, disk), Config{}) }
	start()
	done := make(chan struct{})
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(w), 1))
			for i := range each {
				s := &sent{batch: randomBatch(r, 1+r.IntN(8))}
				s.batch.Key = fmt.Sprintf("%d-%d", w, i)
				for {
					mu.Lock()
					n, in := node, life0
					mu.Unlock()
					ctx, cancel := context.WithTimeout(context.Background(), time.Second)
					res, err := n.Write(ctx, s.batch)
					cancel()
					mu.Lock()
					if err == nil && in == life0 && !down { // else it is an answer of a life that never was
						s.result = res
						answered = append(answered, s)
						mu.Unlock()
						break
					}
					mu.Unlock()
					if c := code(err); err != nil && c != Unavailable && c != Unknown {
						t.Errorf("%v", err)
						return
					}
				}
			}
		})
	}
	go func() { defer close(done); wg.Wait() }()
	rng := rand.New(rand.NewPCG(7, 7))
	happened := 0
	for ended := false; !ended; {
		select {
		case <-done:
			ended = true
		case <-time.After(time.Duration(3+rng.IntN(15)) * time.Millisecond):
			if happened == crashes {
				continue
			}
			happened++
			mu.Lock()
			clone := disk.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: []int{0, 50}[happened%2], RNG: rng})
			old := node
			kept := slices.Clone(answered)
			disk = clone
			down = true // what the old node still answers does not count
			life0++
			mu.Unlock()
			old.end()
			_ = old.store.Close()
			mu.Lock()
			start()
			down = false
			life0++
			n := node
			mu.Unlock()
			for i, s := range kept { // what was answered before the crash still is
				if i%7 != happened%7 {
					continue
				}
				res, err := n.Write(context.Background(), s.batch)
				if want := s.result; err != nil || !res.Repeated || res.Position != want.Position || res.Time != want.Time || res.Log != want.Log || res.Rows != want.Rows {
					t.Errorf("after a crash batch %s is answered with %+v, %v; it was %+v", s.batch.Key, res, err, want)
				}
			}
		}
	}
	if happened == 0 {
		t.Error("it never crashed")
	}
	if len(answered) != writers*each {
		t.Fatalf("%d batches were answered, want %d", len(answered), writers*each)
	}
	slices.SortFunc(answered, func(a, b *sent) int { return engine.CompareNumber(a.result.Position, b.result.Position) })
	m := newModel()
	for i, s := range answered {
		if i > 0 {
			before := answered[i-1].result
			if engine.CompareNumber(before.Position, s.result.Position) == 0 || cmp.Compare(before.Time, s.result.Time) >= 0 {
				t.Errorf("two batches are at %s and %s, times %d and %d", before.Position, s.result.Position, before.Time, s.result.Time)
			}
		}
		m.apply(s.batch)
	}
	if got, want := canonRows(rowsOf(t, node.store)), canonRows(m.rows()); got != want {
		t.Errorf("after %d crashes the state is\n%s\nand what was answered comes to\n%s", happened, got, want)
	}
	v := node.store.View()
	facts := 0
	v.ScanMeta("fact/in/", func(string, []byte) bool { facts++; return true })
	v.Close()
	if facts != writers*each {
		t.Errorf("%d keys are remembered, want %d", facts, writers*each)
	}
	node.end()
	_ = node.store.Close()
}

func canonRows(rows map[engine.TableName][]string) string {
	out := ""
	for _, t := range []engine.TableName{orders, counts} {
		all := slices.Clone(rows[t])
		slices.Sort(all)
		for _, r := range all {
			out += t.Name + " " + r + "\n"
		}
	}
	return out
}

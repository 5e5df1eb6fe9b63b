package ingest

import (
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/tributary-dev/tributary/pkg/engine/store"
)

// BenchmarkWrite writes batches of one row to a pebble store on disk.
func BenchmarkWrite(b *testing.B) {
	for _, writers := range []int{1, 64} {
		b.Run(fmt.Sprintf("writers=%d", writers), func(b *testing.B) {
			st, err := store.OpenPebble(store.PebbleOptions{Dir: b.TempDir()})
			if err != nil {
				b.Fatal(err)
			}
			defer st.Close()
			l := live(b, st, Config{})
			defer l.end()
			l.must(b, one(Put, field("id", "0")))
			var next atomic.Int64
			var wg sync.WaitGroup
			b.ResetTimer()
			for range writers {
				wg.Go(func() {
					for {
						n := next.Add(1)
						if n > int64(b.N) {
							return
						}
						w := one(Put, field("id", strconv.FormatInt(n, 10)), field("name", "a name of a common length"), field("total", "12.50"))
						w.Key = strconv.FormatInt(n, 10)
						if _, err := l.Write(b.Context(), w); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "batches/s")
		})
	}
}

package store

import (
	"fmt"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// Compactions that had to wait run though nothing else happens any more, and a database
// can be closed while some wait.
func TestCompactions(t *testing.T) {
	for _, busy := range []bool{false, true} {
		t.Run(fmt.Sprintf("closed at once=%t", busy), func(t *testing.T) {
			o := &pebble.Options{
				FS: vfs.NewMem(), MemTableSize: 64 << 10, L0CompactionThreshold: 2, L0StopWritesThreshold: 1000, LBaseMaxBytes: 64 << 10,
				CompactionConcurrencyRange: func() (int, int) { return 1, 1 },
			}
			o.Experimental.CompactionScheduler = newCompactions()
			db, err := pebble.Open("db", o)
			if err != nil {
				t.Fatal(err)
			}
			value := make([]byte, 2<<10)
			for i := range 2000 {
				if err := db.Set(fmt.Appendf(nil, "%d", i*7919%2000), value, pebble.NoSync); err != nil {
					t.Fatal(err)
				}
			}
			for deadline := time.Now().Add(30 * time.Second); !busy; time.Sleep(10 * time.Millisecond) {
				m := db.Metrics()
				if m.Levels[0].Sublevels < 2 && m.Compact.NumInProgress == 0 {
					break
				}
				if time.Now().After(deadline) {
					t.Fatalf("compactions stand still: %s", m)
				}
			}
			if err := db.Close(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

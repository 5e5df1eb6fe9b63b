package store

import (
	"context"
	"fmt"
	"maps"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"pgregory.net/rapid"

	"github.com/tributary-dev/tributary/pkg/engine"
)

// What is read in runs of ascending keys, of several tables in turns, is what there is,
// whatever a transaction has written, removed, spilled or given up before.
func TestAscents(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		p, err := OpenPebble(PebbleOptions{
			Dir: "/store", FS: vfs.NewMem(), TombstoneRetention: -1, BlockCacheBytes: 1 << 20, MemTableBytes: 1 << 20,
			TxBytes: rapid.SampledFrom([]int{8 << 10, 1 << 20}).Draw(t, "memory of a transaction"),
		})
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := p.Close(); err != nil {
				t.Fatal(err)
			}
		}()
		log := engine.LogID{Origin: "n#db", Epoch: 1}
		var schemas []*engine.Schema
		for n := range maxAscents + 1 {
			s := *benchSchema
			s.ID, s.Table.Name = uint32(n+1), fmt.Sprint("t", n)
			schemas = append(schemas, &s)
		}
		type at struct{ table, id int }
		committed := map[at]engine.Time{}
		now := engine.Time(0)
		for range rapid.IntRange(1, 6).Draw(t, "transactions") {
			tx, err := p.Begin(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			have := maps.Clone(committed)
			for _, s := range schemas {
				if err := tx.PutSchema(log, s); err != nil {
					t.Fatal(err)
				}
			}
			for range rapid.IntRange(1, 8).Draw(t, "runs") {
				id, step := rapid.IntRange(0, 2000).Draw(t, "from"), rapid.SampledFrom([]int{1, 1, 2, 7, 40}).Draw(t, "step")
				tables := rapid.SampledFrom([]int{1, 1, 2, len(schemas)}).Draw(t, "tables")
				first, op := rapid.IntRange(0, len(schemas)-1).Draw(t, "first"), rapid.SampledFrom([]string{"merge", "merge", "get", "remove"}).Draw(t, "op")
				for range rapid.IntRange(1, 200).Draw(t, "keys") {
					for k := range tables {
						n := (first + k) % len(schemas)
						key, s := fmt.Appendf(nil, "%06d", id), schemas[n]
						was, known := have[at{n, id}]
						switch op {
						case "merge":
							now++
							o, err := tx.Merge(&engine.Record{Schema: s, Key: key, Row: engine.AppendRowHeader(nil, 1, 0), Stamp: engine.Stamp{Time: now, Origin: log.Origin, Epoch: log.Epoch}})
							if err != nil || (o == engine.Inserted) == known || !o.Applied() {
								t.Fatalf("table %d, key %d, which is there: %t: %v, %v", n, id, known, o, err)
							}
							have[at{n, id}] = now
						case "get":
							r, ok, err := tx.Get(s.Table, key)
							if err != nil || ok != known || ok && r.Stamp.Time != was {
								t.Fatalf("table %d, key %d: %v %t %v, want %d %t", n, id, r.Stamp, ok, err, was, known)
							}
						case "remove":
							if err := tx.Remove(s.Table, key); err != nil {
								t.Fatal(err)
							}
							delete(have, at{n, id})
						}
					}
					id += step
				}
			}
			switch rapid.SampledFrom([]string{"commit", "commit", "roll back", "leave"}).Draw(t, "end") {
			case "commit":
				if err := tx.Commit(); err != nil {
					t.Fatal(err)
				}
				committed = have
			case "roll back":
				tx.Rollback()
			case "leave": // and close the store
				if err := p.Close(); err != nil {
					t.Fatal(err)
				}
				tx.Rollback()
				return
			}
		}
	})
}

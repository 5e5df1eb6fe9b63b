package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/tributary-dev/tributary/internal/testnode"
	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/engine/store"
	"github.com/tributary-dev/tributary/pkg/ingestapi"
	"github.com/tributary-dev/tributary/pkg/nodeconfig"
	"github.com/tributary-dev/tributary/pkg/sources/ingest"
)

// treeNode starts a durable node of a relay tree.
func (b *bench) treeNode(ctx context.Context, id string, configure func(*nodeconfig.Config), wiring func(*nodeconfig.Wiring)) (*testnode.Node, error) {
	dir := filepath.Join(b.dir, id)
	n, err := testnode.Start(ctx, testnode.Options{
		Binary: b.node, Dir: dir, ID: "bench/" + id, Configure: configure, Wiring: wiring,
		Storage: nodeconfig.Storage{Type: nodeconfig.StoragePebble, Path: filepath.Join(dir, "store"), Journal: nodeconfig.Journal{MaxBytes: 1 << 30}},
	})
	if err != nil {
		return nil, err
	}
	return n, n.WaitReady(ctx, 2*time.Minute)
}

func children(redundancy string, nodes ...*testnode.Node) func(*nodeconfig.Wiring) {
	return func(w *nodeconfig.Wiring) {
		s := &w.Sources[0]
		s.Redundancy, s.Children = redundancy, nil
		for _, n := range nodes {
			s.Children = append(s.Children, nodeconfig.Child{ID: n.ID, Address: n.Repl, Group: "branch"})
		}
	}
}

func below(relay *nodeconfig.Relay) func(*nodeconfig.Config) {
	return func(c *nodeconfig.Config) {
		c.Sources, c.Relay = []nodeconfig.Source{{Name: "below", Children: &nodeconfig.Children{}}}, relay
	}
}

// holds waits until nodes have so many rows.
func holds(ctx context.Context, rows int, nodes ...*testnode.Node) error {
	for _, n := range nodes {
		var has int64
		err := testnode.Until(ctx, 5*time.Minute, fmt.Sprintf("%s to have %d rows", n.ID, rows), func() (bool, error) {
			time.Sleep(15 * time.Millisecond) // it is the node that pays for an answer
			st, err := n.Status()
			if err != nil || len(st.Tables) == 0 {
				return false, err
			}
			has = st.Tables[0].Rows
			return has >= int64(rows), nil
		})
		if err != nil {
			return fmt.Errorf("%w; it has %d", err, has)
		}
	}
	return nil
}

// tree measures a root: of two redundant relays, what it receives when it reads both over
// what it receives from one; how fast it takes in what a relay has for it, against a
// database that is only given the same bytes; and what it keeps for each row beside the row.
func (b *bench) tree(ctx context.Context) error {
	db, err := b.database(ctx)
	if err != nil {
		return err
	}
	src, err := b.source(db)
	if err != nil {
		return err
	}
	var nodes []*testnode.Node
	defer func() {
		for _, n := range nodes {
			n.Kill()
		}
	}()
	start := func(id string, configure func(*nodeconfig.Config), wiring func(*nodeconfig.Wiring)) (*testnode.Node, error) {
		n, err := b.treeNode(ctx, id, configure, wiring)
		if n != nil {
			nodes = append(nodes, n)
		}
		return n, err
	}
	leaf, err := start("tree-leaf", func(c *nodeconfig.Config) {
		c.Sources, c.Parents = []nodeconfig.Source{src}, &nodeconfig.Parents{}
	}, func(w *nodeconfig.Wiring) { w.Parents.Roots = []string{"bench/tree-one"} })
	if err != nil {
		return err
	}
	var relays []*testnode.Node
	for _, id := range []string{"tree-a", "tree-b"} {
		r, err := start(id, below(&nodeconfig.Relay{}), children("", leaf))
		if err != nil {
			return err
		}
		relays = append(relays, r)
	}
	both, err := start("tree-both", below(nil), children(nodeconfig.ActiveActive, relays...))
	if err != nil {
		return err
	}
	one, err := start("tree-one", below(nil), children(nodeconfig.ActiveActive, relays[0]))
	if err != nil {
		return err
	}

	n := b.rows / 5
	load := func(round int) error { return b.load(ctx, db, round*n, n, max(1, b.txns/5)) }
	if err := load(0); err != nil {
		return err
	}
	if err := holds(ctx, n, relays[0], relays[1], both, one); err != nil {
		return err
	}
	time.Sleep(time.Second) // the root has it all from either: what the other sends is still on its way
	var received [2]int64
	for i, r := range []*testnode.Node{both, one} {
		st, err := r.Status()
		if err != nil {
			return err
		}
		for _, l := range st.Logs {
			if l.Delivery != nil {
				received[i] += l.Delivery.Bytes
			}
		}
	}
	b.atMost("tree-active-active-bytes", "bytes at a root, active-active / one path", float64(received[0])/float64(received[1]), 2.1, 1.2,
		"%d / %d bytes, of %d changes", received[0], received[1], n)
	both.Kill()
	relays[1].Kill()

	// The root stands still while the relay takes in what it is then to have.
	const rounds = 3
	var rates, cpu, feed []float64
	var before float64 // CPU seconds of the relay
	for round := 1; round <= rounds; round++ {
		took, used, err := catchUp(one, func() error {
			if err := load(round); err != nil {
				return err
			}
			if err := holds(ctx, (round+1)*n, relays[0]); err != nil {
				return err
			}
			if err := idle(ctx, leaf, relays[0]); err != nil { // what it tidies up is none of the root's business
				return err
			}
			before, err = cpuSeconds(relays[0].PID())
			return err
		}, func() error { return holds(ctx, (round+1)*n, one) })
		if err != nil {
			return err
		}
		after, err := cpuSeconds(relays[0].PID())
		if err != nil {
			return err
		}
		rates, cpu, feed = append(rates, float64(n)/took.Seconds()), append(cpu, used/float64(n)), append(feed, (after-before)/float64(n))
	}
	one.Stop()
	kept, err := readStore(filepath.Join(b.dir, "tree-one", "store", "db"))
	if err != nil {
		return err
	}
	var limits, limitCPU []float64
	for i := range rounds {
		took, used, err := kept.write(filepath.Join(b.dir, fmt.Sprintf("tree-limit-%d", i)))
		if err != nil {
			return err
		}
		limits, limitCPU = append(limits, float64(kept.rows)/took.Seconds()), append(limitCPU, used.Seconds()/float64(kept.rows))
	}
	b.atLeast("root-apply-over-pebble", "changes/s applied by a root / pebble, the same bytes", median(rates)/median(limits), 0.5, 0.8,
		"%.0f / %.0f; %.1f / %.1f µs of CPU a change, and %.1f at the relay that feeds it; %d bytes each; median of %d",
		median(rates), median(limits), 1e6*median(cpu), 1e6*median(limitCPU), 1e6*median(feed), kept.bytes/kept.rows, rounds)
	b.atMost("dedup-bytes-per-row", "bytes of dedup state of a row at a root", float64(kept.dedup)/float64(kept.rows), 48, 24,
		"%d bytes, of %d rows", kept.dedup, kept.rows)
	return nil
}

// idle waits until nodes have used next to no CPU time for a while.
func idle(ctx context.Context, nodes ...*testnode.Node) error {
	for _, n := range nodes {
		const look = 500 * time.Millisecond
		err := testnode.Until(ctx, time.Minute, n.ID+" to be idle", func() (bool, error) {
			before, err := cpuSeconds(n.PID())
			if err != nil {
				return false, err
			}
			time.Sleep(look)
			after, err := cpuSeconds(n.PID())
			return after-before <= 0.04*look.Seconds(), err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// kept is what is in a root's database, in the order in which it came, about.
type kept struct {
	all         []record
	rows, bytes int
	dedup       int // bytes that say which write a row is of, and up to where its origin is known
}

type record struct {
	key, value []byte
	order      [3]uint64 // within its kind
	when       float64   // of all of its kind, 0 to 1
}

// readStore reads the database of a store that is closed.
func readStore(dir string) (*kept, error) {
	db, err := pebble.Open(dir, &pebble.Options{ReadOnly: true, Logger: quietPebble{}})
	if err != nil {
		return nil, err
	}
	defer db.Close()
	it, err := db.NewIter(nil)
	if err != nil {
		return nil, err
	}
	defer it.Close()
	k := &kept{}
	kinds := map[byte][]record{}
	for it.First(); it.Valid(); it.Next() {
		r := record{key: bytes.Clone(it.Key()), value: bytes.Clone(it.Value())}
		k.bytes += len(r.key) + len(r.value)
		switch key, value := r.key, r.value; {
		case key[0] == 'r': // its schema, and its stamp's time and version come before the row
			k.rows++
			for i := range 4 {
				v, n := binary.Uvarint(value)
				if k.dedup, value = k.dedup+n, value[n:]; i > 0 {
					r.order[i-1] = v
				}
			}
		case key[0] == 't': // of a tombstone
			k.dedup += len(key) + len(value)
		case len(key) > 2 && key[0] == 'm' && key[1] == 'k': // marks, cursors of what is below
			k.dedup += len(key) + len(value)
		case key[0] == 'q': // a row's place
			r.order[0] = binary.BigEndian.Uint64(value)
		}
		kinds[r.key[0]] = append(kinds[r.key[0]], r)
	}
	for _, all := range kinds {
		slices.SortStableFunc(all, func(a, b record) int { return slices.Compare(a.order[:], b.order[:]) })
		for i := range all {
			all[i].when = float64(i) / float64(len(all))
		}
		k.all = append(k.all, all...)
	}
	slices.SortStableFunc(k.all, func(a, b record) int { return cmp.Compare(a.when, b.when) })
	return k, it.Error()
}

// write gives all of it to a new database with the options of the store's, in batches of
// a megabyte, each synced.
func (k *kept) write(dir string) (took, cpu time.Duration, err error) {
	o := store.PebbleOptions{}.Database()
	o.Logger = quietPebble{}
	db, err := pebble.Open(dir, o)
	if err != nil {
		return 0, 0, err
	}
	defer os.RemoveAll(dir)
	defer func() {
		if e := db.Close(); err == nil {
			err = e
		}
	}()
	began, used := time.Now(), ownCPU()
	batch := db.NewBatch()
	for i, r := range k.all {
		if err := batch.Set(r.key, r.value, nil); err != nil {
			return 0, 0, err
		}
		if batch.Len() >= 1<<20 || i == len(k.all)-1 {
			if err := batch.Commit(pebble.Sync); err != nil {
				return 0, 0, err
			}
			batch = db.NewBatch()
		}
	}
	return time.Since(began), ownCPU() - used, batch.Close()
}

func ownCPU() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// quietPebble is a logger of nothing but what ends the process.
type quietPebble struct{}

func (quietPebble) Infof(string, ...any)              {}
func (quietPebble) Errorf(string, ...any)             {}
func (quietPebble) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }

// coalescing measures how many records a relay delivers of keys that change a hundred
// times in a window, over one for each key and window.
func (b *bench) coalescing(ctx context.Context) error {
	const (
		keys, windows = 10, 10
		window        = 2 * time.Second
		every         = window / 120 // some more than a hundred
	)
	table := engine.TableName{Schema: "public", Name: "hot"}
	leaf, err := b.treeNode(ctx, "hot-leaf", func(c *nodeconfig.Config) {
		c.Sources, c.Parents = []nodeconfig.Source{{Name: "in", Ingest: &nodeconfig.Ingest{Tables: []nodeconfig.IngestTable{{Schema: table.Schema, Name: table.Name, Columns: []nodeconfig.IngestColumn{
			{Name: "id", Type: "bigint", Key: true}, {Name: "v", Type: "bigint"},
		}}}}}}, &nodeconfig.Parents{}
	}, nil)
	if err != nil {
		return err
	}
	defer leaf.Kill()
	relay, err := b.treeNode(ctx, "hot-relay", below(&nodeconfig.Relay{Window: window}), children("", leaf))
	if err != nil {
		return err
	}
	defer relay.Kill()
	root, err := b.treeNode(ctx, "hot-root", below(nil), children("", relay))
	if err != nil {
		return err
	}
	defer root.Kill()
	api := &ingestapi.Client{URL: leaf.HTTP}
	n, began := 0, time.Now()
	for ; time.Since(began) < windows*window; n++ {
		time.Sleep(time.Until(began.Add(time.Duration(n) * every)))
		batch := &ingest.Batch{}
		for k := range keys {
			id, v := fmt.Sprint(k), fmt.Sprint(n)
			batch.Ops = append(batch.Ops, ingest.Op{Kind: ingest.Put, Table: table, Row: []ingest.Field{{Column: "id", Value: &id}, {Column: "v", Value: &v}}})
		}
		if _, err := api.Write(ctx, batch); err != nil {
			return err
		}
	}
	took := time.Since(began)
	if err := holds(ctx, keys, root); err != nil {
		return err
	}
	time.Sleep(2 * window) // the last is flushed
	st, err := relay.Status()
	if err != nil {
		return err
	}
	ideal := keys * (int(took/window) + 1)
	b.atMost("coalesced-records", "records delivered of hot keys / one a key and window", float64(st.Tree.Changes)/float64(ideal), 1.2, 1,
		"%d / %d, of %d changes: %.0f of a key in a window", st.Tree.Changes, ideal, n*keys, float64(n)/(float64(took)/float64(window)))
	return nil
}

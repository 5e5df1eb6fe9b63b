package storetest

import (
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tributary-dev/tributary/pkg/engine"
)

// read follows a log from a position to the head, as a reader does: by blocks
// of at most maxBytes, and by parts. It returns each record as a string.
func (h *harness) read(v engine.View, log engine.LogID, after engine.Position, maxBytes int) (out []string) {
	h.Helper()
	part := uint32(0)
	for {
		bs, err := v.ReadPart(log, after, part, maxBytes)
		if part == 0 {
			bs, err = v.ReadLog(log, after, maxBytes)
		}
		h.must(err)
		if len(bs) == 0 {
			if part != 0 {
				h.Fatalf("log %s after %q: part %d is missing", log, after, part)
			}
			return out
		}
		size := 0
		for i, b := range bs {
			if b.Part != part || b.Prev != after {
				h.Fatalf("log %s: after %q part %d came the block after %q part %d", log, after, part, b.Prev, b.Part)
			}
			if size += len(b.Payload); i > 0 && size > maxBytes {
				h.Fatalf("log %s: %d bytes read, %d asked for", log, size, maxBytes)
			}
			out = append(out, records(h, log, b)...)
			if part++; b.Last {
				part, after = 0, b.Position
			}
		}
	}
}

// records lists what is in a block. The begin that a later part repeats is
// left out.
func records(h *harness, log engine.LogID, b *engine.Block) (out []string) {
	h.Helper()
	r := b.Reader(log, func(engine.LogID, uint32) *engine.Schema { return schemaA })
	n := 0
	for r.Next() {
		switch {
		case !r.IsBegin:
			n++
			out = append(out, changeLine(&r.Change))
		case b.Part == 0:
			out = append(out, fmt.Sprintf("begin %s %d %d %d", r.Begin.Position, r.Begin.Major, r.Begin.Time, r.Begin.Changes))
		}
	}
	h.must(r.Err())
	h.equal(b.Changes, n, "changes counted in the block at %s", b.Position)
	return out
}

func changeLine(c *engine.Change) string {
	return fmt.Sprintf("%s %x %d:%x %s", c.Op, c.Key, len(c.Row), crc32.ChecksumIEEE(c.Row), c.Stamp)
}

// script is a log's transactions as records lists them, by transaction.
func script(log engine.LogID, txs []*engine.Transaction) (out [][]string) {
	for _, t := range txs {
		one := []string{fmt.Sprintf("begin %s %d %d %d", t.Position, t.Major, t.Time, len(t.Changes))}
		for _, c := range t.Changes {
			one = append(one, changeLine(&c))
		}
		out = append(out, one)
	}
	return out
}

func flat(txs [][]string) []string { return slices.Concat(txs...) }

func testAppendChecks(t *testing.T, open Open) {
	h := start(t, open, Options{})
	tx := h.begin()
	defer tx.Rollback()
	h.fails(tx.Append(logX, engine.CompareLSN, blocks(logX, "", transaction(logX, 1, 1, "k"))...), engine.ErrUnknownLog, "Append to an unknown log")
	h.must(tx.ResetLog(logX, engine.CompareLSN, position(1), 1))
	big := blocks(logX, position(1), transaction(logX, 2, 40<<10, "a", "b", "c", "d"))
	if len(big) < 3 {
		t.Fatalf("a transaction of 160 KiB makes %d parts", len(big))
	}
	for what, bs := range map[string][]*engine.Block{
		"a hole":         blocks(logX, position(2), transaction(logX, 3, 1, "k")),
		"a repetition":   blocks(logX, "", transaction(logX, 1, 1, "k")),
		"no first part":  big[1:],
		"no middle part": {big[0], big[2]},
		"no progress":    {{Prev: position(1), Position: position(1), Last: true}},
		"a hole within":  slices.Concat(blocks(logX, position(1), transaction(logX, 2, 1, "k")), blocks(logX, position(3), transaction(logX, 4, 1, "k"))),
	} {
		if err := tx.Append(logX, engine.CompareLSN, bs...); err == nil {
			t.Errorf("Append took blocks with %s", what)
		}
	}
	var hole *engine.HoleError
	if err := tx.Append(logX, engine.CompareLSN, blocks(logX, position(2), transaction(logX, 3, 1, "k"))...); !errors.As(err, &hole) || hole.Cursor != position(1) || hole.Prev != position(2) {
		t.Errorf("a hole gave %v, want a HoleError that says where", err)
	}
	i, _ := tx.Log(logX)
	h.equal(i.Head, position(1), "head after what was refused")
	h.must(tx.Append(logX, engine.CompareLSN, big[:2]...))
	h.must(tx.Append(logX, engine.CompareLSN))
	if err := tx.Append(logX, engine.CompareLSN, blocks(logX, position(1), transaction(logX, 2, 1, "k"))...); err == nil {
		t.Error("Append took a transaction within another")
	}
	i, _ = tx.Log(logX)
	h.equal(i.Head, position(1), "head within a transaction")
	h.must(tx.Append(logX, engine.CompareLSN, big[2:]...))
	i, _ = tx.Log(logX)
	h.equal(i.Head, position(2), "head")
}

func testCommitWhole(t *testing.T, open Open) {
	h := start(t, open, Options{})
	h.commit(func(tx engine.Tx) { h.must(tx.ResetLog(logX, engine.CompareLSN, position(1), 1)) })
	tx := h.begin()
	defer tx.Rollback()
	h.must(tx.Append(logX, engine.CompareLSN, blocks(logX, position(1), transaction(logX, 2, 40<<10, "a", "b", "c", "d"))[:2]...))
	if err := tx.Commit(); err == nil {
		t.Error("Commit took a transaction with no last part")
	}
	h.view(func(v engine.View) {
		i, _ := v.Log(logX)
		h.equal(i.Head, position(1), "head after what was refused")
		h.equal(len(h.read(v, logX, position(1), 1<<20)), 0, "records after what was refused")
	})
}

func testReadLog(t *testing.T, open Open) {
	h := start(t, open, Options{})
	h.commit(func(tx engine.Tx) { h.must(tx.ResetLog(logX, engine.CompareLSN, "", 0)) })
	h.view(func(v engine.View) { h.equal(len(h.read(v, logX, "", 1<<20)), 0, "records of an empty log") })
	var txs []*engine.Transaction
	for len(txs) < 60 { // appended in runs, so that blocks hold one, two or three transactions
		first := len(txs) + 1
		for n := range 1 + len(txs)%3 {
			size, keys := 10, []string{"a", "b"}
			switch (first + n) % 11 {
			case 3:
				keys = nil
			case 7:
				size, keys = 25<<10, []string{"a", "b", "c", "d", "e"}
			}
			txs = append(txs, transaction(logX, first+n, size, keys...))
		}
		h.commit(func(tx engine.Tx) {
			h.must(tx.Append(logX, engine.CompareLSN, blocks(logX, position(first-1), txs[first-1:]...)...))
		})
	}
	want := script(logX, txs)
	h.view(func(v engine.View) {
		i, ok := v.Log(logX)
		h.equal(ok, true, "Log")
		h.equal([]engine.Position{i.Oldest, i.Head}, []engine.Position{"", position(len(txs))}, "oldest and head")
		h.equal(i.Time, engine.Time(len(txs)), "time of the head")
		changes := 0
		for n := range txs {
			changes += len(txs[n].Changes)
		}
		h.equal(i.Changes, changes, "changes held")
		for n := range len(txs) + 1 {
			for _, maxBytes := range []int{0, 1, 100 << 10, 1 << 30} {
				got := h.read(v, logX, position(n), maxBytes)
				if !slices.Equal(got, flat(want[n:])) {
					t.Fatalf("read after transaction %d by %d bytes: got %d records, want %d", n, maxBytes, len(got), len(flat(want[n:])))
				}
			}
		}
		bs, err := v.ReadLog(logX, engine.LSN(1<<40).Position(), 1<<20)
		h.must(err)
		h.equal(len(bs), 0, "blocks past the head")
		_, err = v.ReadLog(logY, "", 1<<20)
		h.fails(err, engine.ErrUnknownLog, "ReadLog of an unknown log")
	})
}

func testReadParts(t *testing.T, open Open) {
	h := start(t, open, Options{})
	big := transaction(logX, 2, 30<<10, "a", "b", "c", "d", "e", "f", "g")
	h.commit(func(tx engine.Tx) {
		h.must(tx.ResetLog(logX, engine.CompareLSN, "", 0))
		h.must(tx.Append(logX, engine.CompareLSN, blocks(logX, "", transaction(logX, 1, 10, "a"), big, transaction(logX, 3, 10, "z"))...))
	})
	h.view(func(v engine.View) {
		all, err := v.ReadLog(logX, position(1), 1<<30)
		h.must(err)
		parts := 0
		for _, b := range all {
			if b.Position == big.Position {
				parts++
			}
		}
		if parts < 3 {
			t.Fatalf("a transaction of 210 KiB has %d parts", parts)
		}
		for p := range parts {
			bs, err := v.ReadPart(logX, position(1), uint32(p), 1)
			h.must(err)
			h.equal(len(bs), 1, "blocks read by one byte")
			h.equal(bs[0].Part, p, "part")
			h.equal(string(bs[0].Payload) == string(all[p].Payload), true, "payload of part %d", p)
			h.equal(bs[0].Last, p == parts-1, "last, of part %d", p)
			bs, err = v.ReadPart(logX, position(1), uint32(p), 1<<30)
			h.must(err)
			h.equal(len(bs), len(all)-p, "blocks from part %d", p)
		}
	})
}

func testResetDrop(t *testing.T, open Open) {
	h := start(t, open, Options{})
	key := engine.CursorKey{Log: logX}
	h.commit(func(tx engine.Tx) {
		h.must(tx.PutSchema(logX, schemaA))
		h.must(tx.Put(put("k", "v", 1)))
		for _, l := range []engine.LogID{logY, logX8, logX} {
			h.must(tx.ResetLog(l, engine.CompareLSN, position(4), 40))
			h.must(tx.Append(l, engine.CompareLSN, blocks(l, position(4), transaction(l, 5, 10, "k"))...))
		}
		h.must(tx.SetCursor(engine.Cursor{CursorKey: key, Position: position(5)}))
		h.must(tx.SetCursor(engine.Cursor{CursorKey: engine.CursorKey{Log: logX, Scope: "s"}, Position: position(5)}))
	})
	h.view(func(v engine.View) {
		var ids []engine.LogID
		for _, l := range v.Logs() {
			ids = append(ids, l.ID)
		}
		h.equal(ids, []engine.LogID{logX, logX8, logY}, "logs, in order")
		i, _ := v.Log(logX)
		h.equal(i.Oldest, position(4), "oldest after a reset")
		h.equal(i.Time, engine.Time(40), "time, which never falls")
		_, err := v.ReadLog(logX, position(3), 1<<20)
		h.fails(err, engine.ErrGap, "ReadLog before what is held")
		_, err = v.ReadPart(logX, "", 1, 1<<20)
		h.fails(err, engine.ErrGap, "ReadPart before what is held")
	})
	old := h.s.View()
	defer old.Close()
	h.commit(func(tx engine.Tx) {
		h.must(tx.ResetLog(logX, engine.CompareLSN, position(9), 90))
		h.must(tx.DropLog(logX8))
		h.must(tx.DropLog(engine.LogID{Origin: "none"}))
	})
	h.view(func(v engine.View) {
		i, _ := v.Log(logX)
		h.equal([]any{i.Oldest, i.Head, i.Time, i.Changes}, []any{position(9), position(9), engine.Time(90), 0}, "a log that was reset")
		_, err := v.ReadLog(logX, position(5), 1<<20)
		h.fails(err, engine.ErrGap, "ReadLog from before the reset")
		bs, err := v.ReadLog(logX, position(9), 1<<20)
		h.must(err)
		h.equal(len(bs), 0, "blocks after the reset")
		c, ok := v.Cursor(key)
		h.equal(ok, true, "a reset keeps cursors")
		h.equal(c.Position, position(5), "cursor after a reset")
		_, ok = v.Log(logX8)
		h.equal(ok, false, "a log that was dropped")
	})
	h.equal(len(h.read(old, logX8, position(4), 1<<20)), 2, "records of a dropped log in an old view")
	h.commit(func(tx engine.Tx) { h.must(tx.DropLog(logX)) })
	h.view(func(v engine.View) {
		h.equal(len(v.Cursors()), 0, "cursors of a dropped log")
		h.equal(len(v.Logs()), 1, "logs")
		_, err := v.ReadLog(logX, position(9), 1<<20)
		h.fails(err, engine.ErrUnknownLog, "ReadLog of a dropped log")
		h.equal(v.Schema(logX, 1) == nil, false, "schemas stay when a log is dropped")
		r, ok, err := v.Get(tableA, []byte("k"))
		h.must(err)
		h.equal(ok && r.Schema != nil && r.Stamp == stamp(1), true, "rows stay when a log is dropped")
	})
	h.commit(func(tx engine.Tx) { // and again from nothing, within one transaction
		h.must(tx.ResetLog(logX, engine.CompareLSN, position(1), 1))
		h.must(tx.DropLog(logX))
		h.must(tx.ResetLog(logX, engine.CompareLSN, position(2), 2))
		h.must(tx.Append(logX, engine.CompareLSN, blocks(logX, position(2), transaction(logX, 3, 10, "k"))...))
	})
	h.view(func(v engine.View) { h.equal(len(h.read(v, logX, position(2), 1)), 2, "records") })
}

func testJournalLimit(t *testing.T, open Open) {
	const limit = 1 << 20
	h := start(t, open, Options{JournalBytes: limit})
	h.commit(func(tx engine.Tx) { h.must(tx.ResetLog(logX, engine.CompareLSN, "", 0)) })
	var txs []*engine.Transaction
	add := func(size int, keys ...string) {
		n := len(txs) + 1
		txs = append(txs, transaction(logX, n, size, keys...))
		h.commit(func(tx engine.Tx) {
			h.must(tx.Append(logX, engine.CompareLSN, blocks(logX, position(n-1), txs[n-1])...))
		})
	}
	held := func(v engine.View) (first int) {
		i, _ := v.Log(logX)
		h.equal(i.Head, position(len(txs)), "head")
		for first = 0; position(first) != i.Oldest; first++ {
		}
		return first
	}
	check := func() {
		h.view(func(v engine.View) {
			first := held(v)
			payload := 0
			for n := range txs {
				after := position(n)
				if n < first {
					_, err := v.ReadLog(logX, after, 1<<20)
					h.fails(err, engine.ErrGap, "ReadLog of what was dropped")
					continue
				}
				if n == first {
					h.equal(h.read(v, logX, after, 1<<20), flat(script(logX, txs[n:])), "what is held")
				}
				for _, c := range txs[n].Changes {
					payload += len(c.Row)
				}
			}
			if payload > limit {
				t.Fatalf("the log holds %d bytes of rows, the limit is %d", payload, limit)
			}
		})
	}
	for range 40 {
		add(40<<10, "a")
	}
	check()
	h.view(func(v engine.View) {
		if first := held(v); first == 0 || first > 30 {
			t.Fatalf("after 40 transactions of 40 KiB, %d have been dropped under a limit of 1 MiB", first)
		}
	})
	add(50<<10, "a", "b", "c", "d", "e", "f", "g", "h") // 400 KiB, in parts
	add(10, "z")
	check()
	for range 20 { // the parts go together
		add(40<<10, "a")
		check()
	}
	keys := make([]string, 40)
	for i := range keys {
		keys[i] = fmt.Sprint("k", i)
	}
	old := h.s.View()
	defer old.Close()
	was := h.read(old, logX, position(held(old)), 1<<20)
	add(50<<10, keys...) // 2 MiB, more than there may be
	h.view(func(v engine.View) {
		i, _ := v.Log(logX)
		h.equal([]any{i.Oldest, i.Head, i.Changes}, []any{position(len(txs)), position(len(txs)), 0}, "a log after a transaction above the limit")
		_, err := v.ReadLog(logX, position(len(txs)-1), 1<<20)
		h.fails(err, engine.ErrGap, "ReadLog before a transaction above the limit")
	})
	h.equal(h.read(old, logX, position(len(txs)-1-len(was)/2), 1), was[max(0, len(was)-2*(len(was)/2)):], "what an old view holds")
	add(10, "z")
	check()
}

func testJournalFair(t *testing.T, open Open) {
	h := start(t, open, Options{JournalBytes: 1 << 20})
	h.commit(func(tx engine.Tx) {
		for _, l := range []engine.LogID{logX, logY} {
			h.must(tx.ResetLog(l, engine.CompareLSN, "", 0))
		}
		h.must(tx.Append(logY, engine.CompareLSN, blocks(logY, "", transaction(logY, 1, 1000, "quiet"))...))
	})
	for n := 1; n <= 60; n++ {
		h.commit(func(tx engine.Tx) {
			h.must(tx.Append(logX, engine.CompareLSN, blocks(logX, position(n-1), transaction(logX, n, 50<<10, "busy"))...))
		})
	}
	h.view(func(v engine.View) {
		h.equal(len(h.read(v, logY, "", 1)), 2, "records of the quiet log")
		if i, _ := v.Log(logX); i.Oldest == "" {
			t.Fatal("the busy log has lost nothing")
		}
	})
}

func testChanged(t *testing.T, open Open) {
	h := start(t, open, Options{})
	closed := func(c <-chan struct{}) bool {
		select {
		case <-c:
			return true
		default:
			return false
		}
	}
	c := h.s.Changed()
	h.begin().Rollback()
	h.equal(closed(c), false, "Changed after a rollback")
	h.commit(func(tx engine.Tx) { h.must(tx.Put(put("k", "v", 1))) })
	h.equal(closed(c), true, "Changed after a commit")
	h.equal(closed(h.s.Changed()), false, "a new Changed")
}

// testConcurrent has a writer that keeps rows, log and cursor in step, and
// readers that would see if they ever were not.
func testConcurrent(t *testing.T, open Open) {
	h := start(t, open, Options{JournalBytes: 256 << 10})
	const keys, commits = 40, 400
	key := engine.CursorKey{Log: logX}
	write := func(tx engine.Tx, n int, row string) {
		for k := range keys {
			h.must(tx.Put(put(fmt.Sprintf("k%02d", k), row, engine.Time(n))))
		}
		h.must(tx.Put(tomb(fmt.Sprintf("t%02d", n%50), engine.Time(n))))
		h.must(tx.Append(logX, engine.CompareLSN, blocks(logX, position(n-1), transaction(logX, n, 2000, "a", "b"))...))
		h.must(tx.SetCursor(engine.Cursor{CursorKey: key, Position: position(n)}))
	}
	h.commit(func(tx engine.Tx) {
		h.must(tx.ResetLog(logX, engine.CompareLSN, "", 0))
		write(tx, 1, fmt.Sprintf("%0200d", 1))
	})
	done := make(chan struct{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			last := 0
			for {
				select {
				case <-done:
					return
				default:
				}
				v := h.s.View()
				row, n := "", 0
				if err := v.Scan(tableA, []byte("k"), func(r *engine.Record) bool {
					if r.Deleted {
						return true
					}
					if n++; row == "" {
						row = string(r.Row)
					} else if row != string(r.Row) {
						t.Errorf("a view has rows of two commits: %s and %s", row[190:], r.Row[190:])
					}
					return true
				}); err != nil {
					t.Error(err)
				}
				var at int
				_, _ = fmt.Sscanf(row, "%d", &at)
				l, _ := v.Log(logX)
				c, _ := v.Cursor(key)
				bs, err := v.ReadLog(logX, l.Oldest, 1<<30)
				switch {
				case n != keys:
					t.Errorf("a view has %d rows of %d", n, keys)
				case c.Position != position(at), l.Head != c.Position:
					t.Errorf("a view has rows of commit %d (%s), the cursor at %s and the log at %s", at, position(at), c.Position, l.Head)
				case at < last:
					t.Errorf("views went back from commit %d to %d", last, at)
				case err != nil || len(bs) == 0 || bs[len(bs)-1].Position != l.Head:
					t.Errorf("the log does not reach its head: %d blocks, %v", len(bs), err)
				}
				if r, ok, err := v.Get(tableA, []byte("k17")); err != nil || !ok || string(r.Row) != row {
					t.Errorf("Get disagrees with Scan in one view (%v, %v)", ok, err)
				}
				last = at
				v.Close()
				if t.Failed() {
					return
				}
			}
		})
	}
	for n := 2; n <= commits && !t.Failed(); n++ {
		if n%9 == 0 {
			tx := h.begin()
			write(tx, n, fmt.Sprintf("%0200d", 99999))
			tx.Rollback()
		}
		h.commit(func(tx engine.Tx) { write(tx, n, fmt.Sprintf("%0200d", n)) })
	}
	close(done)
	wg.Wait()
}

func testClose(t *testing.T, open Open) {
	h := start(t, open, Options{})
	h.commit(func(tx engine.Tx) {
		h.must(tx.Put(put("k", "v", 1)))
		h.must(tx.ResetLog(logX, engine.CompareLSN, "", 0))
	})
	v := h.s.View()
	v.Close()
	v.Close()
	_, _, err := v.Get(tableA, []byte("k"))
	h.fails(err, engine.ErrClosed, "Get on a closed view")
	h.fails(v.Scan(tableA, nil, func(*engine.Record) bool { return true }), engine.ErrClosed, "Scan on a closed view")
	_, err = v.ReadLog(logX, "", 1)
	h.fails(err, engine.ErrClosed, "ReadLog on a closed view")

	changed := h.s.Changed()
	tx := h.begin()
	h.must(tx.Put(put("late", "v", 2)))
	waiting := make(chan error)
	go func() {
		_, err := h.s.Begin(t.Context())
		waiting <- err
	}()
	time.Sleep(10 * time.Millisecond)
	h.must(h.s.Close())
	h.must(h.s.Close())
	h.fails(<-waiting, engine.ErrClosed, "Begin that waited")
	h.fails(tx.Commit(), engine.ErrClosed, "Commit after Close")
	tx.Rollback()
	_, err = h.s.Begin(t.Context())
	h.fails(err, engine.ErrClosed, "Begin after Close")
	select {
	case <-changed:
	case <-time.After(5 * time.Second):
		t.Error("Close did not wake who waits on Changed")
	}
	v = h.s.View()
	_, _, err = v.Get(tableA, []byte("k"))
	h.fails(err, engine.ErrClosed, "Get on a view of a closed store")
	h.equal(len(v.Tables())+len(v.Logs())+len(v.Cursors()), 0, "what a view of a closed store holds")
	v.Close()
	st := h.s.NewStage(tableA)
	h.fails(st.Put([]engine.Record{*put("k", "v", 1)}), engine.ErrClosed, "Put to a stage of a closed store")
	st.Close()
}

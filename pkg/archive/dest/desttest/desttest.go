// Package desttest is the suite that every destination passes, and a wrapper that
// makes a destination fail where a test wants it to.
package desttest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tributary-dev/tributary/pkg/archive/dest"
)

// Place opens a destination anew each time it is called, always the same one, as
// other processes would.
type Place func() dest.Destination

// Run runs the suite. Each test has a place of its own, which is empty.
func Run(t *testing.T, newPlace func(t *testing.T) Place) {
	for _, test := range []struct {
		name string
		run  func(*testing.T, Place)
	}{
		{"Check", testCheck},
		{"Objects", testObjects},
		{"Uncommitted", testUncommitted},
		{"Replaced", testReplaced},
		{"Missing", testMissing},
		{"Read", testRead},
		{"Swap", testSwap},
		{"OneWinner", testOneWinner},
		{"NothingIsLost", testNothingIsLost},
		{"Whole", testWhole},
		{"Keys", testKeys},
		{"BadKeys", testBadKeys},
		{"List", testList},
		{"Cancelled", testCancelled},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			test.run(t, newPlace(t))
		})
	}
}

func testCheck(t *testing.T, place Place) {
	ctx := t.Context()
	var g errgroup.Group
	for range 4 {
		g.Go(func() error { return place().Check(ctx) })
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	if keys := list(t, place(), ""); len(keys) > 0 {
		t.Errorf("Check left %q", keys)
	}
	if place().Describe() == "" {
		t.Error("Describe says nothing")
	}
}

func content(size int) []byte {
	b := make([]byte, size)
	src := rand.NewChaCha8([32]byte{1: byte(size), 2: byte(size >> 8)})
	_, _ = src.Read(b)
	return b
}

func put(t *testing.T, d dest.Destination, key string, data []byte) {
	t.Helper()
	w, err := d.Create(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Abort()
	for rest := data; len(rest) > 0; {
		n := min(len(rest), 1+rand.IntN(300_000))
		if m, err := w.Write(rest[:n]); err != nil || m != n {
			t.Fatalf("Write: %d of %d bytes, %v", m, n, err)
		}
		rest = rest[n:]
	}
	if err := w.Commit(); err != nil {
		t.Fatal(err)
	}
}

func get(t *testing.T, d dest.Destination, key string, offset int64) []byte {
	t.Helper()
	r, err := d.Open(t.Context(), key, offset)
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(r)
	if err := errors.Join(err, r.Close()); err != nil {
		t.Fatal(err)
	}
	return data
}

func list(t *testing.T, d dest.Destination, prefix string) (keys []string) {
	t.Helper()
	for info, err := range d.List(t.Context(), prefix) {
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, info.Key)
	}
	slices.Sort(keys)
	return keys
}

// Objects of every size come back as they went, from every offset.
func testObjects(t *testing.T, place Place) {
	for _, size := range []int{0, 1, 5 << 20, 5<<20 + 1, 23<<20 + 7} {
		key := fmt.Sprintf("t/%d", size)
		data := content(size)
		before := time.Now()
		put(t, place(), key, data)
		for _, offset := range []int{0, 1, size / 2, size - 1, size, size + 1} {
			want := []byte{}
			if offset >= 0 && offset < size {
				want = data[offset:]
			}
			if got := get(t, place(), key, int64(max(offset, 0))); !bytes.Equal(got, want) && offset >= 0 {
				t.Errorf("%d bytes from %d on: got %d that differ", size, offset, len(got))
			}
		}
		info, err := place().Stat(t.Context(), key)
		if err != nil || info.Key != key || info.Size != int64(size) {
			t.Errorf("Stat: %+v, %v", info, err)
		}
		if info.Modified.Before(before.Add(-time.Minute)) || info.Modified.After(time.Now().Add(time.Minute)) {
			t.Errorf("Stat: modified at %v, and it was %v", info.Modified, before)
		}
	}
}

// What is not committed is not there, and what is given up leaves nothing.
func testUncommitted(t *testing.T, place Place) {
	for _, size := range []int{10, 12 << 20} {
		d := place()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		key := fmt.Sprintf("t/%d", size)
		w, err := d.Create(ctx, key)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(content(size)); err != nil {
			t.Fatal(err)
		}
		absent := func(when string) {
			t.Helper()
			if keys := list(t, place(), ""); len(keys) > 0 {
				t.Errorf("%s %q are listed", when, keys)
			}
			if _, err := place().Stat(t.Context(), key); !errors.Is(err, dest.ErrNotExist) {
				t.Errorf("%s Stat: %v", when, err)
			}
		}
		absent("before the commit")
		w.Abort()
		w.Abort()
		absent("after Abort")
		if err := w.Commit(); err == nil {
			t.Error("Commit after Abort went well")
		}
		if _, err := w.Write([]byte("x")); err == nil {
			t.Error("Write after Abort went well")
		}
		w, err = d.Create(ctx, key)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(content(size)); err != nil {
			t.Fatal(err)
		}
		cancel()
		if err := w.Commit(); !errors.Is(err, context.Canceled) {
			t.Errorf("Commit after ctx has ended: %v", err)
		}
		w.Abort()
		absent("after ctx has ended")
	}
}

func testReplaced(t *testing.T, place Place) {
	put(t, place(), "t/a", []byte("first"))
	put(t, place(), "t/a", []byte("second"))
	if got := get(t, place(), "t/a", 0); string(got) != "second" {
		t.Errorf("got %q", got)
	}
	d := place()
	w, err := d.Create(t.Context(), "t/a")
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Commit(); err != nil {
		t.Fatal(err)
	}
	w.Abort() // as a deferred one comes
	if got := get(t, place(), "t/a", 0); len(got) > 0 {
		t.Errorf("got %q", got)
	}
}

func testMissing(t *testing.T, place Place) {
	d, ctx := place(), t.Context()
	put(t, d, "t/a", []byte("a"))
	for _, key := range []string{"t/b", "t", "u/v/w", "t/a/b"} {
		r, err := d.Open(ctx, key, 0)
		if err == nil {
			_, err = r.Read(make([]byte, 1))
			r.Close()
		}
		if !errors.Is(err, dest.ErrNotExist) {
			t.Errorf("Open(%q): %v", key, err)
		}
		var de *dest.Error
		if !errors.As(err, &de) || de.Key != key || de.Dest != d.Describe() {
			t.Errorf("Open(%q): the error does not say where: %v", key, err)
		}
		if _, _, err := d.Read(ctx, key, ""); !errors.Is(err, dest.ErrNotExist) {
			t.Errorf("Read(%q): %v", key, err)
		}
		if _, err := d.Stat(ctx, key); !errors.Is(err, dest.ErrNotExist) {
			t.Errorf("Stat(%q): %v", key, err)
		}
		if key == "t/a/b" {
			continue // could not be a key beside t/a
		}
		if err := d.Delete(ctx, key); err != nil {
			t.Errorf("Delete(%q): %v", key, err)
		}
	}
	if got := list(t, d, ""); !slices.Equal(got, []string{"t/a"}) {
		t.Errorf("left are %q", got)
	}
	for range 2 {
		if err := d.Delete(ctx, "t/a"); err != nil {
			t.Error(err)
		}
	}
	if got := list(t, d, ""); len(got) > 0 {
		t.Errorf("left are %q", got)
	}
}

func swap(t *testing.T, d dest.Destination, key string, old dest.Tag, data string) dest.Tag {
	t.Helper()
	tag, err := d.Swap(t.Context(), key, old, []byte(data))
	if err != nil {
		t.Fatal(err)
	}
	if tag == "" || tag == old {
		t.Fatalf("Swap gave the tag %q over %q", tag, old)
	}
	return tag
}

func testRead(t *testing.T, place Place) {
	d, ctx := place(), t.Context()
	first := swap(t, d, "t/m", "", "first")
	data, tag, err := place().Read(ctx, "t/m", "")
	if err != nil || string(data) != "first" || tag != first {
		t.Errorf("Read: %q, %q (want %q), %v", data, tag, first, err)
	}
	if _, _, err := place().Read(ctx, "t/m", tag); !errors.Is(err, dest.ErrNotModified) {
		t.Errorf("Read with its tag: %v", err)
	}
	second := swap(t, d, "t/m", tag, "second")
	data, tag, err = place().Read(ctx, "t/m", first)
	if err != nil || string(data) != "second" || tag != second {
		t.Errorf("Read with an old tag: %q, %q, %v", data, tag, err)
	}
	// What was written as an artifact can be read so too.
	put(t, d, "t/a", []byte("artifact"))
	data, tag, err = place().Read(ctx, "t/a", "")
	if err != nil || string(data) != "artifact" || tag == "" {
		t.Errorf("Read: %q, %q, %v", data, tag, err)
	}
}

func testSwap(t *testing.T, place Place) {
	d, ctx := place(), t.Context()
	conflict := func(old dest.Tag, data string) {
		t.Helper()
		if _, err := place().Swap(ctx, "t/m", old, []byte(data)); !errors.Is(err, dest.ErrConflict) {
			t.Errorf("Swap from %q to %q: %v", old, data, err)
		}
	}
	first := swap(t, d, "t/m", "", "first")
	conflict("", "other")
	second := swap(t, d, "t/m", first, "second")
	conflict(first, "other")
	conflict("", "other")
	// Its answer was lost, and it is asked for again.
	if tag, err := place().Swap(ctx, "t/m", first, []byte("second")); err != nil || tag != second {
		t.Errorf("the same swap again: %q (want %q), %v", tag, second, err)
	}
	conflict(first, "first")
	if err := d.Delete(ctx, "t/m"); err != nil {
		t.Fatal(err)
	}
	conflict(second, "other")
	swap(t, d, "t/m", "", "third")
	empty := swap(t, d, "t/m", readTag(t, d, "t/m"), "")
	if data, tag, err := d.Read(ctx, "t/m", ""); err != nil || len(data) > 0 || tag != empty {
		t.Errorf("an empty one: %q, %q, %v", data, tag, err)
	}
}

func readTag(t *testing.T, d dest.Destination, key string) dest.Tag {
	t.Helper()
	_, tag, err := d.Read(t.Context(), key, "")
	if err != nil {
		t.Fatal(err)
	}
	return tag
}

const racers = 8

// Of those that swap from the same tag exactly one wins.
func testOneWinner(t *testing.T, place Place) {
	var old dest.Tag
	for round := range 10 {
		var mu sync.Mutex
		var winners []dest.Tag
		var g errgroup.Group
		start := make(chan struct{})
		for i := range racers {
			d := place()
			g.Go(func() error {
				<-start
				tag, err := d.Swap(t.Context(), "t/m", old, fmt.Appendf(nil, "round %d, racer %d", round, i))
				if errors.Is(err, dest.ErrConflict) {
					return nil
				}
				if err != nil {
					return err
				}
				mu.Lock()
				defer mu.Unlock()
				winners = append(winners, tag)
				return nil
			})
		}
		close(start)
		if err := g.Wait(); err != nil {
			t.Fatal(err)
		}
		if len(winners) != 1 {
			t.Fatalf("round %d: %d winners", round, len(winners))
		}
		if old = readTag(t, place(), "t/m"); old != winners[0] {
			t.Fatalf("round %d: stored is %q, and %q has won", round, old, winners[0])
		}
	}
}

// Writers that add to what they have read, and read again after a conflict, lose
// nothing.
func testNothingIsLost(t *testing.T, place Place) {
	const each = 8
	var g errgroup.Group
	for i := range racers {
		d := place()
		g.Go(func() error {
			for n := range each {
				for {
					data, tag, err := d.Read(t.Context(), "t/m", "")
					if err != nil && !errors.Is(err, dest.ErrNotExist) {
						return err
					}
					_, err = d.Swap(t.Context(), "t/m", tag, fmt.Appendf(data, "%d.%d\n", i, n))
					if err == nil {
						break
					}
					if !errors.Is(err, dest.ErrConflict) {
						return err
					}
				}
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	data, _, err := place().Read(t.Context(), "t/m", "")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Fields(string(data))
	if len(lines) != racers*each {
		t.Errorf("%d lines of %d are there", len(lines), racers*each)
	}
	next := map[string]string{}
	for _, l := range lines {
		who, n, _ := strings.Cut(l, ".")
		if want := next[who]; n != want && (want != "" || n != "0") {
			t.Errorf("after line %s of racer %s comes %s", want, who, n)
		}
		i, err := strconv.Atoi(n)
		if err != nil {
			t.Fatal(err)
		}
		next[who] = strconv.Itoa(i + 1)
	}
}

// Who reads while others swap sees one of the contents, whole.
func testWhole(t *testing.T, place Place) {
	make := func(n uint64) []byte {
		body := content(200_000)
		binary.BigEndian.PutUint64(body, n)
		sum := sha256.Sum256(body)
		return append([]byte(hex.EncodeToString(sum[:])), body...)
	}
	d := place()
	tag, err := d.Swap(t.Context(), "t/m", "", make(0))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var g errgroup.Group
	for range 3 {
		r := place()
		g.Go(func() error {
			for last := uint64(0); ctx.Err() == nil; {
				data, _, err := r.Read(t.Context(), "t/m", "")
				if err != nil {
					return err
				}
				sum := sha256.Sum256(data[64:])
				if hex.EncodeToString(sum[:]) != string(data[:64]) {
					return errors.New("what was read is not what was written")
				}
				now := binary.BigEndian.Uint64(data[64:])
				if now < last {
					return fmt.Errorf("%d was read after %d", now, last)
				}
				last = now
			}
			return nil
		})
	}
	for n := uint64(1); n <= 25; n++ {
		if tag, err = d.Swap(t.Context(), "t/m", tag, make(n)); err != nil {
			t.Fatal(err)
		}
	}
	cancel()
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
}

// oddKeys are keys that quoting, escaping or globbing would get wrong.
var oddKeys = []string{
	"a b/c d", "a+b", "a%2Fb", "a%20b", "100%", "a#b", "a?b=c&d", "a:b", "a*b", "[a]", "{a}", "a'b", `a"b`, "a<b>", "a;b", "a,b", "a=b", "a@b", "a$b", "a!b",
	"~a", "-a", "_a", "..a", "a..", "...", ".hidden", "ünï/çödé", "表/行", "😀", "a\u0301", `"Order ""Lines"""/x`, "public.events/base-0000000001",
	strings.Repeat("n", dest.MaxName), strings.TrimSuffix(strings.Repeat("0123456789/", 80), "/"),
}

func testKeys(t *testing.T, place Place) {
	d := place()
	want := slices.Sorted(slices.Values(oddKeys))
	for i, key := range want {
		if i%2 == 0 {
			put(t, d, key, []byte(key))
		} else {
			swap(t, d, key, "", key)
		}
	}
	if got := list(t, d, ""); !slices.Equal(got, want) {
		t.Errorf("listed are\n%q, and written were\n%q", got, want)
	}
	for _, key := range want {
		if got := get(t, d, key, 0); string(got) != key {
			t.Errorf("%q holds %q", key, got)
		}
		if got := list(t, d, key); !slices.Contains(got, key) {
			t.Errorf("%q is not listed under its own name: %q", key, got)
		}
		if info, err := d.Stat(t.Context(), key); err != nil || info.Key != key {
			t.Errorf("Stat(%q): %+v, %v", key, info, err)
		}
		if err := d.Delete(t.Context(), key); err != nil {
			t.Error(err)
		}
	}
	if got := list(t, d, ""); len(got) > 0 {
		t.Errorf("left are %q", got)
	}
}

func testBadKeys(t *testing.T, place Place) {
	d, ctx := place(), t.Context()
	for _, key := range []string{"", "/a", "a/", "a//b", ".", "..", "../a", "a/../b", "a/..", "./a", "a\x00b", "a\nb", `a\b`, "\xff",
		".tributary", ".tributary/lock", "a/.tributary-x", strings.Repeat("n", dest.MaxName+1), strings.Repeat("a/", dest.MaxKey/2) + "a"} {
		_, err := d.Create(ctx, key)
		errs := []error{err}
		_, err = d.Open(ctx, key, 0)
		errs = append(errs, err)
		_, _, err = d.Read(ctx, key, "")
		errs = append(errs, err)
		_, err = d.Swap(ctx, key, "", nil)
		errs = append(errs, err)
		_, err = d.Stat(ctx, key)
		errs = append(errs, err, d.Delete(ctx, key))
		for i, err := range errs {
			if !errors.Is(err, dest.ErrKey) {
				t.Errorf("%q: call %d: %v", key, i, err)
			}
		}
	}
}

// A listing of more than a page, from prefixes that end anywhere.
func testList(t *testing.T, place Place) {
	const many = 250
	var want []string
	var g errgroup.Group
	g.SetLimit(8)
	d := place()
	add := func(key string) {
		want = append(want, key)
		g.Go(func() error {
			w, err := d.Create(t.Context(), key)
			if err != nil {
				return err
			}
			defer w.Abort()
			if _, err := io.WriteString(w, key); err != nil {
				return err
			}
			return w.Commit()
		})
	}
	for i := range many {
		add(fmt.Sprintf("s.t/diffs/%06d", i))
	}
	for _, key := range []string{"s.t/manifest.json", "s.t2/manifest.json", "s.t/base-1", "s.tx", "other"} {
		add(key)
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	slices.Sort(want)
	for _, prefix := range []string{"", "s.t", "s.t/", "s.t/diffs", "s.t/diffs/", "s.t/diffs/0001", "s.t/diffs/000042", "s.t/d", "s.t/manifest.json", "nothing", "s.t/nothing/", "other/"} {
		var under []string
		for _, key := range want {
			if strings.HasPrefix(key, prefix) {
				under = append(under, key)
			}
		}
		if got := list(t, place(), prefix); !slices.Equal(got, under) {
			t.Errorf("under %q are %d, want %d", prefix, len(got), len(under))
		}
	}
	n := 0
	for info, err := range d.List(t.Context(), "s.t/") {
		if err != nil {
			t.Fatal(err)
		}
		if info.Size != int64(len(info.Key)) || info.Modified.IsZero() {
			t.Errorf("listed is %+v", info)
		}
		if n++; n == 3 {
			break
		}
	}
}

func testCancelled(t *testing.T, place Place) {
	d := place()
	put(t, d, "t/a", []byte("a"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := d.Create(ctx, "t/b")
	errs := []error{err}
	_, err = d.Open(ctx, "t/a", 0)
	errs = append(errs, err)
	_, _, err = d.Read(ctx, "t/a", "")
	errs = append(errs, err)
	_, err = d.Swap(ctx, "t/b", "", []byte("b"))
	errs = append(errs, err)
	_, err = d.Stat(ctx, "t/a")
	errs = append(errs, err, d.Delete(ctx, "t/a"))
	for _, err := range d.List(ctx, "") {
		errs = append(errs, err)
		break
	}
	for i, err := range errs {
		if !errors.Is(err, context.Canceled) || dest.Retryable(err) {
			t.Errorf("call %d: %v", i, err)
		}
	}
	if got := list(t, d, ""); !slices.Equal(got, []string{"t/a"}) {
		t.Errorf("there are %q", got)
	}
}

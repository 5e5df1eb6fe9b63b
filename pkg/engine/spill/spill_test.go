package spill_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/tributary-dev/tributary/pkg/engine/spill"
)

func read(t interface{ Fatal(...any) }, f *spill.File) (out [][]byte) {
	r := f.Reader()
	for {
		rec, err := r.Next()
		if err == io.EOF {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, bytes.Clone(rec))
	}
}

// Records come back as they went in, whatever their sizes and the bound.
func TestRecords(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		d := spill.NewDir(dir)
		f := d.New(rapid.SampledFrom([]int{0, 1, 100, 4096, 1 << 20}).Draw(t, "memory"))
		size := rapid.OneOf(rapid.IntRange(0, 10), rapid.IntRange(0, 5000), rapid.SampledFrom([]int{0, 127, 128, 256<<10 - 1, 256 << 10, 256<<10 + 1, 700 << 10}))
		var want [][]byte
		total := int64(0)
		for i := range rapid.IntRange(0, 12).Draw(t, "records") {
			rec := bytes.Repeat([]byte{byte(i + 1)}, size.Draw(t, "size"))
			cut := rapid.IntRange(0, len(rec)).Draw(t, "cut")
			if err := f.Append(rec[:cut], rec[cut:]); err != nil {
				t.Fatal(err)
			}
			want = append(want, rec)
			total += int64(len(rec))
		}
		for range 2 { // it can be read again
			got := read(t, f)
			if len(got) != len(want) {
				t.Fatalf("%d records, want %d", len(got), len(want))
			}
			for i := range got {
				if !bytes.Equal(got[i], want[i]) {
					t.Fatalf("record %d: %d bytes, want %d", i, len(got[i]), len(want[i]))
				}
			}
		}
		if f.Len() != len(want) || f.Size() != total || d.Used() != f.Spilled() {
			t.Fatalf("Len %d, Size %d, Used %d, Spilled %d", f.Len(), f.Size(), d.Used(), f.Spilled())
		}
		f.Close()
		if d.Used() != 0 || f.Len() != 0 {
			t.Fatalf("after Close %d bytes are used", d.Used())
		}
	})
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// Memory stays near the bound, and small runs need no file.
func TestBound(t *testing.T) {
	t.Parallel()
	d := spill.NewDir(t.TempDir())
	f := d.New(1000)
	defer f.Close()
	for i := range 200 {
		if err := f.Append(make([]byte, 99)); err != nil {
			t.Fatal(err)
		}
		if i == 8 && f.Spilled() != 0 {
			t.Error("a small run has gone to disk")
		}
		if held := int64(i+1)*100 - f.Spilled(); held > 1000 {
			t.Fatalf("%d bytes in memory, the bound is 1000", held)
		}
	}
}

func TestNoSuchDirectory(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "gone")
	f := spill.NewDir(path).New(10)
	if err := f.Append(make([]byte, 20)); err != nil {
		t.Fatal(err)
	}
	err := f.Append([]byte("x"))
	var se *spill.Error
	if !errors.As(err, &se) || se.Dir != path || !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), path) || spill.Full(err) {
		t.Fatalf("got %v", err)
	}
	// Nothing was lost or taken twice: with the directory there it goes on.
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := f.Append([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if got := read(t, f); len(got) != 2 || string(got[1]) != "x" {
		t.Errorf("got %d records", len(got))
	}
	f.Close()
}

func Example() {
	d := spill.NewDir("") // os.TempDir()
	f := d.New(64 << 10)
	defer f.Close()
	for i := range 3 {
		if err := f.Append([]byte("change "), fmt.Append(nil, i)); err != nil {
			fmt.Println(err)
			return
		}
	}
	for r := f.Reader(); ; {
		rec, err := r.Next()
		if err == io.EOF {
			break
		}
		fmt.Printf("%s\n", rec)
	}
	// Output:
	// change 0
	// change 1
	// change 2
}

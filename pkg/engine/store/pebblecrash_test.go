package store

import (
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// crashFS calls a hook before each operation that alters it.
type crashFS struct {
	vfs.FS
	hook func()
}

func (fs *crashFS) file(f vfs.File, err error) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	return &crashFile{f, fs}, nil
}

func (fs *crashFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	fs.hook()
	return fs.file(fs.FS.Create(name, c))
}

func (fs *crashFS) OpenReadWrite(name string, c vfs.DiskWriteCategory, o ...vfs.OpenOption) (vfs.File, error) {
	fs.hook()
	return fs.file(fs.FS.OpenReadWrite(name, c, o...))
}

func (fs *crashFS) ReuseForWrite(from, to string, c vfs.DiskWriteCategory) (vfs.File, error) {
	fs.hook()
	return fs.file(fs.FS.ReuseForWrite(from, to, c))
}

func (fs *crashFS) OpenDir(name string) (vfs.File, error) { return fs.file(fs.FS.OpenDir(name)) }
func (fs *crashFS) Remove(name string) error              { fs.hook(); return fs.FS.Remove(name) }
func (fs *crashFS) Rename(from, to string) error          { fs.hook(); return fs.FS.Rename(from, to) }
func (fs *crashFS) Link(from, to string) error            { fs.hook(); return fs.FS.Link(from, to) }
func (fs *crashFS) Lock(name string) (io.Closer, error)   { return fs.FS.Lock(name) }
func (fs *crashFS) MkdirAll(d string, m os.FileMode) error {
	fs.hook()
	return fs.FS.MkdirAll(d, m)
}

type crashFile struct {
	vfs.File
	fs *crashFS
}

func (f *crashFile) Write(p []byte) (int, error) { f.fs.hook(); return f.File.Write(p) }
func (f *crashFile) WriteAt(p []byte, at int64) (int, error) {
	f.fs.hook()
	return f.File.WriteAt(p, at)
}
func (f *crashFile) Sync() error     { f.fs.hook(); return f.File.Sync() }
func (f *crashFile) SyncData() error { f.fs.hook(); return f.File.SyncData() }
func (f *crashFile) SyncTo(n int64) (bool, error) {
	f.fs.hook()
	return f.File.SyncTo(n)
}

// crash is what a disk holds after a crash, and what the store on it may hold.
type crash struct {
	fs       *vfs.MemFS
	from, to int // commits: all that had returned, and those begun
	at       string
}

func crashOptions(fs vfs.FS) PebbleOptions {
	return PebbleOptions{Dir: "store", FS: fs, Tombstones: -1, TombstoneRetention: -1, TxBytes: 16 << 10, CacheBytes: 64 << 10, MemTableBytes: 64 << 10, BlockCacheBytes: 256 << 10}
}

// TestPebbleCrash crashes a store at every operation of its disk that alters
// it, and in some of the opens that follow. What was synced is kept, of the
// rest nothing, or some. The store then holds a whole number of commits, and
// none that had returned is missing.
func TestPebbleCrash(t *testing.T) {
	long(t)
	t.Parallel()
	const commits = 12
	var mu sync.Mutex
	var held []string // after each commit
	var begun, returned atomic.Int64
	crashes := make(chan crash, 64)
	points := 0
	disk := vfs.NewCrashableMem()
	rng := rand.New(rand.NewPCG(1, 2))
	fs := &crashFS{FS: disk}
	var hmu sync.Mutex
	fs.hook = func() {
		hmu.Lock()
		defer hmu.Unlock()
		points++
		cfg := vfs.CrashCloneCfg{}
		if points%2 == 0 {
			cfg = vfs.CrashCloneCfg{UnsyncedDataPercent: 20 + rng.IntN(80), RNG: rng}
		}
		from := int(returned.Load())
		c := crash{disk.CrashClone(cfg), from, 0, fmt.Sprintf("point %d, %d%% of what was not synced kept", points, cfg.UnsyncedDataPercent)}
		c.to = int(begun.Load())
		crashes <- c
	}
	var wg sync.WaitGroup
	var again atomic.Int64
	check := func(c crash, dive bool) {
		var fs vfs.FS = c.fs
		var deeper []crash
		if dive {
			var dmu sync.Mutex
			fs = &crashFS{FS: c.fs, hook: func() {
				dmu.Lock()
				defer dmu.Unlock()
				deeper = append(deeper, crash{c.fs.CrashClone(vfs.CrashCloneCfg{}), c.from, c.to, c.at + ", and again at open"})
			}}
		}
		s, err := OpenPebble(crashOptions(fs))
		if err != nil {
			t.Errorf("%s: %v", c.at, err)
			return
		}
		got := dumpStore(t, s)
		checkPieces(t, s)
		if err := s.Close(); err != nil {
			t.Errorf("%s: Close: %v", c.at, err)
		}
		mu.Lock()
		ok := false
		for n := c.from; n <= c.to && !ok; n++ {
			ok = got == "" && n == 0 || n > 0 && held[n-1] == got || n == 0 && strings.TrimSpace(got) == "[]"
		}
		mu.Unlock()
		if !ok {
			t.Errorf("%s: the store holds none of commits %d to %d, but:\n%s", c.at, c.from, c.to, got)
		}
		for i, d := range deeper {
			if i%3 == 0 && !t.Failed() {
				again.Add(1)
				d := d
				s, err := OpenPebble(crashOptions(d.fs))
				if err != nil {
					t.Errorf("%s: %v", d.at, err)
					return
				}
				if now := dumpStore(t, s); now != got {
					t.Errorf("%s: the store holds something else than after the first open", d.at)
				}
				_ = s.Close()
			}
		}
	}
	seen := atomic.Int64{}
	for range 2 {
		wg.Go(func() {
			for c := range crashes {
				n := seen.Add(1)
				if !t.Failed() {
					check(c, n%40 == 0)
				}
			}
		})
	}
	s, err := OpenPebble(crashOptions(fs))
	if err != nil {
		t.Fatal(err)
	}
	w := &workload{t: t, rng: rand.New(rand.NewPCG(3, 4))}
	w.run(s, commits, func(_ int, want string) {
		mu.Lock()
		held = append(held, want)
		mu.Unlock()
		begun.Add(1)
	}, func(i int) {
		returned.Add(1)
		if got := dumpStore(t, s); got != held[i] {
			t.Errorf("commit %d shows something else than the transaction did:\n%s\n-- want\n%s", i, got, held[i])
		}
	})
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	close(crashes)
	wg.Wait()
	t.Logf("%d crashes, and %d more at open", seen.Load(), again.Load())
	if seen.Load() < 100 || again.Load() == 0 {
		t.Errorf("%d crashes, and %d more at open: too few to mean anything", seen.Load(), again.Load())
	}
}

// long skips a test that takes long in the quick run, under the race detector.
func long(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes long")
	}
}

package store

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/tributary-dev/tributary/pkg/engine"
)

// fullFS is a file system that is full when it is told to be: writes take a
// part of what they are given, and syncs fail.
type fullFS struct {
	vfs.FS
	full  atomic.Bool
	fails atomic.Int64
	part  func(name string, c vfs.DiskWriteCategory) bool // which files find no room; nil: all
}

func (fs *fullFS) err() error {
	if !fs.full.Load() {
		return nil
	}
	fs.fails.Add(1)
	return &os.PathError{Op: "write", Path: "f", Err: syscall.ENOSPC}
}

func (fs *fullFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if fs.part != nil && !fs.part(name, c) {
		return fs.FS.Create(name, c)
	}
	if err := fs.err(); err != nil {
		return nil, err
	}
	f, err := fs.FS.Create(name, c)
	if err != nil {
		return nil, err
	}
	return &fullFile{f, fs}, nil
}

func (fs *fullFS) ReuseForWrite(from, to string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := fs.FS.ReuseForWrite(from, to, c)
	if err != nil || fs.part != nil && !fs.part(to, c) {
		return f, err
	}
	return &fullFile{f, fs}, nil
}

type fullFile struct {
	vfs.File
	fs *fullFS
}

func (f *fullFile) Write(p []byte) (int, error) {
	if err := f.fs.err(); err != nil {
		n, _ := f.File.Write(p[:len(p)/2])
		return n, err
	}
	return f.File.Write(p)
}

func (f *fullFile) Sync() error {
	if err := f.fs.err(); err != nil {
		return err
	}
	return f.File.Sync()
}

func (f *fullFile) SyncData() error {
	if err := f.fs.err(); err != nil {
		return err
	}
	return f.File.SyncData()
}

// stalls waits until a store says that it has no room.
func stalls(t *testing.T, p *Pebble) *DiskFullError {
	t.Helper()
	for range 2000 {
		var full *DiskFullError
		if err := p.Stalled(); errors.As(err, &full) {
			return full
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Fatal("the store does not say that it is stalled")
	return nil
}

// TestPebbleDiskFull fills the disk again and again under a store that is being
// written, and closes it full at last.
func TestPebbleDiskFull(t *testing.T) {
	long(t)
	t.Parallel()
	disk := vfs.NewCrashableMem()
	fs := &fullFS{FS: disk}
	p, err := OpenPebble(crashOptions(fs))
	if err != nil {
		t.Fatal(err)
	}
	w := &workload{t: t, rng: rand.New(rand.NewPCG(5, 6))}
	var want string
	stalled := 0
	w.run(p, 40, func(i int, d string) {
		if want = d; i%4 != 3 {
			return
		}
		fs.full.Store(true)
		held := p.current()
		go func() {
			defer func() { fs.full.Store(false) }()
			full := stalls(t, p)
			stalled++
			if !errors.Is(full, syscall.ENOSPC) || full.Path == "" || full.Since.IsZero() || !strings.Contains(full.Error(), "enlarge the volume") {
				t.Errorf("a full disk is told as: %v", full)
			}
			if v := p.View(); v.(*diskView).root != held { // readers go on
				t.Error("a commit shows before it is done")
			} else {
				dump(t, v)
				v.Close()
			}
		}()
	}, func(i int) {
		if got := dumpStore(t, p); got != want {
			t.Errorf("commit %d shows something else than the transaction did", i)
		}
		if p.usable() != nil {
			t.Fatal(p.Stalled())
		}
	})
	if stalled == 0 || fs.fails.Load() == 0 {
		t.Fatal("the disk was never full")
	}
	for i := 0; p.Stalled() != nil; i++ {
		if time.Sleep(5 * time.Millisecond); i > 1000 {
			t.Fatal("the store stays stalled:", p.Stalled())
		}
	}
	tx, err := p.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	w.next(p, tx)
	next := dump(t, tx)
	fs.full.Store(true)
	ended := make(chan error)
	go func() { ended <- tx.Commit() }()
	stalls(t, p)
	closed := make(chan error)
	go func() { closed <- p.Close() }()
	select {
	case err := <-ended:
		if !errors.Is(err, engine.ErrClosed) {
			t.Errorf("Commit in a stall that Close ends gave %v", err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("Commit does not end with Close")
	}
	if err := <-closed; err != nil {
		t.Error(err)
	}
	fs.full.Store(false)
	for what, fs := range map[string]vfs.FS{"as it is": disk, "after a crash": disk.CrashClone(vfs.CrashCloneCfg{})} {
		p, err := OpenPebble(crashOptions(fs))
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if got := dumpStore(t, p); got != want && got != next {
			t.Errorf("%s: the store holds neither the last commit nor the one that was cut short", what)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestPebbleFullInCommit closes a store while a commit waits for room at each of the places where the
// database can wait: it ends, and what was committed before is there.
func TestPebbleFullInCommit(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		part func(name string, c vfs.DiskWriteCategory) bool
		at   string // where the database waits
	}{
		"all":         {nil, ".rotateWAL"},
		"log":         {func(name string, _ vfs.DiskWriteCategory) bool { return strings.HasSuffix(name, ".log") }, ".rotateWAL"},
		"tables":      {func(name string, _ vfs.DiskWriteCategory) bool { return strings.HasSuffix(name, ".sst") }, ".maybeInduceWriteStall"},
		"compactions": {func(_ string, c vfs.DiskWriteCategory) bool { return c == "pebble-compaction" }, ".maybeInduceWriteStall"},
	} {
		t.Run(name, func(t *testing.T) {
			disk := vfs.NewCrashableMem()
			fs := &fullFS{FS: disk, part: c.part}
			o := crashOptions(fs)
			p, err := OpenPebble(o)
			if err != nil {
				t.Fatal(err)
			}
			var want string
			w := &workload{t: t, rng: rand.New(rand.NewPCG(15, 16))}
			w.run(p, 10, func(_ int, d string) { want = d }, func(int) {})
			view := p.View()
			defer view.Close()
			fs.full.Store(true)
			ended := make(chan error, 1)
			go func() { ended <- larger(p, w) }()
			for began := time.Now(); ; time.Sleep(10 * time.Millisecond) {
				all := make([]byte, 4<<20)
				if all = all[:runtime.Stack(all, true)]; strings.Contains(string(all), c.at) && p.Stalled() != nil {
					break
				}
				if time.Since(began) > time.Minute {
					t.Fatalf("it does not wait at %s: %v", c.at, p.Stalled())
				}
			}
			closed := make(chan error, 1)
			go func() { closed <- p.Close() }()
			for what, c := range map[string]struct {
				end  <-chan error
				want error
			}{"Commit": {ended, engine.ErrClosed}, "Close": {closed, nil}} {
				select {
				case err := <-c.end:
					if !errors.Is(err, c.want) {
						t.Errorf("%s gave %v", what, err)
					}
				case <-time.After(time.Minute):
					t.Fatalf("%s does not end", what)
				}
			}
			fs.full.Store(false)
			for what, fs := range map[string]vfs.FS{"as it is": disk, "after a crash": disk.CrashClone(vfs.CrashCloneCfg{})} {
				p, err := OpenPebble(crashOptions(fs))
				if err != nil {
					t.Fatalf("%s: %v", what, err)
				}
				if got := dumpStore(t, p); got != want {
					t.Errorf("%s: the store holds\n%s\nand held\n%s", what, got, want)
				}
				if err := p.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// larger commits a transaction that is larger than all that the database gathers in memory.
func larger(p *Pebble, w *workload) error {
	tx, err := p.Begin(context.Background())
	if err != nil {
		return err
	}
	defer tx.Rollback()
	for range 2000 {
		r := w.record(workTables[0])
		r.Key, r.Row, r.Deleted = fmt.Appendf(nil, "large-%d", w.rng.IntN(1<<20)), w.row(4000), false
		if err := tx.Put(&r); err != nil {
			return err
		}
	}
	return tx.Commit()
}

// TestPebbleSmallDisk fills a real file system: commits wait below the reserve,
// and go on once there is room.
func TestPebbleSmallDisk(t *testing.T) {
	long(t)
	t.Parallel()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=64m"); err != nil {
		t.Skipf("a file system of 64 MiB cannot be mounted here (%v): run as root", err)
	}
	defer func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	}()
	ballast := filepath.Join(dir, "ballast")
	for _, reserve := range []int64{0, -1} { // waits in Begin, and in Commit
		p, err := OpenPebble(PebbleOptions{Dir: filepath.Join(dir, fmt.Sprint("store", reserve)), MemTableBytes: 1 << 20, ReserveBytes: reserve})
		if err != nil {
			t.Fatal(err)
		}
		w := &workload{t: t, rng: rand.New(rand.NewPCG(7, 8))}
		one := func(i int) bool {
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			tx, err := p.Begin(ctx)
			if errors.Is(err, context.DeadlineExceeded) {
				return false
			}
			w.must(err)
			if i == 0 {
				w.first(tx)
			}
			w.n = i
			w.must(tx.SetMeta("n", fmt.Append(nil, i)))
			r := w.record(workTables[0])
			r.Row, r.Deleted = w.row(100<<10), false
			w.must(tx.Put(&r))
			w.must(tx.Commit())
			return true
		}
		n := 0
		for began := time.Now(); n < 20; {
			if one(n) {
				n++
			} else if time.Since(began) > 30*time.Second {
				t.Fatal("no room from the start")
			}
		}
		stop := make(chan struct{})
		done := make(chan int)
		go func() {
			i := n
			for ; ; i++ {
				select {
				case <-stop:
					done <- i
					return
				default:
				}
				if !one(i) {
					i--
				}
			}
		}()
		fillDisk(t, ballast)
		full := stalls(t, p)
		if full.Free > 5<<20 {
			t.Errorf("%d bytes are said to be free of a full disk", full.Free)
		}
		if v := p.View(); v.Meta("n") == nil {
			t.Error("readers do not go on")
		} else {
			v.Close()
		}
		if err := os.Remove(ballast); err != nil {
			t.Fatal(err)
		}
		at := func() string { v := p.View(); defer v.Close(); return string(v.Meta("n")) }
		was := at()
		for i := 0; at() == was; i++ {
			if time.Sleep(10 * time.Millisecond); i > 1000 {
				t.Fatalf("the store does not go on: %v", p.Stalled())
			}
		}
		close(stop)
		n = <-done
		want := dumpStore(t, p)
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
		if p, err = OpenPebble(PebbleOptions{Dir: p.opts.Dir}); err != nil {
			t.Fatal(err)
		}
		if at() != fmt.Sprint(n-1) || dumpStore(t, p) != want {
			t.Errorf("the store has transaction %s as its last, and %d was", at(), n-1)
		}
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// The database asks for room for a whole log at once. A disk that will never have that
// much is not full.
func TestPebbleSmallerThanLog(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=12m"); err != nil {
		t.Skipf("a file system of 12 MiB cannot be mounted here (%v): run as root", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
	p, err := OpenPebble(PebbleOptions{Dir: filepath.Join(dir, "store")})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		for i := range 10 {
			tx, err := p.Begin(context.Background())
			if err == nil {
				err = tx.SetMeta("n", fmt.Append(nil, i))
			}
			if err == nil {
				err = tx.Commit()
			}
			if err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Error("commits wait:", p.Stalled())
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}

// fillDisk writes a file until there is no room.
func fillDisk(t *testing.T, name string) {
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	buf := make([]byte, 64<<10)
	for err == nil {
		_, err = f.Write(buf)
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
}

// filled makes a store on disk, closed, with tables of several levels and a
// log, and returns what it holds.
func filled(t *testing.T, dir string, commits int) string {
	o := crashOptions(nil)
	o.Dir = dir
	p, err := OpenPebble(o)
	if err != nil {
		t.Fatal(err)
	}
	w := &workload{t: t, rng: rand.New(rand.NewPCG(9, 10))}
	w.run(p, commits, func(int, string) {}, func(int) {})
	want := dumpStore(t, p)
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	return want
}

// holds reads all that a store holds; it gives an error where dump would fail
// the test.
func holds(p *Pebble) (out string, err error) {
	v := p.View()
	defer v.Close()
	f := &failures{}
	defer func() {
		if r := recover(); r != nil {
			if r != any(f) {
				panic(r)
			}
			err = f.err
		}
	}()
	return dump(f, v), nil
}

// failures is a testing.TB that keeps what Fatal is given.
type failures struct {
	testing.TB
	err error
}

func (f *failures) Helper() {}
func (f *failures) Fatal(args ...any) {
	f.err, _ = args[0].(error)
	panic(f)
}
func (f *failures) Fatalf(format string, args ...any) {
	f.err = fmt.Errorf(format, args...)
	panic(f)
}

// TestPebbleDamage flips bytes in every kind of file: the store says which is
// damaged, or holds what it did. It never holds something else.
func TestPebbleDamage(t *testing.T) {
	long(t)
	t.Parallel()
	good := t.TempDir()
	want := filled(t, good, 40)
	var files []string
	if err := filepath.WalkDir(good, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			files = append(files, path)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	slices.Reverse(files) // the newest first: older logs only wait to be used again
	rng := rand.New(rand.NewPCG(11, 12))
	tries, found := map[string]int{}, map[string]int{}
	for _, file := range files {
		st, err := os.Stat(file)
		if err != nil || st.Size() == 0 {
			continue
		}
		kind := strings.TrimLeft(filepath.Base(file), "0123456789")
		kind, _, _ = strings.Cut(kind, "-")
		flips := 8
		if kind == ".sst" {
			flips = 2 // looking for the bit that flipped takes the database seconds
		}
		if tries[kind] >= 24 || kind == ".sst" && tries[kind] >= 8 {
			continue
		}
		for range flips {
			tries[kind]++
			at := rng.Int64N(st.Size())
			if kind == ".log" || kind == "MANIFEST" { // their ends are what goes unseen
				at = st.Size() - 1 - at*at/st.Size()
			}
			dir := t.TempDir()
			if err := os.CopyFS(dir, os.DirFS(good)); err != nil {
				t.Fatal(err)
			}
			rel, _ := filepath.Rel(good, file)
			what := fmt.Sprintf("byte %d of %s of %d", at, rel, st.Size())
			flip(t, filepath.Join(dir, rel), at)
			o := crashOptions(nil)
			o.Dir = dir
			p, err := OpenPebble(o)
			if err == nil {
				var got string
				if got, err = holds(p); err == nil && got != want {
					t.Errorf("%s: the store holds something else, and says nothing", what)
				}
				_ = p.Close()
			}
			if err == nil {
				continue
			}
			found[kind]++
			var c *CorruptError
			if !errors.Is(err, engine.ErrCorruptStore) && !errors.Is(err, ErrFormat) {
				t.Errorf("%s: an error that does not say what it is: %v", what, err)
			} else if errors.As(err, &c) && c.What == "" {
				t.Errorf("%s: an error that does not say where it is: %v", what, err)
			}
		}
	}
	for _, kind := range []string{".sst", ".log", "MANIFEST", "FORMAT"} {
		if found[kind] == 0 {
			t.Errorf("no damage to %s was found, of %d flips", kind, tries[kind])
		}
	}
	t.Logf("flips %v, found %v", tries, found)
}

func flip(t *testing.T, file string, at int64) {
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	b[at] ^= 1 << (at % 8)
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestPebbleTornTail cuts the log short where nothing was synced: that is no
// damage.
func TestPebbleTornTail(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	want := filled(t, dir, 10)
	logs, _ := filepath.Glob(filepath.Join(dir, "db", "*.log"))
	slices.Sort(logs)
	f, err := os.OpenFile(logs[len(logs)-1], os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write([]byte("half of a record that was never synced")); err != nil {
		t.Fatal(err)
	}
	_ = f.Close()
	o := crashOptions(nil)
	o.Dir = dir
	p, err := OpenPebble(o)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if dumpStore(t, p) != want {
		t.Error("the store holds something else")
	}
}

func TestPebbleFormatAndLock(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	o := PebbleOptions{Dir: filepath.Join(dir, "a", "b"), BlockCacheBytes: 1 << 20}
	p, err := OpenPebble(o)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := OpenPebble(o); !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), o.Dir) {
		t.Errorf("a second open gave %v", err)
	}
	cmd := exec.Command(os.Args[0], "-test.run=TestPebbleChild")
	cmd.Env = append(os.Environ(), "PEBBLE_CHILD=open", "PEBBLE_DIR="+o.Dir)
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "is in use by another process") {
		t.Errorf("a second process gave %v: %s", err, out)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(o.Dir, "FORMAT")
	for content, want := range map[string]error{
		"tributary store 3\n": ErrFormat, "tributary store 2\n": nil, "tributary store\n": engine.ErrCorruptStore, "": engine.ErrCorruptStore, "tributary store 1\n": nil,
	} {
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		p, err := OpenPebble(o)
		if !errors.Is(err, want) || want == nil && err != nil {
			t.Errorf("a store of format %q gave %v", content, err)
		}
		if err == nil {
			_ = p.Close()
		}
	}
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenPebble(o); !errors.Is(err, engine.ErrCorruptStore) {
		t.Errorf("a store without FORMAT gave %v", err)
	}
}

// A store that is opened on a full disk waits for room, says so, ends when it is told
// to, and has everything when there is room.
func TestPebbleOpenFull(t *testing.T) {
	t.Parallel()
	disk := vfs.NewCrashableMem()
	p, err := OpenPebble(crashOptions(disk))
	if err != nil {
		t.Fatal(err)
	}
	var want string
	w := &workload{t: t, rng: rand.New(rand.NewPCG(7, 8))}
	w.run(p, 10, func(_ int, d string) { want = d }, func(int) {})
	left := disk.CrashClone(vfs.CrashCloneCfg{})
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	fs := &fullFS{FS: left}
	o := crashOptions(fs)
	o.Waits = func(full *DiskFullError) {
		if !strings.Contains(full.Error(), "enlarge the volume") {
			t.Errorf("it waits for %v", full)
		}
		fs.full.Store(false)
	}
	fs.full.Store(true)
	if p, err = OpenPebbleContext(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	o.Waits = func(*DiskFullError) { cancel() }
	fs.full.Store(true)
	if _, err := OpenPebbleContext(ctx, o); !errors.Is(err, context.Canceled) || !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("it was opened, or gave %v", err)
	}
	fs.full.Store(false)
	for range 1000 { // what was given up lets go of the directory
		if p, err = OpenPebble(o); !errors.Is(err, ErrInUse) {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	v := p.View()
	defer v.Close()
	if got := dump(t, v); got != want {
		t.Errorf("the store has\n%s\nand had\n%s", got, want)
	}
}

// A directory that cannot be written is not one that another process has.
func TestPebbleReadOnly(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "LOCK"), 0o700); err != nil { // what cannot be opened, also by root
		t.Fatal(err)
	}
	if _, err := OpenPebble(PebbleOptions{Dir: dir}); err == nil || errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), "it cannot be locked") {
		t.Errorf("it gave %v", err)
	}
}

// TestPebbleChild is the other process of other tests.
func TestPebbleChild(t *testing.T) {
	o := PebbleOptions{Dir: os.Getenv("PEBBLE_DIR"), MemTableBytes: 64 << 10, TxBytes: 16 << 10, BlockCacheBytes: 1 << 20, Tombstones: -1, TombstoneRetention: -1}
	switch os.Getenv("PEBBLE_CHILD") {
	case "":
		t.Skip("this is started by other tests")
	case "open":
		_, err := OpenPebble(o)
		fmt.Println(err)
	case "write":
		p, err := OpenPebble(o)
		if err != nil {
			t.Fatal(err)
		}
		w := &workload{t: t, rng: rand.New(rand.NewPCG(13, 14))}
		w.run(p, 1<<20, func(i int, want string) {
			w.must(os.WriteFile(fmt.Sprintf("%s.%d", o.Dir, i), []byte(want), 0o600))
		}, func(i int) { fmt.Println("committed", i) })
	}
}

// TestPebbleKill kills a process that writes, with SIGKILL.
func TestPebbleKill(t *testing.T) {
	long(t)
	t.Parallel()
	for round := range 3 {
		dir := filepath.Join(t.TempDir(), "store")
		cmd := exec.Command(os.Args[0], "-test.run=TestPebbleChild")
		cmd.Env = append(os.Environ(), "PEBBLE_CHILD=write", "PEBBLE_DIR="+dir)
		var out strings.Builder
		cmd.Stdout = &out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
			if _, err := os.Stat(dir + ".1"); err == nil { // the first is committed
				break
			}
		}
		time.Sleep(time.Duration(100+250*round) * time.Millisecond)
		_ = cmd.Process.Signal(syscall.SIGKILL)
		_ = cmd.Wait()
		lines := strings.Split(out.String(), "\n")
		last := -1
		if len(lines) > 1 {
			_, _ = fmt.Sscanf(lines[len(lines)-2], "committed %d", &last)
		}
		o := PebbleOptions{Dir: dir, Tombstones: -1, TombstoneRetention: -1}
		p, err := OpenPebble(o)
		if err != nil {
			t.Fatal(err)
		}
		got := dumpStore(t, p)
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		ok := false
		for i := max(last, 0); i <= last+1; i++ {
			want, _ := os.ReadFile(fmt.Sprintf("%s.%d", dir, i))
			ok = ok || got == string(want)
		}
		if !ok {
			t.Errorf("killed after commit %d, the store holds neither it nor the next", last)
		}
		t.Logf("killed after commit %d", last)
	}
}

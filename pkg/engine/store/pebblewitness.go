package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"strings"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// The database takes damage near the end of its logs for a write that a crash
// cut short, and goes on without what follows: what was committed is then gone
// without a word. So the store keeps a witness beside it: how much of each log
// was synced, and its checksum. That is noted after the sync and not synced
// itself. It can be behind the truth, but never ahead of it: what it says was
// synced must be there.
//
//	witness = slot*
//	slot    = crc32c(rest) u8(len) name[31] le64(synced) le32(crc32c of what was synced), padded to 64 bytes

const (
	witnessSlot  = 64
	witnessSlots = 64
	witnessName  = 31
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

type witness struct {
	mu    sync.Mutex
	file  vfs.File
	slots [witnessSlots]string // whose each is; "" is free
}

// proof is how far one file is synced.
type proof struct {
	w    *witness
	name string
	slot int
	size int64
	sum  uint32
	buf  [witnessSlot]byte
}

// follow starts to follow a new file; nil if it is of no interest.
func (w *witness) follow(name string) *proof {
	if !strings.HasSuffix(name, ".log") && !strings.HasPrefix(name, "MANIFEST-") && !strings.HasPrefix(name, "OPTIONS-") || len(name) > witnessName {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.free(name)
	for i, n := range w.slots {
		if n == "" {
			w.slots[i] = name
			return &proof{w: w, name: name, slot: i}
		}
	}
	return nil
}

// forget is called before a file goes.
func (w *witness) forget(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.free(name)
}

func (w *witness) free(name string) {
	for i, n := range w.slots {
		if n == name {
			w.slots[i] = ""
			if w.file != nil {
				_, _ = w.file.WriteAt(make([]byte, witnessSlot), int64(i)*witnessSlot)
			}
		}
	}
}

func (p *proof) wrote(b []byte) {
	p.size += int64(len(b))
	p.sum = crc32.Update(p.sum, castagnoli, b)
}

// synced notes that all that was written is on disk.
func (p *proof) synced() {
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	if p.w.file == nil || p.w.slots[p.slot] != p.name {
		return
	}
	b := p.buf[:]
	b[4] = byte(copy(b[5:5+witnessName], p.name))
	binary.LittleEndian.PutUint64(b[36:], uint64(p.size))
	binary.LittleEndian.PutUint32(b[44:], p.sum)
	binary.LittleEndian.PutUint32(b, crc32.Checksum(b[4:], castagnoli))
	// That it cannot be written is no reason to stop: it says less then.
	_, _ = p.w.file.WriteAt(b, int64(p.slot)*witnessSlot)
}

// openWitness checks that what was synced is there, and starts to witness.
func (fs *diskFS) openWitness() error {
	name := fs.PathJoin(fs.dir, "WITNESS")
	f, err := fs.FS.OpenReadWrite(name, vfs.WriteCategoryUnspecified)
	if err != nil {
		return fmt.Errorf("store %s: %w", fs.dir, err)
	}
	fail := func(err error) error { return errors.Join(err, f.Close()) }
	all := make([]byte, witnessSlot*witnessSlots)
	n, err := f.ReadAt(all, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return fail(fmt.Errorf("store %s: %w", fs.dir, err))
	}
	if n < len(all) {
		clear(all[n:])
		if err := fs.do(name, func() error { _, err := f.WriteAt(all[n:], int64(n)); return err }); err != nil {
			return fail(fmt.Errorf("store %s: %w", fs.dir, err))
		}
	}
	for i := range witnessSlots {
		b := all[i*witnessSlot : (i+1)*witnessSlot]
		size := int(b[4])
		if size == 0 || size > witnessName || binary.LittleEndian.Uint32(b) != crc32.Checksum(b[4:], castagnoli) {
			continue
		}
		file := string(b[5 : 5+size])
		if err := fs.verify(file, int64(binary.LittleEndian.Uint64(b[36:])), binary.LittleEndian.Uint32(b[44:])); err != nil {
			return fail(err)
		}
		fs.witness.slots[i] = file
	}
	fs.witness.mu.Lock()
	defer fs.witness.mu.Unlock()
	fs.witness.file = f
	return nil
}

// verify checks that a file begins with what was synced. One that is gone was
// removed after a witness that has not reached the disk.
func (fs *diskFS) verify(name string, synced int64, sum uint32) error {
	path := fs.PathJoin(fs.dbDir(), name)
	f, err := fs.FS.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("store %s: %w", fs.dir, err)
	}
	defer func() { _ = f.Close() }()
	h := crc32.New(castagnoli)
	n, err := io.Copy(h, io.LimitReader(f, synced))
	if err != nil {
		return fmt.Errorf("store %s: reading %s: %w", fs.dir, path, err)
	}
	what := fmt.Sprintf("its first %d bytes", synced)
	if n < synced {
		return &CorruptError{fs.dir, path, what, fmt.Errorf("%d bytes are there, and %d were synced", n, synced)}
	}
	if h.Sum32() != sum {
		return &CorruptError{fs.dir, path, what, errors.New("they are not what was synced")}
	}
	return nil
}

func (fs *diskFS) close() {
	fs.release()
	fs.witness.mu.Lock()
	defer fs.witness.mu.Unlock()
	if fs.witness.file != nil {
		_ = fs.witness.file.Close()
		fs.witness.file = nil
	}
}

// ErrFormat: the store was written by a newer version of Tributary.
var ErrFormat = errors.New("the format of the store is not known")

// format is what the file FORMAT says; readers of it refuse any number that they do not know.
// In format 1, large values are in one piece: what is there can be read, and nothing is written so.
const (
	formatPrefix  = "tributary store "
	formatBefore  = "1"
	formatVersion = "2"
)

// checkFormat refuses a store of a newer format, and marks a new one, or one of the format before.
func (fs *diskFS) checkFormat() error {
	name := fs.PathJoin(fs.dir, "FORMAT")
	f, err := fs.FS.Open(name)
	switch {
	case errors.Is(err, os.ErrNotExist):
		if _, err := fs.FS.Stat(fs.dbDir()); err == nil {
			return &CorruptError{fs.dir, name, "the format of the store", errors.New("it is missing, and the store is not new")}
		}
		return fs.writeFormat(name)
	case err != nil:
		return fmt.Errorf("store %s: %w", fs.dir, err)
	}
	b, err := io.ReadAll(io.LimitReader(f, 256))
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("store %s: %w", fs.dir, err)
	}
	version, ok := strings.CutPrefix(strings.TrimSuffix(string(b), "\n"), formatPrefix)
	if !ok || !isNumber(version) {
		return &CorruptError{fs.dir, name, "the format of the store", fmt.Errorf("it says %q", b)}
	}
	switch version {
	case formatVersion:
		return nil
	case formatBefore:
		return fs.writeFormat(name)
	}
	return fmt.Errorf("store %s: %w: it has format %s, and this version of Tributary reads formats up to %s: "+
		"run the newer version again, or give this one an empty directory", fs.dir, ErrFormat, version, formatVersion)
}

func isNumber(s string) bool {
	return s != "" && strings.Trim(s, "0123456789") == ""
}

func (fs *diskFS) writeFormat(name string) error {
	tmp := name + ".tmp"
	err := fs.do(tmp, func() error {
		f, err := fs.FS.Create(tmp, vfs.WriteCategoryUnspecified)
		if err != nil {
			return err
		}
		_, err = io.WriteString(f, formatPrefix+formatVersion+"\n")
		return errors.Join(err, f.Sync(), f.Close())
	})
	if err == nil {
		err = fs.Rename(tmp, name)
	}
	for _, dir := range []string{fs.dir, fs.PathDir(fs.dir)} {
		if err == nil {
			err = fs.syncDir(dir)
		}
	}
	if err != nil {
		return fmt.Errorf("store %s: %w", fs.dir, err)
	}
	return nil
}

func (fs *diskFS) syncDir(dir string) error {
	d, err := fs.OpenDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

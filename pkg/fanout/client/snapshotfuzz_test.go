package client

import (
	"context"
	"crypto/sha256"
	"os"
	"path/filepath"
	"testing"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/engine/store"
)

// kept returns a store with a row, a tombstone, a truncate and a cursor.
func kept(t testing.TB) engine.Store {
	t.Helper()
	log := engine.LogID{Origin: "n#db", Epoch: 7}
	s := &engine.Schema{ID: 1, Table: engine.TableName{Schema: "public", Name: "t"}, Columns: []engine.Column{{Name: "id", Number: 1, TypeOID: 25, Key: true}}}
	m := store.NewMemory(store.MemoryOptions{})
	tx, err := m.Begin(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	row := engine.AppendValue(engine.AppendRowHeader(nil, 1, 1), "a")
	stamp := engine.Stamp{Time: 9, Origin: log.Origin, Epoch: log.Epoch, Version: engine.Version{Major: 16, Minor: 1}}
	for _, err := range []error{
		tx.PutSchema(log, s),
		tx.ResetLog(log, engine.CompareLSN, "0/10", 9),
		tx.SetCompleteFrom(log, 8),
		tx.Put(&engine.Record{Schema: s, Key: engine.AppendKeyValue(nil, "a"), Row: row, Stamp: stamp}),
		tx.Put(&engine.Record{Schema: s, Key: engine.AppendKeyValue(nil, "b"), Deleted: true, Stamp: stamp}),
		tx.SetTruncated(s.Table, engine.Stamp{Time: 5, Origin: log.Origin, Epoch: log.Epoch}),
		tx.SetCursor(engine.Cursor{CursorKey: engine.CursorKey{Log: log}, Position: "0/10", Time: 9}),
		tx.SetMeta("log/x", []byte("{}")),
		tx.Commit(),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return m
}

// takenIn loads a file into an empty store.
func takenIn(path string) (engine.Store, error) {
	f, err := openFile(path, "")
	if err != nil {
		return nil, err
	}
	defer f.close()
	m := store.NewMemory(store.MemoryOptions{})
	tx, err := m.Begin(context.Background())
	if err != nil {
		return nil, err
	}
	defer tx.Rollback()
	if err := f.load(tx, engine.CompareLSN); err != nil {
		return nil, err
	}
	return m, tx.Commit()
}

// What is saved is read back: saved again it is the same file.
func TestSnapshotFileRoundTrip(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first, second := filepath.Join(dir, "first"), filepath.Join(dir, "second")
	v := kept(t).View()
	defer v.Close()
	if err := saveFile(first, "", v); err != nil {
		t.Fatal(err)
	}
	m, err := takenIn(first)
	if err != nil {
		t.Fatal(err)
	}
	again := m.View()
	defer again.Close()
	if err := saveFile(second, "", again); err != nil {
		t.Fatal(err)
	}
	a, _ := os.ReadFile(first)
	b, _ := os.ReadFile(second)
	if string(a) != string(b) || len(a) == 0 {
		t.Errorf("saved:\n%q\nread back and saved:\n%q", a, b)
	}
	if l, ok := again.Log(engine.LogID{Origin: "n#db", Epoch: 7}); !ok || l.CompleteFrom != 8 || l.Head != "0/10" {
		t.Errorf("%+v", l)
	}
	if r, ok, err := again.Get(engine.TableName{Schema: "public", Name: "t"}, engine.AppendKeyValue(nil, "b")); !ok || err != nil || !r.Deleted {
		t.Errorf("the tombstone: %+v %t %v", r, ok, err)
	}
}

// Whatever is in a file whose checksum is right, reading it ends with an error or
// with a state, and takes no more memory than the file has.
func FuzzSnapshotFile(f *testing.F) {
	path := filepath.Join(f.TempDir(), "seed")
	v := kept(f).View()
	if err := saveFile(path, "", v); err != nil {
		f.Fatal(err)
	}
	v.Close()
	good, err := os.ReadFile(path)
	if err != nil {
		f.Fatal(err)
	}
	good = good[:len(good)-sha256.Size]
	f.Add(good)
	f.Add(good[:len(good)-9])
	f.Add([]byte(fileMagic + "\x00\x00\x00\x01\x02{}\x00"))
	f.Fuzz(func(t *testing.T, body []byte) {
		sum := sha256.Sum256(body)
		path := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(path, append(body, sum[:]...), 0o600); err != nil {
			t.Fatal(err)
		}
		if m, err := takenIn(path); err == nil {
			_ = m.Close()
		}
	})
}

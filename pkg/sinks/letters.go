package sinks

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/tributary-dev/tributary/pkg/engine"
)

// maxLetterBytes bounds the rows of a sink's dead letters.
const maxLetterBytes = 64 << 20

// Errors of dead letters.
var (
	// ErrNoLetter: there is no dead letter of that id.
	ErrNoLetter = errors.New("no such dead letter")

	errFull = errors.New("there are as many dead letters as may be kept: replay or discard some")
)

// Letter is an entry that was put aside: the newest that the target rejected
// for its key.
type Letter struct {
	ID       string       `json:"id"`
	Schema   string       `json:"schema"` // of Table
	Table    string       `json:"table"`
	Op       string       `json:"op"`
	Key      []byte       `json:"key"`
	Row      []byte       `json:"row,omitempty"`
	SchemaID uint32       `json:"schemaId"`
	Stamp    engine.Stamp `json:"stamp"`
	Origin   string       `json:"origin"` // with Epoch, the log it was read from
	Epoch    engine.Epoch `json:"epoch"`
	Position string       `json:"position"`
	Error    string       `json:"error"`
	Since    time.Time    `json:"since"`
	Last     time.Time    `json:"last"`
	Attempts int          `json:"attempts"`
}

// letterKey names a dead letter: there is at most one of a row.
type letterKey struct {
	table engine.TableName
	key   string
}

func (k letterKey) id() string {
	h := sha256.New()
	fmt.Fprintf(h, "%q.%q.", k.table.Schema, k.table.Name)
	h.Write([]byte(k.key))
	return hex.EncodeToString(h.Sum(nil)[:12])
}

func (l *Letter) letterKey() letterKey {
	return letterKey{engine.TableName{Schema: l.Schema, Name: l.Table}, string(l.Key)}
}

// letters keeps a sink's dead letters in the node's store.
type letters struct {
	store  engine.Store
	prefix string

	mu    sync.Mutex
	all   map[letterKey]*Letter
	bytes int
}

func loadLetters(store engine.Store, sink string) (*letters, error) {
	l := &letters{store: store, prefix: "sink/" + sink + "/dead/", all: map[letterKey]*Letter{}}
	v := store.View()
	defer v.Close()
	var err error
	v.ScanMeta(l.prefix, func(key string, value []byte) bool {
		d := &Letter{}
		if err = json.Unmarshal(value, d); err != nil {
			err = fmt.Errorf("the dead letter %s cannot be read: %w", key, err)
			return false
		}
		l.all[d.letterKey()] = d
		l.bytes += len(d.Row)
		return true
	})
	return l, err
}

func (l *letters) any() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.all) > 0
}

// has reports whether there is a letter of a row, and whether it is a put.
func (l *letters) has(k letterKey) (put, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	d := l.all[k]
	return d != nil && d.Op == engine.OpPut.String(), d != nil
}

func (l *letters) ofTable(table engine.TableName, fn func(letterKey)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for k := range l.all {
		if k.table == table {
			fn(k)
		}
	}
}

// list returns copies, oldest first.
func (l *letters) list() []Letter {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make([]Letter, 0, len(l.all))
	for _, d := range l.all {
		out = append(out, *d)
	}
	slices.SortFunc(out, func(a, b Letter) int {
		if c := a.Since.Compare(b.Since); c != 0 {
			return c
		}
		return a.Stamp.Compare(b.Stamp)
	})
	return out
}

func (l *letters) get(id string) (Letter, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, d := range l.all {
		if d.ID == id {
			return *d, true
		}
	}
	return Letter{}, false
}

func (l *letters) len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.all)
}

// put keeps an entry, in place of an older one of the same row. It is durable,
// if the store is, when put returns.
func (l *letters) put(ctx context.Context, e *Entry, why error, now time.Time, most int) error {
	k := letterKey{e.Schema.Table, string(e.Key)}
	d := &Letter{
		ID: k.id(), Schema: k.table.Schema, Table: k.table.Name, Op: e.Op.String(), Key: slices.Clone(e.Key), Row: slices.Clone(e.Row),
		SchemaID: e.Schema.ID, Stamp: e.Stamp, Origin: e.Log.Origin, Epoch: e.Log.Epoch, Position: string(e.Position),
		Error: why.Error(), Since: now.UTC(), Last: now.UTC(), Attempts: 1,
	}
	l.mu.Lock()
	old := l.all[k]
	size := l.bytes + len(d.Row)
	n := len(l.all) + 1
	if old != nil {
		size, n = size-len(old.Row), n-1
		if old.Stamp == d.Stamp {
			d.Since, d.Attempts = old.Since, old.Attempts+1
		}
	}
	l.mu.Unlock()
	if n > most || size > maxLetterBytes {
		return errFull
	}
	text, err := json.Marshal(d)
	if err != nil {
		return err
	}
	if err := l.save(ctx, map[string][]byte{d.ID: text}); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all[k], l.bytes = d, size
	return nil
}

// failed takes note of a replay that was rejected.
func (l *letters) failed(ctx context.Context, k letterKey, why error, now time.Time) error {
	l.mu.Lock()
	d := l.all[k]
	if d == nil {
		l.mu.Unlock()
		return nil
	}
	next := *d
	l.mu.Unlock()
	next.Error, next.Last, next.Attempts = why.Error(), now.UTC(), next.Attempts+1
	text, err := json.Marshal(&next)
	if err != nil {
		return err
	}
	if err := l.save(ctx, map[string][]byte{next.ID: text}); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all[k] = &next
	return nil
}

// drop forgets letters.
func (l *letters) drop(ctx context.Context, keys map[letterKey]bool) error {
	ids := map[string][]byte{}
	for k := range keys {
		ids[k.id()] = nil
	}
	if err := l.save(ctx, ids); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for k := range keys {
		if d := l.all[k]; d != nil {
			l.bytes -= len(d.Row)
			delete(l.all, k)
		}
	}
	return nil
}

func (l *letters) save(ctx context.Context, values map[string][]byte) error {
	tx, err := l.store.Begin(ctx)
	if err != nil {
		return fmt.Errorf("keeping dead letters: %w", err)
	}
	defer tx.Rollback()
	for id, v := range values {
		if err := tx.SetMeta(l.prefix+id, v); err != nil {
			return fmt.Errorf("keeping dead letters: %w", err)
		}
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("keeping dead letters: %w", err)
	}
	return nil
}

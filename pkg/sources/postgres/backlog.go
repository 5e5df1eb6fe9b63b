package postgres

import (
	"encoding/binary"
	"errors"
	"io"
	"maps"
	"slices"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/engine/spill"
)

// backlog keeps what happens to tables while a baseline of them is read, in
// memory up to a bound and then in a scratch file.
type backlog struct {
	scratch *spill.Dir
	file    *spill.File
	schemas map[*engine.Schema]uint32 // by order of use
	byOrder []*engine.Schema
	head    []byte
}

const (
	backlogMemory = 1 << 20
	// smallBacklog is how much may be left to do between two transactions.
	smallBacklog = 256 << 10
	// replayRun is how many changes are given to a baseline at once.
	replayRun = 512
)

func newBacklog(scratch *spill.Dir) *backlog {
	return &backlog{scratch: scratch, file: scratch.New(backlogMemory), schemas: map[*engine.Schema]uint32{}}
}

func (b *backlog) close() { b.file.Close() }

// add keeps a change of the transaction that ends at lsn.
func (b *backlog) add(lsn engine.LSN, c *engine.Change) error {
	n, ok := b.schemas[c.Schema]
	if !ok {
		n = uint32(len(b.byOrder))
		b.schemas[c.Schema] = n
		b.byOrder = append(b.byOrder, c.Schema)
	}
	h := binary.AppendUvarint(b.head[:0], uint64(lsn))
	h = append(h, byte(c.Op))
	if c.Partial {
		h[len(h)-1] |= 0x80
	}
	h = binary.AppendUvarint(h, uint64(n))
	h = binary.AppendUvarint(h, uint64(len(c.Key)))
	h = binary.AppendUvarint(h, uint64(len(c.OldKey)))
	if c.OldKey != nil {
		h = append(h, 1)
	} else {
		h = append(h, 0)
	}
	b.head = h
	return b.file.Append(h, c.Key, c.OldKey, c.Row)
}

// take returns what has been kept, and keeps on with nothing; nil if that is
// little.
func (b *backlog) take() *backlog {
	if b.file.Size() <= smallBacklog {
		return nil
	}
	old := &backlog{file: b.file, schemas: maps.Clone(b.schemas), byOrder: slices.Clone(b.byOrder)}
	b.file = b.scratch.New(backlogMemory)
	return old
}

var errBacklog = errors.New("what was kept of a table's changes cannot be read back")

// replay gives a baseline what was kept of transactions after a position.
func (b *backlog) replay(after engine.LSN, w engine.BaselineWriter) error {
	var txs []engine.Transaction
	count := 0
	flush := func() error {
		if count == 0 {
			return nil
		}
		err := w.Apply(txs)
		txs, count = txs[:0], 0
		return err
	}
	for r := b.file.Reader(); ; {
		rec, err := r.Next()
		if err == io.EOF {
			return flush()
		}
		if err != nil {
			return err
		}
		lsn, c, err := b.decode(slices.Clone(rec))
		if err != nil {
			return err
		}
		if lsn <= after {
			continue
		}
		if count >= replayRun && c.OldKey == nil { // a moved row goes with its delete
			if err := flush(); err != nil {
				return err
			}
		}
		if n := len(txs); n == 0 || txs[n-1].Major != uint64(lsn) {
			txs = append(txs, engine.Transaction{Position: lsn.Position(), Major: uint64(lsn)})
		}
		t := &txs[len(txs)-1]
		if t.Changes = append(t.Changes, c); !slices.Contains(t.Schemas, c.Schema) {
			t.Schemas = append(t.Schemas, c.Schema)
		}
		count++
	}
}

func (b *backlog) decode(rec []byte) (engine.LSN, engine.Change, error) {
	next := func() uint64 {
		v, n := binary.Uvarint(rec)
		if n <= 0 {
			rec = nil
			return 0
		}
		rec = rec[n:]
		return v
	}
	lsn := engine.LSN(next())
	if len(rec) == 0 {
		return 0, engine.Change{}, errBacklog
	}
	op := rec[0]
	rec = rec[1:]
	schema, key, oldKey := next(), next(), next()
	if len(rec) == 0 || schema >= uint64(len(b.byOrder)) || key+oldKey > uint64(len(rec)-1) {
		return 0, engine.Change{}, errBacklog
	}
	moved := rec[0] == 1
	rec = rec[1:]
	c := engine.Change{Op: engine.Op(op &^ 0x80), Partial: op&0x80 != 0, Schema: b.byOrder[schema]}
	c.Key, rec = rec[:key:key], rec[key:]
	if moved {
		c.OldKey = rec[:oldKey:oldKey]
	}
	if rec = rec[oldKey:]; c.Op == engine.OpPut {
		c.Row = rec
	}
	return lsn, c, nil
}

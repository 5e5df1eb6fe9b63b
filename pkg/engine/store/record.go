package store

import (
	"encoding/binary"
	"sync"
	"sync/atomic"

	"github.com/tributary-dev/tributary/pkg/engine"
)

// A record in a slab is
//
//	uvarint(len) key uvarint(2*shape + deleted) uvarint(time) uvarint(major)
//	uvarint(minor) [uvarint(len) row]
//
// where shape stands for the stamp's log and the schema (see shapes), and the
// row is left out of a tombstone.

// maxRecord bounds a key and row together: PostgreSQL has no value above 1 GiB,
// and offsets into slabs have 32 bits.
const maxRecord = 3 << 30

// maxHeader is the most that a record takes beside its key and row.
const maxHeader = 6 * binary.MaxVarintLen64

func appendRecord(dst []byte, r *engine.Record, shape uint32) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(r.Key)))
	dst = append(dst, r.Key...)
	form := uint64(shape) << 1
	if r.Deleted {
		form |= 1
	}
	dst = binary.AppendUvarint(dst, form)
	dst = binary.AppendUvarint(dst, uint64(r.Stamp.Time))
	dst = binary.AppendUvarint(dst, r.Stamp.Version.Major)
	dst = binary.AppendUvarint(dst, uint64(r.Stamp.Version.Minor))
	if !r.Deleted {
		dst = binary.AppendUvarint(dst, uint64(len(r.Row)))
		dst = append(dst, r.Row...)
	}
	return dst
}

// keyOf returns the key of the record at the front of b, and its length with
// the number before it.
func keyOf(b []byte) (key []byte, size int) {
	if n := int(b[0]); n < 0x80 {
		return b[1 : 1+n : 1+n], 1 + n
	}
	n, w := binary.Uvarint(b)
	size = w + int(n)
	return b[w:size:size], size
}

// entry is a record as it lies in a slab.
type entry struct {
	key, row []byte
	shape    uint32
	deleted  bool
	time     uint64
	version  engine.Version
	size     int // of the whole record
}

func decode(b []byte) (e entry) {
	e.key, e.size = keyOf(b)
	form := e.next(b)
	e.shape, e.deleted = uint32(form>>1), form&1 != 0
	e.time = e.next(b)
	e.version.Major = e.next(b)
	e.version.Minor = uint32(e.next(b))
	if !e.deleted {
		n := int(e.next(b))
		e.row = b[e.size : e.size+n : e.size+n]
		e.size += n
	}
	return e
}

// next reads the number that follows what of b has been read.
func (e *entry) next(b []byte) uint64 {
	v, n := binary.Uvarint(b[e.size:])
	e.size += n
	return v
}

// record fills r from e. r shares the slab's memory.
func (e *entry) record(r *engine.Record, sh *shape) {
	*r = engine.Record{Schema: sh.schema, Key: e.key, Row: e.row, Deleted: e.deleted, Stamp: engine.Stamp{
		Time: engine.Time(e.time), Origin: sh.log.Origin, Epoch: sh.log.Epoch, Version: e.version,
	}}
}

// prefix returns the first eight bytes of a key as a number that orders as
// they do.
func prefix(key []byte) uint64 {
	if len(key) >= 8 {
		return binary.BigEndian.Uint64(key)
	}
	var b [8]byte
	copy(b[:], key)
	return binary.BigEndian.Uint64(b[:])
}

// shape is what many records share: the log of their stamp, and their schema.
type shape struct {
	log    engine.LogID
	schema *engine.Schema
}

// shapes numbers the shapes of a store's records. Numbers are never given
// twice. It is safe for concurrent use; reading takes no lock.
type shapes struct {
	all atomic.Pointer[[]shape] // only ever appended to

	mu     sync.Mutex
	byAddr map[shape]uint32     // by the schema's address: the fast way
	byForm map[shapeForm]uint32 // by what it says
	held   []bool               // by number: a record has had it
	wrote  map[tableOrigin]struct{}
}

type shapeForm struct {
	log  engine.LogID
	id   uint32
	form uint64
}

type tableOrigin struct {
	table  engine.TableName
	origin string
}

// maxAddrs bounds byAddr: callers may make a new Schema for every record.
const maxAddrs = 4096

func newShapes() *shapes {
	s := &shapes{byAddr: map[shape]uint32{}, byForm: map[shapeForm]uint32{}, wrote: map[tableOrigin]struct{}{}}
	s.all.Store(&[]shape{})
	return s
}

func (s *shapes) at(n uint32) *shape { return &(*s.all.Load())[n] }

// find is at for a number from outside; nil if it was never given.
func (s *shapes) find(n uint64) *shape {
	if all := *s.all.Load(); n < uint64(len(all)) {
		return &all[n]
	}
	return nil
}

// put gives the next number to a shape that has been given one before.
func (s *shapes) put(sh shape) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.holds(s.add(sh, shapeForm{sh.log, sh.schema.ID, sh.schema.Fingerprint()})) // or it may
}

// add gives the next number to a shape. Callers hold mu.
func (s *shapes) add(sh shape, form shapeForm) uint32 {
	all := append(*s.all.Load(), sh)
	s.all.Store(&all)
	n := uint32(len(all) - 1)
	s.byForm[form] = n
	s.held = append(s.held, false)
	return n
}

// holds notes that a record has a shape. Callers hold mu.
func (s *shapes) holds(n uint32) {
	if !s.held[n] {
		s.held[n] = true
		sh := s.at(n)
		s.wrote[tableOrigin{sh.schema.Table, sh.log.Origin}] = struct{}{}
	}
}

// mayHold reports whether a record of a table can be of an origin.
func (s *shapes) mayHold(table engine.TableName, origin string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.wrote[tableOrigin{table, origin}]
	return ok
}

// number returns the number of a shape, giving it one if it is new. record says that it is for a
// record.
func (s *shapes) number(log engine.LogID, schema *engine.Schema, record bool) (n uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer func() {
		if record {
			s.holds(n)
		}
	}()
	addr := shape{log, schema}
	if n, ok := s.byAddr[addr]; ok {
		return n
	}
	form := shapeForm{log, schema.ID, schema.Fingerprint()}
	n, known := s.byForm[form]
	if !known {
		n = s.add(addr, form)
	}
	if len(s.byAddr) >= maxAddrs {
		clear(s.byAddr)
	}
	s.byAddr[addr] = n
	return n
}

// hold notes that the records of a stage are the state's.
func (s *shapes) hold(staged map[uint32]struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for n := range staged {
		s.holds(n)
	}
}

// shapeCache remembers the last shape of one writer.
type shapeCache struct {
	last   shape
	n      uint32
	record bool
	staged map[uint32]struct{} // of a stage: what its records have; nil of others
}

// number returns the number of a shape.
func (c *shapeCache) number(s *shapes, log engine.LogID, schema *engine.Schema) uint32 {
	return c.give(s, log, schema, false)
}

// forRecord returns the number of a shape that a record is to have.
func (c *shapeCache) forRecord(s *shapes, log engine.LogID, schema *engine.Schema) uint32 {
	return c.give(s, log, schema, true)
}

func (c *shapeCache) give(s *shapes, log engine.LogID, schema *engine.Schema, record bool) uint32 {
	if c.last.schema != schema || c.last.log != log || record && !c.record {
		c.last, c.n, c.record = shape{log, schema}, s.number(log, schema, record && c.staged == nil), record
		if c.staged != nil {
			c.staged[c.n] = struct{}{}
		}
	}
	return c.n
}

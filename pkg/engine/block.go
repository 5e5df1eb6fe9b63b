package engine

import (
	"encoding/binary"
	"fmt"
	"slices"
)

// MaxBlock is the size in bytes past which a block takes no further record. A
// block is larger only if a single record is.
const MaxBlock = 60 << 10

// Block is an immutable run of a log's records: whole transactions, or one
// numbered part of a transaction that is larger than a block. It is encoded
// once, kept by the store, and shared by all readers.
//
//	payload  = (transaction | part)*
//	transaction = begin (change | note)*
//	begin    = 0x01 uvarint(len) position uvarint(major) uvarint(time) uvarint(changes)
//	change   = tag [stamp] uvarint(schema) body
//	tag      = 0x02 put | 0x03 delete | 0x04 truncate, + 0x80 if a stamp follows
//	stamp    = uvarint(len) origin uvarint(epoch) uvarint(time) uvarint(major) uvarint(minor)
//	put      = uvarint(len) key uvarint(len) row
//	delete   = uvarint(len) key
//	note     = 0x05 uvarint(len) note, which is not counted as a change
//
// A change without a stamp has its transaction's log, time and major, and as
// minor its index in the transaction, from 1. A part after the first starts
// with its transaction's begin again, with the number of changes that came
// before it in place of the total (see Part).
type Block struct {
	Prev     Position // position before the first transaction in it
	Position Position // end of the last transaction in it
	Time     Time     // of the last transaction in it
	Changes  int
	// Part numbers the parts of a transaction from 0. Last is true on its last
	// part and on every block of whole transactions.
	Part    uint32
	Last    bool
	Schemas []*Schema // first used in this block
	// Others are the schemas of other logs that changes in it are stamped with: all
	// of them, in every block, and perhaps more.
	Others  []LogSchema
	Ends    []End // end of each transaction in it, in order
	Payload []byte
	// Behind are the tables that Position is ahead of, in a block that comes to a node; nil
	// if they are those of the place before. A Trail keeps them, and not the log.
	Behind map[TableName]Reached
}

// LogSchema is a schema and the log that it is of.
type LogSchema struct {
	Log    LogID
	Schema *Schema
}

// End is where a transaction ends in a block.
type End struct {
	Position Position
	Offset   int // into Payload, just past the transaction
	Changes  int // up to here, within the block
}

// After returns the block without the transactions at or before pos, sharing
// its memory; ok is false if nothing is left. pos must be b.Prev or the end of
// a transaction in b for the result to follow on from it.
func (b *Block) After(pos Position, compare Comparator) (rest *Block, ok bool) {
	if compare(pos, b.Prev) <= 0 {
		return b, true
	}
	if compare(pos, b.Position) >= 0 {
		return nil, false
	}
	n := 0 // transactions at or before pos
	for n < len(b.Ends) && compare(b.Ends[n].Position, pos) <= 0 {
		n++
	}
	if n == 0 {
		return b, true
	}
	e := b.Ends[n-1]
	r := *b
	r.Prev, r.Payload, r.Changes = e.Position, b.Payload[e.Offset:], b.Changes-e.Changes
	r.Ends = make([]End, 0, len(b.Ends)-n)
	for _, f := range b.Ends[n:] {
		r.Ends = append(r.Ends, End{f.Position, f.Offset - e.Offset, f.Changes - e.Changes})
	}
	return &r, true
}

const (
	tagBegin    = 0x01
	tagPut      = 0x02
	tagDelete   = 0x03
	tagTruncate = 0x04
	tagNote     = 0x05
	tagStamped  = 0x80
)

// BlockBuilder packs transactions of one log into blocks.
type BlockBuilder struct {
	log  LogID
	cur  *Block
	done []*Block
	prev Position

	// Of the transaction being added.
	t       *Transaction
	start   int  // its offset in the current block
	schemas int  // of the block, that come before its own
	n       int  // changes added
	any     bool // a change or a note has been added
}

// NewBlockBuilder returns a builder for the transactions of log that follow prev.
func NewBlockBuilder(log LogID, prev Position) *BlockBuilder {
	return &BlockBuilder{log: log, prev: prev}
}

// Add appends a transaction whose changes are complete: no unchanged columns,
// every stamp filled in.
func (w *BlockBuilder) Add(t *Transaction) {
	first := 0
	if len(t.Changes) > 0 {
		first = t.Changes[0].room()
	}
	w.Begin(t, len(t.Changes), first)
	for i := range t.Changes {
		w.Change(&t.Changes[i])
	}
	w.End()
}

// Begin starts a transaction of n changes, 0 where that is not known, of which
// the first takes about so much room. Change adds each of them, and End ends it.
// t must stay as it is until then; its Changes are not looked at.
func (w *BlockBuilder) Begin(t *Transaction, n, first int) {
	if w.cur != nil {
		if n := len(w.cur.Payload); n > MaxBlock*3/4 || n+beginRoom(t)+first > MaxBlock {
			w.flush()
		}
	}
	if w.cur == nil {
		w.open(w.prev, 0, 64+n*128)
	}
	w.t, w.n, w.any, w.start, w.schemas = t, 0, false, len(w.cur.Payload), len(w.cur.Schemas)
	w.cur.Schemas = append(w.cur.Schemas, t.Schemas...)
	w.begin(t, n)
}

// Change adds a change of the transaction that Begin started.
func (w *BlockBuilder) Change(c *Change) {
	w.fit(c.room())
	w.change(w.t, c, w.n)
	w.n++
}

// Note adds a note to the transaction that Begin started.
func (w *BlockBuilder) Note(n *Note) {
	b := AppendNote(nil, n)
	w.fit(len(b) + 16)
	w.cur.Payload = append(binary.AppendUvarint(append(w.cur.Payload, tagNote), uint64(len(b))), b...)
}

// fit makes room for the transaction's next change or note.
func (w *BlockBuilder) fit(room int) {
	if w.any && len(w.cur.Payload)+room > MaxBlock {
		if w.start > 0 {
			w.carve(w.start, w.schemas)
			w.start = 0
		}
		if len(w.cur.Payload) > MaxBlock*3/4 || len(w.cur.Payload)+room > MaxBlock {
			w.split(w.t, w.n)
		}
	}
	w.any = true
}

// End ends the transaction that Begin started.
func (w *BlockBuilder) End() {
	t := w.t
	w.t = nil
	w.cur.Position, w.cur.Time = t.Position, t.Time
	w.cur.Ends = append(w.cur.Ends, End{t.Position, len(w.cur.Payload), w.cur.Changes})
	w.prev = t.Position
	if w.cur.Part > 0 {
		w.flush()
	}
}

// room is about what a change takes in a block, and not less.
func (c *Change) room() int { return len(c.Key) + len(c.Row) + len(c.Stamp.Origin) + 64 }

func beginRoom(t *Transaction) int { return len(t.Position) + 64 }

// carve moves the transaction being added, from offset start of the current
// block on, to a block of its own: it turned out not to fit beside those before
// it. The block's first schemas are theirs.
func (w *BlockBuilder) carve(start, schemas int) {
	head := w.cur
	changes := head.Ends[len(head.Ends)-1].Changes
	w.open(head.Position, 0, MaxBlock)
	w.cur.Payload = append(w.cur.Payload, head.Payload[start:]...)
	w.cur.Changes = head.Changes - changes
	w.cur.Schemas = append(w.cur.Schemas, head.Schemas[schemas:]...)
	w.cur.Others = slices.Clone(head.Others)
	head.Payload, head.Changes, head.Schemas = head.Payload[:start], changes, head.Schemas[:schemas:schemas]
	w.finish(head)
}

// split ends the current block as a part of t, of which it has the changes up
// to the done-th.
func (w *BlockBuilder) split(t *Transaction, done int) {
	b := w.cur
	b.Last, b.Position, b.Time = false, t.Position, t.Time
	w.finish(b)
	w.open(b.Prev, b.Part+1, MaxBlock)
	w.begin(t, done)
}

func (w *BlockBuilder) open(prev Position, part uint32, size int) {
	w.cur = &Block{Prev: prev, Part: part, Last: true, Payload: make([]byte, 0, min(size, MaxBlock))}
}

func (w *BlockBuilder) flush() {
	if w.cur != nil {
		w.finish(w.cur)
		w.cur = nil
	}
}

// finish adds a block to those that are done, without the room it did not need.
func (w *BlockBuilder) finish(b *Block) {
	if cap(b.Payload)-len(b.Payload) > len(b.Payload)/4+256 {
		b.Payload = append(make([]byte, 0, len(b.Payload)), b.Payload...)
	}
	w.done = append(w.done, b)
}

// Blocks returns what has been packed and starts afresh. Within a transaction it
// returns the blocks that are full, and the transaction goes on.
func (w *BlockBuilder) Blocks() []*Block {
	if w.t == nil {
		w.flush()
	}
	d := w.done
	w.done = nil
	return d
}

func (w *BlockBuilder) begin(t *Transaction, n int) {
	w.cur.Payload = appendBegin(w.cur.Payload, &TxHeader{t.Position, t.Major, t.Time, n})
}

func (w *BlockBuilder) change(t *Transaction, c *Change, i int) {
	implied := c.Stamp.Epoch == w.log.Epoch && c.Stamp.Origin == w.log.Origin && c.Stamp.Time == t.Time &&
		c.Stamp.Version == Version{t.Major, uint32(i + 1)}
	w.cur.Payload = appendChange(w.cur.Payload, c, implied)
	w.cur.Changes++
	if !implied {
		w.cur.uses(w.log, c)
	}
}

// uses notes the schema of a change that is stamped in another log.
func (b *Block) uses(log LogID, c *Change) {
	of := c.Stamp.Log()
	if of == log {
		return
	}
	for i := len(b.Others) - 1; i >= 0; i-- {
		if o := &b.Others[i]; o.Schema.ID == c.Schema.ID && o.Log == of {
			return
		}
	}
	b.Others = append(b.Others, LogSchema{of, c.Schema})
}

func appendBegin(p []byte, h *TxHeader) []byte {
	p = append(p, tagBegin)
	p = binary.AppendUvarint(p, uint64(len(h.Position)))
	p = append(p, h.Position...)
	p = binary.AppendUvarint(p, h.Major)
	p = binary.AppendUvarint(p, uint64(h.Time))
	return binary.AppendUvarint(p, uint64(h.Changes))
}

// appendChange adds a change; implied says that its stamp follows from its place.
func appendChange(p []byte, c *Change, implied bool) []byte {
	tag := byte(tagPut)
	switch c.Op {
	case OpDelete:
		tag = tagDelete
	case OpTruncate:
		tag = tagTruncate
	}
	if implied {
		p = append(p, tag)
	} else {
		p = append(p, tag|tagStamped)
		p = binary.AppendUvarint(p, uint64(len(c.Stamp.Origin)))
		p = append(p, c.Stamp.Origin...)
		p = binary.AppendUvarint(p, uint64(c.Stamp.Epoch))
		p = binary.AppendUvarint(p, uint64(c.Stamp.Time))
		p = binary.AppendUvarint(p, c.Stamp.Version.Major)
		p = binary.AppendUvarint(p, uint64(c.Stamp.Version.Minor))
	}
	p = binary.AppendUvarint(p, uint64(c.Schema.ID))
	if c.Op != OpTruncate {
		p = binary.AppendUvarint(p, uint64(len(c.Key)))
		p = append(p, c.Key...)
	}
	if c.Op == OpPut {
		p = binary.AppendUvarint(p, uint64(len(c.Row)))
		p = append(p, c.Row...)
	}
	return p
}

// BlockReader reads a block's payload, record by record, without copying.
type BlockReader struct {
	log     LogID
	p       []byte
	schema  func(LogID, uint32) *Schema
	of      LogID // log that Change.Schema is of
	part    bool  // the next begin continues a transaction
	origin  string
	Begin   TxHeader // of the transaction being read
	Change  Change   // the last change read; shares the payload's memory
	minor   uint32
	err     error
	IsBegin bool  // the last record was a begin
	notes   bool  // notes are not left out
	Note    *Note // that was read last, or nil
	size    int
}

// Notes makes the reader give notes too.
func (r *BlockReader) Notes() *BlockReader {
	r.notes = true
	return r
}

// TxHeader is what a block says of a transaction.
type TxHeader struct {
	Position Position
	Major    uint64
	Time     Time
	Changes  int // in the whole transaction, 0 where not known; before this part, for a part after the first
}

// Reader returns a reader of the block's records. schema resolves schema IDs of
// a log; the log of a change is the one its stamp names.
func (b *Block) Reader(log LogID, schema func(LogID, uint32) *Schema) *BlockReader {
	return &BlockReader{log: log, p: b.Payload, schema: schema, part: b.Part > 0, size: len(b.Payload)}
}

// Err returns what ended the reading early, or nil.
func (r *BlockReader) Err() error { return r.err }

// Offset returns how many bytes of the payload have been read.
func (r *BlockReader) Offset() int { return r.size - len(r.p) }

// Next reads the next record: a transaction's begin (IsBegin) or a change. It
// returns false at the end and at damage (see Err).
func (r *BlockReader) Next() bool {
	r.Note = nil
	if r.err != nil || len(r.p) == 0 {
		return false
	}
	tag := r.p[0]
	r.p = r.p[1:]
	for tag == tagNote {
		b := r.bytes()
		if r.notes && r.err == nil {
			return r.note(b)
		}
		if r.err != nil || len(r.p) == 0 {
			return false
		}
		tag, r.p = r.p[0], r.p[1:]
	}
	r.IsBegin = tag == tagBegin
	if r.IsBegin {
		r.Begin = TxHeader{Position: Position(r.bytes()), Major: r.uvarint(), Time: Time(r.uvarint()), Changes: int(r.uint32())}
		r.minor = 0
		if r.part {
			r.minor, r.part = uint32(r.Begin.Changes), false
		}
		return r.err == nil
	}
	if r.Begin.Position == "" {
		return r.fail("a change comes before its transaction's begin")
	}
	r.minor++
	c := &r.Change
	c.Stamp = Stamp{r.Begin.Time, r.log.Origin, r.log.Epoch, Version{r.Begin.Major, r.minor}}
	if tag&tagStamped != 0 {
		if o := r.bytes(); string(o) != r.origin {
			r.origin = string(o)
		}
		c.Stamp = Stamp{Origin: r.origin, Epoch: Epoch(r.uvarint()), Time: Time(r.uvarint()), Version: Version{r.uvarint(), r.uint32()}}
	}
	id := r.uint32()
	if r.err != nil {
		return false
	}
	if of := c.Stamp.Log(); c.Schema == nil || c.Schema.ID != id || r.of != of {
		if c.Schema, r.of = r.schema(of, id), of; c.Schema == nil {
			return r.fail(fmt.Sprintf("schema %d of log %s is not known", id, of))
		}
	}
	c.Key, c.Row = nil, nil
	switch tag &^ tagStamped {
	case tagPut:
		c.Op, c.Key, c.Row = OpPut, r.bytes(), r.bytes()
	case tagDelete:
		c.Op, c.Key = OpDelete, r.bytes()
	case tagTruncate:
		c.Op = OpTruncate
	default:
		return r.fail(fmt.Sprintf("unknown record tag %#x", tag))
	}
	return r.err == nil
}

func (r *BlockReader) note(b []byte) bool {
	if r.IsBegin = false; r.Begin.Position == "" {
		return r.fail("a note comes before its transaction's begin")
	}
	n, err := DecodeNote(b)
	if err != nil {
		r.err = err
		return false
	}
	r.Note = n
	return true
}

func (r *BlockReader) fail(why string) bool {
	if r.err == nil {
		r.err = fmt.Errorf("%w: block of log %s: %s", ErrCorruptRow, r.log, why)
	}
	return false
}

func (r *BlockReader) uvarint() uint64 {
	v, n := binary.Uvarint(r.p)
	if n <= 0 {
		r.fail("a number is cut short")
		r.p = nil
		return 0
	}
	r.p = r.p[n:]
	return v
}

func (r *BlockReader) bytes() []byte {
	n := r.uvarint()
	if n > uint64(len(r.p)) {
		r.fail("a value is cut short")
		r.p = nil
		return nil
	}
	v := r.p[:n:n]
	r.p = r.p[n:]
	return v
}

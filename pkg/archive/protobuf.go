package archive

import (
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"io"
	"runtime"
	"sync"

	"github.com/cespare/xxhash/v2"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/tributary-dev/tributary/pkg/engine"
)

// The protobuf format: a magic, and then blocks, whose contents are the protobuf messages of
// docs/archive-format.md.
const (
	magic       = "TRIBARC\n"
	blockHeader = 24
	// maxPayload is the size of a block's contents past which it takes no further record.
	maxPayload = 2 << 20

	blockHead = 1 // Header
	blockData = 2 // Block, compressed
	blockEnd  = 3 // Footer
)

// blockSum is the checksum of a block: it depends on the artifact that the block is part of, and on
// the block's place in it.
func blockSum(artifact *[32]byte, head, stored []byte) uint64 {
	var d xxhash.Digest
	d.Reset()
	_, _ = d.Write(artifact[:])
	_, _ = d.Write(head[:16])
	_, _ = d.Write(stored)
	return d.Sum64()
}

// appendBlockHeader adds a block's header to dst.
func appendBlockHeader(dst []byte, kind byte, number uint32, artifact *[32]byte, stored []byte, size int) []byte {
	at := len(dst)
	dst = append(dst, kind, 0, 0, 0)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(stored)))
	dst = binary.LittleEndian.AppendUint32(dst, uint32(size))
	dst = binary.LittleEndian.AppendUint32(dst, number)
	return binary.LittleEndian.AppendUint64(dst, blockSum(artifact, dst[at:at+16], stored))
}

// Fields of the messages.
const (
	fieldLog         = 1 // of Block
	fieldSchema      = 2
	fieldTransaction = 3
	fieldRecord      = 4

	recordOp     = 1 // of Record
	recordLog    = 2
	recordTime   = 3
	recordMajor  = 4
	recordMinor  = 5
	recordSchema = 6
	recordVia    = 7
	recordKey    = 8
	recordRow    = 9
	recordBegins = 10
)

// protobufEncoder writes the protobuf format. Blocks are compressed on goroutines of their own
// and written in order by one more; stop waits for them.
type protobufEncoder struct {
	w        io.Writer
	zstd     *compressor
	limit    int // of a block's contents
	artifact [32]byte
	raw      []byte
	number   uint32
	logs     table[engine.LogID]
	prev     recordState
	open     []byte // the transaction that is open
	begins   bool   // the next record is the first of it, or of its part in this block
	goesOn   bool   // it began in a block before
	body     []byte

	queue   chan *packed
	done    chan struct{}
	mu      sync.Mutex
	err     error
	sum     hash.Hash // of all before the footer
	stopped bool
}

// recordState is what a record leaves out where it is as in the one before.
type recordState struct {
	log, via    int
	time, major uint64
	minor       uint32
	schema      uint32
}

// packed is a block on its way.
type packed struct {
	raw, out []byte
	number   uint32
	ready    chan struct{}
}

func newProtobufEncoder(w io.Writer, h *header, z *compressor, limit int) (*protobufEncoder, error) {
	p := &protobufEncoder{
		w: w, zstd: z, limit: limit, raw: make([]byte, 0, limit+limit/8),
		queue: make(chan *packed, runtime.GOMAXPROCS(0)), done: make(chan struct{}), sum: sha256.New(),
	}
	msg := appendHeader(nil, h)
	out := append([]byte(magic), appendBlockHeader(nil, blockHead, 0, &p.artifact, msg, len(msg))...)
	out = append(out, msg...)
	p.artifact = sha256.Sum256(msg)
	p.number = 1
	go p.run()
	return p, p.write(out)
}

func (p *protobufEncoder) write(b []byte) error {
	_, _ = p.sum.Write(b)
	_, err := p.w.Write(b)
	return err
}

// run writes blocks in order, as they get ready.
func (p *protobufEncoder) run() {
	defer close(p.done)
	var out []byte
	for b := range p.queue {
		<-b.ready
		if p.failed() != nil {
			continue
		}
		out = appendBlockHeader(out[:0], blockData, b.number, &p.artifact, b.out, len(b.raw))
		err := p.write(out)
		if err == nil {
			err = p.write(b.out)
		}
		if err != nil {
			p.mu.Lock()
			p.err = err
			p.mu.Unlock()
		}
		blocks.Put(b)
	}
}

var blocks = sync.Pool{New: func() any { return &packed{} }}

func (p *protobufEncoder) failed() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

// flush hands the block that is being filled on.
func (p *protobufEncoder) flush() error {
	if err := p.failed(); err != nil {
		return err
	}
	if len(p.raw) == 0 {
		return nil
	}
	b := blocks.Get().(*packed)
	b.number, b.ready = p.number, make(chan struct{})
	b.raw, p.raw = p.raw, b.raw[:0]
	if cap(p.raw) > 4*p.limit {
		p.raw = nil // one large record was in it
	}
	p.number++
	p.prev = recordState{}
	go func(b *packed, ready chan struct{}) { // run waits for it
		b.out = p.zstd.all.EncodeAll(b.raw, b.out[:0])
		close(ready)
	}(b, b.ready)
	p.queue <- b
	return nil
}

func (p *protobufEncoder) room() error {
	if len(p.raw) < p.limit {
		return nil
	}
	if err := p.flush(); err != nil {
		return err
	}
	if p.open != nil && !p.begins {
		p.begins, p.goesOn = true, true
	}
	return nil
}

func (p *protobufEncoder) logNumber(log engine.LogID) int {
	n := len(p.logs.all)
	i := p.logs.number(log)
	if i == n {
		var m []byte
		m = appendString(m, 1, log.Origin)
		m = appendUint(m, 2, uint64(log.Epoch))
		p.raw = protowire.AppendTag(p.raw, fieldLog, protowire.BytesType)
		p.raw = protowire.AppendBytes(p.raw, m)
	}
	return i
}

func (p *protobufEncoder) schema(log engine.LogID, s *engine.Schema) error {
	if err := p.room(); err != nil {
		return err
	}
	m := appendUint(nil, 1, uint64(p.logNumber(log)))
	m = appendUint(m, 2, uint64(s.ID))
	m = appendString(m, 3, s.Table.Schema)
	m = appendString(m, 4, s.Table.Name)
	m = appendUint(m, 5, uint64(s.RelationOID))
	m = appendUint(m, 6, uint64(s.ReplicaIdentity))
	for _, c := range s.Columns {
		var d []byte
		d = appendString(d, 1, c.Name)
		d = appendUint(d, 2, uint64(int64(c.Number)))
		d = appendUint(d, 3, uint64(c.TypeOID))
		d = appendString(d, 4, c.TypeName)
		d = appendUint(d, 5, uint64(int64(c.TypeMod)))
		if c.Key {
			d = appendUint(d, 6, 1)
		}
		d = appendUint(d, 7, uint64(c.BaseOID))
		d = appendString(d, 8, c.BaseName)
		m = protowire.AppendTag(m, 7, protowire.BytesType)
		m = protowire.AppendBytes(m, d)
	}
	p.raw = protowire.AppendTag(p.raw, fieldSchema, protowire.BytesType)
	p.raw = protowire.AppendBytes(p.raw, m)
	return nil
}

func (p *protobufEncoder) begin(e *Entry) error {
	if err := p.room(); err != nil {
		return err
	}
	m := appendUint(nil, 1, uint64(p.logNumber(e.Log)))
	m = appendString(m, 2, string(e.Position))
	m = appendUint(m, 3, uint64(e.Time))
	m = appendUint(m, 4, e.Major)
	p.open, p.begins, p.goesOn = m[:len(m):len(m)], true, false
	return nil
}

func (p *protobufEncoder) record(e *Entry, implied bool) error {
	if err := p.room(); err != nil {
		return err
	}
	log := p.logNumber(e.Stamp.Log())
	via := log
	if p.open == nil && e.Log != (engine.LogID{}) { // of a transaction, it is known
		via = p.logNumber(e.Log)
	}
	if p.begins {
		t := p.open
		if p.goesOn {
			t = append(t, 5<<3, 1)
		}
		p.raw = protowire.AppendTag(p.raw, fieldTransaction, protowire.BytesType)
		p.raw = protowire.AppendBytes(p.raw, t)
	}
	m, prev := p.body[:0], &p.prev
	if e.Op != engine.OpPut {
		m = appendUint(m, recordOp, uint64(e.Op-engine.OpPut))
	}
	if log != prev.log {
		m = append(m, recordLog<<3)
		m = protowire.AppendVarint(m, uint64(log))
		prev.log = log
	}
	if t := uint64(e.Stamp.Time); t != prev.time {
		m = append(m, recordTime<<3)
		m = protowire.AppendVarint(m, protowire.EncodeZigZag(int64(t-prev.time)))
		prev.time = t
	}
	if v := e.Stamp.Version.Major; v != prev.major {
		m = append(m, recordMajor<<3)
		m = protowire.AppendVarint(m, protowire.EncodeZigZag(int64(v-prev.major)))
		prev.major = v
	}
	if v := e.Stamp.Version.Minor; v != prev.minor {
		m = append(m, recordMinor<<3)
		m = protowire.AppendVarint(m, protowire.EncodeZigZag(int64(v)-int64(prev.minor)))
		prev.minor = v
	}
	if id := e.Schema.ID; id != prev.schema {
		m = append(m, recordSchema<<3)
		m = protowire.AppendVarint(m, uint64(id))
		prev.schema = id
	}
	if via != log {
		m = append(m, recordVia<<3)
		m = protowire.AppendVarint(m, uint64(via)+1)
	}
	if !implied && e.Op != engine.OpTruncate {
		m = append(m, recordKey<<3|2)
		m = protowire.AppendBytes(m, e.Key)
	}
	if p.begins {
		m = append(m, recordBegins<<3, 1)
		p.begins = false
	}
	p.body = m // all but the row, which is not copied twice
	n := len(m)
	if e.Op == engine.OpPut {
		n += 1 + protowire.SizeBytes(len(e.Row))
	}
	raw := append(p.raw, fieldRecord<<3|2)
	raw = protowire.AppendVarint(raw, uint64(n))
	raw = append(raw, m...)
	if e.Op == engine.OpPut {
		raw = append(raw, recordRow<<3|2)
		raw = protowire.AppendBytes(raw, e.Row)
	}
	p.raw = raw
	return nil
}

func (p *protobufEncoder) end(c counts) error {
	if err := p.flush(); err != nil {
		return err
	}
	number := p.number
	p.stop()
	if p.err != nil {
		return p.err
	}
	m := appendUint(nil, 1, uint64(c.Puts))
	m = appendUint(m, 2, uint64(c.Deletes))
	m = appendUint(m, 3, uint64(c.Truncates))
	m = appendUint(m, 4, uint64(c.Transactions))
	m = protowire.AppendTag(m, 5, protowire.BytesType)
	m = protowire.AppendBytes(m, p.sum.Sum(nil))
	out := appendBlockHeader(nil, blockEnd, number, &p.artifact, m, len(m))
	_, err := p.w.Write(append(out, m...))
	return err
}

func (p *protobufEncoder) stop() {
	if !p.stopped {
		p.stopped = true
		close(p.queue)
	}
	<-p.done
}

func appendHeader(m []byte, h *header) []byte {
	m = appendUint(m, 1, Version)
	m = appendString(m, 2, h.Table.Schema)
	m = appendString(m, 3, h.Table.Name)
	m = appendString(m, 4, h.Archive)
	m = appendString(m, 5, h.ID)
	m = appendString(m, 6, string(h.Kind))
	m = appendUint(m, 7, h.Generation)
	m = appendUint(m, 8, h.Fence)
	m = appendString(m, 9, string(h.History))
	m = appendVector(m, 10, h.From)
	m = appendVector(m, 11, h.To)
	if h.Continues {
		m = appendUint(m, 12, 1)
	}
	return m
}

func appendVector(m []byte, field protowire.Number, v Vector) []byte {
	for _, c := range v {
		var d []byte
		d = appendString(d, 1, c.Log.Origin)
		d = appendUint(d, 2, uint64(c.Log.Epoch))
		d = appendString(d, 3, string(c.Position))
		d = appendUint(d, 4, uint64(c.Time))
		d = appendString(d, 5, c.Order)
		d = appendUint(d, 6, uint64(c.CompleteFrom))
		m = protowire.AppendTag(m, field, protowire.BytesType)
		m = protowire.AppendBytes(m, d)
	}
	return m
}

func appendUint(m []byte, field protowire.Number, v uint64) []byte {
	if v == 0 {
		return m
	}
	return protowire.AppendVarint(protowire.AppendTag(m, field, protowire.VarintType), v)
}

func appendString(m []byte, field protowire.Number, s string) []byte {
	if s == "" {
		return m
	}
	return protowire.AppendString(protowire.AppendTag(m, field, protowire.BytesType), s)
}

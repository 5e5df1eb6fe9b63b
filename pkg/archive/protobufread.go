package archive

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io"
	"math"
	"sync"

	"github.com/klauspost/compress/zstd"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/tributary-dev/tributary/pkg/engine"
)

// maxBlockSize bounds what a block claims to hold: no row can be larger.
const maxBlockSize = math.MaxInt32

// zstdReader decodes blocks. It holds nothing between them.
var zstdReader = sync.OnceValue(func() *zstd.Decoder {
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(0), zstd.WithDecodeAllCapLimit(true), zstd.WithDecoderMaxMemory(maxBlockSize))
	if err != nil {
		panic(err) // the options are constant
	}
	return d
})

type storedBlock struct {
	head   [blockHeader]byte
	kind   byte
	number uint32
	size   int
	stored []byte
	offset int64
	own    []byte // the memory of stored, where it is not the input's
	raw    []byte
	err    error
	ready  chan struct{} // it is unpacked, or err is set
}

// blockReader reads blocks and verifies them.
type blockReader struct {
	r        io.Reader
	mem      *memory // r, if that is in memory
	artifact [32]byte
	number   uint32
	offset   int64
}

// next reads a block into b, whose memory is used again.
func (r *blockReader) next(b *storedBlock) error {
	b.offset = r.offset
	head := b.head[:]
	if _, err := io.ReadFull(r.r, head); err != nil {
		return err
	}
	stored := binary.LittleEndian.Uint32(head[4:])
	b.kind, b.size, b.number = head[0], int(binary.LittleEndian.Uint32(head[8:])), binary.LittleEndian.Uint32(head[12:])
	switch {
	case b.kind < blockHead || b.kind > blockEnd || head[1]|head[2]|head[3] != 0:
		return fmt.Errorf("a block of unknown kind %d", b.kind)
	case b.number != r.number:
		return fmt.Errorf("it says that it is block %d", b.number)
	case stored > maxBlockSize || b.size > maxBlockSize:
		return fmt.Errorf("it says that it has %d bytes, and %d when unpacked", stored, b.size)
	}
	var err error
	if r.mem != nil {
		b.stored, err = r.mem.take(int(stored))
	} else {
		b.own, err = readN(r.r, b.own[:0], int(stored))
		b.stored = b.own
	}
	if err != nil {
		return err
	}
	if blockSum(&r.artifact, head, b.stored) != binary.LittleEndian.Uint64(head[16:]) {
		return errors.New("its checksum does not match: its bytes have changed, or it is of another artifact")
	}
	r.number++
	r.offset += blockHeader + int64(stored)
	return nil
}

// readN reads n bytes. It takes no more memory than there is to read.
func readN(r io.Reader, dst []byte, n int) ([]byte, error) {
	const step = 4 << 20
	for n > 0 {
		k := min(n, step)
		at := len(dst)
		if cap(dst)-at < k {
			dst = append(dst, make([]byte, k)...)
		}
		dst = dst[:at+k]
		if _, err := io.ReadFull(r, dst[at:]); err != nil {
			return dst, err
		}
		n -= k
	}
	return dst, nil
}

func (b *storedBlock) unpack() error {
	if cap(b.raw) < b.size {
		if b.size > 256*len(b.stored)+1<<20 && b.size > 64<<20 { // what is claimed is not to be believed before it is there
			z, err := zstd.NewReader(bytes.NewReader(b.stored), zstd.WithDecoderConcurrency(1))
			if err != nil {
				return err
			}
			defer z.Close()
			if b.raw, err = readN(z, b.raw[:0], b.size); err != nil {
				return fmt.Errorf("it does not unpack: %w", err)
			}
			if n, _ := z.Read(make([]byte, 1)); n != 0 {
				return errors.New("it unpacks to more than it says")
			}
			return nil
		}
		b.raw = make([]byte, 0, b.size)
	}
	raw, err := zstdReader().DecodeAll(b.stored, b.raw[:0:b.size])
	if err != nil {
		return fmt.Errorf("it does not unpack: %w", err)
	}
	if b.raw = raw; len(raw) != b.size {
		return fmt.Errorf("it unpacks to %d bytes, and says %d", len(raw), b.size)
	}
	return nil
}

type protobufDecoder struct {
	*decoding
	logs []engine.LogID
	prev recordState
	log  engine.LogID // of the transaction that is open

	// The schema of the last record, and what it goes by.
	schemaOf  *engine.Schema
	schemaLog int
	schemaID  uint32
}

// decodeProtobuf passes on what is in an artifact of the protobuf format.
func decodeProtobuf(in io.Reader, d *decoding) error {
	var m [len(magic)]byte
	if _, err := io.ReadFull(in, m[:]); err != nil {
		return d.corrupt(0, 0, 0, err)
	}
	if string(m[:]) != magic {
		return d.corrupt(0, 0, 0, fmt.Errorf("it is not an artifact in protobuf format: it begins with %q", m[:]))
	}
	r := &blockReader{r: in, offset: int64(len(magic))}
	r.mem, _ = in.(*memory)
	b := &storedBlock{}
	if err := r.next(b); err != nil {
		return d.corrupt(1, 0, b.offset, err)
	}
	if b.kind != blockHead {
		return d.corrupt(1, 0, b.offset, fmt.Errorf("it begins with a block of kind %d", b.kind))
	}
	if err := d.header(b.stored); err != nil {
		return d.corrupt(1, 0, b.offset, err)
	}
	if err := d.headed(); err != nil {
		return d.corrupt(1, 0, b.offset, err)
	}
	r.artifact = sha256.Sum256(b.stored)
	p := &protobufDecoder{decoding: d}
	var sum hash.Hash // of all before the footer
	if !d.verified {
		sum = sha256.New()
		sum.Write(m[:])
		sum.Write(b.head[:])
		sum.Write(b.stored)
	}

	// Blocks are read, verified and unpacked ahead of where they are passed on, each
	// unpacked on a goroutine of its own.
	free := make(chan *storedBlock, d.ahead())
	for range cap(free) {
		free <- &storedBlock{ready: make(chan struct{}, 1)}
	}
	ahead := make(chan *storedBlock, cap(free))
	stop := make(chan struct{})
	var g sync.WaitGroup
	defer func() { close(stop); g.Wait() }()
	g.Go(func() {
		for {
			var b *storedBlock
			select {
			case b = <-free:
			case <-stop:
				return
			}
			if b.err = r.next(b); b.err == nil {
				switch {
				case b.kind == blockHead:
					b.err = errors.New("a second header")
				case b.kind == blockEnd:
					b.err = footer(b, in, sum)
				case sum != nil:
					sum.Write(b.head[:])
					sum.Write(b.stored)
				}
			}
			last := b.err != nil || b.kind == blockEnd
			ahead <- b
			if last {
				b.ready <- struct{}{}
				return
			}
			g.Go(func() {
				b.err = b.unpack()
				b.ready <- struct{}{}
			})
		}
	})
	for n := 2; ; n++ {
		b := <-ahead
		<-b.ready
		err := b.err
		if err == nil && b.kind == blockEnd {
			var c counts
			if c, err = footerCounts(b.stored); err == nil {
				err = d.ended(c)
			}
			if err == nil {
				return nil
			}
		}
		if err == nil {
			err = p.block(b.raw)
		}
		if err != nil {
			return d.corrupt(n, 0, b.offset, err)
		}
		free <- b
	}
}

// footer verifies what comes last. sum is of all before it, or nil if that is known to be right.
func footer(b *storedBlock, in io.Reader, sum hash.Hash) error {
	var whole []byte
	err := fields(b.stored, func(n protowire.Number, v uint64, s []byte) error {
		if n == 5 {
			whole = s
		}
		return nil
	})
	if err != nil {
		return err
	}
	if sum != nil && !bytes.Equal(whole, sum.Sum(nil)) {
		return errors.New("the checksum of the whole does not match")
	}
	switch n, err := io.ReadFull(in, make([]byte, 1)); {
	case n > 0:
		return errors.New("there is more after its end")
	case err != io.EOF:
		return err
	}
	return nil
}

func footerCounts(m []byte) (c counts, err error) {
	err = fields(m, func(n protowire.Number, v uint64, _ []byte) error {
		switch n {
		case 1:
			c.Puts = int64(v)
		case 2:
			c.Deletes = int64(v)
		case 3:
			c.Truncates = int64(v)
		case 4:
			c.Transactions = int64(v)
		}
		return nil
	})
	return c, err
}

var errMessage = errors.New("it does not hold the message that it should")

// fields calls fn for each field of a message: v is the value of a number, and s of what
// has a length.
func fields(m []byte, fn func(n protowire.Number, v uint64, s []byte) error) error {
	for len(m) > 0 {
		num, typ, n := protowire.ConsumeTag(m)
		if n < 0 {
			return errMessage
		}
		m = m[n:]
		var v uint64
		var s []byte
		switch typ {
		case protowire.VarintType:
			v, n = protowire.ConsumeVarint(m)
		case protowire.BytesType:
			s, n = protowire.ConsumeBytes(m)
		default:
			n = protowire.ConsumeFieldValue(num, typ, m)
			num = 0
		}
		if n < 0 {
			return errMessage
		}
		if err := fn(num, v, s); err != nil {
			return err
		}
		m = m[n:]
	}
	return nil
}

// header reads the header.
func (d *decoding) header(m []byte) error {
	h := &d.head
	version := 0
	err := fields(m, func(n protowire.Number, v uint64, s []byte) error {
		switch n {
		case 1:
			version = int(v)
		case 2:
			h.Table.Schema = string(s)
		case 3:
			h.Table.Name = string(s)
		case 4:
			h.Archive = string(s)
		case 5:
			h.ID = string(s)
		case 6:
			h.Kind = Kind(s)
		case 7:
			h.Generation = v
		case 8:
			h.Fence = v
		case 9:
			h.History = History(s)
		case 10, 11:
			c, err := cursorOf(s)
			if err != nil {
				return err
			}
			if n == 10 {
				h.From = append(h.From, c)
			} else {
				h.To = append(h.To, c)
			}
		case 12:
			h.Continues = v != 0
		}
		return nil
	})
	if err != nil {
		return err
	}
	return d.version(version)
}

// version checks the version and what goes with it.
func (d *decoding) version(v int) error {
	if v != Version {
		return &VersionError{Where: fmt.Sprintf("%q in %s", d.key, d.where), Has: v, Known: Version}
	}
	if k := d.head.Kind; k != KindBase && k != KindDiff {
		return fmt.Errorf("it is of kind %q, which is neither base nor diff", k)
	}
	return errors.Join(d.head.From.check(), d.head.To.check())
}

func cursorOf(m []byte) (c Cursor, err error) {
	err = fields(m, func(n protowire.Number, v uint64, s []byte) error {
		switch n {
		case 1:
			c.Log.Origin = string(s)
		case 2:
			c.Log.Epoch = engine.Epoch(v)
		case 3:
			c.Position = engine.Position(s)
		case 4:
			c.Time = engine.Time(v)
		case 5:
			c.Order = string(s)
		case 6:
			c.CompleteFrom = engine.Time(v)
		}
		return nil
	})
	return c, err
}

// block passes on the contents of a block.
func (p *protobufDecoder) block(m []byte) error {
	p.prev = recordState{}
	return fields(m, func(n protowire.Number, _ uint64, s []byte) error {
		switch n {
		case fieldRecord:
			return p.record(s)
		case fieldTransaction:
			return p.transaction(s)
		case fieldSchema:
			return p.readSchema(s)
		case fieldLog:
			var l engine.LogID
			err := fields(s, func(n protowire.Number, v uint64, s []byte) error {
				switch n {
				case 1:
					l.Origin = string(s)
				case 2:
					l.Epoch = engine.Epoch(v)
				}
				return nil
			})
			p.logs = append(p.logs, l)
			return err
		}
		return nil
	})
}

func (p *protobufDecoder) logAt(i uint64) (engine.LogID, error) {
	if i >= uint64(len(p.logs)) {
		return engine.LogID{}, fmt.Errorf("log number %d did not come before it is used", i)
	}
	return p.logs[i], nil
}

func (p *protobufDecoder) transaction(m []byte) error {
	if p.head.History != Full {
		return errors.New("a transaction in an artifact that has none")
	}
	var log uint64
	goesOn := false
	e := &p.last
	e.Position, e.Time, e.Major = "", 0, 0
	err := fields(m, func(n protowire.Number, v uint64, s []byte) error {
		switch n {
		case 1:
			log = v
		case 2:
			e.Position = engine.Position(s)
		case 3:
			e.Time = engine.Time(v)
		case 4:
			e.Major = v
		case 5:
			goesOn = v != 0
		}
		return nil
	})
	if err != nil {
		return err
	}
	if !goesOn {
		p.counts.Transactions++
	}
	p.inTx = true
	p.log, err = p.logAt(log)
	return err
}

func (p *protobufDecoder) readSchema(m []byte) error {
	var log uint64
	s := &engine.Schema{}
	err := fields(m, func(n protowire.Number, v uint64, b []byte) error {
		switch n {
		case 1:
			log = v
		case 2:
			s.ID = uint32(v)
		case 3:
			s.Table.Schema = string(b)
		case 4:
			s.Table.Name = string(b)
		case 5:
			s.RelationOID = uint32(v)
		case 6:
			s.ReplicaIdentity = engine.ReplicaIdentity(v)
		case 7:
			var c engine.Column
			err := fields(b, func(n protowire.Number, v uint64, b []byte) error {
				switch n {
				case 1:
					c.Name = string(b)
				case 2:
					c.Number = int16(v)
				case 3:
					c.TypeOID = uint32(v)
				case 4:
					c.TypeName = string(b)
				case 5:
					c.TypeMod = int32(v)
				case 6:
					c.Key = v != 0
				case 7:
					c.BaseOID = uint32(v)
				case 8:
					c.BaseName = string(b)
				}
				return nil
			})
			s.Columns = append(s.Columns, c)
			return err
		}
		return nil
	})
	if err != nil {
		return err
	}
	l, err := p.logAt(log)
	if err != nil {
		return err
	}
	return p.schema(l, s)
}

func (p *protobufDecoder) record(m []byte) error {
	prev, e := &p.prev, &p.last
	op, via := engine.OpPut, uint64(0)
	hasKey := false
	e.Key, e.Row = nil, nil
	for len(m) > 0 {
		tag := m[0]
		if tag&7 == 2 {
			s, n := protowire.ConsumeBytes(m[1:])
			if n < 0 || tag >= 0x80 {
				return errMessage
			}
			m = m[1+n:]
			switch tag >> 3 {
			case recordKey:
				e.Key, hasKey = s[:len(s):len(s)], true
			case recordRow:
				e.Row = engine.Row(s[:len(s):len(s)])
			}
			continue
		}
		v, n := protowire.ConsumeVarint(m[1:])
		if n < 0 || tag&7 != 0 || tag >= 0x80 {
			return errMessage
		}
		m = m[1+n:]
		switch tag >> 3 {
		case recordOp:
			if v > 2 {
				return fmt.Errorf("an unknown operation %d", v)
			}
			op = engine.OpPut + engine.Op(v)
		case recordLog:
			prev.log = int(min(v, math.MaxInt32))
		case recordTime:
			prev.time += uint64(protowire.DecodeZigZag(v))
		case recordMajor:
			prev.major += uint64(protowire.DecodeZigZag(v))
		case recordMinor:
			prev.minor = uint32(int64(prev.minor) + protowire.DecodeZigZag(v))
		case recordSchema:
			prev.schema = uint32(v)
		case recordVia:
			via = v
		}
	}
	log, err := p.logAt(uint64(prev.log))
	if err != nil {
		return err
	}
	e.Op = op
	e.Stamp = engine.Stamp{
		Time: engine.Time(prev.time), Origin: log.Origin, Epoch: log.Epoch,
		Version: engine.Version{Major: prev.major, Minor: prev.minor},
	}
	if p.schemaOf == nil || p.schemaLog != prev.log || p.schemaID != prev.schema {
		p.schemaOf, p.schemaLog, p.schemaID = p.schemas[schemaKey{log, prev.schema}], prev.log, prev.schema
	}
	e.Schema = p.schemaOf
	switch {
	case p.head.History == Full:
		e.Log = p.log
	case via == 0:
		e.Log = log
	default:
		if e.Log, err = p.logAt(via - 1); err != nil {
			return err
		}
	}
	return p.entry(hasKey)
}

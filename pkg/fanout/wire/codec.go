// Package wire joins the engine's types to the frames of the wire protocol
// (package wirepb, generated from proto/tributary/v1).
//
// Its codec sends a block's bytes to any number of readers without copying
// them, and copies those it receives once, into memory of their own: the engine
// keeps a block for long, and must not keep the transport's buffers with it.
package wire

import (
	"fmt"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	pb "google.golang.org/protobuf/proto"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/fanout/wirepb"
)

// Numbers of the fields that the codec handles itself; a test holds them to the
// generated code.
const (
	fieldSnapshotRows = 6
	fieldBatch        = 8
	fieldPayload      = 15
)

// Codec is grpc's "proto" codec, with a short way for frames with a payload. It
// sends *Shared beside what that codec sends, and both sides of a connection
// may use either.
type Codec struct{ rest encoding.CodecV2 }

// NewCodec returns a Codec.
func NewCodec() Codec { return Codec{encoding.GetCodecV2(proto.Name)} }

// Name returns "proto".
func (Codec) Name() string { return proto.Name }

// Shared is a frame that ends in a payload which others hold too.
type Shared struct {
	header  []byte // of the frame, up to the payload's first byte
	payload []byte
}

// Size returns the size of the frame on the wire.
func (s *Shared) Size() int { return len(s.header) + len(s.payload) }

// Batch returns the frame of a block on a channel.
func Batch(channel uint32, b *engine.Block) *Shared {
	return shared(fieldBatch, batch(channel, b), b.Payload)
}

func batch(channel uint32, b *engine.Block) []byte {
	h := make([]byte, 0, 64+len(b.Prev)+len(b.Position))
	h = appendVarint(h, 1, uint64(channel))
	h = appendString(h, 2, string(b.Prev))
	h = appendString(h, 3, string(b.Position))
	h = appendVarint(h, 4, uint64(b.Part))
	if b.Last {
		h = appendVarint(h, 5, 1)
	}
	h = appendVarint(h, 6, uint64(b.Time))
	return appendVarint(h, 7, uint64(b.Changes))
}

// SharedBatch returns the frame of a block on a channel of a node's shared log.
//
// at is where the reader is with it in the shared log; nil where it is nowhere yet.
func SharedBatch(channel uint32, b *engine.Block, log engine.LogID, at *wirepb.SharedCursor) *Shared {
	rest, err := pb.MarshalOptions{}.MarshalAppend(batch(channel, b), &wirepb.Batch{Log: FromLog(log), Shared: at})
	if err != nil {
		panic(err) // of a message without required fields
	}
	return shared(fieldBatch, rest, b.Payload)
}

// Rows returns a frame of a baseline's records.
func Rows(channel, table uint32, records int, payload []byte) *Shared {
	h := make([]byte, 0, 32)
	h = appendVarint(h, 1, uint64(channel))
	h = appendVarint(h, 2, uint64(table))
	h = appendVarint(h, 3, uint64(records))
	return shared(fieldSnapshotRows, h, payload)
}

func shared(field protowire.Number, inner, payload []byte) *Shared {
	inner = protowire.AppendTag(inner, fieldPayload, protowire.BytesType)
	inner = protowire.AppendVarint(inner, uint64(len(payload)))
	h := make([]byte, 0, len(inner)+8)
	h = protowire.AppendTag(h, field, protowire.BytesType)
	h = protowire.AppendVarint(h, uint64(len(inner)+len(payload)))
	return &Shared{append(h, inner...), payload}
}

func appendVarint(b []byte, n protowire.Number, v uint64) []byte {
	if v == 0 {
		return b
	}
	return protowire.AppendVarint(protowire.AppendTag(b, n, protowire.VarintType), v)
}

func appendString(b []byte, n protowire.Number, v string) []byte {
	if v == "" {
		return b
	}
	return protowire.AppendString(protowire.AppendTag(b, n, protowire.BytesType), v)
}

// Marshal encodes a message.
func (c Codec) Marshal(v any) (mem.BufferSlice, error) {
	if s, ok := v.(*Shared); ok {
		if len(s.payload) == 0 {
			return mem.BufferSlice{mem.SliceBuffer(s.header)}, nil
		}
		return mem.BufferSlice{mem.SliceBuffer(s.header), mem.SliceBuffer(s.payload)}, nil
	}
	return c.rest.Marshal(v)
}

// headroom is how much of a frame is looked at to find its payload. A header
// that is longer, by its positions, goes the long way.
const headroom = 512

// Unmarshal decodes a message.
func (c Codec) Unmarshal(data mem.BufferSlice, v any) error {
	f, ok := v.(*wirepb.Frame)
	if !ok {
		return c.rest.Unmarshal(data, v)
	}
	size := data.Len()
	var room [headroom]byte
	var head []byte
	if len(data) > 0 && (len(data) == 1 || data[0].Len() >= headroom) {
		head = data[0].ReadOnlyData()
	} else {
		head = room[:data.CopyTo(room[:])]
	}
	field, from, to := split(head, size)
	if field == 0 {
		return c.rest.Unmarshal(data, v)
	}
	payload := make([]byte, size-to.end)
	copyFrom(payload, data, to.end)
	switch field {
	case fieldBatch:
		m := &wirepb.Batch{}
		if err := pb.Unmarshal(head[from:to.tag], m); err != nil {
			return fmt.Errorf("batch: %w", err)
		}
		m.Payload = payload
		f.Kind = &wirepb.Frame_Batch{Batch: m}
	case fieldSnapshotRows:
		m := &wirepb.SnapshotRows{}
		if err := pb.Unmarshal(head[from:to.tag], m); err != nil {
			return fmt.Errorf("snapshot rows: %w", err)
		}
		m.Payload = payload
		f.Kind = &wirepb.Frame_SnapshotRows{SnapshotRows: m}
	}
	return nil
}

// span is where the payload's tag starts, and where it ends with its length.
type span struct{ tag, end int }

// split finds the payload at the end of a frame of size bytes that starts with
// head. field is 0 if the frame is not of that shape.
func split(head []byte, size int) (field protowire.Number, from int, to span) {
	field, typ, n := protowire.ConsumeTag(head)
	if n < 0 || typ != protowire.BytesType || (field != fieldBatch && field != fieldSnapshotRows) {
		return 0, 0, span{}
	}
	length, m := protowire.ConsumeVarint(head[n:])
	if m < 0 || length != uint64(size-n-m) {
		return 0, 0, span{}
	}
	from = n + m
	for at := from; at < len(head); {
		num, typ, n := protowire.ConsumeTag(head[at:])
		if n < 0 {
			return 0, 0, span{}
		}
		if num == fieldPayload && typ == protowire.BytesType {
			length, m := protowire.ConsumeVarint(head[at+n:])
			if m < 0 || length != uint64(size-at-n-m) {
				return 0, 0, span{}
			}
			return field, from, span{at, at + n + m}
		}
		m := protowire.ConsumeFieldValue(num, typ, head[at+n:])
		if m < 0 {
			return 0, 0, span{}
		}
		at += n + m
	}
	return 0, 0, span{}
}

func copyFrom(dst []byte, data mem.BufferSlice, skip int) {
	for _, b := range data {
		p := b.ReadOnlyData()
		if skip >= len(p) {
			skip -= len(p)
			continue
		}
		dst = dst[copy(dst, p[skip:]):]
		skip = 0
	}
}

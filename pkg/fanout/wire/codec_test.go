package wire

import (
	"bytes"
	"testing"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"pgregory.net/rapid"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/fanout/wirepb"
)

// The codec's field numbers are those of the generated code, and payloads come
// last.
func TestFieldNumbers(t *testing.T) {
	t.Parallel()
	frame := (&wirepb.Frame{}).ProtoReflect().Descriptor().Fields()
	for name, n := range map[protoreflect.Name]protoreflect.FieldNumber{"batch": fieldBatch, "snapshot_rows": fieldSnapshotRows} {
		f := frame.ByName(name)
		if f.Number() != n {
			t.Errorf("%s is field %d", name, f.Number())
		}
		inner := f.Message().Fields()
		if p := inner.ByName("payload"); p.Number() != fieldPayload {
			t.Errorf("the payload of %s is field %d", name, p.Number())
		}
		for i := range inner.Len() {
			if inner.Get(i).Number() > fieldPayload {
				t.Errorf("field %s of %s comes after the payload", inner.Get(i).Name(), name)
			}
		}
	}
}

// cut splits bytes into buffers as a transport might.
func cut(t *rapid.T, p []byte) mem.BufferSlice {
	var s mem.BufferSlice
	for len(p) > 0 {
		n := rapid.IntRange(1, len(p)).Draw(t, "cut")
		s = append(s, mem.SliceBuffer(p[:n]))
		p = p[n:]
	}
	return s
}

// What the codec sends is what protobuf would send, and what it reads is what
// protobuf would read, however the bytes come.
func TestCodecIsProtobuf(t *testing.T) {
	t.Parallel()
	c := NewCodec()
	rapid.Check(t, func(t *rapid.T) {
		b := &engine.Block{
			Prev: engine.Position(rapid.StringN(0, 40, 600).Draw(t, "prev")), Position: engine.Position(rapid.StringN(0, 40, 600).Draw(t, "position")),
			Part: rapid.Uint32().Draw(t, "part"), Last: rapid.Bool().Draw(t, "last"), Time: engine.Time(rapid.Uint64().Draw(t, "time")),
			Changes: rapid.IntRange(0, 1000).Draw(t, "changes"), Payload: rapid.SliceOfN(rapid.Byte(), 0, 3000).Draw(t, "payload"),
		}
		channel := rapid.Uint32().Draw(t, "channel")
		sent, err := c.Marshal(Batch(channel, b))
		if err != nil {
			t.Fatal(err)
		}
		if len(b.Payload) > 0 && &sent[len(sent)-1].ReadOnlyData()[0] != &b.Payload[0] {
			t.Fatal("the payload was copied")
		}
		want := &wirepb.Frame{}
		if err := proto.Unmarshal(sent.Materialize(), want); err != nil {
			t.Fatal(err)
		}
		got := &wirepb.Frame{}
		whole := sent.Materialize()
		if err := c.Unmarshal(cut(t, whole), got); err != nil {
			t.Fatal(err)
		}
		if !proto.Equal(got, want) {
			t.Fatalf("got %v, want %v", got, want)
		}
		m := got.GetBatch()
		back := Block(m)
		if m.GetChannel() != channel || back.Prev != b.Prev || back.Position != b.Position || back.Part != b.Part || back.Last != b.Last ||
			back.Time != b.Time || back.Changes != b.Changes || !bytes.Equal(back.Payload, b.Payload) {
			t.Fatalf("%+v came as %+v", b, back)
		}
		clear(whole) // the transport takes its buffers back
		if !bytes.Equal(back.Payload, b.Payload) {
			t.Fatal("the payload shares the transport's memory")
		}
		if cap(back.Payload) > len(back.Payload)+64 {
			t.Fatalf("a payload of %d bytes keeps %d", len(back.Payload), cap(back.Payload))
		}
	})
}

func TestCodecOfOtherFrames(t *testing.T) {
	t.Parallel()
	c := NewCodec()
	for _, m := range []proto.Message{
		&wirepb.Frame{Kind: &wirepb.Frame_Hello{Hello: &wirepb.Hello{NodeId: "a"}}},
		&wirepb.Frame{},
		&wirepb.Frame{Kind: &wirepb.Frame_Batch{Batch: &wirepb.Batch{Channel: 3}}}, // without a payload
		&wirepb.StatusRequest{},
	} {
		data, err := c.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		got := m.ProtoReflect().New().Interface()
		if err := c.Unmarshal(data, got); err != nil || !proto.Equal(m, got) {
			t.Errorf("%v came as %v, %v", m, got, err)
		}
	}
	rows, err := c.Marshal(Rows(7, 2, 9, []byte("payload")))
	if err != nil {
		t.Fatal(err)
	}
	f := &wirepb.Frame{}
	if err := c.Unmarshal(rows, f); err != nil || f.GetSnapshotRows().GetRecords() != 9 || f.GetSnapshotRows().GetTable() != 2 || string(f.GetSnapshotRows().GetPayload()) != "payload" {
		t.Errorf("%v %v", f, err)
	}
}

// FuzzUnmarshal holds the short way to what protobuf makes of the same bytes.
func FuzzUnmarshal(f *testing.F) {
	c := NewCodec()
	b, _ := c.Marshal(Batch(1, &engine.Block{Prev: "0/1", Position: "0/2", Last: true, Payload: []byte("payload")}))
	f.Add(b.Materialize(), 3)
	r, _ := c.Marshal(Rows(1, 0, 1, []byte("rows")))
	f.Add(r.Materialize(), 0)
	f.Fuzz(func(t *testing.T, p []byte, at int) {
		data := mem.BufferSlice{mem.SliceBuffer(p)}
		if at > 0 && at < len(p) {
			data = mem.BufferSlice{mem.SliceBuffer(p[:at]), mem.SliceBuffer(p[at:])}
		}
		got, want := &wirepb.Frame{}, &wirepb.Frame{}
		err1, err2 := c.Unmarshal(data, got), proto.Unmarshal(p, want)
		if (err1 == nil) != (err2 == nil) {
			t.Fatalf("the codec says %v, protobuf %v", err1, err2)
		}
		if err1 == nil && !proto.Equal(got, want) {
			t.Fatalf("the codec reads %v, protobuf %v", got, want)
		}
	})
}

func BenchmarkMarshalBatch(b *testing.B) {
	c := NewCodec()
	block := &engine.Block{Prev: "16/B374D848", Position: "16/B374D900", Last: true, Time: 1 << 50, Changes: 500, Payload: make([]byte, 60<<10)}
	b.SetBytes(int64(len(block.Payload)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.Marshal(Batch(7, block)); err != nil {
			b.Fatal(err)
		}
	}
}

package session_test

import (
	"encoding/binary"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/fanout/session"
	"github.com/tributary-dev/tributary/pkg/fanout/wirepb"
)

// frames cuts fuzzed bytes into frames: each has its length before it.
func frames(p []byte) []*wirepb.Frame {
	var fs []*wirepb.Frame
	for len(p) > 0 {
		n, m := binary.Uvarint(p)
		if m <= 0 || n > uint64(len(p)-m) {
			return fs
		}
		f := &wirepb.Frame{}
		if proto.Unmarshal(p[m:m+int(n)], f) == nil {
			fs = append(fs, f)
		}
		p = p[m+int(n):]
	}
	return fs
}

func joined(fs ...*wirepb.Frame) []byte {
	var p []byte
	for _, f := range fs {
		b, err := proto.Marshal(f)
		if err != nil {
			panic(err)
		}
		p = append(binary.AppendUvarint(p, uint64(len(b))), b...)
	}
	return p
}

func helloOf(id string) *wirepb.Frame {
	return &wirepb.Frame{Kind: &wirepb.Frame_Hello{Hello: &wirepb.Hello{MinVersion: 1, Version: 1, NodeId: id, Capabilities: []string{session.CapOriginCursors}}}}
}

// vectorOfOne names the vector in which fuzzLog is at 0/10.
var vectorOfOne = []byte{0x2f, 0xad, 0xd0, 0xe4, 0x61, 0x67, 0x6d, 0x67}

var fuzzLog = &wirepb.LogID{Origin: "a#pg", Epoch: 5}

// fuzzBehind says that the log's table is there only up to a place.
func fuzzBehind(at string) []*wirepb.TableReached {
	return []*wirepb.TableReached{{Table: &wirepb.TableName{Schema: "public", Name: "t"}, At: &wirepb.Cursor{Position: at, Time: 8}}}
}

// FuzzWriter: whatever a reader sends, the writer does not panic, sends nothing
// without credit, and says nothing after it has closed.
func FuzzWriter(f *testing.F) {
	f.Add(joined(helloOf("b"),
		&wirepb.Frame{Kind: &wirepb.Frame_Subscribe{Subscribe: &wirepb.Subscribe{Channel: 1, Log: fuzzLog, Credit: 100}}},
		&wirepb.Frame{Kind: &wirepb.Frame_Credit{Credit: &wirepb.Credit{Channel: 1, Bytes: 10}}},
		&wirepb.Frame{Kind: &wirepb.Frame_Ack{Ack: &wirepb.Ack{Channel: 1, Position: "0/10"}}},
		&wirepb.Frame{Kind: &wirepb.Frame_Unsubscribe{Unsubscribe: &wirepb.Unsubscribe{Channel: 1}}}))
	f.Add(joined(helloOf("b"), &wirepb.Frame{Kind: &wirepb.Frame_Subscribe{Subscribe: &wirepb.Subscribe{
		Channel: 1, Log: fuzzLog, Credit: 100, StagedParts: 3, From: &wirepb.Subscribe_Cursor{Cursor: &wirepb.Cursor{Position: "0/10"}},
	}}}))
	all := helloOf("b")
	all.GetHello().Capabilities = append(all.GetHello().Capabilities, session.CapVector, session.CapShapes)
	f.Add(joined(all, &wirepb.Frame{Kind: &wirepb.Frame_Resume{Resume: &wirepb.Resume{
		Channel: 1, Base: []byte("12345678"), Open: []uint32{0, 2}, Credit: []uint64{100}, Cursors: []*wirepb.LogCursor{{Log: fuzzLog, Cursor: &wirepb.Cursor{Position: "0/10"}}},
	}}}, &wirepb.Frame{Kind: &wirepb.Frame_Resume{Resume: &wirepb.Resume{
		Channel: 3, More: true, Cursors: []*wirepb.LogCursor{{Log: fuzzLog, Cursor: &wirepb.Cursor{Position: "0/10"}}},
	}}}, &wirepb.Frame{Kind: &wirepb.Frame_Resume{Resume: &wirepb.Resume{
		Channel: 3, Vector: vectorOfOne, Open: []uint32{0, 1}, Credit: []uint64{100},
	}}}))
	aside := helloOf("b")
	aside.GetHello().Capabilities = append(aside.GetHello().Capabilities, session.CapStateDelta, session.CapFreshTables, session.CapBehind)
	for _, at := range []string{"0/4", "0/8", ""} { // what is lacking is sent whole, or comes in the log, or is not known
		f.Add(joined(aside, &wirepb.Frame{Kind: &wirepb.Frame_Subscribe{Subscribe: &wirepb.Subscribe{
			Channel: 1, Log: fuzzLog, Credit: 100, From: &wirepb.Subscribe_Cursor{Cursor: &wirepb.Cursor{Position: "0/10", Time: 10}}, Behind: fuzzBehind(at),
		}}}, &wirepb.Frame{Kind: &wirepb.Frame_Credit{Credit: &wirepb.Credit{Channel: 1, Bytes: 1000}}}))
	}
	schema := &engine.Schema{ID: 1, Table: engine.TableName{Schema: "public", Name: "t"}, Columns: []engine.Column{{Name: "id", Number: 1, Key: true}}}
	served := session.Served{Compare: engine.CompareLSN, Schemas: []*engine.Schema{schema}}
	served.Log, served.Path, served.Tables, served.Oldest, served.Head = engine.LogID{Origin: "a#pg", Epoch: 5}, []string{"a"}, []engine.TableName{schema.Table}, "0/10", "0/20"
	served.CompleteFrom, served.Trail = 5, engine.Trail{
		{From: "0/10", Behind: map[engine.TableName]engine.Reached{schema.Table: {Position: "0/8", Time: 8}}}, {From: "0/20"},
	}
	block := &engine.Block{Prev: "0/10", Position: "0/20", Last: true, Payload: []byte("a block")}
	f.Fuzz(func(t *testing.T, p []byte) {
		now := time.Unix(0, 0)
		w := session.NewWriter(session.WriterConfig{NodeID: "a", Held: func(string) (engine.Epoch, engine.Time) { return 5, 1 }, Limits: session.Limits{MaxChannels: 4}}, now)
		closed := false
		check := func(out []session.Output) {
			for _, o := range out {
				if closed {
					t.Fatal("something comes after the end")
				}
				closed = closed || o.Close != nil
			}
		}
		check(w.Serve([]session.Served{served}))
		for _, fr := range frames(p) {
			check(w.Frame(fr))
			for range 8 {
				work, ok := w.Next()
				if !ok {
					break
				}
				if work.MaxSize <= 0 {
					t.Fatalf("asks for %d bytes", work.MaxSize)
				}
				if work.Snapshot {
					check(w.SnapshotBegin(work.Channel, session.Baseline{At: "0/20", Schemas: served.Schemas}))
					check(w.SnapshotEnd(work.Channel))
				} else {
					check(w.Read(work.Channel, []session.Piece{{Block: block, Through: block.Position}}, nil))
				}
			}
			now = now.Add(time.Second)
			check(w.Tick(now))
		}
	})
}

// FuzzReader: whatever a writer sends, the reader does not panic, and a place
// never goes back within an epoch.
func FuzzReader(f *testing.F) {
	advert := &wirepb.Frame{Kind: &wirepb.Frame_Advert{Advert: &wirepb.Advert{Logs: []*wirepb.LogAdvert{{Log: fuzzLog, Path: []string{"a"}, Tables: []*wirepb.TableName{{Schema: "public", Name: "t"}}}}}}}
	begin := []*wirepb.Frame{
		helloOf("a"), advert,
		{Kind: &wirepb.Frame_Subscribed{Subscribed: &wirepb.Subscribed{Channel: 1, Log: fuzzLog, Mode: wirepb.Mode_MODE_SNAPSHOT}}},
		{Kind: &wirepb.Frame_SnapshotBegin{SnapshotBegin: &wirepb.SnapshotBegin{Channel: 1, At: &wirepb.Cursor{Position: "0/10"}}}},
		{Kind: &wirepb.Frame_SnapshotEnd{SnapshotEnd: &wirepb.SnapshotEnd{Channel: 1, Cursors: []*wirepb.LogCursor{{Log: fuzzLog, Cursor: &wirepb.Cursor{Position: "0/10"}}}}}},
	}
	f.Add(joined(append(begin,
		&wirepb.Frame{Kind: &wirepb.Frame_Batch{Batch: &wirepb.Batch{Channel: 1, Prev: "0/10", Position: "0/20", Last: true, Payload: []byte("x")}}},
		&wirepb.Frame{Kind: &wirepb.Frame_Progress{Progress: &wirepb.Progress{Channel: 1, Prev: "0/20", Through: "0/30"}}},
		&wirepb.Frame{Kind: &wirepb.Frame_Gap{Gap: &wirepb.Gap{Channel: 1}}})...))
	f.Add(joined(append(begin, &wirepb.Frame{Kind: &wirepb.Frame_Batch{Batch: &wirepb.Batch{Channel: 1, Prev: "0/8", Position: "0/20", Last: true, Payload: []byte("\x01\x040/20\x00\x00\x00")}}})...))
	behind := func(position, at string) *wirepb.Frame {
		return &wirepb.Frame{Kind: &wirepb.Frame_Behind{Behind: &wirepb.Behind{Channel: 1, Position: position, Tables: fuzzBehind(at)}}}
	}
	f.Add(joined(append(slices.Insert(slices.Clone(begin), 3, behind("0/10", "0/8")),
		behind("0/20", "0/8"),
		&wirepb.Frame{Kind: &wirepb.Frame_Batch{Batch: &wirepb.Batch{Channel: 1, Prev: "0/10", Position: "0/20", Last: true, Payload: []byte("x")}}},
		&wirepb.Frame{Kind: &wirepb.Frame_Behind{Behind: &wirepb.Behind{Channel: 1, Position: "0/30"}}},
		&wirepb.Frame{Kind: &wirepb.Frame_Progress{Progress: &wirepb.Progress{Channel: 1, Prev: "0/20", Through: "0/30"}}},
		behind("0/40", "0/30"), &wirepb.Frame{Kind: &wirepb.Frame_Gap{Gap: &wirepb.Gap{Channel: 1}}})...))
	f.Add(joined(append(begin, &wirepb.Frame{Kind: &wirepb.Frame_Reset_{Reset_: &wirepb.Reset{Channel: 1, Log: fuzzLog, Epoch: 9}}})...))
	f.Fuzz(func(t *testing.T, p []byte) {
		now := time.Unix(0, 0)
		places := session.Places{}
		r, _ := session.NewReader(session.ReaderConfig{NodeID: "b", Compare: engine.CompareLSN, Window: 1000, Places: places, Limits: session.Limits{MaxFrame: 1 << 10}}, now)
		r.Activate(now)
		at := map[engine.LogID]engine.Position{}
		snapshot := map[engine.LogID]bool{}
		for _, fr := range frames(p) {
			for _, a := range r.Frame(now, fr) {
				if d := a.Deliver; d != nil && d.Kind == session.DeliverCommit {
					snapshot[d.Key.Log] = true
				}
			}
			for log, pl := range places.All() {
				if pl.Known && !snapshot[log] && engine.CompareLSN(pl.Position, at[log]) < 0 {
					t.Fatalf("log %s went from %s back to %s", log, at[log], pl.Position)
				}
				at[log] = pl.Position
				if pl.Buffered > 1000+1<<10 {
					t.Fatalf("%d bytes wait, of 1000", pl.Buffered)
				}
			}
			clear(snapshot)
			now = now.Add(time.Second)
			r.Tick(now)
		}
		r.End()
	})
}

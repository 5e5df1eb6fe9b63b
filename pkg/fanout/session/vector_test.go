package session_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/fanout/session"
	"github.com/tributary-dev/tributary/pkg/fanout/wirepb"
)

// many is a node that serves many logs, and a reader that is at their heads.
type many struct {
	t       *testing.T
	served  []session.Served
	places  session.Places
	told    session.Told
	vectors *session.Vectors
	without []string // capabilities that the node lacks
	reader  string
}

func newMany(t *testing.T, n int) *many {
	m := &many{t: t, reader: "shop/reader", places: session.Places{}, told: session.Told{}, vectors: session.NewVectors(0)}
	for i := range n {
		s := session.Served{Compare: engine.CompareNumber}
		s.Log, s.Path, s.Order = engine.LogID{Origin: fmt.Sprintf("shop/edge-%04d#orders", i), Epoch: 1780000000000000}, []string{"shop/hub", fmt.Sprintf("shop/edge-%04d", i)}, "number"
		s.Oldest, s.Head, s.Time = "0000000000000001", "0000000000001000", 1780000000001000
		table := engine.TableName{Schema: "public", Name: "orders"}
		s.Tables = []engine.TableName{table}
		sc := &engine.Schema{ID: 1, Table: table, RelationOID: 16384, ReplicaIdentity: engine.IdentityDefault}
		for j, c := range []string{"id", "customer", "amount", "placed", "note"} {
			sc.Columns = append(sc.Columns, engine.Column{Name: c, Number: int16(j + 1), TypeOID: 25, TypeName: "text", TypeMod: -1, Key: j == 0})
		}
		s.Schemas = []*engine.Schema{sc}
		m.served = append(m.served, s)
		m.places.Put(s.Log, &session.Place{Position: s.Head, Time: s.Time, Known: true, Tables: s.Tables})
	}
	return m
}

// session begins one, and returns how many bytes each side has sent when all logs
// are read, and in what frames.
func (m *many) session() (reader, writer int, kinds map[string]int) {
	m.t.Helper()
	now := time.Unix(1_800_000_000, 0)
	kinds = map[string]int{}
	w := session.NewWriter(session.WriterConfig{
		NodeID: "shop/hub", Held: func(string) (engine.Epoch, engine.Time) { return 0, 0 }, Limits: session.Limits{MaxChannels: 2048}, Vectors: m.vectors,
	}, now)
	r, acts := session.NewReader(session.ReaderConfig{NodeID: m.reader, Name: "mesh", Compare: engine.CompareNumber, Window: 64 << 10, Places: m.places, Vectors: m.told}, now)
	var toR, toW []*wirepb.Frame
	count := func(who string, f *wirepb.Frame) int {
		n := proto.Size(f) + 5
		if n > 64<<10 {
			m.t.Errorf("a frame of %d bytes", n)
		}
		kinds[fmt.Sprintf("%s %T", who, f.GetKind())]++
		return n
	}
	outputs := func(out []session.Output) {
		for _, o := range out {
			if o.Close != nil {
				m.t.Fatal(o.Close)
			}
			if o.Frame != nil {
				if h := o.Frame.GetHello(); h != nil {
					h.Capabilities = slices.DeleteFunc(h.Capabilities, func(c string) bool { return slices.Contains(m.without, c) })
				}
				toR = append(toR, o.Frame)
				writer += count("writer", o.Frame)
			}
		}
	}
	actions := func(acts []session.Action) {
		for _, a := range acts {
			if a.Close != nil {
				m.t.Fatal(a.Close)
			}
			if a.Frame != nil {
				if h := a.Frame.GetHello(); h != nil {
					h.Capabilities = slices.DeleteFunc(h.Capabilities, func(c string) bool { return slices.Contains(m.without, c) })
				}
				toW = append(toW, a.Frame)
				reader += count("reader", a.Frame)
			}
		}
	}
	talk := func() {
		for len(toR)+len(toW) > 0 {
			rs, ws := toR, toW
			toR, toW = nil, nil
			for _, f := range ws {
				outputs(w.Frame(f))
			}
			for _, f := range rs {
				actions(r.Frame(now, f))
			}
		}
	}
	outputs(w.Serve(m.served))
	actions(acts)
	talk()
	actions(r.Activate(now))
	talk()
	for _, c := range w.Channels() {
		if c.GetState() != "streaming" || c.GetMode() != wirepb.Mode_MODE_LIVE {
			m.t.Fatalf("channel of log %s is %s, %s", c.GetLog().GetOrigin(), c.GetState(), c.GetMode())
		}
	}
	if n := len(w.Channels()); n != len(m.served) {
		m.t.Fatalf("%d logs are read, of %d", n, len(m.served))
	}
	r.End()
	return reader, writer, kinds
}

// move writes one more transaction to some logs, which the reader has.
func (m *many) move(n int) {
	for i := range n {
		s := &m.served[i]
		s.Head, s.Time = engine.Position(fmt.Sprintf("%016d", 2000+i)), s.Time+1
		m.places.Of(s.Log).Position, m.places.Of(s.Log).Time = s.Head, s.Time
	}
}

// A reader of 1,000 origins says where it is once, and then only where it has
// moved; to a node that does not know what it has said, all again.
func TestVectorBytes(t *testing.T) {
	t.Parallel()
	m := newMany(t, 1000)
	m.without = []string{session.CapVector, session.CapShapes}
	r, w, _ := m.session()
	t.Logf("one by one: %d bytes from the reader, %d from the node", r, w)
	alone, offered := r, w
	m.without = nil
	full, w, kinds := m.session()
	t.Logf("the first time: %d bytes from the reader, %d from the node", full, w)
	if n := kinds["reader *wirepb.Frame_Subscribe"]; n > 0 {
		t.Errorf("%d logs are subscribed to one by one", n)
	}
	if full > alone*9/10 || w > offered/3 {
		t.Errorf("%d and %d bytes; one by one it was %d and %d", full, w, alone, offered)
	}
	m.move(10)
	delta, w, _ := m.session()
	t.Logf("10 of 1,000 have moved: %d bytes from the reader, %d from the node", delta, w)
	if delta > 2000 {
		t.Errorf("%d bytes to say that 10 of 1,000 logs have moved", delta)
	}
	m.move(10)
	m.vectors = session.NewVectors(0)
	again, _, kinds := m.session()
	if again < full || kinds["writer *wirepb.Frame_Error"] != 1 {
		t.Errorf("a node that knows no base is told %d bytes, in full it is %d; %d errors", again, full, kinds["writer *wirepb.Frame_Error"])
	}
	if delta, _, _ = m.session(); delta > 1000 {
		t.Errorf("%d bytes to say that nothing has moved", delta)
	}
}

// What is remembered of readers is bounded: one that is forgotten says all again.
func TestVectorsAreBounded(t *testing.T) {
	t.Parallel()
	m := newMany(t, 50)
	m.vectors = session.NewVectors(100)
	forced := func(reader string) bool {
		m.reader = reader
		_, _, kinds := m.session()
		return kinds["writer *wirepb.Frame_Error"] > 0
	}
	told := map[string]session.Told{}
	for _, reader := range []string{"a", "b", "c", "d"} {
		m.told = session.Told{}
		told[reader] = m.told
		forced(reader)
	}
	if m.told = told["d"]; forced("d") {
		t.Error("the newest reader is forgotten")
	}
	if m.told = told["a"]; !forced("a") {
		t.Error("the oldest of four readers is remembered, and there is room for two")
	}
}

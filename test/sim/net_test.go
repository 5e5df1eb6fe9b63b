package sim

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc/mem"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/fanout/wire"
	"github.com/tributary-dev/tributary/pkg/fanout/wirepb"
)

// keepalive is after how long a side learns that a connection is dead that it has
// not seen end.
const keepalive = 15 * time.Second

// conn is a connection between two nodes; end 0 has dialled.
type conn struct {
	w      *world
	id     int
	nodes  [2]*node
	ends   [2]*link                       // nil once that end is gone
	last   [2]time.Duration               // when what was sent last by an end arrives
	under  [2][]func()                    // what is on its way from an end
	lost   bool                           // nothing arrives any more
	lag    time.Duration                  // the longest delay of a frame
	reads  [2]map[uint32]engine.CursorKey // by channel, what an end reads
	perKiB time.Duration
}

var (
	errCut    = errors.New("the connection is lost")
	errEOF    = errors.New("the peer has ended the session")
	codec     = wire.NewCodec()
	errNobody = errors.New("connection refused")
)

// send takes a frame from an end. It arrives after all that it has sent before.
func (c *conn) send(from int, m any) {
	w := c.w
	data, err := codec.Marshal(m)
	if err != nil {
		panic(err)
	}
	raw := data.Materialize()
	data.Free()
	f := &wirepb.Frame{}
	if err := codec.Unmarshal(mem.BufferSlice{mem.SliceBuffer(raw)}, f); err != nil {
		panic(err)
	}
	w.frames++
	w.bytes += int64(len(raw))
	c.nodes[from].checkSent(c, from, f)
	w.kinds[kindOf(f)]++
	if w.tracing {
		w.tracef("%s → %s #%d %s", c.nodes[from].id, c.nodes[1-from].id, c.id, describe(f))
	}
	switch f.GetKind().(type) {
	case *wirepb.Frame_Batch, *wirepb.Frame_SnapshotRows, *wirepb.Frame_SnapshotBegin, *wirepb.Frame_Subscribe, *wirepb.Frame_Resume, *wirepb.Frame_Progress, *wirepb.Frame_Hello:
		w.dataFrames++
		w.dataBytes += int64(len(raw))
	}
	c.deliver(from, time.Duration(len(raw))*c.perKiB/1024, func() {
		if l := c.ends[1-from]; l != nil {
			if r := f.GetReset_(); r != nil {
				k := c.reads[1-from][r.GetChannel()]
				k.Log.Epoch = engine.Epoch(r.GetEpoch())
				c.reads[1-from][r.GetChannel()] = k
			}
			l.receive(f)
		}
	})
}

// kindOf names a frame for the summary.
func kindOf(f *wirepb.Frame) string {
	if s := f.GetSubscribed(); s != nil {
		return s.GetMode().String()
	}
	if e := f.GetError(); e != nil {
		return e.GetCode().String()
	}
	return strings.TrimPrefix(fmt.Sprintf("%T", f.GetKind()), "*wirepb.Frame_")
}

// deliver makes something happen at the other end, in order.
func (c *conn) deliver(from int, took time.Duration, do func()) {
	w := c.w
	at := max(w.now+time.Microsecond*50+w.some(c.lag)+took, c.last[from])
	c.last[from] = at
	c.under[from] = append(c.under[from], do)
	w.after(at-w.now, func() { c.arrive(from) })
}

// arrive lets the first of what is under way arrive; in a partition it waits, for
// as long as the connection lives.
func (c *conn) arrive(from int) {
	w := c.w
	if c.lost {
		return
	}
	if w.cut(c.nodes[0], c.nodes[1]) {
		c.last[from] = max(c.last[from], w.now+200*time.Millisecond)
		w.after(200*time.Millisecond, func() { c.arrive(from) })
		return
	}
	do := c.under[from][0]
	c.under[from] = c.under[from][1:]
	do()
}

// shut ends the connection from one side: the other sees it after what was sent.
func (c *conn) shut(from int) {
	if c.ends[from] == nil {
		return
	}
	c.ends[from] = nil
	c.deliver(from, 0, func() {
		if l := c.ends[1-from]; l != nil {
			c.ends[1-from] = nil
			l.end(errEOF)
		}
	})
	c.w.after(keepalive, func() { c.cut(1-from, 0) }) // in a partition
}

// cut breaks the connection: what is under way is lost. A side sees it after a
// time.
func (c *conn) cut(side int, seen time.Duration) {
	c.lost = true
	c.w.after(seen, func() {
		if l := c.ends[side]; l != nil {
			c.ends[side] = nil
			l.end(errCut)
		}
	})
}

// cut reports whether two nodes cannot reach each other.
func (w *world) cut(a, b *node) bool { return w.blocked[pair(a.index, b.index)] > 0 }

func pair(a, b int) [2]int { return [2]int{min(a, b), max(a, b)} }

// partition parts nodes for a time. Connections that last longer than keepalive
// without a word are lost.
func (w *world) partition(a, b int, d time.Duration) {
	p := pair(a, b)
	w.blocked[p]++
	w.after(d, func() { w.blocked[p]-- })
	if d >= keepalive {
		w.after(keepalive, func() {
			for _, c := range w.between(a, b) {
				c.cut(0, w.some(time.Second))
				c.cut(1, w.some(time.Second))
			}
		})
	}
}

// between returns the connections of two nodes that have an end.
func (w *world) between(a, b int) (all []*conn) {
	live := w.conns[:0]
	for _, c := range w.conns {
		if c.ends[0] == nil && c.ends[1] == nil {
			continue
		}
		live = append(live, c)
		if pair(c.nodes[0].index, c.nodes[1].index) == pair(a, b) {
			all = append(all, c)
		}
	}
	clear(w.conns[len(live):])
	w.conns = live
	return all
}

// dial connects two nodes; then is called once that has worked, or has not.
func (w *world) dial(from, to *node, then func(*conn, error)) {
	rtt := 200*time.Microsecond + w.some(2*time.Millisecond)
	life := from.life
	answer := func(d time.Duration, c *conn, err error) {
		w.after(d, func() {
			if from.up && from.life == life {
				then(c, err)
			} else if c != nil {
				c.cut(1, 0)
			}
		})
	}
	if w.cut(from, to) {
		answer(3*time.Second, nil, fmt.Errorf("no answer from %s", to.id))
		return
	}
	if !to.up {
		answer(rtt, nil, errNobody)
		return
	}
	c := &conn{w: w, id: w.plan.nextConn(w), nodes: [2]*node{from, to}, lag: 3 * time.Millisecond}
	c.reads = [2]map[uint32]engine.CursorKey{{}, {}}
	if s := w.slow[pair(from.index, to.index)]; s > 0 {
		c.lag, c.perKiB = s, s/50
	}
	w.conns = append(w.conns, c)
	c.ends[1] = to.accept(c)
	answer(rtt, c, nil)
}

// describe says what a frame is, the same way in every run.
func describe(f *wirepb.Frame) string {
	log := func(l *wirepb.LogID) string { return fmt.Sprintf("%s@%d", l.GetOrigin(), l.GetEpoch()%1e10) }
	switch k := f.GetKind().(type) {
	case *wirepb.Frame_Hello:
		return fmt.Sprintf("hello held=%d/%d", k.Hello.GetHeld().GetEpoch(), k.Hello.GetHeld().GetTime())
	case *wirepb.Frame_Advert:
		s := "advert"
		for _, l := range k.Advert.GetLogs() {
			s += fmt.Sprintf(" %s[%s..%s]%v", log(l.GetLog()), l.GetOldest(), l.GetHead().GetPosition(), l.GetPath())
		}
		for _, l := range k.Advert.GetWithdrawn() {
			s += " -" + log(l)
		}
		return s
	case *wirepb.Frame_Subscribe:
		m := k.Subscribe
		return fmt.Sprintf("subscribe %d %s from %s parts %d credit %d", m.GetChannel(), log(m.GetLog()), m.GetCursor().GetPosition(), m.GetStagedParts(), m.GetCredit())
	case *wirepb.Frame_Resume:
		m := k.Resume
		return fmt.Sprintf("resume %d %x of %x, %d cursors, %d gone, open %v", m.GetChannel(), m.GetVector(), m.GetBase(), len(m.GetCursors()), len(m.GetGone()), m.GetOpen())
	case *wirepb.Frame_Subscribed:
		m := k.Subscribed
		return fmt.Sprintf("subscribed %d %s mode %d start %s", m.GetChannel(), log(m.GetLog()), m.GetMode(), m.GetStart().GetPosition())
	case *wirepb.Frame_SnapshotBegin:
		return fmt.Sprintf("snapshot %d at %s", k.SnapshotBegin.GetChannel(), k.SnapshotBegin.GetAt().GetPosition())
	case *wirepb.Frame_SnapshotRows:
		return fmt.Sprintf("rows %d n %d", k.SnapshotRows.GetChannel(), k.SnapshotRows.GetRecords())
	case *wirepb.Frame_SnapshotEnd:
		return fmt.Sprintf("snapshot end %d", k.SnapshotEnd.GetChannel())
	case *wirepb.Frame_Batch:
		m := k.Batch
		return fmt.Sprintf("batch %d %s..%s part %d last %t %d bytes", m.GetChannel(), m.GetPrev(), m.GetPosition(), m.GetPart(), m.GetLast(), len(m.GetPayload()))
	case *wirepb.Frame_Progress:
		return fmt.Sprintf("progress %d %s..%s", k.Progress.GetChannel(), k.Progress.GetPrev(), k.Progress.GetThrough())
	case *wirepb.Frame_Head:
		return fmt.Sprintf("head %s %s oldest %s", log(k.Head.GetLog()), k.Head.GetHead().GetPosition(), k.Head.GetOldest())
	case *wirepb.Frame_Credit:
		return fmt.Sprintf("credit %d %d", k.Credit.GetChannel(), k.Credit.GetBytes())
	case *wirepb.Frame_Ack:
		return fmt.Sprintf("ack %d %s durable %t", k.Ack.GetChannel(), k.Ack.GetPosition(), k.Ack.GetDurable())
	case *wirepb.Frame_Gap:
		return fmt.Sprintf("gap %d oldest %s", k.Gap.GetChannel(), k.Gap.GetOldest())
	case *wirepb.Frame_Reset_:
		return fmt.Sprintf("reset %d %s to %d", k.Reset_.GetChannel(), log(k.Reset_.GetLog()), k.Reset_.GetEpoch())
	case *wirepb.Frame_Error:
		return fmt.Sprintf("error %d %s %s", k.Error.GetChannel(), k.Error.GetCode(), k.Error.GetMessage())
	case *wirepb.Frame_Unsubscribe:
		return fmt.Sprintf("unsubscribe %d", k.Unsubscribe.GetChannel())
	case *wirepb.Frame_GoAway:
		return "goaway"
	case *wirepb.Frame_Schema:
		return fmt.Sprintf("schema %d %s %d", k.Schema.GetChannel(), log(k.Schema.GetLog()), k.Schema.GetId())
	}
	return fmt.Sprintf("%T", f.GetKind())
}

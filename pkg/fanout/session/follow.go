package session

import (
	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/fanout/wire"
	"github.com/tributary-dev/tributary/pkg/fanout/wirepb"
)

// A reader in a relay tree takes a leaf's baseline as of where its log begins, and
// the log after it, as one: so it lacks no change of a table of which every change is
// delivered. That of a relay comes with marks.

// following is the log that follows a baseline, as it is received.
type following struct {
	to    engine.Position // up to there
	at    engine.Position // received up to there, and parts of the transaction after it
	time  engine.Time
	parts uint32
}

// maxMarks bounds the marks of one baseline.
const maxMarks = 1 << 20

// snapshotMarks takes marks of the baseline that comes next.
func (r *Reader) snapshotMarks(m *wirepb.SnapshotMarks) error {
	c, err := r.in(m.GetChannel(), inSnapshot, "SnapshotMarks")
	if c == nil {
		return err
	}
	if len(c.marks)+len(m.GetMarks()) > maxMarks {
		return malformed("a baseline with more than %d marks on channel %d", maxMarks, c.id)
	}
	for _, x := range m.GetMarks() {
		c.marks = append(c.marks, engine.Mark{Log: wire.Log(x.GetLog()), Time: engine.Time(x.GetTime()), Retires: x.GetRetires()})
	}
	return nil
}

// followed takes a block that follows a baseline.
func (r *Reader) followed(c *incoming, m *wirepb.Batch) error {
	b, err := unpack(c.id, m)
	if err != nil {
		return err
	}
	n, err := r.receive(c, len(b.Payload))
	if err != nil {
		return err
	}
	f := c.follow
	if b.Prev != f.at || b.Part != f.parts || c.offer.Compare(b.Position, f.at) <= 0 || c.offer.Compare(b.Position, f.to) > 0 {
		return malformed("Batch on channel %d from %q (part %d) to %q, where log %s is at %q (part %d) and ends at %q", c.id, b.Prev, b.Part, b.Position, c.log, f.at, f.parts, f.to)
	}
	b.Schemas = c.hand()
	if f.parts++; b.Last {
		f.at, f.time, f.parts = b.Position, b.Time, 0
	}
	r.deliver(c, &Delivery{Kind: DeliverFollow, Block: b, Size: n})
	return nil
}

// SnapshotFollows sends blocks that follow the rows of a snapshot: see
// Baseline.Follows.
func (w *Writer) SnapshotFollows(channel uint32, blocks []*engine.Block) []Output {
	c := w.channels[channel]
	if w.closed || c == nil || c.state != stateSnapshot {
		return nil
	}
	size := 0
	for _, b := range blocks {
		w.sendSchemas(c, c.log, b.Schemas)
		w.sendOthers(c, b)
		w.out = append(w.out, Output{Shared: wire.Batch(c.id, b)})
		if size += len(b.Payload); b.Last {
			c.at, c.atTime = b.Position, max(c.atTime, b.Time)
		}
	}
	w.spend(c, size)
	return w.take()
}

// sendMarks sends the marks of a baseline.
func (w *Writer) sendMarks(c *outgoing, marks []engine.Mark) {
	const most = 500 // in a frame
	for len(marks) > 0 {
		n := min(len(marks), most)
		m := &wirepb.SnapshotMarks{Channel: c.id}
		for _, x := range marks[:n] {
			m.Marks = append(m.Marks, &wirepb.Mark{Log: wire.FromLog(x.Log), Time: uint64(x.Time), Retires: x.Retires})
		}
		w.send(m)
		marks = marks[n:]
	}
}

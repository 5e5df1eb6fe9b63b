package session

import (
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/fanout/scope"
	"github.com/tributary-dev/tributary/pkg/fanout/wire"
	"github.com/tributary-dev/tributary/pkg/fanout/wirepb"
)

// Work is what a Writer wants read from the store next.
type Work struct {
	Channel uint32
	Log     engine.LogID
	Scope   *scope.Scope // how the channel sees the log; nil: as it is
	MaxSize int          // bytes, more only for a single larger block or row
	// Snapshot asks for the next frame of a baseline of Covers: answer with
	// SnapshotBegin the first time, then SnapshotRows, and SnapshotEnd. One with
	// Since holds only what was written after that time, but Fresh tables whole; one
	// with Replay, what an archive has from After up to there. Otherwise blocks are wanted,
	// from Part of the transaction after After: answer with Read.
	Snapshot bool
	Covers   []engine.TableName
	Since    engine.Time
	Fresh    []engine.TableName
	Replay   engine.Position
	After    engine.Position
	Part     uint32
	// Follow says that the snapshot may be as of where the log begins, if the log
	// follows.
	Follow bool
}

func (c *outgoing) wants() bool {
	if c.credit <= 0 {
		return false
	}
	switch c.state {
	case stateSnapshot:
		return !c.held
	case stateStreaming:
		if c.merging != nil {
			return c.merging.cur != nil && !c.merging.waits
		}
		return c.parts > 0 || c.compare(c.head, c.sent) > 0
	}
	return false
}

// Next returns the next thing to read, by deficit round robin between the
// channels that have credit and something to send.
func (w *Writer) Next() (Work, bool) {
	idle := true
	for _, c := range w.channels {
		if idle = !c.wants(); !idle {
			break
		}
	}
	if w.closed || idle {
		return Work{}, false
	}
	for {
		if w.turn >= len(w.order) {
			w.turn = 0
		}
		c := w.channels[w.order[w.turn]]
		if !c.wants() {
			c.deficit = 0
			w.turn++
			continue
		}
		if len(w.channels) == 1 && c.state == stateStreaming {
			c.deficit = alone
		} else if c.deficit <= 0 {
			if c.deficit += quantum; c.deficit <= 0 {
				w.turn++ // still paying for a large row
				continue
			}
		}
		if g := c.merging; g != nil {
			return Work{Channel: c.id, Log: g.cur.log, MaxSize: int(min(c.credit, c.deficit)), After: c.sent, Part: c.parts}, true
		}
		return Work{
			Channel: c.id, Log: c.log, Scope: c.lens, MaxSize: int(min(c.credit, c.deficit)),
			Snapshot: c.state == stateSnapshot, Covers: c.tables, Since: c.since, Fresh: c.fresh, Replay: c.replay, After: c.sent, Part: c.parts, Follow: c.follow,
		}, true
	}
}

// spend takes bytes that were sent from a channel's credit and turn.
func (w *Writer) spend(c *outgoing, n int) {
	c.credit -= int64(n)
	if c.deficit -= int64(n); c.deficit <= 0 {
		w.turn++
	}
}

// Piece is a block as a channel's scope sees it.
type Piece struct {
	Block   *engine.Block   // narrowed to the scope; nil if nothing is left
	Through engine.Position // the end of the whole block
	Time    engine.Time
}

// Read takes the blocks that were asked for, or the error that reading gave.
func (w *Writer) Read(channel uint32, pieces []Piece, err error) []Output {
	c := w.channels[channel]
	if w.closed || c == nil || c.state != stateStreaming {
		return nil
	}
	if c.merging != nil {
		return w.readShared(c, pieces, err)
	}
	switch {
	case errors.Is(err, engine.ErrGap):
		var oldest engine.Position
		if s, _ := w.find(c.log); s != nil {
			oldest = s.Oldest
		}
		_ = w.gap(c, oldest)
		return w.take()
	case errors.Is(err, engine.ErrUnknownLog):
		c.head = c.sent // Serve will tell what has become of it
		return nil
	case err != nil:
		w.fail(&Error{Code: wirepb.ErrorCode_ERROR_CODE_INTERNAL, Channel: channel, RetryAfter: time.Second, Message: err.Error()})
		return w.take()
	case len(pieces) == 0:
		c.head = c.sent
		if c.parts > 0 { // the transaction is gone from the log: what the reader has staged of it is of no use
			_ = w.gap(c, c.sent)
		}
		return w.take()
	}
	covered, t := c.sent, c.time
	told := func() {
		if covered != c.sent {
			w.tellBehind(c, covered, false)
			w.send(&wirepb.Progress{Channel: c.id, Prev: string(c.sent), Through: string(covered), Time: uint64(t)})
			c.sent, c.time, c.parts = covered, t, 0
		}
	}
	size := 0
	for _, p := range pieces {
		b := p.Block
		if b == nil || (len(b.Payload) == 0 && b.Last) {
			covered, t = p.Through, p.Time
			continue
		}
		told()
		w.tellBehind(c, b.Position, false)
		w.sendSchemas(c, c.log, b.Schemas)
		w.sendOthers(c, b)
		w.out = append(w.out, Output{Shared: wire.Batch(c.id, b)})
		size += len(b.Payload)
		if !b.Last {
			c.parts = b.Part + 1
			continue
		}
		c.sent, c.time, c.parts = b.Position, b.Time, 0
		covered, t = p.Through, p.Time
	}
	told()
	w.spend(c, size)
	return w.take()
}

// Baseline says what a snapshot that was asked for starts with.
type Baseline struct {
	At      engine.Position
	Time    engine.Time
	Schemas []*engine.Schema // of the log
	Others  map[engine.LogID][]*engine.Schema
	Rows    int // about
	// CompleteFrom is the time from which its tombstones are complete; 0 for "from
	// At on".
	CompleteFrom engine.Time
	Truncates    map[engine.TableName][]engine.Stamp // the newest of each origin
	// Follows is up to where the log from At on is part of it: SnapshotFollows comes after
	// the rows. Empty if nothing follows.
	Follows engine.Position
	// Relayed says that the log is a relay's, with these marks.
	Relayed bool
	Marks   []engine.Mark
	// Gap is as engine.BaselineSpec has it.
	Gap string
}

// SnapshotBegin starts the snapshot of a channel.
func (w *Writer) SnapshotBegin(channel uint32, b Baseline) []Output {
	c := w.channels[channel]
	if w.closed || c == nil || c.state != stateSnapshot {
		return nil
	}
	w.sendSchemas(c, c.log, b.Schemas)
	for _, log := range slices.SortedFunc(maps.Keys(b.Others), compareLogs) {
		w.sendSchemas(c, log, b.Others[log])
	}
	w.sendMarks(c, b.Marks)
	w.tellBehind(c, b.At, true)
	c.at, c.atTime, c.records = b.At, b.Time, 0
	m := &wirepb.SnapshotBegin{Channel: c.id, At: wire.FromCursor(b.At, b.Time), Rows: uint64(b.Rows), CompleteSince: uint64(b.CompleteFrom), Follows: string(b.Follows), Relayed: b.Relayed, Gap: b.Gap}
	for _, t := range c.tables {
		st := &wirepb.SnapshotTable{Table: wire.FromTable(t)}
		for _, at := range b.Truncates[t] {
			st.Truncates = append(st.Truncates, wire.FromStamp(at))
		}
		m.Tables = append(m.Tables, st)
	}
	w.send(m)
	return w.take()
}

// SnapshotRows sends a frame of records of the table with that index among the
// ones that Work named.
func (w *Writer) SnapshotRows(channel uint32, table int, records int, payload []byte) []Output {
	c := w.channels[channel]
	if w.closed || c == nil || c.state != stateSnapshot {
		return nil
	}
	c.records += uint64(records)
	w.out = append(w.out, Output{Shared: wire.Rows(c.id, uint32(table), records, payload)})
	w.spend(c, len(payload))
	return w.take()
}

// SnapshotEnd completes the snapshot: the channel goes on with the log.
func (w *Writer) SnapshotEnd(channel uint32) []Output {
	c := w.channels[channel]
	if w.closed || c == nil || c.state != stateSnapshot {
		return nil
	}
	w.send(&wirepb.SnapshotEnd{
		Channel: c.id, Records: c.records,
		Cursors: []*wirepb.LogCursor{{Log: wire.FromLog(c.log), Cursor: wire.FromCursor(c.at, c.atTime)}},
	})
	c.state, c.sent, c.time, c.parts, c.since, c.replay, c.fresh, c.hasFrom = stateStreaming, c.at, c.atTime, 0, 0, "", nil, true
	if c.compare(c.head, c.sent) < 0 {
		c.head = c.sent
	}
	return w.take()
}

// Hold keeps a channel whose snapshot has no rows ready from being asked for, until
// hold is false.
func (w *Writer) Hold(channel uint32, hold bool) {
	if c := w.channels[channel]; c != nil {
		c.held = hold
	}
}

// ReplayFailed gives up the replay of a channel that has had no row of it: the
// channel is caught up in another mode.
func (w *Writer) ReplayFailed(channel uint32) []Output {
	c := w.channels[channel]
	if w.closed || c == nil || c.state != stateSnapshot || c.replay == "" {
		return nil
	}
	c.state, c.replay, c.failed, c.held = stateWaiting, "", true, false
	if err := w.advance(c); err != nil {
		w.fail(err)
	}
	return w.take()
}

// DeltaFailed gives up the state delta of a channel that has had nothing of it,
// because deletes are known from a later time on than when it was chosen: the
// channel is caught up in another mode.
func (w *Writer) DeltaFailed(channel uint32, completeFrom engine.Time) []Output {
	c := w.channels[channel]
	if w.closed || c == nil || c.state != stateSnapshot || c.since == 0 {
		return nil
	}
	c.state, c.since, c.forgotten = stateWaiting, 0, completeFrom
	if err := w.advance(c); err != nil {
		w.fail(err)
	}
	return w.take()
}

// SnapshotFailed ends a channel whose snapshot could not be read, or was kept
// open for too long.
func (w *Writer) SnapshotFailed(channel uint32, code wirepb.ErrorCode, err error) []Output {
	if w.closed || w.channels[channel] == nil {
		return nil
	}
	w.fail(&Error{Code: code, Channel: channel, RetryAfter: time.Second, Message: err.Error()})
	return w.take()
}

package export

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/tributary-dev/tributary/pkg/archive"
	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/engine/spill"
)

const (
	// readBytes is how much of a log is read at once.
	readBytes = 1 << 20
	// routeTables is how many tables' changes are held at once, each in a scratch file
	// of its own, and routeBytes how much of them all is in memory.
	routeTables = 512
	routeBytes  = 16 << 20
)

// stretch is a part of a table's history, with the changes in it.
type stretch struct {
	from, to archive.Vector
	changes  *spill.File // tx and change records
	err      error       // why the changes are not all there

	// What records name by number.
	logs    []engine.LogID
	schemas []*engine.Schema

	// Of the log that is being read.
	begin   engine.Position // where it begins there
	end     archive.Cursor  // and ends: before the log's head, of a table that is behind
	reached bool            // the log has passed begin
	at      engine.Position // of the last transaction that is recorded
	head    []byte
}

func (s *stretch) close() {
	if s != nil {
		s.changes.Close()
	}
}

// route reads what follows in each log once, and passes each change on to the stretch
// of its table.
func (x *Exporter) route(ctx context.Context, v engine.View, all map[engine.TableName]*stretch) {
	byLog := map[engine.LogID]map[engine.TableName]*stretch{}
	for name, s := range all {
		s.changes = x.cfg.Scratch.New(routeBytes / len(all))
		for _, c := range s.to {
			if byLog[c.Log] == nil {
				byLog[c.Log] = map[engine.TableName]*stretch{}
			}
			byLog[c.Log][name] = s
		}
	}
	for log, of := range byLog {
		if err := x.routeLog(ctx, v, log, of); err != nil {
			for _, s := range of {
				s.err = errors.Join(s.err, err)
			}
		}
	}
}

func (x *Exporter) routeLog(ctx context.Context, v engine.View, log engine.LogID, of map[engine.TableName]*stretch) error {
	compare := x.cfg.Host.Comparator(log)
	info, ok := v.Log(log)
	if !ok {
		return fmt.Errorf("log %s has gone", log)
	}
	from := info.Head
	for _, s := range of {
		begin, _ := s.from.Cursor(log)
		s.begin, s.reached, s.at = begin.Position, false, ""
		s.end, _ = s.to.Cursor(log)
		if compare(s.begin, from) < 0 {
			from = s.begin
		}
	}
	if compare(from, info.Oldest) < 0 {
		from = info.Oldest // there is nothing before that of a table that is behind: see lateIn
	}
	var schema *engine.Schema
	var s *stretch // of schema's table
	return blocks(ctx, v, log, from, info.Head, func(b *engine.Block) error {
		r := b.Reader(log, v.Schema)
		for r.Next() {
			if r.IsBegin {
				continue
			}
			if r.Change.Schema != schema {
				schema = r.Change.Schema
				s = of[schema.Table]
			}
			if s == nil {
				continue
			}
			if !s.reached {
				if compare(r.Begin.Position, s.begin) <= 0 {
					continue
				}
				s.reached = true
			}
			if compare(s.begin, s.end.Position) == 0 {
				continue // the archive has all that the log has of the table, though it came late
			}
			tx := r.Begin
			if compare(tx.Position, s.end.Position) > 0 {
				tx.Position, tx.Time = s.end.Position, s.end.Time // it came late, and the log has no more of the table than up to there
			}
			if err := s.add(log, &tx, &r.Change); err != nil {
				return err
			}
		}
		return r.Err()
	})
}

// blocks passes on the blocks of a log between two positions.
func blocks(ctx context.Context, v engine.View, log engine.LogID, after, end engine.Position, fn func(*engine.Block) error) error {
	for part := uint32(0); after != end; {
		var bs []*engine.Block
		var err error
		if part > 0 {
			bs, err = v.ReadPart(log, after, part, readBytes)
		} else {
			bs, err = v.ReadLog(log, after, readBytes)
		}
		if err = errors.Join(err, ctx.Err()); err != nil {
			return err
		}
		if len(bs) == 0 {
			return nil // what is left holds nothing
		}
		for _, b := range bs {
			if err := fn(b); err != nil {
				return err
			}
			if part = b.Part + 1; b.Last {
				after, part = b.Position, 0
			}
		}
	}
	return nil
}

// The kinds of records.
const (
	recordTx     = 0 // log, time, major, position
	recordChange = 1 // + Op: log, time, major and minor of the stamp, schema, key, row
)

// add records a change.
func (s *stretch) add(log engine.LogID, tx *engine.TxHeader, c *engine.Change) error {
	if s.at != tx.Position {
		p := append(s.head[:0], recordTx)
		p = binary.AppendUvarint(p, number(&s.logs, log))
		p = binary.AppendUvarint(p, uint64(tx.Time))
		p = binary.AppendUvarint(p, tx.Major)
		s.head = append(p, tx.Position...)
		if err := s.changes.Append(s.head); err != nil {
			return err
		}
		s.at = tx.Position
	}
	p := append(s.head[:0], recordChange+byte(c.Op))
	p = binary.AppendUvarint(p, number(&s.logs, c.Stamp.Log()))
	p = binary.AppendUvarint(p, uint64(c.Stamp.Time))
	p = binary.AppendUvarint(p, c.Stamp.Version.Major)
	p = binary.AppendUvarint(p, uint64(c.Stamp.Version.Minor))
	p = binary.AppendUvarint(p, number(&s.schemas, c.Schema))
	s.head = binary.AppendUvarint(p, uint64(len(c.Key)))
	return s.changes.Append(s.head, c.Key, c.Row)
}

// number returns the number of a value, of which there are few.
func number[T comparable](all *[]T, v T) uint64 {
	for i := len(*all) - 1; i >= 0; i-- {
		if (*all)[i] == v {
			return uint64(i)
		}
	}
	*all = append(*all, v)
	return uint64(len(*all) - 1)
}

// each passes on the changes.
func (s *stretch) each(emit func(*archive.Entry) error) error {
	r := s.changes.Reader()
	var e archive.Entry
	for {
		p, err := r.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		kind := p[0]
		p = p[1:]
		next := func() uint64 {
			v, n := binary.Uvarint(p)
			p = p[n:]
			return v
		}
		log := s.logs[next()]
		time, major := engine.Time(next()), next()
		if kind == recordTx {
			e.Log, e.Time, e.Major, e.Position = log, time, major, engine.Position(p)
			continue
		}
		e.Change = engine.Change{Op: engine.Op(kind - recordChange), Stamp: engine.Stamp{Origin: log.Origin, Epoch: log.Epoch, Time: time}}
		e.Stamp.Version = engine.Version{Major: major, Minor: uint32(next())}
		e.Schema = s.schemas[next()]
		n := next()
		if e.Key = p[:n:n]; e.Op == engine.OpPut {
			e.Row = engine.Row(p[n:])
		}
		if err := emit(&e); err != nil {
			return err
		}
	}
}

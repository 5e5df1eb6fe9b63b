package engine

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// What the engine has to remember beside the data is kept as the store's meta,
// and written in the commits that it goes with:
//
//	source/NAME        the log that the source mints, and the history behind it
//	memory/NAME        what the source wants to remember itself
//	fact/NAME/KEY      the same, one by one
//	log/ORIGIN@EPOCH   the source that delivers the log, its path and its tables
//	reader/ID          how far a durable reader has got
//	retired/ORIGIN@EPOCH  up to where the rows of the log have been removed
const (
	metaSource  = "source/"
	metaMemory  = "memory/"
	metaFact    = "fact/"
	metaLog     = "log/"
	metaReader  = "reader/"
	metaRetired = "retired/"
)

type savedSource struct {
	Origin  string `json:"origin"`
	Epoch   Epoch  `json:"epoch"`
	History string `json:"history"`
	// At is how far the log had got in an earlier life, and Schemas are the schema IDs that were given
	// out: see Known.
	At      Position `json:"at,omitempty"`
	Schemas uint32   `json:"schemas,omitempty"`
}

type savedLog struct {
	Origin string      `json:"origin"`
	Epoch  Epoch       `json:"epoch"`
	Source string      `json:"source"`
	Order  string      `json:"order,omitempty"`
	Path   []string    `json:"path"`
	Tables []TableName `json:"tables"`
	// Covered is as in logState, without Behind: those tables that the end of the trail is ahead of. A version that
	// knows of no trail has them apart, too.
	Covered []TableName   `json:"covered"`
	Behind  []savedBehind `json:"behind,omitempty"`
	Trail   []savedStep   `json:"trail,omitempty"`
	Whole   Time          `json:"whole,omitempty"`
}

// savedStep is a step of a log's trail.
type savedStep struct {
	From   Position      `json:"from,omitempty"`
	Behind []savedBehind `json:"behind,omitempty"`
}

// savedBehind is a table that a place is ahead of, and how far it is there.
type savedBehind struct {
	Table    TableName `json:"table"`
	Position Position  `json:"position"`
	Time     Time      `json:"time"`
}

// trail returns the trail of the log with that head. What was saved without one says only which tables the head is
// ahead of.
func (l *savedLog) trail(head Position) (t Trail) {
	steps := l.Trail
	if len(steps) == 0 && len(l.Behind) > 0 {
		steps = []savedStep{{From: head, Behind: l.Behind}}
	}
	for _, s := range steps {
		step := TrailStep{s.From, map[TableName]Reached{}}
		for _, b := range s.Behind {
			step.Behind[b.Table] = Reached{b.Position, b.Time}
		}
		t = append(t, step)
	}
	return t
}

// covered returns the tables that the log's cursor has covered, those that it is ahead of too.
func (l *savedLog) covered() []TableName {
	all := l.Covered
	for _, b := range l.Behind {
		if !slices.Contains(all, b.Table) {
			all = append(all, b.Table)
		}
	}
	return all
}

// apart puts tables that the log is ahead of beside the others that its cursor covers.
func (l *savedLog) apart(behind []savedBehind) {
	for _, b := range behind {
		if slices.Contains(l.Covered, b.Table) {
			l.Behind = append(l.Behind, b)
		}
	}
	if len(l.Behind) > 0 {
		l.Covered = slices.DeleteFunc(slices.Clone(l.Covered), func(t TableName) bool {
			return slices.ContainsFunc(l.Behind, func(b savedBehind) bool { return b.Table == t })
		})
	}
}

func saveTrail(t Trail) (saved []savedStep) {
	for _, s := range t {
		step := savedStep{From: s.From}
		for table, r := range s.Behind {
			step.Behind = append(step.Behind, savedBehind{table, r.Position, r.Time})
		}
		saved = append(saved, step)
	}
	return saved
}

func setMeta(tx Tx, key string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return tx.SetMeta(key, b)
}

// getMeta reads what setMeta wrote; ok is false if there is nothing, or nothing
// that can be read.
func getMeta(v View, key string, to any) (ok bool) {
	b := v.Meta(key)
	return b != nil && json.Unmarshal(b, to) == nil
}

// saveLog records what has to be known of a log to serve it after a restart: with the tables that
// it has now, or if tables is nil with those that it had.
func (s *source) saveLog(tx Tx, log LogID, tables []TableName) error {
	e := s.engine
	info, held := tx.Log(log)
	e.mu.Lock()
	saved := savedLog{Origin: log.Origin, Epoch: log.Epoch, Source: s.name, Tables: tables}
	if l := e.logs[log]; l != nil {
		saved.Source, saved.Path, saved.Order, saved.Whole = l.source.name, slices.Clone(l.path), l.compare.Name(), l.whole
		saved.Covered = tables
		if tables == nil {
			saved.Tables, saved.Covered = slices.Clone(l.tables), slices.Clone(l.covered)
		}
		if held && len(l.trail) > 0 {
			l.trail = l.trail.Since(info.Oldest, l.compare)
			saved.Trail = saveTrail(l.trail)
		}
		if n := len(saved.Trail); n > 0 {
			saved.apart(saved.Trail[n-1].Behind)
		}
		l.unsaved = false
	}
	e.mu.Unlock()
	s.mu.Lock()
	own, history := s.own, s.info.History
	s.mu.Unlock()
	if own == log {
		if err := setMeta(tx, metaSource+s.name, savedSource{Origin: own.Origin, Epoch: own.Epoch, History: history}); err != nil {
			return err
		}
	}
	return setMeta(tx, metaLog+log.String(), saved)
}

// saveHistory records another name of the history behind a log that goes on. It comes
// before what is read under that name: a source that is told the old one, and a cursor
// past where that ended, has to take it for a history that parted from its log.
func (s *source) saveHistory(ctx context.Context) error {
	s.mu.Lock()
	own, history := s.own, s.info.History
	s.mu.Unlock()
	v := s.engine.store.View()
	var saved savedSource
	known := getMeta(v, metaSource+s.name, &saved)
	v.Close()
	if !known || saved.History == history || own != (LogID{saved.Origin, saved.Epoch}) {
		return nil
	}
	tx, err := s.engine.store.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	saved.History = history
	if err := setMeta(tx, metaSource+s.name, saved); err != nil {
		return err
	}
	return tx.Commit()
}

// dropLog forgets a log.
func dropLog(tx Tx, log LogID) error {
	for _, meta := range []string{metaLog, metaGone, metaRetired} {
		if err := tx.SetMeta(meta+log.String(), nil); err != nil {
			return err
		}
	}
	return tx.DropLog(log)
}

// restore brings back what a source and its logs were before a restart, so that
// the node serves them before the source has connected.
func (s *source) restore() {
	e := s.engine
	v := e.store.View()
	defer v.Close()
	var saved savedSource
	if getMeta(v, metaSource+s.name, &saved) {
		e.belongs(saved, s.name)
		s.own, s.info.History, s.at, s.given = LogID{saved.Origin, saved.Epoch}, saved.History, saved.At, saved.Schemas
	}
	s.restoreLogs()
	e.mu.Lock()
	defer e.mu.Unlock()
	if l := e.logs[s.own]; l != nil {
		l.history = s.info.History
	}
}

// restoreLogs brings back the logs that the store has of a source. A source that
// carries may put what it remembers into the store until its Init returns.
func (s *source) restoreLogs() {
	e := s.engine
	v := e.store.View()
	defer v.Close()
	var logs []LogID
	e.mu.Lock()
	v.ScanMeta(metaLog, func(key string, value []byte) bool {
		var l savedLog
		if err := json.Unmarshal(value, &l); err != nil {
			e.log.Warn("what was remembered of a log cannot be read", "key", key, "error", err)
			return true
		}
		id := LogID{l.Origin, l.Epoch}
		if info, ok := v.Log(id); ok && l.Source == s.name && e.logs[id] == nil {
			compare := Comparators[l.Order]
			if compare == nil {
				compare = s.sync.ComparePositions
			}
			e.sorted = nil
			trail := l.trail(info.Head)
			if len(trail) > 0 {
				e.trails.Add(1)
			}
			e.logs[id] = &logState{compare: compare, path: l.Path, tables: l.Tables, covered: l.covered(), trail: trail, whole: l.Whole, source: s}
			logs = append(logs, id)
		}
		return true
	})
	e.mu.Unlock()
	if len(logs) > 0 {
		s.mu.Lock()
		s.ready = true
		s.mu.Unlock()
	}
	if err := s.order(logs); err != nil {
		e.log.Warn("logs cannot be read until their source delivers", "source", s.name, "error", err)
	}
}

// order tells the store the comparator of logs, which it cannot keep.
func (s *source) order(logs []LogID) error {
	if len(logs) == 0 {
		return nil
	}
	tx, err := s.engine.store.Begin(context.Background())
	if err != nil {
		return err
	}
	defer tx.Rollback()
	for _, l := range logs {
		if err := tx.Append(l, s.engine.Comparator(l)); err != nil {
			return err
		}
	}
	return tx.Commit()
}

// savedReader is a durable reader.
type savedReader struct {
	Reader string   `json:"reader"`
	Origin string   `json:"origin"`
	Epoch  Epoch    `json:"epoch"`
	Scope  Scope    `json:"scope,omitempty"`
	At     Position `json:"at"`
	When   Time     `json:"when"`
}

func (k readerKey) meta() string {
	return fmt.Sprintf("%s%q/%s/%q", metaReader, k.reader, k.key.Log, k.key.Scope)
}

// restoreReaders brings back the durable readers.
func (e *Engine) restoreReaders() {
	v := e.store.View()
	defer v.Close()
	v.ScanMeta(metaReader, func(key string, value []byte) bool {
		var r savedReader
		if err := json.Unmarshal(value, &r); err != nil || !strings.HasPrefix(key, metaReader) {
			e.log.Warn("what was remembered of a reader cannot be read", "key", key, "error", err)
			return true
		}
		k := readerKey{r.Reader, CursorKey{LogID{r.Origin, r.Epoch}, r.Scope}}
		e.readers[k] = ReaderAck{Reader: r.Reader, Key: k.key, At: r.At, Durable: true, When: r.When.Wall()}
		return true
	})
}

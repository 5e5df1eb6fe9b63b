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
//	log/ORIGIN@EPOCH   the source that delivers the log, its path and its tables
//	reader/ID          how far a durable reader has got
const (
	metaSource = "source/"
	metaMemory = "memory/"
	metaLog    = "log/"
	metaReader = "reader/"
)

type savedSource struct {
	Origin  string `json:"origin"`
	Epoch   Epoch  `json:"epoch"`
	History string `json:"history"`
}

type savedLog struct {
	Origin string      `json:"origin"`
	Epoch  Epoch       `json:"epoch"`
	Source string      `json:"source"`
	Path   []string    `json:"path"`
	Tables []TableName `json:"tables"`
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

// saveLog records what has to be known of a log to serve it after a restart.
func (s *source) saveLog(tx Tx, log LogID, tables []TableName) error {
	e := s.engine
	e.mu.Lock()
	saved := savedLog{Origin: log.Origin, Epoch: log.Epoch, Source: s.name, Tables: tables}
	if l := e.logs[log]; l != nil {
		saved.Path = slices.Clone(l.path)
		if tables == nil {
			saved.Tables = slices.Clone(l.tables)
		}
		l.unsaved = false
	}
	e.mu.Unlock()
	s.mu.Lock()
	own, history := s.own, s.info.History
	s.mu.Unlock()
	if own == log {
		if err := setMeta(tx, metaSource+s.name, savedSource{own.Origin, own.Epoch, history}); err != nil {
			return err
		}
	}
	return setMeta(tx, metaLog+log.String(), saved)
}

// dropLog forgets a log.
func dropLog(tx Tx, log LogID) error {
	if err := tx.SetMeta(metaLog+log.String(), nil); err != nil {
		return err
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
		s.own, s.info.History = LogID{saved.Origin, saved.Epoch}, saved.History
	}
	s.restoreLogs()
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
		if _, ok := v.Log(id); ok && l.Source == s.name && e.logs[id] == nil {
			e.logs[id] = &logState{compare: s.sync.ComparePositions, path: l.Path, tables: l.Tables, source: s}
			logs = append(logs, id)
		}
		return true
	})
	e.mu.Unlock()
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
		if err := tx.Append(l, s.sync.ComparePositions); err != nil {
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

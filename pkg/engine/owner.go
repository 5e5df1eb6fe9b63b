package engine

import (
	"encoding/json"
	"fmt"
	"slices"
)

// A store is one node's. Rows stay in it until the log that they came by deletes
// them, or a baseline of its origin lacks them. So rows that came by a source that
// the node has no longer, in a table that another source brings, would stay for good,
// though the table has them no more. Neither is guessed at: both are refused.

// belongs notes that the store is another node's.
func (e *Engine) belongs(saved savedSource, source string) {
	if saved.Origin != "" && saved.Origin != Origin(e.id, source) && e.foreign == nil {
		e.foreign = fmt.Errorf("the store holds log %s, which another node minted, and this node is %s: what the other has written would stay here for good. "+
			"Give this node the id that it had, or an empty directory of its own", LogID{saved.Origin, saved.Epoch}, e.id)
	}
}

// orphaned says why the source cannot be the one to baseline tables: they have rows
// of a source that the node had before, and has no longer.
func (s *source) orphaned(log LogID, tables []TableName) error {
	e := s.engine
	if !e.store.Durable() {
		return nil
	}
	v := e.store.View()
	defer v.Close()
	there := map[string]bool{s.name: true}
	for _, o := range e.sources {
		there[o.name] = true
	}
	if own := e.writes.own; own != nil {
		there[own.name] = true
	}
	gone := map[string]string{} // source by origin
	var known []TableName       // that this source has brought before
	v.ScanMeta(metaLog, func(_ string, value []byte) bool {
		var l savedLog
		if json.Unmarshal(value, &l) != nil {
			return true
		}
		switch {
		case l.Origin == log.Origin:
			known = append(known, l.Tables...)
		case !there[l.Source]:
			gone[l.Origin] = l.Source
		}
		return true
	})
	if len(gone) == 0 {
		return nil
	}
	for _, t := range tables {
		if slices.Contains(known, t) {
			continue
		}
		var origin string
		err := v.Scan(t, nil, func(r *Record) bool {
			if _, ok := gone[r.Stamp.Origin]; ok && !r.Deleted {
				origin = r.Stamp.Origin
			}
			return origin == ""
		})
		if err != nil {
			return err
		}
		if origin != "" {
			return &SourceError{Reason: ReasonPreflightFailed, Permanent: true, Err: fmt.Errorf(
				"the store has rows of table %s that came from %s by source %q, which this node has no longer: those that the table lacks by now would stay for good. "+
					"Call the source %q again, or give the node an empty store", t, origin, gone[origin], gone[origin])}
		}
	}
	return nil
}

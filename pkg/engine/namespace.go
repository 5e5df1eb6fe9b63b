package engine

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
)

// NamespaceByOrigin is done where a log is minted: what the source delivers gets
// one more column, of the key, with the origin in it. The log, the state, readers
// and sinks then have a table that has such a column, and know of nothing else.

// originNumber is the attribute number of the column that is added: above those
// that PostgreSQL gives (MaxHeapAttributeNumber is 1600).
const originNumber = math.MaxInt16

// namespaceMark separates a source's history from the tables to which the origin
// is added: other tables are another history.
const namespaceMark = "; by origin: "

// namespaced is a source whose rows get the origin into their keys.
type namespaced struct {
	SyncSource
	conflicts *Conflicts
	column    map[TableName]string // of the tables that get one
	epochs    map[TableName]bool   // of those, that get the epoch too

	origin string
	// changed says that the rows there are have been written under other keys.
	changed bool

	mu   sync.Mutex
	full map[*Schema]*Schema // by the source's own
	bare map[*Schema]*Schema // by that of the log
}

// namespace wraps a source if one of its tables may get the origin into its key,
// or has had it there before, by the history that is remembered.
func namespace(s SyncSource, c *Conflicts, history string) SyncSource {
	n := &namespaced{SyncSource: s, conflicts: c, column: map[TableName]string{}, epochs: map[TableName]bool{}, full: map[*Schema]*Schema{}, bare: map[*Schema]*Schema{}}
	if c != nil {
		for t := range c.rules {
			if r := c.rule(t); r != nil && r.Policy == NamespaceByOrigin {
				n.column[t], n.epochs[t] = r.Column, r.PerEpoch
			}
		}
	}
	if len(n.column) == 0 && !strings.Contains(history, namespaceMark) {
		return s
	}
	return n
}

// Init gives the source its history, and the schemas of its log, as it made them.
func (n *namespaced) Init(ctx context.Context, env Env) (Info, error) {
	n.origin = Origin(env.NodeID, env.Source)
	history, was, _ := strings.Cut(env.History, namespaceMark)
	inner := env
	inner.History, inner.Schemas = history, NewSchemaSet()
	now := n.mark()
	if n.changed = env.History != "" && was != now; n.changed {
		// The source begins a log as if there were none.
		inner.History, inner.Cursor, inner.Memory = "", "", nil
	} else if env.Schemas != nil {
		inner.Schemas = env.Schemas.mapped(n.without)
	}
	info, err := n.SyncSource.Init(ctx, inner)
	if err != nil || !info.Mints {
		return info, err
	}
	if now != "" {
		info.History += namespaceMark + now
	}
	if n.changed {
		info.Continues, info.RolledBackTo = false, 0
	}
	info.Tables, err = n.schemas(info.Tables)
	return info, err
}

// mark names the tables that get the origin, and the columns.
func (n *namespaced) mark() string {
	var all []string
	for t, c := range n.column {
		by := fmt.Sprintf("%q.%q(%q)", t.Schema, t.Name, c)
		if n.epochs[t] {
			by += " per epoch"
		}
		all = append(all, by)
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

// Baseline and Stream deliver through a sink that adds the origin.
func (n *namespaced) Baseline(ctx context.Context, sink Sink) error {
	return n.SyncSource.Baseline(ctx, namespacedSink{sink, n})
}

func (n *namespaced) Stream(ctx context.Context, from Cursors, sink Sink) error {
	return n.SyncSource.Stream(ctx, from, namespacedSink{sink, n})
}

// with returns the log's schema for one of the source's.
func (n *namespaced) with(s *Schema) (*Schema, error) {
	column := n.column[s.Table]
	if column == "" {
		return s, nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if f := n.full[s]; f != nil {
		return f, nil
	}
	f := *s
	for _, c := range s.Columns {
		if c.Name == column || c.Number >= sinceNumber || n.epochs[s.Table] && (c.Name == EpochColumn || c.Name == SinceColumn) {
			return nil, &SourceError{Reason: ReasonTableChanged, Permanent: true, Err: fmt.Errorf(
				"table %s has a column %q, and its conflict policy %s is to add one of that name: name another for it, as originColumn", s.Table, c.Name, NamespaceByOrigin)}
		}
	}
	f.Columns = append(slices.Clone(s.Columns), Column{
		Name: column, Number: originNumber, TypeOID: 25, TypeName: "text", TypeMod: -1,
		Key: !s.Multiset(), // without a key all columns are the key, and this one too
	})
	if n.epochs[s.Table] {
		f.Columns = append(f.Columns, shareColumns(!s.Multiset())...)
	}
	n.full[s] = &f
	return &f, nil
}

// without returns the source's schema for one of the log's, or nil if that does
// not have the origin where it is to have it.
func (n *namespaced) without(f *Schema) *Schema {
	if n.column[f.Table] == "" {
		return f
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if s := n.bare[f]; s != nil {
		return s
	}
	last := len(f.Columns) - n.added(f.Table)
	if last < 0 || f.Columns[last].Number != originNumber {
		return nil
	}
	s := *f
	s.Columns = slices.Clone(f.Columns[:last])
	n.bare[f] = &s
	return &s
}

func (n *namespaced) schemas(all []*Schema) ([]*Schema, error) {
	out := make([]*Schema, len(all))
	for i, s := range all {
		var err error
		if out[i], err = n.with(s); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// added is how many columns a table gets.
func (n *namespaced) added(t TableName) int {
	if n.epochs[t] {
		return 3
	}
	return 1
}

// appendKey adds a key with the origin as its last part, and the epoch where the
// table is by epoch.
func (n *namespaced) appendKey(dst, key []byte, by *sharing) []byte {
	dst = AppendKeyValue(append(dst, key...), n.origin)
	if by != nil {
		dst = AppendKeyValue(dst, epochText(by.epoch))
	}
	return dst
}

// appendRow adds a row with the origin as its last column, and the epochs where the
// table is by epoch.
func (n *namespaced) appendRow(dst []byte, row Row, by *sharing, table TableName, key []byte) ([]byte, error) {
	id, columns, body, err := row.Header()
	if err != nil {
		return nil, err
	}
	if by == nil {
		return AppendValue(append(AppendRowHeader(dst, id, columns+1), body...), n.origin), nil
	}
	since, err := by.since(table, key)
	if err != nil {
		return nil, err
	}
	dst = AppendValue(append(AppendRowHeader(dst, id, columns+3), body...), n.origin)
	return AppendValue(AppendValue(dst, epochText(by.epoch)), epochText(since)), nil
}

// room is what a key and a row grow by, at most.
func (n *namespaced) room() int { return 2*len(n.origin) + 128 }

// carve returns what has been appended to buf from an offset on, fenced off.
func carve(buf []byte, from int) []byte { return buf[from:len(buf):len(buf)] }

// changes returns a run of changes as they are in the log, in memory of their own.
func (n *namespaced) changes(all []Change, by *sharing) ([]Change, error) {
	size := 0
	for i := range all {
		size += len(all[i].Key) + len(all[i].OldKey) + len(all[i].Row) + 2*n.room()
	}
	buf := make([]byte, 0, size)
	out := slices.Clone(all)
	for i := range out {
		c := &out[i]
		if n.column[c.Schema.Table] == "" {
			continue
		}
		var err error
		if c.Schema, err = n.with(c.Schema); err != nil {
			return nil, err
		}
		share, err := n.sharing(c.Schema.Table, by)
		if err != nil {
			return nil, err
		}
		for _, k := range []*[]byte{&c.Key, &c.OldKey} {
			if *k != nil {
				from := len(buf)
				buf = n.appendKey(buf, *k, share)
				*k = carve(buf, from)
			}
		}
		if c.Row != nil {
			from := len(buf)
			if buf, err = n.appendRow(buf, c.Row, share, c.Schema.Table, c.Key); err != nil {
				return nil, fmt.Errorf("table %s: %w", c.Schema.Table, err)
			}
			c.Row = carve(buf, from)
		}
		if share != nil {
			share.did(c)
		}
	}
	return out, nil
}

// transactions returns transactions as they are in the log.
func (n *namespaced) transactions(txs []Transaction) ([]Transaction, error) {
	out := slices.Clone(txs)
	for i := range out {
		if err := n.transaction(&out[i], &txs[i]); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (n *namespaced) transaction(t, theirs *Transaction) (err error) {
	if t.Schemas, err = n.schemas(theirs.Schemas); err != nil {
		return err
	}
	if t.Changes, err = n.changes(theirs.Changes, nil); err != nil {
		return err
	}
	for i, w := range t.Tables {
		if w, ok := w.(namespacedWriter); ok {
			if i == 0 {
				t.Tables = slices.Clone(t.Tables)
			}
			t.Tables[i] = w.BaselineWriter
		}
	}
	if more := theirs.More; more != nil {
		t.More = func() ([]Change, error) {
			run, err := more()
			if err != nil {
				return nil, err
			}
			return n.changes(run, nil)
		}
	}
	if made := theirs.Make; made != nil {
		t.Make = func(t *Transaction, state Rows) error {
			theirs.Log, theirs.Prev, theirs.Time = t.Log, t.Prev, t.Time
			by := &sharing{epoch: t.Log.Epoch, state: state, ended: map[shareKey]Epoch{}}
			if err := made(theirs, namespacedRows{state, n, by}); err != nil {
				return err
			}
			t.Time, t.Memory, t.Remember = theirs.Time, theirs.Memory, theirs.Remember
			var err error
			t.Changes, err = n.changes(theirs.Changes, by)
			return err
		}
	}
	return nil
}

// namespacedSink adds the origin to what passes through it.
type namespacedSink struct {
	Sink
	n *namespaced
}

// Covered is as in Covering: a mesh is among the sources that are wrapped.
func (s namespacedSink) Covered(log LogID) []TableName {
	if c, ok := s.Sink.(Covering); ok {
		return c.Covered(log)
	}
	return nil
}

// Behind is as in Covering.
func (s namespacedSink) Behind(log LogID, at Position) map[TableName]Reached {
	if c, ok := s.Sink.(Covering); ok {
		return c.Behind(log, at)
	}
	return nil
}

// Durable is as in Lasting.
func (s namespacedSink) Durable() bool {
	l, ok := s.Sink.(Lasting)
	return ok && l.Durable()
}

func (s namespacedSink) Apply(ctx context.Context, txs []Transaction) error {
	txs, err := s.n.transactions(txs)
	if err != nil {
		return err
	}
	return s.Sink.Apply(ctx, txs)
}

func (s namespacedSink) Baseline(ctx context.Context, spec BaselineSpec) (BaselineWriter, error) {
	if !spec.Log.IsZero() {
		return s.Sink.Baseline(ctx, spec) // of a carried log, minted as it is to be
	}
	if spec.Standing && s.n.changed {
		return nil, &SourceError{Reason: ReasonTableChanged, Permanent: true, Err: errors.New(
			"the tables whose conflict policy is NamespaceByOrigin are not those that they were, and there is no other copy of the rows to write them again from: put the former policies back, or give the node a new store and write the rows anew")}
	}
	var err error
	if spec.Schemas, err = s.n.schemas(spec.Schemas); err != nil {
		return nil, err
	}
	w, err := s.Sink.Baseline(ctx, spec)
	if err != nil {
		return nil, err
	}
	return namespacedWriter{w, s.n}, nil
}

// namespacedWriter adds the origin to the rows of a baseline.
type namespacedWriter struct {
	BaselineWriter
	n *namespaced
}

func (w namespacedWriter) Rows(table TableName, rs []Record) error {
	if w.n.column[table] == "" {
		return w.BaselineWriter.Rows(table, rs)
	}
	size := 0
	for i := range rs {
		size += len(rs[i].Key) + len(rs[i].Row) + w.n.room()
	}
	buf := make([]byte, 0, size)
	out := slices.Clone(rs)
	for i := range out {
		r := &out[i]
		var err error
		if r.Schema, err = w.n.with(r.Schema); err != nil {
			return err
		}
		if _, err := w.n.sharing(table, nil); err != nil {
			return err
		}
		from := len(buf)
		buf = w.n.appendKey(buf, r.Key, nil)
		r.Key = carve(buf, from)
		if r.Row != nil {
			from := len(buf)
			if buf, err = w.n.appendRow(buf, r.Row, nil, table, nil); err != nil {
				return fmt.Errorf("table %s: %w", table, err)
			}
			r.Row = carve(buf, from)
		}
	}
	return w.BaselineWriter.Rows(table, out)
}

func (w namespacedWriter) Apply(txs []Transaction) error {
	txs, err := w.n.transactions(txs)
	if err != nil {
		return err
	}
	return w.BaselineWriter.Apply(txs)
}

// namespacedRows shows a source the state as it knows it: its own rows, without
// the origin.
type namespacedRows struct {
	Rows
	n  *namespaced
	by *sharing
}

func (r namespacedRows) Get(table TableName, key []byte) (Record, bool, error) {
	if r.n.column[table] == "" {
		return r.Rows.Get(table, key)
	}
	share, err := r.n.sharing(table, r.by)
	if err != nil {
		return Record{}, false, err
	}
	rec, ok, err := r.Rows.Get(table, r.n.appendKey(nil, key, share))
	if err != nil || !ok {
		return rec, ok, err
	}
	s := r.n.without(rec.Schema)
	if s == nil {
		return Record{}, false, nil // written under another policy
	}
	rec.Schema, rec.Key = s, slices.Clone(key)
	if rec.Row != nil {
		id, columns, body, err := rec.Row.Header()
		if err != nil {
			return rec, false, err
		}
		rest := body
		kept := columns - r.n.added(table)
		for range kept {
			if _, _, rest, err = NextColumn(rest); err != nil {
				return rec, false, err
			}
		}
		rec.Row = append(AppendRowHeader(nil, id, kept), body[:len(body)-len(rest)]...)
	}
	return rec, true, nil
}

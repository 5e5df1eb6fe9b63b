// Package archive is the source of a node that has no database: it replays the
// archives of tables, and follows them while they are written.
//
// The logs keep their identity, positions and stamps, as if a node had served them,
// so that readers go on from where they were in the topology that the archives are
// of. A log of an archive that has been replaced by that of another history is another
// epoch, and is taken in by a new baseline. One replaced by an older state of the same
// history is refused: a cursor never goes back within an epoch.
//
// Several tables start consistent. Their archives end at different positions where
// the writer was stopped between two of them, or is writing them now; the source
// stays at the newest vector that it finds in all of them. Where there is none, it
// takes each as far as it goes, and its cursor is that of the one that is behind: the
// others' rows may be ahead of it, and come again. Archives of one log that were not written
// together, such as two exports of a table each, do not wait for each other: each is taken as far as it goes, and the
// cursor is that of the newest. Those of two epochs of an origin are not served together.
//
// Limits: what is followed comes a diff at a time, each log's as one transaction of
// what changed, with its last value.
package archive

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tributary-dev/tributary/pkg/archive"
	"github.com/tributary-dev/tributary/pkg/archive/dest"
	"github.com/tributary-dev/tributary/pkg/archive/dest/local"
	"github.com/tributary-dev/tributary/pkg/engine"
)

// Table is a table and the archive of it.
type Table struct {
	Name   engine.TableName
	Reader *archive.Reader
	// StatePath is, of the logs of this table alone, what Config.StatePath is of all. Empty for none.
	StatePath string
}

// Config describes a source. Name and Tables are required.
type Config struct {
	Name   string
	Tables []Table
	// Follow says that what is appended to the archives is replayed too. Poll is how
	// often they are looked at; DefaultPoll when 0.
	Follow bool
	Poll   time.Duration
	// StatePath is a file that says how far the node has got, for people and for
	// tools: the node itself goes on from its store. Empty for none.
	StatePath string
	Compare   engine.Comparator // of positions whose log does not say; nil: engine.CompareLSN
	Ordering  engine.Ordering   // what is promised; empty: engine.PerLogOrder
	Logger    *slog.Logger      // nil: slog.Default()
}

// DefaultPoll is how often archives are looked at that are followed.
const DefaultPoll = 5 * time.Second

// Source is an engine.SyncSource over archives.
type Source struct {
	cfg Config
	env engine.Env
	// at is how far each table was taken in; nil until it is known, in each life of the source. It is the cursor of
	// its logs, unless the archives have no position in common.
	at  []archive.Vector
	had []engine.LogID // the logs that the node had when it was last followed

	mu      sync.Mutex
	acked   map[engine.LogID]engine.Cursor
	orders  map[engine.LogID]engine.Comparator
	tables  map[engine.LogID][]engine.TableName
	folders map[string]dest.Destination // of the state files that were written
	saved   map[string]string           // what was written to each
	resume  chan struct{}               // closed by Resume; nil if not paused
}

var _ engine.SyncSource = (*Source)(nil)

// New returns a source.
func New(c Config) (*Source, error) {
	if len(c.Tables) == 0 {
		return nil, fmt.Errorf("source %s: it has no tables: name the tables whose archives are to be replayed", c.Name)
	}
	c.Poll, c.Ordering = cmp.Or(c.Poll, DefaultPoll), cmp.Or(c.Ordering, engine.PerLogOrder)
	if c.Compare == nil {
		c.Compare = engine.CompareLSN
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	s := &Source{cfg: c, acked: map[engine.LogID]engine.Cursor{}, orders: map[engine.LogID]engine.Comparator{},
		tables: map[engine.LogID][]engine.TableName{}, folders: map[string]dest.Destination{}, saved: map[string]string{}}
	err := s.load(c.StatePath)
	for _, t := range c.Tables {
		err = errors.Join(err, s.load(t.StatePath))
	}
	return s, err
}

// Init reads the manifests.
func (s *Source) Init(ctx context.Context, env engine.Env) (engine.Info, error) {
	s.env, s.at = env, nil
	info := engine.Info{}
	for _, t := range s.cfg.Tables {
		m, err := t.Reader.Manifest(ctx)
		if err != nil {
			return info, s.asSourceError(t, err)
		}
		info.Tables = append(info.Tables, &engine.Schema{Table: m.Table, Columns: m.Columns})
	}
	return info, nil
}

// asSourceError says what an error of an archive means to the node.
func (s *Source) asSourceError(t Table, err error) error {
	reason, permanent := engine.ReasonDisconnected, false
	switch {
	case errors.Is(err, archive.ErrNoArchive):
		reason = engine.ReasonTableNotFound
	case errors.Is(err, archive.ErrVersion), errors.Is(err, archive.ErrOtherTable), errors.Is(err, archive.ErrCorrupt), errors.Is(err, dest.ErrDenied):
		reason, permanent = engine.ReasonPreflightFailed, true
	}
	return &engine.SourceError{Reason: reason, Permanent: permanent, Err: fmt.Errorf("archive of %s: %w", t.Name, err)}
}

// Baseline delivers the state of all tables at one cut.
func (s *Source) Baseline(ctx context.Context, sink engine.Sink) error {
	ms, err := s.manifests(ctx)
	if err != nil {
		return err
	}
	at, err := s.cut(ctx, ms, nil)
	if err != nil {
		return err
	}
	s.mu.Lock()
	clear(s.acked) // what another store had does not count
	s.mu.Unlock()
	if _, err := s.deliver(ctx, sink, at, nil, s.settled(ms, at)); err != nil {
		return err
	}
	s.at = at
	return nil
}

// Stream follows the archives.
func (s *Source) Stream(ctx context.Context, from engine.Cursors, sink engine.Sink) error {
	s.had = nil
	for k := range from {
		s.had = append(s.had, k.Log)
	}
	for first := true; ; first = false {
		if err := s.await(ctx); err != nil {
			return err
		}
		if first || s.cfg.Follow {
			if err := s.advance(ctx, from, sink, first); err != nil {
				return err
			}
		}
		wait := s.cfg.Poll
		if !s.cfg.Follow {
			wait = time.Hour // nothing more comes
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait):
		}
	}
}

// advance takes in what the archives have beyond from, and moves it.
func (s *Source) advance(ctx context.Context, from engine.Cursors, sink engine.Sink, carry bool) error {
	ahead := false
	ms, err := s.manifests(ctx)
	if err != nil {
		return err
	}
	logs, tables := map[engine.LogID]archive.Cursor{}, map[engine.LogID][]engine.TableName{}
	has := make([]archive.Vector, len(s.cfg.Tables))
	apart := s.settled(ms, ends(ms)) && !s.behindAll(ms, from)
	for i, t := range s.cfg.Tables {
		m := ms[i]
		var cs []archive.Cursor
		for _, c := range m.Through {
			at, ok := s.has(sink, i, c, from, apart)
			if !ok {
				return fmt.Errorf("%w: the archive of %s has log %s, of which this node has not that table", engine.ErrReBaselineRequired, t.Name, c.Log)
			}
			logs[c.Log], tables[c.Log] = c, append(tables[c.Log], t.Name)
			cs = append(cs, at)
			sink.Head(c.Log, engine.Head{Position: c.Position, Time: c.Time})
		}
		has[i] = archive.NewVector(cs...)
		p, err := t.Reader.Poll(ctx, has[i])
		switch {
		case err != nil:
			return s.asSourceError(t, err)
		case p.Kind == archive.PollReplaced:
			if behind := s.behind(m.Through, has[i]); behind != "" {
				return &engine.SourceError{Reason: engine.ReasonPreflightFailed, Permanent: true, Err: fmt.Errorf(
					"archive of %s: it was replaced by an older state of the same history: %s; put the newer one back, or empty this node's store and restart it to go back", t.Name, behind)}
			}
			if s.moves(m.Through, from) {
				return fmt.Errorf("%w: the archive of %s was replaced: %s", engine.ErrReBaselineRequired, t.Name, p.Reason)
			}
		case p.Kind == archive.PollAppended:
			ahead = ahead || s.moves(m.Through, from)
		}
	}
	s.at = has
	for log, c := range logs {
		if carry {
			if err := s.carry(sink, c, tables[log]); err != nil {
				return err
			}
		}
	}
	if !ahead {
		return nil
	}
	to, err := s.cut(ctx, ms, has)
	if err != nil || to == nil {
		return err
	}
	cursors, err := s.deliver(ctx, sink, to, has, s.settled(ms, to))
	if err != nil {
		return err
	}
	for _, c := range cursors {
		from[c.CursorKey] = c
	}
	s.at = to
	return nil
}

// moves reports whether an archive goes past the node's cursors. One that was written apart may have come
// just to where another has moved the cursor. Readers that are there would not learn of what it brings, so that waits until
// one of them goes on.
func (s *Source) moves(v archive.Vector, from engine.Cursors) bool {
	return slices.ContainsFunc(v, func(c archive.Cursor) bool {
		return s.compare(c)(c.Position, from[engine.CursorKey{Log: c.Log}].Position) > 0
	})
}

// has returns how far the node has a table of a log: as far as it was taken in, which is as far as the log's
// cursor says if that covers the table, or as far as was noted with the rows if the cursor is ahead of it.
func (s *Source) has(sink engine.Sink, table int, c archive.Cursor, from engine.Cursors, apart bool) (archive.Cursor, bool) {
	if s.at != nil {
		return s.at[table].Cursor(c.Log)
	}
	cur, ok := from[engine.CursorKey{Log: c.Log}]
	if covering, is := sink.(engine.Covering); ok && is {
		name := s.cfg.Tables[table].Name
		if r, is := covering.Behind(c.Log, cur.Position)[name]; is {
			return archive.Cursor{Log: c.Log, Position: r.Position, Time: r.Time, Order: c.Order}, r.Position != "" // else it is not known
		}
		ok = slices.Contains(covering.Covered(c.Log), name)
	}
	if apart && s.compare(c)(c.Position, cur.Position) < 0 {
		return c, ok // the node has more of it, by another source
	}
	return archive.Cursor{Log: c.Log, Position: cur.Position, Time: cur.Time, Order: c.Order}, ok
}

// manifests reads the manifests of all tables.
func (s *Source) manifests(ctx context.Context) ([]*archive.Manifest, error) {
	ms := make([]*archive.Manifest, len(s.cfg.Tables))
	for i, t := range s.cfg.Tables {
		m, err := t.Reader.Manifest(ctx)
		if err != nil {
			return nil, s.asSourceError(t, err)
		}
		ms[i] = m
	}
	return ms, s.ofOneHistory(ends(ms))
}

// ends are the vectors that archives go up to.
func ends(ms []*archive.Manifest) []archive.Vector {
	out := make([]archive.Vector, len(ms))
	for i, m := range ms {
		out[i] = m.Through
	}
	return out
}

// settled reports whether all archives are where those are that are written together with them. Then
// each stands for its table wherever another that is written apart has got to.
func (s *Source) settled(ms []*archive.Manifest, at []archive.Vector) bool {
	place := make(map[engine.TableName]int, len(ms))
	for i, t := range s.cfg.Tables {
		place[t.Name] = i
	}
	for i, m := range ms {
		if len(m.Together) == 0 {
			return false // not recorded
		}
		for _, t := range m.Together {
			j, ok := place[t]
			if !ok {
				continue // it is not read here
			}
			for _, c := range at[i] {
				if o, ok := at[j].Cursor(c.Log); ok && o.Position != c.Position {
					return false
				}
			}
		}
	}
	return true
}

// behindAll reports whether there is a log of which no archive goes up to the node's cursor.
func (s *Source) behindAll(ms []*archive.Manifest, from engine.Cursors) bool {
	reached := map[engine.LogID]bool{}
	for _, m := range ms {
		for _, c := range m.Through {
			reached[c.Log] = reached[c.Log] || s.compare(c)(c.Position, from[engine.CursorKey{Log: c.Log}].Position) >= 0
		}
	}
	for _, ok := range reached {
		if !ok {
			return true
		}
	}
	return false
}

// ofOneHistory refuses archives of which one is of an older epoch of an origin than another: an epoch is
// one history, and the node can have but the newer one.
func (s *Source) ofOneHistory(ends []archive.Vector) error {
	type seen struct {
		table int
		epoch engine.Epoch
	}
	of := map[string]seen{}
	for i, v := range ends {
		for _, c := range v {
			is, ok := of[c.Log.Origin]
			if !ok {
				of[c.Log.Origin] = seen{i, c.Log.Epoch}
				continue
			}
			old, young := i, is.table
			switch {
			case is.epoch == c.Log.Epoch:
				continue
			case is.epoch < c.Log.Epoch:
				old, young = young, old
			}
			older, newer := s.cfg.Tables[old].Name, s.cfg.Tables[young].Name
			return &engine.SourceError{Reason: engine.ReasonPreflightFailed, Err: fmt.Errorf(
				"the archive of %s is of an older history of %s than that of %s, and what is served together must be of one: it goes on once %s is archived again by the writer of %s, or is left out",
				older, c.Log.Origin, newer, older, newer)}
		}
	}
	return nil
}

// behind says where an archive is before what the node has of it, in the same epoch.
func (s *Source) behind(v, has archive.Vector) string {
	for _, c := range v {
		if cur, ok := has.Cursor(c.Log); ok && s.compare(c)(c.Position, cur.Position) < 0 {
			return fmt.Sprintf("it ends at %s of log %s, and this node is at %s", c.Position, c.Log, cur.Position)
		}
	}
	return ""
}

func (s *Source) compare(c archive.Cursor) engine.Comparator {
	if f := engine.Comparators[c.Order]; f != nil {
		return f
	}
	return s.cfg.Compare
}

// carry declares a log, by way of the node that minted it: so that node does not take
// its own log back from here.
func (s *Source) carry(sink engine.Sink, c archive.Cursor, tables []engine.TableName) error {
	node, _, _ := strings.Cut(c.Log.Origin, "#")
	s.mu.Lock()
	s.orders[c.Log], s.tables[c.Log] = s.compare(c), tables
	s.mu.Unlock()
	return sink.Carry(c.Log, s.compare(c), []string{node}, tables)
}

// order returns how a log's positions are ordered. Callers hold s.mu.
func (s *Source) order(log engine.LogID) engine.Comparator {
	if f := s.orders[log]; f != nil {
		return f
	}
	return s.cfg.Compare
}

// Ack notes how far the node has got. State files are written by what is durable.
func (s *Source) Ack(c engine.Cursor, durable bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if old, ok := s.acked[c.Log]; ok && s.order(c.Log)(c.Position, old.Position) <= 0 {
		return
	}
	s.acked[c.Log] = c
	if !durable {
		return
	}
	err := s.save(s.cfg.StatePath, nil)
	for _, t := range s.cfg.Tables {
		err = errors.Join(err, s.save(t.StatePath, &t.Name))
	}
	if err != nil {
		s.cfg.Logger.Warn("the state file of a source could not be written", "source", s.cfg.Name, "error", err)
	}
}

// LastAckedPosition returns the newest position acknowledged in a log.
func (s *Source) LastAckedPosition(log engine.LogID) engine.Position {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.acked[log].Position
}

// SupportsResume reports that archives are gone on with from a cursor.
func (s *Source) SupportsResume() bool { return true }

// OrderingGuarantee returns what is configured.
func (s *Source) OrderingGuarantee() engine.Ordering { return s.cfg.Ordering }

// ComparePositions orders positions as configured.
func (s *Source) ComparePositions(a, b engine.Position) int { return s.cfg.Compare(a, b) }

// PositionToString returns a position as it is: positions are strings already.
func (s *Source) PositionToString(p engine.Position) string { return string(p) }

// PositionFromString takes any string that is a position at all; under PostgreSQL
// LSN order only an LSN.
func (s *Source) PositionFromString(text string) (engine.Position, error) {
	if text == "" {
		return "", errors.New("an empty position is before everything, and names no place in a log")
	}
	if s.cfg.Compare.Name() == "lsn" {
		if _, err := engine.ParseLSN(engine.Position(text)); err != nil {
			return "", fmt.Errorf("source: %w", err)
		}
	}
	return engine.Position(text), nil
}

// Pause stops what is replayed; Resume goes on.
func (s *Source) Pause() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.resume == nil {
		s.resume = make(chan struct{})
	}
}

// Resume undoes Pause.
func (s *Source) Resume() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.resume != nil {
		close(s.resume)
		s.resume = nil
	}
}

// await waits while the source is paused.
func (s *Source) await(ctx context.Context) error {
	s.mu.Lock()
	resume := s.resume
	s.mu.Unlock()
	if resume == nil {
		return ctx.Err()
	}
	select {
	case <-resume:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// stateFile is what the state file says.
type stateFile struct {
	Logs []stateLog `json:"logs"`
}

type stateLog struct {
	Origin   string `json:"origin"`
	Epoch    uint64 `json:"epoch"`
	Position string `json:"position"`
	Time     uint64 `json:"time"`
}

// load reads a state file, if there is one.
func (s *Source) load(path string) error {
	if path == "" {
		return nil
	}
	b, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	var f stateFile
	if err == nil {
		err = json.Unmarshal(b, &f)
	}
	if err != nil {
		return fmt.Errorf("source %s: the state file %s cannot be read: %w; delete it to do without", s.cfg.Name, path, err)
	}
	for _, l := range f.Logs {
		id := engine.LogID{Origin: l.Origin, Epoch: engine.Epoch(l.Epoch)}
		s.acked[id] = engine.Cursor{CursorKey: engine.CursorKey{Log: id}, Position: engine.Position(l.Position), Time: engine.Time(l.Time)}
	}
	return nil
}

// save replaces a state file: of all logs, or of those of a table. Callers hold s.mu.
func (s *Source) save(path string, of *engine.TableName) error {
	if path == "" {
		return nil
	}
	var f stateFile
	for log, c := range s.acked {
		if of == nil || slices.Contains(s.tables[log], *of) {
			f.Logs = append(f.Logs, stateLog{log.Origin, uint64(log.Epoch), string(c.Position), uint64(c.Time)})
		}
	}
	slices.SortFunc(f.Logs, func(a, b stateLog) int {
		return cmp.Or(cmp.Compare(a.Origin, b.Origin), cmp.Compare(a.Epoch, b.Epoch))
	})
	b, err := json.MarshalIndent(f, "", "  ")
	if err != nil || s.saved[path] == string(b) || of != nil && len(f.Logs) == 0 {
		return err
	}
	d := s.folders[filepath.Dir(path)]
	if d == nil {
		if d, err = local.New(filepath.Dir(path)); err != nil {
			return err
		}
		s.folders[filepath.Dir(path)] = d
	}
	w, err := d.Create(context.Background(), filepath.Base(path))
	if err != nil {
		return err
	}
	defer w.Abort()
	if _, err := w.Write(append(b, '\n')); err != nil {
		return err
	}
	if err := w.Commit(); err != nil {
		return err
	}
	s.saved[path] = string(b)
	return nil
}

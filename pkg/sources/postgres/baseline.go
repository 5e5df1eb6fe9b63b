package postgres

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/tributary-dev/tributary/pkg/engine"
)

const (
	// baselineBatch is how many bytes of rows go to the engine at once.
	baselineBatch = 512 << 10
	// idlePing keeps the replication session alive, and its death noticed, while
	// a long baseline goes on.
	idlePing = 10 * time.Second
)

// Baseline implements engine.SyncSource: a new slot, a copy of every table in
// the snapshot that it exports, and a session that Stream goes on with.
func (s *Source) Baseline(ctx context.Context, sink engine.Sink) error {
	s.takeSession().end()
	s.env.Report(engine.ReasonBaselining, nil)
	tables, id, err := s.prepare(ctx)
	if err != nil {
		return err
	}
	if s.cfg.Permanent {
		err = s.dropPermanent(ctx)
	}
	if err != nil {
		return s.asSourceError(err)
	}
	defer s.watch(ctx, s.firstSlot())()
	var sess *session
	for range baselineTries {
		if sess, err = s.tryBaseline(ctx, sink, id, namesOf(tables)); !errors.Is(err, errRewritten) && !errors.Is(err, errLocked) {
			break
		}
		s.env.Logger.Info("baseline begins again", "server", s.server(), "error", err)
		if serr := sleep(ctx, rand.N(lockWait)); serr != nil {
			return serr
		}
	}
	if err != nil {
		return s.asSourceError(err)
	}
	s.id = sess.id
	s.acked.Store(uint64(sess.consistent))
	s.mu.Lock()
	s.session = sess
	s.mu.Unlock()
	return nil
}

// baselineTries bounds how often a baseline begins again because a table is
// locked, or was truncated or rewritten between the snapshot and the lock.
const baselineTries = 10

// errRewritten: truncating and rewriting a table are not MVCC-safe (PostgreSQL
// documentation, "Caveats" of concurrency control). In a snapshot from before it
// the table is empty, while the stream has what was done to its rows.
var errRewritten = errors.New("truncated or rewritten between the slot's snapshot and the reading of it")

func (s *Source) tryBaseline(ctx context.Context, sink engine.Sink, id identity, names []engine.TableName) (*session, error) {
	// Everything that takes time comes before the slot, so that little can happen
	// between its snapshot and the locks.
	var readers []*conn
	defer func() {
		for _, r := range readers {
			r.close()
		}
	}()
	for range s.cfg.BaselineWorkers {
		c, err := s.connect(ctx, false)
		if err != nil {
			return nil, err
		}
		readers = append(readers, c)
	}
	sess, err := s.openSession(ctx)
	if err != nil {
		return nil, err
	}
	if sess.id.String() != id.String() {
		err = fmt.Errorf("the server's history changed from %s to %s while it was being looked at", id, sess.id)
	} else {
		err = s.baseline(ctx, sink, sess, readers, names)
	}
	if err != nil {
		sess.close()
		return nil, err
	}
	return sess, nil
}

func (s *Source) baseline(ctx context.Context, sink engine.Sink, sess *session, readers []*conn, names []engine.TableName) error {
	start := time.Now()
	snapshot, err := s.createSlot(ctx, sess)
	if err != nil {
		return err
	}
	readers, tables, err := s.enter(ctx, readers, snapshot, names)
	if err != nil {
		return err
	}
	spec := engine.BaselineSpec{At: sess.consistent.Position(), Major: uint64(sess.consistent)}
	for _, t := range tables {
		t.schema, _ = s.env.Schemas.Define(t.schema)
		spec.Schemas = append(spec.Schemas, t.schema)
		spec.Tables = append(spec.Tables, t.schema.Table)
	}
	if spec.Memory, err = memoryOf(tables); err != nil {
		return err
	}
	s.env.Logger.Info("baseline begins", "server", s.server(), "position", spec.At, "tables", len(tables), "connections", len(readers))
	w, err := sink.Baseline(ctx, spec)
	if err != nil {
		return err
	}
	if err := s.copyTables(ctx, w, sess, readers, tables); err != nil {
		w.Abort()
		return err
	}
	for _, c := range readers { // the tables are free again
		c.close()
	}
	if err := w.Commit(ctx); err != nil {
		return err
	}
	if s.cfg.Permanent {
		if err := s.makePermanent(ctx, sess); err != nil {
			return err
		}
	}
	s.tables.reset(tables)
	s.known = map[uint32]*engine.Schema{}
	for _, t := range tables {
		s.known[t.schema.RelationOID] = t.schema
	}
	s.env.Logger.Info("baseline committed", "server", s.server(), "position", spec.At, "took", time.Since(start).Round(time.Millisecond))
	return nil
}

// enter begins to read tables in a snapshot, on as many of the connections as
// get their share of the tables.
func (s *Source) enter(ctx context.Context, readers []*conn, snapshot string, names []engine.TableName) ([]*conn, []*table, error) {
	for i, c := range readers {
		err := s.enterSnapshot(ctx, c, snapshot, names)
		if i > 0 && errors.Is(err, errLocked) {
			readers = readers[:i] // someone waits for a table by now: those who have it read it all
			break
		}
		if err != nil {
			return nil, nil, err
		}
	}
	tables, err := s.tablesInSnapshot(ctx, readers[0], names)
	return readers, tables, err
}

// lockWait is how long a reader waits for its share of the tables. It is short of
// deadlock_timeout, so that no one else's transaction is ended on our account.
const lockWait = 500 * time.Millisecond

// errLocked: someone holds a table, or waits to hold it, for himself alone.
var errLocked = errors.New("locked by another transaction (TRUNCATE, ALTER TABLE, LOCK TABLE)")

// enterSnapshot begins a transaction in the slot's snapshot, and takes a share
// of every table at once, so that its shape stays until all is read. Each reader
// takes its own before any row is read: later, it would queue behind whoever
// waits for the other readers to let go.
func (s *Source) enterSnapshot(ctx context.Context, c *conn, snapshot string, names []engine.TableName) error {
	sql := fmt.Sprintf("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET TRANSACTION SNAPSHOT %s; SET LOCAL lock_timeout = %d", quoteLiteral(snapshot), lockWait.Milliseconds())
	for _, name := range names {
		sql += fmt.Sprintf("; SELECT 1 FROM %s LIMIT 0", quoteTable(name.Schema, name.Name))
	}
	_, err := c.query(ctx, sql+"; SET LOCAL lock_timeout = 0")
	switch {
	case sqlState(err) == "55P03":
		return fmt.Errorf("a table is %w", errLocked)
	case err != nil:
		return fmt.Errorf("reading in the slot's snapshot: %w", err)
	}
	return nil
}

// tablesInSnapshot returns the tables as the snapshot has them.
func (s *Source) tablesInSnapshot(ctx context.Context, c *conn, names []engine.TableName) ([]*table, error) {
	var tables []*table
	for _, name := range names {
		t, err := s.lookUp(ctx, c, name)
		if err != nil {
			return nil, fmt.Errorf("table %s: %w", name, err)
		}
		if t == nil || !t.identified() || !t.published {
			return nil, fmt.Errorf("table %s was altered while its baseline began", name)
		}
		if t.rewritten {
			return nil, fmt.Errorf("table %s: %w", name, errRewritten)
		}
		tables = append(tables, t)
	}
	return tables, nil
}

// message takes the body of a CopyData message. PostgreSQL sends a line in each;
// the protocol would allow any cut.
func (p *copyParser) message(cut, body []byte) ([]byte, error) {
	if len(cut) == 0 && len(body) > 0 && bytes.IndexByte(body, '\n') == len(body)-1 {
		return nil, p.line(body[:len(body)-1])
	}
	cut = append(cut, body...)
	for {
		i := bytes.IndexByte(cut, '\n')
		if i < 0 {
			return cut, nil
		}
		if err := p.line(cut[:i]); err != nil {
			return nil, err
		}
		cut = cut[i+1:]
	}
}

// serverError decodes an ErrorResponse.
func serverError(body []byte) error {
	var m pgproto3.ErrorResponse
	if err := m.Decode(body); err != nil {
		return fmt.Errorf("the server sent an error that cannot be read: %w", err)
	}
	return pgconn.ErrorResponseToPgError(&m)
}

package postgres

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"golang.org/x/sync/errgroup"

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
	_, id, err := s.prepare(ctx)
	if err != nil {
		return err
	}
	if s.cfg.Permanent {
		err = s.dropPermanent(ctx)
	}
	if err != nil {
		return s.asSourceError(err)
	}
	sess, snapshot, err := s.createSlot(ctx)
	if err != nil {
		return s.asSourceError(err)
	}
	if sess.id.String() != id.String() {
		sess.close()
		return fmt.Errorf("the server's history changed from %s to %s while it was being looked at", id, sess.id)
	}
	if err := s.baseline(ctx, sink, sess, snapshot); err != nil {
		sess.close()
		return s.asSourceError(err)
	}
	s.id = sess.id
	s.acked.Store(uint64(sess.consistent))
	s.mu.Lock()
	s.session = sess
	s.mu.Unlock()
	return nil
}

func (s *Source) baseline(ctx context.Context, sink engine.Sink, sess *session, snapshot string) error {
	start := time.Now()
	readers, err := s.openReaders(ctx, snapshot)
	defer func() {
		for _, r := range readers {
			r.close()
		}
	}()
	if err != nil {
		return err
	}
	tables, err := s.lockTables(ctx, readers[0])
	if err != nil {
		return err
	}
	spec := engine.BaselineSpec{At: sess.consistent.Position(), Major: uint64(sess.consistent)}
	known := map[uint32]*engine.Schema{}
	for _, t := range tables {
		t.schema, _ = s.env.Schemas.Define(t.schema)
		known[t.schema.RelationOID] = t.schema
		spec.Schemas = append(spec.Schemas, t.schema)
		spec.Tables = append(spec.Tables, t.schema.Table)
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
	if err := w.Commit(ctx); err != nil {
		return err
	}
	if s.cfg.Permanent {
		if err := s.makePermanent(ctx, sess); err != nil {
			return err
		}
	}
	s.known = known
	s.env.Logger.Info("baseline committed", "server", s.server(), "position", spec.At, "took", time.Since(start).Round(time.Millisecond))
	return nil
}

// openReaders opens the connections that read the baseline, all in the slot's
// snapshot. Those that were opened are returned with an error too.
func (s *Source) openReaders(ctx context.Context, snapshot string) (readers []*conn, err error) {
	for range min(s.cfg.BaselineWorkers, len(s.cfg.Tables)) {
		c, err := s.connect(ctx, false)
		if err != nil {
			return readers, err
		}
		readers = append(readers, c)
		if _, err := c.query(ctx, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET TRANSACTION SNAPSHOT "+quoteLiteral(snapshot)); err != nil {
			return readers, fmt.Errorf("importing the slot's snapshot: %w", err)
		}
	}
	return readers, nil
}

// lockTables takes a share of every table, so that its shape stays, and
// returns the tables as the snapshot has them.
func (s *Source) lockTables(ctx context.Context, c *conn) ([]*table, error) {
	var tables []*table
	for _, name := range s.cfg.Tables {
		if _, err := c.query(ctx, fmt.Sprintf("SELECT 1 FROM %s LIMIT 0", quoteTable(name.Schema, name.Name))); err != nil {
			return nil, fmt.Errorf("table %s: %w", name, err)
		}
		t, err := s.lookUp(ctx, c, name)
		if err != nil {
			return nil, fmt.Errorf("table %s: %w", name, err)
		}
		if t == nil || t.key == "" {
			return nil, fmt.Errorf("table %s was altered while its baseline began", name)
		}
		tables = append(tables, t)
	}
	return tables, nil
}

// copyTables reads the tables, several at once, while the session is kept alive.
func (s *Source) copyTables(ctx context.Context, w engine.BaselineWriter, sess *session, readers []*conn, tables []*table) error {
	g, gctx := errgroup.WithContext(ctx)
	pingCtx, stop := context.WithCancel(gctx)
	g.Go(func() error {
		for sleep(pingCtx, idlePing) == nil {
			// Its answer is not waited for with pingCtx: an interrupted answer would
			// break the session.
			if _, err := sess.query(gctx, "IDENTIFY_SYSTEM"); err != nil {
				return fmt.Errorf("the replication session ended during the baseline: %w", err)
			}
		}
		return nil
	})
	work := make(chan *table, len(tables))
	for _, t := range tables {
		work <- t
	}
	close(work)
	var copying sync.WaitGroup
	for _, c := range readers {
		copying.Add(1)
		g.Go(func() error {
			defer copying.Done()
			for t := range work {
				if err := gctx.Err(); err != nil {
					return err
				}
				if err := s.copyTable(gctx, c, t, w); err != nil {
					return fmt.Errorf("table %s: %w", t.schema.Table, err)
				}
			}
			_, err := c.query(gctx, "COMMIT")
			return err
		})
	}
	copying.Wait()
	stop()
	err := g.Wait()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// copyTable reads one table and hands its rows on.
func (s *Source) copyTable(ctx context.Context, c *conn, t *table, w engine.BaselineWriter) error {
	stop := context.AfterFunc(ctx, func() { _ = c.Conn().SetDeadline(time.Unix(1, 0)) })
	defer stop()
	c.Frontend().SendQuery(&pgproto3.Query{String: t.copySQL()})
	if err := c.Frontend().Flush(); err != nil {
		return err
	}
	p := newCopyParser(t.schema)
	flush := func() error {
		if len(p.records) == 0 {
			return nil
		}
		err := w.Rows(t.schema.Table, p.records)
		p.reset()
		return err
	}
	var cut []byte // a line that a message has cut
	var failed error
	for {
		typ, body, err := c.frames.next()
		if err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return err
		}
		switch typ {
		case 'd':
			if cut, err = p.message(cut, body); err != nil {
				return err
			}
			if p.bytes >= baselineBatch {
				if err := flush(); err != nil {
					return err
				}
			}
		case 'E':
			failed = serverError(body)
		case 'Z':
			if failed != nil {
				return failed
			}
			if len(cut) > 0 {
				return errors.New("COPY ended within a line")
			}
			return flush()
		}
	}
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

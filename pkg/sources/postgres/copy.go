package postgres

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
	"golang.org/x/sync/errgroup"

	"github.com/tributary-dev/tributary/pkg/engine"
)

// part is a piece of a table that one connection reads at once: a run of its
// pages, a partition, or all of it.
type part struct {
	t     *table
	sql   string
	bytes int64 // on disk
}

// partPages is how many pages a large table is cut into parts of: 128 MiB.
const partPages = 16 << 10

const partsSQL = `
WITH RECURSIVE tree (oid) AS (SELECT $1::pg_catalog.oid UNION ALL SELECT i.inhrelid FROM tree JOIN pg_catalog.pg_inherits i ON i.inhparent = tree.oid WHERE $2 = 'p')
SELECT n.nspname, c.relname, pg_catalog.pg_relation_size(c.oid) / pg_catalog.current_setting('block_size')::pg_catalog.int8, pg_catalog.pg_table_size(c.oid),
	greatest(c.reltuples, 0)::pg_catalog.int8, c.relkind = 'r' AND pg_catalog.has_table_privilege(c.oid, 'SELECT') AND pg_catalog.has_schema_privilege(n.oid, 'USAGE'),
	coalesce(m.amname = 'heap', false)
FROM tree JOIN pg_catalog.pg_class c ON c.oid = tree.oid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace LEFT JOIN pg_catalog.pg_am m ON m.oid = c.relam
WHERE c.relkind <> 'p'`

// parts cuts a table into what connections can read beside each other, and
// estimates its size. A partition is read by its own name where this user may.
// The parts of a table are its pages as they are now: what has been added since
// the snapshot is not in it, and the last part has no end.
func (t *table) parts(ctx context.Context, c *conn, pagesEach int64) (parts []part, rows int64, err error) {
	found, err := c.params(ctx, partsSQL, strconv.FormatUint(uint64(t.schema.RelationOID), 10), string(t.kind))
	if err != nil {
		return nil, 0, err
	}
	whole := part{t: t, sql: t.copySQL("", "")}
	readable := true
	for _, f := range found {
		pages, err1 := strconv.ParseInt(f[2], 10, 64)
		size, err2 := strconv.ParseInt(f[3], 10, 64)
		tuples, err3 := strconv.ParseInt(f[4], 10, 64)
		if err := errors.Join(err1, err2, err3); err != nil {
			return nil, 0, fmt.Errorf("the size of %s is %q: %w", t.schema.Table, f, err)
		}
		rows += tuples
		whole.bytes += size
		readable = readable && f[5] == "t"
		from := "ONLY " + quoteTable(f[0], f[1])
		if n := pages / pagesEach; n > 1 && f[6] == "t" {
			for i := range n {
				cond := fmt.Sprintf("ctid >= '(%d,0)'", i*pagesEach)
				if i < n-1 {
					cond += fmt.Sprintf(" AND ctid < '(%d,0)'", (i+1)*pagesEach)
				}
				parts = append(parts, part{t: t, sql: t.copySQL(from, cond), bytes: size / n})
			}
			continue
		}
		p := part{t: t, sql: t.copySQL(from, ""), bytes: size}
		if t.kind == 'r' {
			p.sql = whole.sql
		}
		parts = append(parts, p)
	}
	if !readable || len(parts) < 2 {
		return []part{whole}, rows, nil
	}
	return parts, rows, nil
}

// copyTables reads the tables in parts, several at once, while the session is
// kept alive.
func (s *Source) copyTables(ctx context.Context, w engine.BaselineWriter, sess *session, readers []*conn, tables []*table) error {
	var work []part
	for _, t := range tables {
		parts, rows, err := t.parts(ctx, readers[0], s.cfg.partPages)
		if err != nil {
			return fmt.Errorf("table %s: %w", t.schema.Table, err)
		}
		t.progress = s.progress.begin(t.schema.Table, parts, rows)
		work = append(work, parts...)
	}
	g, gctx := errgroup.WithContext(ctx)
	pingCtx, stop := context.WithCancel(gctx)
	g.Go(func() error {
		for sleep(pingCtx, s.cfg.ping) == nil {
			// Its answer is not waited for with pingCtx: an interrupted answer would
			// break the session.
			if _, err := sess.query(gctx, "IDENTIFY_SYSTEM"); err != nil {
				return fmt.Errorf("the replication session ended during the baseline: %w", err)
			}
		}
		return nil
	})
	queue := make(chan part, len(work))
	for _, p := range work {
		queue <- p
	}
	close(queue)
	var copying sync.WaitGroup
	for _, c := range readers[:min(len(readers), len(work))] {
		copying.Add(1)
		g.Go(func() error {
			defer copying.Done()
			for p := range queue {
				if err := gctx.Err(); err != nil {
					return err
				}
				if err := p.copy(gctx, c, w); err != nil {
					return fmt.Errorf("table %s: %w", p.t.schema.Table, err)
				}
			}
			return nil // its locks stay until all tables are read
		})
	}
	copying.Wait()
	stop()
	err := g.Wait()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err == nil {
		s.progress.end(tables)
	}
	return err
}

// copy reads a part of a table and hands its rows on.
func (p *part) copy(ctx context.Context, c *conn, w engine.BaselineWriter) error {
	stop := context.AfterFunc(ctx, func() { _ = c.Conn().SetDeadline(time.Unix(1, 0)) })
	defer stop()
	c.Frontend().SendQuery(&pgproto3.Query{String: p.sql})
	if err := c.Frontend().Flush(); err != nil {
		return err
	}
	rows := newCopyParser(p.t.schema)
	flush := func() error {
		if len(rows.records) == 0 {
			return nil
		}
		c.frames.release() // a large row is not there twice while it is stored
		err := w.Rows(p.t.schema.Table, rows.records)
		p.t.progress.add(len(rows.records), rows.bytes)
		rows.reset()
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
			if cut, err = rows.message(cut, body); err != nil {
				return err
			}
			if rows.bytes >= baselineBatch {
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

package postgres

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/tributary-dev/tributary/pkg/engine"
)

// identity is the server that a baseline and a stream must both come from.
type identity struct {
	systemID, timeline string
	// branched is where the timeline left its parent; empty for the first. Two
	// restores of one backup can give two timelines one number.
	branched string
	version  string
}

func (i identity) String() string {
	s := "postgres:" + i.systemID + "/" + i.timeline
	if i.branched != "" {
		s += "@" + i.branched
	}
	return s
}

// identify asks a replication session which server it is at.
func (c *conn) identify(ctx context.Context) (identity, error) {
	rows, err := c.query(ctx, "IDENTIFY_SYSTEM")
	if err != nil {
		return identity{}, err
	}
	if len(rows) != 1 || len(rows[0]) < 2 {
		return identity{}, fmt.Errorf("IDENTIFY_SYSTEM gave %v", rows)
	}
	id := identity{systemID: rows[0][0], timeline: rows[0][1], version: c.ParameterStatus("server_version")}
	branches, err := c.branches(ctx, id.timeline)
	if n := len(branches); n > 0 {
		id.branched = branches[n-1].at.String()
	}
	return id, err
}

// branch is where a timeline was left for the next one.
type branch struct {
	timeline string
	at       engine.LSN
}

// branches returns the ancestors of a timeline, oldest first.
func (c *conn) branches(ctx context.Context, timeline string) ([]branch, error) {
	if timeline == "1" {
		return nil, nil // it has no history file
	}
	rows, err := c.query(ctx, "TIMELINE_HISTORY "+timeline)
	if sqlState(err) == "58P01" {
		return nil, nil // the file was removed: nothing is known of its ancestors
	}
	if err != nil {
		return nil, err
	}
	if len(rows) != 1 || len(rows[0]) != 2 {
		return nil, fmt.Errorf("TIMELINE_HISTORY %s gave %d rows", timeline, len(rows))
	}
	return parseBranches(rows[0][1])
}

// parseBranches reads a timeline history file: a line for each ancestor, with
// where it was left and why.
func parseBranches(text string) (out []branch, err error) {
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) == 0 || strings.HasPrefix(f[0], "#") {
			continue
		}
		if len(f) < 2 {
			return nil, fmt.Errorf("a timeline history with the line %q", line)
		}
		at, err := engine.ParseLSN(engine.Position(f[1]))
		if err != nil {
			return nil, fmt.Errorf("a timeline history with the line %q: %w", line, err)
		}
		out = append(out, branch{f[0], at})
	}
	return out, nil
}

// succession names the history behind the log, given what it was called before
// and how far the log has got in it. continues is true if the new history goes on
// from the old one and holds all of the log, and the slot is there to go on with.
// kept is where the new history parts from the old, if that is before the cursor
// and known, else 0. wentBack is where the server was seen to be behind the
// cursor; 0 if it was not.
func succession(id identity, branches []branch, before string, cursor, head, wentBack engine.LSN, usable bool) (name string, continues bool, kept engine.LSN) {
	name = id.String()
	old, generation, _ := strings.Cut(before, "#")
	if old == name {
		// A server that was restored keeps its name, and so each restore that is seen
		// counts one up.
		n, _ := strconv.Atoi(generation)
		if wentBack > 0 || head < cursor {
			return name + "#" + strconv.Itoa(n+1), false, cmp.Or(wentBack, head)
		}
		return before, false, 0
	}
	sys, rest, _ := strings.Cut(strings.TrimPrefix(old, "postgres:"), "/")
	if sys != id.systemID || cursor == 0 {
		return name, false, 0
	}
	parted, follows := parting(id, branches, rest)
	if parted > 0 && parted < cursor {
		return name, false, parted
	}
	return name, follows && cursor <= parted && head >= cursor && usable, 0
}

// parting is where a server's history parts from that of a timeline, written as
// in an identity; 0 if that is not known. follows is true if it goes on from it.
func parting(id identity, branches []branch, timeline string) (at engine.LSN, follows bool) {
	for i, b := range branches {
		was := b.timeline
		if i > 0 {
			was += "@" + branches[i-1].at.String()
		}
		if was == timeline {
			return b.at, true
		}
	}
	// It is another branch: both were the same up to the first that either took.
	_, left, _ := strings.Cut(timeline, "@")
	at, err := engine.ParseLSN(engine.Position(left))
	if err != nil || len(branches) == 0 && id.timeline != "1" {
		return 0, false
	}
	if len(branches) > 0 {
		at = min(at, branches[0].at)
	}
	return at, false
}

// history names the history behind the log; see engine.Info, and succession.
func (s *Source) history(ctx context.Context, id identity) (name string, continues bool, kept engine.LSN, err error) {
	var cursor engine.LSN
	if at := cmp.Or(s.env.Cursor, s.env.Recalled); at != "" {
		if cursor, err = engine.ParseLSN(at); err != nil {
			return "", false, 0, fmt.Errorf("the cursor: %w", err)
		}
	}
	c, err := s.connect(ctx, true)
	if err != nil {
		return "", false, 0, err
	}
	defer c.close()
	branches, err := c.branches(ctx, id.timeline)
	if err != nil {
		return "", false, 0, err
	}
	head, standby, err := c.head(ctx)
	if err != nil {
		return "", false, 0, err
	}
	if standby && head < cursor && s.wentBack == 0 {
		return "", false, 0, &Problem{Reason: ServerUnreachable, What: fmt.Sprintf("the standby has replayed up to %s, and our cursor is at %s already", head, cursor),
			Mend: "It goes on once the standby has caught up"}
	}
	usable := false
	if s.cfg.Permanent && cursor != 0 {
		h, err := s.slotState(ctx, c, s.slot)
		if err != nil {
			return "", false, 0, err
		}
		usable = h != nil && h.ours && h.Invalid == "" && h.confirmed <= cursor
	}
	name, continues, kept = succession(id, branches, s.env.History, cursor, head, s.wentBack, usable)
	s.wentBack = 0
	if before := s.env.History; before != "" && before != name {
		s.env.Logger.Warn("the server's history is another", "was", before, "is", name, "cursor", s.env.Cursor, "goes_on", continues, "parted", kept.String())
	}
	return name, continues, kept, nil
}

// head returns how far the server has got.
func (c *conn) head(ctx context.Context) (lsn engine.LSN, standby bool, err error) {
	rows, err := c.query(ctx, "SELECT pg_catalog.pg_is_in_recovery(), CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn() ELSE pg_catalog.pg_current_wal_lsn() END")
	if err != nil {
		return 0, false, err
	}
	lsn, err = engine.ParseLSN(engine.Position(rows[0][1]))
	return lsn, rows[0][0] == "t", err
}

// explainAfter is how long a slot may take to be made before it is explained.
const explainAfter = 3 * time.Second

// explainWait tells, until stop is called, what the making of a slot waits for:
// for transactions that are open, or at a standby for word from the primary.
func (s *Source) explainWait(ctx context.Context, slot string) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	told := false
	go func() { // waited for by stop
		defer close(done)
		for sleep(ctx, explainAfter) == nil {
			why, err := s.waitsFor(ctx, slot)
			if err == nil && ctx.Err() == nil {
				told = true
				s.env.Report(engine.ReasonBaselining, why)
			}
		}
	}()
	return func() {
		cancel()
		<-done
		if told {
			s.env.Report(engine.ReasonBaselining, nil)
		}
	}
}

func (s *Source) waitsFor(ctx context.Context, slot string) (why, err error) {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	c, err := s.connect(ctx, false)
	if err != nil {
		return nil, err
	}
	defer c.close()
	rows, err := c.query(ctx, `SELECT pg_catalog.pg_is_in_recovery(), coalesce((SELECT 'process ' || pid || ' (application "' || coalesce(application_name, '') || '", since ' || pg_catalog.date_trunc('second', xact_start) || ')'
		FROM pg_catalog.pg_stat_activity WHERE backend_xid IS NOT NULL ORDER BY xact_start LIMIT 1),
		(SELECT 'the prepared transaction "' || gid || '", since ' || pg_catalog.date_trunc('second', prepared) FROM pg_catalog.pg_prepared_xacts ORDER BY prepared LIMIT 1), '')`)
	if err != nil {
		return nil, err
	}
	switch r := rows[0]; {
	case r[0] == "t":
		return fmt.Errorf("slot %s waits for word of the primary's open transactions: it comes with the next checkpoint, or at once with SELECT pg_log_standby_snapshot() at the primary", slot), nil
	case r[1] != "":
		return fmt.Errorf("slot %s waits for the transactions that were open when its making began; the oldest is that of %s", slot, r[1]), nil
	}
	return fmt.Errorf("slot %s is being made", slot), nil
}

package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tributary-dev/tributary/pkg/engine"
)

// session is a replication connection that holds a slot.
type session struct {
	*conn
	slot       string
	id         identity
	consistent engine.LSN    // a new slot's consistent point
	interval   time.Duration // between statuses
	silence    time.Duration // that is taken for a broken connection
}

// problem says why the slot cannot be used, or nil.
func (h *slotState) problem(permanent bool) *Problem {
	switch {
	case h == nil:
		return nil
	case h.pid != "":
		return &Problem{Reason: SlotBusy, What: fmt.Sprintf("slot %q is in use by %s", h.Name, h.Holder),
			Mend: fmt.Sprintf("Give this node another slot name, or end the other: SELECT pg_terminate_backend(%s)", h.pid)}
	case !permanent:
		return &Problem{Reason: SlotBusy, What: fmt.Sprintf("slot %q is there already, permanent and not in use; this node needs a temporary one under that name", h.Name),
			Mend: fmt.Sprintf("Give this node another slot name, or drop that one: SELECT pg_drop_replication_slot(%s)", quoteLiteral(h.Name))}
	case h.synced:
		return &Problem{Reason: SlotBusy, What: fmt.Sprintf("slot %q is the primary's, and this standby keeps it for a failover", h.Name), Mend: "Give this node another slot name, or let it read from the primary"}
	case !h.ours:
		return &Problem{Reason: SlotBusy, What: fmt.Sprintf("slot %q belongs to another database or another plugin", h.Name), Mend: "Give this node another slot name"}
	}
	return nil
}

// awaitSlot waits for the slot to be free: the walsender of a node that was
// killed takes a moment to end. The holder that stays is named.
func (s *Source) awaitSlot(ctx context.Context, c *conn) (*slotState, error) {
	deadline := time.Now().Add(s.cfg.patience)
	for {
		h, err := s.slotState(ctx, c, s.slot)
		if err != nil {
			return nil, err
		}
		p := h.problem(s.cfg.Permanent)
		if p == nil {
			return h, nil
		}
		if h.pid == "" || time.Now().After(deadline) {
			return h, p
		}
		if err := sleep(ctx, 100*time.Millisecond); err != nil {
			return nil, err
		}
	}
}

// openSession opens a replication session; it has no slot yet.
func (s *Source) openSession(ctx context.Context) (*session, error) {
	c, err := s.connect(ctx, true)
	if err != nil {
		return nil, err
	}
	sess := &session{conn: c, slot: s.slot}
	var timeout time.Duration
	if sess.id, err = c.identify(ctx); err == nil {
		timeout, err = c.senderTimeout(ctx)
	}
	if sess.interval = 10 * time.Second; timeout > 0 {
		sess.interval = min(sess.interval, timeout/3)
	}
	if sess.silence = s.cfg.silence; sess.silence == 0 {
		sess.silence = silence(timeout)
	}
	if err != nil {
		c.close()
		return nil, err
	}
	return sess, nil
}

// senderTimeout is how long the server waits to hear of us; 0 for ever.
func (c *conn) senderTimeout(ctx context.Context) (time.Duration, error) {
	v, err := c.setting(ctx, "wal_sender_timeout")
	if err != nil {
		return 0, err
	}
	timeout, err := time.ParseDuration(v + "ms")
	if err != nil {
		return 0, fmt.Errorf("wal_sender_timeout is %q: %w", v, err)
	}
	return timeout, nil
}

// firstSlot is the slot of a baseline; it is temporary.
func (s *Source) firstSlot() string {
	if s.cfg.Permanent {
		return s.slot[:min(len(s.slot), 55)] + "_initial"
	}
	return s.slot
}

// createSlot creates a temporary slot in the session, and returns the snapshot
// that it exports, which lives until the session's next command.
func (s *Source) createSlot(ctx context.Context, sess *session) (snapshot string, err error) {
	return s.createSlotNamed(ctx, sess, s.firstSlot())
}

// createSlotNamed is createSlot under another name than the first slot's.
func (s *Source) createSlotNamed(ctx context.Context, sess *session, name string) (snapshot string, err error) {
	sess.slot = name
	stop := s.explainWait(ctx, sess.slot)
	rows, err := sess.query(ctx, fmt.Sprintf("CREATE_REPLICATION_SLOT %s TEMPORARY LOGICAL pgoutput EXPORT_SNAPSHOT", quoteIdent(sess.slot)))
	stop()
	switch sqlState(err) {
	case "53400":
		return "", s.slotsExhausted(err)
	case "42710":
		return "", &Problem{Reason: SlotBusy, What: fmt.Sprintf("slot %q was created by another at the same moment", sess.slot), Err: err, Mend: "Give this node another slot name"}
	case "42501":
		return "", replicationPrivilege(s.user(ctx), err)
	}
	if err != nil {
		return "", fmt.Errorf("creating slot %s: %w", sess.slot, err)
	}
	if len(rows) != 1 || len(rows[0]) < 3 {
		return "", fmt.Errorf("creating slot %s gave %v", sess.slot, rows)
	}
	sess.consistent, err = engine.ParseLSN(engine.Position(rows[0][1]))
	return rows[0][2], err
}

// dropPermanent drops the permanent slot of an earlier baseline.
func (s *Source) dropPermanent(ctx context.Context) error {
	c, err := s.connect(ctx, false)
	if err != nil {
		return err
	}
	defer c.close()
	h, err := s.awaitSlot(ctx, c)
	if err != nil || h == nil {
		return err
	}
	_, err = c.params(ctx, "SELECT pg_catalog.pg_drop_replication_slot($1)", s.slot)
	return err
}

// makePermanent replaces the session's temporary slot by a permanent copy. It
// comes after the baseline has been committed, so that a slot that is there
// always has its baseline.
func (s *Source) makePermanent(ctx context.Context, sess *session) error {
	sql := fmt.Sprintf("SELECT pg_catalog.pg_copy_logical_replication_slot(%s, %s, false)", quoteLiteral(sess.slot), quoteLiteral(s.slot))
	if _, err := sess.query(ctx, sql); sqlState(err) == "53400" {
		return s.slotsExhausted(err)
	} else if err != nil {
		return fmt.Errorf("making slot %s permanent: %w", s.slot, err)
	}
	if _, err := sess.query(ctx, "DROP_REPLICATION_SLOT "+quoteIdent(sess.slot)); err != nil {
		return fmt.Errorf("dropping slot %s: %w", sess.slot, err)
	}
	sess.slot = s.slot
	if sess.major() < 17 {
		return nil
	}
	// The copy is not taken over by standbys, whatever its original was.
	_, standby, err := sess.head(ctx)
	if err != nil || standby {
		return err
	}
	if _, err := sess.query(ctx, fmt.Sprintf("ALTER_REPLICATION_SLOT %s (FAILOVER true)", quoteIdent(s.slot))); err != nil {
		return fmt.Errorf("making slot %s known to standbys: %w", s.slot, err)
	}
	return nil
}

// resumeSession opens a session on the permanent slot, to go on after from. It
// gives ErrReBaselineRequired if the slot cannot go on from there.
func (s *Source) resumeSession(ctx context.Context, from engine.LSN) (*session, error) {
	c, err := s.connect(ctx, false)
	if err != nil {
		return nil, err
	}
	h, err := s.awaitSlot(ctx, c)
	var head engine.LSN
	var standby bool
	if err == nil {
		head, standby, err = c.head(ctx)
	}
	c.close()
	if err != nil {
		return nil, err
	}
	switch {
	case h == nil:
		return nil, rebaseline("slot %s is not there any more", s.slot)
	case h.Invalid != "":
		return nil, rebaseline("%s", h.invalidated())
	case h.confirmed > from:
		return nil, rebaseline("slot %s was confirmed up to %s, which is past our cursor %s", s.slot, h.confirmed, from)
	case head < from && standby:
		return nil, errHistory // Init says what is the matter
	case head < from:
		s.wentBack = head
		return nil, rebaseline("the server is at %s, before our cursor %s: it was restored from a backup", head, from)
	}
	sess, err := s.openSession(ctx)
	if err != nil {
		return nil, err
	}
	if sess.id.String() != s.id.String() {
		sess.close()
		return nil, fmt.Errorf("%w: it is %s, and was %s", errHistory, sess.id, s.id)
	}
	return sess, nil
}

// errHistory ends a Stream whose server is not the one that Init saw: Init finds
// out whether the log can go on.
var errHistory = errors.New("the server's history has changed")

// invalidated says why an invalid slot cannot be used.
func (h *slotState) invalidated() string {
	why := map[string]string{
		"wal_removed":            fmt.Sprintf("it needed WAL that the server has removed (max_slot_wal_keep_size is %s)", bytesText(h.LimitBytes)),
		"rows_removed":           "rows of the catalog that it needed were vacuumed at the primary (hot_standby_feedback keeps them)",
		"wal_level_insufficient": "the primary's wal_level is not logical any more",
		"idle_timeout":           "it was not used for longer than idle_replication_slot_timeout",
	}[h.Invalid]
	if why == "" {
		why = h.Invalid
	}
	return fmt.Sprintf("slot %s was invalidated: %s", h.Name, why)
}

func bytesText(n int64) string {
	if n < 0 {
		return "not set"
	}
	return fmt.Sprintf("%d MB", n>>20)
}

// rebaseline is ErrReBaselineRequired with a sentence that says why.
func rebaseline(format string, args ...any) error {
	return fmt.Errorf("%w: %s", engine.ErrReBaselineRequired, fmt.Sprintf(format, args...))
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

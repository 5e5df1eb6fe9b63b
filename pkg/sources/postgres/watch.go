package postgres

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/tributary-dev/tributary/pkg/engine"
)

// SlotStatus is what the server last said of a source's slot.
type SlotStatus struct {
	Name string
	// At is when the server was asked; zero if it has not answered yet.
	At time.Time
	// Exists: the slot is there. What follows is zero if it is not.
	Exists    bool
	Temporary bool
	// RetainedBytes is the WAL that the server keeps for the slot, PendingBytes
	// the part of it that has not been confirmed.
	RetainedBytes int64
	PendingBytes  int64
	// WALStatus is reserved, extended, unreserved or lost (pg_replication_slots).
	WALStatus string
	// LimitBytes is max_slot_wal_keep_size, and SafeBytes how much more may be
	// written before the slot is in danger; both are -1 without a limit.
	LimitBytes int64
	SafeBytes  int64
	// Holder describes who uses the slot; empty if nobody does, or if it is this
	// source itself.
	Holder string
	// Invalid says why the slot can be used no more; empty if it can.
	Invalid string
	// InactiveSince is when it was last used, on servers that say (17 and later).
	InactiveSince time.Time
	// Failover: standbys take the slot over (17 and later).
	Failover bool
	// ScratchBytes is what is held of large transactions in scratch files.
	ScratchBytes int64
}

// slotState is a slot that is there, and who uses it.
type slotState struct {
	SlotStatus
	ours      bool   // pgoutput, in this database
	synced    bool   // of the primary: this standby keeps it, and nobody can use it here
	pid       string // "" if it is not in use
	confirmed engine.LSN
}

// slotSQL asks for a slot. Columns that a version does not have are null.
const slotSQL = `
SELECT coalesce(s.plugin = 'pgoutput' AND s.database = pg_catalog.current_database(), false), s.temporary,
	CASE WHEN s.active THEN s.active_pid::pg_catalog.text ELSE '' END,
	coalesce(a.application_name, ''), coalesce(pg_catalog.host(a.client_addr), 'a local socket'),
	coalesce(s.wal_status, ''), coalesce(s.confirmed_flush_lsn::pg_catalog.text, '0/0'),
	coalesce(pg_catalog.pg_wal_lsn_diff(w.head, s.restart_lsn), 0)::pg_catalog.int8,
	coalesce(pg_catalog.pg_wal_lsn_diff(w.head, s.confirmed_flush_lsn), 0)::pg_catalog.int8,
	coalesce(s.safe_wal_size, -1), l.setting::pg_catalog.int8 * CASE WHEN l.setting = '-1' THEN 1 ELSE 1048576 END,
	coalesce(nullif(j.j->>'invalidation_reason', ''), CASE WHEN (j.j->>'conflicting')::pg_catalog.bool THEN 'conflicting' END, ''),
	coalesce(pg_catalog.date_part('epoch', (j.j->>'inactive_since')::pg_catalog.timestamptz), 0),
	coalesce((j.j->>'failover')::pg_catalog.bool, false),
	coalesce((j.j->>'synced')::pg_catalog.bool, false) AND pg_catalog.pg_is_in_recovery()
FROM pg_catalog.pg_replication_slots s LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = s.active_pid
CROSS JOIN LATERAL (SELECT pg_catalog.to_jsonb(s) AS j) j
CROSS JOIN (SELECT CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn() ELSE pg_catalog.pg_current_wal_lsn() END AS head) w
CROSS JOIN (SELECT setting FROM pg_catalog.pg_settings WHERE name = 'max_slot_wal_keep_size') l
WHERE s.slot_name = `

// slotState asks the server for a slot; nil if it is not there.
func (s *Source) slotState(ctx context.Context, c *conn, slot string) (*slotState, error) {
	rows, err := c.query(ctx, slotSQL+quoteLiteral(slot))
	if err != nil {
		return nil, err
	}
	if len(rows) == 0 {
		s.slotNow(SlotStatus{Name: slot})
		return nil, nil
	}
	r := rows[0]
	st := &slotState{ours: r[0] == "t", synced: r[14] == "t", pid: r[2]}
	if st.confirmed, err = engine.ParseLSN(engine.Position(r[6])); err != nil {
		return nil, err
	}
	var n [4]int64
	for i, text := range r[7:11] {
		if n[i], err = strconv.ParseInt(text, 10, 64); err != nil {
			return nil, fmt.Errorf("the server describes slot %s as %q: %w", slot, r, err)
		}
	}
	st.SlotStatus = SlotStatus{
		Name: slot, Exists: true, Temporary: r[1] == "t", WALStatus: r[5], Invalid: r[11], Failover: r[13] == "t",
		RetainedBytes: n[0], PendingBytes: max(n[1], 0), SafeBytes: n[2], LimitBytes: n[3],
	}
	if st.WALStatus == "lost" && st.Invalid == "" {
		st.Invalid = "wal_removed"
	}
	if since, err := strconv.ParseFloat(r[12], 64); err == nil && since > 0 {
		st.InactiveSince = time.UnixMicro(int64(since * 1e6)).UTC()
	}
	if st.pid != "" && st.pid != strconv.FormatUint(uint64(s.walsender.Load()), 10) {
		st.Holder = fmt.Sprintf("process %s (application %q, from %s)", st.pid, r[3], r[4])
	}
	s.slotNow(st.SlotStatus)
	return st, nil
}

// slotNow keeps what the server has just said, and warns of a danger that is new.
func (s *Source) slotNow(now SlotStatus) {
	now.At = time.Now()
	s.mu.Lock()
	before := s.status
	s.status = now
	s.mu.Unlock()
	if now.WALStatus == "unreserved" && before.WALStatus != now.WALStatus {
		s.env.Logger.Warn("the slot is about to be invalidated: it keeps more WAL than max_slot_wal_keep_size allows",
			"slot", now.Name, "retained", now.RetainedBytes, "limit", now.LimitBytes)
	}
}

// Slot returns what the server last said of the slot. It is asked about every
// ten seconds while the source baselines or streams.
func (s *Source) Slot() SlotStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.status
	if st.Name == "" {
		st.Name = s.slot
	}
	if s.scratch != nil {
		st.ScratchBytes = s.scratch.Used()
	}
	return st
}

const (
	// watchEvery is how often the server is asked for the slot.
	watchEvery = 10 * time.Second
	// answerWithin is how long a question on the side may take.
	answerWithin = 30 * time.Second
)

// watch asks for the slot on a connection of its own until stop is called.
func (s *Source) watch(ctx context.Context, slot string) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var done sync.WaitGroup
	done.Add(1)
	go func() { // waited for by stop
		defer done.Done()
		var c *conn
		defer func() { c.close() }()
		for {
			// What is wrong with the server, the stream itself finds and tells.
			if err := s.look(ctx, &c, slot); err != nil {
				c.close()
				c = nil
			}
			if sleep(ctx, s.cfg.watch) != nil {
				return
			}
		}
	}()
	return func() { cancel(); done.Wait() }
}

func (s *Source) look(ctx context.Context, c **conn, slot string) (err error) {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	if *c != nil && (*c).address != s.pinned() { // the stream has moved to another server
		(*c).close()
		*c = nil
	}
	if *c == nil {
		if *c, err = s.connect(ctx, false); err != nil {
			return err
		}
	}
	_, err = s.slotState(ctx, *c, slot)
	return err
}

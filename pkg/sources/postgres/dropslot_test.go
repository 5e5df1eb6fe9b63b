package postgres

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/tributary-dev/tributary/internal/testpg"
)

// A permanent slot is dropped once it is free; one that is gone is no error, and
// one that is not a node's is left alone.
func TestDropSlot(t *testing.T) {
	t.Parallel()
	s := testpg.Start(t, testpg.Options{})
	db := s.NewDB(t)
	db.Exec(t, createT, `INSERT INTO t VALUES (1,1,'x')`)
	cfg := Config{ConnString: db.ConnString, Tables: names("t"), Permanent: true, Slot: "mine"}
	n := start(t, cfg, func(m *model) { m.durable = true })
	n.converges(db, "t")
	walsender(t, db)
	drop := func(slot string, limit time.Duration) error {
		cfg := cfg
		cfg.Slot = slot
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		return DropSlot(ctx, cfg)
	}
	there := func() string {
		return db.Value(t, `SELECT coalesce(string_agg(slot_name, ',' ORDER BY slot_name), '') FROM pg_replication_slots`)
	}

	var p *Problem
	if err := drop("mine", 15*time.Second); !errors.As(err, &p) || p.Reason != SlotBusy || !strings.Contains(err.Error(), "is in use by") {
		t.Errorf("a slot in use: %v", err)
	}
	done := make(chan error)
	go func() { done <- drop("mine", 30*time.Second) }()
	time.Sleep(300 * time.Millisecond)
	n.stop()
	if err := <-done; err != nil {
		t.Errorf("a slot that gets free: %v", err)
	}
	if got := there(); got != "" {
		t.Errorf("slots: %s", got)
	}
	if err := drop("mine", 10*time.Second); err != nil {
		t.Errorf("a slot that is gone: %v", err)
	}
	db.Exec(t, `SELECT pg_create_logical_replication_slot('theirs', 'test_decoding')`)
	if err := drop("theirs", 10*time.Second); !errors.As(err, &p) || !strings.Contains(err.Error(), "It was left alone") {
		t.Errorf("another's slot: %v", err)
	}
	if got := there(); got != "theirs" {
		t.Errorf("slots: %s", got)
	}
}

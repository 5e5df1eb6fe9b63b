package postgres

import (
	"context"
	"fmt"
	"time"
)

// DropSlot drops the permanent slot of cfg, whose source has ended. It waits for
// the slot to be free for as long as ctx lives; a slot that is not there is no
// error. A slot of another database or plugin, or a temporary one, is left alone.
func DropSlot(ctx context.Context, cfg Config) error {
	s, err := New(cfg)
	if err != nil {
		return err
	}
	s.slot = cfg.Slot
	c, err := s.connect(ctx, false)
	if err != nil {
		return err
	}
	defer c.close()
	for {
		h, err := s.slotState(ctx, c, s.slot)
		switch {
		case err != nil:
			return fmt.Errorf("looking for slot %s: %w", s.slot, err)
		case h == nil:
			return nil
		case !h.ours || h.Temporary:
			return &Problem{Reason: SlotBusy, What: fmt.Sprintf("slot %q is not one that a node has made here: it is temporary, or of another database or plugin", s.slot),
				Mend: "It was left alone; see who uses it before you drop it"}
		case h.pid == "":
			_, err := c.params(ctx, "SELECT pg_catalog.pg_drop_replication_slot($1)", s.slot)
			switch sqlState(err) {
			case "55006", "42704": // taken, or dropped, a moment ago
				continue
			}
			return err
		}
		if sleep(ctx, 200*time.Millisecond) != nil {
			return h.problem(true)
		}
	}
}

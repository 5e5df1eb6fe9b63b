package server

import (
	"fmt"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/fanout/session"
)

// follow is the log that follows the rows of a leaf's baseline, which are as of where
// it begins. It is read from the view that the rows are of.
type follow struct {
	since engine.Time // what was written later is in the log
	at    engine.Position
	part  uint32 // the next, of the transaction after at
	to    engine.Position

	compare engine.Comparator
}

func (f *follow) ended() bool { return f.at == f.to && f.part == 0 }

// read returns the next blocks.
func (f *follow) read(v engine.View, log engine.LogID, size int) (blocks []*engine.Block, err error) {
	if f.part > 0 {
		blocks, err = v.ReadPart(log, f.at, f.part, size)
	} else {
		blocks, err = v.ReadLog(log, f.at, size)
	}
	if err == nil && len(blocks) == 0 {
		err = fmt.Errorf("log %s ends at %s (part %d), and goes on to %s", log, f.at, f.part, f.to)
	}
	for i, b := range blocks {
		if b.Part == 0 && f.compare(b.Prev, f.at) < 0 { // it begins within a block
			rest, ok := b.After(f.at, f.compare)
			if !ok {
				return nil, fmt.Errorf("log %s has a block from %s to %s where %s is read", log, b.Prev, b.Position, f.at)
			}
			following := *rest
			following.Prev = f.at
			b, blocks[i] = &following, &following
		}
		if f.part = b.Part + 1; b.Last {
			f.at, f.part = b.Position, 0
		}
	}
	return blocks, err
}

// begins has a leaf's baseline begin where all roots have the log, or where that
// begins, if the reader takes the log after it too: of tables of which every change is
// delivered no change is missing then. To a relay's it adds its marks.
func (v *serving) begins(s *snapshot, b *session.Baseline, work session.Work) (err error) {
	tree := v.srv.cfg.Tree
	if tree == nil {
		return nil
	}
	if tree.Places(s.log) {
		b.Relayed = true
		b.Marks, err = tree.Marks(s.m.view, s.log)
		return err
	}
	host := v.srv.cfg.Host
	if !work.Follow || s.lens != nil || !engine.MintedBy(s.log.Origin, host.NodeID()) {
		return nil
	}
	info, _ := s.m.view.Log(s.log)
	compare := host.Comparator(s.log)
	_, stable := tree.Holders(s.log)
	needed := work.After // or less
	if compare(stable, needed) > 0 {
		needed = stable
	}
	at := needed
	if compare(info.Oldest, at) > 0 {
		at = info.Oldest
	}
	if gone := engine.Gone(s.m.view, s.log); compare(gone, needed) > 0 {
		b.Gap = fmt.Sprintf("log %s had grown to its limit, and its entries up to %s went before every root had them", s.log, gone)
	}
	if compare(at, info.Head) >= 0 {
		return nil
	}
	t, err := engine.TimeAt(s.m.view, s.log, at, compare)
	if err != nil {
		return err
	}
	s.follow = &follow{since: t, at: at, to: info.Head, compare: compare}
	b.At, b.Time, b.Follows = at, t, info.Head
	return nil
}

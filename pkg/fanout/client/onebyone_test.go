package client

import (
	"context"
	"maps"
	"testing"

	"github.com/tributary-dev/tributary/pkg/engine"
)

// behindSink notes which tables blocks say are behind.
type behindSink struct {
	engine.Sink
	had    map[engine.TableName]engine.Reached
	blocks []*engine.Block
}

func (s *behindSink) Covered(engine.LogID) []engine.TableName { return nil }
func (s *behindSink) Behind(engine.LogID, engine.Position) map[engine.TableName]engine.Reached {
	return s.had
}
func (s *behindSink) ApplyBlocks(_ context.Context, _ engine.CursorKey, blocks []*engine.Block) error {
	s.blocks = append(s.blocks, blocks...)
	return nil
}

// The tables that a block leaves behind are so from its first transaction on, and those that it brings up to its last.
func TestOneByOneBehind(t *testing.T) {
	t.Parallel()
	type behind = map[engine.TableName]engine.Reached
	fresh, old, gone := engine.TableName{Name: "fresh"}, engine.TableName{Name: "old"}, engine.TableName{Name: "gone"}
	log := engine.LogID{Origin: "o", Epoch: 1}
	w := engine.NewBlockBuilder(log, "0/10")
	w.Add(&engine.Transaction{Log: log, Prev: "0/10", Position: "0/12", Time: 12})
	w.Add(&engine.Transaction{Log: log, Prev: "0/12", Position: "0/16", Time: 16})
	w.Add(&engine.Transaction{Log: log, Prev: "0/16", Position: "0/20", Time: 20})
	b := w.Blocks()[0]
	last := behind{fresh: {Position: "0/11", Time: 11}, old: {Position: "0/9", Time: 9}}
	b.Behind = last
	s := &behindSink{had: behind{old: {Position: "0/5", Time: 5}, gone: {Position: "0/6", Time: 6}}}
	if err := (oneByOne{s}).ApplyBlocks(t.Context(), engine.CursorKey{Log: log}, []*engine.Block{b}); err != nil {
		t.Fatal(err)
	}
	if len(s.blocks) != 3 {
		t.Fatalf("%d blocks", len(s.blocks))
	}
	first := behind{fresh: last[fresh], old: s.had[old], gone: s.had[gone]}
	if !maps.Equal(s.blocks[0].Behind, first) || s.blocks[1].Behind != nil || !maps.Equal(s.blocks[2].Behind, last) {
		t.Errorf("behind: %v, %v and %v", s.blocks[0].Behind, s.blocks[1].Behind, s.blocks[2].Behind)
	}
}

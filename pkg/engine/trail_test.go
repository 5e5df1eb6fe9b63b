package engine_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tributary-dev/tributary/pkg/engine"
)

// A trail says of each place what a list of all places would, and never more than is known.
func TestTrail(t *testing.T) {
	t.Parallel()
	pos := func(n int) engine.Position { return engine.LSN(n).Position() }
	rapid.Check(t, func(t *rapid.T) {
		var trail engine.Trail
		places := []map[engine.TableName]engine.Reached{{}} // at each place, from 0
		known := 0
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			switch rapid.IntRange(0, 5).Draw(t, "what") {
			case 0: // it goes another way from an earlier place on
				if len(places) > known+1 {
					places = places[:rapid.IntRange(known+1, len(places)-1).Draw(t, "back")]
					trail = trail.Until(pos(len(places)-1), engine.CompareLSN)
				}
			case 1:
				known = rapid.IntRange(known, len(places)-1).Draw(t, "oldest")
				trail = trail.Since(pos(known), engine.CompareLSN)
			default:
				behind := map[engine.TableName]engine.Reached{}
				for _, name := range []string{"a", "b"} {
					if rapid.Bool().Draw(t, name) {
						behind[engine.TableName{Name: name}] = engine.Reached{Position: pos(rapid.IntRange(0, 2).Draw(t, "to"))}
					}
				}
				trail = trail.With(pos(len(places)), behind, engine.CompareLSN)
				places = append(places, behind)
			}
			for n, want := range places {
				have, ok := trail.At(pos(n), engine.CompareLSN)
				if n >= known && (!ok || !maps.Equal(have, want)) {
					t.Fatalf("at %d: %v (known: %v), want %v; from %d on, of %v", n, have, ok, want, known, trail)
				}
			}
		}
	})
}

// A trail is bounded, and what it has let go of is not known.
func TestTrailIsBounded(t *testing.T) {
	t.Parallel()
	var trail engine.Trail
	for n := 1; n <= 10_000; n++ {
		trail = trail.With(engine.LSN(n).Position(), map[engine.TableName]engine.Reached{{Name: fmt.Sprint(n)}: {}}, engine.CompareLSN)
	}
	if len(trail) > 4096 {
		t.Errorf("%d steps", len(trail))
	}
	if _, known := trail.At(engine.LSN(1).Position(), engine.CompareLSN); known {
		t.Error("the first place is known")
	}
	if behind, known := trail.At(engine.LSN(10_000).Position(), engine.CompareLSN); !known || len(behind) != 1 {
		t.Errorf("the last: %v, known: %v", behind, known)
	}
}

// Of a place of which the trail has let go it is not said that its tables were where the log was.
func TestBehindIsNotKnown(t *testing.T) {
	t.Parallel()
	db := newDatabase()
	db.commit(time.Now(), put("k", "1"))
	info, blocks := mintedLog(t, "origin", db)
	e, sink, stop := carrying(t, "n", info.ID, info.Oldest, nil)
	defer stop()
	table, other := engine.TableName{Schema: "public", Name: "a"}, engine.TableName{Schema: "public", Name: "b"}
	at := engine.Reached{Position: info.Oldest, Time: 1}
	b := blocks[0]
	b.Behind = map[engine.TableName]engine.Reached{table: at}
	for n := range 4096 { // so that nothing before is kept
		b.Behind[engine.TableName{Schema: "others", Name: fmt.Sprint(n)}] = at
	}
	if err := sink.ApplyBlocks(context.Background(), engine.CursorKey{Log: info.ID}, []*engine.Block{b}); err != nil {
		t.Fatal(err)
	}
	if _, known := e.Trail(info.ID).At(info.Oldest, engine.CompareLSN); known {
		t.Fatal("the place before is known")
	}
	tables := sink.(engine.Covering)
	if got, want := tables.Behind(info.ID, b.Position), (map[engine.TableName]engine.Reached{table: at}); !maps.Equal(got, want) {
		t.Errorf("behind are %v, want %v", got, want)
	}
	if got, want := tables.Behind(info.ID, info.Oldest), (map[engine.TableName]engine.Reached{table: {}, other: {}}); !maps.Equal(got, want) {
		t.Errorf("where it is not known, behind are %v, want %v", got, want)
	}
}

// Blocks that cannot be applied take back no more of a trail than they have added to it.
func TestTrailAfterFailure(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	db := newDatabase()
	for _, v := range []string{"1", "2", "3"} {
		db.commit(time.Now(), put("k", v))
	}
	info, blocks := mintedLog(t, "origin", db)
	txs, _ := unpack(info.ID, blocks)
	e, sink, stop := carrying(t, "n", info.ID, info.Oldest, nil)
	defer stop()
	var bs []*engine.Block
	before := info.Oldest
	for i := range txs {
		w := engine.NewBlockBuilder(info.ID, before)
		w.Add(&txs[i])
		b := w.Blocks()[0]
		b.Schemas, before = txs[0].Schemas, b.Position
		bs = append(bs, b)
	}
	behind := map[engine.TableName]engine.Reached{{Schema: "public", Name: "t"}: {Position: info.Oldest, Time: 1}}
	key := engine.CursorKey{Log: info.ID}
	bs[0].Behind = behind
	if err := sink.ApplyBlocks(ctx, key, bs[:1]); err != nil {
		t.Fatal(err)
	}
	bs[1].Behind = map[engine.TableName]engine.Reached{}
	bs[2].Payload = bs[2].Payload[:len(bs[2].Payload)-1]
	if err := sink.ApplyBlocks(ctx, key, bs[1:]); !errors.Is(err, engine.ErrCorruptRow) {
		t.Fatalf("a damaged block gives %v", err)
	}
	if got, known := e.Trail(info.ID).At(bs[0].Position, engine.CompareLSN); !known || !maps.Equal(got, behind) {
		t.Errorf("after it %v is behind (known: %t), and was %v", got, known, behind)
	}
}

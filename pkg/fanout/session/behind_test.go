package session_test

import (
	"testing"
	"time"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/fanout/session"
	"github.com/tributary-dev/tributary/pkg/fanout/wire"
	"github.com/tributary-dev/tributary/pkg/fanout/wirepb"
)

// Tables are behind in the log of a new epoch, whose place has not been subscribed to.
func TestBehindAfterReset(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	table := engine.TableName{Schema: "public", Name: "t"}
	places := session.Places{}
	r, _ := session.NewReader(session.ReaderConfig{NodeID: "me", Compare: engine.CompareLSN, Window: 1000, Places: places}, now)
	r.Activate(now)
	var channel uint32
	var behind map[engine.TableName]engine.Reached
	take := func(f *wirepb.Frame) {
		t.Helper()
		for _, a := range r.Frame(now, f) {
			switch {
			case a.Frame.GetSubscribe() != nil:
				channel = a.Frame.GetSubscribe().GetChannel()
			case a.Deliver != nil && a.Deliver.Behind != nil:
				behind = a.Deliver.Behind
			case a.Close != nil:
				t.Fatalf("the session ends: %v", a.Close)
			}
		}
	}
	advert := func(epoch engine.Epoch) *wirepb.Frame {
		return &wirepb.Frame{Kind: &wirepb.Frame_Advert{Advert: &wirepb.Advert{Logs: []*wirepb.LogAdvert{{
			Log: wire.FromLog(engine.LogID{Origin: "a#own", Epoch: epoch}), Path: []string{"a"}, Oldest: "0/10", Head: wire.FromCursor("0/10", 10),
			Tables: wire.FromTables([]engine.TableName{table}),
		}}}}}
	}
	baseline := func(log engine.LogID, at map[engine.TableName]engine.Reached) {
		take(&wirepb.Frame{Kind: &wirepb.Frame_Subscribed{Subscribed: &wirepb.Subscribed{Channel: channel, Log: wire.FromLog(log), Mode: wirepb.Mode_MODE_SNAPSHOT}}})
		if at != nil {
			take(&wirepb.Frame{Kind: &wirepb.Frame_Behind{Behind: &wirepb.Behind{Channel: channel, Position: "0/10", Tables: wire.FromBehind(at)}}})
		}
		take(&wirepb.Frame{Kind: &wirepb.Frame_SnapshotBegin{SnapshotBegin: &wirepb.SnapshotBegin{
			Channel: channel, At: wire.FromCursor("0/10", 10), Tables: []*wirepb.SnapshotTable{{Table: wire.FromTable(table)}},
		}}})
		take(&wirepb.Frame{Kind: &wirepb.Frame_SnapshotEnd{SnapshotEnd: &wirepb.SnapshotEnd{
			Channel: channel, Cursors: []*wirepb.LogCursor{{Log: wire.FromLog(log), Cursor: wire.FromCursor("0/10", 10)}},
		}}})
	}
	take(&wirepb.Frame{Kind: &wirepb.Frame_Hello{Hello: &wirepb.Hello{MinVersion: 1, Version: 1, NodeId: "a", Capabilities: []string{session.CapOriginCursors, session.CapBehind}}}})
	take(advert(5))
	baseline(engine.LogID{Origin: "a#own", Epoch: 5}, nil)
	take(advert(6))
	next := engine.LogID{Origin: "a#own", Epoch: 6}
	take(&wirepb.Frame{Kind: &wirepb.Frame_Reset_{Reset_: &wirepb.Reset{Channel: channel, Log: wire.FromLog(engine.LogID{Origin: "a#own", Epoch: 5}), Epoch: 6}}})
	at := map[engine.TableName]engine.Reached{table: {Position: "0/8", Time: 8}}
	baseline(next, at)
	take(&wirepb.Frame{Kind: &wirepb.Frame_Behind{Behind: &wirepb.Behind{Channel: channel, Position: "0/20", Tables: wire.FromBehind(at)}}})
	take(&wirepb.Frame{Kind: &wirepb.Frame_Progress{Progress: &wirepb.Progress{Channel: channel, Prev: "0/10", Through: "0/20", Time: 20}}})
	if behind[table] != at[table] {
		t.Errorf("behind is %v", behind)
	}
}

package session_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/fanout/session"
	"github.com/tributary-dev/tributary/pkg/fanout/wire"
	"github.com/tributary-dev/tributary/pkg/fanout/wirepb"
)

// A table that a baseline was to bring is not offered on if the sink could not take the
// baseline in, though it had come whole: who reads the log here would take it for empty.
func TestUntakenBaselineBringsNoTables(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	log := engine.LogID{Origin: "o#own", Epoch: 5}
	var in *session.Intake
	var carried [][]engine.TableName
	var channel uint32 // of the last Subscribe
	perform := func(_ *session.Reader, acts []session.Action) {
		for _, a := range acts {
			switch {
			case a.Frame.GetSubscribe() != nil:
				channel = a.Frame.GetSubscribe().GetChannel()
			case a.Deliver != nil:
				if a.Deliver.Kind == session.DeliverCarry {
					carried = append(carried, a.Deliver.Tables)
				}
				in.Add(a.Deliver)
			case a.Close != nil:
				t.Fatalf("the session ends: %v", a.Close)
			}
		}
	}
	in = session.NewIntake(session.IntakeConfig{Compare: engine.CompareLSN, Hold: true, Perform: perform})
	had, all := tablesOf([]string{"t"}), tablesOf([]string{"t", "u"})
	in.Places().Put(log, &session.Place{Position: "0/10", Known: true, Tables: had, Compare: engine.CompareLSN})
	r, acts := session.NewReader(session.ReaderConfig{NodeID: "me", Compare: engine.CompareLSN, Window: 1000, Places: in.Places()}, now)
	in.Use(r)
	perform(r, acts)
	perform(r, r.Activate(now))
	take := func(f *wirepb.Frame) { perform(r, r.Frame(now, f)) }
	baseline := func() {
		take(&wirepb.Frame{Kind: &wirepb.Frame_Subscribed{Subscribed: &wirepb.Subscribed{Channel: channel, Log: wire.FromLog(log), Mode: wirepb.Mode_MODE_SNAPSHOT}}})
		take(&wirepb.Frame{Kind: &wirepb.Frame_SnapshotBegin{SnapshotBegin: &wirepb.SnapshotBegin{
			Channel: channel, At: wire.FromCursor("0/10", 10), Tables: []*wirepb.SnapshotTable{{Table: wire.FromTable(all[0])}, {Table: wire.FromTable(all[1])}},
		}}})
		take(&wirepb.Frame{Kind: &wirepb.Frame_SnapshotEnd{SnapshotEnd: &wirepb.SnapshotEnd{
			Channel: channel, Cursors: []*wirepb.LogCursor{{Log: wire.FromLog(log), Cursor: wire.FromCursor("0/10", 10)}},
		}}})
	}
	apply := func(commit error) { // whatever waits
		now = now.Add(time.Minute)
		for batch := in.Next(now, log.Origin); batch != nil; batch = in.Next(now, log.Origin) {
			var err error
			if batch[0].Kind == session.DeliverCommit {
				err = commit
			}
			if err := in.Done(now, log.Origin, batch, err); err != nil {
				t.Fatal(err)
			}
		}
	}
	last := func(what string, want []engine.TableName) {
		t.Helper()
		if have := carried[len(carried)-1]; !slices.Equal(have, want) {
			t.Errorf("%s: the log is carried with %v; want %v", what, have, want)
		}
	}
	take(&wirepb.Frame{Kind: &wirepb.Frame_Hello{Hello: &wirepb.Hello{MinVersion: 1, Version: 1, NodeId: "a", Capabilities: []string{session.CapOriginCursors}}}})
	take(&wirepb.Frame{Kind: &wirepb.Frame_Advert{Advert: &wirepb.Advert{Logs: []*wirepb.LogAdvert{{
		Log: wire.FromLog(log), Path: []string{"a", "o"}, Oldest: "0/10", Head: wire.FromCursor("0/10", 10), Tables: wire.FromTables(all),
	}}}}})
	last("before the baseline", had)
	for range 2 {
		baseline()
		apply(errors.New("no space left on device"))
		was := channel
		if apply(nil); channel == was {
			t.Fatal("the baseline is not asked for again")
		}
		last("the baseline could not be taken in", had)
	}
	baseline()
	apply(nil)
	if have := in.Places().Of(log).Tables; !slices.Equal(have, all) {
		t.Errorf("after the baseline: the log has %v; want %v", have, all)
	}
}

// A baseline that could not be taken in is asked for where the log is read by then, though
// it has come from another peer. How far the log had come with it says nothing any more.
func TestUntakenBaselineOfAnotherPeer(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	log := engine.LogID{Origin: "o#own", Epoch: 5}
	var in *session.Intake
	asked := map[*session.Reader][]*wirepb.Subscribe{}
	perform := func(r *session.Reader, acts []session.Action) {
		for _, a := range acts {
			switch {
			case a.Frame.GetSubscribe() != nil:
				asked[r] = append(asked[r], a.Frame.GetSubscribe())
			case a.Deliver != nil:
				in.Add(a.Deliver)
			case a.Close != nil:
				t.Fatalf("the session ends: %v", a.Close)
			}
		}
	}
	in = session.NewIntake(session.IntakeConfig{Compare: engine.CompareLSN, Hold: true, Perform: perform})
	tables := tablesOf([]string{"t"})
	with := func(peer string) *session.Reader {
		r, acts := session.NewReader(session.ReaderConfig{NodeID: "me", Compare: engine.CompareLSN, Window: 1000, Places: in.Places(), Assigned: true}, now)
		perform(r, acts)
		perform(r, r.Activate(now))
		perform(r, r.Frame(now, &wirepb.Frame{Kind: &wirepb.Frame_Hello{Hello: &wirepb.Hello{MinVersion: 1, Version: 1, NodeId: peer, Capabilities: []string{session.CapOriginCursors}}}}))
		perform(r, r.Frame(now, &wirepb.Frame{Kind: &wirepb.Frame_Advert{Advert: &wirepb.Advert{Logs: []*wirepb.LogAdvert{{
			Log: wire.FromLog(log), Path: []string{peer, "o"}, Oldest: "0/10", Head: wire.FromCursor("0/20", 20), Tables: wire.FromTables(tables),
		}}}}}))
		return r
	}
	a, b := with("a"), with("b")
	read := func(r *session.Reader) {
		in.Assign(log.Origin, r)
		perform(r, r.Settle(now))
	}
	read(a)
	if len(asked[a]) != 1 {
		t.Fatalf("node a was asked %d times", len(asked[a]))
	}
	baseline := func(r *session.Reader) {
		channel := asked[r][len(asked[r])-1].GetChannel()
		for _, f := range []*wirepb.Frame{
			{Kind: &wirepb.Frame_Subscribed{Subscribed: &wirepb.Subscribed{Channel: channel, Log: wire.FromLog(log), Mode: wirepb.Mode_MODE_SNAPSHOT}}},
			{Kind: &wirepb.Frame_SnapshotBegin{SnapshotBegin: &wirepb.SnapshotBegin{
				Channel: channel, At: wire.FromCursor("0/10", 10), Tables: []*wirepb.SnapshotTable{{Table: wire.FromTable(tables[0])}},
			}}},
			{Kind: &wirepb.Frame_SnapshotEnd{SnapshotEnd: &wirepb.SnapshotEnd{
				Channel: channel, Cursors: []*wirepb.LogCursor{{Log: wire.FromLog(log), Cursor: wire.FromCursor("0/10", 10)}},
			}}},
		} {
			perform(r, r.Frame(now, f))
		}
	}
	baseline(a)
	perform(a, a.Frame(now, &wirepb.Frame{Kind: &wirepb.Frame_Progress{Progress: &wirepb.Progress{
		Channel: asked[a][0].GetChannel(), Prev: "0/10", Through: "0/20", Time: 20,
	}}}))
	read(b)
	if n := len(asked[b]); n != 1 || asked[b][0].GetCursor().GetPosition() != "0/20" {
		t.Fatalf("node b was asked: %v", asked[b])
	}
	for range 2 { // the commit fails, and then it is tried again
		now = now.Add(time.Minute)
		for batch := in.Next(now, log.Origin); batch != nil; batch = in.Next(now, log.Origin) {
			var err error
			if batch[0].Kind == session.DeliverCommit {
				err = errors.New("no space left on device")
			}
			if err := in.Done(now, log.Origin, batch, err); err != nil {
				t.Fatal(err)
			}
		}
	}
	if n := len(asked[b]); n != 2 || asked[b][1].GetFrom() != nil {
		t.Fatalf("node b was asked: %v", asked[b])
	}
	if len(asked[a]) != 1 {
		t.Errorf("node a was asked again: %v", asked[a])
	}
	baseline(b)
	perform(b, b.Frame(now, &wirepb.Frame{Kind: &wirepb.Frame_Gap{Gap: &wirepb.Gap{Channel: asked[b][1].GetChannel(), Oldest: "0/20"}}}))
	if c := asked[b][len(asked[b])-1].GetCursor(); len(asked[b]) != 3 || c.GetPosition() != "0/10" || c.GetTime() != 10 {
		t.Errorf("node b was asked: %v", asked[b])
	}
}

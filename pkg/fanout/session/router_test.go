package session_test

import (
	"slices"
	"testing"
	"time"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/fanout/session"
	"github.com/tributary-dev/tributary/pkg/fanout/wire"
	"github.com/tributary-dev/tributary/pkg/fanout/wirepb"
)

// A log is read where all its tables are, though another way is shorter.
func TestRouterPrefersAllTables(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	log := engine.LogID{Origin: "o#own", Epoch: 5}
	in := session.NewIntake(session.IntakeConfig{Perform: func(*session.Reader, []session.Action) {}, Compare: engine.CompareLSN})
	offering := func(path []string, tables ...string) *session.Reader {
		r, _ := session.NewReader(session.ReaderConfig{NodeID: "me", Assigned: true, Compare: engine.CompareLSN, Window: 1000, Places: in.Places()}, now)
		r.Frame(now, &wirepb.Frame{Kind: &wirepb.Frame_Hello{Hello: &wirepb.Hello{MinVersion: 1, Version: 1, NodeId: path[0], Capabilities: []string{session.CapOriginCursors}}}})
		r.Frame(now, &wirepb.Frame{Kind: &wirepb.Frame_Advert{Advert: &wirepb.Advert{Logs: []*wirepb.LogAdvert{{
			Log: wire.FromLog(log), Path: path, Oldest: "0/10", Head: wire.FromCursor("0/10", 10), Tables: wire.FromTables(tablesOf(tables)),
		}}}}})
		return r
	}
	narrow, full := offering([]string{"a", "o"}, "t"), offering([]string{"b", "c", "o"}, "t", "u")
	over := func(what string, after time.Duration, want *session.Reader, rt *session.Router, from ...*session.Reader) {
		t.Helper()
		now = now.Add(after)
		var peers []session.Peer
		for i, r := range from {
			peers = append(peers, session.Peer{Session: r, Order: i})
		}
		rt.Route(now, in, peers)
		if have := in.Over(log.Origin); have != want {
			t.Errorf("%s: not read over the session that it should be", what)
		}
	}
	rt := session.NewRouter(session.RouterConfig{BehindFor: time.Second, SparedFor: 3 * time.Second})
	over("both are there", 0, full, rt, narrow, full)
	in.Ended(full)
	in.Places().Put(log, &session.Place{Position: "0/10", Known: true, Tables: tablesOf([]string{"t", "u"}), Compare: engine.CompareLSN})
	over("the one with all tables is lost", 0, nil, rt, narrow)
	over("it stays away", 3*time.Second, narrow, rt, narrow)
	full = offering([]string{"b", "c", "o"}, "t", "u")
	over("it is back", 0, narrow, rt, narrow, full)
	over("it is back to stay", time.Second, full, rt, narrow, full)
}

// A log that comes in the shared logs of several peers is said to come by the shortest
// path that is offered now, and never by one that leads through the node itself: a peer
// that is on it is not sent the log.
func TestRouterSharedPath(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	log := engine.LogID{Origin: "o#own", Epoch: 5}
	var said [][]string
	in := session.NewIntake(session.IntakeConfig{Compare: engine.CompareLSN, Perform: func(_ *session.Reader, acts []session.Action) {
		for _, a := range acts {
			if a.Deliver != nil && a.Deliver.Kind == session.DeliverCarry {
				said = append(said, a.Deliver.Path)
			}
		}
	}})
	in.Places().Put(log, &session.Place{Position: "0/10", Known: true, Compare: engine.CompareLSN})
	offer := func(r *session.Reader, path ...string) {
		r.Frame(now, &wirepb.Frame{Kind: &wirepb.Frame_Advert{Advert: &wirepb.Advert{Logs: []*wirepb.LogAdvert{{
			Log: wire.FromLog(log), Path: path, Oldest: "0/10", Head: wire.FromCursor("0/10", 10), Tables: wire.FromTables(tablesOf([]string{"t"})),
		}}}}})
	}
	offering := func(basic bool, path ...string) *session.Reader {
		r, _ := session.NewReader(session.ReaderConfig{
			NodeID: "me", Assigned: true, Compare: engine.CompareLSN, Window: 1000, Places: in.Places(), Scalars: in.Scalars(),
			Elsewhere: func(origin string) bool { return in.Over(origin) != nil },
		}, now)
		h := &wirepb.Hello{MinVersion: 1, Version: 1, NodeId: path[0]}
		if !basic {
			h.Capabilities = []string{session.CapOriginCursors}
		}
		r.Frame(now, &wirepb.Frame{Kind: &wirepb.Frame_Hello{Hello: h}})
		offer(r, path...)
		return r
	}
	rt := session.NewRouter(session.RouterConfig{})
	says := func(what string, from []*session.Reader, want ...string) {
		t.Helper()
		said = nil
		var peers []session.Peer
		for i, r := range from {
			peers = append(peers, session.Peer{Session: r, Order: i})
		}
		rt.Route(now, in, peers)
		if len(want) == 0 && len(said) == 0 {
			return
		}
		if len(said) != 1 || !slices.Equal(said[0], want) {
			t.Errorf("%s: the log is said to come by %v; want %v", what, said, want)
		}
	}
	a, b := offering(true, "a", "b", "o"), offering(true, "b", "o")
	says("both are there", []*session.Reader{a, b}, "b", "o")
	says("nothing has changed", []*session.Reader{a, b})
	offer(b, "b", "me", "o")
	says("the shorter leads through the node", []*session.Reader{a, b}, "a", "b", "o")
	offer(a, "a", "b", "me", "o")
	says("so does the other: what there is is still by it", []*session.Reader{a, b})
	offer(b, "b", "c", "o")
	says("one leads elsewhere", []*session.Reader{a, b}, "b", "c", "o")
	in.Ended(b)
	offer(a, "a", "o")
	says("its session has ended", []*session.Reader{a}, "a", "o")
	own := offering(false, "d", "e", "f", "o")
	said = nil
	own.Activate(now)
	says("a session has a cursor of the log alone", []*session.Reader{a, own}, "d", "e", "f", "o")
	in.Ended(own)
	says("that has ended", []*session.Reader{a}, "a", "o")
}

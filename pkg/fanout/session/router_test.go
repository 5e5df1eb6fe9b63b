package session_test

import (
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
	in.Places()[log] = &session.Place{Position: "0/10", Known: true, Tables: tablesOf([]string{"t", "u"}), Compare: engine.CompareLSN}
	over("the one with all tables is lost", 0, nil, rt, narrow)
	over("it stays away", 3*time.Second, narrow, rt, narrow)
	full = offering([]string{"b", "c", "o"}, "t", "u")
	over("it is back", 0, narrow, rt, narrow, full)
	over("it is back to stay", time.Second, full, rt, narrow, full)
}

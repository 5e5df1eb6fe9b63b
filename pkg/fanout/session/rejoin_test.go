package session_test

import (
	"testing"
	"time"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/fanout/session"
)

// A node that has come back waits for all peers that can be reached, a while for
// those that cannot, and longer where there are none: never for good.
func TestRejoinWaits(t *testing.T) {
	t.Parallel()
	start := time.Unix(1000, 0)
	r, _ := session.NewReader(session.ReaderConfig{NodeID: "a", Compare: engine.CompareNumber}, start)
	one := []session.Peer{{Session: r}}
	for _, c := range []struct {
		name  string
		peers []session.Peer
		away  int
		tried bool
		after time.Duration
	}{
		{"all are there", one, 0, true, 0},
		{"it has no peers", nil, 0, true, 0},
		{"one cannot be reached", one, 1, true, 3 * time.Second},
		{"one is being dialled", one, 1, false, 10 * time.Second},
		{"none can be reached", nil, 2, true, 10 * time.Second},
	} {
		in := session.NewIntake(session.IntakeConfig{Compare: engine.CompareNumber, Perform: func(*session.Reader, []session.Action) {}})
		in.Own(engine.OwnLog{Cursor: engine.Cursor{CursorKey: engine.CursorKey{Log: engine.LogID{Origin: "a#own", Epoch: 5}}, Position: "7"}})
		var waited time.Duration
		for !in.Rejoin(start.Add(waited), c.peers, c.away, c.tried) {
			if waited += 100 * time.Millisecond; !in.Owns("a#own") || waited > time.Minute {
				t.Fatalf("%s: after %s it still waits", c.name, waited)
			}
		}
		if waited != c.after || in.Owns("a#own") || len(in.Places()) > 0 {
			t.Errorf("%s: it waits for %s, and has %v; want %s", c.name, waited, in.Places(), c.after)
		}
	}
}

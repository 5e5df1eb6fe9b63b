package session_test

import (
	"testing"
	"time"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/fanout/session"
)

// A writer says that it lives as often as its reader wants to hear it, and what is new at
// once.
func TestHeartbeat(t *testing.T) {
	t.Parallel()
	log := engine.LogID{Origin: "a#own", Epoch: 1}
	for _, c := range []struct {
		wanted time.Duration
		words  int // in 16 s in which nothing happens; one in 4 s tells the heads again
	}{{0, 64}, {2 * time.Second, 8}, {time.Hour, 4}} {
		now := time.Unix(1000, 0)
		w := session.NewWriter(session.WriterConfig{NodeID: "a", Held: func(string) (engine.Epoch, engine.Time) { return 1, 1 }}, now)
		r, acts := session.NewReader(session.ReaderConfig{NodeID: "b", Compare: engine.CompareLSN, Window: 1000, Places: session.Places{}, Heartbeat: c.wanted}, now)
		served := session.Served{Advert: engine.Advert{Log: log, Path: []string{"a"}, Oldest: "0/10", Head: "0/10", Time: 10}, Compare: engine.CompareLSN}
		words, heads := 0, 0
		var give func(acts []session.Action)
		take := func(out []session.Output) {
			for _, o := range out {
				if o.Frame == nil {
					continue
				}
				words++
				if o.Frame.GetHead().GetHead().GetPosition() == "0/20" {
					heads++
				}
				give(r.Frame(now, o.Frame))
			}
		}
		give = func(acts []session.Action) {
			for _, a := range acts {
				if a.Close != nil {
					t.Fatal(a.Close)
				}
				if a.Frame != nil {
					take(w.Frame(a.Frame))
				}
			}
		}
		give(acts)
		take(w.Serve([]session.Served{served}))
		give(r.Activate(now))
		pass := func(d time.Duration) {
			for end := now.Add(d); now.Before(end); {
				now = now.Add(session.HeadEvery)
				take(w.Tick(now))
				give(r.Tick(now))
			}
		}
		pass(8 * time.Second)
		words = 0
		pass(16 * time.Second)
		if words < c.words || words > c.words+1 {
			t.Errorf("wanted every %s: %d words in 16 s, want %d", c.wanted, words, c.words)
		}
		served.Head, served.Time = "0/20", 20
		take(w.Serve([]session.Served{served}))
		pass(session.HeadEvery)
		if heads != 1 {
			t.Errorf("wanted every %s: a head that has moved was told %d times within %s", c.wanted, heads, session.HeadEvery)
		}
	}
}

package relay_test

import (
	"testing"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/relay"
	"github.com/tributary-dev/tributary/pkg/sources/ingest"
)

// A relay is where its own log has got, and tells those that read it, so that their lag
// is known: also before anything is in the log.
func TestLag(t *testing.T) {
	t.Parallel()
	leaf := newLeaf(t, "leaf")
	r := newRelay(t, "r", nil, relay.Config{}, leaf)
	own := func() (lag engine.Lag, a engine.Advert) {
		t.Helper()
		for _, l := range r.Status().Logs {
			if l.Own {
				lag = l.Lag
			}
		}
		for _, a := range r.Adverts() {
			if engine.MintedBy(a.Log.Origin, "r") {
				return lag, a
			}
		}
		t.Fatal("the relay offers no log")
		return lag, a
	}
	none := engine.Lag{Known: true, CountKnown: true}
	if lag, a := own(); lag != none || !a.Origin.Known() {
		t.Errorf("before anything is in the log the lag is %+v, and readers are told the head %+v", lag, a.Origin)
	}
	leaf.write(ingest.Put, readings, "leaf", "leaf", "id", 1, "v", 1)
	r.until("the row", func() bool { _, a := own(); return a.Head != "" })
	if lag, a := own(); lag != none || a.Origin.Position != a.Head {
		t.Errorf("the log is at %s, its lag %+v, and readers are told the head %+v", a.Head, lag, a.Origin)
	}
}

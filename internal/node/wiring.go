package node

import (
	"bytes"
	"context"
	"os"
	"time"

	"github.com/tributary-dev/tributary/pkg/nodeconfig"
)

// wiringPoll is how often the wiring file is looked at. It is replaced by a
// rename (a ConfigMap's mount swaps a link), which a poll sees on every file
// system.
const wiringPoll = 500 * time.Millisecond

// watchWiring puts new wiring in place as it appears. Wiring that cannot be
// used changes nothing: the node goes on with what it has, and says so once.
func (n *node) watchWiring(ctx context.Context) error {
	var last []byte
	var complained string
	for {
		text, err := os.ReadFile(n.cfg.WiringFile)
		if err == nil && !bytes.Equal(text, last) {
			var w *nodeconfig.Wiring
			if w, err = nodeconfig.ParseWiring(n.cfg.WiringFile, text); err == nil {
				if err = n.cfg.CheckWiring(n.cfg.WiringFile, w); err == nil {
					n.rewire(w)
					last, complained = text, ""
				}
			}
		}
		if err != nil && complained != err.Error() {
			complained = err.Error()
			n.log.Warn("the wiring cannot be used; going on with what there is", "file", n.cfg.WiringFile, "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wiringPoll):
		}
	}
}

func (n *node) rewire(w *nodeconfig.Wiring) {
	if have := n.wiringEpoch.Load(); w.Epoch < have {
		n.log.Info("older wiring ignored", "epoch", w.Epoch, "have", have)
		return
	}
	n.wiringEpoch.Store(w.Epoch)
	for _, u := range n.upstream {
		if ws := w.Source(u.name); ws != nil {
			u.rewire(ws)
		}
	}
	n.log.Info("wiring in place", "epoch", w.Epoch)
}

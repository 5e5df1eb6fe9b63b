package node

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tributary-dev/tributary/pkg/nodeconfig"
)

// deliveries turns how logs have come from other nodes into metrics at each
// scrape.
type deliveries struct{ node *node }

var logStates = []string{nodeconfig.LogUnknown, nodeconfig.LogCurrent, nodeconfig.LogBehind, nodeconfig.LogStalled, nodeconfig.LogHeld}

var (
	descLogState = prometheus.NewDesc("tributary_log_state",
		"1 for the state that the log is in: Unknown, Current, Behind, Stalled or Held.", []string{"origin", "state"}, nil)
	descBuffered = prometheus.NewDesc("tributary_log_buffered_bytes",
		"Bytes received of the log and not applied.", []string{"origin"}, nil)
	descDuplicates = prometheus.NewDesc("tributary_log_duplicates_total",
		"Batches of the log that had come already.", []string{"origin"}, nil)
	descDuplicateBytes = prometheus.NewDesc("tributary_log_duplicate_bytes_total",
		"Bytes of the batches that had come already.", []string{"origin"}, nil)
	descHoles = prometheus.NewDesc("tributary_log_holes_total",
		"Times that something was missing of the log, and was asked for again.", []string{"origin"}, nil)
	descResets = prometheus.NewDesc("tributary_log_resets_total",
		"New epochs of the log's origin.", []string{"origin"}, nil)
	descSnapshots = prometheus.NewDesc("tributary_log_snapshots_total",
		"Baselines taken of the log.", []string{"origin"}, nil)
	descStateDeltas = prometheus.NewDesc("tributary_log_state_deltas_total",
		"Times that the log was caught up from the state of a peer.", []string{"origin"}, nil)
	descReplays = prometheus.NewDesc("tributary_log_replays_total",
		"Times that the log was caught up from the archive of a peer.", []string{"origin"}, nil)
	descStarved = prometheus.NewDesc("tributary_log_credit_stalls_total",
		"Times that the peer had no more credit for the log.", []string{"origin"}, nil)
	descMoves = prometheus.NewDesc("tributary_log_moves_total",
		"Times that the log went on over another peer.", []string{"origin"}, nil)
	descPeerUp = prometheus.NewDesc("tributary_mesh_peer_connected",
		"1 while there is a session with the peer.", []string{"source", "peer"}, nil)
)

// Describe implements prometheus.Collector.
func (deliveries) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		descLogState, descBuffered, descDuplicates, descDuplicateBytes, descHoles, descResets, descSnapshots, descStateDeltas, descReplays, descStarved, descMoves, descPeerUp,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c deliveries) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	for _, l := range c.node.logs() {
		for _, s := range logStates {
			gauge(descLogState, one(s == l.State), l.Origin, s)
		}
		d := l.Delivery
		if d == nil {
			continue
		}
		gauge(descBuffered, float64(d.BufferedBytes), l.Origin)
		for _, n := range []struct {
			desc *prometheus.Desc
			n    int64
		}{
			{descDuplicates, d.Duplicates}, {descDuplicateBytes, d.DuplicateBytes}, {descHoles, d.Holes}, {descResets, d.Resets},
			{descSnapshots, d.Snapshots}, {descStateDeltas, d.StateDeltas}, {descReplays, d.Replays}, {descStarved, d.CreditStalls}, {descMoves, d.Moves},
		} {
			ch <- prometheus.MustNewConstMetric(n.desc, prometheus.CounterValue, float64(n.n), l.Origin)
		}
	}
	if m := c.node.mesh; m != nil {
		for _, p := range m.source.Status().Peers {
			name := p.ID
			if name == "" {
				name = p.Address
			}
			gauge(descPeerUp, one(p.Connected), m.name, name)
		}
	}
}

package node

import "github.com/prometheus/client_golang/prometheus"

// treeCollector turns the node's part in a relay tree into metrics at each scrape.
type treeCollector struct{ n *node }

var (
	descTreeChildren = prometheus.NewDesc("tributary_tree_children",
		"Children of the node in its relay tree, by whether a session with them stands.", []string{"connected"}, nil)
	descTreeLogs = prometheus.NewDesc("tributary_tree_logs",
		"Logs of children that the node knows: as many as it has children.", nil, nil)
	descTreeCursors = prometheus.NewDesc("tributary_tree_cursors",
		"Cursors that the node keeps in logs of children.", nil, nil)
	descRelayFlushes = prometheus.NewDesc("tributary_relay_flushes_total",
		"Flushes of the relay's log that had changes.", nil, nil)
	descRelayChanges = prometheus.NewDesc("tributary_relay_changes_total",
		"Changes in the flushes of the relay's log.", nil, nil)
	descRelayGap = prometheus.NewDesc("tributary_relay_gap_timestamp_seconds",
		"When the relay's log last got a gap: changes are missing of tables of which every change is delivered. Absent without one.", nil, nil)
	descLeafBytes = prometheus.NewDesc("tributary_leaf_log_bytes",
		"Bytes of its log that a leaf, or a relay with tables of which every change is delivered, keeps.", nil, nil)
	descLeafFull = prometheus.NewDesc("tributary_leaf_full",
		"1 while what is written, or comes in, waits because that log is full.", nil, nil)
)

func (treeCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descTreeChildren, descTreeLogs, descTreeCursors, descRelayFlushes, descRelayChanges, descRelayGap, descLeafBytes, descLeafFull} {
		ch <- d
	}
}

func (c treeCollector) Collect(ch chan<- prometheus.Metric) {
	st := c.n.describeTree()
	if st == nil {
		return
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	if c.n.children != nil {
		gauge(descTreeChildren, float64(st.Connected), "true")
		gauge(descTreeChildren, float64(st.Children-st.Connected), "false")
		gauge(descTreeLogs, float64(st.Logs))
		gauge(descTreeCursors, float64(st.Cursors))
	}
	if c.n.relay != nil {
		ch <- prometheus.MustNewConstMetric(descRelayFlushes, prometheus.CounterValue, float64(st.Flushes))
		ch <- prometheus.MustNewConstMetric(descRelayChanges, prometheus.CounterValue, float64(st.Changes))
		if st.Gap != nil {
			gauge(descRelayGap, float64(st.Gap.Since.UnixNano())/1e9)
		}
	}
	if limit, _ := c.n.cfg.KeptLog(); limit > 0 {
		gauge(descLeafBytes, float64(st.LogBytes))
		gauge(descLeafFull, one(st.Full))
	}
}

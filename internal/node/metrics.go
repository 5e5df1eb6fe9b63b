package node

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tributary-dev/tributary/pkg/engine"
)

// collector turns the engine's status into metrics at each scrape.
type collector struct {
	status func() engine.Status
}

var (
	descReady = prometheus.NewDesc("tributary_node_ready",
		"1 if every source of the node has been baselined and is served.", nil, nil)
	descSourceUp = prometheus.NewDesc("tributary_source_streaming",
		"1 if the source delivers.", []string{"source", "reason"}, nil)
	descBaselines = prometheus.NewDesc("tributary_source_baselines_total",
		"Baselines taken since the node started.", []string{"source"}, nil)
	descRebaselines = prometheus.NewDesc("tributary_source_rebaseline_total",
		"Baselines after a source's first since the node started.", []string{"source"}, nil)
	descHistoryLost = prometheus.NewDesc("tributary_source_history_lost_total",
		"How often peers held more of the source's own log than the node, since the node started: it has taken a new epoch each time.", []string{"source"}, nil)
	descBaselineSeconds = prometheus.NewDesc("tributary_source_baseline_seconds",
		"How long the last baseline of the source took, from its first row to its commit.", []string{"source"}, nil)
	descLag = prometheus.NewDesc("tributary_log_lag_seconds",
		"Seconds since the first transaction was committed at the origin that is not here yet; 0 when caught up; absent while unknown.", []string{"origin"}, nil)
	descLagChanges = prometheus.NewDesc("tributary_log_lag_changes",
		"Changes of the log that are not here yet; 0 when caught up; absent while unknown.", []string{"origin"}, nil)
	descApplied = prometheus.NewDesc("tributary_log_applied_timestamp_seconds",
		"Commit time of the newest transaction applied.", []string{"origin"}, nil)
	descHops = prometheus.NewDesc("tributary_log_hops",
		"Nodes that the log passes before this one.", []string{"origin"}, nil)
	descJournalChanges = prometheus.NewDesc("tributary_log_journal_changes",
		"Changes held for readers to resume from.", []string{"origin"}, nil)
	descJournalBytes = prometheus.NewDesc("tributary_log_journal_bytes",
		"Bytes held for readers to resume from.", []string{"origin"}, nil)
	descRows = prometheus.NewDesc("tributary_table_rows",
		"Live rows of a table.", []string{"schema", "table"}, nil)
	descRowBytes = prometheus.NewDesc("tributary_table_row_bytes",
		"Bytes of the live rows of a table, without overhead.", []string{"schema", "table"}, nil)
	descTombstones = prometheus.NewDesc("tributary_table_tombstones",
		"Deleted rows remembered.", []string{"schema", "table"}, nil)
)

func (collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		descReady, descSourceUp, descBaselines, descRebaselines, descHistoryLost, descBaselineSeconds, descLag, descLagChanges, descApplied, descHops,
		descJournalChanges, descJournalBytes, descRows, descRowBytes, descTombstones,
		descConflicts, descRefusedWrites, descRepeated,
	} {
		ch <- d
	}
}

func (c collector) Collect(ch chan<- prometheus.Metric) {
	st := c.status()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	count := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, labels...)
	}
	gauge(descReady, one(st.Ready))
	for _, s := range st.Sources {
		gauge(descSourceUp, one(s.Reason == engine.ReasonStreaming), s.Name, s.Reason)
		count(descBaselines, float64(s.Baselines), s.Name)
		count(descRebaselines, float64(s.Rebaselines), s.Name)
		count(descHistoryLost, float64(s.HistoryLost), s.Name)
		if s.Baselines > 0 {
			gauge(descBaselineSeconds, s.LastBaseline.Seconds(), s.Name)
		}
	}
	for _, l := range st.Logs {
		if l.Lag.Known {
			gauge(descLag, l.Lag.Seconds, l.ID.Origin)
		}
		if l.Lag.CountKnown {
			gauge(descLagChanges, float64(l.Lag.Changes), l.ID.Origin)
		}
		gauge(descApplied, float64(l.Time)/1e6, l.ID.Origin)
		gauge(descHops, float64(len(l.Path)-1), l.ID.Origin)
		gauge(descJournalChanges, float64(l.Changes), l.ID.Origin)
		gauge(descJournalBytes, float64(l.Bytes), l.ID.Origin)
	}
	for _, t := range st.Tables {
		gauge(descRows, float64(t.Rows), t.Table.Schema, t.Table.Name)
		gauge(descRowBytes, float64(t.Bytes), t.Table.Schema, t.Table.Name)
		gauge(descTombstones, float64(t.Tombstones), t.Table.Schema, t.Table.Name)
	}
	collectConflicts(&st, count)
}

func one(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

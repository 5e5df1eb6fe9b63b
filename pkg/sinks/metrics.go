package sinks

import "github.com/prometheus/client_golang/prometheus"

// collector turns the status of sinks into metrics at each scrape.
type collector []*Sink

// Collector returns the metrics of sinks.
func Collector(all []*Sink) prometheus.Collector { return collector(all) }

var (
	descApplied = prometheus.NewDesc("tributary_sink_applied_changes_total",
		"Changes that the target has taken, without those of baselines.", []string{"sink"}, nil)
	descBatches = prometheus.NewDesc("tributary_sink_batches_total",
		"Batches that the target has taken.", []string{"sink"}, nil)
	descRejected = prometheus.NewDesc("tributary_sink_rejected_total",
		"Entries that the target has rejected, each counted once while it is held.", []string{"sink"}, nil)
	descErrors = prometheus.NewDesc("tributary_sink_errors_total",
		"Times that the target could not be reached or did not take a batch for now.", []string{"sink"}, nil)
	descBaselines = prometheus.NewDesc("tributary_sink_baselines_total",
		"Baselines delivered.", []string{"sink"}, nil)
	descRebaselines = prometheus.NewDesc("tributary_sink_rebaselines_total",
		"Baselines of logs that the target already had: the log no longer held what follows, or has a new epoch.", []string{"sink"}, nil)
	descBaselineSeconds = prometheus.NewDesc("tributary_sink_baseline_seconds",
		"How long the last baseline took.", []string{"sink"}, nil)
	descLetters = prometheus.NewDesc("tributary_sink_dead_letters",
		"Entries that are put aside.", []string{"sink"}, nil)
	descState = prometheus.NewDesc("tributary_sink_state",
		"1 for the state that the sink is in.", []string{"sink", "state"}, nil)
	descLag = prometheus.NewDesc("tributary_sink_lag_seconds",
		"Age of the last transaction that the target has while it is behind the node; 0 when it is not; absent while it has nothing.", []string{"sink", "origin"}, nil)
	descHeld = prometheus.NewDesc("tributary_sink_held",
		"1 if the log waits at an entry that the target rejects.", []string{"sink", "origin"}, nil)
)

func (collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		descApplied, descBatches, descRejected, descErrors, descBaselines, descRebaselines, descBaselineSeconds, descLetters, descState, descLag, descHeld,
	} {
		ch <- d
	}
}

func (c collector) Collect(ch chan<- prometheus.Metric) {
	for _, s := range c {
		st := s.Status()
		send := func(d *prometheus.Desc, t prometheus.ValueType, v float64, labels ...string) {
			ch <- prometheus.MustNewConstMetric(d, t, v, append([]string{st.Name}, labels...)...)
		}
		count := func(d *prometheus.Desc, v int64) { send(d, prometheus.CounterValue, float64(v)) }
		count(descApplied, st.Changes)
		count(descBatches, st.Batches)
		count(descRejected, st.Rejected)
		count(descErrors, st.Errors)
		count(descBaselines, st.Baselines)
		count(descRebaselines, st.Rebaselines)
		if st.Baselines > 0 {
			send(descBaselineSeconds, prometheus.GaugeValue, st.LastBaseline.Seconds())
		}
		send(descLetters, prometheus.GaugeValue, float64(st.DeadLetters))
		send(descState, prometheus.GaugeValue, 1, string(st.State))
		for _, l := range st.Logs {
			if l.Lag.Known {
				send(descLag, prometheus.GaugeValue, l.Lag.Seconds, l.Log.Origin)
			}
			held := 0.0
			if l.HeldError != "" {
				held = 1
			}
			send(descHeld, prometheus.GaugeValue, held, l.Log.Origin)
		}
	}
}

package server

import "github.com/prometheus/client_golang/prometheus"

// metrics of a server. The names are part of the node's interface:
//
//	tributary_fanout_sessions              readers connected
//	tributary_fanout_sent_bytes_total      bytes of batches and snapshot rows, with their headers
//	tributary_fanout_sent_frames_total     batches and frames of snapshot rows
//	tributary_fanout_control_frames_total  all other frames sent
//	tributary_fanout_snapshots_total       baselines begun for readers
//	tributary_fanout_state_deltas_total    readers caught up by what the state holds
//	tributary_fanout_replays_total         readers caught up from an archive, begun
//	tributary_fanout_replay_failures_total replays that failed; before the first row the reader takes a baseline
//	tributary_fanout_snapshot_rows_total   rows and tombstones sent in them
//	tributary_fanout_snapshot_scans        frames of baselines being read from the store
//	tributary_fanout_snapshot_queue        readers that wait for their turn at that
//	tributary_fanout_gaps_total            readers told that their cursor is gone
//	tributary_fanout_deferred_total        sessions told to come back later, for there were too many at once
//	tributary_fanout_faults_total          sessions ended by an error, by its code
type metrics struct {
	sessions, scanning, queued                                      prometheus.Gauge
	bytes, frames, control, snapshots, deltas, rows, gaps, deferred prometheus.Counter
	replays, replayFailures                                         prometheus.Counter
	faults                                                          *prometheus.CounterVec
}

func newMetrics(r prometheus.Registerer) *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: "tributary", Subsystem: "fanout", Name: name, Help: help})
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "tributary", Subsystem: "fanout", Name: name, Help: help})
	}
	m := &metrics{
		sessions:       gauge("sessions", "Readers connected."),
		scanning:       gauge("snapshot_scans", "Frames of baselines being read from the store for readers."),
		queued:         gauge("snapshot_queue", "Readers that wait for their turn to be read the next frame of a baseline."),
		bytes:          counter("sent_bytes_total", "Bytes of batches and snapshot rows sent to readers."),
		frames:         counter("sent_frames_total", "Batches and frames of snapshot rows sent to readers."),
		control:        counter("control_frames_total", "Control frames sent to readers."),
		snapshots:      counter("snapshots_total", "Baselines begun for readers."),
		deltas:         counter("state_deltas_total", "Readers caught up by what the state holds of changes since their cursor."),
		replays:        counter("replays_total", "Catch-ups of readers from an archive that have begun."),
		replayFailures: counter("replay_failures_total", "Catch-ups of readers from an archive that have failed; before the first row the reader takes a baseline."),
		rows:           counter("snapshot_rows_total", "Rows and tombstones sent to readers in baselines."),
		gaps:           counter("gaps_total", "Readers told that the log no longer holds their cursor."),
		deferred:       counter("deferred_total", "Sessions told to come back later, for there were too many at once."),
		faults: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "tributary", Subsystem: "fanout", Name: "faults_total", Help: "Sessions of readers ended by an error, by its code.",
		}, []string{"code"}),
	}
	if r != nil {
		r.MustRegister(m.sessions, m.scanning, m.queued, m.bytes, m.frames, m.control, m.snapshots, m.deltas, m.replays, m.replayFailures, m.rows, m.gaps, m.deferred, m.faults)
	}
	return m
}

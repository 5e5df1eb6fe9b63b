package ingest

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics count what is written.
type metrics struct {
	requests *prometheus.CounterVec // by result
	refused  *prometheus.CounterVec // by reason
	ops      *prometheus.CounterVec // by kind, of batches that were committed
	bytes    prometheus.Counter
	rows     prometheus.Counter
	repeats  prometheus.Counter
	commits  prometheus.Counter
	latency  prometheus.Histogram
}

func newMetrics() *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "tributary_ingest_" + name, Help: help})
	}
	return &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tributary_ingest_batches_total", Help: "Batches sent to the node's write API, by what became of them: written, repeated or refused."}, []string{"result"}),
		refused:  prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tributary_ingest_refused_total", Help: "Batches that were not written, by reason."}, []string{"reason"}),
		ops:      prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tributary_ingest_operations_total", Help: "Operations of batches that were written."}, []string{"op"}),
		bytes:    counter("bytes_total", "Bytes of values of batches that were written."),
		rows:     counter("rows_total", "Rows written and deleted."),
		repeats:  counter("repeats_total", "Batches that had been committed before, by their idempotency key."),
		commits:  counter("commits_total", "Commits of the store; what is written at the same time shares one."),
		latency: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "tributary_ingest_seconds", Help: "How long a batch that was written took, from its arrival to its commit.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 16),
		}),
	}
}

func (m *metrics) observe(b *Batch, res Result, bytes int, err *Error, took time.Duration) {
	switch {
	case err != nil:
		m.requests.WithLabelValues("refused").Inc()
		m.refused.WithLabelValues(string(err.Code)).Inc()
	case res.Repeated:
		m.requests.WithLabelValues("repeated").Inc()
		m.repeats.Inc()
	default:
		m.requests.WithLabelValues("written").Inc()
		m.latency.Observe(took.Seconds())
		m.bytes.Add(float64(bytes))
		m.rows.Add(float64(res.Rows))
		n := map[Kind]int{}
		for i := range b.Ops {
			n[b.Ops[i].Kind]++
		}
		for k, n := range n {
			m.ops.WithLabelValues(string(k)).Add(float64(n))
		}
	}
}

// Refused counts a batch that was refused before it came to the source.
func (s *Source) Refused(code Code) {
	s.metrics.requests.WithLabelValues("refused").Inc()
	s.metrics.refused.WithLabelValues(string(code)).Inc()
}

var (
	descPending = prometheus.NewDesc("tributary_ingest_pending_batches", "Batches that wait to be committed.", nil, nil)
	descWaiting = prometheus.NewDesc("tributary_ingest_pending_bytes", "Bytes of the batches that wait to be committed.", nil, nil)
	descKeys    = prometheus.NewDesc("tributary_ingest_idempotency_keys", "Idempotency keys remembered.", nil, nil)
)

func (s *Source) collectors() []prometheus.Collector {
	m := s.metrics
	return []prometheus.Collector{m.requests, m.refused, m.ops, m.bytes, m.rows, m.repeats, m.commits, m.latency}
}

// Describe implements prometheus.Collector.
func (s *Source) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range s.collectors() {
		c.Describe(ch)
	}
	ch <- descPending
	ch <- descWaiting
	ch <- descKeys
}

// Collect implements prometheus.Collector.
func (s *Source) Collect(ch chan<- prometheus.Metric) {
	for _, c := range s.collectors() {
		c.Collect(ch)
	}
	st := s.Status()
	ch <- prometheus.MustNewConstMetric(descPending, prometheus.GaugeValue, float64(st.Pending))
	ch <- prometheus.MustNewConstMetric(descWaiting, prometheus.GaugeValue, float64(st.PendingBytes))
	ch <- prometheus.MustNewConstMetric(descKeys, prometheus.GaugeValue, float64(st.Keys))
}

// Status is what there is to know of a Source.
type Status struct {
	Pending      int   // batches that wait to be committed
	PendingBytes int64 // of them
	Keys         int   // idempotency keys remembered
	Draining     bool
}

// Status returns the source's.
func (s *Source) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Status{s.pending, s.bytes, len(s.keys.order), s.drained}
}

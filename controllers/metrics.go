package controllers

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

var (
	planSeconds = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "tributary_plan_seconds", Help: "How long it took to make a plan.",
		Buckets: prometheus.ExponentialBuckets(0.001, 4, 8),
	})
	planNodes = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "tributary_plan_nodes", Help: "Nodes of the present plan, by the reason of the condition that holds them up; OK for none.",
	}, []string{"reason"})
	pollFailures = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "tributary_status_poll_failures_total", Help: "Status documents of nodes that could not be read.",
	})
	objectsApplied = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "tributary_objects_applied_total", Help: "Objects written by server-side apply, by kind.",
	}, []string{"kind"})
	statusWrites = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "tributary_status_writes_total", Help: "Writes of status, by kind.",
	}, []string{"kind"})
)

func init() {
	metrics.Registry.MustRegister(planSeconds, planNodes, pollFailures, objectsApplied, statusWrites)
}

package node

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	bridge "go.opentelemetry.io/contrib/bridges/prometheus"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"

	"go.opentelemetry.io/otel/attribute"

	"github.com/tributary-dev/tributary/internal/version"
)

// telemetryTimeout bounds how long the last metrics are sent for when the node ends.
const telemetryTimeout = 3 * time.Second

// pushMetrics sends all metrics that the node has for Prometheus, under the same
// names, to an OpenTelemetry collector, until ctx ends. The collector is named by
// OpenTelemetry's own variables (OTEL_EXPORTER_OTLP_ENDPOINT and others); without them
// nothing is sent. A collector that does not answer costs nothing else.
func (n *node) pushMetrics(ctx context.Context) error {
	if os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") == "" && os.Getenv("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT") == "" {
		return nil
	}
	exporter, err := otlpmetrichttp.New(ctx)
	if err != nil {
		n.log.Warn("metrics are not sent to OpenTelemetry: its variables cannot be used", "error", err)
		return nil
	}
	about, err := resource.New(ctx,
		resource.WithAttributes(
			attribute.String("service.name", "tributary-node"), attribute.String("service.version", version.String()),
			attribute.String("service.instance.id", n.instance), attribute.String("tributary.node", n.cfg.Node.ID),
		),
		resource.WithFromEnv()) // which wins
	if err != nil && about == nil {
		return err
	}
	provider := metric.NewMeterProvider(metric.WithResource(about), metric.WithReader(
		metric.NewPeriodicReader(exporter, metric.WithProducer(bridge.NewMetricProducer(bridge.WithGatherer(prometheus.Gatherer(n.metrics)))))))
	<-ctx.Done()
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), telemetryTimeout)
	defer cancel()
	if err := provider.Shutdown(last); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		n.log.Info("the last metrics could not be sent to OpenTelemetry", "error", err)
	}
	return nil
}

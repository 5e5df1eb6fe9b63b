package integration

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/protobuf/proto"

	collector "go.opentelemetry.io/proto/otlp/collector/metrics/v1"

	"github.com/tributary-dev/tributary/internal/testpg"
	"github.com/tributary-dev/tributary/pkg/nodeconfig"
)

// A node sends what it has for Prometheus to an OpenTelemetry collector too, such as how
// often its sources were baselined again, of whatever kind they are.
func TestOpenTelemetry(t *testing.T) {
	var mu sync.Mutex
	got, again := map[string]bool{}, map[string]float64{} // metrics; re-baselines by node and source
	var about []string
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		var req collector.ExportMetricsServiceRequest
		if err == nil {
			err = proto.Unmarshal(body, &req)
		}
		if err != nil || r.URL.Path != "/v1/metrics" {
			t.Errorf("%s: %v", r.URL.Path, err)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		for _, rm := range req.ResourceMetrics {
			node := ""
			for _, a := range rm.Resource.Attributes {
				about = append(about, a.Key+"="+a.Value.GetStringValue())
				if a.Key == "tributary.node" {
					node = a.Value.GetStringValue()
				}
			}
			for _, sm := range rm.ScopeMetrics {
				for _, m := range sm.Metrics {
					got[m.Name] = true
					if strings.TrimSuffix(m.Name, "_total") != "tributary_source_rebaseline" {
						continue
					}
					for _, p := range m.GetSum().GetDataPoints() {
						for _, a := range p.Attributes {
							if a.Key == "source" {
								again[node+" "+a.Value.GetStringValue()] = p.GetAsDouble()
							}
						}
					}
				}
			}
		}
	}))
	defer srv.Close()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", srv.URL)
	t.Setenv("OTEL_METRIC_EXPORT_INTERVAL", "200")
	db := testpg.NewDB(t)
	db.Exec(t, createT)
	n := startNode(t, "hops/top", nodeconfig.Source{Name: "db", Postgres: database(t, db, plain)})
	until(t, "the metrics", func() error {
		mu.Lock()
		defer mu.Unlock()
		for _, name := range []string{"tributary_source_rebaseline_total", "tributary_source_baselines_total", "tributary_log_lag_seconds"} {
			if !got[name] && !got[strings.TrimSuffix(name, "_total")] {
				return errMissing(name)
			}
		}
		return nil
	})
	startNode(t, "hops/below", nodeconfig.Source{Name: "fanout", Fanout: &nodeconfig.Fanout{}}, n)
	golden, err := filepath.Abs("../../pkg/archive/testdata/golden/net")
	if err != nil {
		t.Fatal(err)
	}
	startNode(t, "hops/seed", nodeconfig.Source{Name: "archive", Archive: &nodeconfig.ArchiveSource{
		ArchiveStore: nodeconfig.ArchiveStore{Store: nodeconfig.StoreLocal, StoreConfig: nodeconfig.StoreConfig{Path: golden}},
		Group:        true, Tables: []nodeconfig.Table{{Schema: "public", Name: "events"}},
	}})
	ingest := tallySource()
	ingest.Ingest.Volatile = true
	startConfig(t, "hops/member", nodeconfig.Config{Sources: []nodeconfig.Source{{Name: "mesh", Mesh: &nodeconfig.Mesh{}}, ingest}}, n)
	// The temporary slot of a node that keeps nothing ends with its connection.
	db.Exec(t, "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE database = current_database()")
	until(t, "the re-baselines of all kinds of sources", func() error {
		mu.Lock()
		defer mu.Unlock()
		for source, least := range map[string]float64{"hops/top db": 1, "hops/below fanout": 0, "hops/seed archive": 0, "hops/member mesh": 0, "hops/member in": 0} {
			if n, ok := again[source]; !ok || n < least {
				return fmt.Errorf("of %s %v are told: %v", source, n, again)
			}
		}
		return nil
	})
	n.stop()
	if !slices.Contains(about, "tributary.node=hops/top") {
		t.Errorf("the resource is %v", about)
	}
}

type errMissing string

func (e errMissing) Error() string { return "no metric " + string(e) }

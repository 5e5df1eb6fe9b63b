package node

import (
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/nodeconfig"
	"github.com/tributary-dev/tributary/pkg/readapi"
	"github.com/tributary-dev/tributary/pkg/sources/postgres"
)

// database is a PostgreSQL source.
type database struct {
	name   string
	source *postgres.Source
	log    *slog.Logger
	tables []engine.TableName // as the source has been told last; of watchConfig once the node runs
}

// status fills in what a PostgreSQL source adds to a source's status.
func (d *database) status(s *nodeconfig.SourceStatus, permanent bool) {
	st := d.source.Slot()
	s.Kind = nodeconfig.KindPostgres
	s.Slot = &nodeconfig.SlotStatus{
		Name: st.Name, Temporary: !permanent, Checked: st.At, Exists: st.Exists,
		RetainedBytes: st.RetainedBytes, PendingBytes: st.PendingBytes, WALStatus: st.WALStatus,
		Holder: st.Holder, Invalid: st.Invalid, InactiveSince: st.InactiveSince, Failover: st.Failover, ScratchBytes: st.ScratchBytes,
	}
	if st.LimitBytes > 0 {
		s.Slot.LimitBytes = &st.LimitBytes
		s.Slot.SafeBytes = &st.SafeBytes
	}
	for _, t := range d.source.BaselineProgress() {
		if !t.Done {
			s.Baseline = append(s.Baseline, nodeconfig.BaselineStatus{
				Table: readapi.FormatTable(t.Table), Rows: t.Rows, Bytes: t.Bytes, OfRows: t.OfRows, OfBytes: t.OfBytes,
			})
		}
	}
}

var (
	descSlotRetained = prometheus.NewDesc("tributary_slot_retained_wal_bytes",
		"WAL that the server keeps for the source's slot, as last asked.", []string{"source", "slot"}, nil)
	descSlotPending = prometheus.NewDesc("tributary_slot_pending_wal_bytes",
		"WAL that the source has not confirmed, as last asked.", []string{"source", "slot"}, nil)
	descSlotSafe = prometheus.NewDesc("tributary_slot_safe_wal_bytes",
		"WAL that may yet be written before the slot is in danger; absent without max_slot_wal_keep_size.", []string{"source", "slot"}, nil)
	descSlotStatus = prometheus.NewDesc("tributary_slot_wal_status",
		"1 for the wal_status of the source's slot: reserved, extended, unreserved or lost; missing if the slot is not there.", []string{"source", "slot", "status"}, nil)
	descSlotChecked = prometheus.NewDesc("tributary_slot_checked_timestamp_seconds",
		"When the server was last asked for the source's slot.", []string{"source", "slot"}, nil)
	descScratch = prometheus.NewDesc("tributary_source_scratch_bytes",
		"What is held of large transactions in scratch files.", []string{"source"}, nil)
)

var (
	descBaselineRows = prometheus.NewDesc("tributary_source_baseline_rows",
		"Rows that the last baseline of a table has read.", []string{"source", "schema", "table"}, nil)
	descBaselineRowsExpected = prometheus.NewDesc("tributary_source_baseline_rows_expected",
		"Rows that the server estimated there are; absent before its first ANALYZE of the table.", []string{"source", "schema", "table"}, nil)
	descBaselineDone = prometheus.NewDesc("tributary_source_baseline_done",
		"1 once the last baseline of a table has read all of it.", []string{"source", "schema", "table"}, nil)
)

// slots makes metrics of the PostgreSQL sources, their slots above all, at each
// scrape.
type slots struct {
	databases []*database
}

func (slots) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		descSlotRetained, descSlotPending, descSlotSafe, descSlotStatus, descSlotChecked, descScratch,
		descBaselineRows, descBaselineRowsExpected, descBaselineDone,
	} {
		ch <- d
	}
}

func (s slots) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	for _, d := range s.databases {
		st := d.source.Slot()
		gauge(descScratch, float64(st.ScratchBytes), d.name)
		for _, t := range d.source.BaselineProgress() {
			gauge(descBaselineRows, float64(t.Rows), d.name, t.Table.Schema, t.Table.Name)
			gauge(descBaselineDone, one(t.Done), d.name, t.Table.Schema, t.Table.Name)
			if t.OfRows > 0 {
				gauge(descBaselineRowsExpected, float64(t.OfRows), d.name, t.Table.Schema, t.Table.Name)
			}
		}
		if st.At.IsZero() {
			continue // unknown never reads as nothing
		}
		gauge(descSlotChecked, float64(st.At.UnixMicro())/1e6, d.name, st.Name)
		status := "missing"
		if st.Exists {
			status = st.WALStatus
			gauge(descSlotRetained, float64(st.RetainedBytes), d.name, st.Name)
			gauge(descSlotPending, float64(st.PendingBytes), d.name, st.Name)
			if st.LimitBytes > 0 {
				gauge(descSlotSafe, float64(st.SafeBytes), d.name, st.Name)
			}
		}
		gauge(descSlotStatus, 1, d.name, st.Name, status)
	}
}

package node

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/tributary-dev/tributary/pkg/archive"
	"github.com/tributary-dev/tributary/pkg/archive/cold"
	"github.com/tributary-dev/tributary/pkg/archive/dest"
	places "github.com/tributary-dev/tributary/pkg/archive/dest/build"
	"github.com/tributary-dev/tributary/pkg/archive/export"
	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/engine/spill"
	"github.com/tributary-dev/tributary/pkg/nodeconfig"
	"github.com/tributary-dev/tributary/pkg/readapi"
	archivesource "github.com/tributary-dev/tributary/pkg/sources/archive"
)

// archived is an archive of the node's configuration.
type archived struct {
	cfg         *nodeconfig.Archive
	destination dest.Destination
	formats     []archive.Format
	exporter    *export.Exporter // nil: it is not written here
	err         error            // why it cannot be used
	since       time.Time
}

// archives are all that the node has to do with archives of its tables.
type archives struct {
	node *node
	all  []*archived
	cold *cold.Archives // nil if there are none
}

// openArchives makes the archives of the configuration. One that cannot be used costs
// its own function, and nothing else.
func (n *node) openArchives(scratch string) {
	n.archives = &archives{node: n}
	for i := range n.cfg.Archives {
		a := &archived{cfg: &n.cfg.Archives[i], since: time.Now()}
		n.archives.all = append(n.archives.all, a)
		if a.err = n.openArchive(a, scratch); a.err != nil {
			n.log.Warn("an archive cannot be used: readers that are far behind take a snapshot, and nothing is written to it", "archive", a.cfg.Name, "error", a.err)
		}
	}
	if len(n.archives.all) == 0 {
		return
	}
	n.archives.cold = cold.New(cold.Config{Locate: n.archives.locate, Scratch: spill.NewDir(scratch), Logger: n.log})
}

func (n *node) openArchive(a *archived, scratch string) (err error) {
	c := a.cfg
	if a.formats, err = archive.ParseFormats(c.Formats...); err != nil {
		return err
	}
	if a.destination, err = places.Destination(context.Background(), c.Store, &c.StoreConfig); err != nil || c.Write == nil {
		return err
	}
	w := c.Write
	a.exporter, err = export.New(export.Config{
		Name: c.Name, Host: n.engine, Destination: a.destination, Prefix: a.prefix, Tables: tablesOf(c.Tables), Formats: a.formats,
		History: archive.History(w.History), ID: cmp.Or(w.Writer, n.cfg.Node.ID+"/"+c.Name), TakeOver: w.TakeOver,
		Passed: func() { n.archives.cold.Look() }, Interval: w.Interval, DiffBytes: int64(w.MaxDiffBytes), Level: w.CompressionLevel,
		Policy: archive.Policy{
			DiffBytes: int64(w.Rebase.DiffBytes), Fraction: w.Rebase.Fraction, Churn: w.Rebase.Churn, MaxDiffs: w.Rebase.MaxDiffs,
			MaxAge: w.Rebase.MaxAge, MinInterval: w.Rebase.MinInterval,
		},
		Retention: archive.Retention{Generations: w.Retention.Generations, Age: w.Retention.Age, Grace: w.Retention.Grace},
		Scratch:   spill.NewDir(scratch), Logger: n.log,
	})
	return err
}

func (a *archived) prefix(t engine.TableName) string {
	return a.cfg.Prefix(nodeconfig.Table{Schema: t.Schema, Name: t.Name})
}

// locate returns where a table is archived: where it is named, else where all are.
func (s *archives) locate(t engine.TableName) (cold.Location, bool) {
	for _, named := range []bool{true, false} {
		for _, a := range s.all {
			if a.err == nil && (named && slices.Contains(tablesOf(a.cfg.Tables), t) || !named && len(a.cfg.Tables) == 0) {
				return cold.Location{Archive: a.cfg.Name, Destination: a.destination, Prefix: a.prefix(t), Formats: a.formats}, true
			}
		}
	}
	return cold.Location{}, false
}

// run writes and watches the archives until ctx ends.
func (s *archives) run(ctx context.Context) error {
	if s.cold == nil {
		return nil
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.cold.Run(ctx) })
	g.Go(func() error { // what the node serves may be asked for
		for {
			changed := s.node.engine.Changed()
			for _, a := range s.node.engine.Adverts() {
				s.cold.Watch(a.Tables...)
			}
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(time.Second):
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return nil
			}
		}
	})
	for _, a := range s.all {
		if a.exporter != nil {
			g.Go(func() error { return a.exporter.Run(ctx) })
		}
	}
	if err := g.Wait(); ctx.Err() == nil {
		return err
	}
	return nil
}

// describe returns how the archives are.
func (s *archives) describe() []nodeconfig.ArchiveStatus {
	var out []nodeconfig.ArchiveStatus
	for _, a := range s.all {
		st := nodeconfig.ArchiveStatus{Name: a.cfg.Name, Writes: a.exporter != nil, State: nodeconfig.ArchiveStreaming, Since: a.since}
		if a.err != nil {
			st.State, st.Message, st.LastError = nodeconfig.ArchiveFailed, a.err.Error(), a.err.Error()
			out = append(out, st)
			continue
		}
		st.Destination = a.destination.Describe()
		tables := map[engine.TableName]*nodeconfig.ArchiveTableStatus{}
		at := func(t engine.TableName, prefix string) *nodeconfig.ArchiveTableStatus {
			if tables[t] == nil {
				tables[t] = &nodeconfig.ArchiveTableStatus{Table: readapi.FormatTable(t), KeyPrefix: prefix}
			}
			return tables[t]
		}
		if a.exporter != nil {
			e := a.exporter.Status()
			st.State, st.Message, st.Since, st.LastError = string(e.State), e.Message, e.Since, e.LastError
			for t, ts := range e.Tables {
				d := at(t, ts.Prefix)
				d.Doing, d.Generation, d.Artifacts, d.Bytes, d.Written = ts.Doing, ts.Generation, ts.Artifacts, ts.Bytes, ts.Written
				d.Through, d.LagKnown, d.LagSeconds, d.Bases, d.LastCause, d.LastError = positions(ts.Through), ts.Lag.Known, ts.Lag.Seconds, ts.Bases, ts.LastCause, ts.LastError
			}
		}
		for _, c := range s.cold.Status() {
			if c.At.Archive != a.cfg.Name {
				continue
			}
			d := at(c.Table, c.At.Prefix)
			if d.Replays, d.Declined, d.DeclinedAt = c.Replays, c.Declined, c.DeclinedAt; a.exporter == nil {
				d.Through, d.LastError = positions(c.Through), c.Error
				if c.Error != "" && st.Message == "" {
					st.State, st.Message, st.LastError = nodeconfig.ArchiveRetrying, fmt.Sprintf("the archive of %s cannot be read: %s", d.Table, c.Error), c.Error
				}
			}
		}
		for _, d := range tables {
			st.Tables = append(st.Tables, *d)
		}
		slices.SortFunc(st.Tables, func(a, b nodeconfig.ArchiveTableStatus) int { return strings.Compare(a.Table, b.Table) })
		out = append(out, st)
	}
	return out
}

func positions(v archive.Vector) []nodeconfig.ArchivePosition {
	var out []nodeconfig.ArchivePosition
	for _, c := range v {
		out = append(out, nodeconfig.ArchivePosition{Origin: c.Log.Origin, Epoch: c.Log.Epoch.String(), Position: string(c.Position)})
	}
	return out
}

var (
	descArchiveUp = prometheus.NewDesc("tributary_archive_state",
		"1 for the state that the archive is in.", []string{"archive", "state"}, nil)
	descArchiveLag = prometheus.NewDesc("tributary_archive_lag_seconds",
		"Age of what the archive has, where the node has more; 0 where it has all.", []string{"archive", "table"}, nil)
	descArchiveBytes = prometheus.NewDesc("tributary_archive_bytes",
		"Bytes stored in the artifacts that the archive lists.", []string{"archive", "table"}, nil)
	descArchiveArtifacts = prometheus.NewDesc("tributary_archive_artifacts",
		"Artifacts that the archive lists.", []string{"archive", "table"}, nil)
	descArchiveGeneration = prometheus.NewDesc("tributary_archive_generation",
		"Generation of the archive: each base begins one.", []string{"archive", "table"}, nil)
	descArchiveWritten = prometheus.NewDesc("tributary_archive_written_timestamp_seconds",
		"When the archive was written to last.", []string{"archive", "table"}, nil)
	descArchiveBases = prometheus.NewDesc("tributary_archive_bases_total",
		"Bases written since the node started.", []string{"archive", "table"}, nil)
	descArchiveReplays = prometheus.NewDesc("tributary_archive_replays_total",
		"Readers caught up from the archive since the node started.", []string{"archive", "table"}, nil)
	descArchiveErrors = prometheus.NewDesc("tributary_archive_errors_total",
		"Times that writing the archive failed.", []string{"archive"}, nil)
)

var archiveStates = []string{
	nodeconfig.ArchiveWaiting, nodeconfig.ArchiveStreaming, nodeconfig.ArchiveRetrying, nodeconfig.ArchiveFull, nodeconfig.ArchiveFenced, nodeconfig.ArchiveFailed,
}

// Describe implements prometheus.Collector.
func (s *archives) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		descArchiveUp, descArchiveLag, descArchiveBytes, descArchiveArtifacts, descArchiveGeneration, descArchiveWritten, descArchiveBases, descArchiveReplays, descArchiveErrors,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (s *archives) Collect(ch chan<- prometheus.Metric) {
	put := func(d *prometheus.Desc, kind prometheus.ValueType, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, kind, v, labels...)
	}
	for _, a := range s.all {
		if a.exporter != nil {
			put(descArchiveErrors, prometheus.CounterValue, float64(a.exporter.Status().Errors), a.cfg.Name)
		}
	}
	for _, a := range s.describe() {
		for _, state := range archiveStates {
			put(descArchiveUp, prometheus.GaugeValue, one(a.State == state), a.Name, state)
		}
		for _, t := range a.Tables {
			put(descArchiveReplays, prometheus.CounterValue, float64(t.Replays), a.Name, t.Table)
			if !a.Writes {
				continue
			}
			if t.LagKnown {
				put(descArchiveLag, prometheus.GaugeValue, t.LagSeconds, a.Name, t.Table)
			}
			put(descArchiveBytes, prometheus.GaugeValue, float64(t.Bytes), a.Name, t.Table)
			put(descArchiveArtifacts, prometheus.GaugeValue, float64(t.Artifacts), a.Name, t.Table)
			put(descArchiveGeneration, prometheus.GaugeValue, float64(t.Generation), a.Name, t.Table)
			put(descArchiveBases, prometheus.CounterValue, float64(t.Bases), a.Name, t.Table)
			if !t.Written.IsZero() {
				put(descArchiveWritten, prometheus.GaugeValue, float64(t.Written.UnixMilli())/1e3, a.Name, t.Table)
			}
		}
	}
}

// routes serves how the archives are, and takes snapshots on demand.
func (s *archives) routes(mux *http.ServeMux) {
	mux.HandleFunc("GET /archives", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusOK, map[string]any{"archives": append([]nodeconfig.ArchiveStatus{}, s.describe()...)})
	})
	mux.HandleFunc("POST /archives/{name}/snapshot", func(w http.ResponseWriter, r *http.Request) {
		var ask struct {
			Table string `json:"table"`
		}
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 64<<10)).Decode(&ask); err != nil && r.ContentLength != 0 {
			answer(w, http.StatusBadRequest, map[string]any{"error": fmt.Sprintf("the body is not a JSON object such as {\"table\": \"public.events\"}: %v", err)})
			return
		}
		i := slices.IndexFunc(s.all, func(a *archived) bool { return a.cfg.Name == r.PathValue("name") })
		if i < 0 || s.all[i].exporter == nil {
			answer(w, http.StatusNotFound, map[string]any{"error": fmt.Sprintf("this node writes no archive %q: list them by GET /archives", r.PathValue("name"))})
			return
		}
		var table engine.TableName
		for _, t := range s.node.engine.Status().Tables {
			if readapi.FormatTable(t.Table) == ask.Table {
				table = t.Table
			}
		}
		if ask.Table != "" && table == (engine.TableName{}) {
			answer(w, http.StatusNotFound, map[string]any{"error": fmt.Sprintf("this node has no table %s", ask.Table)})
			return
		}
		err := s.all[i].exporter.Snapshot(r.Context(), table)
		switch {
		case errors.Is(err, context.Canceled):
			return
		case err != nil:
			answer(w, http.StatusServiceUnavailable, map[string]any{"error": err.Error()})
			return
		}
		answer(w, http.StatusOK, s.describe()[i])
	})
}

// archiveSource makes a source that replays archives.
func (n *node) archiveSource(s *nodeconfig.Source) (engine.SyncSource, error) {
	a := s.Archive
	d, err := places.Destination(context.Background(), a.Store, &a.StoreConfig)
	if err != nil {
		return nil, err
	}
	formats, err := archive.ParseFormats(a.Formats...)
	if err != nil {
		return nil, err
	}
	c := archivesource.Config{
		Name: s.Name, Follow: a.Follow, Poll: a.PollInterval, Compare: engine.Comparators[a.Comparator], Logger: n.log,
	}
	for _, t := range a.Tables {
		name := engine.TableName{Schema: t.Schema, Name: t.Name}
		r, err := archive.NewReader(archive.ReaderConfig{Destination: d, Prefix: a.Prefix(t), Table: name, Formats: formats, Scratch: spill.NewDir(n.scratch)})
		if err != nil {
			return nil, err
		}
		c.Tables = append(c.Tables, archivesource.Table{Name: name, Reader: r, StatePath: a.StateFile(t)})
	}
	return archivesource.New(c)
}

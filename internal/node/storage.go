package node

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/engine/store"
	"github.com/tributary-dev/tributary/pkg/nodeconfig"
)

// openStore opens the store that the configuration names. scratch is the folder
// for what is spilled. While there is no room for it, waits is called.
func (n *node) openStore(ctx context.Context, waits func(*store.DiskFullError)) (st engine.Store, scratch string, err error) {
	c := &n.cfg.Storage
	if c.ScratchPath != "" {
		if err := os.MkdirAll(c.ScratchPath, 0o700); err != nil {
			return nil, "", fmt.Errorf("storage.scratchPath: %w", err)
		}
	}
	if c.Type != nodeconfig.StoragePebble && n.once {
		if st, err = n.openScratchStore(ctx, c.ScratchPath, waits); err != nil {
			return nil, "", fmt.Errorf("storage: a store for as long as the archive is written: %w", err)
		}
		return st, c.ScratchPath, nil
	}
	if c.Type != nodeconfig.StoragePebble {
		return store.NewMemory(store.MemoryOptions{JournalBytes: int(c.Journal.MaxBytes)}), c.ScratchPath, nil
	}
	limit := c.Journal.LimitBytes
	if kept, _ := n.cfg.KeptLog(); kept > 0 {
		limit = max(limit, 2*blockRoom*kept)
	}
	p, err := store.OpenPebbleContext(ctx, store.PebbleOptions{
		Dir: c.Path, JournalBytes: int(limit), BlockCacheBytes: int(c.Cache.MaxBytes),
		TombstoneRetention: c.Tombstones.Retention, Logger: n.log, Waits: waits,
	})
	if err != nil {
		return nil, "", fmt.Errorf("storage: %w", err)
	}
	n.metrics.MustRegister(diskCollector{p})
	if scratch = c.ScratchPath; scratch == "" {
		scratch = filepath.Clean(c.Path) + "-scratch"
		err = os.MkdirAll(scratch, 0o700)
	}
	return p, scratch, err
}

// storeStatus says how a durable store fares; nil for another.
func (n *node) storeStatus() *nodeconfig.StoreStatus {
	p, ok := n.store.(*store.Pebble)
	if !ok {
		return nil
	}
	st := &nodeconfig.StoreStatus{Bytes: int64(p.Metrics().DiskBytes)}
	if err := p.Stalled(); err != nil {
		st.Reason, st.Message = nodeconfig.StoreDiskFull, err.Error()
	}
	return st
}

// diskCollector turns a pebble store's state into metrics at each scrape.
type diskCollector struct{ p *store.Pebble }

var (
	descDiskBytes = prometheus.NewDesc("tributary_store_disk_bytes",
		"Bytes of the store on disk, with what waits to be deleted.", nil, nil)
	descDiskStalled = prometheus.NewDesc("tributary_store_stalled",
		"1 while commits wait for the disk, such as for free space.", nil, nil)
	descDiskDebt = prometheus.NewDesc("tributary_store_compaction_debt_bytes",
		"Bytes that have to be compacted until the store is in shape.", nil, nil)
	descDiskWAL = prometheus.NewDesc("tributary_store_wal_bytes",
		"Bytes that have been written ahead and are not in tables yet.", nil, nil)
	descDiskReads = prometheus.NewDesc("tributary_store_block_reads_total",
		"Reads of blocks of the store, by whether the cache had them.", []string{"cache"}, nil)
)

func (diskCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descDiskBytes, descDiskStalled, descDiskDebt, descDiskWAL, descDiskReads} {
		ch <- d
	}
}

func (c diskCollector) Collect(ch chan<- prometheus.Metric) {
	m := c.p.Metrics()
	gauge := func(d *prometheus.Desc, v float64) { ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v) }
	gauge(descDiskBytes, float64(m.DiskBytes))
	gauge(descDiskStalled, one(m.Stalled))
	gauge(descDiskDebt, float64(m.CompactionDebt))
	gauge(descDiskWAL, float64(m.WALBytes))
	ch <- prometheus.MustNewConstMetric(descDiskReads, prometheus.CounterValue, float64(m.BlockCacheHits), "hit")
	ch <- prometheus.MustNewConstMetric(descDiskReads, prometheus.CounterValue, float64(m.BlockCacheMiss), "miss")
}

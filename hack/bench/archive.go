package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/tributary-dev/tributary/internal/testnode"
	"github.com/tributary-dev/tributary/internal/testpg"
	"github.com/tributary-dev/tributary/pkg/archive"
	"github.com/tributary-dev/tributary/pkg/archive/dest/local"
	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/nodeconfig"
)

// archiveLevel of zstd is that of its command line's default.
const archiveLevel = 3

// archives measures what it takes to write and read an archive, over zstd of the same
// bytes; what it takes on disk, over a compressed dump; and what a reader costs that
// comes back after it has been away for longer than the log reaches.
func (b *bench) archives(ctx context.Context) error {
	db, err := b.database(ctx)
	if err != nil {
		return err
	}
	if err := b.load(ctx, db, 0, b.rows, b.txns); err != nil {
		return err
	}
	src, err := b.source(db)
	if err != nil {
		return err
	}
	// A day's worth of a journal is 1 MiB here, and tombstones are gone after a second.
	disk := func(name string) nodeconfig.Storage {
		return nodeconfig.Storage{
			Type: nodeconfig.StoragePebble, Path: filepath.Join(b.dir, name), Journal: nodeconfig.Journal{MaxBytes: 1 << 20, LimitBytes: 64 << 20},
			Tombstones: nodeconfig.Tombstones{Retention: time.Minute},
		}
	}
	folder := filepath.Join(b.dir, "archive")
	root, err := testnode.Start(ctx, testnode.Options{
		Binary: b.node, Dir: filepath.Join(b.dir, "aroot"), ID: "bench/aroot", Storage: disk("aroot-store"), Source: src,
		Configure: func(c *nodeconfig.Config) {
			c.Archives = []nodeconfig.Archive{{
				ArchiveStore: nodeconfig.ArchiveStore{Store: nodeconfig.StoreLocal, StoreConfig: nodeconfig.StoreConfig{Path: folder}},
				Group:        true, Write: &nodeconfig.ArchiveWrite{Interval: time.Second, MaxDiffBytes: 4 << 20, CompressionLevel: archiveLevel},
			}}
		},
	})
	if err != nil {
		return err
	}
	defer root.Stop()
	if err := root.WaitReady(ctx, 5*time.Minute); err != nil {
		return err
	}
	d, err := local.New(folder)
	if err != nil {
		return err
	}
	table := engine.TableName{Schema: "public", Name: "t"}
	reader, err := archive.NewReader(archive.ReaderConfig{Destination: d, Prefix: nodeconfig.TableKey(nodeconfig.Table{Schema: "public", Name: "t"}), Table: table})
	if err != nil {
		return err
	}
	through := func(rows int64) error {
		return testnode.Until(ctx, 5*time.Minute, "the archive", func() (bool, error) {
			m, err := reader.Manifest(ctx)
			if errors.Is(err, archive.ErrNoArchive) {
				return false, nil
			}
			if err != nil || len(m.Artifacts) == 0 {
				return false, err
			}
			lag, err := root.Metric("tributary_archive_lag_seconds")
			return lag == 0 && m.Written.After(time.Now().Add(-time.Second)) || rows == 0, err
		})
	}
	if err := through(0); err != nil {
		return err
	}
	if err := b.archiveSpeed(ctx, reader, db, table); err != nil {
		return err
	}
	return b.coldResume(ctx, db, root, disk)
}

// archiveSpeed writes and folds the archive's rows again, in this process.
func (b *bench) archiveSpeed(ctx context.Context, reader *archive.Reader, db *testpg.DB, table engine.TableName) error {
	m, err := reader.Manifest(ctx)
	if err != nil {
		return err
	}
	f, err := reader.Fold(ctx, archive.AsOf{})
	if err != nil {
		return err
	}
	defer f.Close()
	var records []engine.Record
	var raw bytes.Buffer
	err = f.Rows(func(r *engine.Record) error {
		records = append(records, engine.Record{Schema: r.Schema, Key: slices.Clone(r.Key), Row: slices.Clone(r.Row), Stamp: r.Stamp})
		raw.Write(r.Key)
		raw.Write(r.Row)
		return nil
	})
	if err != nil {
		return err
	}
	var write, fold, pack, unpack []float64
	for i := range 3 {
		d, err := local.New(filepath.Join(b.dir, fmt.Sprint("again", i)))
		if err != nil {
			return err
		}
		began := time.Now()
		w, err := archive.OpenWriter(ctx, archive.WriterConfig{Destination: d, Table: table, ID: "bench", Level: archiveLevel})
		if err != nil {
			return err
		}
		_, err = w.Base(ctx, archive.Base{At: m.Through, Schemas: f.Schemas(), Rows: func(emit func(*engine.Record) error) error {
			for i := range records {
				if err := emit(&records[i]); err != nil {
					return err
				}
			}
			return nil
		}})
		if err != nil {
			return err
		}
		write = append(write, time.Since(began).Seconds())
		r, err := archive.NewReader(archive.ReaderConfig{Destination: d, Table: table})
		if err != nil {
			return err
		}
		began = time.Now()
		again, err := r.Fold(ctx, archive.AsOf{})
		if err != nil {
			return err
		}
		n := 0
		if err := again.Rows(func(*engine.Record) error { n++; return nil }); err != nil {
			return err
		}
		again.Close()
		if fold = append(fold, time.Since(began).Seconds()); n != len(records) {
			return fmt.Errorf("%d rows were read of %d", n, len(records))
		}
		began = time.Now()
		packed, err := compressed(bytes.NewReader(raw.Bytes()))
		if err != nil {
			return err
		}
		pack = append(pack, time.Since(began).Seconds())
		began = time.Now()
		z, err := zstd.NewReader(bytes.NewReader(packed))
		if err != nil {
			return err
		}
		if _, err := io.Copy(io.Discard, z); err != nil {
			return err
		}
		z.Close()
		unpack = append(unpack, time.Since(began).Seconds())
	}
	mb := float64(raw.Len()) / 1e6
	b.atLeast("archive-write", "MB/s written to an archive / zstd", slices.Min(pack)/slices.Min(write), 0.5, 0.8, "%.0f / %.0f MB/s", mb/slices.Min(write), mb/slices.Min(pack))
	b.atLeast("archive-fold", "MB/s read from an archive / zstd", slices.Min(unpack)/slices.Min(fold), 0.5, 0.8, "%.0f / %.0f MB/s", mb/slices.Min(fold), mb/slices.Min(unpack))

	dump := exec.CommandContext(ctx, "pg_dump", "-t", "t", "-d", db.ConnString)
	out, err := dump.Output()
	if err != nil {
		return fmt.Errorf("pg_dump: %w", err)
	}
	packed, err := compressed(bytes.NewReader(out))
	if err != nil {
		return err
	}
	size := m.Artifacts[0].Stored(archive.Protobuf)
	b.atMost("archive-size", "bytes of an archive / pg_dump | zstd", float64(size)/float64(len(packed)), 1.2, 1, "%d / %d", size, len(packed))
	return nil
}

func compressed(r io.Reader) ([]byte, error) {
	var out bytes.Buffer
	z, err := zstd.NewWriter(&out, zstd.WithEncoderLevel(zstd.EncoderLevelFromZstd(archiveLevel)))
	if err != nil {
		return nil, err
	}
	if _, err := io.Copy(z, r); err != nil {
		return nil, err
	}
	if err := z.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// coldResume has a reader come back to a log that no longer reaches it, with a
// twentieth of the rows changed meanwhile; and one that has nothing.
func (b *bench) coldResume(ctx context.Context, db *testpg.DB, root *testnode.Node, disk func(string) nodeconfig.Storage) error {
	start := func(id string) (*testnode.Node, error) {
		return testnode.Start(ctx, testnode.Options{
			Binary: b.node, Dir: filepath.Join(b.dir, id), ID: "bench/" + id, Storage: disk(id + "-store"),
			Source: nodeconfig.Source{Name: "up", Fanout: &nodeconfig.Fanout{}}, Parents: []*testnode.Node{root},
		})
	}
	caught := func(n *testnode.Node) error {
		return testnode.Until(ctx, 5*time.Minute, "the reader to be caught up", func() (bool, error) {
			want, err := rowsOf(root)
			if err != nil {
				return false, nil
			}
			got, err := rowsOf(n)
			return err == nil && got == want, nil
		})
	}
	child, err := start("acold")
	if err != nil {
		return err
	}
	defer child.Stop()
	if err := caught(child); err != nil {
		return err
	}
	child.Stop()
	for i := range 20 { // each a transaction of its own; deletes, whose tombstones go
		if err := db.ExecContext(ctx, fmt.Sprintf("UPDATE t SET n = n + 1, name = md5(n::text) || md5(name) || md5(id::text) WHERE id %% 400 = %d", i),
			fmt.Sprintf("DELETE FROM t WHERE id %% 400 = %d", 20+i%2)); err != nil {
			return err
		}
		time.Sleep(500 * time.Millisecond)
	}
	time.Sleep(65 * time.Second) // the tombstones' retention
	if err := db.ExecContext(ctx, "INSERT INTO t (id) VALUES (-1)"); err != nil {
		return err
	}
	time.Sleep(3 * time.Second)
	measure := func(n *testnode.Node) (bytes, seconds float64, err error) {
		before, err := root.Metric("tributary_fanout_sent_bytes_total")
		if err != nil {
			return 0, 0, err
		}
		began := time.Now()
		if err := n.Run(ctx); err != nil {
			return 0, 0, err
		}
		if err := caught(n); err != nil {
			return 0, 0, err
		}
		seconds = time.Since(began).Seconds()
		after, err := root.Metric("tributary_fanout_sent_bytes_total")
		return after - before, seconds, err
	}
	cold, coldTook, err := measure(child)
	if err != nil {
		return err
	}
	if n, err := root.Metric("tributary_fanout_replays_total"); err != nil || n != 1 {
		return fmt.Errorf("the reader was not caught up from the archive (%v replays, %v)", n, err)
	}
	child.Stop()
	if err := os.RemoveAll(filepath.Join(b.dir, "acold-store")); err != nil {
		return err
	}
	full, fullTook, err := measure(child)
	if err != nil {
		return err
	}
	b.atMost("cold-resume-bytes", "bytes of a cold resume / snapshot, a twentieth changed", cold/full, 0.5, 0.1, "%.0f / %.0f", cold, full)
	b.atMost("cold-resume-time", "time of a cold resume / snapshot, a twentieth changed", coldTook/fullTook, 1, 0.5, "%.2f / %.2f s", coldTook, fullTook)
	return nil
}

// rowsOf returns how many rows a node has, and how far its log is.
func rowsOf(n *testnode.Node) (string, error) {
	rows, err := n.Metric("tributary_table_rows")
	if err != nil {
		return "", err
	}
	at, err := n.Metric("tributary_log_applied_timestamp_seconds")
	return fmt.Sprint(rows, at), err
}

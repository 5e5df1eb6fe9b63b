package postgres

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/tributary-dev/tributary/pkg/engine"
)

// TableProgress is how far the baseline of a table has got.
type TableProgress struct {
	Table engine.TableName
	// Rows and Bytes are what has been read: rows, and their size as they are kept.
	Rows, Bytes int64
	// OfRows and OfBytes are what the server estimates there is: rows as of its last
	// ANALYZE (0 if there was none), bytes on disk, which need not be those of rows.
	OfRows, OfBytes int64
	// Done is true once all of it has been read.
	Done bool
}

// progress counts what baselines read. The zero progress is ready for use.
type progress struct {
	mu     sync.Mutex
	tables map[engine.TableName]*tableProgress
}

type tableProgress struct {
	table           engine.TableName
	ofRows, ofBytes int64
	rows, bytes     atomic.Int64
	done            atomic.Bool
}

func (p *progress) begin(table engine.TableName, parts []part, rows int64) *tableProgress {
	t := &tableProgress{table: table, ofRows: rows}
	for _, part := range parts {
		t.ofBytes += part.bytes
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.tables == nil {
		p.tables = map[engine.TableName]*tableProgress{}
	}
	p.tables[table] = t
	return t
}

func (p *progress) end(tables []*table) {
	for _, t := range tables {
		t.progress.done.Store(true)
	}
}

func (t *tableProgress) add(rows, bytes int) {
	t.rows.Add(int64(rows))
	t.bytes.Add(int64(bytes))
}

// BaselineProgress returns how far each table's last baseline has got, by name.
func (s *Source) BaselineProgress() []TableProgress {
	p := &s.progress
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []TableProgress
	for _, t := range slices.SortedFunc(maps.Values(p.tables), func(a, b *tableProgress) int {
		return strings.Compare(a.table.String(), b.table.String())
	}) {
		all = append(all, TableProgress{t.table, t.rows.Load(), t.bytes.Load(), t.ofRows, t.ofBytes, t.done.Load()})
	}
	return all
}

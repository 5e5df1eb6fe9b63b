package nodeconfig

import (
	"fmt"
	"time"
)

// Ingest is a source that applications write to, by the node's write API.
type Ingest struct {
	// Tables that can be written.
	Tables []IngestTable `yaml:"tables"`
	// Idempotency bounds the idempotency keys that are remembered.
	Idempotency Idempotency `yaml:"idempotency,omitempty"`
	// Pending bounds the batches that wait to be committed.
	Pending Pending `yaml:"pending,omitempty"`
	// Timeout is how long a batch waits for its commit, where its writer does not
	// say less.
	Timeout time.Duration `yaml:"timeout,omitempty"`
	// Volatile says that what is written may be lost when the node ends: without it
	// the store must be a pebble store.
	Volatile bool `yaml:"volatile,omitempty"`
}

// IngestTable declares a table that can be written.
type IngestTable struct {
	Schema  string         `yaml:"schema"`
	Name    string         `yaml:"name"`
	Columns []IngestColumn `yaml:"columns"`
}

// IngestColumn declares a column. Those of the key, in their order, identify a
// row.
type IngestColumn struct {
	Name string `yaml:"name"`
	// Type as PostgreSQL names it, such as numeric(12,2).
	Type string `yaml:"type"`
	Key  bool   `yaml:"key,omitempty"`
}

// Idempotency bounds the idempotency keys that are remembered: the oldest go.
type Idempotency struct {
	MaxKeys   int           `yaml:"maxKeys,omitempty"`
	Retention time.Duration `yaml:"retention,omitempty"`
}

// Pending bounds the batches that wait to be committed: others are told to come
// back.
type Pending struct {
	MaxBatches int  `yaml:"maxBatches,omitempty"`
	MaxBytes   Size `yaml:"maxBytes,omitempty"`
}

// Defaults of an ingest source.
const (
	DefaultIngestMaxKeys    = 65_536
	DefaultIngestRetention  = 24 * time.Hour
	DefaultIngestMaxBatches = 4096
	DefaultIngestMaxBytes   = 64 << 20
	DefaultIngestTimeout    = 30 * time.Second
)

func (g *Ingest) setDefaults() {
	def(&g.Idempotency.MaxKeys, DefaultIngestMaxKeys)
	def(&g.Idempotency.Retention, DefaultIngestRetention)
	def(&g.Pending.MaxBatches, DefaultIngestMaxBatches)
	def(&g.Pending.MaxBytes, DefaultIngestMaxBytes)
	def(&g.Timeout, DefaultIngestTimeout)
}

func (g *Ingest) check(p *problems, path, storage string) {
	if storage == StorageMemory && !g.Volatile {
		p.at(path, "is durable, and the store is in memory", "set storage.type to pebble, so that what is written outlives the node, or volatile to true if it need not")
	}
	count(p, path+".tables", len(g.Tables), 1, maxTables)
	names := make([]Table, len(g.Tables))
	for i := range g.Tables {
		t, at := &g.Tables[i], fmt.Sprintf("%s.tables[%d]", path, i)
		names[i] = Table{t.Schema, t.Name}
		count(p, at+".columns", len(t.Columns), 1, maxColumns)
		unique := uniqueness(p)
		key := false
		for j, c := range t.Columns {
			col := fmt.Sprintf("%s.columns[%d]", at, j)
			text(p, col+".name", c.Name, 1, 63)
			unique(col+".name", c.Name)
			text(p, col+".type", c.Type, 1, 200)
			key = key || c.Key
		}
		if !key {
			p.at(at+".columns", "have no key", "mark the columns that identify a row with key: true")
		}
	}
	tables(p, path+".tables", names)
	between(p, path+".idempotency.maxKeys", g.Idempotency.MaxKeys, 1, 1_000_000, "from 1 to 1000000")
	between(p, path+".idempotency.retention", g.Idempotency.Retention, time.Second, 366*24*time.Hour, "from 1s to 8784h")
	between(p, path+".pending.maxBatches", g.Pending.MaxBatches, 1, 1<<20, "from 1 to 1048576")
	between(p, path+".pending.maxBytes", g.Pending.MaxBytes, 8<<20, 1<<40, "from 8Mi to 1Ti")
	between(p, path+".timeout", g.Timeout, 100*time.Millisecond, 10*time.Minute, "from 100ms to 10m")
}

// checkWriters says whether someone can write, where readers have to say who
// they are.
func (s *Serve) checkWriters(p *problems, g *Ingest) {
	if s.TokensDir == "" && (s.TLS == nil || s.TLS.ClientCAFile == "") {
		return
	}
	if s.TokensDir == "" {
		p.at("serve.tokensDir", "is missing", "writers say who they are by a token: the write API's port takes no certificates")
	}
	declared := map[Table]bool{}
	for _, t := range g.Tables {
		declared[Table{t.Schema, t.Name}] = true
	}
	some := false
	for i, q := range s.Permissions {
		for j, t := range q.Writes {
			some = true
			if !declared[t] {
				p.at(fmt.Sprintf("serve.permissions[%d].writes[%d]", i, j), fmt.Sprintf("names %s.%s, which the ingest source does not declare", t.Schema, t.Name), "declare the table there, or take it out here")
			}
		}
	}
	if !some {
		p.at("serve.permissions", "let nobody write", "give one of them writes, with tables of the ingest source")
	}
}

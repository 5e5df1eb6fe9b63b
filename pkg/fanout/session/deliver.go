package session

import (
	"sync"

	"github.com/tributary-dev/tributary/pkg/engine"
)

// DeliveryKind says what a Delivery is.
type DeliveryKind uint8

// The kinds of delivery.
const (
	DeliverCarry    DeliveryKind = iota + 1 // Path, Compare, Tables: the log comes this way
	DeliverBaseline                         // Spec: a baseline starts
	DeliverRows                             // Table, Payload: records of it (engine.DecodeRecords)
	DeliverFollow                           // Block: it follows the baseline, and becomes part of it
	DeliverCommit                           // Tables: the baseline is complete
	DeliverAbort                            // the baseline is given up
	DeliverBlock                            // Block, to be checked with engine.Block.Index
	DeliverProgress                         // Prev, Through, Time, Behind
)

func (k DeliveryKind) String() string {
	return [...]string{"none", "carry", "baseline", "rows", "follow", "commit", "abort", "block", "progress"}[k]
}

// Delivery is something for the sink. Deliveries of one origin are in order.
type Delivery struct {
	Kind    DeliveryKind
	Key     engine.CursorKey
	Schemas *Schemas // what Payload and Block are to be read with
	Size    int64    // in bytes of credit: see Reader.Applied
	From    *Reader  // that has brought it
	place   *Place

	Path          []string
	Compare       engine.Comparator
	Tables        []engine.TableName
	Spec          *engine.BaselineSpec
	Table         engine.TableName
	Payload       []byte
	Block         *engine.Block
	Prev, Through engine.Position
	Time          engine.Time
	Behind        map[engine.TableName]engine.Reached // as in engine.Block
}

// Schemas are the schemas that have come on a channel. Unlike the machines they
// are safe for concurrent use: payloads are read apart from the session.
type Schemas struct {
	mu sync.RWMutex
	m  map[schemaKey]*engine.Schema
}

func newSchemas() *Schemas { return &Schemas{m: map[schemaKey]*engine.Schema{}} }

// Schema returns a schema of a log, or nil.
func (s *Schemas) Schema(log engine.LogID, id uint32) *engine.Schema {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.m[schemaKey{log, id}]
}

func (s *Schemas) add(log engine.LogID, sc *engine.Schema) (fresh bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := schemaKey{log, sc.ID}
	if s.m[k] != nil {
		return false
	}
	s.m[k] = sc
	return true
}

func (s *Schemas) count() int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return len(s.m)
}

// byLog returns all schemas, by log and ID.
func (s *Schemas) byLog() map[engine.LogID][]*engine.Schema {
	s.mu.RLock()
	defer s.mu.RUnlock()
	all := map[engine.LogID][]*engine.Schema{}
	for k, sc := range s.m {
		all[k.log] = append(all[k.log], sc)
	}
	return all
}

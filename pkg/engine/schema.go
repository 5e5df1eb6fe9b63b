package engine

import (
	"cmp"
	"encoding/binary"
	"hash/fnv"
	"slices"
	"sync"
)

// TableName names a table by its parts, unquoted: they may hold dots, quotes
// and any other character PostgreSQL allows.
type TableName struct {
	Schema string
	Name   string
}

// String returns schema.name for logs and messages. It is not an identity:
// "a.b"."c" and "a"."b.c" read the same.
func (t TableName) String() string { return t.Schema + "." + t.Name }

// Compare orders tables by schema and name.
func (t TableName) Compare(other TableName) int {
	return cmp.Or(cmp.Compare(t.Schema, other.Schema), cmp.Compare(t.Name, other.Name))
}

// ReplicaIdentity is a table's REPLICA IDENTITY, as pg_class.relreplident has it.
type ReplicaIdentity byte

// The values of pg_class.relreplident.
const (
	IdentityDefault ReplicaIdentity = 'd'
	IdentityNothing ReplicaIdentity = 'n'
	IdentityFull    ReplicaIdentity = 'f'
	IdentityIndex   ReplicaIdentity = 'i'
)

// Column describes one column of a table.
type Column struct {
	Name     string
	Number   int16  // pg_attribute.attnum: a column dropped and added again has another
	TypeOID  uint32 // 0 where the source does not know
	TypeName string // as format_type prints it, such as "numeric(10,2)"; empty where unknown
	TypeMod  int32
	Key      bool // part of the key that identifies a row
	// BaseOID and BaseName are the type by which values are compared, as TypeOID and
	// TypeName have it, where that is another: of a domain the type under it, of an
	// enum text. 0 and empty otherwise.
	BaseOID  uint32
	BaseName string
}

// Schema is one version of a table's shape within a log. It is immutable once
// defined.
type Schema struct {
	ID              uint32 // unique within the log, from 1, growing in order of definition
	Table           TableName
	RelationOID     uint32
	ReplicaIdentity ReplicaIdentity
	Columns         []Column
}

// KeyColumns returns the indexes of the key columns, in column order.
func (s *Schema) KeyColumns() []int {
	var k []int
	for i, c := range s.Columns {
		if c.Key {
			k = append(k, i)
		}
	}
	return k
}

// Multiset reports whether the table has no key: equal rows of it are told apart
// by an ordinal, which the engine adds to a key of all columns.
func (s *Schema) Multiset() bool {
	return !slices.ContainsFunc(s.Columns, func(c Column) bool { return c.Key })
}

// Fingerprint identifies the shape without its ID: relation OID, attribute
// numbers, names, types, type modifiers, keys and replica identity. Two schemas
// with equal fingerprints give a row's bytes the same meaning.
func (s *Schema) Fingerprint() uint64 {
	h := fnv.New64a()
	var n [8]byte
	num := func(v uint64) { binary.LittleEndian.PutUint64(n[:], v); _, _ = h.Write(n[:]) }
	str := func(v string) { num(uint64(len(v))); _, _ = h.Write([]byte(v)) }
	str(s.Table.Schema)
	str(s.Table.Name)
	num(uint64(s.RelationOID))
	num(uint64(s.ReplicaIdentity))
	for _, c := range s.Columns {
		str(c.Name)
		num(uint64(uint16(c.Number)))
		num(uint64(c.TypeOID))
		str(c.TypeName)
		num(uint64(uint32(c.TypeMod)))
		if c.Key {
			num(1)
		} else {
			num(0)
		}
		if c.BaseOID != 0 {
			num(uint64(c.BaseOID))
			str(c.BaseName)
		}
	}
	return h.Sum64()
}

// SchemaSet gives out schema IDs for one log. It is safe for concurrent use.
type SchemaSet struct {
	mu     sync.Mutex
	last   uint32 // highest ID given out
	byID   map[uint32]*Schema
	newest map[TableName]*Schema // with the highest ID
}

// NewSchemaSet returns a set that already holds known, with their IDs.
func NewSchemaSet(known ...*Schema) *SchemaSet {
	set := &SchemaSet{byID: map[uint32]*Schema{}, newest: map[TableName]*Schema{}}
	for _, s := range known {
		set.add(s)
	}
	return set
}

func (set *SchemaSet) add(s *Schema) {
	set.last = max(set.last, s.ID)
	set.byID[s.ID] = s
	if have := set.newest[s.Table]; have == nil || have.ID < s.ID {
		set.newest[s.Table] = s
	}
}

// mapped returns a set with what fn makes of each schema, under its ID; where
// that is nil, the ID is not given out again all the same.
func (set *SchemaSet) mapped(fn func(*Schema) *Schema) *SchemaSet {
	set.mu.Lock()
	defer set.mu.Unlock()
	out := NewSchemaSet()
	out.last = set.last
	for _, s := range set.byID {
		if s = fn(s); s != nil {
			out.add(s)
		}
	}
	return out
}

// Get returns the schema with an ID, or nil.
func (set *SchemaSet) Get(id uint32) *Schema {
	set.mu.Lock()
	defer set.mu.Unlock()
	return set.byID[id]
}

// Define returns the schema of s's shape with its ID, and whether it is new to
// the set. It is new too if its table has had this shape, and another one since:
// the newest shape of a table is the one with the highest ID. s itself is kept when
// it is new and must not be altered afterwards.
func (set *SchemaSet) Define(s *Schema) (*Schema, bool) {
	set.mu.Lock()
	defer set.mu.Unlock()
	if have := set.newest[s.Table]; have != nil && have.Fingerprint() == s.Fingerprint() {
		return have, false
	}
	s.ID = set.last + 1
	set.add(s)
	return s, true
}

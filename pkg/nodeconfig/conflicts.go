package nodeconfig

import (
	"fmt"
	"slices"
)

// Conflict is the conflict policy of a table: what becomes of writes of several
// origins to one row. Nodes that carry each other's logs need the same.
type Conflict struct {
	Table Table `yaml:"table"`
	// Policy is one of the Conflict constants.
	Policy string `yaml:"policy"`
	// OwnerColumn, of OriginOwnsKey, is the column of the key that says whose a row is.
	OwnerColumn string `yaml:"ownerColumn,omitempty"`
	// Owners say which node owns which values of it; the value is the node's id when
	// empty.
	Owners []Owner `yaml:"owners,omitempty"`
	// OriginColumn, of NamespaceByOrigin, is the column that is added to the key:
	// "origin" when empty.
	OriginColumn string `yaml:"originColumn,omitempty"`
	// PerEpoch, of NamespaceByOrigin, adds the epoch of the origin's log to the key too:
	// what is written counts from nothing when a node has lost all, and what it had
	// counted before stays. It is for counters, which a node is written to itself.
	PerEpoch bool `yaml:"perEpoch,omitempty"`
}

// The conflict policies.
const (
	ConflictLastWriteWins     = "LastWriteWins"     // the default of a table
	ConflictOriginOwnsKey     = "OriginOwnsKey"     // a write by another node than the owner is refused
	ConflictNamespaceByOrigin = "NamespaceByOrigin" // each origin has rows of its own
)

// Owner is a node that owns rows by the value of a column: by the whole value, or
// else by its longest prefix. One with neither owns what is left; without it that
// belongs to nobody, and no write of it is taken.
type Owner struct {
	Value  string `yaml:"value,omitempty"`
	Prefix string `yaml:"prefix,omitempty"`
	Node   string `yaml:"node"`
}

// ConflictPolicies are the values of Conflict.Policy.
var ConflictPolicies = []string{ConflictLastWriteWins, ConflictOriginOwnsKey, ConflictNamespaceByOrigin}

const maxOwners = 4096

// tablesOfSources returns the tables that the sources take, with the columns of
// their keys where the file says them; all is true if some source takes all that
// its peers have.
func (c *Config) tablesOfSources() (tables map[Table][]string, all bool) {
	tables = map[Table][]string{}
	for _, s := range c.Sources {
		taken := 0
		add := func(schema, name string, key []string) {
			taken++
			tables[Table{schema, name}] = key
		}
		switch {
		case s.Postgres != nil:
			for _, t := range s.Postgres.Tables {
				add(t.Schema, t.Name, nil)
			}
		case s.Fanout != nil:
			for _, t := range s.Fanout.Tables {
				add(t.Schema, t.Name, nil)
			}
		case s.Mesh != nil:
			for _, t := range s.Mesh.Tables {
				add(t.Schema, t.Name, nil)
			}
		case s.Ingest != nil:
			for _, t := range s.Ingest.Tables {
				key := []string{}
				for _, col := range t.Columns {
					if col.Key {
						key = append(key, col.Name)
					}
				}
				add(t.Schema, t.Name, key)
			}
		}
		all = all || taken == 0
	}
	return tables, all
}

func (c *Config) checkConflicts(p *problems) {
	count(p, "conflicts", len(c.Conflicts), 0, maxTables)
	names := make([]Table, len(c.Conflicts))
	known, all := c.tablesOfSources()
	for i := range c.Conflicts {
		q, path := &c.Conflicts[i], fmt.Sprintf("conflicts[%d]", i)
		names[i] = q.Table
		oneOf(p, path+".policy", q.Policy, ConflictPolicies)
		key, is := known[q.Table]
		if !is && !all && q.Table.Name != "" {
			p.at(path+".table", fmt.Sprintf("names %s.%s, which no source takes", q.Table.Schema, q.Table.Name), "take the policy out, or the table into a source")
		}
		q.check(p, path, key)
	}
	conflictTables(p, names)
}

// conflictTables checks names as tables does, each at its own place.
func conflictTables(p *problems, names []Table) {
	unique := uniqueness(p)
	for i, t := range names {
		at := fmt.Sprintf("conflicts[%d].table", i)
		text(p, at+".schema", t.Schema, 1, 63)
		text(p, at+".name", t.Name, 1, 63)
		unique(at, t.Schema+"."+t.Name)
	}
}

// check checks a policy. key is the columns of the table's key; nil where they
// are not known.
func (q *Conflict) check(p *problems, path string, key []string) {
	text(p, path+".ownerColumn", q.OwnerColumn, 0, 63)
	text(p, path+".originColumn", q.OriginColumn, 0, 63)
	owns := q.Policy == ConflictOriginOwnsKey
	switch {
	case owns && q.OwnerColumn == "":
		p.at(path+".ownerColumn", "is missing", "name the column of the key that says whose a row is")
	case owns && key != nil && !slices.Contains(key, q.OwnerColumn):
		p.at(path+".ownerColumn", fmt.Sprintf("%q is not part of the table's key", q.OwnerColumn), "name a column with key: true, or mark this one so")
	case !owns && q.OwnerColumn != "":
		p.at(path+".ownerColumn", "is of OriginOwnsKey only", "take it out, or set policy to OriginOwnsKey")
	}
	if q.Policy != ConflictNamespaceByOrigin && q.OriginColumn != "" {
		p.at(path+".originColumn", "is of NamespaceByOrigin only", "take it out, or set policy to NamespaceByOrigin")
	}
	if q.Policy != ConflictNamespaceByOrigin && q.PerEpoch {
		p.at(path+".perEpoch", "is of NamespaceByOrigin only", "take it out, or set policy to NamespaceByOrigin")
	}
	count(p, path+".owners", len(q.Owners), 0, maxOwners)
	if !owns && len(q.Owners) > 0 {
		p.at(path+".owners", "are of OriginOwnsKey only", "take them out, or set policy to OriginOwnsKey")
	}
	unique := uniqueness(p)
	for i, o := range q.Owners {
		at := fmt.Sprintf("%s.owners[%d]", path, i)
		pattern(p, at+".node", o.Node, nodeID, "give the id of the node that owns these rows")
		if o.Value != "" && o.Prefix != "" {
			p.at(at, "has both value and prefix", "give one of them")
		}
		switch {
		case o.Value != "":
			unique(at, "value "+o.Value)
		case o.Prefix != "":
			unique(at, "prefix "+o.Prefix)
		default:
			unique(at, "all that is left")
		}
	}
}

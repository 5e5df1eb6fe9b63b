package engine

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// ConflictPolicy says what becomes of writes of several origins to one row of a
// table.
type ConflictPolicy string

// The conflict policies.
const (
	// LastWriteWins: of all writes to a row the one with the greatest stamp stays.
	// It is the policy of a table for which none is given.
	LastWriteWins ConflictPolicy = "LastWriteWins"
	// OriginOwnsKey: a row belongs to one node, by its key. What another node
	// writes to it is refused, in the same way wherever it comes.
	OriginOwnsKey ConflictPolicy = "OriginOwnsKey"
	// NamespaceByOrigin: each origin has rows of its own. Where a log is minted, the
	// origin is added to the key.
	NamespaceByOrigin ConflictPolicy = "NamespaceByOrigin"
)

// DefaultOriginColumn is the column that NamespaceByOrigin adds.
const DefaultOriginColumn = "origin"

// Conflict is the conflict policy of one table.
type Conflict struct {
	Table  TableName
	Policy ConflictPolicy
	// Column is, of OriginOwnsKey, the column of the key that says whose a row is; of
	// NamespaceByOrigin, the column that is added: "" is DefaultOriginColumn.
	Column string
	// PerEpoch, of NamespaceByOrigin, adds the epoch of the origin's log to the key too,
	// as column EpochColumn: rows count up from nothing in each epoch, and are shares of
	// counters. It is for what is written to the node itself; the rows of a database are
	// its own totals.
	PerEpoch bool
	// Owners say which node owns a row by the value of Column: by the whole value,
	// or else by its longest prefix. What none of them names belongs to nobody, and
	// no write of it is taken. Without any, the value is the id of the node.
	Owners []Owner
}

// Owner is a node that owns rows by a value of their key.
type Owner struct {
	Value  string
	Prefix bool // Value is the beginning of the values meant; "" of all
	Node   string
}

// Conflicts are the conflict policies of a node's tables. Nodes that carry each
// other's logs need equal ones: see Digest. Nil is LastWriteWins for all.
type Conflicts struct {
	rules map[TableName]*rule
}

// rule is the policy of a table, ready for use.
type rule struct {
	Conflict
	whole    map[string]string // node by value
	prefixes []Owner           // longest first
}

// NewConflicts returns the policies, or says what is wrong with them.
func NewConflicts(all ...Conflict) (*Conflicts, error) {
	c := &Conflicts{rules: map[TableName]*rule{}}
	var errs []error
	wrong := func(t TableName, format string, args ...any) {
		errs = append(errs, fmt.Errorf("conflict policy of table %s: "+format, append([]any{t}, args...)...))
	}
	for _, p := range all {
		if c.rules[p.Table] != nil {
			wrong(p.Table, "the table has two: keep one of them")
			continue
		}
		r := &rule{Conflict: p, whole: map[string]string{}}
		c.rules[p.Table] = r
		switch p.Policy {
		case LastWriteWins:
			if p.Column != "" {
				wrong(p.Table, "LastWriteWins goes by no column: take %q out", p.Column)
			}
		case NamespaceByOrigin:
			r.Column = cmp.Or(p.Column, DefaultOriginColumn)
		case OriginOwnsKey:
			if p.Column == "" {
				wrong(p.Table, "OriginOwnsKey lacks the column that says whose a row is: name one of the key")
			}
		default:
			wrong(p.Table, "%q is not one: use %s, %s or %s", p.Policy, LastWriteWins, OriginOwnsKey, NamespaceByOrigin)
		}
		if p.PerEpoch && p.Policy != NamespaceByOrigin {
			wrong(p.Table, "only %s can be by epoch", NamespaceByOrigin)
		}
		if len(p.Owners) > 0 && p.Policy != OriginOwnsKey {
			wrong(p.Table, "only %s has owners", OriginOwnsKey)
		}
		seen := map[Owner]bool{}
		for _, o := range p.Owners {
			if o.Node == "" {
				wrong(p.Table, "the owner of %q is not named", o.Value)
			}
			k := Owner{Value: o.Value, Prefix: o.Prefix}
			if seen[k] {
				wrong(p.Table, "%q has two owners: keep one of them", o.Value)
			}
			if seen[k] = true; o.Prefix {
				r.prefixes = append(r.prefixes, o)
			} else {
				r.whole[o.Value] = o.Node
			}
		}
		slices.SortFunc(r.prefixes, func(a, b Owner) int {
			return cmp.Or(cmp.Compare(len(b.Value), len(a.Value)), cmp.Compare(a.Value, b.Value))
		})
	}
	return c, errors.Join(errs...)
}

// rule returns the policy of a table; nil where the last write wins.
func (c *Conflicts) rule(t TableName) *rule {
	if c == nil {
		return nil
	}
	if r := c.rules[t]; r != nil && r.Policy != LastWriteWins {
		return r
	}
	return nil
}

// Policy returns the policy of a table.
func (c *Conflicts) Policy(t TableName) ConflictPolicy {
	if r := c.rule(t); r != nil {
		return r.Policy
	}
	return LastWriteWins
}

// Digest is equal on nodes whose policies are, and empty where the last write
// wins in all tables.
func (c *Conflicts) Digest() string {
	var all []string
	if c != nil {
		for t := range c.rules {
			if r := c.rule(t); r != nil {
				all = append(all, r.String())
			}
		}
	}
	if len(all) == 0 {
		return ""
	}
	slices.Sort(all)
	sum := sha256.Sum256([]byte(strings.Join(all, "\n")))
	return hex.EncodeToString(sum[:8])
}

// ConflictDigest is the digest of the node's conflict policies.
func (e *Engine) ConflictDigest() string { return e.conflicts.Digest() }

// String says the whole policy.
func (r *rule) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%q.%q %s %q", r.Table.Schema, r.Table.Name, r.Policy, r.Column)
	owners := slices.SortedFunc(slices.Values(r.Owners), func(a, b Owner) int {
		return cmp.Or(cmp.Compare(a.Value, b.Value), cmp.Compare(fmt.Sprint(a.Prefix), fmt.Sprint(b.Prefix)))
	})
	if r.PerEpoch {
		b.WriteString(" per epoch")
	}
	for _, o := range owners {
		fmt.Fprintf(&b, " %q/%t=%q", o.Value, o.Prefix, o.Node)
	}
	return b.String()
}

// place returns which part of a key the policy goes by, or says why the policy
// does not fit a table as it is.
func (r *rule) place(s *Schema) (int, error) {
	part, multiset := 0, s.Multiset()
	for _, c := range s.Columns {
		if c.Name == r.Column && (c.Key || multiset) {
			return part, nil
		}
		if c.Key || multiset {
			part++
		}
	}
	why := "make the column part of the key, or name one that is"
	if r.Policy == NamespaceByOrigin {
		if multiset { // its key is all there is in a row
			return 0, nil
		}
		why = "give the node that its log comes from the same conflict policies"
	}
	return 0, &SourceError{Reason: ReasonTableChanged, Permanent: true, Err: fmt.Errorf(
		"table %s: the conflict policy %s goes by column %q, which is not part of the table's key: %s", s.Table, r.Policy, r.Column, why)}
}

// owned returns the node that owns a row of which the owner column is a part of the key, and
// whether that is a given one.
func (r *rule) owned(key []byte, part int, node string) (owner string, own bool, err error) {
	v, err := keyPart(key, part)
	if err != nil {
		return "", false, err
	}
	owner = r.owner(v)
	return owner, owner != "" && owner == node, nil
}

// owner returns the id of the node that owns a row; "" for nobody.
func (r *rule) owner(value []byte) string {
	if len(r.Owners) == 0 {
		return string(value)
	}
	if n, ok := r.whole[string(value)]; ok {
		return n
	}
	for _, o := range r.prefixes {
		if len(value) >= len(o.Value) && string(value[:len(o.Value)]) == o.Value {
			return o.Node
		}
	}
	return ""
}

// fits says whether the policies fit the tables of a source.
func (c *Conflicts) fits(tables []*Schema) error {
	for _, s := range tables {
		if r := c.rule(s.Table); r != nil {
			if _, err := r.place(s); err != nil {
				return err
			}
		}
	}
	return nil
}

// nodeOf returns the id of the node that an origin is of.
func nodeOf(origin string) string {
	node, _, _ := strings.Cut(origin, "#")
	return node
}

// keyPart returns a part of a key, nil for null.
func keyPart(key []byte, n int) ([]byte, error) {
	for ; len(key) > 0; n-- {
		if key[0] == 1 {
			if n == 0 {
				return nil, nil
			}
			key = key[1:]
			continue
		}
		end, escaped := 1, false
		for {
			i := bytes.IndexByte(key[end:], 0)
			if i < 0 || end+i+1 >= len(key) {
				return nil, fmt.Errorf("%w: key is cut short", ErrCorruptRow)
			}
			if end += i; key[end+1] == 1 {
				break
			}
			escaped = true
			end += 2
		}
		if n == 0 {
			v := key[1:end]
			if escaped {
				v = bytes.ReplaceAll(v, []byte{0, 0xFF}, []byte{0})
			}
			return v, nil
		}
		key = key[end+2:]
	}
	return nil, fmt.Errorf("%w: key lacks a part", ErrCorruptRow)
}

// gate lets in what the conflict policies do not refuse, and counts what becomes
// of it, within one store transaction.
type gate struct {
	conflicts *Conflicts
	schema    *Schema // of the last change
	at        *fate   // of its table
	fates     map[TableName]*fate
	repeated  uint64 // changes that had come before
}

// fate is what has become of the changes to a table.
type fate struct {
	rule            *rule // nil: the last write wins
	part            int   // of the key, that rule goes by
	lost, overwrote uint64
	refused         map[string]uint64 // by origin
}

// use looks at a change's table.
func (g *gate) use(s *Schema) error {
	if s == g.schema {
		return nil
	}
	f := g.fates[s.Table]
	if f == nil {
		f = &fate{rule: g.conflicts.rule(s.Table)}
		if g.fates == nil {
			g.fates = map[TableName]*fate{}
		}
		g.fates[s.Table] = f
	}
	if f.rule != nil {
		var err error
		if f.part, err = f.rule.place(s); err != nil {
			return err
		}
	}
	g.schema, g.at = s, f
	return nil
}

// Foreign reports whether a row belongs to another node by its table's policy
// OriginOwnsKey, so that a write by this one is refused, and to which: empty if to none.
func (c *Conflicts) Foreign(s *Schema, key []byte, node string) (owner string, foreign bool) {
	r := c.rule(s.Table)
	if r == nil || r.Policy != OriginOwnsKey || len(key) == 0 {
		return "", false
	}
	part, err := r.place(s)
	if err != nil {
		return "", false // the engine says so
	}
	owner, own, err := r.owned(key, part, node)
	return owner, err == nil && !own
}

// admits reports whether an origin may write to a row, and counts it if not.
func (g *gate) admits(s *Schema, key []byte, origin string) (bool, error) {
	if err := g.use(s); err != nil {
		return false, err
	}
	f := g.at
	if f.rule == nil || f.rule.Policy != OriginOwnsKey || len(key) == 0 {
		return true, nil
	}
	_, own, err := f.rule.owned(key, f.part, nodeOf(origin))
	if err != nil {
		return false, fmt.Errorf("table %s: %w", s.Table, err)
	}
	if own {
		return true, nil
	}
	if f.refused == nil {
		f.refused = map[string]uint64{}
	}
	f.refused[origin]++
	return false, nil
}

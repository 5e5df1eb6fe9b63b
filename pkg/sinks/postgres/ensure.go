package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/pgsession"
	"github.com/tributary-dev/tributary/pkg/sinks"
)

// table is a table of the target, as its catalog has it.
type table struct {
	schema, name string
	oid          string // empty if it does not exist
	columns      map[string]column
	uniques      []string // of each unique index that a conflict can be found by: its columns' names, quoted and sorted, with commas
}

type column struct {
	typ       string // as format_type prints it
	generated bool
	notNull   bool // and nothing fills it
}

func (t *table) quoted() string { return pgsession.QuoteTable(t.schema, t.name) }

// known is a column as the sink last knew it at the source. A column is the same
// one while its number is; of a table that was made anew, while its name is.
type known struct {
	Name     string `json:"name"`
	Number   int16  `json:"number"`
	Type     string `json:"type"`
	Relation uint32 `json:"relation,omitempty"` // OID of the source's table; 0 if it has none
}

// numbered returns columns with the numbers that they have in a schema: 0 for one of a
// table that was made anew since, and that has none of that name any more.
func numbered(had []known, s *engine.Schema) []known {
	out := slices.Clone(had)
	for i, k := range out {
		if k.Relation == s.RelationOID || k.Relation == 0 || s.RelationOID == 0 {
			continue
		}
		out[i].Number = 0
		if j := slices.IndexFunc(s.Columns, func(c engine.Column) bool { return c.Name == k.Name }); j >= 0 {
			out[i].Number = s.Columns[j].Number
		}
	}
	return out
}

// lookUp reads a table of the target.
func (t *Target) lookUp(ctx context.Context, schema, name string) (*table, error) {
	out := &table{schema: schema, name: name, columns: map[string]column{}}
	rows, err := t.query(ctx, `SELECT c.oid FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = $1 AND c.relname = $2 AND c.relkind IN ('r', 'p', 'f', 'v')`, schema, name)
	if err != nil || len(rows) == 0 {
		return out, err
	}
	out.oid = rows[0][0]
	rows, err = t.query(ctx, `SELECT attname, pg_catalog.format_type(atttypid, atttypmod), attgenerated <> '', attnotnull AND NOT atthasdef AND attidentity = ''
FROM pg_catalog.pg_attribute WHERE attrelid = $1::pg_catalog.oid AND attnum > 0 AND NOT attisdropped`, out.oid)
	if err != nil {
		return nil, err
	}
	for _, r := range rows {
		out.columns[r[0]] = column{typ: r[1], generated: r[2] == "t", notNull: r[3] == "t"}
	}
	rows, err = t.query(ctx, `SELECT (SELECT pg_catalog.json_agg(a.attname) FROM pg_catalog.pg_attribute a
	WHERE a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey[0:i.indnkeyatts-1]))
FROM pg_catalog.pg_index i WHERE i.indrelid = $1::pg_catalog.oid AND i.indisunique AND i.indisvalid AND i.indimmediate AND i.indpred IS NULL AND i.indexprs IS NULL`, out.oid)
	if err != nil {
		return nil, err
	}
	for _, r := range rows {
		var names []string
		if err := json.Unmarshal([]byte(r[0]), &names); err != nil {
			return nil, err
		}
		out.uniques = append(out.uniques, quoteAll(names))
	}
	return out, nil
}

// quoteAll quotes names, in an order that depends on nothing else.
func quoteAll(names []string) string {
	q := make([]string, len(names))
	for i, n := range names {
		q[i] = pgsession.QuoteIdent(n)
	}
	slices.Sort(q)
	return strings.Join(q, ", ")
}

// ensure makes the target ready for rows of a schema, in the transaction that is
// open, and returns how they are written. Where they are to be added to what was
// written before, it fails if the table is not that one any more.
func (t *Target) ensure(ctx context.Context, origin string, s *engine.Schema, adds bool) (*shape, error) {
	schema := s.Table.Schema
	if t.cfg.Schema != "" {
		schema = t.cfg.Schema
	}
	tab, err := t.lookUp(ctx, schema, s.Table.Name)
	if err != nil {
		return nil, err
	}
	had, oid, err := t.known(ctx, origin, s.Table)
	if err != nil {
		return nil, err
	}
	if adds && oid != "" && oid != tab.oid {
		return nil, gone(tab.quoted())
	}
	var ddl []string
	if tab.oid == "" {
		ddl, err = t.create(ctx, tab, s)
	} else {
		if oid != "" && oid != tab.oid {
			had = nil // it is another table
		}
		ddl, err = t.follow(ctx, tab, s, had)
	}
	if err != nil {
		return nil, err
	}
	before, after, err := t.totals(ctx, tab, s, len(ddl) > 0)
	if err != nil {
		return nil, err
	}
	ddl = slices.Concat(before, ddl, after)
	if len(ddl) > 0 {
		for _, sql := range ddl {
			if _, err := t.query(ctx, sql); err != nil {
				if classify(err) == passing {
					return nil, err
				}
				return nil, &sinks.Rejection{Err: fmt.Errorf("table %s has to become as it is at the source, and cannot: %w. Mend what is in the way, or run as the table's owner: %s", tab.quoted(), explain(err), sql)}
			}
		}
		if tab, err = t.lookUp(ctx, schema, s.Table.Name); err != nil {
			return nil, err
		}
	}
	if err := checkKey(tab, s); err != nil {
		return nil, err
	}
	if err := t.remember(ctx, origin, s, had, oid, tab.oid); err != nil {
		return nil, err
	}
	return newShape(s, tab), nil
}

func gone(tables string) *sinks.Lost {
	return &sinks.Lost{Why: "the target's table " + tables + " was dropped since rows were written to it, or made anew"}
}

// known returns the columns of a table as they were last known, and the table of
// the target that they were written to.
func (t *Target) known(ctx context.Context, origin string, name engine.TableName) (had []known, oid string, err error) {
	rows, err := t.query(ctx, `SELECT columns, oid FROM `+t.tables+` WHERE sink = $1 AND origin = $2 AND "schema" = $3 AND name = $4`, t.cfg.Sink, origin, name.Schema, name.Name)
	if err != nil || len(rows) == 0 {
		return nil, "", err
	}
	if err := json.Unmarshal([]byte(rows[0][0]), &had); err != nil {
		return nil, "", fmt.Errorf("what %s says of %s cannot be read: %w", t.tables, name, err)
	}
	return had, rows[0][1], nil
}

func (t *Target) remember(ctx context.Context, origin string, s *engine.Schema, had []known, was, oid string) error {
	now := make([]known, len(s.Columns))
	for i, c := range s.Columns {
		now[i] = known{c.Name, c.Number, c.TypeName, s.RelationOID}
	}
	if slices.Equal(now, had) && was == oid {
		return nil
	}
	text, err := json.Marshal(now)
	if err != nil {
		return err
	}
	_, err = t.query(ctx, `INSERT INTO `+t.tables+` (sink, origin, "schema", name, columns, oid) VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (sink, origin, "schema", name) DO UPDATE SET columns = EXCLUDED.columns, oid = EXCLUDED.oid`, t.cfg.Sink, origin, s.Table.Schema, s.Table.Name, string(text), oid)
	return err
}

// create returns what makes a table that is missing.
func (t *Target) create(ctx context.Context, tab *table, s *engine.Schema) ([]string, error) {
	var parts, keys []string
	for _, c := range s.Columns {
		typ, err := t.typeOf(ctx, tab, c)
		if err != nil {
			return nil, err
		}
		parts = append(parts, pgsession.QuoteIdent(c.Name)+" "+typ)
		if c.Key {
			keys = append(keys, pgsession.QuoteIdent(c.Name))
		}
	}
	if len(keys) > 0 {
		parts = append(parts, "PRIMARY KEY ("+strings.Join(keys, ", ")+")")
	}
	sql := fmt.Sprintf("CREATE TABLE %s (%s)", tab.quoted(), strings.Join(parts, ", "))
	if !t.cfg.CreateTables {
		return nil, &sinks.Rejection{Err: fmt.Errorf("the target has no table %s. Set createTables, or run: %s", tab.quoted(), sql)}
	}
	rows, err := t.query(ctx, `SELECT 1 FROM pg_catalog.pg_namespace WHERE nspname = $1`, tab.schema)
	if err != nil || len(rows) > 0 {
		return []string{sql}, err
	}
	return []string{"CREATE SCHEMA " + pgsession.QuoteIdent(tab.schema), sql}, nil
}

// typeOf returns a column's type, if the target has it.
func (t *Target) typeOf(ctx context.Context, tab *table, c engine.Column) (string, error) {
	if c.TypeName == "" {
		return "text", nil // nothing is known of it but its text
	}
	rows, err := t.query(ctx, `SELECT pg_catalog.to_regtype($1) IS NOT NULL`, c.TypeName)
	if code := pgsession.SQLState(err); err == nil && rows[0][0] != "t" || code == "42704" || code == "3F000" {
		return "", &sinks.Rejection{Err: fmt.Errorf("column %s of %s has type %s, and the target has no such type: make it there (CREATE TYPE, CREATE DOMAIN or CREATE EXTENSION) as it is at the source",
			pgsession.QuoteIdent(c.Name), tab.quoted(), c.TypeName)}
	}
	return c.TypeName, err
}

// follow returns what brings a table of the target up to the source's schema.
func (t *Target) follow(ctx context.Context, tab *table, s *engine.Schema, had []known) (ddl []string, err error) {
	alter := "ALTER TABLE " + tab.quoted() + " "
	had = numbered(had, s)
	before := map[int16]known{}
	for _, k := range had {
		before[k.Number] = k
	}
	// Renames go by way of names that nothing has, since columns may swap theirs.
	var park, settle []string
	have := map[string]column{}
	for n, c := range tab.columns {
		have[n] = c
	}
	renamed := map[string]column{}
	for _, c := range s.Columns {
		was, ok := before[c.Number]
		if !ok || was.Name == c.Name {
			continue
		}
		if col, ok := have[was.Name]; ok && (!has(have, c.Name) || swapped(had, s, c.Name)) {
			tmp := pgsession.QuoteIdent("tributary_" + strconv.Itoa(int(c.Number)))
			park = append(park, alter+"RENAME COLUMN "+pgsession.QuoteIdent(was.Name)+" TO "+tmp)
			settle = append(settle, alter+"RENAME COLUMN "+tmp+" TO "+pgsession.QuoteIdent(c.Name))
			renamed[c.Name] = col
			delete(have, was.Name)
		}
	}
	ddl = append(park, settle...)
	if len(park) == 1 { // the usual case, in one step
		ddl = []string{strings.SplitAfter(park[0], " TO ")[0] + strings.SplitN(settle[0], " TO ", 2)[1]}
	}
	for n, c := range renamed {
		have[n] = c
	}
	for _, c := range s.Columns {
		q := pgsession.QuoteIdent(c.Name)
		was, ok := before[c.Number]
		col, there := have[c.Name]
		again := there && !ok && slices.ContainsFunc(had, func(k known) bool { return k.Name == c.Name })
		switch {
		case again: // dropped at the source, and added anew: the old values are gone
			typ, err := t.typeOf(ctx, tab, c)
			if err != nil {
				return nil, err
			}
			ddl = append(ddl, alter+"DROP COLUMN "+q+", ADD COLUMN "+q+" "+typ)
		case !there:
			typ, err := t.typeOf(ctx, tab, c)
			if err != nil {
				return nil, err
			}
			ddl = append(ddl, alter+"ADD COLUMN "+q+" "+typ)
		case ok && was.Type != c.TypeName && col.typ == was.Type:
			sql := alter + "ALTER COLUMN " + q + " TYPE " + c.TypeName
			if !widens(was.Type, c.TypeName) {
				return nil, &sinks.Rejection{Err: fmt.Errorf("column %s of %s has become %s at the source, and was %s: changing it can lose data of the target, so it is left to you. Run: %s USING %s::%s",
					q, tab.quoted(), c.TypeName, was.Type, sql, q, c.TypeName)}
			}
			ddl = append(ddl, sql)
		}
	}
	for _, k := range had { // what the source dropped is filled no more
		if col := have[k.Name]; col.notNull && !slices.ContainsFunc(s.Columns, func(c engine.Column) bool { return c.Name == k.Name }) {
			ddl = append(ddl, alter+"ALTER COLUMN "+pgsession.QuoteIdent(k.Name)+" DROP NOT NULL")
		}
	}
	if len(ddl) > 0 && !t.cfg.CreateTables {
		return nil, &sinks.Rejection{Err: fmt.Errorf("table %s is not as at the source any more. Set createTables, or run: %s", tab.quoted(), strings.Join(ddl, "; "))}
	}
	return ddl, nil
}

func has(m map[string]column, name string) bool { _, ok := m[name]; return ok }

// swapped reports whether the column that had a name has another one now.
func swapped(had []known, s *engine.Schema, name string) bool {
	for _, k := range had {
		if k.Name == name {
			return slices.ContainsFunc(s.Columns, func(c engine.Column) bool { return c.Number == k.Number && c.Name != name })
		}
	}
	return false
}

// widens reports whether every value of a type is one of another, as it is.
func widens(from, to string) bool {
	if to == "text" {
		return from == "character varying" || strings.HasPrefix(from, "character varying(")
	}
	order := []string{"smallint", "integer", "bigint", "numeric"}
	if i, j := slices.Index(order, from), slices.Index(order, to); i >= 0 && j > i {
		return true
	}
	if from == "real" && to == "double precision" {
		return false // 0.1::real is another number as a double
	}
	fromBase, fromMods := typeMods(from)
	toBase, toMods := typeMods(to)
	if fromBase != toBase || fromBase != "character varying" && fromBase != "numeric" && fromBase != "bit varying" {
		return false
	}
	switch {
	case toMods == nil:
		return true
	case fromMods == nil || len(fromMods) != len(toMods):
		return false
	case fromBase == "numeric" && len(toMods) == 2:
		// As many digits before the point, and the same after it: another scale
		// prints other digits.
		return toMods[1] == fromMods[1] && toMods[0] >= fromMods[0]
	}
	return toMods[0] >= fromMods[0]
}

// typeMods splits numeric(10,2).
func typeMods(t string) (base string, mods []int) {
	base, rest, ok := strings.Cut(t, "(")
	if !ok || !strings.HasSuffix(rest, ")") {
		return t, nil
	}
	for _, m := range strings.Split(strings.TrimSuffix(rest, ")"), ",") {
		n, err := strconv.Atoi(m)
		if err != nil {
			return t, nil
		}
		mods = append(mods, n)
	}
	return base, mods
}

// checkKey refuses a table whose rows cannot be found by the source's key.
func checkKey(tab *table, s *engine.Schema) error {
	var keys []string
	for _, i := range s.KeyColumns() {
		keys = append(keys, s.Columns[i].Name)
	}
	if len(keys) == 0 || slices.Contains(tab.uniques, quoteAll(keys)) {
		return nil
	}
	return &sinks.Rejection{Err: fmt.Errorf("table %s of the target has no unique index on the source's key, that is not deferrable. Run: CREATE UNIQUE INDEX ON %s (%s)",
		tab.quoted(), tab.quoted(), quoteAll(keys))}
}

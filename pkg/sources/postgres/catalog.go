package postgres

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/tributary-dev/tributary/pkg/engine"
)

// table is what the catalog says of a table.
type table struct {
	schema    *engine.Schema     // ID 0: not defined yet
	kind      byte               // pg_class.relkind
	key       string             // index whose columns identify a row, or ""
	secured   bool               // row-level security hides rows of it from this user
	unlike    []engine.TableName // partitions whose replica identity lacks what identifies a row here
	canSelect bool
	canUse    bool // its schema
	owned     bool
	unlogged  bool
	// filter is the publication's row filter, or "".
	filter string
	// rewritten is true, in a snapshot, if the table has been truncated or
	// rewritten since: those who read it in that snapshot find it empty.
	rewritten bool
	// generated is true if columns that are sent are generated.
	generated bool
	// published is false if the publication does not hold the table.
	published bool
	evidence  evidence
	progress  *tableProgress // of its baseline, while that is taken
	// filled are the columns with a default: had one been added since the
	// baseline, older rows would have a value that no change ever carried.
	filled map[int16]bool
}

var tableSQL = `
SELECT c.oid, c.relkind, c.relreplident, c.relpersistence,
	pg_catalog.has_table_privilege(c.oid, 'SELECT'),
	pg_catalog.has_schema_privilege(n.oid, 'USAGE'),
	pg_catalog.pg_has_role(c.relowner, 'USAGE'),
	coalesce((SELECT i.indexrelid::pg_catalog.text FROM pg_catalog.pg_index i WHERE i.indrelid = c.oid AND ` + fmt.Sprintf(identityIndex, "c") + `), ''),
	n.nspname, c.relname,
	c.relfilenode <> pg_catalog.pg_relation_filenode(c.oid) OR EXISTS (SELECT FROM pg_catalog.pg_partition_tree(c.oid) p JOIN pg_catalog.pg_class l ON l.oid = p.relid
		WHERE l.relkind = 'r' AND l.relfilenode <> pg_catalog.pg_relation_filenode(l.oid)),
	pg_catalog.row_security_active(c.oid), c.relnatts
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE `

// identityIndex is the condition on index i that identifies rows of table %s.
const identityIndex = `i.indisvalid AND CASE %[1]s.relreplident WHEN 'i' THEN i.indisreplident WHEN 'n' THEN false ELSE i.indisprimary AND i.indimmediate END`

// unlikeSQL finds the partitions of $1 whose changes will not tell the values of
// the columns of index $2, or of all columns if that is empty.
var unlikeSQL = `
SELECT n.nspname, l.relname
FROM pg_catalog.pg_partition_tree($1::pg_catalog.oid) p JOIN pg_catalog.pg_class l ON l.oid = p.relid JOIN pg_catalog.pg_namespace n ON n.oid = l.relnamespace
WHERE p.isleaf AND l.oid <> $1::pg_catalog.oid AND l.relkind = 'r' AND l.relreplident <> 'f' AND ($2 = '' OR EXISTS (
	SELECT FROM pg_catalog.pg_index r JOIN pg_catalog.pg_attribute k ON k.attrelid = r.indrelid AND k.attnum = ANY(r.indkey[0:r.indnkeyatts-1])
	WHERE r.indexrelid = nullif($2, '')::pg_catalog.oid AND NOT EXISTS (
		SELECT FROM pg_catalog.pg_index i JOIN pg_catalog.pg_attribute a ON a.attrelid = l.oid AND a.attnum = ANY(i.indkey[0:i.indnkeyatts-1])
		WHERE i.indrelid = l.oid AND a.attname = k.attname AND ` + fmt.Sprintf(identityIndex, "l") + `)))
ORDER BY 1, 2`

const columnSQL = `
SELECT a.attname, a.attnum, a.atttypid, pg_catalog.format_type(a.atttypid, a.atttypmod), a.atttypmod,
	coalesce(a.attnum = ANY(i.indkey[0:i.indnkeyatts-1]), false), a.atthasmissing OR a.atthasdef OR a.attidentity <> '',
	coalesce(b.oid, 0), coalesce(pg_catalog.format_type(b.oid, NULL), ''), a.attgenerated <> ''
FROM pg_catalog.pg_attribute a LEFT JOIN LATERAL (
	WITH RECURSIVE under AS (
		SELECT oid, typtype, typbasetype FROM pg_catalog.pg_type WHERE oid = a.atttypid
		UNION ALL SELECT t.oid, t.typtype, t.typbasetype FROM under u JOIN pg_catalog.pg_type t ON t.oid = u.typbasetype WHERE u.typtype = 'd')
	SELECT CASE typtype WHEN 'e' THEN 25 ELSE oid END::pg_catalog.oid AS oid FROM under WHERE typtype <> 'd' AND (oid <> a.atttypid OR typtype = 'e')
) b ON true LEFT JOIN pg_catalog.pg_index i ON i.indexrelid = nullif($2, '')::pg_catalog.oid
WHERE a.attrelid = $1::pg_catalog.oid AND a.attnum > 0 AND NOT a.attisdropped`

// lookUp reads a table from the catalog by name, with the columns that the
// publication sends (all but generated ones while it does not hold the table).
// It returns nil if there is no such table.
func (s *Source) lookUp(ctx context.Context, c *conn, name engine.TableName) (*table, error) {
	return s.read(ctx, c, "n.nspname = $1 AND c.relname = $2", name.Schema, name.Name)
}

// lookUpOID is lookUp by the table's OID.
func (s *Source) lookUpOID(ctx context.Context, c *conn, oid uint32) (*table, error) {
	return s.read(ctx, c, "c.oid = $1::pg_catalog.oid", strconv.FormatUint(uint64(oid), 10))
}

func (s *Source) read(ctx context.Context, c *conn, where string, args ...string) (*table, error) {
	rows, err := c.params(ctx, tableSQL+where, args...)
	if err != nil || len(rows) == 0 {
		return nil, err
	}
	r := rows[0]
	oid, err := strconv.ParseUint(r[0], 10, 32)
	if err != nil {
		return nil, err
	}
	columns, err := strconv.ParseInt(r[12], 10, 16)
	if err != nil {
		return nil, err
	}
	t := &table{
		evidence: evidence{columns: int16(columns)}, // read before the columns: never too high
		kind:     r[1][0], unlogged: r[3] != "p", canSelect: r[4] == "t", canUse: r[5] == "t", owned: r[6] == "t", key: r[7], rewritten: r[10] == "t",
		secured: r[11] == "t",
		filled:  map[int16]bool{},
		schema:  &engine.Schema{Table: engine.TableName{Schema: r[8], Name: r[9]}, RelationOID: uint32(oid), ReplicaIdentity: engine.ReplicaIdentity(r[2][0])},
	}
	if t.kind == 'p' {
		leaves, err := c.params(ctx, unlikeSQL, r[0], t.key)
		if err != nil {
			return nil, err
		}
		for _, l := range leaves {
			t.unlike = append(t.unlike, engine.TableName{Schema: l[0], Name: l[1]})
		}
	}
	sent, err := t.publication(ctx, c, s.publication)
	if err != nil {
		return nil, err
	}
	rows, err = c.params(ctx, columnSQL+sent+" ORDER BY a.attnum", r[0], t.key)
	if err != nil {
		return nil, err
	}
	for _, r := range rows {
		num, err1 := strconv.ParseInt(r[1], 10, 16)
		typ, err2 := strconv.ParseUint(r[2], 10, 32)
		mod, err3 := strconv.ParseInt(r[4], 10, 32)
		if err1 != nil || err2 != nil || err3 != nil {
			return nil, fmt.Errorf("the catalog describes column %q of %s as %q", r[0], t.schema.Table, r)
		}
		base, err := strconv.ParseUint(r[7], 10, 32)
		if err != nil {
			return nil, fmt.Errorf("the catalog describes column %q of %s as %q", r[0], t.schema.Table, r)
		}
		t.schema.Columns = append(t.schema.Columns, engine.Column{
			Name: r[0], Number: int16(num), TypeOID: uint32(typ), TypeName: r[3], TypeMod: int32(mod), Key: r[5] == "t",
			BaseOID: uint32(base), BaseName: r[8],
		})
		t.filled[int16(num)] = r[6] == "t"
		t.generated = t.generated || r[9] == "t"
	}
	return t, t.gather(ctx, c)
}

// publication reads what the publication says of the table, and returns the
// condition for the columns it sends.
func (t *table) publication(ctx context.Context, c *conn, pub string) (condition string, err error) {
	const generated = " AND a.attgenerated = ''"
	name := t.schema.Table
	if c.major() < 15 {
		rows, err := c.params(ctx, `SELECT 1 FROM pg_catalog.pg_publication_tables WHERE pubname = $1 AND schemaname = $2 AND tablename = $3`, pub, name.Schema, name.Name)
		t.published = len(rows) > 0
		return generated, err
	}
	rows, err := c.params(ctx, `SELECT coalesce(rowfilter, '') FROM pg_catalog.pg_publication_tables WHERE pubname = $1 AND schemaname = $2 AND tablename = $3`, pub, name.Schema, name.Name)
	if err != nil || len(rows) == 0 {
		return generated, err
	}
	t.published, t.filter = true, rows[0][0]
	condition = fmt.Sprintf(` AND a.attname IN (SELECT pg_catalog.unnest(attnames) FROM pg_catalog.pg_publication_tables WHERE pubname = %s AND schemaname = %s AND tablename = %s)`,
		quoteLiteral(pub), quoteLiteral(name.Schema), quoteLiteral(name.Name))
	if c.major() < 18 {
		condition += generated
	}
	return condition, nil
}

// identified says whether changes of the table tell which row they concern: by a
// key, or by all of it.
func (t *table) identified() bool {
	return t.key != "" || t.schema.ReplicaIdentity == engine.IdentityFull
}

// major is the server's major version.
func (c *conn) major() int {
	v := c.ParameterStatus("server_version")
	if i := strings.IndexFunc(v, func(r rune) bool { return r < '0' || r > '9' }); i >= 0 {
		v = v[:i]
	}
	n, _ := strconv.Atoi(v)
	return n
}

// copySQL is the statement that reads the table's rows, or those of a part of it
// that meet a condition. A partitioned table, one that is filtered, or generated columns
// need a query; a plain one is read faster without.
func (t *table) copySQL(from, where string) string {
	cols := make([]string, len(t.schema.Columns))
	for i, c := range t.schema.Columns {
		cols[i] = quoteIdent(c.Name)
	}
	list, name := strings.Join(cols, ", "), quoteTable(t.schema.Table.Schema, t.schema.Table.Name)
	if from == "" {
		if t.kind == 'r' && t.filter == "" && !t.generated && len(cols) > 0 {
			return fmt.Sprintf("COPY %s (%s) TO STDOUT", name, list)
		}
		if from = name; t.kind == 'r' {
			from = "ONLY " + name
		}
	}
	q := fmt.Sprintf("SELECT %s FROM %s", list, from)
	switch {
	case t.filter != "" && where != "":
		q += fmt.Sprintf(" WHERE (%s) AND %s", t.filter, where)
	case t.filter != "" || where != "":
		q += " WHERE " + t.filter + where
	}
	return "COPY (" + q + ") TO STDOUT"
}

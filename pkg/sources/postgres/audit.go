package postgres

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tributary-dev/tributary/pkg/engine"
)

// evidence is what the catalog shows of changes that the log does not tell of.
type evidence struct {
	// files are the table's and its partitions' relfilenodes by OID: another one
	// means that the table was truncated or rewritten, and a partition more or less
	// that it was attached or detached. A table that is partitioned has 0.
	files map[uint32]uint32
	// filter is the publication's row filter.
	filter string
	// columns is how many columns the table has had, those that are dropped or not
	// published included: a column with a higher number is new.
	columns int16
	// texts is what the text of values of its columns' types depends on: the label of
	// each value of an enum, and the attributes of each composite type.
	texts map[string]string
}

const filesSQL = `
WITH RECURSIVE tree (oid) AS (SELECT $1::pg_catalog.oid UNION ALL SELECT i.inhrelid FROM tree JOIN pg_catalog.pg_inherits i ON i.inhparent = tree.oid WHERE $2 = 'p')
SELECT c.oid, c.relfilenode FROM tree JOIN pg_catalog.pg_class c ON c.oid = tree.oid`

const textsSQL = `
WITH RECURSIVE used (oid) AS (
	SELECT a.atttypid FROM pg_catalog.pg_attribute a WHERE a.attrelid = $1::pg_catalog.oid AND a.attnum > 0 AND NOT a.attisdropped
	UNION
	SELECT n.oid FROM used JOIN pg_catalog.pg_type t ON t.oid = used.oid CROSS JOIN LATERAL (
		SELECT t.typelem UNION ALL SELECT t.typbasetype
		UNION ALL SELECT a.atttypid FROM pg_catalog.pg_attribute a WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped
		UNION ALL SELECT r.rngsubtype FROM pg_catalog.pg_range r WHERE r.rngtypid = t.oid
		UNION ALL SELECT r.rngtypid FROM pg_catalog.pg_range r WHERE r.rngmultitypid = t.oid
	) n (oid) WHERE n.oid <> 0
)
SELECT 'value ' || e.oid, e.enumlabel FROM used JOIN pg_catalog.pg_enum e ON e.enumtypid = used.oid
UNION ALL
SELECT 'type ' || t.oid, pg_catalog.string_agg(a.attnum::text, ' ' ORDER BY a.attnum)
FROM used JOIN pg_catalog.pg_type t ON t.oid = used.oid JOIN pg_catalog.pg_attribute a ON a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped
GROUP BY t.oid`

// reread says why the text of rows that are in the state is another now, if it is.
func reread(was, is map[string]string) string {
	for k, w := range was {
		switch n, there := is[k]; {
		case !there || n == w:
		case strings.HasPrefix(k, "value "):
			return fmt.Sprintf("the value %q of an enum that it uses was renamed to %q", w, n)
		default:
			return "a composite type that it uses has other attributes"
		}
	}
	return ""
}

// made reports whether a type is none of PostgreSQL's own.
func made(c engine.Column) bool { return c.TypeOID >= firstNormalOID }

// firstNormalOID is FirstNormalObjectId of PostgreSQL's access/transam.h.
const firstNormalOID = 16384

func (t *table) gather(ctx context.Context, c *conn) error {
	rows, err := c.params(ctx, filesSQL, strconv.FormatUint(uint64(t.schema.RelationOID), 10), string(t.kind))
	if err != nil {
		return err
	}
	t.evidence.files, t.evidence.filter = map[uint32]uint32{}, t.filter
	for _, r := range rows {
		oid, err1 := strconv.ParseUint(r[0], 10, 32)
		node, err2 := strconv.ParseUint(r[1], 10, 32)
		if err1 != nil || err2 != nil {
			return fmt.Errorf("the catalog describes the files of %s as %q", t.schema.Table, r)
		}
		t.evidence.files[uint32(oid)] = uint32(node)
	}
	t.evidence.texts = map[string]string{}
	if !slices.ContainsFunc(t.schema.Columns, made) {
		return nil
	}
	if rows, err = c.params(ctx, textsSQL, strconv.FormatUint(uint64(t.schema.RelationOID), 10)); err != nil {
		return err
	}
	for _, r := range rows {
		t.evidence.texts[r[0]] = r[1]
	}
	return nil
}

// suspicion is a change of a table's files that its truncates may explain, once
// the stream has come to where it was seen.
type suspicion struct {
	seen      evidence
	at        engine.LSN
	truncates int // seen in the stream before
}

// auditor looks at the tables in the catalog, now and then, for what the log
// does not tell of.
type auditor struct {
	t *tables
	c *conn
}

func (a *auditor) close() { a.c.close() }

func (a *auditor) audit(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	s := a.t.s
	err := func() error {
		if a.c == nil {
			var err error
			if a.c, err = s.connect(ctx, false); err != nil {
				a.c = nil
				return err
			}
		}
		rows, err := a.c.query(ctx, "SELECT CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn() ELSE pg_catalog.pg_current_wal_insert_lsn() END")
		if err != nil {
			return err
		}
		head, err := engine.ParseLSN(engine.Position(rows[0][0]))
		if err != nil {
			return err
		}
		for _, name := range s.names() {
			tb, err := s.lookUp(ctx, a.c, name)
			if err != nil {
				return err
			}
			if err := a.compare(ctx, name, tb, head); err != nil {
				return fmt.Errorf("table %s: %w", name, err)
			}
		}
		return nil
	}()
	if err != nil {
		a.c.close()
		a.c = nil
		return err
	}
	a.t.mu.Lock()
	defer a.t.mu.Unlock()
	suspects := false
	for _, st := range a.t.state {
		suspects = suspects || st.suspect != nil
	}
	a.t.hurry.Store(suspects || len(a.t.removed) > 0)
	if len(a.t.removed) > 0 {
		a.t.s.nudge()
	}
	return nil
}

// compare looks at a table as it is now, nil if it is not there.
func (a *auditor) compare(ctx context.Context, name engine.TableName, now *table, head engine.LSN) error {
	t := a.t
	var problem *Problem
	switch {
	case now == nil:
		problem = notFound(name)
	default:
		if problems := now.check(t.s.user(ctx)); len(problems) > 0 {
			problem = problems[0]
		}
	}
	t.mu.Lock()
	st := t.of(name)
	if st == nil || st.why != "" {
		t.mu.Unlock()
		return nil
	}
	if st.failed = nil; problem != nil {
		st.failed = problem
		t.mu.Unlock()
		return nil
	}
	was := st.evidence
	if st.schema != nil && now.schema.Fingerprint() != st.schema.Fingerprint() {
		now.evidence.columns = was.columns // its new columns are yet to come
	}
	why := ""
	switch {
	case st.schema == nil:
		why = "it is not in the state yet"
	case st.schema.RelationOID != now.schema.RelationOID:
		why = "it was dropped and made anew, or another table has taken its name"
	case !now.published:
		why = "the publication did not hold it"
	case was.files != nil && was.filter != now.filter:
		why = "the publication's row filter changed"
	default:
		if why = incompatible(st.schema, now.schema, now.filled, was.columns); why == "" {
			why = reread(was.texts, now.evidence.texts)
		}
	}
	if why != "" {
		t.want(st, why)
	}
	if why != "" || was.files == nil {
		if was.files == nil {
			st.evidence = now.evidence
		}
		t.mu.Unlock()
		return nil
	}
	t.mu.Unlock()

	why, explained, err := a.files(ctx, was.files, now)
	if err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if st.why != "" || st.evidence.files == nil || !maps.Equal(st.evidence.files, was.files) {
		return nil
	}
	switch {
	case why != "":
		t.want(st, why)
	case explained: // nothing, or partitions that were made as such
		t.unsaved = t.unsaved || !maps.Equal(st.evidence.files, now.evidence.files) || !maps.Equal(st.evidence.texts, now.evidence.texts)
		st.evidence, st.suspect = now.evidence, nil
	case st.suspect == nil || !maps.Equal(st.suspect.seen.files, now.evidence.files):
		st.suspect = &suspicion{seen: now.evidence, at: head, truncates: st.evidenced}
	case t.position < st.suspect.at:
		t.s.nudge() // the stream has not come that far
	case st.truncates > st.suspect.truncates:
		st.evidence, st.evidenced, st.suspect, t.unsaved = now.evidence, st.truncates, nil, true
	default:
		t.want(st, "it was rewritten, or a partition of it truncated, which the log does not tell")
	}
	return nil
}

const attachedSQL = `
SELECT i.xmin, i.xmin::pg_catalog.text <> y.xmin::pg_catalog.text, c.relkind, n.nspname, c.relname
FROM pg_catalog.pg_inherits i JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid JOIN pg_catalog.pg_type y ON y.oid = c.reltype JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE i.inhrelid = $1::pg_catalog.oid`

// files says what makes a baseline necessary in what a table is made of. It is
// explained if nothing but partitions that were made as such have come. It is
// neither if a file was replaced.
func (a *auditor) files(ctx context.Context, was map[uint32]uint32, now *table) (why string, explained bool, err error) {
	is := now.evidence.files
	explained = true
	for _, oid := range slices.Sorted(maps.Keys(was)) {
		node, there := is[oid]
		switch {
		case !there:
			return "a partition of it was detached or dropped", false, nil
		case node != was[oid]:
			explained = false
		}
	}
	for _, oid := range slices.Sorted(maps.Keys(is)) {
		if _, there := was[oid]; there {
			continue
		}
		rows, err := a.c.params(ctx, attachedSQL, strconv.FormatUint(uint64(oid), 10))
		if err != nil {
			return "", false, err
		}
		const attached = "a partition was attached to it"
		if len(rows) != 1 || rows[0][1] == "t" {
			return attached, false, nil
		}
		if r := rows[0]; r[2] == "r" { // made and attached in one transaction: was it filled in between?
			filled, err := a.c.query(ctx, fmt.Sprintf("SELECT EXISTS (SELECT FROM ONLY %s WHERE xmin = '%s')", quoteTable(r[3], r[4]), r[0]))
			if err != nil && !strings.HasPrefix(sqlState(err), "42") {
				return "", false, err
			}
			if err != nil || filled[0][0] == "t" {
				return attached, false, nil
			}
		}
	}
	return "", explained, nil
}

func notFound(name engine.TableName) *Problem {
	return &Problem{Reason: TableNotFound, Table: name, What: fmt.Sprintf("there is no table %s", name),
		Mend: "Create it, or correct its name (names are as in the catalog: without quotes, with case)"}
}

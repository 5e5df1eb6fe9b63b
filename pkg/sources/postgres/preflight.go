package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/tributary-dev/tributary/pkg/engine"
)

// prepare checks all that replication needs, makes or extends the publication,
// and returns the tables. What is wrong comes as one SourceError.
func (s *Source) prepare(ctx context.Context) ([]*table, identity, error) {
	fail := func(err error) ([]*table, identity, error) {
		return nil, identity{}, s.asSourceError(err)
	}
	c, err := s.connect(ctx, false)
	if err != nil {
		return fail(err)
	}
	defer c.close()

	var problems []*Problem
	id, err := s.checkReplication(ctx, &problems)
	if err != nil {
		return fail(err)
	}
	id.version = c.ParameterStatus("server_version")
	if err := s.checkServer(ctx, c, &problems); err != nil {
		return fail(err)
	}
	tables, held, err := s.checkTables(ctx, c)
	if err != nil {
		return fail(err)
	}
	// What is wrong with a table holds that table, while there is another one. It
	// joins the others once it is mended.
	if s.held = map[engine.TableName]error{}; len(tables) == 0 || len(problems) > 0 {
		problems = append(problems, held...)
	} else {
		for _, p := range held {
			if s.held[p.Table] == nil {
				s.held[p.Table] = p
			}
		}
	}
	unsent, err := s.checkPublication(ctx, c, tables, len(problems) == 0, &problems)
	if err != nil {
		return fail(err)
	}
	if len(unsent) == len(tables) {
		problems = append(problems, unsent...)
	}
	if len(problems) > 0 {
		return nil, identity{}, sourceError(s.server(), problems...)
	}
	for _, p := range unsent {
		s.held[p.Table] = p
	}
	tables = slices.DeleteFunc(tables, func(t *table) bool { return s.held[t.schema.Table] != nil })
	// The publication decides which columns and rows are sent.
	for i, name := range namesOf(tables) {
		t, err := s.lookUp(ctx, c, name)
		if err != nil {
			return fail(err)
		}
		if t == nil || !t.published {
			return nil, identity{}, fmt.Errorf("table %s went away while it was being looked at", name)
		}
		if missing := t.unsentKey(tables[i]); missing != "" {
			problems = append(problems, &Problem{Reason: PublicationMissingTables, Table: name,
				What: fmt.Sprintf("publication %q does not send key column %q of %s", s.publication, missing, name),
				Mend: "Add the column to the publication's column list, or drop the list"})
		}
		tables[i] = t
	}
	if len(problems) > 0 {
		return nil, identity{}, sourceError(s.server(), problems...)
	}
	return tables, id, nil
}

// unsentKey returns a key column of all that is not among the table's columns.
func (t *table) unsentKey(all *table) string {
	for _, c := range all.schema.Columns {
		if !c.Key {
			continue
		}
		found := false
		for _, d := range t.schema.Columns {
			found = found || d.Number == c.Number
		}
		if !found {
			return c.Name
		}
	}
	return ""
}

// checkReplication sees whether this user can open a replication session, and
// asks it which server this is.
func (s *Source) checkReplication(ctx context.Context, problems *[]*Problem) (identity, error) {
	c, err := s.connect(ctx, true)
	var p *Problem
	if errors.As(err, &p) {
		*problems = append(*problems, p)
		return identity{}, nil
	}
	if err != nil {
		return identity{}, err
	}
	defer c.close()
	return c.identify(ctx)
}

const serverSQL = `
SELECT pg_catalog.current_setting('wal_level'),
	pg_catalog.current_setting('max_replication_slots')::pg_catalog.int4 - (SELECT count(*) FROM pg_catalog.pg_replication_slots),
	EXISTS (SELECT 1 FROM pg_catalog.pg_roles WHERE rolname = current_user AND (rolreplication OR rolsuper)),
	current_user, pg_catalog.pg_is_in_recovery()`

func (s *Source) checkServer(ctx context.Context, c *conn, problems *[]*Problem) error {
	if v := c.major(); v < 14 {
		*problems = append(*problems, &Problem{Reason: ServerVersion, What: fmt.Sprintf("the server is PostgreSQL %s", c.ParameterStatus("server_version")),
			Mend: "Tributary needs version 14 or later"})
	}
	rows, err := c.query(ctx, serverSQL)
	if err != nil {
		return err
	}
	r := rows[0]
	if r[0] != "logical" {
		*problems = append(*problems, &Problem{Reason: WalLevel, What: fmt.Sprintf("the server's wal_level is %q", r[0]),
			Mend: "ALTER SYSTEM SET wal_level = logical, and restart the server"})
	}
	if r[2] != "t" && !has(*problems, MissingPrivilege) {
		*problems = append(*problems, replicationPrivilege(r[3], nil))
	}
	held, err := s.awaitSlot(ctx, c)
	var busy *Problem
	switch {
	case errors.As(err, &busy):
		*problems = append(*problems, busy)
	case err != nil:
		return err
	}
	if free, err := strconv.Atoi(r[1]); err != nil {
		return err
	} else if held == nil && free < s.slotsNeeded() {
		*problems = append(*problems, s.slotsExhausted(nil))
	}
	return nil
}

func has(problems []*Problem, r Reason) bool {
	for _, p := range problems {
		if p.Reason == r {
			return true
		}
	}
	return false
}

// checkTables returns the tables that can be replicated, and what is wrong with the
// others.
func (s *Source) checkTables(ctx context.Context, c *conn) (tables []*table, problems []*Problem, err error) {
	for _, name := range s.names() {
		t, err := s.lookUp(ctx, c, name)
		if err != nil {
			return nil, nil, err
		}
		if t == nil {
			problems = append(problems, notFound(name))
			continue
		}
		wrong := t.check(s.user(ctx))
		if problems = append(problems, wrong...); len(wrong) == 0 {
			tables = append(tables, t)
		}
	}
	return tables, problems, nil
}

func namesOf(tables []*table) []engine.TableName {
	names := make([]engine.TableName, len(tables))
	for i, t := range tables {
		names[i] = t.schema.Table
	}
	return names
}

// check says what keeps the table from being replicated.
func (t *table) check(user string) (problems []*Problem) {
	name := t.schema.Table
	quoted := quoteTable(name.Schema, name.Name)
	add := func(r Reason, mend, what string, args ...any) {
		problems = append(problems, &Problem{Reason: r, Table: name, What: fmt.Sprintf(what, args...), Mend: mend})
	}
	switch {
	case t.kind != 'r' && t.kind != 'p':
		add(TableUnsupported, "Name the tables it is made from", "%s is not a table (its kind is %q), and PostgreSQL publishes only tables", name, t.kind)
		return problems
	case t.unlogged:
		add(TableUnsupported, fmt.Sprintf("ALTER TABLE %s SET LOGGED", quoted), "%s is unlogged or temporary: nothing of it is in the WAL", name)
	}
	if !t.canUse {
		add(MissingPrivilege, fmt.Sprintf("GRANT USAGE ON SCHEMA %s TO %s", quoteIdent(name.Schema), quoteIdent(user)), "user %q may not use schema %q", user, name.Schema)
	}
	if !t.canSelect {
		add(MissingPrivilege, fmt.Sprintf("GRANT SELECT ON %s TO %s", quoted, quoteIdent(user)), "user %q may not read %s", user, name)
	}
	if t.secured {
		add(MissingPrivilege, fmt.Sprintf("As a superuser: ALTER ROLE %s BYPASSRLS", quoteIdent(user)), "row-level security hides rows of %s from user %q, and the stream would send them", name, user)
	}
	for _, l := range t.unlike {
		add(NoReplicaIdentity, fmt.Sprintf("ALTER TABLE %s REPLICA IDENTITY FULL", quoteTable(l.Schema, l.Name)),
			"partition %s has a replica identity of its own, which does not tell what identifies a row of %s", l, name)
	}
	if t.identified() {
		return problems
	}
	full := fmt.Sprintf("ALTER TABLE %s REPLICA IDENTITY FULL, with which every row is told whole and equal rows are counted", quoted)
	switch t.schema.ReplicaIdentity {
	case engine.IdentityNothing:
		add(NoReplicaIdentity, fmt.Sprintf("ALTER TABLE %s REPLICA IDENTITY DEFAULT if it has a primary key; else %s", quoted, full),
			"%s has REPLICA IDENTITY NOTHING: only its inserts could be replicated, since its updates and deletes do not say which row they concern", name)
	default:
		add(NoReplicaIdentity, fmt.Sprintf("Add a primary key that is not deferrable; or ALTER TABLE %s REPLICA IDENTITY USING INDEX ... (unique, not null, not partial, not deferrable); or %s", quoted, full),
			"%s has no primary key and no replica identity index: PostgreSQL refuses its updates and deletes while it is published", name)
	}
	return problems
}

// admit sees to it that a table can be baselined while the stream goes on, and
// adds it to the publication where that is ours.
func (s *Source) admit(ctx context.Context, c *conn, name engine.TableName) error {
	t, err := s.lookUp(ctx, c, name)
	if err != nil {
		return err
	}
	if t == nil {
		return notFound(name)
	}
	problems := t.check(s.user(ctx))
	unsent, err := s.checkPublication(ctx, c, []*table{t}, len(problems) == 0, &problems)
	if err != nil {
		return err
	}
	if problems = append(problems, unsent...); len(problems) > 0 {
		return sourceError(s.server(), problems...)
	}
	if t.kind == 'p' && c.major() < 15 && !s.cfg.AdoptOnly {
		return s.touchPublication(ctx, c)
	}
	return nil
}

// touchPublication makes those that stream a publication of ours look anew at what
// it holds: before version 15 they go on leaving out a partition that they have met
// before it was attached.
func (s *Source) touchPublication(ctx context.Context, c *conn) error {
	rows, err := c.params(ctx, publicationSQL, s.publication, managedComment)
	if err != nil || len(rows) == 0 || rows[0][3] != "t" || rows[0][4] != "t" {
		return err
	}
	_, err = c.query(ctx, "ALTER PUBLICATION "+quoteIdent(s.publication)+" SET (publish_via_partition_root = true)")
	return err
}

// managedComment marks a publication that this package may alter.
const managedComment = "managed by Tributary"

const publicationSQL = `
SELECT p.pubinsert AND p.pubupdate AND p.pubdelete AND p.pubtruncate, p.puballtables, p.pubviaroot,
	pg_catalog.pg_has_role(p.pubowner, 'USAGE'),
	coalesce(pg_catalog.obj_description(p.oid, 'pg_publication'), '') = $2
FROM pg_catalog.pg_publication p WHERE p.pubname = $1`

// checkPublication makes the publication, or sees that the one there holds the
// tables. It changes nothing unless all else is well. unsent is what keeps single
// tables out of the publication.
func (s *Source) checkPublication(ctx context.Context, c *conn, tables []*table, well bool, problems *[]*Problem) (unsent []*Problem, err error) {
	rows, err := c.params(ctx, publicationSQL, s.publication, managedComment)
	if err != nil {
		return nil, err
	}
	if len(rows) == 0 {
		return nil, s.createPublication(ctx, c, tables, well, problems)
	}
	r := rows[0]
	publication := quoteIdent(s.publication)
	if r[0] != "t" {
		*problems = append(*problems, &Problem{Reason: PublicationMissingTables, What: fmt.Sprintf("publication %q leaves out inserts, updates, deletes or truncates", s.publication),
			Mend: fmt.Sprintf("ALTER PUBLICATION %s SET (publish = 'insert, update, delete, truncate')", publication)})
	}
	var add []string // quoted
	for _, t := range tables {
		name := t.schema.Table
		quoted := quoteTable(name.Schema, name.Name)
		switch {
		case t.kind == 'p' && r[2] != "t":
			unsent = append(unsent, &Problem{Reason: PublicationMissingTables, Table: name,
				What: fmt.Sprintf("%s is partitioned, and publication %q sends its partitions under their own names", name, s.publication),
				Mend: fmt.Sprintf("ALTER PUBLICATION %s SET (publish_via_partition_root = true)", publication)})
		case t.published:
		case !s.cfg.AdoptOnly && r[3] == "t" && r[4] == "t" && t.owned:
			add = append(add, quoted)
		default:
			unsent = append(unsent, &Problem{Reason: PublicationMissingTables, Table: name, What: fmt.Sprintf("publication %q does not hold %s", s.publication, name),
				Mend: fmt.Sprintf("As the owner of both: ALTER PUBLICATION %s ADD TABLE %s", publication, quoted)})
		}
	}
	if len(add) == 0 || !well || len(*problems) > 0 {
		return unsent, nil
	}
	_, err = c.query(ctx, fmt.Sprintf("ALTER PUBLICATION %s ADD TABLE %s", publication, strings.Join(add, ", ")))
	return unsent, err
}

func (s *Source) createPublication(ctx context.Context, c *conn, tables []*table, well bool, problems *[]*Problem) error {
	var missing []string
	for _, t := range tables {
		missing = append(missing, quoteTable(t.schema.Table.Schema, t.schema.Table.Name))
	}
	if len(tables) == 0 { // each has a problem of its own; what is there is named all the same
		for _, p := range *problems {
			if p.Table != (engine.TableName{}) && p.Reason != TableNotFound && p.Reason != TableUnsupported {
				missing = append(missing, quoteTable(p.Table.Schema, p.Table.Name))
			}
		}
		slices.Sort(missing)
		missing = slices.Compact(missing)
	}
	create := "CREATE PUBLICATION " + quoteIdent(s.publication)
	if len(missing) > 0 {
		create += " FOR TABLE " + strings.Join(missing, ", ")
	}
	create += " WITH (publish_via_partition_root = true)"
	rows, err := c.query(ctx, "SELECT pg_catalog.has_database_privilege(pg_catalog.current_database(), 'CREATE'), current_user, pg_catalog.current_database(), pg_catalog.pg_is_in_recovery()")
	if err != nil {
		return err
	}
	user, db := rows[0][1], rows[0][2]
	if s.cfg.AdoptOnly {
		*problems = append(*problems, &Problem{Reason: PublicationMissingTables, What: fmt.Sprintf("publication %q is not there, and the node is not to make it (publication.managed is false)", s.publication),
			Mend: "As the owner of the tables: " + create})
		return nil
	}
	if rows[0][3] == "t" {
		*problems = append(*problems, &Problem{Reason: PublicationMissingTables, What: fmt.Sprintf("publication %q is not there, and this server is a standby, where none can be made", s.publication),
			Mend: "At the primary, as the owner of the tables: " + create})
		return nil
	}
	if rows[0][0] != "t" {
		*problems = append(*problems, &Problem{Reason: MissingPrivilege, What: fmt.Sprintf("publication %q is not there, and user %q may not create one in database %q", s.publication, user, db),
			Mend: fmt.Sprintf("GRANT CREATE ON DATABASE %s TO %s, or as a superuser: %s", quoteIdent(db), quoteIdent(user), create)})
		well = false
	}
	for _, t := range tables {
		if !t.owned {
			*problems = append(*problems, &Problem{Reason: MissingPrivilege, Table: t.schema.Table,
				What: fmt.Sprintf("publication %q is not there, and user %q does not own %s and so may not publish it", s.publication, user, t.schema.Table),
				Mend: fmt.Sprintf("As the owner or a superuser: %s", create)})
			well = false
			break // one statement mends it for all
		}
	}
	if !well || len(tables) == 0 {
		return nil
	}
	_, err = c.query(ctx, create+"; COMMENT ON PUBLICATION "+quoteIdent(s.publication)+" IS "+quoteLiteral(managedComment))
	return err
}

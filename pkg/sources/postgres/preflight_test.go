package postgres

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/tributary-dev/tributary/internal/testpg"
	"github.com/tributary-dev/tributary/pkg/engine"
)

// initSource runs Init alone and returns what it finds.
func initSource(t *testing.T, cfg Config) (engine.Info, error) {
	t.Helper()
	cfg.patience = 300 * time.Millisecond
	src, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	return src.Init(t.Context(), engine.Env{NodeID: "n", Source: "s", Schemas: engine.NewSchemaSet()})
}

// wants checks that err names exactly these reasons, and says how to mend each.
func wants(t *testing.T, err error, reason string, want map[Reason]string) {
	t.Helper()
	var se *engine.SourceError
	var pe *PreflightError
	if !errors.As(err, &se) || !errors.As(err, &pe) {
		t.Fatalf("want a SourceError with problems, got %v", err)
	}
	if se.Reason != reason {
		t.Errorf("reason %s, want %s", se.Reason, reason)
	}
	var got, wanted []string
	for _, p := range pe.Problems {
		got = append(got, string(p.Reason))
		if text, ok := want[p.Reason]; !ok || !strings.Contains(p.Error(), text) {
			t.Errorf("%s: %s, want %q", p.Reason, p, text)
		}
		if !strings.Contains(err.Error(), p.Error()) {
			t.Errorf("%q leaves out %q", err, p)
		}
	}
	for r := range want {
		wanted = append(wanted, string(r))
		if !pe.Has(r) {
			t.Errorf("%s is missing: %v", r, err)
		}
	}
	slices.Sort(got)
	slices.Sort(wanted)
	if !slices.Equal(slices.Compact(got), wanted) {
		t.Errorf("got %v, want %v: %v", got, wanted, err)
	}
}

func TestPreflightTables(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		sql    []string
		tables []string
		reason string
		want   map[Reason]string
	}{
		{"missing", nil, []string{"nowhere.t"}, engine.ReasonTableNotFound, map[Reason]string{TableNotFound: "there is no table nowhere.t"}},
		{"other case", []string{`CREATE TABLE t (id int PRIMARY KEY)`}, []string{"T"}, engine.ReasonTableNotFound, map[Reason]string{TableNotFound: "public.T"}},
		{"no key", []string{`CREATE TABLE t (id int)`}, []string{"t"}, engine.ReasonNoReplicaIdentity, map[Reason]string{NoReplicaIdentity: `REPLICA IDENTITY USING INDEX`}},
		{"full, no key", []string{`CREATE TABLE t (id int)`, `ALTER TABLE t REPLICA IDENTITY FULL`}, []string{"t"}, "", nil},
		{"nothing", []string{`CREATE TABLE t (id int PRIMARY KEY)`, `ALTER TABLE t REPLICA IDENTITY NOTHING`}, []string{"t"}, engine.ReasonNoReplicaIdentity,
			map[Reason]string{NoReplicaIdentity: `ALTER TABLE "public"."t" REPLICA IDENTITY DEFAULT`}},
		{"deferrable key", []string{`CREATE TABLE t (id int PRIMARY KEY DEFERRABLE)`}, []string{"t"}, engine.ReasonNoReplicaIdentity,
			map[Reason]string{NoReplicaIdentity: "not deferrable"}},
		{"view", []string{`CREATE VIEW t AS SELECT 1 AS id`}, []string{"t"}, engine.ReasonPreflightFailed, map[Reason]string{TableUnsupported: "not a table"}},
		{"unlogged", []string{`CREATE UNLOGGED TABLE t (id int PRIMARY KEY)`}, []string{"t"}, engine.ReasonPreflightFailed, map[Reason]string{TableUnsupported: "SET LOGGED"}},
		{"all at once", []string{`CREATE TABLE a (id int)`, `CREATE VIEW v AS SELECT 1 AS id`}, []string{"a", "v", "gone"}, engine.ReasonNoReplicaIdentity,
			map[Reason]string{NoReplicaIdentity: "public.a", TableUnsupported: "public.v", TableNotFound: "public.gone"}},
		{"publication leaves a table out", []string{`CREATE TABLE t (id int PRIMARY KEY)`, `CREATE TABLE o (id int PRIMARY KEY)`, `CREATE PUBLICATION tributary_s FOR TABLE o`},
			[]string{"t"}, engine.ReasonPreflightFailed, map[Reason]string{PublicationMissingTables: `ALTER PUBLICATION "tributary_s" ADD TABLE "public"."t"`}},
		{"publication leaves all out", []string{`CREATE TABLE t (id int PRIMARY KEY)`, `CREATE TABLE o (id int PRIMARY KEY)`, `CREATE PUBLICATION tributary_s`},
			[]string{"o", "t"}, engine.ReasonPreflightFailed, map[Reason]string{PublicationMissingTables: "does not hold public."}},
		{"publication leaves deletes out", []string{`CREATE TABLE t (id int PRIMARY KEY)`, `CREATE PUBLICATION tributary_s FOR TABLE t WITH (publish='insert')`},
			[]string{"t"}, engine.ReasonPreflightFailed, map[Reason]string{PublicationMissingTables: "SET (publish"}},
		{"publication by partition", []string{`CREATE TABLE p (id int PRIMARY KEY) PARTITION BY HASH (id)`, `CREATE PUBLICATION tributary_s FOR TABLE p`},
			[]string{"p"}, engine.ReasonPreflightFailed, map[Reason]string{PublicationMissingTables: "publish_via_partition_root = true"}},
		{"slot is there", []string{`CREATE TABLE t (id int PRIMARY KEY)`, `SELECT pg_create_logical_replication_slot('taken_'||current_database(),'pgoutput')`}, []string{"t"},
			engine.ReasonSlotBusy, map[Reason]string{SlotBusy: "pg_drop_replication_slot"}},
		{"index identity", []string{`CREATE TABLE t (id int NOT NULL UNIQUE)`, `ALTER TABLE t REPLICA IDENTITY USING INDEX t_id_key`}, []string{"t"}, "", nil},
		{"full with a key", []string{`CREATE TABLE t (a int, id int PRIMARY KEY)`, `ALTER TABLE t REPLICA IDENTITY FULL`}, []string{"t"}, "", nil},
		{"publication of all", []string{`CREATE TABLE t (id int PRIMARY KEY)`, `CREATE PUBLICATION tributary_s FOR ALL TABLES`}, []string{"t"}, "", nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			eachVersion(t, func(t *testing.T, db *testpg.DB) {
				db.Exec(t, tt.sql...)
				_, err := initSource(t, Config{ConnString: db.ConnString, Tables: names(tt.tables...), Slot: "taken_" + db.Name})
				if tt.want != nil {
					wants(t, err, tt.reason, tt.want)
					if n := db.Value(t, `SELECT count(*) FROM pg_publication WHERE obj_description(oid) IS NOT NULL`); n != "0" {
						t.Error("a publication was made although something is in the way")
					}
				} else if err != nil {
					t.Error(err)
				}
			})
		})
	}
}

func TestPreflightPrivileges(t *testing.T) {
	t.Parallel()
	eachVersion(t, func(t *testing.T, db *testpg.DB) {
		user := "u_" + db.Name
		db.Exec(t, `CREATE ROLE `+user+` LOGIN PASSWORD 'pw'`, `REVOKE CREATE ON SCHEMA public FROM PUBLIC`, `CREATE SCHEMA s`, `CREATE TABLE s.t (id int PRIMARY KEY)`, `REVOKE CONNECT ON DATABASE `+db.Name+` FROM PUBLIC`)
		t.Cleanup(func() {
			_ = db.ExecContext(context.Background(), `DROP OWNED BY `+user+` CASCADE`, `DROP ROLE `+user)
		})
		cfg := Config{ConnString: db.ConnStringAs(user, "pw"), Tables: names("s.t")}
		_, err := initSource(t, cfg)
		wants(t, err, engine.ReasonPermissionDenied, map[Reason]string{MissingPrivilege: "GRANT CONNECT"})

		db.Exec(t, `GRANT CONNECT ON DATABASE `+db.Name+` TO `+user)
		_, err = initSource(t, cfg)
		wants(t, err, engine.ReasonPermissionDenied, map[Reason]string{MissingPrivilege: ""})
		for _, mend := range []string{`ALTER ROLE "` + user + `" REPLICATION`, `GRANT USAGE ON SCHEMA "s" TO "` + user + `"`, `GRANT SELECT ON "s"."t" TO "` + user + `"`,
			`GRANT CREATE ON DATABASE "` + db.Name + `" TO "` + user + `"`, `CREATE PUBLICATION "tributary_s" FOR TABLE "s"."t" WITH (publish_via_partition_root = true)`} {
			if !strings.Contains(err.Error(), mend) {
				t.Errorf("%q is not said: %v", mend, err)
				continue
			}
			db.Exec(t, mend) // what it says helps
		}
		db.Exec(t, `DROP PUBLICATION tributary_s`)
		_, err = initSource(t, cfg)
		wants(t, err, engine.ReasonPermissionDenied, map[Reason]string{MissingPrivilege: "does not own s.t"})

		// The owner makes the publication: no more is needed.
		db.Exec(t, `CREATE PUBLICATION tributary_s FOR TABLE s.t`)
		if _, err = initSource(t, cfg); err != nil {
			t.Error(err)
		}
	})
}

// A publication that we made is extended, and one of another's never altered.
func TestPublicationIsExtended(t *testing.T) {
	t.Parallel()
	eachVersion(t, func(t *testing.T, db *testpg.DB) {
		db.Exec(t, createT, `CREATE TABLE u (id int PRIMARY KEY)`)
		for _, tables := range [][]string{{"t"}, {"t", "u"}, {"u"}} {
			if _, err := initSource(t, Config{ConnString: db.ConnString, Tables: names(tables...)}); err != nil {
				t.Fatal(err)
			}
		}
		if got := db.Value(t, `SELECT string_agg(tablename, ',' ORDER BY 1) FROM pg_publication_tables WHERE pubname='tributary_s'`); got != "t,u" {
			t.Errorf("the publication holds %s", got)
		}
	})
}

func TestPreflightServer(t *testing.T) {
	t.Parallel()
	s := testpg.Start(t, testpg.Options{Settings: map[string]string{"wal_level": "replica", "max_replication_slots": "1", "max_wal_senders": "1"}})
	db := s.NewDB(t)
	db.Exec(t, createT)
	cfg := Config{ConnString: db.ConnString, Tables: names("t")}
	_, err := initSource(t, cfg)
	wants(t, err, engine.ReasonPreflightFailed, map[Reason]string{WalLevel: "ALTER SYSTEM SET wal_level = logical"})

	db.Exec(t, `ALTER SYSTEM SET wal_level = logical`)
	if err := s.Restart(t.Context(), testpg.Fast); err != nil {
		t.Fatal(err)
	}
	if _, err := initSource(t, cfg); err != nil {
		t.Fatal(err)
	}
	// A permanent slot is a copy of the one that the baseline is read by.
	permanent := cfg
	permanent.Permanent, permanent.Slot = true, "stays"
	_, err = initSource(t, permanent)
	wants(t, err, engine.ReasonPreflightFailed, map[Reason]string{SlotsExhausted: "a baseline takes two"})
	db.Exec(t, `SELECT pg_create_logical_replication_slot('other','pgoutput')`)
	_, err = initSource(t, cfg)
	wants(t, err, engine.ReasonPreflightFailed, map[Reason]string{SlotsExhausted: "max_replication_slots"})
	db.Exec(t, `SELECT pg_drop_replication_slot('other')`)

	sender, err := pgconn.Connect(t.Context(), db.ConnString+"&replication=database")
	if err != nil {
		t.Fatal(err)
	}
	_, err = initSource(t, cfg)
	wants(t, err, engine.ReasonPreflightFailed, map[Reason]string{WalSendersExhausted: "max_wal_senders"})
	_ = sender.Close(t.Context())

	_, err = initSource(t, Config{ConnString: s.ConnStringAs(db.Name, "postgres", "wrong-s3cret"), Tables: names("t")})
	wants(t, err, engine.ReasonAuthenticationFailed, map[Reason]string{AuthenticationFailed: "password"})
	if strings.Contains(err.Error(), "s3cret") {
		t.Errorf("the password is in the message: %v", err)
	}
	_, err = initSource(t, Config{ConnString: s.ConnString("nowhere"), Tables: names("t")})
	wants(t, err, engine.ReasonDisconnected, map[Reason]string{ServerUnreachable: `database "nowhere" does not exist`})

	if err := s.Stop(t.Context(), testpg.Fast); err != nil {
		t.Fatal(err)
	}
	_, err = initSource(t, cfg)
	wants(t, err, engine.ReasonDisconnected, map[Reason]string{ServerUnreachable: "cannot be reached"})
}

// A server that accepts and says nothing does not hold Init up for ever.
func TestInitEndsWithItsContext(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	src, err := New(Config{ConnString: "postgres://u:p@" + l.Addr().String() + "/d?sslmode=disable", Tables: names("t")})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := src.Init(ctx, engine.Env{Schemas: engine.NewSchemaSet()}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}

// The slot is in use: who uses it is named; once it is free, the node goes on.
func TestSlotBusy(t *testing.T) {
	t.Parallel()
	eachVersion(t, func(t *testing.T, db *testpg.DB) {
		db.Exec(t, createT, `INSERT INTO t VALUES (1,1,'x')`)
		slot := "busy_" + db.Name
		first := start(t, Config{ConnString: db.ConnString + "&application_name=first", Tables: names("t"), Slot: slot})
		first.ready()
		pid := walsender(t, db)
		_, err := initSource(t, Config{ConnString: db.ConnString, Tables: names("t"), Slot: slot})
		wants(t, err, engine.ReasonSlotBusy, map[Reason]string{SlotBusy: "process " + pid + ` (application "first", from 127.0.0.1)`})
		second := start(t, Config{ConnString: db.ConnString, Tables: names("t"), Slot: slot, patience: 200 * time.Millisecond})
		eventually(t, "the second node says why", func() bool {
			second.mu.Lock()
			defer second.mu.Unlock()
			return strings.Contains(second.logs.String(), "is in use by process")
		})
		first.stop()
		second.converges(db, "t")
	})
}

package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/tributary-dev/tributary/pkg/archive"
	"github.com/tributary-dev/tributary/pkg/archive/dest/build"
	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/nodeconfig"
	"github.com/tributary-dev/tributary/pkg/pgsession"
)

const (
	// sourceName is the name of the source of an export's node.
	sourceName = "from"
	// firstName is what exports were named before they were named by what they read. Archives that have it go on
	// with it.
	firstName = "export"
	reachIn   = 15 * time.Second
)

// server is the database that is read, as far as it was reached.
type server struct {
	conn     *pgconn.PgConn
	systemID string
}

// reach connects to the database of --from.
func reach(ctx context.Context, from string) (*server, error) {
	ctx, cancel := context.WithTimeout(ctx, reachIn)
	defer cancel()
	cfg, err := pgconn.ParseConfig(from)
	if err != nil {
		return nil, err
	}
	replication := cfg.Copy()
	replication.RuntimeParams["replication"] = "database"
	conn, err := pgconn.ConnectConfig(ctx, replication)
	if err != nil {
		return nil, err
	}
	rs, err := conn.Exec(ctx, "IDENTIFY_SYSTEM").ReadAll()
	pgsession.Close(conn)
	if err != nil {
		return nil, err
	}
	s := &server{systemID: pgsession.Text(rs...)[0][0]}
	s.conn, err = pgconn.ConnectConfig(ctx, cfg)
	return s, err
}

// before is what the archives at the location, and the state of an export that follows, say of it.
type before struct {
	found []*found
	state *nodeconfig.Config // nil: it begins
}

func (x *export) before(ctx context.Context, dir, location string) (*before, error) {
	b := &before{}
	if x.follow {
		text, err := os.ReadFile(filepath.Join(dir, "node.yaml"))
		if err == nil {
			if b.state, err = nodeconfig.Parse(filepath.Join(dir, "node.yaml"), text); err != nil {
				return nil, fmt.Errorf("the state of the export cannot be read: give another folder by --state to begin anew: %w", err)
			}
			return b, nil
		}
		if !os.IsNotExist(err) {
			return nil, err
		}
	}
	store, place, err := x.store(location)
	if err != nil {
		return nil, err
	}
	d, err := build.Destination(ctx, store, &place)
	if err != nil {
		return nil, err
	}
	b.found, _, err = findAll(ctx, d) // what is damaged says so when it is written
	return b, err
}

// naming gives the export its name and the names of its slot and publication, where the command line has none: those
// that it has had, else names by what is read and written, which no other export has.
func (x *export) naming(b *before, db *server, place nodeconfig.StoreConfig, tables []nodeconfig.Table) error {
	what := []string{place.Endpoint + " " + place.Bucket + " " + place.Prefix + place.Path + " " + x.prefix}
	for _, t := range tables {
		what = append(what, nodeconfig.TableKey(t))
	}
	slices.Sort(what[1:]) // whatever the order of the flags
	if x.name == "" && b.state != nil {
		x.name = b.state.Node.ID
	}
	if x.name == "" {
		name, err := x.derived(db)
		if err != nil {
			return err
		}
		if x.follow {
			name += "/" + digest(what...)
		}
		x.name = cmp.Or(x.writer(b, tables), name)
	}
	if x.slot == "" && b.state != nil && b.state.Sources[0].Postgres != nil {
		x.slot = b.state.Sources[0].Postgres.Slot
	}
	if !x.follow {
		x.object = onceName()
		return nil
	}
	x.object = objectName(x.name, digest(append(what, x.name)...))
	if b.state != nil && b.state.Sources[0].Postgres != nil {
		x.object = b.state.Sources[0].Postgres.Publication.Name
	}
	return nil
}

// derived names an export by what it reads.
func (x *export) derived(db *server) (string, error) {
	from, err := url.Parse(x.from)
	switch {
	case err != nil:
		return firstName, nil // it is refused for that
	case from.Scheme == "node":
		id := strings.Trim(from.Path, "/")
		if len(id) > 150 {
			id = digest(id)
		}
		return firstName + "/" + id, nil
	case db == nil && x.follow:
		return "", fmt.Errorf("the database cannot be reached, by which the export is named: begin once it can, or give it a --name")
	case db == nil:
		return firstName, nil
	}
	name := strings.Trim(strings.TrimPrefix(from.Path, "/"), ".-_")
	if c, err := pgconn.ParseConfig(x.from); err == nil {
		name = c.Database
	}
	return firstName + "/" + simple(name, "._-") + "-" + db.systemID, nil
}

// writer is the name under which the archives of the tables were written by default before; empty for none.
func (x *export) writer(b *before, tables []nodeconfig.Table) (name string) {
	a := nodeconfig.Archive{ArchiveStore: nodeconfig.ArchiveStore{KeyPrefix: x.prefix}, Group: true}
	for _, f := range b.found {
		if slices.ContainsFunc(tables, func(t nodeconfig.Table) bool { return f.prefix == a.Prefix(t) }) && f.manifest.Writer.ID == firstName {
			return firstName
		}
	}
	return ""
}

// alone refuses an export that follows under a name under which others write, of which it knows nothing.
func (x *export) alone(b *before, tables []nodeconfig.Table) error {
	for _, f := range b.found {
		t := nodeconfig.Table{Schema: f.manifest.Table.Schema, Name: f.manifest.Table.Name}
		if x.follow && f.manifest.Writer.ID == x.name && !slices.Contains(tables, t) {
			return usage("the archive of %s at %s is written under the name %s too, and by another export: give this one another --name, or have one export write both", quoteTable(f.manifest.Table), f.where(), x.name)
		}
	}
	return nil
}

// known is what the archives say of the log that the database is read as.
func (x *export) known(b *before, tables []nodeconfig.Table) engine.Known {
	var all []*archive.Manifest
	for _, f := range b.found {
		all = append(all, f.manifest)
	}
	var written []engine.TableName
	for _, t := range tables {
		written = append(written, engine.TableName{Schema: t.Schema, Name: t.Name})
	}
	return archive.Known(engine.Origin(x.name, sourceName), written, all...)
}

// objectName is a name for objects in a database: of what, and a mark that tells it from others.
func objectName(what, mark string) string {
	name := "tributary_" + simple(strings.ToLower(what), "")
	return name[:min(len(name), 63-1-len(mark))] + "_" + mark
}

// simple replaces what is not a letter, a digit or one of others.
func simple(s, others string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune(others, r) {
			return r
		}
		return '_'
	}, s)
}

func digest(parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return hex.EncodeToString(sum[:4])
}

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/spf13/cobra"

	"github.com/tributary-dev/tributary/internal/node"
	"github.com/tributary-dev/tributary/pkg/archive/dest/build"
	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/nodeconfig"
	"github.com/tributary-dev/tributary/pkg/pgsession"
)

// export is the export command: a node in this process that writes an archive.
type export struct {
	storeFlags
	from     string
	tables   []string
	name     string
	slot     string
	state    string
	formats  []string
	history  string
	prefix   string
	interval time.Duration
	takeOver bool
	single   bool
	follow   bool
	verbose  bool

	object string // name of the slot and the publication
}

func archiveExportCommand() *cobra.Command {
	var x export
	c := &cobra.Command{
		Use:   "export LOCATION --from SOURCE --table SCHEMA.NAME...",
		Short: "Write archives of tables, once or from now on, from PostgreSQL or from a node",
		Long: `export writes an archive of each table, below LOCATION under schema.table: a base,
and with --follow what changes from then on. It runs a node in this process for it.

--from postgres://USER@HOST/DATABASE reads by a replication slot and a publication, which
are made and, after an export that does not follow, dropped again: its slot is temporary, so that none
is left even where it is killed, and the publication goes with the next export. One that follows keeps its slot, so that it can go on where it
was: that holds the database's log back while it does not run. --from node://HOST:PORT/ID
reads from a node.

What cannot be read or written ends an export. One that follows says so and tries again.

An archive that is there already gets a new base; one that another writer has is left alone
unless --take-over is given. Exports of one database under one name go on in one log, so that
tables that were exported one after the other can be served together.`,
		Example: `  tributary archive export /var/lib/archive --from postgres://repl@db/shop --table public.orders
  tributary archive export s3://backups/prod --from node://edge:7400/shop/edge -t public.orders -t public.items
  tributary archive export s3://backups/prod --from postgres://repl@db/shop -t orders --follow --state /var/lib/export`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error { return x.run(c, args[0]) },
	}
	f := c.Flags()
	f.StringVar(&x.from, "from", "", "postgres://USER@HOST:PORT/DATABASE or node://HOST:PORT/ID")
	f.StringArrayVarP(&x.tables, "table", "t", nil, "a table, as schema.name; may be given several times")
	f.BoolVar(&x.follow, "follow", false, "go on with what changes, until this ends")
	f.StringVar(&x.state, "state", "", "with --follow, the folder in which to keep how far it is")
	f.DurationVar(&x.interval, "interval", nodeconfig.DefaultArchiveInterval, "with --follow, how often what has changed is written")
	f.StringSliceVar(&x.formats, "format", []string{nodeconfig.DefaultArchiveFormat}, strings.Join(nodeconfig.ArchiveFormats, ", ")+"; several to write each")
	f.StringVar(&x.history, "history", nodeconfig.HistoryNet, "net: the last value of each row in a diff; full: every change")
	f.StringVar(&x.name, "name", "", "name of the writer, and origin of what is read from a database; else export/ and the database's or the node's")
	f.StringVar(&x.slot, "slot", "", "replication slot; else one by the name and what is written")
	f.StringVar(&x.prefix, "key-prefix", "", "folder below LOCATION, or where {schema} and {table} go in it")
	f.BoolVar(&x.takeOver, "take-over", false, "take archives over from another writer")
	f.BoolVar(&x.single, "single-writer", false, "do without conditional writes, where the store has none")
	f.BoolVarP(&x.verbose, "verbose", "v", false, "show the log of the node")
	x.storeFlags.flags(f)
	return c
}

func (x *export) run(c *cobra.Command, location string) (err error) {
	ctx := c.Context()
	dir := x.state
	switch {
	case x.follow && dir == "":
		return usage("--follow needs --state with a folder of its own, so that it can go on where it was")
	case !x.follow && dir != "":
		return usage("--state is for --follow: take it out")
	case dir == "":
		var remove func() error
		if dir, remove, err = makeFolder(); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, remove()) }()
	default:
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	cfg, err := x.config(dir, location)
	if err != nil {
		return err
	}
	recall, release, err := x.meet(ctx, cfg, dir, location)
	if err != nil {
		return err
	}
	defer release()
	file := filepath.Join(dir, "node.yaml")
	text, err := cfg.Marshal()
	if err != nil {
		return err
	}
	if cfg, err = nodeconfig.Parse(file, text); err != nil {
		return byFlags(err)
	}
	if err := os.WriteFile(file, text, 0o600); err != nil {
		return err
	}
	log := slog.New(slog.DiscardHandler)
	if x.verbose {
		log = slog.New(slog.NewTextHandler(c.ErrOrStderr(), nil))
	}
	running, stop := context.WithCancel(ctx)
	defer stop()
	ended, web := make(chan error, 1), make(chan string, 1)
	go func() {
		ended <- node.Run(running, node.Options{
			Config: cfg, Logger: log, ArchiveOnce: !x.follow, Recall: recall,
			Listening: func(_, http net.Addr) { web <- http.String() },
		})
	}()
	werr := x.watch(ctx, c, web, ended)
	stop()
	if err := <-ended; werr == nil {
		werr = err
	}
	if s := cfg.Sources[0]; !x.follow && s.Postgres != nil {
		werr = errors.Join(werr, x.cleanUp(context.WithoutCancel(ctx), s.Postgres.Publication.Name))
	}
	switch {
	case x.follow && ctx.Err() != nil:
		return nil
	case x.follow || werr != nil:
		return werr
	}
	return printExported(ctx, c.OutOrStdout(), &cfg.Archives[0])
}

// meet sees what there is at both ends, and names the export and what it makes by it. release ends what it holds.
func (x *export) meet(ctx context.Context, cfg *nodeconfig.Config, dir, location string) (recall map[string]engine.Known, release func(), err error) {
	b, err := x.before(ctx, dir, location)
	if err != nil {
		return nil, nil, err
	}
	done := func() {}
	pg := cfg.Sources[0].Postgres
	var db *server
	if pg != nil && b.state == nil {
		if db, err = reach(ctx, x.from); err == nil {
			done = func() { pgsession.Close(db.conn) }
		} else if db = nil; x.follow && x.name == "" {
			return nil, nil, fmt.Errorf("an export is named by its database, which cannot be reached: give it a --name to do without: %w", err)
		}
	}
	defer func() {
		if err != nil {
			done()
		}
	}()
	tables := cfg.Archives[0].Tables
	if err := errors.Join(x.naming(b, db, cfg.Archives[0].StoreConfig, tables), x.alone(b, tables)); err != nil {
		return nil, nil, err
	}
	cfg.Node.ID, cfg.Archives[0].Write.Writer = x.name, x.name
	if pg == nil {
		return nil, done, nil
	}
	pg.Publication.Name, pg.Slot = x.object, cmp.Or(x.slot, x.object)
	if !x.follow && db != nil {
		if err := db.use(ctx, x.object); err != nil {
			return nil, nil, err
		}
	}
	return map[string]engine.Known{sourceName: x.known(b, tables)}, done, nil
}

// flagOf are the flags that fields of the node's configuration come from, the longest paths first.
var flagOf = []struct{ path, flag string }{
	{"node.id", "--name"},
	{"sources[0].postgres.slot", "--slot"},
	{"sources[0].postgres.tables", "--table"},
	{"sources[0].fanout.tables", "--table"},
	{"sources[0]", "--from"},
	{"archives[0].formats", "--format"},
	{"archives[0].tables", "--table"},
	{"archives[0].keyPrefix", "--key-prefix"},
	{"archives[0].write.history", "--history"},
	{"archives[0].write.interval", "--interval"},
	{"archives[0].write.writer", "--name"},
	{"archives[0].storeConfig.path", "LOCATION"},
	{"archives[0].storeConfig.bucket", "LOCATION"},
	{"archives[0].storeConfig.prefix", "LOCATION"},
	{"archives[0].storeConfig.region", "--region"},
	{"archives[0].storeConfig.endpoint", "--endpoint"},
	{"archives[0].storeConfig.pathStyle", "--path-style"},
	{"archives[0].storeConfig.caFile", "--ca-file"},
	{"archives[0].storeConfig.encryption", "--encryption"},
	{"archives[0].storeConfig.kmsKey", "--kms-key"},
	{"archives[0].storeConfig.credentials.profile", "--profile"},
	{"archives[0].storeConfig.credentials.accessKeyFile", "--access-key-file"},
	{"archives[0].storeConfig.credentials.secretKeyFile", "--secret-key-file"},
	{"archives[0].storeConfig.credentials.roleARN", "--role-arn"},
	{"archives[0].storeConfig.credentials.webIdentityTokenFile", "--web-identity-token-file"},
	{"archives[0].storeConfig.credentials.stsEndpoint", "--sts-endpoint"},
}

// byFlags says of the flags what is wrong with the configuration that they have made.
func byFlags(err error) error {
	var all []error
	said := map[string]bool{}
	for _, err := range unjoined(err) {
		var p *nodeconfig.Problem
		if !errors.As(err, &p) {
			return fmt.Errorf("what is asked for cannot be done: %w", err)
		}
		name := p.Path
		for _, f := range flagOf {
			if strings.HasPrefix(p.Path, f.path) {
				name = f.flag
				break
			}
		}
		text := name + " " + p.What
		if p.Mend != "" {
			text += ": " + p.Mend
		}
		if !said[text] { // one flag can be in several fields
			said[text] = true
			all = append(all, errors.New(text))
		}
	}
	return usage("%w", errors.Join(all...))
}

func unjoined(err error) []error {
	if j, ok := err.(interface{ Unwrap() []error }); ok {
		return j.Unwrap()
	}
	return []error{err}
}

// cleanUp drops what was made in the database. The slot, which is temporary, has gone with the node.
func (x *export) cleanUp(ctx context.Context, publication string) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	drop := "DROP PUBLICATION IF EXISTS " + pgsession.QuoteIdent(publication)
	conn, err := pgconn.Connect(ctx, x.from)
	if err != nil {
		return fmt.Errorf("if the publication %s was made, it is left in the database: run there: %s: %w", publication, drop, err)
	}
	defer conn.Close(ctx)
	return run(ctx, conn, drop)
}

// config is the configuration of the node.
func (x *export) config(dir, location string) (*nodeconfig.Config, error) {
	if len(x.tables) == 0 {
		return nil, usage("say which tables by --table")
	}
	var tables []nodeconfig.Table
	for _, text := range x.tables {
		t, err := parseTable(text)
		if err != nil {
			return nil, err
		}
		tables = append(tables, nodeconfig.Table{Schema: t.Schema, Name: t.Name})
	}
	store, place, err := x.store(location)
	if err != nil {
		return nil, err
	}
	if store == nodeconfig.StoreLocal { // not the folder of this process, for one that runs again
		if place.Path, err = filepath.Abs(place.Path); err != nil {
			return nil, err
		}
	}
	place.SingleWriter = x.single && store == nodeconfig.StoreS3
	cfg := &nodeconfig.Config{
		Version: nodeconfig.Version, Node: nodeconfig.Node{ID: x.name}, DrainTimeout: time.Second,
		Listen:  nodeconfig.Listen{Replication: "127.0.0.1:0", HTTP: "127.0.0.1:0"},
		Storage: nodeconfig.Storage{Type: nodeconfig.StorageMemory, ScratchPath: filepath.Join(dir, "scratch")},
		Archives: []nodeconfig.Archive{{
			Name:         "export",
			ArchiveStore: nodeconfig.ArchiveStore{Store: store, StoreConfig: place, Formats: x.formats, KeyPrefix: x.prefix},
			Tables:       tables, Group: true,
			Write: &nodeconfig.ArchiveWrite{Interval: x.interval, History: x.history, Writer: x.name, TakeOver: x.takeOver},
		}},
	}
	if x.follow {
		cfg.Storage = nodeconfig.Storage{Type: nodeconfig.StoragePebble, Path: filepath.Join(dir, "store")}
	}
	source, err := x.source(cfg, dir, tables)
	if err != nil {
		return nil, err
	}
	cfg.Sources = []nodeconfig.Source{*source}
	cfg.SetDefaults()
	return cfg, nil
}

// source reads --from.
func (x *export) source(cfg *nodeconfig.Config, dir string, tables []nodeconfig.Table) (*nodeconfig.Source, error) {
	from, err := url.Parse(x.from)
	if err != nil {
		return nil, usage("--from is no URL: write postgres://USER@HOST:PORT/DATABASE or node://HOST:PORT/ID")
	}
	switch from.Scheme {
	case "postgres", "postgresql":
		return x.postgres(from, dir, tables)
	case "node":
		id := strings.Trim(from.Path, "/")
		if from.Port() == "" || id == "" {
			return nil, usage("--from %s: write node://HOST:PORT/ID with the node's id, such as node://edge:7400/shop/edge", x.from)
		}
		w := nodeconfig.Wiring{Version: nodeconfig.Version, Epoch: 1, Sources: []nodeconfig.WiredSource{{
			Name: sourceName, Candidates: []nodeconfig.Candidate{{ID: id, Address: from.Host, Eligible: true}},
		}}}
		w.SetDefaults()
		text, err := w.Marshal()
		if err != nil {
			return nil, err
		}
		cfg.WiringFile = filepath.Join(dir, "wiring.yaml")
		f := &nodeconfig.Fanout{}
		for _, t := range tables {
			f.Tables = append(f.Tables, nodeconfig.FanoutTable{Schema: t.Schema, Name: t.Name})
		}
		return &nodeconfig.Source{Name: sourceName, Fanout: f}, os.WriteFile(cfg.WiringFile, text, 0o600)
	}
	return nil, usage("--from %q: write postgres://USER@HOST:PORT/DATABASE or node://HOST:PORT/ID", from.Redacted())
}

// postgres is a source by a slot. What the URL leaves out is taken from PGHOST and the like.
func (x *export) postgres(from *url.URL, dir string, tables []nodeconfig.Table) (*nodeconfig.Source, error) {
	c, err := pgconn.ParseConfig(x.from)
	if err != nil {
		return nil, err
	}
	q := from.Query()
	p := &nodeconfig.Postgres{
		PostgresServer: nodeconfig.PostgresServer{
			Hosts: []nodeconfig.Host{{Host: c.Host, Port: int(c.Port)}}, Database: c.Database, User: c.User,
			SSLMode: q.Get("sslmode"), SSLRootCert: q.Get("sslrootcert"), SSLCert: q.Get("sslcert"), SSLKey: q.Get("sslkey"),
		},
		Tables: tables,
	}
	p.Publication = nodeconfig.Publication{Managed: true}
	if c.Password != "" {
		p.PasswordFile = filepath.Join(dir, "password")
		if err := os.WriteFile(p.PasswordFile, []byte(c.Password), 0o600); err != nil {
			return nil, err
		}
	}
	return &nodeconfig.Source{Name: sourceName, Postgres: p}, nil
}

// watch says how far it is, until the node has ended or cannot go on. web has the address
// at which the node says it, once there is one.
func (x *export) watch(ctx context.Context, c *cobra.Command, web <-chan string, ended chan error) error {
	bar := progressTo(c.ErrOrStderr())
	defer bar.end()
	said, address := "", ""
	for {
		select {
		case <-ctx.Done():
			if x.follow {
				return nil
			}
			return errors.New("interrupted before all archives were written")
		case err := <-ended:
			ended <- nil
			if err == nil && x.follow {
				err = errors.New("the node has ended")
			}
			return err
		case address = <-web:
			continue
		case <-time.After(200 * time.Millisecond):
		}
		if address == "" {
			continue // it is starting
		}
		st, err := statusOf(ctx, address)
		if err != nil {
			continue // it is starting
		}
		problem, stuck := troubles(st)
		if stuck && !x.follow {
			return errors.New(problem)
		}
		if problem != "" && problem != said {
			bar.end()
			fmt.Fprintln(c.ErrOrStderr(), problem)
		}
		said = problem
		done, bytes := 0, int64(0)
		var tables []nodeconfig.ArchiveTableStatus
		if len(st.Archives) == 1 {
			tables = st.Archives[0].Tables
		}
		for _, t := range tables {
			bytes += t.Bytes
			if t.Generation > 0 && t.Bases > 0 && t.Doing == "" && t.LastError == "" {
				done++
			}
		}
		bar.say("%s, %d of %d tables written, %s", doing(st, tables), done, len(x.tables), bytesText(bytes))
	}
}

// printExported says what the archives have, as they are.
func printExported(ctx context.Context, w io.Writer, a *nodeconfig.Archive) error {
	d, err := build.Destination(ctx, a.Store, &a.StoreConfig)
	if err != nil {
		return err
	}
	tables := slices.Clone(a.Tables)
	slices.SortFunc(tables, func(a, b nodeconfig.Table) int {
		return cmp.Or(cmp.Compare(a.Schema, b.Schema), cmp.Compare(a.Name, b.Name))
	})
	for _, t := range slices.Compact(tables) {
		f, err := openFound(ctx, d, a.Prefix(t))
		if err != nil {
			return err
		}
		var bytes int64
		for i := range f.manifest.Artifacts {
			for _, file := range f.manifest.Artifacts[i].Files {
				bytes += file.Size
			}
		}
		if _, err := fmt.Fprintf(w, "%s: generation %d under %s, %s in all, through %s\n", quoteTable(f.manifest.Table), f.manifest.Generation, f.prefix, bytesText(bytes), f.manifest.Through); err != nil {
			return err
		}
	}
	return nil
}

func doing(st *nodeconfig.Statusz, tables []nodeconfig.ArchiveTableStatus) string {
	for _, t := range tables {
		if t.Doing != "" {
			return strings.ToLower(t.Doing) + " " + t.Table
		}
	}
	for _, s := range st.Sources {
		return s.State
	}
	return "starting"
}

// troubles says what is in the way, and whether a person has to take it away.
func troubles(st *nodeconfig.Statusz) (what string, stuck bool) {
	for _, s := range st.Sources {
		if s.Message != "" {
			return "reading: " + s.Message, s.State == nodeconfig.StateFailed
		}
	}
	for _, a := range st.Archives {
		if a.Message != "" && a.State != nodeconfig.ArchiveWaiting {
			return "writing: " + a.Message, a.State == nodeconfig.ArchiveFenced || a.State == nodeconfig.ArchiveFailed
		}
	}
	return "", false
}

func statusOf(ctx context.Context, address string) (*nodeconfig.Statusz, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/statusz", nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	st := &nodeconfig.Statusz{}
	return st, json.NewDecoder(resp.Body).Decode(st)
}

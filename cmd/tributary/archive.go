package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tributary-dev/tributary/pkg/archive"
	"github.com/tributary-dev/tributary/pkg/archive/dest"
	"github.com/tributary-dev/tributary/pkg/archive/dest/build"
	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/nodeconfig"
)

func archiveCommand() *cobra.Command {
	c := &cobra.Command{
		Use:     "archive",
		Aliases: []string{"archives"},
		Short:   "Archives of tables: list, check, print, compare and restore them",
		Long: `archive works on archives of tables, in a folder or in a bucket (s3://BUCKET/PREFIX),
without a node.

A LOCATION is a folder or prefix that holds archives, or one of them. Where there are
several, --table says which. Credentials are those of the environment, as Amazon's
tools take them, unless a flag says otherwise.

` + exitCodes,
		Example: `  tributary archive ls s3://backups/prod
  tributary archive verify /var/lib/archive
  tributary archive cat s3://backups/prod --table public.orders --time 2026-03-01T12:00:00Z
  tributary archive restore s3://backups/prod --all --to postgres://localhost/shop --create`,
	}
	c.AddCommand(archiveExportCommand(), archiveLsCommand(), archiveVerifyCommand(), archiveCatCommand(), archiveDiffCommand(),
		archiveRestoreCommand(), archivePruneCommand(), archiveCompactCommand())
	return c
}

// storeFlags say how a bucket is reached.
type storeFlags struct {
	config      nodeconfig.StoreConfig
	credentials nodeconfig.StoreCredentials
	pathStyle   bool
	set         *pflag.FlagSet
}

func (s *storeFlags) flags(f *pflag.FlagSet) {
	s.set = f
	f.StringVar(&s.config.Region, "region", "", "region of the bucket; else the environment's")
	f.StringVar(&s.config.Endpoint, "endpoint", "", "URL of a store other than Amazon's")
	f.BoolVar(&s.pathStyle, "path-style", false, "the bucket stands in the path of URLs; the default with --endpoint")
	f.StringVar(&s.config.CAFile, "ca-file", "", "file of the authorities' certificates; else the system's")
	f.StringVar(&s.credentials.Profile, "profile", "", "profile of Amazon's shared files")
	f.StringVar(&s.credentials.AccessKeyFile, "access-key-file", "", "file that holds an access key id")
	f.StringVar(&s.credentials.SecretKeyFile, "secret-key-file", "", "file that holds its secret")
	f.StringVar(&s.credentials.RoleARN, "role-arn", "", "role to assume")
	f.StringVar(&s.credentials.WebIdentityTokenFile, "web-identity-token-file", "", "file of the token with which the role is assumed")
	f.StringVar(&s.credentials.STSEndpoint, "sts-endpoint", "", "URL of the service that roles are assumed at; else Amazon's")
	f.StringVar(&s.config.Encryption, "encryption", "", "what the store is asked to encrypt by: "+strings.Join(nodeconfig.Encryptions, ", "))
	f.StringVar(&s.config.KMSKey, "kms-key", "", "key of the encryption aws:kms")
	for _, name := range []string{"sts-endpoint", "encryption", "kms-key", "path-style", "ca-file", "access-key-file", "secret-key-file", "role-arn", "web-identity-token-file"} {
		_ = f.MarkHidden(name) // they stand in docs/archives.md
	}
}

// store is the configuration of a location.
func (s *storeFlags) store(location string) (string, nodeconfig.StoreConfig, error) {
	c := s.config
	if s.set.Changed("path-style") {
		c.PathStyle = &s.pathStyle
	}
	if s.credentials != (nodeconfig.StoreCredentials{}) {
		c.Credentials = &s.credentials
	}
	if (s.credentials.AccessKeyFile == "") != (s.credentials.SecretKeyFile == "") {
		return "", c, usage("--access-key-file and --secret-key-file go together: give both")
	}
	return build.Location(location, c)
}

func (s *storeFlags) open(ctx context.Context, location string) (dest.Destination, error) {
	store, c, err := s.store(location)
	if err != nil {
		return nil, err
	}
	return build.Destination(ctx, store, &c)
}

// which says which archives of a location are meant.
type which struct {
	storeFlags
	tables []string
}

func (w *which) flags(f *pflag.FlagSet) {
	f.StringArrayVarP(&w.tables, "table", "t", nil, "a table, as schema.name; where several can be meant it may be given several times")
	w.storeFlags.flags(f)
}

// found is an archive at a location.
type found struct {
	dest     dest.Destination
	prefix   string
	reader   *archive.Reader
	manifest *archive.Manifest
}

func (f *found) where() string {
	if f.prefix == "" {
		return f.dest.Describe()
	}
	return f.dest.Describe() + "/" + strings.TrimSuffix(f.prefix, "/")
}

func openFound(ctx context.Context, d dest.Destination, prefix string) (*found, error) {
	r, err := archive.NewReader(archive.ReaderConfig{Destination: d, Prefix: prefix})
	if err != nil {
		return nil, err
	}
	m, err := r.Manifest(ctx)
	if err != nil {
		return nil, err
	}
	return &found{d, prefix, r, m}, nil
}

// one finds the one archive that is meant.
func (w *which) one(ctx context.Context, location string) (*found, error) {
	if len(w.tables) > 1 {
		return nil, usage("one table at a time: give --table once, not for each of %s", strings.Join(w.tables, ", "))
	}
	d, err := w.open(ctx, location)
	if err != nil {
		return nil, err
	}
	return findOne(ctx, d, strings.Join(w.tables, ""))
}

// findOne finds the archive of a table, the one at the location itself, or the only one below it.
func findOne(ctx context.Context, d dest.Destination, asked string) (*found, error) {
	var table engine.TableName
	if asked != "" {
		var err error
		if table, err = parseTable(asked); err != nil {
			return nil, err
		}
		prefix := nodeconfig.TableKey(nodeconfig.Table{Schema: table.Schema, Name: table.Name}) + "/"
		if f, err := openFound(ctx, d, prefix); err == nil && f.manifest.Table == table || err != nil && !errors.Is(err, archive.ErrNoArchive) {
			return f, err
		}
	}
	at, err := openFound(ctx, d, "")
	if err == nil && (asked == "" || at.manifest.Table == table) {
		return at, nil
	}
	if err != nil && !errors.Is(err, archive.ErrNoArchive) {
		return nil, err
	}
	all, unread, err := findAll(ctx, d)
	if err != nil {
		return nil, err
	}
	var names, where []string
	var match []*found
	for _, f := range all {
		names = append(names, quoteTable(f.manifest.Table))
		if asked == "" || f.manifest.Table == table {
			match, where = append(match, f), append(where, f.where())
		}
	}
	switch {
	case len(match) == 0 && len(unread) > 0, asked == "" && len(unread) > 0:
		return nil, errors.Join(unread...) // it may be one of these
	case len(names) == 0:
		return nil, fmt.Errorf("there is no archive in %s: nothing there ends in /%s; give the folder or prefix that it was written under", d.Describe(), archive.ManifestName)
	case len(match) == 0:
		return nil, fmt.Errorf("there is no archive of %s in %s: those there are of %s", asked, d.Describe(), strings.Join(names, ", "))
	case len(match) > 1 && asked == "":
		return nil, usage("there are archives of %d tables in %s: name one by --table: %s", len(match), d.Describe(), strings.Join(names, ", "))
	case len(match) > 1:
		return nil, fmt.Errorf("there are %d archives of %s: give the location of one: %s", len(match), asked, strings.Join(where, ", "))
	}
	return match[0], nil
}

// look finds the archives of the tables that are meant, or all of a location if none is named. What
// cannot be read of one does not keep it from the others.
func (w *which) look(ctx context.Context, location string) (all []*found, unread []error, err error) {
	d, err := w.open(ctx, location)
	if err != nil {
		return nil, nil, err
	}
	for _, table := range w.tables {
		f, err := findOne(ctx, d, table)
		switch {
		case err != nil && (errors.Is(err, archive.ErrCorrupt) || errors.Is(err, archive.ErrVersion)):
			unread = append(unread, err)
		case err != nil:
			return nil, nil, err
		case !slices.ContainsFunc(all, func(have *found) bool { return have.prefix == f.prefix }):
			all = append(all, f)
		}
	}
	if len(w.tables) == 0 {
		if all, unread, err = findAll(ctx, d); err != nil {
			return nil, nil, err
		}
		if len(all)+len(unread) == 0 {
			return nil, nil, fmt.Errorf("there is no archive in %s: nothing there ends in %s", d.Describe(), archive.ManifestName)
		}
	}
	return all, unread, nil
}

// every is look where all of them are needed.
func (w *which) every(ctx context.Context, location string) ([]*found, error) {
	all, unread, err := w.look(ctx, location)
	return all, errors.Join(append(unread, err)...)
}

// findAll opens all archives of a destination. unread says of those that are damaged, or of
// another version.
func findAll(ctx context.Context, d dest.Destination) (all []*found, unread []error, err error) {
	prefixes, err := findArchives(ctx, d)
	if err != nil {
		return nil, nil, err
	}
	for _, prefix := range prefixes {
		f, err := openFound(ctx, d, prefix)
		switch {
		case err != nil && (errors.Is(err, archive.ErrCorrupt) || errors.Is(err, archive.ErrVersion)):
			unread = append(unread, err)
		case err != nil:
			return nil, nil, err
		default:
			all = append(all, f)
		}
	}
	return all, unread, nil
}

// findArchives lists the prefixes of archives.
func findArchives(ctx context.Context, d dest.Destination) (prefixes []string, err error) {
	for info, err := range d.List(ctx, "") {
		if err != nil {
			return nil, err
		}
		if path.Base(info.Key) == archive.ManifestName {
			prefixes = append(prefixes, strings.TrimSuffix(info.Key, archive.ManifestName))
		}
	}
	slices.Sort(prefixes)
	return prefixes, nil
}

// parseTable reads schema.name; a name with a dot stands in double quotes, and public
// is the schema where there is none.
func parseTable(text string) (engine.TableName, error) {
	var parts []string
	for rest := text; ; {
		var part string
		if strings.HasPrefix(rest, `"`) {
			end := 1
			for ; end < len(rest); end++ {
				if rest[end] == '"' {
					if end++; end == len(rest) || rest[end] != '"' {
						end-- // the last
						break
					}
				}
				part += rest[end : end+1]
			}
			rest = rest[min(end+1, len(rest)):]
		} else {
			i := strings.IndexByte(rest, '.')
			if i < 0 {
				i = len(rest)
			}
			part, rest = rest[:i], rest[i:]
		}
		if part == "" {
			break
		}
		if parts = append(parts, part); rest == "" && len(parts) <= 2 {
			return engine.TableName{Schema: append([]string{"public"}, parts...)[len(parts)-1], Name: parts[len(parts)-1]}, nil
		}
		if rest == "" || rest[0] != '.' {
			break
		}
		rest = rest[1:]
	}
	return engine.TableName{}, fmt.Errorf(`%q is no table: write schema.name, and a name that holds dots in double quotes`, text)
}

// quoteTable writes a table as parseTable reads it.
func quoteTable(t engine.TableName) string {
	quote := func(name string) string {
		if name == "" || strings.ContainsAny(name, `."`) {
			return `"` + strings.ReplaceAll(name, `"`, `""`) + `"`
		}
		return name
	}
	return quote(t.Schema) + "." + quote(t.Name)
}

// moment is what a state is asked for as of.
type moment struct {
	at   []string
	time string
}

func (m *moment) flags(f *pflag.FlagSet) {
	f.StringArrayVar(&m.at, "at", nil, "as of a position, such as 0/1A2B3C8; where there are several logs as ORIGIN@EPOCH=POSITION, once for each")
	f.StringVar(&m.time, "time", "", "as of a time, such as 2026-03-01T12:00:00Z or 2026-03-01T12:00:00+02:00; in UTC where it names no zone")
}

// of reads the moment, whose positions are of the archive's logs.
func (m *moment) of(f *found) (out archive.AsOf, err error) {
	if m.time != "" {
		for _, layout := range []string{time.RFC3339Nano, "2006-01-02 15:04:05.999999999Z07:00", "2006-01-02T15:04:05", "2006-01-02 15:04:05", time.DateOnly} {
			if t, err := time.Parse(layout, m.time); err == nil {
				out.Time = engine.TimeOf(t)
				break
			}
		}
		if out.Time == 0 {
			return out, usage("--time %q is no time: write it as 2026-03-01T12:00:00Z", m.time)
		}
	}
	for _, text := range m.at {
		log, position, named := strings.Cut(text, "=")
		var at archive.Cursor
		for _, c := range f.manifest.Through {
			if named && c.Log.String() == log || !named && len(f.manifest.Through) == 1 {
				at = c
			}
		}
		for i := range f.manifest.Artifacts { // an epoch that has ended
			for _, c := range f.manifest.Artifacts[i].To {
				if at.Log.IsZero() && named && c.Log.String() == log {
					at = c
				}
			}
		}
		switch {
		case at.Log.IsZero() && !named:
			return out, usage("--at %s: the archive of %s has %d logs, so say of which: --at ORIGIN@EPOCH=%s, where it is at %s", text, f.manifest.Table, len(f.manifest.Through), text, f.manifest.Through)
		case at.Log.IsZero():
			return out, fmt.Errorf("--at %s: the archive of %s has no such log: it is at %s", text, f.manifest.Table, f.manifest.Through)
		}
		if !named {
			position = text
		}
		if _, err := engine.ParseLSN(engine.Position(position)); err != nil && cmp.Or(at.Order, "lsn") == "lsn" {
			return out, usage("--at %s: %q is no position of log %s, which is at %s", text, position, at.Log, at.Position)
		}
		at.Position, at.Time, at.CompleteFrom = engine.Position(position), 0, 0
		out.At = append(out.At, at)
	}
	out.At = archive.NewVector(out.At...)
	return out, nil
}

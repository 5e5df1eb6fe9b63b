package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"

	"github.com/spf13/cobra"

	"github.com/tributary-dev/tributary/pkg/archive"
	"github.com/tributary-dev/tributary/pkg/engine"
)

func archiveCatCommand() *cobra.Command {
	var w which
	var m moment
	var format string
	c := &cobra.Command{
		Use:   "cat LOCATION",
		Short: "Print a table as it is in an archive, or as it was",
		Long: `cat prints the rows of a table: at the archive's head, or as of a position or time.
What moment that is in the archive is said on standard error: with net diffs it is the
end of the last one before what was asked for.

  jsonl  an object a row, values as PostgreSQL's text
  csv    with the names of the columns first; COPY ... WITH (FORMAT csv, HEADER) reads it
  copy   what COPY ... FROM reads`,
		Example: `  tributary archive cat s3://backups/prod --table public.orders | jq .
  tributary archive cat /var/lib/archive -t orders --time 2026-03-01T12:00:00Z --format csv
  tributary archive cat /var/lib/archive -t orders --format copy | psql shop -c 'COPY orders FROM STDIN'`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			to, ok := rowFormats[format]
			if !ok {
				return usage("--format %s is not known: use jsonl, csv or copy", format)
			}
			f, err := w.one(c.Context(), args[0])
			if err != nil {
				return err
			}
			fold, err := foldAt(c.Context(), f, &m)
			if err != nil {
				return err
			}
			defer fold.Close()
			rel := relationOf(f.manifest, fold)
			names := rel.names()
			out := bufio.NewWriterSize(c.OutOrStdout(), 1<<16)
			buf := to.header(nil, names)
			var values [][]byte
			rows := 0
			err = fold.Rows(func(rec *engine.Record) (err error) {
				if rec.Deleted {
					return nil
				}
				if values, err = rel.values(rec, values); err != nil {
					return err
				}
				rows++
				buf = to.row(buf, names, values)
				_, err = out.Write(buf)
				buf = buf[:0]
				return err
			})
			if err == nil {
				_, err = out.Write(buf)
			}
			if err == nil {
				err = out.Flush()
			}
			if err != nil {
				return err
			}
			fmt.Fprintf(c.ErrOrStderr(), "%s: %s as of %s\n", quoteTable(f.manifest.Table), plural(int(rows), "row", "rows"), momentText(fold.At()))
			return nil
		},
	}
	w.flags(c.Flags())
	m.flags(c.Flags())
	c.Flags().StringVarP(&format, "format", "f", "jsonl", "jsonl, csv or copy")
	return c
}

func foldAt(ctx context.Context, f *found, m *moment) (*archive.Fold, error) {
	at, err := m.of(f)
	if err != nil {
		return nil, err
	}
	return f.reader.Fold(ctx, at)
}

// momentText is a vector with the time of its last transaction.
func momentText(v archive.Vector) string {
	if t := v.Time(); t != 0 {
		return fmt.Sprintf("%s (%s)", v, t.Wall().Format("2006-01-02T15:04:05.999999Z07:00"))
	}
	return v.String()
}

func archiveDiffCommand() *cobra.Command {
	var w which
	var m, from moment
	var quiet bool
	c := &cobra.Command{
		Use:   "diff LOCATION [LOCATION]",
		Short: "Compare two archives of a table, or two moments of one",
		Long: `diff compares the rows of a table in two archives, by their keys: + is only in the
second, - only in the first, ~ differs. With one location it compares two moments of that
archive. It ends with 3 if there is a difference, and with 1 if it could not compare.`,
		Example: `  tributary archive diff /var/lib/archive s3://backups/prod --table public.orders
  tributary archive diff s3://backups/prod -t orders --from-time 2026-03-01T00:00:00Z --time 2026-03-02T00:00:00Z`,
		Args: cobra.RangeArgs(1, 2),
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 1 && from.time == "" && len(from.at) == 0 {
				return usage("say what to compare: a second location, or a moment before by --from-time or --from-at")
			}
			a, err := w.one(c.Context(), args[0])
			if err != nil {
				return err
			}
			b, err := w.one(c.Context(), args[len(args)-1])
			if err != nil {
				return err
			}
			if a.manifest.Table != b.manifest.Table {
				return usage("the archives are of %s and of %s: name the table by --table", a.manifest.Table, b.manifest.Table)
			}
			first := m
			if len(args) == 1 || from.time != "" || len(from.at) > 0 {
				first = from
			}
			fa, err := foldAt(c.Context(), a, &first)
			if err != nil {
				return err
			}
			defer fa.Close()
			fb, err := foldAt(c.Context(), b, &m)
			if err != nil {
				return err
			}
			defer fb.Close()
			d, err := diffRows(c.OutOrStdout(), quiet, relationOf(a.manifest, fa), relationOf(b.manifest, fb), fa, fb)
			if err != nil {
				return err
			}
			fmt.Fprintf(c.ErrOrStderr(), "%s: %d rows only as of %s, %d only as of %s, %d differ, %d are the same\n", quoteTable(a.manifest.Table),
				d.onlyA, momentText(fa.At()), d.onlyB, momentText(fb.At()), d.differ, d.same)
			if d.onlyA+d.onlyB+d.differ > 0 {
				return &exitError{exitFound, nil}
			}
			return nil
		},
	}
	w.flags(c.Flags())
	m.flags(c.Flags())
	c.Flags().StringArrayVar(&from.at, "from-at", nil, "the position of the first, as --at")
	c.Flags().StringVar(&from.time, "from-time", "", "the time of the first, as --time")
	c.Flags().BoolVarP(&quiet, "quiet", "q", false, "print no rows")
	return c
}

type differences struct{ onlyA, onlyB, differ, same int }

// pull turns the calls of Rows into a sequence; deleted rows are left out.
func pull(f *archive.Fold) (next func() (*engine.Record, error, bool), stop func()) {
	return iter.Pull2(func(yield func(*engine.Record, error) bool) {
		err := f.Rows(func(rec *engine.Record) error {
			if !rec.Deleted && !yield(rec, nil) {
				return io.EOF
			}
			return nil
		})
		if err != nil && !errors.Is(err, io.EOF) {
			yield(nil, err)
		}
	})
}

// diffRows merges the rows of two folds, which come in order of their keys.
func diffRows(w io.Writer, quiet bool, ra, rb *relation, a, b *archive.Fold) (d differences, err error) {
	if ka, kb := keyNames(ra), keyNames(rb); len(ra.columns) > 0 && len(rb.columns) > 0 && !slices.Equal(ka, kb) {
		return d, fmt.Errorf("the key of %s is %q in the first and %q in the second: rows cannot be told to be the same", ra.table, ka, kb)
	}
	out := bufio.NewWriterSize(w, 1<<16)
	var line []byte
	show := func(mark string, r *relation, values [][]byte) error {
		if quiet {
			return nil
		}
		line = append(appendJSONObject(append(line[:0], mark...), r.names(), values), '\n')
		_, err := out.Write(line)
		return err
	}
	nextA, stopA := pull(a)
	defer stopA()
	nextB, stopB := pull(b)
	defer stopB()
	recA, errA, okA := nextA()
	recB, errB, okB := nextB()
	var va, vb [][]byte
	for okA || okB {
		if errA != nil || errB != nil {
			return d, cmp.Or(errA, errB)
		}
		var c int
		switch {
		case !okA:
			c = 1
		case !okB:
			c = -1
		default:
			c = bytes.Compare(recA.Key, recB.Key)
		}
		if c <= 0 {
			if va, err = ra.values(recA, va); err != nil {
				return d, err
			}
		}
		if c >= 0 {
			if vb, err = rb.values(recB, vb); err != nil {
				return d, err
			}
		}
		switch {
		case c < 0:
			d.onlyA++
			err = show("- ", ra, va)
		case c > 0:
			d.onlyB++
			err = show("+ ", rb, vb)
		case sameRow(ra, va, rb, vb):
			d.same++
		default:
			d.differ++
			if err = show("~ ", ra, va); err == nil {
				err = show("> ", rb, vb)
			}
		}
		if err != nil {
			return d, err
		}
		if c <= 0 {
			recA, errA, okA = nextA()
		}
		if c >= 0 {
			recB, errB, okB = nextB()
		}
	}
	return d, out.Flush()
}

func keyNames(r *relation) (names []string) {
	for _, c := range r.columns {
		if c.Key {
			names = append(names, c.Name)
		}
	}
	return names
}

// sameRow compares values by the names of their columns; one that is not there is null.
func sameRow(ra *relation, va [][]byte, rb *relation, vb [][]byte) bool {
	at := func(r *relation, v [][]byte, name string) []byte {
		if i := slices.IndexFunc(r.columns, func(c engine.Column) bool { return c.Name == name }); i >= 0 {
			return v[i]
		}
		return nil
	}
	for i, c := range ra.columns {
		o := at(rb, vb, c.Name)
		if (va[i] == nil) != (o == nil) || !bytes.Equal(va[i], o) {
			return false
		}
	}
	for i, c := range rb.columns {
		if vb[i] != nil && at(ra, va, c.Name) == nil {
			return false
		}
	}
	return true
}

package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/tributary-dev/tributary/pkg/archive"
)

func archiveVerifyCommand() *cobra.Command {
	var w which
	c := &cobra.Command{
		Use:   "verify LOCATION",
		Short: "Read archives whole, and say what is damaged or missing",
		Long: `verify reads every artifact and checks every checksum, count and chain. What is
damaged is named with its object and offset. It ends with 3 if anything is, or if there is
no base to restore from, and with 1 if it could not look.`,
		Example: `  tributary archive verify /var/lib/archive
  tributary archive verify s3://backups/prod --table public.orders`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			ctx := c.Context()
			all, unread, err := w.look(ctx, args[0])
			if err != nil {
				return err
			}
			if len(w.tables) == 0 && len(unread) == 0 { // else one of these may be the one
				unread = missing(all)
			}
			damaged, empty := 0, 0
			var unknown []error
			for _, err := range unread {
				fmt.Fprintln(c.OutOrStdout(), err)
				if errors.Is(err, archive.ErrVersion) {
					unknown = append(unknown, err)
				} else {
					damaged++
				}
			}
			for _, f := range all {
				bar := progressTo(c.ErrOrStderr())
				rep, err := f.reader.Verify(ctx, func(done, of int) { bar.say("%s: %d of %d artifacts", quoteTable(f.manifest.Table), done, of) })
				bar.end()
				if err != nil {
					return err
				}
				out := c.OutOrStdout()
				state := "whole"
				switch {
				case len(rep.Problems) > 0:
					state = plural(len(rep.Problems), "problem", "problems")
					damaged++
				case rep.Manifest.Generation == 0:
					state = "empty: it has no base yet, so nothing can be restored from it"
					empty++
				}
				fmt.Fprintf(out, "%s: %s: %s in %s, %s, through %s\n", quoteTable(f.manifest.Table), state, plural(int(rep.Artifacts), "artifact", "artifacts"), plural(int(rep.Files), "file", "files"), bytesText(rep.Bytes), f.manifest.Through)
				for _, p := range rep.Problems {
					fmt.Fprintf(out, "  %v\n", p)
				}
				if len(rep.Orphans) > 0 {
					fmt.Fprintf(out, "  %d objects are not listed: of attempts that failed, or on their way; prune removes old ones\n", len(rep.Orphans))
				}
			}
			switch n := len(all) + len(unread); {
			case damaged > 0:
				return &exitError{exitFound, fmt.Errorf("%d of %d archives are damaged", damaged, n)}
			case len(unknown) > 0:
				return errors.Join(unknown...)
			case empty > 0:
				return &exitError{exitFound, fmt.Errorf("%d of %d archives are empty: the first base is being written, or that has failed", empty, n)}
			}
			return nil
		},
	}
	w.flags(c.Flags())
	return c
}

// keeper opens archives for writing.
type keeper struct {
	which
	force bool
}

// restful is how long an archive has not been written before it counts as one that
// nobody writes.
const restful = 10 * time.Minute

func (k *keeper) flags(c *cobra.Command) {
	k.which.flags(c.Flags())
	c.Flags().BoolVar(&k.force, "force", false, "though the archive was written a moment ago: its writer is fenced, and goes on when it is started again")
}

// writer takes the archive as its own writer would: one that runs is fenced by it.
func (k *keeper) writer(ctx context.Context, f *found) (*archive.Writer, error) {
	m := f.manifest
	if age := time.Since(m.Written); age < restful && !k.force {
		return nil, fmt.Errorf("the archive of %s was written %s ago by %q, which seems to run, and keeps the archive by itself: set its retention and its rebase, or end it, or use --force",
			m.Table, age.Round(time.Second), m.Writer.ID)
	}
	return archive.OpenWriter(ctx, archive.WriterConfig{Destination: f.dest, Prefix: f.prefix, Table: m.Table, ID: m.Writer.ID, History: m.History, Formats: formatsOf(m)})
}

// formatsOf are the formats of the newest artifact.
func formatsOf(m *archive.Manifest) (out []archive.Format) {
	if len(m.Artifacts) == 0 {
		return nil
	}
	for _, f := range m.Artifacts[len(m.Artifacts)-1].Files {
		out = append(out, f.Format)
	}
	return out
}

func archivePruneCommand() *cobra.Command {
	var k keeper
	var r archive.Retention
	c := &cobra.Command{
		Use:   "prune LOCATION [--keep N] [--older-than DURATION]",
		Short: "Take away old generations of archives, and what failed attempts have left",
		Long: `prune takes away generations: a base with the diffs that follow it. The newest stays,
whatever is asked for, so that there is always a chain that can be restored. Objects
that no manifest lists go too once they are older than --grace. With both --keep and
--older-than, what either of them keeps stays.`,
		Example: `  tributary archive prune s3://backups/prod --keep 3
  tributary archive prune /var/lib/archive --table public.orders --older-than 720h`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if r.Generations < 0 || r.Age < 0 || r.Grace < 0 || r.Generations == 0 && r.Age == 0 {
				return usage("say what stays: --keep with a number of generations, or --older-than with a duration such as 720h")
			}
			all, err := k.every(c.Context(), args[0])
			if err != nil {
				return err
			}
			for _, f := range all {
				w, err := k.writer(c.Context(), f)
				if err != nil {
					return err
				}
				p, err := w.Prune(c.Context(), r)
				if err != nil {
					return err
				}
				fmt.Fprintf(c.OutOrStdout(), "%s: %d generations with %d artifacts are gone: %d objects, %s\n", quoteTable(f.manifest.Table), p.Generations, p.Artifacts, p.Objects, bytesText(p.Bytes))
			}
			return nil
		},
	}
	k.flags(c)
	c.Flags().IntVar(&r.Generations, "keep", 0, "how many generations stay, the newest")
	c.Flags().DurationVar(&r.Age, "older-than", 0, "generations that ended longer ago than this go")
	c.Flags().DurationVar(&r.Grace, "grace", archive.DefaultGrace, "how old an object is that nothing lists before it goes; longer than an upload takes")
	return c
}

func archiveCompactCommand() *cobra.Command {
	var k keeper
	var keep int
	c := &cobra.Command{
		Use:   "compact LOCATION",
		Short: "Write a new base of what archives have, so that readers need no diffs",
		Long: `compact folds an archive to its head and writes that as a base: the beginning of a new
generation, on which diffs go on. Older generations stay for states of before, unless
--keep says how many.`,
		Example: `  tributary archive compact s3://backups/prod --table public.orders
  tributary archive compact /var/lib/archive --keep 1`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			all, err := k.every(c.Context(), args[0])
			if err != nil {
				return err
			}
			for _, f := range all {
				if err := k.compact(c, f, keep); err != nil {
					return err
				}
			}
			return nil
		},
	}
	k.flags(c)
	c.Flags().IntVar(&keep, "keep", 0, "how many generations stay; all when 0")
	return c
}

func (k *keeper) compact(c *cobra.Command, f *found, keep int) error {
	ctx := c.Context()
	w, err := k.writer(ctx, f)
	if err != nil {
		return err
	}
	fold, err := f.reader.Fold(ctx, archive.AsOf{})
	if err != nil {
		return err
	}
	defer fold.Close()
	through, needs := w.Through()
	if needs != "" {
		return fmt.Errorf("the archive of %s cannot be compacted: %s", f.manifest.Table, needs)
	}
	m := w.Manifest()
	base, err := w.Base(ctx, archive.Base{
		At: through, Schemas: fold.Schemas(), Truncates: fold.Truncates(), Continues: true, Reason: "compacted", Rows: fold.Rows,
		Minted: m.Minted, Together: m.Together, // its writer goes on with the log, and brings it together with others
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(c.OutOrStdout(), "%s: generation %d begins with a base of %s, %s, at %s\n", quoteTable(f.manifest.Table), base.Generation, plural(int(base.Rows), "row", "rows"), bytesText(base.Stored()), base.To)
	if keep > 0 {
		p, err := w.Prune(ctx, archive.Retention{Generations: keep})
		if err != nil {
			return err
		}
		fmt.Fprintf(c.OutOrStdout(), "%s: %d generations are gone, %s\n", quoteTable(f.manifest.Table), p.Generations, bytesText(p.Bytes))
	}
	return nil
}

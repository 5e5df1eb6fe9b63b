package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/tributary-dev/tributary/pkg/archive"
)

func archiveLsCommand() *cobra.Command {
	var w which
	var output string
	var long bool
	c := &cobra.Command{
		Use:   "ls LOCATION",
		Short: "List archives, or the artifacts of one",
		Long: `ls lists the archives at a location: of which table, which generation, how many
artifacts and bytes, and up to where it has everything. With --table or --artifacts it lists
the artifacts: bases, and the diffs between.`,
		Example: `  tributary archive ls /var/lib/archive
  tributary archive ls s3://backups/prod --table public.orders
  tributary archive ls s3://backups/prod -o json`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if output != "" && output != "json" {
				return usage("-o %s is not known: leave it out for a table, or use -o json", output)
			}
			all, unread, err := w.look(c.Context(), args[0])
			if err != nil {
				return err
			}
			switch {
			case output == "json":
				err = listJSON(c.OutOrStdout(), all)
			case long || len(w.tables) > 0:
				err = listArtifacts(c.OutOrStdout(), all)
			default:
				err = listArchives(c.OutOrStdout(), all)
			}
			return errors.Join(append(unread, err)...)
		},
	}
	w.flags(c.Flags())
	c.Flags().BoolVar(&long, "artifacts", false, "list the artifacts of each archive")
	c.Flags().StringVarP(&output, "output", "o", "", "json, for programs")
	return c
}

func listArchives(w io.Writer, all []*found) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "TABLE\tGENERATION\tBASES\tDIFFS\tSIZE\tFORMATS\tHISTORY\tTHROUGH\tWRITTEN\tWRITER")
	for _, f := range all {
		m := f.manifest
		bases, diffs, bytes := 0, 0, int64(0)
		var formats []string
		for i := range m.Artifacts {
			a := &m.Artifacts[i]
			if a.Kind == archive.KindBase {
				bases++
			} else {
				diffs++
			}
			for _, file := range a.Files {
				bytes += file.Size
				if !slices.Contains(formats, string(file.Format)) {
					formats = append(formats, string(file.Format))
				}
			}
		}
		fmt.Fprintf(t, "%s\t%d\t%d\t%d\t%s\t%s\t%s\t%s\t%s\t%s\n", quoteTable(m.Table), m.Generation, bases, diffs, bytesText(bytes),
			strings.Join(formats, ","), m.History, m.Through, m.Written.UTC().Format(time.RFC3339), m.Writer.ID)
	}
	return t.Flush()
}

func listArtifacts(w io.Writer, all []*found) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "TABLE\tGENERATION\tKIND\tROWS\tDELETES\tSIZE\tFORMATS\tTO\tTIME\tWRITTEN\tREASON")
	for _, f := range all {
		for i := range f.manifest.Artifacts {
			a := &f.manifest.Artifacts[i]
			var bytes int64
			var formats []string
			for _, file := range a.Files {
				bytes += file.Size
				formats = append(formats, string(file.Format))
			}
			at := ""
			if when := a.To.Time(); when != 0 {
				at = when.Wall().Format(time.RFC3339)
			}
			fmt.Fprintf(t, "%s\t%d\t%s\t%d\t%d\t%s\t%s\t%s\t%s\t%s\t%s\n", quoteTable(f.manifest.Table), a.Generation, a.Kind, a.Rows, a.Tombstones, bytesText(bytes),
				strings.Join(formats, ","), a.To, at, a.Written.UTC().Format(time.RFC3339), a.Reason)
		}
	}
	return t.Flush()
}

// listJSON writes an array of archives.
func listJSON(w io.Writer, all []*found) error {
	type listed struct {
		Location   string             `json:"location"`
		KeyPrefix  string             `json:"keyPrefix"`
		Schema     string             `json:"schema"`
		Table      string             `json:"table"`
		Generation uint64             `json:"generation"`
		History    archive.History    `json:"history"`
		Writer     archive.WriterID   `json:"writer"`
		Through    archive.Vector     `json:"through"`
		Written    time.Time          `json:"written"`
		Artifacts  []archive.Artifact `json:"artifacts"`
	}
	out := []listed{}
	for _, f := range all {
		m := f.manifest
		out = append(out, listed{f.dest.Describe(), f.prefix, m.Table.Schema, m.Table.Name, m.Generation, m.History, m.Writer, m.Through, m.Written, m.Artifacts})
	}
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(out)
}

func bytesText(n int64) string {
	const units = "KMGTP"
	if n < 1024 {
		return fmt.Sprintf("%d B", n)
	}
	f, u := float64(n)/1024, 0
	for f >= 1024 && u < len(units)-1 {
		f, u = f/1024, u+1
	}
	return fmt.Sprintf("%.1f %ciB", f, units[u])
}

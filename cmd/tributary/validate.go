package main

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tributary-dev/tributary/controllers/topology"
)

func validateCommand() *cobra.Command {
	var files []string
	var strict bool
	c := &cobra.Command{
		Use:   "validate -f FILE|DIR...",
		Short: "Check manifests without a cluster: fields, loops, missing references",
		Long: `validate runs the operator's planner on files alone, before anything is applied.

It reads the resources of tributary.dev in YAML or JSON files and directories and
ignores all others. References are looked for among the files; Secrets, which
seldom stand in files, are not checked. Everything found is printed as
FILE:LINE: LEVEL: RESOURCE: REASON: MESSAGE. It ends with 3 if there is an error.`,
		Example: `  tributary validate -f topology/
  kustomize build overlays/eu > out.yaml && tributary validate -f out.yaml`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			m, err := topology.LoadManifests(files)
			if errors.Is(err, fs.ErrNotExist) {
				return err
			}
			plan := topology.Compute(m.Inputs())
			wrong := 0
			if err != nil {
				for _, e := range split(err) {
					fmt.Fprintln(c.OutOrStdout(), e)
					wrong++
				}
			}
			for _, f := range m.Findings(plan) {
				fmt.Fprintln(c.OutOrStdout(), f)
				if strict || !f.Warning {
					wrong++
				}
			}
			found := strings.Join([]string{
				plural(len(m.Nodes), "node", "nodes"), plural(len(m.PostgresSources), "PostgreSQL source", "PostgreSQL sources"),
				plural(len(m.FanoutSources), "fan-out source", "fan-out sources"), plural(len(m.ArchiveSources), "archive source", "archive sources"),
				plural(len(m.Exports), "export", "exports"), plural(len(m.Meshes), "mesh", "meshes"), plural(len(m.Trees), "relay tree", "relay trees"),
			}, ", ")
			switch {
			case wrong > 0:
				return &exitError{exitFound, fmt.Errorf("%s in %s", plural(wrong, "problem", "problems"), found)}
			case len(m.Where) == 0:
				return fmt.Errorf("no resource of tributary.dev was found in %q", files)
			}
			fmt.Fprintln(c.OutOrStdout(), "valid:", found)
			return nil
		},
	}
	c.Flags().StringSliceVarP(&files, "filename", "f", nil, "file or directory; may be repeated")
	c.Flags().BoolVar(&strict, "strict", false, "end with 3 on warnings too")
	_ = c.MarkFlagRequired("filename")
	return c
}

// plural counts things in words.
func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// split takes joined errors apart.
func split(err error) []error {
	var joined interface{ Unwrap() []error }
	if !errors.As(err, &joined) {
		return []error{err}
	}
	var all []error
	for _, e := range joined.Unwrap() {
		all = append(all, split(e)...)
	}
	return all
}

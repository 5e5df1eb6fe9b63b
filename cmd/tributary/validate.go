package main

import (
	"errors"
	"fmt"

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
FILE:LINE: LEVEL: RESOURCE: REASON: MESSAGE. It ends with 1 if there is an error.`,
		Example: `  tributary validate -f topology/
  kustomize build overlays/eu > out.yaml && tributary validate -f out.yaml`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			m, err := topology.LoadManifests(files)
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
			found := fmt.Sprintf("%d nodes, %d PostgreSQL sources, %d fan-out sources", len(m.Nodes), len(m.PostgresSources), len(m.FanoutSources))
			switch {
			case wrong > 0:
				return fmt.Errorf("%d problems in %s", wrong, found)
			case len(m.Nodes)+len(m.PostgresSources)+len(m.FanoutSources) == 0:
				return fmt.Errorf("no resource of tributary.dev was found in %q", files)
			}
			fmt.Fprintln(c.OutOrStdout(), "valid:", found)
			return nil
		},
	}
	c.Flags().StringSliceVarP(&files, "filename", "f", nil, "file or directory; may be repeated")
	c.Flags().BoolVar(&strict, "strict", false, "end with 1 on warnings too")
	_ = c.MarkFlagRequired("filename")
	return c
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

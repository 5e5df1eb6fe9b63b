package main

import (
	"log/slog"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/tributary-dev/tributary/internal/localrun"
)

func runCommand() *cobra.Command {
	o := localrun.Options{}
	c := &cobra.Command{
		Use:   "run -f FILE|DIR...",
		Short: "Run a topology as local processes, without a cluster",
		Long: `run starts every ReplicationNode of the files as a process of its own on this
machine: the same resources, planner and node configuration as in a cluster.
Credentials come from Secrets in the files. The files are
watched: a change of wiring is put in place at once, any other change restarts
the node that it concerns. Interrupt it to drain and stop everything.`,
		Example: `  tributary run -f examples/local
  tributary tree --run /tmp/tributary-run`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			self, err := os.Executable()
			if err != nil {
				return err
			}
			o.Node = []string{self, "node"}
			o.Out = c.OutOrStdout()
			o.Logger = slog.New(slog.NewTextHandler(c.ErrOrStderr(), nil))
			return localrun.Run(c.Context(), o)
		},
	}
	f := c.Flags()
	f.StringSliceVarP(&o.Files, "filename", "f", nil, "file or directory; may be repeated")
	f.StringVar(&o.Dir, "dir", filepath.Join(os.TempDir(), "tributary-run"), "directory for configuration, secrets and state")
	f.IntVar(&o.FirstPort, "first-port", 7400, "first of the ports to listen on; each node takes two, in the order of the names")
	_ = c.MarkFlagRequired("filename")
	return c
}

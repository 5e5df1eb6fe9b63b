// Command tributary is the command line: it draws topologies, checks manifests
// and runs a topology without a cluster. Installed as kubectl-tributary it is
// also "kubectl tributary".
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/tributary-dev/tributary/internal/node"
	"github.com/tributary-dev/tributary/internal/version"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code, err := execute(ctx, command())
	if err != nil && err.Error() != "" {
		fmt.Fprintln(os.Stderr, "Error:", err)
	}
	stop()
	os.Exit(code)
}

func command() *cobra.Command {
	name := "tributary"
	if base := filepath.Base(os.Args[0]); strings.HasPrefix(base, "kubectl-") {
		name = "kubectl tributary"
	}
	root := &cobra.Command{
		Use:   "tributary",
		Short: "Draw, check and run replication topologies",
		Long: `tributary draws, checks and runs replication topologies.

  tributary validate -f DIR   check manifests without a cluster: loops, missing references
  tributary run -f DIR        run them as local processes, without a cluster
  tributary tree              draw the topology that runs in a cluster
  tributary origins           list how far each node is with each origin's log
  tributary write -f FILE     write a batch to a node with an ingest source
  tributary deadletters       list and replay what sinks have put aside
  tributary archive           list, check, print, compare and restore archives of tables

` + exitCodes,
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: name},
		Version:       version.String(),
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.CompletionOptions.HiddenDefaultCmd = true
	root.AddCommand(treeCommand(), originsCommand(), validateCommand(), runCommand(), writeCommand(), deadLettersCommand(), archiveCommand(), nodeCommand())
	return root
}

// nodeCommand is what run starts: the same code as the node's image.
func nodeCommand() *cobra.Command {
	return &cobra.Command{
		Use:                "node",
		Short:              "Run one node from its configuration file",
		Hidden:             true,
		DisableFlagParsing: true,
		Run: func(_ *cobra.Command, args []string) {
			os.Exit(node.Main(args, os.Stderr))
		},
	}
}

package node

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/tributary-dev/tributary/pkg/nodeconfig"
	"github.com/tributary-dev/tributary/pkg/sources/postgres"
)

// dropSlotsMain is the command "drop-slots": it drops replication slots of a node
// that has ended for good.
func dropSlotsMain(ctx context.Context, args []string, stderr io.Writer) int {
	fs := flag.NewFlagSet("node drop-slots", flag.ContinueOnError)
	fs.SetOutput(stderr)
	path := fs.String("config", defaultConfig, "the node's configuration file")
	timeout := fs.Duration("timeout", time.Minute, "how long to try")
	fs.Usage = func() {
		fmt.Fprintln(stderr, "node drop-slots SLOT... drops replication slots of a node that has ended for good.\n\nFlags:")
		fs.PrintDefaults()
		fmt.Fprintln(stderr, "\nExit codes: 0 they are gone; 1 one could not be dropped; 2 the command line or the configuration cannot be used.")
	}
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return exitOK
		}
		return exitUsage
	}
	cfg, err := nodeconfig.Load(*path)
	if err != nil {
		fmt.Fprintf(stderr, "The node's configuration cannot be used:\n%v\n", err)
		return exitUsage
	}
	ctx, cancel := context.WithTimeout(ctx, *timeout)
	defer cancel()
	if err := dropSlots(ctx, cfg, fs.Args()); err != nil {
		fmt.Fprintln(stderr, err)
		return exitFailed
	}
	return exitOK
}

// dropSlots drops the slots of these names; all are tried.
func dropSlots(ctx context.Context, cfg *nodeconfig.Config, slots []string) error {
	var errs []error
	for _, slot := range slots {
		i := slices.IndexFunc(cfg.Sources, func(s nodeconfig.Source) bool { return s.Postgres != nil && s.Postgres.Slot == slot })
		if i < 0 {
			errs = append(errs, fmt.Errorf("slot %s: no source of the configuration reads by it", slot))
			continue
		}
		if err := postgres.DropSlot(ctx, postgresConfig(cfg.Sources[i].Postgres, true)); err != nil {
			errs = append(errs, fmt.Errorf("slot %s: %w", slot, err))
		}
	}
	return errors.Join(errs...)
}

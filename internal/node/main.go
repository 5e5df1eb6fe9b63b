// Package node puts a node together from its configuration: store, engine,
// sources, fan-out server, read API, metrics and status. It is what cmd/node
// and "tributary run" start.
package node

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/tributary-dev/tributary/internal/version"
	"github.com/tributary-dev/tributary/pkg/nodeconfig"
)

// Exit codes of Main.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
	exitFound  = 3
)

const defaultConfig = "/etc/tributary/static/node.yaml"

// Main is the node's command line. It returns the process's exit code.
func Main(args []string, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if len(args) > 0 && args[0] == "drop-slots" {
		return dropSlotsMain(ctx, args[1:], stderr)
	}
	fs := flag.NewFlagSet("node", flag.ContinueOnError)
	fs.SetOutput(stderr)
	path := fs.String("config", defaultConfig, "the node's configuration file")
	check := fs.Bool("check", false, "check the configuration and its wiring, and end")
	once := fs.Bool("archive-once", false, "write the archives once and end: with 0 if they are whole")
	result := fs.String("result", "", "with --archive-once, a file to leave what has come of it in")
	format := fs.String("log-format", "json", "json or text")
	level := slog.LevelInfo
	fs.TextVar(&level, "log-level", slog.LevelInfo, "debug, info, warn or error")
	showVersion := fs.Bool("version", false, "print the version and end")
	fs.Usage = func() {
		fmt.Fprintln(stderr, "node runs one node of a Tributary topology; node drop-slots drops slots of one that has ended.\n\nFlags:")
		fs.PrintDefaults()
		fmt.Fprintln(stderr, "\nExit codes: 0 it ended as it was told to; 1 it failed; 2 the command line or the configuration cannot be used; 3 --check has found faults.")
	}
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return exitOK
		}
		return exitUsage
	}
	if *showVersion {
		fmt.Fprintln(stderr, version.String())
		return exitOK
	}
	if fs.NArg() > 0 {
		fmt.Fprintf(stderr, "node takes no arguments, and was given %q; name the configuration by --config\n", fs.Args())
		return exitUsage
	}
	var h slog.Handler
	switch *format {
	case "json":
		h = slog.NewJSONHandler(stderr, &slog.HandlerOptions{Level: level})
	case "text":
		h = slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: level})
	default:
		fmt.Fprintf(stderr, "--log-format must be json or text, not %q\n", *format)
		return exitUsage
	}
	cfg, err := nodeconfig.Load(*path)
	if err == nil {
		err = checkTables(cfg)
	}
	if err == nil && cfg.WiringFile != "" {
		var w *nodeconfig.Wiring
		if w, err = nodeconfig.LoadWiring(cfg.WiringFile); err == nil {
			err = cfg.CheckWiring(cfg.WiringFile, w)
		} else if errors.Is(err, os.ErrNotExist) && !*check {
			err = nil // a mount can lag behind: the node waits for it
		}
	}
	if err == nil && *check {
		err = cfg.CheckFiles()
	}
	if err != nil {
		fmt.Fprintf(stderr, "The node's configuration cannot be used:\n%v\n", err)
		if *check && !errors.Is(err, os.ErrNotExist) {
			return exitFound
		}
		return exitUsage
	}
	if *check {
		return exitOK
	}
	boundGarbage()
	log := slog.New(h).With("node", cfg.Node.ID)
	if err := Run(ctx, Options{Config: cfg, ConfigFile: *path, Logger: log, ArchiveOnce: *once, ResultFile: *result}); err != nil {
		log.Error("node ended", "error", err)
		return exitFailed
	}
	return exitOK
}

// Command manager is the operator: it makes the cluster's replication topology
// what the custom resources say.
package main

import (
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/go-logr/logr"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/tributary-dev/tributary/api/v1alpha1"
	"github.com/tributary-dev/tributary/controllers"
	"github.com/tributary-dev/tributary/controllers/workload"
	"github.com/tributary-dev/tributary/internal/version"
)

const about = `The manager of Tributary: it makes a cluster's replication topology what the
resources of tributary.dev say: nodes, sources, meshes, relay trees and
exports to archives.

usage: manager --node-image IMAGE [flags]

Exit codes: 0 it ended as it was told to; 1 it failed; 2 the command line is wrong.

`

// errUsage says that the command line is wrong.
var errUsage = errors.New("see --help")

type options struct {
	nodeImage      string
	leaderElect    bool
	metrics        string
	probes         string
	namespaces     string
	ownNamespace   string
	statusInterval time.Duration
	logLevel       string
	logFormat      string
	version        bool
}

func main() {
	err := run(os.Args[1:])
	code := exitCode(err)
	if code != 0 {
		fmt.Fprintln(os.Stderr, "manager:", err)
	}
	os.Exit(code)
}

func exitCode(err error) int {
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
		return 0
	case errors.Is(err, errUsage):
		return 2
	}
	return 1
}

func parse(args []string) (o options, err error) {
	f := flag.NewFlagSet("manager", flag.ContinueOnError)
	f.Usage = func() {
		fmt.Fprint(f.Output(), about)
		f.PrintDefaults()
	}
	f.StringVar(&o.nodeImage, "node-image", "", "image of nodes that name none of their own (required)")
	f.BoolVar(&o.leaderElect, "leader-elect", false, "let one of several managers work at a time")
	f.StringVar(&o.metrics, "metrics-bind-address", ":8081", "address of the metrics; 0 for none")
	f.StringVar(&o.probes, "health-probe-bind-address", ":8082", "address of /healthz and /readyz; 0 for none")
	f.StringVar(&o.namespaces, "namespace", "", "namespaces to work in, separated by commas; all when empty")
	f.StringVar(&o.ownNamespace, "own-namespace", os.Getenv("POD_NAMESPACE"), "namespace that the manager runs in; nodes let it ask for their status")
	f.DurationVar(&o.statusInterval, "status-interval", 5*time.Second, "how often nodes are asked for their status")
	f.StringVar(&o.logLevel, "log-level", "info", "debug, info, warn or error")
	f.StringVar(&o.logFormat, "log-format", "json", "json or text")
	f.BoolVar(&o.version, "version", false, "print the version and end")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	switch {
	case o.version:
	case f.NArg() > 0:
		return o, fmt.Errorf("unexpected argument %q: all settings are flags", f.Arg(0))
	case o.nodeImage == "":
		return o, errors.New("--node-image is missing: name the image that runs the nodes")
	case o.statusInterval < time.Second:
		return o, fmt.Errorf("--status-interval is %s: use at least 1s", o.statusInterval)
	}
	return o, nil
}

func logger(level, format string) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, fmt.Errorf("--log-level is %q: use debug, info, warn or error", level)
	}
	h := &slog.HandlerOptions{Level: l}
	switch format {
	case "json":
		return slog.New(slog.NewJSONHandler(os.Stderr, h)), nil
	case "text":
		return slog.New(slog.NewTextHandler(os.Stderr, h)), nil
	}
	return nil, fmt.Errorf("--log-format is %q: use json or text", format)
}

func run(args []string) error {
	o, err := parse(args)
	if err != nil {
		return fmt.Errorf("%w: %w", err, errUsage)
	}
	if o.version {
		fmt.Println(version.String())
		return nil
	}
	log, err := logger(o.logLevel, o.logFormat)
	if err != nil {
		return fmt.Errorf("%w: %w", err, errUsage)
	}
	slog.SetDefault(log)
	ctrl.SetLogger(logr.FromSlogHandler(log.Handler()))
	klog.SetSlogLogger(log)

	scheme := k8sruntime.NewScheme()
	utilruntime.Must(clientgoscheme.AddToScheme(scheme))
	utilruntime.Must(v1alpha1.AddToScheme(scheme))

	cfg, err := ctrl.GetConfig()
	if err != nil {
		return fmt.Errorf("cannot find the cluster: %w: run in a pod, or set KUBECONFIG", err)
	}
	ctx := ctrl.SetupSignalHandler()
	if err := controllers.CheckServed(ctx, cfg); err != nil {
		return fmt.Errorf("version %s does not start: %w", version.String(), err)
	}
	mgr, err := ctrl.NewManager(cfg, ctrl.Options{
		Scheme:                        scheme,
		Cache:                         controllers.CacheOptions(namespaces(o.namespaces)...),
		Metrics:                       metricsserver.Options{BindAddress: o.metrics},
		HealthProbeBindAddress:        o.probes,
		LeaderElection:                o.leaderElect,
		LeaderElectionID:              "manager.tributary.dev",
		LeaderElectionNamespace:       o.ownNamespace,
		LeaderElectionReleaseOnCancel: true,
	})
	if err != nil {
		return fmt.Errorf("cannot start the manager: %w", err)
	}
	err = controllers.Setup(mgr, controllers.Options{
		Options:        workload.Options{NodeImage: o.nodeImage, ManagerNamespace: o.ownNamespace},
		StatusInterval: o.statusInterval,
	})
	if err != nil {
		return err
	}
	if err := mgr.AddHealthzCheck("ping", healthz.Ping); err != nil {
		return err
	}
	if err := mgr.AddReadyzCheck("ping", healthz.Ping); err != nil {
		return err
	}
	log.Info("manager starts", "version", version.String(), "nodeImage", o.nodeImage, "namespaces", o.namespaces)
	return mgr.Start(ctx)
}

func namespaces(list string) (out []string) {
	for _, ns := range strings.Split(list, ",") {
		if ns = strings.TrimSpace(ns); ns != "" {
			out = append(out, ns)
		}
	}
	return out
}

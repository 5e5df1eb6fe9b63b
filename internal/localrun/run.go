// Package localrun runs a topology as processes of this machine: the resources,
// the planner and the node configuration are those of a cluster; in place of
// the API server are files, in place of kubelets a supervisor.
package localrun

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tributary-dev/tributary/api/v1alpha1"
	"github.com/tributary-dev/tributary/controllers/topology"
	"github.com/tributary-dev/tributary/controllers/workload"
	"github.com/tributary-dev/tributary/pkg/nodeconfig"
)

// Options configure Run.
type Options struct {
	Files     []string     // manifests, files or directories
	Dir       string       // for configuration, secrets and state
	FirstPort int          // of those to listen on
	Node      []string     // command that runs a node; --config is added
	Out       io.Writer    // for a person: what runs where, and the nodes' logs
	Logger    *slog.Logger // for the run itself
}

// filesPoll is how often the manifests are looked at.
const filesPoll = time.Second

// maxDrain bounds how long a run takes to end: there is nowhere to move to.
const maxDrain = 2 * time.Second

// Run runs the topology until ctx ends, then drains and stops every node.
func Run(ctx context.Context, o Options) error {
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return err
	}
	r := &runner{o: o, out: &lineWriter{w: o.Out}, running: map[topology.Key]*running{}, wirings: map[topology.Key]topology.Wiring{}, ports: map[topology.Key]int{}}
	defer r.stop()
	var last [sha256.Size]byte
	var complained string
	for first := true; ; first = false {
		sum, err := digestFiles(o.Files)
		if changed := sum != last; err == nil && (changed || r.moving()) {
			if err = r.reconcile(ctx); err == nil && changed {
				last, complained = sum, ""
				fmt.Fprintf(r.out, "The topology runs; draw it by: tributary tree --run %s\n", o.Dir)
			}
		}
		if err != nil {
			if first {
				return err
			}
			if complained != err.Error() {
				complained = err.Error()
				o.Logger.Warn("the files cannot be used as they are; what runs goes on", "error", err)
			}
		}
		r.writeState()
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(filesPoll):
		}
	}
}

type runner struct {
	o       Options
	out     io.Writer
	running map[topology.Key]*running
	wirings map[topology.Key]topology.Wiring
	plan    topology.Plan
	said    string // what the plan found
	nodes   map[topology.Key]*v1alpha1.ReplicationNode
	ports   map[topology.Key]int // first of a node's two; kept while the run lasts
}

type running struct {
	proc   *process
	static []byte // node.yaml
}

// reconcile makes what runs be what the files say.
func (r *runner) reconcile(ctx context.Context) error {
	m, err := topology.LoadManifests(r.o.Files)
	if err != nil {
		return err
	}
	nodes := r.withDraining(m)
	if len(nodes) == 0 {
		return fmt.Errorf("no ReplicationNode was found in %q", r.o.Files)
	}
	secrets, err := loadSecrets(r.o.Files)
	if err != nil {
		return err
	}
	if err := secrets.write(r.secretDir); err != nil {
		return err
	}
	r.assignPorts(nodes)
	in := m.Inputs()
	in.Nodes = nodes
	in.Secrets = secrets.keys()
	in.Relays = r.reports(ctx)
	in.Last = r.wirings
	in.Address = func(n *v1alpha1.ReplicationNode) string { return r.replication(keyOf(n)) }
	plan := topology.Compute(in)
	r.plan = plan
	if said := fmt.Sprint(m.Findings(plan)); said != r.said {
		r.said = said
		for _, f := range m.Findings(plan) {
			fmt.Fprintln(r.out, f)
		}
	}
	for _, t := range plan.Trees {
		for _, k := range t.Remove {
			delete(plan.Nodes, k)
			delete(r.nodes, k)
		}
	}
	var errs []error
	keep := map[topology.Key]bool{}
	for _, k := range slices.SortedFunc(maps.Keys(plan.Nodes), compareKeys) {
		n := plan.Nodes[k]
		keep[k] = true
		if n.Action == topology.Hold {
			continue
		}
		r.wirings[k] = n.Wiring
		if err := r.place(ctx, n); err != nil {
			errs = append(errs, fmt.Errorf("node %s: %w", k, err))
		}
	}
	for k, run := range r.running {
		if !keep[k] {
			fmt.Fprintf(r.out, "%s is no longer asked for: stopping it\n", k)
			run.proc.Stop()
			delete(r.running, k)
		}
	}
	return errors.Join(errs...)
}

// place writes a node's files, and starts it where it does not run, or anew
// where its static configuration has changed.
func (r *runner) place(ctx context.Context, n *topology.Node) error {
	dir := filepath.Join(r.o.Dir, n.Key.Namespace+"_"+n.Key.Name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	wiringFile := filepath.Join(dir, "wiring.yaml")
	wiring, err := n.Wiring.Config().Marshal()
	if err != nil {
		return err
	}
	if err := writeFile(wiringFile, wiring, 0o644); err != nil {
		return err
	}
	have := r.running[n.Key]
	if n.Action == topology.Rewire && have != nil {
		return nil
	}
	cfg := r.nodeConfig(n, wiringFile)
	static, err := cfg.Marshal()
	if err != nil {
		return err
	}
	if have != nil && bytes.Equal(have.static, static) {
		return nil
	}
	path := filepath.Join(dir, "node.yaml")
	if err := writeFile(path, static, 0o644); err != nil {
		return err
	}
	if have != nil {
		fmt.Fprintf(r.out, "%s has another configuration: starting it again\n", n.Key)
		have.proc.Stop()
	}
	argv := append(slices.Clone(r.o.Node), "--config", path, "--log-format", "text")
	fmt.Fprintf(r.out, "%-24s http://%s  replication %s\n", n.Key, r.http(n.Key), r.replication(n.Key))
	r.running[n.Key] = &running{
		proc:   startProcess(context.WithoutCancel(ctx), n.Key.String(), argv, cfg.DrainTimeout+5*time.Second, r.out, r.o.Logger),
		static: static,
	}
	return nil
}

// nodeConfig is the node's configuration in a cluster, with this machine's
// addresses and paths.
func (r *runner) nodeConfig(n *topology.Node, wiringFile string) *nodeconfig.Config {
	cfg := workload.Config(r.nodes[n.Key], n, workload.Layout{
		WiringFile: wiringFile,
		SecretDir: func(secret string) string {
			return r.secretDir(topology.Key{Namespace: n.Key.Namespace, Name: secret})
		},
		VolumeDir: func(volume string) string {
			return filepath.Join(r.o.Dir, "volumes", n.Key.Namespace, filepath.FromSlash(volume))
		},
		StoreDir: filepath.Join(filepath.Dir(wiringFile), "store"),
		Listen:   nodeconfig.Listen{Replication: r.replication(n.Key), HTTP: r.http(n.Key)},
	})
	cfg.DrainTimeout = min(cfg.DrainTimeout, maxDrain)
	return cfg
}

func (r *runner) secretDir(secret topology.Key) string {
	return filepath.Join(r.o.Dir, "secrets", secret.Namespace, secret.Name)
}

// assignPorts gives each new node two ports that stay its own.
func (r *runner) assignPorts(nodes []v1alpha1.ReplicationNode) {
	keys := make([]topology.Key, len(nodes))
	for i := range nodes {
		keys[i] = keyOf(&nodes[i])
	}
	slices.SortFunc(keys, compareKeys)
	r.nodes = map[topology.Key]*v1alpha1.ReplicationNode{}
	for i := range nodes {
		r.nodes[keyOf(&nodes[i])] = &nodes[i]
	}
	for _, k := range keys {
		if _, ok := r.ports[k]; !ok {
			r.ports[k] = r.o.FirstPort + 2*len(r.ports)
		}
	}
}

func (r *runner) replication(k topology.Key) string { return local(r.ports[k]) }
func (r *runner) http(k topology.Key) string        { return local(r.ports[k] + 1) }

func local(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

func (r *runner) writeState() {
	st := State{Nodes: []NodeState{}}
	for _, k := range slices.SortedFunc(maps.Keys(r.running), compareKeys) {
		n := NodeState{ID: k.String(), HTTP: "http://" + r.http(k), Replication: r.replication(k), PID: r.running[k].proc.PID()}
		if p := r.plan.Nodes[k]; p != nil {
			n.Branch = p.Branch
			if p.Mesh != (topology.Key{}) {
				n.Mesh = p.Mesh.String()
			}
			if p.Tree != (topology.Key{}) {
				n.RelayTree = p.Tree.String()
			}
		}
		st.Nodes = append(st.Nodes, n)
	}
	if err := st.write(r.o.Dir); err != nil {
		r.o.Logger.Warn("cannot write the state of the run", "error", err)
	}
}

// stop drains every node, all at once, and takes away what a run leaves.
func (r *runner) stop() {
	done := make(chan struct{})
	for _, run := range r.running {
		go func() { run.proc.Stop(); done <- struct{}{} }()
	}
	for range r.running {
		<-done
	}
	_ = os.Remove(filepath.Join(r.o.Dir, stateFile))
	_ = os.RemoveAll(filepath.Join(r.o.Dir, "secrets"))
}

func keyOf(n *v1alpha1.ReplicationNode) topology.Key {
	return topology.Key{Namespace: n.Namespace, Name: n.Name}
}

func compareKeys(a, b topology.Key) int { return strings.Compare(a.String(), b.String()) }

func digestFiles(paths []string) (sum [sha256.Size]byte, err error) {
	h := sha256.New()
	for _, p := range paths {
		err := filepath.WalkDir(p, func(file string, d os.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			text, err := os.ReadFile(file)
			fmt.Fprintf(h, "%s %d\n%s", file, len(text), text)
			return err
		})
		if err != nil {
			return sum, err
		}
	}
	return [sha256.Size]byte(h.Sum(nil)), nil
}

// Package testnode runs nodes as processes of their own, for tests and
// benchmarks that kill, stop and measure them.
package testnode

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/tributary-dev/tributary/internal/testport"
	"github.com/tributary-dev/tributary/pkg/nodeconfig"
)

// Build builds the node's binary into a folder. It is to run within the module.
func Build(ctx context.Context, dir string) (binary string, err error) {
	binary = filepath.Join(dir, "node")
	cmd := exec.CommandContext(ctx, "go", "build", "-o", binary, "github.com/tributary-dev/tributary/cmd/node")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building the node: %w\n%s", err, out)
	}
	return binary, nil
}

// Options say how a node is run. Dir holds its files and its log.
type Options struct {
	Binary  string
	Dir     string
	ID      string
	Storage nodeconfig.Storage
	Source  nodeconfig.Source
	// Parents of a fan-out source, in order of preference. Address, where it is
	// set, leads to the first of them by another way, such as a proxy.
	Parents []*Node
	Address string
	// Env is added to the environment, such as GOMEMLIMIT=256MiB.
	Env []string
	// Configure, if not nil, alters the configuration before the node starts.
	Configure func(*nodeconfig.Config)
	// Wiring, if not nil, alters the wiring before the node starts.
	Wiring func(*nodeconfig.Wiring)
}

// Node is a node's process.
type Node struct {
	ID   string
	Repl string // address of its replication server
	HTTP string // address of its web server
	o    Options
	file string
	cmd  *exec.Cmd
	done chan struct{} // closed when cmd has ended
}

// Start runs a node. It has not connected to anything yet: see WaitReady.
func Start(ctx context.Context, o Options) (*Node, error) {
	n := &Node{ID: o.ID, o: o, file: filepath.Join(o.Dir, "node.yaml")}
	if err := os.MkdirAll(o.Dir, 0o755); err != nil {
		return nil, err
	}
	var err error
	if n.HTTP, err = testport.TakeAddress(); err != nil {
		return nil, err
	}
	if n.Repl, err = testport.TakeAddress(); err != nil {
		return nil, err
	}
	cfg := nodeconfig.Config{
		Version: nodeconfig.Version, Node: nodeconfig.Node{ID: o.ID},
		Listen:  nodeconfig.Listen{Replication: n.Repl, HTTP: n.HTTP},
		Storage: o.Storage, Sources: []nodeconfig.Source{o.Source}, DrainTimeout: time.Second,
	}
	cfg.WiringFile = filepath.Join(o.Dir, "wiring.yaml")
	if o.Configure != nil {
		o.Configure(&cfg)
	}
	cfg.SetDefaults()
	w := nodeconfig.Wiring{Version: nodeconfig.Version, Epoch: 1}
	for i := range cfg.Sources {
		if cfg.Sources[i].Wired() {
			w.Sources = append(w.Sources, nodeconfig.WiredSource{Name: cfg.Sources[i].Name})
		}
	}
	if cfg.Parents != nil {
		w.Parents = &nodeconfig.WiredParents{}
	}
	if o.Wiring != nil {
		o.Wiring(&w)
	}
	if len(w.Sources) == 0 && w.Parents == nil {
		cfg.WiringFile = ""
	} else if err := n.wire(w, o.Address, o.Parents); err != nil {
		return nil, err
	}
	text, err := cfg.Marshal()
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(n.file, text, 0o644); err != nil {
		return nil, err
	}
	return n, n.Run(ctx)
}

// Rewire alters the node's wiring. The process takes it up within a second.
func (n *Node) Rewire(alter func(*nodeconfig.Wiring)) error {
	text, err := os.ReadFile(filepath.Join(n.o.Dir, "wiring.yaml"))
	if err != nil {
		return err
	}
	w, err := nodeconfig.ParseWiring("wiring.yaml", text)
	if err != nil {
		return err
	}
	w.Epoch++
	alter(w)
	return n.write(w)
}

// Wire replaces the nodes that the node's one wired source reads from. The process
// takes it up within a second.
func (n *Node) Wire(nodes ...*Node) error {
	text, err := os.ReadFile(filepath.Join(n.o.Dir, "wiring.yaml"))
	if err != nil {
		return err
	}
	w, err := nodeconfig.ParseWiring("wiring.yaml", text)
	if err != nil {
		return err
	}
	w.Epoch++
	return n.wire(*w, "", nodes)
}

// wire writes the wiring. address, if not empty, leads to the first of the nodes.
func (n *Node) wire(w nodeconfig.Wiring, address string, nodes []*Node) error {
	if len(w.Sources) > 0 {
		w.Sources[0].Candidates = nil
	}
	for i, p := range nodes {
		c := nodeconfig.Candidate{ID: p.ID, Address: p.Repl, Eligible: true}
		if i == 0 && address != "" {
			c.Address = address
		}
		w.Sources[0].Candidates = append(w.Sources[0].Candidates, c)
	}
	return n.write(&w)
}

func (n *Node) write(w *nodeconfig.Wiring) error {
	w.SetDefaults()
	text, err := w.Marshal()
	if err != nil {
		return err
	}
	file := filepath.Join(n.o.Dir, "wiring.yaml")
	if err := os.WriteFile(file+".new", text, 0o644); err != nil {
		return err
	}
	return os.Rename(file+".new", file)
}

// Run starts the process again after Stop or Kill, at the same addresses.
func (n *Node) Run(ctx context.Context) error {
	log, err := os.OpenFile(n.Log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	n.cmd = exec.CommandContext(ctx, n.o.Binary, "--config", n.file, "--log-format", "text")
	n.cmd.Stdout, n.cmd.Stderr = log, log
	n.cmd.Env = append(os.Environ(), n.o.Env...)
	n.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := n.cmd.Start(); err != nil {
		return err
	}
	n.done = make(chan struct{})
	cmd, done := n.cmd, n.done
	go func() { // ends with the process, which Kill and Stop wait for
		defer close(done)
		_ = cmd.Wait()
	}()
	return nil
}

// Log returns the path of the node's log.
func (n *Node) Log() string { return filepath.Join(n.o.Dir, "log") }

// PID returns the number of the process.
func (n *Node) PID() int { return n.cmd.Process.Pid }

// Signal sends a signal, such as SIGSTOP and SIGCONT.
func (n *Node) Signal(s syscall.Signal) error { return n.cmd.Process.Signal(s) }

// Kill ends the process at once, as a crash would, and waits for it.
func (n *Node) Kill() {
	_ = n.cmd.Process.Kill()
	<-n.done
}

// Stop ends the process in an orderly way, and waits for it.
func (n *Node) Stop() {
	_ = n.Signal(syscall.SIGCONT)
	_ = n.Signal(syscall.SIGTERM)
	select {
	case <-n.done:
	case <-time.After(15 * time.Second):
		n.Kill()
	}
}

// Ended reports whether the process has ended by itself.
func (n *Node) Ended() bool {
	select {
	case <-n.done:
		return true
	default:
		return false
	}
}

// WaitReady waits until the node says that it is ready.
func (n *Node) WaitReady(ctx context.Context, limit time.Duration) error {
	return Until(ctx, limit, "node "+n.ID+" to be ready", func() (bool, error) {
		if n.Ended() {
			return false, fmt.Errorf("node %s ended: see %s", n.ID, n.Log())
		}
		res, err := http.Get("http://" + n.HTTP + "/readyz")
		if err != nil {
			return false, nil
		}
		defer res.Body.Close()
		return res.StatusCode == http.StatusOK, nil
	})
}

// Status returns what the node says of itself.
func (n *Node) Status() (st nodeconfig.Statusz, err error) {
	resp, err := http.Get("http://" + n.HTTP + "/statusz")
	if err != nil {
		return st, err
	}
	defer resp.Body.Close()
	return st, json.NewDecoder(resp.Body).Decode(&st)
}

// Metric returns the sum of a metric's series.
func (n *Node) Metric(name string) (float64, error) {
	res, err := http.Get("http://" + n.HTTP + "/metrics")
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		return 0, err
	}
	sum, found := 0.0, false
	for line := range strings.Lines(string(text)) {
		rest, ok := strings.CutPrefix(line, name)
		if !ok || (rest[0] != ' ' && rest[0] != '{') {
			continue
		}
		v, err := strconv.ParseFloat(strings.TrimSpace(rest[strings.LastIndexByte(rest, ' '):]), 64)
		if err != nil {
			return 0, err
		}
		sum, found = sum+v, true
	}
	if !found {
		return 0, fmt.Errorf("node %s has no metric %s", n.ID, name)
	}
	return sum, nil
}

// Until calls ok until it is true.
func Until(ctx context.Context, limit time.Duration, what string, ok func() (bool, error)) error {
	deadline := time.Now().Add(limit)
	for {
		done, err := ok()
		if done || err != nil {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("waited %s for %s", limit, what)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(5 * time.Millisecond):
		}
	}
}

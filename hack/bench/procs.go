package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/tributary-dev/tributary/internal/testpg"
	"github.com/tributary-dev/tributary/pkg/nodeconfig"
)

// clockTick is USER_HZ, the unit of the CPU times in /proc (proc(5)); it is 100
// on every Linux that Go runs on.
const clockTick = 100

// cpuSeconds returns the user and system time of a process.
func cpuSeconds(pid int) (float64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if len(f) < 13 {
		return 0, fmt.Errorf("/proc/%d/stat is not as proc(5) says", pid)
	}
	u, err1 := strconv.Atoi(f[11])
	s, err2 := strconv.Atoi(f[12])
	return float64(u+s) / clockTick, errors.Join(err1, err2)
}

// residentBytes returns the resident set of a process.
func residentBytes(pid int) (int64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0, err
	}
	f := strings.Fields(string(b))
	pages, err := strconv.ParseInt(f[1], 10, 64)
	return pages * int64(os.Getpagesize()), err
}

// nodeProcess is a running node.
type nodeProcess struct {
	cmd  *exec.Cmd
	id   string
	http string
	repl string
}

// startNode runs the node binary with a configuration and waits until it is
// ready.
func (b *bench) startNode(ctx context.Context, id string, src nodeconfig.Source, parents ...*nodeProcess) (*nodeProcess, error) {
	return b.startNodeWith(ctx, id, nodeconfig.Storage{}, src, parents...)
}

// startNodeWith is startNode with the storage given.
func (b *bench) startNodeWith(ctx context.Context, id string, st nodeconfig.Storage, src nodeconfig.Source, parents ...*nodeProcess) (*nodeProcess, error) {
	dir := filepath.Join(b.dir, id)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	n := &nodeProcess{id: "bench/" + id}
	var err error
	if n.http, err = freeAddress(); err != nil {
		return nil, err
	}
	if n.repl, err = freeAddress(); err != nil {
		return nil, err
	}
	cfg := nodeconfig.Config{
		Version: nodeconfig.Version, Node: nodeconfig.Node{ID: n.id},
		Listen:  nodeconfig.Listen{Replication: n.repl, HTTP: n.http},
		Storage: st, Sources: []nodeconfig.Source{src}, DrainTimeout: time.Second,
	}
	cfg.Storage.Journal.MaxBytes = 1 << 30
	cfg.SetDefaults()
	if src.Fanout != nil {
		w := nodeconfig.Wiring{Version: nodeconfig.Version, Epoch: 1, Sources: []nodeconfig.WiredSource{{Name: src.Name}}}
		for _, p := range parents {
			w.Sources[0].Candidates = append(w.Sources[0].Candidates, nodeconfig.Candidate{ID: p.id, Address: p.repl, Eligible: true})
		}
		w.SetDefaults()
		cfg.WiringFile = filepath.Join(dir, "wiring.yaml")
		text, err := w.Marshal()
		if err != nil {
			return nil, err
		}
		if err := os.WriteFile(cfg.WiringFile, text, 0o644); err != nil {
			return nil, err
		}
	}
	text, err := cfg.Marshal()
	if err != nil {
		return nil, err
	}
	path := filepath.Join(dir, "node.yaml")
	if err := os.WriteFile(path, text, 0o644); err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	n.cmd = exec.CommandContext(ctx, b.node, "--config", path, "--log-format", "text")
	n.cmd.Stdout, n.cmd.Stderr = log, log
	n.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := n.cmd.Start(); err != nil {
		return nil, err
	}
	return n, n.waitReady(ctx)
}

func (n *nodeProcess) pid() int { return n.cmd.Process.Pid }

func (n *nodeProcess) signal(s syscall.Signal) error { return n.cmd.Process.Signal(s) }

func (n *nodeProcess) stop() {
	_ = n.signal(syscall.SIGCONT)
	_ = n.cmd.Process.Kill()
	_ = n.cmd.Wait()
}

func (n *nodeProcess) waitReady(ctx context.Context) error {
	return until(ctx, 2*time.Minute, "node "+n.id+" to be ready", func() (bool, error) {
		res, err := http.Get("http://" + n.http + "/readyz")
		if err != nil {
			return false, nil
		}
		defer res.Body.Close()
		return res.StatusCode == http.StatusOK, nil
	})
}

// metric returns the sum of a metric's series.
func (n *nodeProcess) metric(name string) (float64, error) {
	res, err := http.Get("http://" + n.http + "/metrics")
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
		return 0, fmt.Errorf("node %s has no metric %s", n.id, name)
	}
	return sum, nil
}

// until polls ok every 5 ms.
func until(ctx context.Context, limit time.Duration, what string, ok func() (bool, error)) error {
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

func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}

// walsender watches the CPU time of the walsender of a database until stopped:
// the process is gone by the time its work is done.
type walsender struct {
	stop chan struct{}
	done chan struct{}
	cpu  float64
}

// watchWalsender finds the walsender and starts watching; the time it has used
// so far does not count.
func watchWalsender(ctx context.Context, db *testpg.DB) (*walsender, error) {
	var pid int
	err := until(ctx, 30*time.Second, "a walsender", func() (bool, error) {
		rows, err := db.QueryContext(ctx, "SELECT active_pid FROM pg_replication_slots WHERE database = current_database() AND active_pid IS NOT NULL")
		if err != nil || len(rows) == 0 {
			return false, err
		}
		pid, err = strconv.Atoi(*rows[0][0])
		return true, err
	})
	if err != nil {
		return nil, err
	}
	start, err := cpuSeconds(pid)
	if err != nil {
		return nil, err
	}
	w := &walsender{stop: make(chan struct{}), done: make(chan struct{})}
	go func() {
		defer close(w.done)
		for {
			if c, err := cpuSeconds(pid); err == nil {
				w.cpu = c - start
			} else {
				return
			}
			select {
			case <-w.stop:
				if c, err := cpuSeconds(pid); err == nil {
					w.cpu = c - start
				}
				return
			case <-time.After(10 * time.Millisecond):
			}
		}
	}()
	return w, nil
}

func (w *walsender) seconds() float64 {
	close(w.stop)
	<-w.done
	return w.cpu
}

package localrun

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// process keeps one node running: it is started again when it ends, as a
// kubelet would, until Stop.
type process struct {
	id     string
	argv   []string
	out    io.Writer // takes its log, a line at a time
	log    *slog.Logger
	grace  time.Duration // between SIGTERM and SIGKILL
	cancel context.CancelFunc
	done   chan struct{}

	mu  sync.Mutex
	pid int // 0 while it does not run
}

func startProcess(ctx context.Context, id string, argv []string, grace time.Duration, out io.Writer, log *slog.Logger) *process {
	ctx, cancel := context.WithCancel(ctx)
	p := &process{id: id, argv: argv, out: out, log: log, grace: grace, cancel: cancel, done: make(chan struct{})}
	go p.keep(ctx)
	return p
}

// Stop drains the node (SIGTERM), ends it and waits.
func (p *process) Stop() {
	p.cancel()
	<-p.done
}

// PID returns the process id, or 0 while the node does not run.
func (p *process) PID() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pid
}

func (p *process) setPID(pid int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pid = pid
}

func (p *process) keep(ctx context.Context) {
	defer close(p.done)
	delay := 200 * time.Millisecond
	for {
		started := time.Now()
		err := p.once(ctx)
		if ctx.Err() != nil {
			return
		}
		if time.Since(started) > 10*time.Second {
			delay = 200 * time.Millisecond
		}
		p.log.Warn("node ended, starting it again", "node", p.id, "error", err, "in", delay)
		select {
		case <-ctx.Done():
			return
		case <-time.After(delay):
		}
		delay = min(delay*2, 10*time.Second)
	}
}

func (p *process) once(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, p.argv[0], p.argv[1:]...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = p.grace
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	cmd.Stdout, cmd.Stderr = w, w
	if err := cmd.Start(); err != nil {
		_ = w.Close()
		return fmt.Errorf("cannot start node %s: %w", p.id, err)
	}
	_ = w.Close()
	p.setPID(cmd.Process.Pid)
	defer p.setPID(0)
	copied := make(chan struct{})
	go func() {
		defer close(copied)
		sc := bufio.NewScanner(r)
		sc.Buffer(nil, 1<<20)
		for sc.Scan() {
			fmt.Fprintf(p.out, "%s | %s\n", p.id, sc.Bytes())
		}
	}()
	err = cmd.Wait()
	<-copied
	return err
}

// lineWriter makes concurrent writes of whole lines safe.
type lineWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *lineWriter) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(b)
}

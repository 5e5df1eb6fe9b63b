package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/tributary-dev/tributary/internal/testnode"
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

// startNode runs a node and waits until it is ready.
func (b *bench) startNode(ctx context.Context, id string, src nodeconfig.Source, parents ...*testnode.Node) (*testnode.Node, error) {
	return b.startNodeWith(ctx, id, nodeconfig.Storage{}, src, parents...)
}

// startNodeWith is startNode with the storage given.
func (b *bench) startNodeWith(ctx context.Context, id string, st nodeconfig.Storage, src nodeconfig.Source, parents ...*testnode.Node) (*testnode.Node, error) {
	st.Journal.MaxBytes = 1 << 30
	n, err := testnode.Start(ctx, testnode.Options{
		Binary: b.node, Dir: filepath.Join(b.dir, id), ID: "bench/" + id, Storage: st, Source: src, Parents: parents,
	})
	if err != nil {
		return nil, err
	}
	return n, n.WaitReady(ctx, 2*time.Minute)
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
	err := testnode.Until(ctx, 30*time.Second, "a walsender", func() (bool, error) {
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

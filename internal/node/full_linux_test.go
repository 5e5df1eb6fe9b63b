package node

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tributary-dev/tributary/internal/testlog"
	"github.com/tributary-dev/tributary/internal/testport"
	"github.com/tributary-dev/tributary/pkg/nodeconfig"
)

// A node that starts with less room than its store keeps free says so, in its log and its
// status, ends when it is told to, and goes on once there is room.
func TestStartsOnFullDisk(t *testing.T) {
	t.Parallel()
	const wired = "\nwiringFile: /none/yet"
	const below = "sources: [{name: below, children: {}}]" + wired
	const relays = below + "\nrelay: {tables: [{schema: public, name: t}]}"
	const orders = `sources: [{name: in, ingest: {tables: [{schema: public, name: t, columns: [{name: id, type: bigint, key: true}]}]}}]`
	for name, c := range map[string]struct {
		is    string
		began bool // with a store of an earlier life
	}{
		"with a log":     {orders, true},
		"as a leaf":      {orders + "\nparents: {onFull: Block, maxLog: 1Mi}" + wired, false},
		"as a root":      {below, false},
		"as a relay":     {relays, false},
		"a root, again":  {below, true},
		"a relay, again": {relays, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			disk := t.TempDir()
			if err := unix.Mount("tributary", disk, "tmpfs", 0, "size=12m"); err != nil {
				t.Skip("a small file system cannot be mounted: ", err)
			}
			t.Cleanup(func() { _ = unix.Unmount(disk, unix.MNT_DETACH) })
			n := fullNode(t, filepath.Join(disk, "store"), c.is)
			if c.began {
				end := n.start(t)
				n.until(t, "it has begun", n.serves)
				end()
			}
			ballast := filepath.Join(disk, "ballast")
			leave(t, disk, ballast, 512<<10) // and a sixteenth is kept free
			for _, room := range []bool{false, true} {
				end := n.start(t)
				n.until(t, "it waits", func() error {
					st, err := n.status()
					if err == nil && (st.Ready || st.Store == nil || st.Store.Reason != nodeconfig.StoreDiskFull || !strings.Contains(st.Store.Message, disk)) {
						err = fmt.Errorf("it says %+v", st)
					}
					return err
				})
				if res, err := http.Get(n.url + "/readyz"); err != nil || res.StatusCode != http.StatusServiceUnavailable {
					t.Errorf("ready: %v, %v", res, err)
				} else {
					_ = res.Body.Close()
				}
				if said := n.said.String(); !strings.Contains(said, nodeconfig.StoreDiskFull) || !strings.Contains(said, "enlarge the volume") {
					t.Errorf("the log does not say that it waits: %s", said)
				}
				if room {
					if err := os.Remove(ballast); err != nil {
						t.Fatal(err)
					}
					n.until(t, "it goes on", n.serves)
				}
				end()
			}
		})
	}
}

// leave fills a disk but for some bytes.
func leave(t *testing.T, disk, ballast string, bytes int64) {
	t.Helper()
	var st unix.Statfs_t
	if err := unix.Statfs(disk, &st); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(ballast, make([]byte, int64(st.Bavail)*st.Bsize-bytes), 0o600); err != nil {
		t.Fatal(err)
	}
}

// oneNode is a node that is started again and again.
type oneNode struct {
	cfg  *nodeconfig.Config
	url  string
	said testlog.Buffer
}

func fullNode(t *testing.T, path, is string) *oneNode {
	t.Helper()
	address, err := testport.TakeAddress()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "node.yaml")
	text := fmt.Sprintf("version: 1\nnode: {id: n/n}\ndrainTimeout: 10ms\nlisten: {http: %q, replication: \"127.0.0.1:0\"}\nstorage: {type: pebble, path: %q}\n%s\n", address, path, is)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	n := &oneNode{url: "http://" + address}
	if n.cfg, err = nodeconfig.Load(file); err != nil {
		t.Fatal(err)
	}
	return n
}

// start starts the node. What it returns tells it to end, and waits until it has.
func (n *oneNode) start(t *testing.T) (end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	n.said.Reset()
	go func() {
		ended <- Run(ctx, Options{Config: n.cfg, Logger: slog.New(slog.NewTextHandler(io.MultiWriter(&n.said, t.Output()), nil))})
	}()
	return func() {
		t.Helper()
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("it ended with %v", err)
			}
		case <-time.After(time.Minute):
			t.Fatal("it does not end")
		}
	}
}

func (n *oneNode) status() (st nodeconfig.Statusz, err error) {
	res, err := http.Get(n.url + "/statusz")
	if err != nil {
		return st, err
	}
	defer res.Body.Close()
	return st, json.NewDecoder(res.Body).Decode(&st)
}

// serves says why the node itself does not serve yet, or returns nil.
func (n *oneNode) serves() error {
	st, err := n.status()
	if err == nil && (len(st.Sources) != 1 || st.Store == nil || st.Store.Reason != "") {
		err = fmt.Errorf("it says %+v", st)
	}
	return err
}

func (n *oneNode) until(t *testing.T, what string, ok func() error) {
	t.Helper()
	for began := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		err := ok()
		if err == nil {
			return
		}
		if time.Since(began) > time.Minute {
			t.Fatalf("%s: not within a minute: %v", what, err)
		}
	}
}

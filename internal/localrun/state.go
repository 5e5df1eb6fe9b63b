package localrun

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tributary-dev/tributary/internal/tree"
	"github.com/tributary-dev/tributary/pkg/nodeconfig"
)

// NodeState is what a run says of one node in its state file.
type NodeState struct {
	ID          string `json:"id"`
	HTTP        string `json:"http"`                // base URL of the read API, metrics and status
	Replication string `json:"replication"`         // host:port of the replication protocol
	PID         int    `json:"pid"`                 // 0 while it does not run
	Mesh        string `json:"mesh,omitempty"`      // namespace/name of the mesh that it is a member of
	RelayTree   string `json:"relayTree,omitempty"` // namespace/name of the tree that it belongs to
	Branch      string `json:"branch,omitempty"`    // of the tree
}

// State is what a run writes to run.json in its directory.
type State struct {
	Nodes []NodeState `json:"nodes"`
}

const stateFile = "run.json"

func (s State) write(dir string) error {
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	return writeFile(filepath.Join(dir, stateFile), b, 0o644)
}

// ReadState reads the state of a run from its directory.
func ReadState(dir string) (State, error) {
	var s State
	b, err := os.ReadFile(filepath.Join(dir, stateFile))
	if errors.Is(err, os.ErrNotExist) {
		return s, fmt.Errorf("%s holds no run: name the directory that tributary run printed, while it runs", dir)
	}
	if err != nil {
		return s, err
	}
	if err := json.Unmarshal(b, &s); err != nil {
		return s, fmt.Errorf("%s: %w", filepath.Join(dir, stateFile), err)
	}
	return s, nil
}

// writeFile replaces a file at once, so that no reader sees half of it.
func writeFile(path string, data []byte, mode os.FileMode) error {
	tmp := path + ".tmp"
	if err := os.WriteFile(tmp, data, mode); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

// Statusz asks a node for its status document.
func Statusz(ctx context.Context, base string) (nodeconfig.Statusz, error) {
	var doc nodeconfig.Statusz
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/statusz", nil)
	if err != nil {
		return doc, err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return doc, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return doc, fmt.Errorf("%s/statusz answered %s", base, res.Status)
	}
	return doc, json.NewDecoder(res.Body).Decode(&doc)
}

// Tree reads the topology of the run in dir from its nodes.
func Tree(ctx context.Context, dir string) ([]tree.Node, error) {
	st, err := ReadState(dir)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	nodes := make([]tree.Node, len(st.Nodes))
	var g errgroup.Group
	for i, n := range st.Nodes {
		g.Go(func() error {
			doc, err := Statusz(ctx, n.HTTP)
			if err != nil {
				nodes[i] = tree.Node{ID: n.ID, State: "Down", Detail: err.Error()}
				return nil //nolint:nilerr // a node that is down is drawn as such
			}
			nodes[i] = treeNode(n.ID, doc)
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	for i, n := range st.Nodes {
		if namespace, name, ok := strings.Cut(n.RelayTree, "/"); ok {
			nodes[i].Group = tree.BranchID(namespace, name, n.Branch)
		}
		if namespace, name, ok := strings.Cut(n.Mesh, "/"); ok {
			nodes[i].Group = tree.MeshID(namespace, name)
		}
	}
	return tree.WithGroups(nodes), nil
}

func treeNode(id string, doc nodeconfig.Statusz) tree.Node {
	n := tree.Node{ID: id, Ready: doc.Ready, State: "Ready"}
	for _, s := range doc.Sources {
		src := tree.Source{Name: s.Name, Kind: s.Kind}
		switch {
		case s.Parent != nil:
			src.Parent = s.Parent.ID
		case s.Slot != nil:
			src.Parent = "slot " + s.Slot.Name
		case s.Kind == nodeconfig.KindIngest:
			src.Parent = "writers"
		case s.Kind == nodeconfig.KindMesh || s.Kind == nodeconfig.KindChildren:
			connected, what := 0, "peers"
			for _, p := range s.Peers {
				if p.Connected {
					connected++
				}
			}
			if s.Kind == nodeconfig.KindChildren {
				what = "children"
			}
			src.Parent = fmt.Sprintf("%d of %d %s", connected, len(s.Peers), what)
		}
		for _, c := range s.Candidates {
			if c.ID != src.Parent {
				src.Standby = append(src.Standby, c.ID)
			}
		}
		n.Sources = append(n.Sources, src)
		if n.State == "Ready" || s.State == nodeconfig.StateFailed {
			n.State, n.Detail = s.Reason, s.Message
		}
	}
	worst, known := 0.0, len(doc.Logs) > 0
	for _, l := range doc.Logs {
		known = known && (l.LagKnown || l.State == nodeconfig.LogCurrent)
		worst = max(worst, l.LagSeconds)
	}
	if known {
		n.Lag = fmt.Sprintf("%.1fs", worst)
	}
	return n
}

package nodeconfig_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tributary-dev/tributary/pkg/nodeconfig"
)

const branch = `version: 1
node: {id: shops/branch-0-a}
storage: {type: pebble, path: /data}
wiringFile: /w
sources:
  - {name: below, children: {}}
relay:
  tables:
    - {schema: public, name: orders}
    - {schema: public, name: events, delivery: All}
    - {schema: public, name: stock, delivery: Counter, columns: [pieces]}
`

// leaf is a node that can be one.
const leaf = root + "storage: {type: pebble, path: /data}\nwiringFile: /w\n"

func TestRelay(t *testing.T) {
	t.Parallel()
	c, err := nodeconfig.Parse("node.yaml", []byte(branch))
	if err != nil {
		t.Fatal(err)
	}
	want := &nodeconfig.Relay{
		Window: 100 * time.Millisecond, MaxPending: 16 << 20, MaxLog: 1 << 30, OnFull: "Block", OnReset: "Remove",
		Tables: []nodeconfig.RelayTable{
			{Schema: "public", Name: "orders", Delivery: "Latest"},
			{Schema: "public", Name: "events", Delivery: "All"},
			{Schema: "public", Name: "stock", Delivery: "Counter", Columns: []string{"pieces"}},
		},
	}
	if d := cmp.Diff(want, c.Relay); d != "" {
		t.Error(d)
	}
	w, err := nodeconfig.ParseWiring("w", []byte(`version: 1
epoch: 1
sources:
  - name: below
    children:
      - {id: shops/leaf-1, address: 'leaf-1:7400'}
      - {id: shops/leaf-2}
      - {id: shops/leaf-3, group: pair}
`))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.CheckWiring("w", w); err != nil {
		t.Error(err)
	}
	if got := w.Sources[0].Redundancy; got != nodeconfig.ActiveActive {
		t.Errorf("redundancy is %q", got)
	}
}

func TestLeaf(t *testing.T) {
	t.Parallel()
	c, err := nodeconfig.Parse("node.yaml", []byte(leaf+"parents: {}\n"))
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(&nodeconfig.Parents{OnFull: "Block", MaxLog: 1 << 30}, c.Parents); d != "" {
		t.Error(d)
	}
	w, err := nodeconfig.ParseWiring("w", []byte(`version: 1
epoch: 1
parents:
  roots: [shops/root-0, shops/root-1]
  dial: [{id: shops/branch-0-a, address: 'dns:///a:7400'}]
`))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.CheckWiring("w", w); err != nil {
		t.Error(err)
	}
}

func TestTreeProblems(t *testing.T) {
	t.Parallel()
	const keep = "set storage.type to pebble and storage.path: others let go of what the node says that it has, or count on what it keeps"
	for name, c := range map[string]struct {
		doc  string
		want string
	}{
		"no children":     {leaf + "relay: {}\n", "node.yaml:20: relay has nothing to serve on: add a source with children, or take it out"},
		"two sources":     {strings.Replace(branch, "relay:", "  - {name: more, children: {}}\nrelay:", 1), "node.yaml:7: sources[1] is a children source, and so is sources[0]: list all children in one of them: a session is with a node, not with a source"},
		"no columns":      {strings.Replace(branch, ", columns: [pieces]", "", 1), "node.yaml:11: relay.tables[2].columns is empty: name the columns that add up, or set delivery to Latest"},
		"columns":         {strings.Replace(branch, "delivery: All", "columns: [a]", 1), "node.yaml:10: relay.tables[1].columns is of Counter only: take it out, or set delivery to Counter"},
		"delivery":        {strings.Replace(branch, "delivery: All", "delivery: Some", 1), `node.yaml:10: relay.tables[1].delivery must not be "Some": use All or Latest or Counter`},
		"window":          {branch + "  window: 1us\n", "node.yaml:12: relay.window must not be 1µs: use a value from 1ms to 1m"},
		"shared cursor":   {branch + "cursors: shared\n", "node.yaml:5: sources is of a relay tree, and cursors is shared: set cursors to perOrigin"},
		"token":           {strings.Replace(branch, "children: {}", "children: {tokenFile: /t}", 1), "node.yaml:6: sources[0].children.tokenFile is set, and tls is not: set tls, if only to {}: a token sent in plain text is no secret"},
		"full":            {leaf + "parents: {onFull: Wait}\n", `node.yaml:20: parents.onFull must not be "Wait": use Block or Rebaseline`},
		"reset":           {branch + "  onReset: Wait\n", `node.yaml:12: relay.onReset must not be "Wait": use Remove or Keep`},
		"leaf unwired":    {strings.Replace(leaf, "wiringFile: /w\n", "parents: {}\n", 1), "node.yaml:1: wiringFile is missing: name the file that holds the roots of the tree"},
		"relay in memory": {strings.Replace(branch, "storage: {type: pebble, path: /data}\n", "", 1), "node.yaml:1: storage.type is memory, and relay makes the node a relay of a relay tree: " + keep},
		"root in memory":  {root + "  - {name: below, children: {}}\nwiringFile: /w\n", "node.yaml:1: storage.type is memory, and children makes the node a root of a relay tree: " + keep},
		"leaf in memory":  {root + "wiringFile: /w\nparents: {}\n", "node.yaml:1: storage.type is memory, and parents makes the node a leaf of a relay tree: " + keep},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := nodeconfig.Parse("node.yaml", []byte(c.doc))
			if err == nil || err.Error() != c.want {
				t.Errorf("got %v, want %s", err, c.want)
			}
		})
	}
}

func TestTreeWiringProblems(t *testing.T) {
	t.Parallel()
	_, err := nodeconfig.ParseWiring("w", []byte(`version: 1
epoch: 1
sources:
  - name: below
    redundancy: Both
    children:
      - {id: shops/leaf-1, address: leaf}
      - {id: shops/leaf-1}
      - {id: shops/leaf-2, state: leaving}
      - {id: shops/leaf-3, state: gone}
      - {id: shops/root}
      - {id: shops/trunk}
    readers: [shops/trunk]
    roots: [shops/root]
parents:
  roots: [a, a]
  dial: [{id: b}]
`))
	want := `w:5: sources[0].redundancy must not be "Both": use ActiveActive or ActiveStandby
w:7: sources[0].children[0].address must not be "leaf": write host:port or dns:///host:port
w:8: sources[0].children[1].id "shops/leaf-1" is also at sources[0].children[0].id: use each once
w:10: sources[0].children[3].state must not be "gone": use moving or leaving or retired
w:11: sources[0].children[4].id "shops/root" is also among readers or roots: take it out of one of them: what is above a node is not below it
w:12: sources[0].children[5].id "shops/trunk" is also among readers or roots: take it out of one of them: what is above a node is not below it
w:16: parents.roots[1] "a" is also at parents.roots[0]: use each once
w:17: parents.dial[0].address is missing: write host:port or dns:///host:port`
	if err == nil || err.Error() != want {
		t.Errorf("got %v", err)
	}

	c, err := nodeconfig.Parse("node.yaml", []byte(branch))
	if err != nil {
		t.Fatal(err)
	}
	err = c.CheckWiring("w", &nodeconfig.Wiring{
		Sources: []nodeconfig.WiredSource{{Name: "below", Candidates: []nodeconfig.Candidate{{}}, Children: []nodeconfig.Child{{ID: "shops/branch-0-a"}}}},
		Parents: &nodeconfig.WiredParents{},
	})
	want = `w: parents is there, and the node is no leaf: take it out, or add parents to node.yaml
w: sources[0].children[0].id "shops/branch-0-a" is this node itself: list the nodes below it
w: sources[0].candidates is not of a children source: list the nodes as children`
	if err == nil || err.Error() != want {
		t.Errorf("got %v", err)
	}
}

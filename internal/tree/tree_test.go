package tree

import (
	"strings"
	"testing"
)

func TestDraw(t *testing.T) {
	t.Parallel()
	fan := func(parent string, standby ...string) []Source {
		return []Source{{Name: "up", Kind: "fanout", Parent: parent, Standby: standby}}
	}
	var b strings.Builder
	err := Draw(&b, []Node{
		{ID: "shop/edge", Ready: true, State: "Streaming", Lag: "<1s", Sources: fan("shop/eu", "shop/us")},
		{ID: "shop/us", State: "Disconnected", Sources: fan("shop/root"), Detail: "connection refused"},
		{ID: "shop/root", Ready: true, State: "Streaming", Lag: "<1s", Sources: []Source{{Kind: "postgres", Parent: "db:5432/shop"}}},
		{ID: "shop/eu", Ready: true, State: "Streaming", Lag: "<1s", Sources: fan("shop/root")},
		{ID: "x/a", State: "LoopDetected", Sources: fan("x/b")},
		{ID: "x/b", State: "LoopDetected", Sources: fan("x/a")},
		{ID: MeshID("m", "all"), State: "PeersMissing", Lag: "<1s", Detail: "a has sessions with 0 of 1 peers."},
		{ID: "m/a", Ready: true, State: "Ready", Lag: "<1s", Group: MeshID("m", "all"), Sources: []Source{{Kind: "ingest", Parent: "writers"}, {Kind: "mesh", Parent: "0 of 1 peers"}}},
		{ID: "m/b", Ready: true, State: "Ready", Lag: "<1s", Group: MeshID("m", "all"), Sources: []Source{{Kind: "mesh", Parent: "1 of 1 peers"}}},
		{ID: "m/leaf", Ready: true, State: "Ready", Lag: "<1s", Sources: fan("m/a")},
		{ID: "x/c", Ready: true, State: "Streaming", Sources: fan("elsewhere:7400")},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := `NODE                  STATE         LAG      READS FROM      STANDBY
◇ mesh m/all          PeersMissing  <1s      -
├─ ● m/a              Ready         <1s      writers, 0 of 1 peers
│  └─ ● m/leaf        Ready         <1s      m/a
└─ ● m/b              Ready         <1s      1 of 1 peers
● shop/root           Streaming     <1s      db:5432/shop    
├─ ● shop/eu          Streaming     <1s      shop/root       
│  └─ ● shop/edge     Streaming     <1s      shop/eu         shop/us
└─ ○ shop/us          Disconnected  unknown  shop/root       
○ x/a                 LoopDetected  unknown  x/b             
○ x/b                 LoopDetected  unknown  x/a             
● x/c                 Streaming     unknown  elsewhere:7400  

mesh m/all: a has sessions with 0 of 1 peers.
shop/us: connection refused
`
	trim := func(s string) string {
		var out []string
		for _, l := range strings.Split(s, "\n") {
			out = append(out, strings.Join(strings.Fields(l), " "))
		}
		return strings.Join(out, "\n")
	}
	if trim(b.String()) != trim(want) {
		t.Errorf("got\n%s\nwant\n%s", b.String(), want)
	}
}

// A relay tree is drawn with its roots and its branches, and these with their nodes and
// leaves; a branch is ready when all of it is.
func TestDrawRelayTree(t *testing.T) {
	t.Parallel()
	of := func(branch string) string { return BranchID("s", "sales", branch) }
	below := func(n string) []Source { return []Source{{Kind: "children", Parent: n}} }
	var b strings.Builder
	err := Draw(&b, WithGroups([]Node{
		{ID: "s/sales-root-0", Ready: true, State: "Ready", Lag: "<1s", Group: of(""), Sources: below("2 of 2 children")},
		{ID: "s/sales-b0-0", Ready: true, State: "Ready", Lag: "<1s", Group: of("b0"), Sources: below("1 of 1 children")},
		{ID: "s/sales-b1-0", State: "Connecting", Group: of("b1"), Sources: below("0 of 1 children")},
		{ID: "s/till-1", Ready: true, State: "Ready", Lag: "-", Group: of("b0"), Sources: []Source{{Kind: "ingest", Parent: "writers"}}},
		{ID: "s/till-2", Ready: true, State: "Ready", Lag: "-", Group: of("b1"), Sources: []Source{{Kind: "ingest", Parent: "writers"}}},
	}))
	if err != nil {
		t.Fatal(err)
	}
	want := `NODE STATE LAG READS FROM STANDBY
◇ tree s/sales MembersNotReady - -
├─ ◆ branch s/sales/b0 Ready - -
│ ├─ ● s/sales-b0-0 Ready <1s 1 of 1 children
│ └─ ● s/till-1 Ready - writers
├─ ◇ branch s/sales/b1 MembersNotReady - -
│ ├─ ○ s/sales-b1-0 Connecting unknown 0 of 1 children
│ └─ ● s/till-2 Ready - writers
└─ ● s/sales-root-0 Ready <1s 2 of 2 children
`
	var got []string
	for _, l := range strings.Split(b.String(), "\n") {
		got = append(got, strings.Join(strings.Fields(l), " "))
	}
	if s := strings.Join(got, "\n"); s != want {
		t.Errorf("got\n%s\nwant\n%s", s, want)
	}
}

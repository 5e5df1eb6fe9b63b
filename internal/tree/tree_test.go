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
		{ID: "x/c", Ready: true, State: "Streaming", Sources: fan("elsewhere:7400")},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := `NODE                  STATE         LAG      READS FROM      STANDBY
● shop/root           Streaming     <1s      db:5432/shop    
├─ ● shop/eu          Streaming     <1s      shop/root       
│  └─ ● shop/edge     Streaming     <1s      shop/eu         shop/us
└─ ○ shop/us          Disconnected  unknown  shop/root       
○ x/a                 LoopDetected  unknown  x/b             
○ x/b                 LoopDetected  unknown  x/a             
● x/c                 Streaming     unknown  elsewhere:7400  

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

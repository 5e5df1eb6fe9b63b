package origins_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tributary-dev/tributary/internal/origins"
	"github.com/tributary-dev/tributary/pkg/nodeconfig"
)

func answers() []origins.Answer {
	twelve := uint64(12)
	own := nodeconfig.LogStatus{Origin: "shop/a#local", Epoch: "17", Head: "0009", Durable: "0009", State: nodeconfig.LogCurrent, LagKnown: true, LagChanges: new(uint64), Path: []string{"shop/a"}}
	read := nodeconfig.LogStatus{
		Origin: "shop/a#local", Epoch: "17", Head: "0007", SourceHead: "0009", Received: "0008", Durable: "0007", State: nodeconfig.LogHeld, LagKnown: true, LagSeconds: 1.25, LagChanges: &twelve,
		Path: []string{"shop/b", "shop/a"}, Peer: "shop/a", Delivery: &nodeconfig.DeliveryStatus{Duplicates: 1, Holes: 2, Resets: 3, CreditStalls: 4, Message: "a key is too long"},
	}
	unknown := nodeconfig.LogStatus{Origin: "pg-1", Epoch: "3", Head: "0/16B3748", State: nodeconfig.LogUnknown, Path: []string{"shop/b", "shop/root"}, Peer: "shop/root"}
	return []origins.Answer{
		{Node: "shop/b", Instance: "shop/b-0", Status: nodeconfig.Statusz{Logs: []nodeconfig.LogStatus{read, unknown}}},
		{Node: "shop/c", Instance: "shop/c-0", Err: errors.New("connection refused")},
		{Node: "shop/a", Instance: "shop/a-0", Status: nodeconfig.Statusz{Logs: []nodeconfig.LogStatus{own}}},
	}
}

func TestTable(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	if err := origins.Collect(answers()).Table(&b); err != nil {
		t.Fatal(err)
	}
	want := `ORIGIN / NODE STATE LAG CHANGES HEAD RECEIVED APPLIED DURABLE PEER DUP HOLES RESETS STALLS
pg-1 @ 3
shop/b-0 Unknown unknown - - - 0/16B3748 - shop/root 0 0 0 0
shop/a#local @ 17
shop/a-0 Current 0.0s 0 0009 - 0009 0009 - 0 0 0 0
shop/b-0 Held 1.2s 12 0009 0008 0007 0007 shop/a 1 2 3 4

shop/b-0, shop/a#local: a key is too long
shop/c-0 does not answer: connection refused
`
	var got []string
	for _, l := range strings.Split(b.String(), "\n") {
		got = append(got, strings.Join(strings.Fields(l), " "))
	}
	if d := cmp.Diff(want, strings.Join(got, "\n")); d != "" {
		t.Error(d)
	}
}

func TestJSON(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	want := origins.Collect(answers())
	if err := want.JSON(&b); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(b.String(), `"lagSeconds": null`) {
		t.Errorf("unknown lag is a number:\n%s", b.String())
	}
	var got origins.Report
	if err := json.Unmarshal([]byte(b.String()), &got); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

package integration

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tributary-dev/tributary/internal/testpg"
	"github.com/tributary-dev/tributary/pkg/nodeconfig"
)

// TestSlotIsShown: what the server says of the slot is in the node's status and
// metrics.
func TestSlotIsShown(t *testing.T) {
	t.Parallel()
	db := testpg.NewDB(t)
	db.Exec(t, createT, "INSERT INTO t VALUES (1, 1, 'x')")
	h := twoHops(t, db, plain)
	get := func(path string) string {
		t.Helper()
		r, err := http.Get("http://" + h.nodes[0].http + path)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		b, err := io.ReadAll(r.Body)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	var doc nodeconfig.Statusz
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		if err := json.Unmarshal([]byte(get("/statusz")), &doc); err != nil {
			t.Fatal(err)
		}
		if s := doc.Sources[0].Slot; s != nil && s.Exists {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the status says %+v", doc.Sources[0].Slot)
		}
	}
	s := doc.Sources[0].Slot
	if !s.Temporary || s.WALStatus != "reserved" || s.Checked.IsZero() || s.Holder != "" || s.LimitBytes != nil {
		t.Errorf("the slot is shown as %+v", s)
	}
	metrics := get("/metrics")
	for _, want := range []string{"tributary_slot_retained_wal_bytes{slot=\"" + s.Name, "tributary_slot_pending_wal_bytes{",
		"tributary_slot_checked_timestamp_seconds{", `status="reserved"} 1`, `tributary_source_scratch_bytes{source="db"} 0`} {
		if !strings.Contains(metrics, want) {
			t.Errorf("the metrics lack %s", want)
		}
	}
}

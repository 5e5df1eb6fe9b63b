package integration

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tributary-dev/tributary/pkg/nodeconfig"
)

// A node starts from an archive that is kept beside the code, with no database, in
// less than two seconds. The bound is wide, since the tests share their machine.
func TestNodeFromSeed(t *testing.T) {
	t.Parallel()
	golden, err := filepath.Abs("../../pkg/archive/testdata/golden")
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	seed := startConfig(t, "hops/seed", nodeconfig.Config{Sources: []nodeconfig.Source{{Name: "seed", Archive: &nodeconfig.ArchiveSource{
		ArchiveStore: nodeconfig.ArchiveStore{Store: nodeconfig.StoreLocal, StoreConfig: nodeconfig.StoreConfig{Path: filepath.Join(golden, "net")}},
		Group:        true, Tables: []nodeconfig.Table{{Schema: "public", Name: "events"}},
	}}}})
	until(t, "the node", func() error {
		res, err := http.Get("http://" + seed.http + "/readyz")
		if err != nil {
			return err
		}
		defer res.Body.Close()
		if res.StatusCode != http.StatusOK {
			return fmt.Errorf("it says %s", res.Status)
		}
		return nil
	})
	took := time.Since(start)
	t.Logf("ready after %s", took)
	if took > 10*time.Second {
		t.Errorf("it was ready after %s", took)
	}
	for _, s := range seed.statusz(t).Sources {
		if s.Kind != nodeconfig.KindArchive {
			t.Errorf("source %s is of the kind %s", s.Name, s.Kind)
		}
	}
	text, err := os.ReadFile(filepath.Join(golden, "expected.txt"))
	if err != nil {
		t.Fatal(err)
	}
	_, last, _ := strings.Cut(string(text), "== after 6\n")
	want := strings.Count("\n"+last, "\nrow ")
	res, err := http.Get("http://" + seed.http + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	metrics, err := io.ReadAll(res.Body)
	if line := fmt.Sprintf("tributary_table_rows{schema=\"public\",table=\"events\"} %d\n", want); err != nil || want == 0 || !strings.Contains(string(metrics), line) {
		t.Errorf("the node does not say %q, %v", line, err)
	}
}

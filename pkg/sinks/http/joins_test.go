package http_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tributary-dev/tributary/pkg/engine"
	ft "github.com/tributary-dev/tributary/pkg/fanout/fanouttest"
	"github.com/tributary-dev/tributary/pkg/sinks"
	sinkhttp "github.com/tributary-dev/tributary/pkg/sinks/http"
)

// A large table that joins a running node is posted alone, as changes.
func TestLargeTableJoinsAlone(t *testing.T) {
	t.Parallel()
	o := ft.NewOrigin(300, "t")
	root := ft.Start(t, "root", ft.Options{}, map[string]engine.SyncSource{"pg": o})
	to := newReceiver(t)
	target, err := sinkhttp.New(sinkhttp.Config{Name: "out", URL: to.URL, Timeout: 5 * time.Second, Store: root.Store})
	if err != nil {
		t.Fatal(err)
	}
	s, err := sinks.New(sinks.Config{Name: "out", Host: root.Engine, Store: root.Store, Target: target, Logger: ft.Logger("root")})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = s.Run(ctx) })
	t.Cleanup(func() { cancel(); wg.Wait() })
	has := func(n int) {
		t.Helper()
		ft.Eventually(t, time.Minute, func() error {
			to.mu.Lock()
			defer to.mu.Unlock()
			if len(to.rows) != n {
				return fmt.Errorf("%d rows of %d: %+v", len(to.rows), n, s.Status())
			}
			return nil
		})
	}
	has(300)
	rows := map[string]string{}
	for i := range 1200 {
		rows[fmt.Sprint("u", i)] = strings.Repeat("u", 10<<10)
	}
	o.Write(ft.Change{Table: ft.Table("t"), Key: "k000001", Gone: true})
	o.Add(ft.Table("u"), rows)
	has(1499)
	o.Put("k000001", "back")
	has(1500)
	if st := s.Status(); st.Baselines != 1 || st.Changes > 1210 {
		t.Errorf("%d baselines, %d changes", st.Baselines, st.Changes)
	}
}

// A sink that fails says so until something gets through: it does not call itself
// well each time that it is about to try again. Meanwhile it falls behind, and that
// shows.
func TestFailingSinkStaysRetrying(t *testing.T) {
	t.Parallel()
	o := ft.NewOrigin(10, "t")
	root := ft.Start(t, "root", ft.Options{}, map[string]engine.SyncSource{"pg": o})
	to := newReceiver(t)
	target, err := sinkhttp.New(sinkhttp.Config{Name: "out", URL: to.URL, Timeout: time.Second, Store: root.Store})
	if err != nil {
		t.Fatal(err)
	}
	s, err := sinks.New(sinks.Config{Name: "out", Host: root.Engine, Store: root.Store, Target: target, Logger: ft.Logger("root")})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = s.Run(ctx) })
	t.Cleanup(func() { cancel(); wg.Wait() })
	state := func(want sinks.State) {
		t.Helper()
		ft.Eventually(t, time.Minute, func() error {
			if st := s.Status(); st.State != want {
				return fmt.Errorf("%+v", st)
			}
			return nil
		})
	}
	state(sinks.StateStreaming)
	time.Sleep(time.Second) // quiet
	to.set(func(w http.ResponseWriter, _ *http.Request, _ *request) bool {
		w.WriteHeader(http.StatusServiceUnavailable)
		return true
	})
	o.Put("a", "1")
	state(sinks.StateRetrying)
	tries := s.Status().Errors
	for until := time.Now().Add(20 * time.Second); s.Status().Errors < tries+2 && time.Now().Before(until); time.Sleep(time.Millisecond) {
		if st := s.Status(); st.State != sinks.StateRetrying || st.Message == "" {
			t.Fatalf("while it fails: %+v", st)
		} else if l := st.Logs[0].Lag; !l.Known || l.Seconds <= 0 || l.Seconds > 30 {
			t.Fatalf("while it fails, the lag is %+v", l)
		}
	}
	to.set(nil)
	state(sinks.StateStreaming)
}

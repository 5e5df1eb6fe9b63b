package postgres

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tributary-dev/tributary/internal/testpg"
	"github.com/tributary-dev/tributary/pkg/engine"
)

const rowsP06 = 800_000

// A transaction of 800,000 updates, streamed in progress and sent whole, through
// a process that may use 256 MB: whole, in bounded memory, and with an engine
// that takes longer over it than wal_sender_timeout.
func TestCaseP06(t *testing.T) {
	if testing.Short() {
		t.Skip("needs a PostgreSQL server")
	}
	s := testpg.Start(t, testpg.Options{})
	db := s.NewDB(t)
	db.Exec(t, createT, fmt.Sprintf(`INSERT INTO t SELECT i, 0, 'a row of a middling size, as many are' FROM generate_series(1,%d) i`, rowsP06))
	db.Exec(t, "ALTER ROLE postgres IN DATABASE "+db.Name+" SET wal_sender_timeout='3s'")
	for _, mem := range []string{"64MB", "2GB"} {
		t.Run(mem, func(t *testing.T) {
			db.Exec(t, "ALTER ROLE postgres IN DATABASE "+db.Name+" SET logical_decoding_work_mem='"+mem+"'")
			cmd := exec.Command(os.Args[0], "-test.run=^TestChildP06$")
			cmd.Env = append(os.Environ(), "CHILD_P06=1", "CHILD_DB="+db.ConnString, "GOMEMLIMIT=200MiB")
			cmd.Stderr = os.Stderr
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
			lines := bufio.NewScanner(out)
			for lines.Scan() {
				f := strings.Fields(lines.Text())
				if len(f) == 0 {
					continue
				}
				switch f[0] {
				case "ready":
					db.Exec(t, `UPDATE t SET n=n+id`)
				case "applied":
					want := db.Value(t, `SELECT sum(n) FROM t`)
					peak, err := strconv.Atoi(f[4])
					if err != nil || f[1] != strconv.Itoa(rowsP06) || f[2] != want || f[3] == "0" {
						t.Errorf("%s; want %d changes, sum %s", lines.Text(), rowsP06, want)
					}
					if peak > 192<<10 {
						t.Errorf("%d kB were resident at the peak", peak)
					}
					t.Log(lines.Text())
					return
				case "FAIL", "---":
					t.Fatal(lines.Text())
				}
			}
			t.Fatalf("the process ended: %v", lines.Err())
		})
	}
}

// TestChildP06 is the process whose memory is measured.
func TestChildP06(t *testing.T) {
	if os.Getenv("CHILD_P06") == "" {
		t.Skip("started by TestCaseP06")
	}
	src, err := New(Config{ConnString: os.Getenv("CHILD_DB"), Tables: names("t"), Slot: "p06", watch: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if _, err := src.Init(ctx, engine.Env{NodeID: "child", Source: "p06", Schemas: engine.NewSchemaSet()}); err != nil {
		t.Fatal(err)
	}
	sink := &summing{t: t, counter: &counter{src: src, ready: make(chan engine.Position, 1)}, done: cancel}
	if err := src.Baseline(ctx, sink); err != nil {
		t.Fatal(err)
	}
	debug.FreeOSMemory()
	fmt.Println("\nready")
	err = src.Stream(ctx, engine.Cursors{{}: {Position: <-sink.ready}}, sink)
	if ctx.Err() == nil {
		t.Fatalf("the stream ended: %v", err)
	}
}

// summing is a sink that adds up one column.
type summing struct {
	*counter
	t    *testing.T
	done func()
}

func (s *summing) Apply(_ context.Context, txs []engine.Transaction) error {
	for i := range txs {
		tx := &txs[i]
		n, sum, runs := 0, 0, 0
		for changes := tx.Changes; ; {
			for j := range changes {
				n++
				if changes[j].Stamp.Version.Minor != uint32(n) {
					return fmt.Errorf("change %d is numbered %d", n, changes[j].Stamp.Version.Minor)
				}
				for k, c := range changes[j].Row.Columns() {
					if k == 1 {
						v, err := strconv.Atoi(string(c.Value))
						if err != nil {
							return err
						}
						sum += v
					}
				}
			}
			if tx.More == nil {
				break
			}
			if runs++; runs == 3 {
				time.Sleep(6 * time.Second) // twice what the server waits
			}
			var err error
			if changes, err = tx.More(); err != nil {
				return err
			}
			if len(changes) == 0 {
				break
			}
		}
		status, err := os.ReadFile("/proc/self/status")
		if err != nil {
			return err
		}
		peak := "0"
		for line := range strings.Lines(string(status)) {
			if f := strings.Fields(line); f[0] == "VmHWM:" {
				peak = f[1]
			}
		}
		fmt.Printf("\napplied %d %d %d %s kB\n", n, sum, runs, peak)
		s.done()
	}
	return nil
}

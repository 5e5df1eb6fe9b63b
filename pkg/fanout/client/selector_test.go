package client

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// The selector is told what happens, second by second, and says what to do.
func TestSelector(t *testing.T) {
	t.Parallel()
	policy := Policy{RecoverAfter: 8 * time.Second, MaxSwitchesPerHour: 3}
	never := Policy{Failback: FailbackNever}
	for _, c := range []struct {
		name   string
		policy Policy
		steps  string // "at: event = choice"
	}{
		{"the first that works, in order", policy, `
			0: = connect a
			0: failed a = connect b
			0: failed b = connect c
			0: connected c = wait`},
		{"a lost upstream is left for the next at once", never, `
			0: connected a = wait
			10: lost = connect b
			10: connected b = wait
			20: lost = connect a`},
		{"all are down: hold, and try each again after a growing delay", never, `
			0: failed a =
			0: failed b =
			0: failed c = wait
			0.05: = wait
			0.11: = connect a
			0.11: failed a = connect b
			0.11: failed b = connect c
			0.11: failed c = wait
			0.22: = wait
			0.35: = connect a
			0.35: connected a = wait`},
		{"the only one is tried again soon", never, `
			0: only a =
			0: connected a = wait
			1: lost = wait
			1.11: = connect a`},
		{"back to the preferred once it has been well for long enough", policy, `
			0: connected a =
			1: lost = connect b
			1: connected b = wait
			3.1: = probe a
			3.1: probed a no = wait
			5.2: = probe a
			5.2: probed a yes = wait
			7.3: = probe a
			7.3: probed a yes = wait
			9.4: = probe a
			9.4: probed a no = wait
			11.5: = probe a
			11.5: probed a yes = wait
			13.6: = probe a
			13.6: probed a yes =
			15.7: = probe a
			15.7: probed a yes =
			17.8: = probe a
			17.8: probed a yes = wait
			19.6: = connect a
			19.6: connected a = wait`},
		{"K11: one switch when a parent returns, none to what is not preferred", policy, `
			0: connected b =
			100: = probe a
			100: probed a yes =
			103: probed a yes =
			108.1: = connect a
			108.1: connected a = wait
			200: = wait`},
		{"a failback that fails leaves the reader where it is", policy, `
			0: connected b =
			10: probed a yes =
			18.1: = connect a
			18.1: failed a = wait
			18.1: current b =`},
		{"the switches of an hour are used up: forced moves only", policy, `
			0: connected a =
			1: lost =
			1: connected b =
			2: lost =
			2: connected a =
			3: lost =
			3: connected b = wait
			30: = wait
			1000: = wait
			3603: = probe a
			4000: lost = connect a`},
		{"a drained upstream is left for another, and comes last", never, `
			0: connected a =
			5: leave = connect b
			5: failed b = connect c
			5: current a =
			5: connected c = wait
			5: current c =`},
		{"a drained upstream that is the only one may have another instance", never, `
			0: only a =
			0: connected a =
			5: leave = wait
			5.2: = connect a
			5.2: connected a = wait`},
		{"a silent upstream is left for another, and not soon for itself", never, `
			0: only a =
			0: connected a =
			5: leave silent = wait
			8.9: = wait
			9.1: = connect a
			9.2: only a,b = connect b
			9.2: failed b = connect a`},
		{"a list without the upstream in use moves the reader; one with it does not", never, `
			0: connected b = wait
			1: only a,b = wait
			2: only a = connect a
			2: current b =
			2: connected a = wait`},
		{"one that ends each session is left alone for longer and longer, until a session comes to something", never, `
			0: only a =
			0: connected a =
			0.1: lost = wait
			0.21: = connect a
			0.21: connected a =
			0.3: lost = wait
			0.49: = wait
			0.51: = connect a
			0.51: connected a =
			0.6: lost = wait
			0.99: = wait
			1.01: = connect a
			1.01: connected a =
			1.1: lost brought = wait
			1.21: = connect a
			1.21: connected a =
			1.3: lost = wait
			1.49: = wait
			1.51: = connect a
			1.51: connected a =
			12: lost = wait
			12.11: = connect a`},
		{"one that asks at once to be left is, too", never, `
			0: only a =
			0: connected a =
			0: leave = wait
			0.11: = connect a
			0.11: connected a =
			0.11: leave = wait
			0.3: = wait
			0.32: = connect a`},
		{"nothing to read from", never, `
			0: only =
			0: = wait
			1: only c = connect c`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newSelector([]string{"a", "b", "c"}, c.policy, func() float64 { return 0.5 })
			for _, line := range strings.Split(strings.TrimSpace(c.steps), "\n") {
				line = strings.TrimSpace(line)
				at, rest, _ := strings.Cut(line, ":")
				event, want, _ := strings.Cut(rest, "=")
				d, err := time.ParseDuration(at + "s")
				if err != nil {
					t.Fatal(err)
				}
				now := time.Unix(0, 0).Add(d)
				switch f := strings.Fields(event); {
				case len(f) == 0:
				case f[0] == "connected":
					s.connected(now, f[1])
				case f[0] == "failed":
					s.failed(now, f[1], 0, 0)
				case f[0] == "lost":
					s.lost(now, len(f) > 1, 0)
				case f[0] == "leave":
					s.leave(now, len(f) > 1, false)
				case f[0] == "probed":
					s.probed(now, f[1], f[2] == "yes")
				case f[0] == "only":
					var list []string
					if len(f) > 1 {
						list = strings.Split(f[1], ",")
					}
					s.replace(list, c.policy)
				case f[0] == "current":
					if s.current != f[1] {
						t.Fatalf("%s: the current upstream is %q", line, s.current)
					}
				default:
					t.Fatalf("what is %q", event)
				}
				if want = strings.TrimSpace(want); want == "" {
					continue
				}
				got := s.next(now)
				text := strings.TrimSpace(fmt.Sprintf("%s %s", [...]string{"wait", "connect", "probe"}[got.do], got.address))
				if text != want {
					t.Fatalf("%s: got %s (until %s)", line, text, got.until)
				}
			}
		})
	}
}

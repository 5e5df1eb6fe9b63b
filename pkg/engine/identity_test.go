package engine_test

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tributary-dev/tributary/pkg/engine"
	"pgregory.net/rapid"
)

func sign(n int) int { return cmp.Compare(n, 0) }

// totalOrder checks that compare is a total order on three values: reflexive,
// antisymmetric, transitive.
func totalOrder[T any](t *rapid.T, compare func(a, b T) int, a, b, c T) {
	t.Helper()
	for _, x := range []T{a, b, c} {
		if compare(x, x) != 0 {
			t.Fatalf("%v is not equal to itself", x)
		}
	}
	xs := []T{a, b, c}
	for i := range xs {
		for j := range xs {
			if sign(compare(xs[i], xs[j])) != -sign(compare(xs[j], xs[i])) {
				t.Fatalf("%v and %v compare %d and %d", xs[i], xs[j], compare(xs[i], xs[j]), compare(xs[j], xs[i]))
			}
			for k := range xs {
				if compare(xs[i], xs[j]) <= 0 && compare(xs[j], xs[k]) <= 0 && compare(xs[i], xs[k]) > 0 {
					t.Fatalf("%v, %v, %v are not in order", xs[i], xs[j], xs[k])
				}
			}
		}
	}
}

var drawPosition = rapid.OneOf(
	rapid.Map(rapid.Uint64(), func(n uint64) engine.Position { return engine.LSN(n).Position() }),
	rapid.Map(rapid.Uint64Range(0, 40), func(n uint64) engine.Position { return engine.LSN(n << 30).Position() }),
	rapid.SampledFrom([]engine.Position{"", "0/0", "00/0", "0/00", "0/A", "0/a", "9/FFFFFFFF", "10/0", "FFFFFFFF/FFFFFFFF", "100000000/0", "/", "x", "1", "01", "001", "2", "10", "0", "-1", "0/-1", "0/+1", "1/2/3", "0x1/1", "1_0/1"}),
	rapid.Map(rapid.String(), func(s string) engine.Position { return engine.Position(s) }),
)

func TestComparatorsAreTotalOrders(t *testing.T) {
	t.Parallel()
	for name, compare := range engine.Comparators {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rapid.Check(t, func(t *rapid.T) {
				a, b, c := drawPosition.Draw(t, "a"), drawPosition.Draw(t, "b"), drawPosition.Draw(t, "c")
				totalOrder(t, compare, a, b, c)
				if a != "" && compare("", a) >= 0 {
					t.Fatalf("the empty position is not below %q", a)
				}
			})
		})
	}
}

func TestLSN(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		a, b := rapid.Uint64().Draw(t, "a"), rapid.Uint64().Draw(t, "b")
		p := engine.LSN(a).Position()
		if back, err := engine.ParseLSN(p); err != nil || back != engine.LSN(a) || string(p) != strings.ToUpper(string(p)) {
			t.Fatalf("%d as %q came back as %d, %v", a, p, back, err)
		}
		if got := engine.CompareLSN(p, engine.LSN(b).Position()); sign(got) != cmp.Compare(a, b) {
			t.Fatalf("%d and %d compare %d", a, b, got)
		}
		if engine.CompareLSN(p, engine.Position(strings.ToLower(string(p)))) != 0 {
			t.Fatalf("%q differs by the case of its digits", p)
		}
		if engine.CompareNumber(engine.Position(itoa(a)), engine.Position(itoa(b))) != cmp.Compare(a, b) {
			t.Fatalf("%d and %d do not compare as numbers", a, b)
		}
	})
	for _, bad := range []engine.Position{"", "1", "/", "1/", "/1", "G/1", "1/100000000", "100000000/1", "1/2/3", " 1/2", "+1/2", "0x1/2"} {
		if l, err := engine.ParseLSN(bad); err == nil {
			t.Errorf("%q was read as %s", bad, l)
		}
	}
}

func itoa(n uint64) string {
	var b []byte
	for {
		b = append(b, byte('0'+n%10))
		if n /= 10; n == 0 {
			slices.Reverse(b)
			return string(b)
		}
	}
}

var closeStamp = rapid.Custom(func(t *rapid.T) engine.Stamp {
	return engine.Stamp{
		Time: engine.Time(rapid.Uint64Range(0, 2).Draw(t, "time")), Origin: rapid.SampledFrom([]string{"", "a", "b", "ab"}).Draw(t, "origin"),
		Epoch:   engine.Epoch(rapid.Uint64Range(0, 2).Draw(t, "epoch")),
		Version: engine.Version{Major: rapid.Uint64Range(0, 2).Draw(t, "major"), Minor: rapid.Uint32Range(0, 2).Draw(t, "minor")},
	}
})

func TestStampOrder(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		a, b, c := closeStamp.Draw(t, "a"), closeStamp.Draw(t, "b"), closeStamp.Draw(t, "c")
		totalOrder(t, engine.Stamp.Compare, a, b, c)
		if (a.Compare(b) == 0) != (a == b) {
			t.Fatalf("%s and %s compare %d", a, b, a.Compare(b))
		}
		if a.Time < b.Time && a.Compare(b) >= 0 {
			t.Fatalf("%s is not before %s", a, b)
		}
	})
}

// TestClock: times grow strictly, whatever the wall clock does and whatever is
// observed, and follow the wall clock when it leads.
func TestClock(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		wall := time.UnixMicro(rapid.Int64Range(-10, 1<<50).Draw(t, "start"))
		last := engine.Time(rapid.Uint64Range(0, 1<<50).Draw(t, "last"))
		c := engine.NewClock(func() time.Time { return wall }, last)
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			wall = wall.Add(time.Duration(rapid.Int64Range(-5_000_000, 5_000_000).Draw(t, "by")))
			if rapid.IntRange(0, 3).Draw(t, "observe") == 0 {
				seen := engine.Time(rapid.Uint64Range(0, 1<<51).Draw(t, "seen"))
				c.Observe(seen)
				last = max(last, seen)
				continue
			}
			next := c.Next()
			if want := max(engine.TimeOf(wall), last+1); next != want || c.Last() != next {
				t.Fatalf("after %d at wall %d came %d, want %d", last, engine.TimeOf(wall), next, want)
			}
			last = next
		}
	})
}

func TestClockConcurrently(t *testing.T) {
	t.Parallel()
	c := engine.NewClock(nil, 0)
	const workers, each = 8, 500
	times := make([][]engine.Time, workers)
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for range each {
				times[w] = append(times[w], c.Next())
			}
		})
	}
	wg.Wait()
	seen := map[engine.Time]bool{}
	for _, ts := range times {
		if !slices.IsSorted(ts) {
			t.Fatal("a goroutine saw the clock fall")
		}
		for _, x := range ts {
			seen[x] = true
		}
	}
	if len(seen) != workers*each {
		t.Fatalf("%d different times of %d", len(seen), workers*each)
	}
}

func TestTime(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 3, 1, 12, 0, 0, 123456789, time.FixedZone("", 3600))
	if got, want := engine.TimeOf(at).Wall(), at.UTC().Truncate(time.Microsecond); !got.Equal(want) || got.Location() != time.UTC {
		t.Errorf("%s came back as %s", want, got)
	}
	if got := engine.TimeOf(time.Unix(-1, 0)); got != 0 {
		t.Errorf("a time before 1970 is %d", got)
	}
}

// TestFingerprint: what changes the meaning of a row's bytes changes the
// fingerprint, and nothing else does.
func TestFingerprint(t *testing.T) {
	t.Parallel()
	base := func() *engine.Schema {
		return &engine.Schema{ID: 1, Table: engine.TableName{Schema: "a", Name: "b"}, RelationOID: 5, ReplicaIdentity: engine.IdentityDefault, Columns: []engine.Column{
			{Name: "id", Number: 1, TypeOID: 20, TypeName: "bigint", TypeMod: -1, Key: true},
			{Name: "v", Number: 2, TypeOID: 25, TypeName: "text", TypeMod: -1},
		}}
	}
	same := base()
	same.ID = 9
	if same.Fingerprint() != base().Fingerprint() {
		t.Error("the ID is part of the fingerprint")
	}
	seen := map[uint64]string{base().Fingerprint(): "the base"}
	for name, alter := range map[string]func(*engine.Schema){
		"schema name":      func(s *engine.Schema) { s.Table.Schema = "x" },
		"table name":       func(s *engine.Schema) { s.Table.Name = "x" },
		"names that shift": func(s *engine.Schema) { s.Table = engine.TableName{Schema: "ab", Name: ""} },
		"relation":         func(s *engine.Schema) { s.RelationOID = 6 },
		"identity":         func(s *engine.Schema) { s.ReplicaIdentity = engine.IdentityFull },
		"column name":      func(s *engine.Schema) { s.Columns[1].Name = "w" },
		"column number":    func(s *engine.Schema) { s.Columns[1].Number = 3 },
		"type":             func(s *engine.Schema) { s.Columns[1].TypeOID = 26 },
		"type name":        func(s *engine.Schema) { s.Columns[1].TypeName = "citext" },
		"type modifier":    func(s *engine.Schema) { s.Columns[1].TypeMod = 8 },
		"base type":        func(s *engine.Schema) { s.Columns[1].BaseOID = 25 },
		"base type's name": func(s *engine.Schema) { s.Columns[1].BaseOID, s.Columns[1].BaseName = 25, "text" },
		"key":              func(s *engine.Schema) { s.Columns[1].Key = true },
		"order":            func(s *engine.Schema) { slices.Reverse(s.Columns) },
		"dropped":          func(s *engine.Schema) { s.Columns = s.Columns[:1] },
		"added": func(s *engine.Schema) {
			s.Columns = append(s.Columns, engine.Column{Name: "n", Number: 3})
		},
	} {
		s := base()
		alter(s)
		if have, taken := seen[s.Fingerprint()]; taken {
			t.Errorf("%s gives the fingerprint of %s", name, have)
		}
		seen[s.Fingerprint()] = name
	}
}

// TestSchemaSet: IDs grow, from above those known, and the newest shape of a table
// has the highest, also one that the table has had before.
func TestSchemaSet(t *testing.T) {
	t.Parallel()
	known := tableOf(7, 2)
	set := engine.NewSchemaSet(known, tableOf(5, 3))
	if got, isNew := set.Define(tableOf(0, 2)); got != known || isNew {
		t.Errorf("the newest shape gave schema %d, new %v", got.ID, isNew)
	}
	if got, isNew := set.Define(tableOf(0, 3)); got.ID != 8 || !isNew {
		t.Errorf("a shape that comes back gave schema %d, new %v", got.ID, isNew)
	}
	for id := uint32(5); id <= 8; id++ {
		if got := set.Get(id); (got != nil) != (id != 6) || got != nil && got.ID != id {
			t.Errorf("ID %d is schema %v", id, got)
		}
	}
	const workers, shapes = 8, 37
	var mu sync.Mutex
	all := map[uint32]int{} // columns by ID
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for n := range shapes {
				s, _ := set.Define(tableOf(0, n))
				mu.Lock()
				if have, ok := all[s.ID]; ok && have != n || len(s.Columns) != n || s.ID <= 8 && n != 3 {
					t.Errorf("schema %d has %d columns, asked for %d; had %d", s.ID, len(s.Columns), n, have)
				}
				all[s.ID] = n
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	for id := uint32(9); id < 9+uint32(len(all))-1; id++ {
		if _, ok := all[id]; !ok {
			t.Errorf("%d IDs given out, and not %d", len(all), id)
		}
	}
}

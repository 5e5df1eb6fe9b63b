package ingest

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/tributary-dev/tributary/pkg/engine"
)

// keys are the idempotency keys that are remembered, in the order of their
// commits. The store has the same, each as a fact of its own.
type keys struct {
	max    int
	retain time.Duration
	byFact map[string]Result
	order  []string // oldest first
}

// savedKey is what the store has of a key.
type savedKey struct {
	Origin   string          `json:"o"`
	Epoch    engine.Epoch    `json:"e"`
	Position engine.Position `json:"p"`
	Time     engine.Time     `json:"t"`
	Rows     int             `json:"n"`
}

func quoteFact(writer string) string { return strconv.Quote(writer) }

func (r *Result) save() []byte {
	b, _ := json.Marshal(savedKey{r.Log.Origin, r.Log.Epoch, r.Position, r.Time, r.Rows}) // it has nothing that could fail
	return b
}

// restore takes in what the store has.
func (k *keys) restore(facts func(func(string, []byte) bool)) error {
	k.byFact, k.order = map[string]Result{}, nil
	var bad error
	facts(func(key string, v []byte) bool {
		var s savedKey
		if err := json.Unmarshal(v, &s); err != nil {
			bad = fmt.Errorf("what the store remembers of idempotency key %s cannot be read: %w", key, err)
			return false
		}
		k.byFact[key] = Result{Log: engine.LogID{Origin: s.Origin, Epoch: s.Epoch}, Position: s.Position, Time: s.Time, Rows: s.Rows}
		k.order = append(k.order, key)
		return true
	})
	slices.SortFunc(k.order, func(a, b string) int { // times grow with commits, in every epoch
		x, y := k.byFact[a], k.byFact[b]
		return int(min(max(int64(x.Time)-int64(y.Time), -1), 1))
	})
	return bad
}

// forgets is how many keys, of those that are oldest, go with one commit of a
// batch: more than come, so that they become fewer when the bounds are lowered.
const forgets = 4

// due returns the facts to forget, of which skip are on their way out, when more
// are on their way in.
func (k *keys) due(now engine.Time, skip, more int) []string {
	n := skip
	for n < len(k.order) && n-skip < forgets {
		age := time.Duration(0)
		if t := k.byFact[k.order[n]].Time; t < now {
			age = time.Duration(now-t) * time.Microsecond
		}
		if len(k.order)-n+more <= k.max && age <= k.retain {
			break
		}
		n++
	}
	return k.order[skip:n]
}

// committed takes in what a commit has remembered and forgotten.
func (k *keys) committed(added []*request, forgotten int) {
	for _, f := range k.order[:forgotten] {
		delete(k.byFact, f)
	}
	k.order = k.order[forgotten:]
	for _, r := range added {
		k.byFact[r.fact] = r.result
		k.order = append(k.order, r.fact)
	}
}

package relay

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/tributary-dev/tributary/pkg/engine"
)

// known is what a relay knows of the leaves below it. The time of a write stands for
// its version: it never falls within an origin.
type known struct {
	marks  map[engine.LogID]engine.Time // up to which all of a log has come
	saved  map[engine.LogID]engine.Time // of them, on disk: see save
	covers map[string]covered           // the newest of each origin

	// of the commit under way
	seen  map[engine.LogID]engine.Time
	come  map[engine.LogID]engine.Time // up to which all of a log has come, by a child whose cursor has moved
	fresh map[engine.LogID]struct{}    // seen since a cursor moved
	news  map[string]covered
	group []string // origins that the covers which come are of
	last  engine.LogID
	mark  engine.Time // of last
	top   engine.Time // seen of last
	dead  bool        // a newer epoch of last has said what stands
}

// covered is the newest cover of an origin.
type covered struct {
	Origin string       `json:"o"`
	Epoch  engine.Epoch `json:"e"`
	Time   engine.Time  `json:"t"`
	// Place is where it is in the relay's log. It is served with the keys that stand
	// when it is read.
	Place   uint64             `json:"p"`
	Retires bool               `json:"r,omitempty"`
	Gone    bool               `json:"g,omitempty"` // see engine.Mark
	Tables  []engine.TableName `json:"tables"`
}

func (c *covered) log() engine.LogID { return engine.LogID{Origin: c.Origin, Epoch: c.Epoch} }

const (
	metaCover    = "relay/cover/"
	metaMark     = "relay/mark/"
	metaComplete = "relay/complete"
	metaGap      = "relay/gap"
	metaTables   = "relay/tables"
)

func setMeta(tx engine.Tx, key string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return tx.SetMeta(key, b)
}

// meta reads what setMeta wrote, if anything.
func meta(v engine.View, key string, to any) error {
	b := v.Meta(key)
	if b == nil {
		return nil
	}
	if err := json.Unmarshal(b, to); err != nil {
		return fmt.Errorf("relay: what is under %q in the store cannot be read: %w", key, err)
	}
	return nil
}

func (k *known) restore(v engine.View) error {
	k.marks, k.saved, k.covers = map[engine.LogID]engine.Time{}, map[engine.LogID]engine.Time{}, map[string]covered{}
	marks, err := Marks(v)
	if err != nil {
		return err
	}
	for _, m := range marks {
		k.marks[m.Log], k.saved[m.Log] = m.Time, m.Time
	}
	all, err := covers(v)
	for _, c := range all {
		k.covers[c.Origin] = c
	}
	return err
}

// savedMark is a mark in the store.
type savedMark struct {
	Origin string       `json:"o"`
	Epoch  engine.Epoch `json:"e"`
	Time   engine.Time  `json:"t"`
}

// Marks returns the marks that a relay's store holds: up to each, all of a leaf's
// log has been in the state. A tombstone goes only at or below its mark, so that who
// takes all rows and tombstones that there are, and these as engine.BaselineSpec has
// them, has missed no delete.
func Marks(v engine.View) (all []engine.Mark, err error) {
	cs, err := covers(v)
	if err != nil {
		return nil, err
	}
	retires := map[engine.LogID]bool{}
	for _, c := range cs {
		retires[c.log()] = c.Retires
	}
	v.ScanMeta(metaMark, func(key string, value []byte) bool {
		var s savedMark
		if err = json.Unmarshal(value, &s); err != nil {
			err = fmt.Errorf("relay: the mark %q cannot be read: %w", key, err)
			return false
		}
		l := engine.LogID{Origin: s.Origin, Epoch: s.Epoch}
		all = append(all, engine.Mark{Log: l, Time: s.Time, Retires: retires[l]})
		return true
	})
	return all, err
}

func covers(v engine.View) (all []covered, err error) {
	v.ScanMeta(metaCover, func(key string, value []byte) bool {
		var c covered
		if err = json.Unmarshal(value, &c); err != nil {
			err = fmt.Errorf("relay: the cover %q cannot be read: %w", key, err)
			return false
		}
		all = append(all, c)
		return true
	})
	return all, err
}

func (k *known) begin() {
	k.seen, k.news, k.group = map[engine.LogID]engine.Time{}, map[string]covered{}, nil
	k.come, k.fresh = map[engine.LogID]engine.Time{}, map[engine.LogID]struct{}{}
	k.last = engine.LogID{}
}

// turn looks at a log.
func (k *known) turn(log engine.LogID) {
	if k.last == log && !log.IsZero() {
		return
	}
	k.keepTop()
	k.fresh[log] = struct{}{}
	k.last, k.mark, k.top = log, max(k.marks[log], k.come[log]), k.seen[log]
	c := k.cover(log.Origin)
	k.dead = c.Retires && c.Epoch > log.Epoch
}

// moved takes what was seen as marks, for the children that come after in the same
// commit: what a child has brought is a prefix of each log once its cursor moves.
func (k *known) moved() {
	k.keepTop()
	k.last = engine.LogID{}
	for l := range k.fresh {
		k.come[l] = max(k.come[l], k.seen[l])
	}
	clear(k.fresh)
}

func (k *known) keepTop() {
	if !k.last.IsZero() {
		k.seen[k.last] = k.top
	}
}

func (k *known) cover(origin string) covered {
	if c, ok := k.news[origin]; ok {
		return c
	}
	return k.covers[origin]
}

func (k *known) judge(s engine.Stamp) engine.Verdict {
	k.turn(s.Log())
	k.top = max(k.top, s.Time)
	return engine.Verdict{Dead: k.dead, Below: s.Time <= k.mark}
}

// peek says what is known of a write that is in the state.
func (k *known) peek(s engine.Stamp) engine.Verdict {
	c := k.covers[s.Origin]
	return engine.Verdict{Dead: c.Retires && c.Epoch > s.Epoch, Below: s.Time <= k.marks[s.Log()]}
}

// covering takes marks that covers are about, and reports whether they say anything
// new. It comes at a place of the log.
func (k *known) covering(marks []engine.Mark, place uint64) (news bool) {
	k.group = k.group[:0]
	for _, m := range marks {
		k.turn(m.Log)
		k.top = max(k.top, m.Time)
		have := k.cover(m.Log.Origin)
		if m.Log.Epoch < have.Epoch || m.Log.Epoch == have.Epoch && m.Time <= have.Time && (have.Retires || !m.Retires) {
			continue
		}
		news = true
		k.group = append(k.group, m.Log.Origin)
		k.news[m.Log.Origin] = covered{m.Log.Origin, m.Log.Epoch, m.Time, place, m.Retires, m.Gone, have.Tables}
	}
	k.keepTop()
	k.last = engine.LogID{}
	return news
}

// covered notes that the covers are of a table too.
func (k *known) covered(t engine.TableName) {
	for _, o := range k.group {
		if c := k.news[o]; !slices.Contains(c.Tables, t) {
			c.Tables = append(slices.Clip(c.Tables), t)
			k.news[o] = c
		}
	}
}

// save writes what has to outlast a crash.
func (k *known) save(tx engine.Tx) error {
	for o, c := range k.news {
		if err := setMeta(tx, metaCover+o, c); err != nil {
			return err
		}
		for l := range k.saved {
			if c.Retires && l.Origin == o && l.Epoch < c.Epoch {
				if err := tx.SetMeta(metaMark+l.String(), nil); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// committed takes over what the commit has brought.
func (k *known) committed() {
	k.keepTop()
	k.last = engine.LogID{}
	for l, t := range k.seen {
		k.marks[l] = max(k.marks[l], t)
	}
	for o, c := range k.news {
		k.covers[o] = c
		if c.Retires {
			older := func(l engine.LogID, _ engine.Time) bool { return l.Origin == o && l.Epoch < c.Epoch }
			maps.DeleteFunc(k.marks, older)
			maps.DeleteFunc(k.saved, older)
		}
	}
}

// saveMarks writes the marks: tombstones go.
func (k *known) saveMarks(tx engine.Tx) error {
	for l, t := range k.marks {
		if k.saved[l] == t {
			continue
		}
		if err := setMeta(tx, metaMark+l.String(), savedMark{l.Origin, l.Epoch, t}); err != nil {
			return err
		}
	}
	return nil
}

// savedMarks notes that the marks are on disk.
func (k *known) savedMarks() { maps.Copy(k.saved, k.marks) }

// Gap is a place in a relay's log before which changes are missing, of tables of
// which every change is delivered.
type Gap struct {
	Place uint64      `json:"place"`
	At    engine.Time `json:"at"`
	Why   string      `json:"why"`
}

func saveGap(tx engine.Tx, g Gap) error { return setMeta(tx, metaGap, g) }

func lastGap(v engine.View) (g Gap, err error) { return g, meta(v, metaGap, &g) }

func complete(v engine.View) (place uint64, err error) { return place, meta(v, metaComplete, &place) }

// delivered is how a table is delivered, in the store: who reads on has to know.
type delivered struct {
	Table    engine.TableName `json:"table"`
	Delivery Delivery         `json:"delivery"`
}

func saveDeliveries(tx engine.Tx, tables map[engine.TableName]Delivery) error {
	all := []delivered{}
	for _, t := range slices.SortedFunc(maps.Keys(tables), engine.TableName.Compare) {
		all = append(all, delivered{t, tables[t]})
	}
	return setMeta(tx, metaTables, all)
}

func deliveries(v engine.View) (map[Delivery]map[engine.TableName]bool, error) {
	var all []delivered
	if err := meta(v, metaTables, &all); err != nil {
		return nil, err
	}
	m := map[Delivery]map[engine.TableName]bool{}
	for _, d := range all {
		if m[d.Delivery] == nil {
			m[d.Delivery] = map[engine.TableName]bool{}
		}
		m[d.Delivery][d.Table] = true
	}
	return m, nil
}

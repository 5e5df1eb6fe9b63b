package archive

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/tributary-dev/tributary/pkg/engine"
)

// Logs and stamps are strings in JSON, as they are in messages, and times are
// strings of digits: many a reader of JSON has no whole numbers of 64 bits.

// parseLog reads what LogID.String gives: origin@epoch. An origin may hold an @.
func parseLog(s string) (engine.LogID, error) {
	i := strings.LastIndexByte(s, '@')
	if i <= 0 {
		return engine.LogID{}, fmt.Errorf("log %q: want origin@epoch", s)
	}
	e, err := strconv.ParseUint(s[i+1:], 10, 64)
	if err != nil {
		return engine.LogID{}, fmt.Errorf("log %q: want origin@epoch, and %q is no number", s, s[i+1:])
	}
	return engine.LogID{Origin: s[:i], Epoch: engine.Epoch(e)}, nil
}

// parseStamp reads what Stamp.String gives: time:origin@epoch:major.minor.
func parseStamp(s string) (engine.Stamp, error) {
	bad := func() (engine.Stamp, error) {
		return engine.Stamp{}, fmt.Errorf("stamp %q: want time:origin@epoch:major.minor", s)
	}
	i, j := strings.IndexByte(s, ':'), strings.LastIndexByte(s, ':')
	if i < 0 || i == j {
		return bad()
	}
	log, err := parseLog(s[i+1 : j])
	if err != nil {
		return engine.Stamp{}, fmt.Errorf("stamp %q: %w", s, err)
	}
	t, err1 := strconv.ParseUint(s[:i], 10, 64)
	major, minor, ok := strings.Cut(s[j+1:], ".")
	a, err2 := strconv.ParseUint(major, 10, 64)
	b, err3 := strconv.ParseUint(minor, 10, 32)
	if err1 != nil || err2 != nil || err3 != nil || !ok {
		return bad()
	}
	return engine.Stamp{
		Time: engine.Time(t), Origin: log.Origin, Epoch: log.Epoch,
		Version: engine.Version{Major: a, Minor: uint32(b)},
	}, nil
}

type cursorJSON struct {
	Log          string      `json:"log"`
	Position     string      `json:"position"`
	Time         engine.Time `json:"time,omitempty,string"`
	Order        string      `json:"order,omitempty"`
	CompleteFrom engine.Time `json:"completeFrom,omitempty,string"`
}

// MarshalJSON writes the cursor as the format has it.
func (c Cursor) MarshalJSON() ([]byte, error) {
	return json.Marshal(cursorJSON{c.Log.String(), string(c.Position), c.Time, c.Order, c.CompleteFrom})
}

// UnmarshalJSON reads what MarshalJSON writes.
func (c *Cursor) UnmarshalJSON(b []byte) error {
	var j cursorJSON
	if err := json.Unmarshal(b, &j); err != nil {
		return err
	}
	log, err := parseLog(j.Log)
	if err != nil {
		return err
	}
	*c = Cursor{log, engine.Position(j.Position), j.Time, j.Order, j.CompleteFrom}
	return nil
}

// Stamps are stamps that have a form in JSON.
type Stamps []engine.Stamp

// MarshalJSON writes the stamps as the format has them.
func (s Stamps) MarshalJSON() ([]byte, error) {
	out := make([]string, len(s))
	for i := range s {
		out[i] = s[i].String()
	}
	return json.Marshal(out)
}

// UnmarshalJSON reads what MarshalJSON writes.
func (s *Stamps) UnmarshalJSON(b []byte) error {
	var in []string
	if err := json.Unmarshal(b, &in); err != nil {
		return err
	}
	*s = make(Stamps, len(in))
	for i := range in {
		var err error
		if (*s)[i], err = parseStamp(in[i]); err != nil {
			return err
		}
	}
	return nil
}

// newest adds a truncate to those of each origin; ordered by origin.
func (s Stamps) newest(t engine.Stamp) Stamps {
	i, ok := slices.BinarySearchFunc(s, t.Origin, func(a engine.Stamp, o string) int { return strings.Compare(a.Origin, o) })
	if !ok {
		return slices.Insert(s, i, t)
	}
	if t.Compare(s[i]) > 0 {
		s[i] = t
	}
	return s
}

// of returns the newest truncate of an origin.
func (s Stamps) of(origin string) engine.Stamp {
	if i, ok := slices.BinarySearchFunc(s, origin, func(a engine.Stamp, o string) int { return strings.Compare(a.Origin, o) }); ok {
		return s[i]
	}
	return engine.Stamp{}
}

type tableJSON struct {
	Schema string `json:"schema"`
	Name   string `json:"name"`
}

type columnJSON struct {
	Name     string `json:"name"`
	Number   int16  `json:"number,omitempty"`
	TypeOID  uint32 `json:"typeOID,omitempty"`
	TypeName string `json:"type,omitempty"`
	TypeMod  int32  `json:"typeMod,omitempty"`
	Key      bool   `json:"key,omitempty"`
	BaseOID  uint32 `json:"baseOID,omitempty"`
	BaseName string `json:"baseType,omitempty"`
}

func columnsJSON(cs []engine.Column) []columnJSON {
	out := make([]columnJSON, len(cs))
	for i, c := range cs {
		out[i] = columnJSON{c.Name, c.Number, c.TypeOID, c.TypeName, c.TypeMod, c.Key, c.BaseOID, c.BaseName}
	}
	return out
}

func columnsOf(js []columnJSON) []engine.Column {
	if js == nil {
		return nil
	}
	out := make([]engine.Column, len(js))
	for i, c := range js {
		out[i] = engine.Column{
			Name: c.Name, Number: c.Number, TypeOID: c.TypeOID, TypeName: c.TypeName, TypeMod: c.TypeMod,
			Key: c.Key, BaseOID: c.BaseOID, BaseName: c.BaseName,
		}
	}
	return out
}

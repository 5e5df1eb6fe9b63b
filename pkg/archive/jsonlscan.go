package archive

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"unicode/utf8"

	"github.com/tributary-dev/tributary/pkg/engine"
)

// scanner reads a record's line of exactly the shape that jsonEncoder writes. Of any
// other line it says that it is not of that shape, and nothing of what it has read counts.
type scanner struct {
	rest []byte
	text []byte // of a string with escapes
}

// word takes what comes next, if it is w.
func (s *scanner) word(w string) bool {
	if len(s.rest) < len(w) || string(s.rest[:len(w)]) != w {
		return false
	}
	s.rest = s.rest[len(w):]
	return true
}

// number takes digits: a whole number without leading zeros.
func (s *scanner) number() (v uint64, ok bool) {
	i := 0
	for ; i < len(s.rest) && i < 19 && s.rest[i]-'0' <= 9; i++ {
		v = 10*v + uint64(s.rest[i]-'0')
	}
	ok = i == 1 || i > 1 && s.rest[0] != '0'
	s.rest = s.rest[i:]
	return v, ok
}

// special returns where the first byte of b is that is not simply part of a string: a
// quote, a backslash or a control character.
func special(b []byte) int {
	const ones, high = 0x0101010101010101, 0x8080808080808080
	i := 0
	for ; i+8 <= len(b); i += 8 {
		x := binary.LittleEndian.Uint64(b[i:])
		quote, slash := x^'"'*ones, x^'\\'*ones
		// Of the bytes that this marks, the lowest is right.
		if m := ((quote-ones)&^quote | (slash-ones)&^slash | (x-' '*ones)&^x) & high; m != 0 {
			return i + bits.TrailingZeros64(m)/8
		}
	}
	for ; i < len(b); i++ {
		if c := b[i]; c == '"' || c == '\\' || c < ' ' {
			break
		}
	}
	return i
}

// quoted takes a string. It is valid until the next one is taken.
func (s *scanner) quoted() (v []byte, ok bool) {
	if !s.word(`"`) {
		return nil, false
	}
	i := special(s.rest)
	if i == len(s.rest) {
		return nil, false
	}
	if s.rest[i] == '"' {
		v, s.rest = s.rest[:i:i], s.rest[i+1:]
		return v, true
	}
	s.text = s.text[:0]
	for {
		s.text = append(s.text, s.rest[:i]...)
		s.rest = s.rest[i:]
		if s.word(`"`) {
			return s.text, utf8.Valid(s.text) // of what is not, encoding/json makes something else
		}
		if len(s.rest) < 2 || s.rest[0] != '\\' {
			return nil, false
		}
		c := s.rest[1]
		s.rest = s.rest[2:]
		switch c {
		case '"', '\\':
		case 'n':
			c = '\n'
		case 'r':
			c = '\r'
		case 't':
			c = '\t'
		case 'u':
			var hi, lo int
			if len(s.rest) < 4 || s.rest[0] != '0' || s.rest[1] != '0' {
				return nil, false
			}
			hi, lo = bytes.IndexByte([]byte(hexDigits), s.rest[2]), bytes.IndexByte([]byte(hexDigits), s.rest[3])
			if hi < 0 || lo < 0 || hi > 7 {
				return nil, false
			}
			c = byte(hi<<4 | lo)
			s.rest = s.rest[4:]
		default:
			return nil, false
		}
		s.text = append(s.text, c)
		if i = special(s.rest); i == len(s.rest) {
			return nil, false
		}
	}
}

// maxLogs bounds the names of logs that a decoder remembers.
const maxLogs = 1024

// logOf is parseLog, which makes a string each time.
func (j *jsonDecoder) logOf(text []byte) (engine.LogID, bool) {
	if l, ok := j.logs[string(text)]; ok {
		return l, true
	}
	l, err := parseLog(string(text))
	if err != nil || !utf8.Valid(text) {
		return l, false
	}
	if j.logs == nil || len(j.logs) == maxLogs {
		j.logs = map[string]engine.LogID{}
	}
	j.logs[string(text)] = l
	return l, true
}

// stampOf is parseStamp, without a string.
func (j *jsonDecoder) stampOf(text []byte) (st engine.Stamp, ok bool) {
	s := scanner{rest: text}
	t, ok1 := s.number()
	i := bytes.LastIndexByte(s.rest, ':')
	if !ok1 || i < 1 || s.rest[0] != ':' {
		return st, false
	}
	log, ok2 := j.logOf(s.rest[1:i])
	s.rest = s.rest[i+1:]
	major, ok3 := s.number()
	dot := s.word(".")
	minor, ok4 := s.number()
	st = engine.Stamp{Time: engine.Time(t), Origin: log.Origin, Epoch: log.Epoch, Version: engine.Version{Major: major, Minor: uint32(minor)}}
	return st, ok2 && ok3 && dot && ok4 && minor < 1<<32 && len(s.rest) == 0
}

// scan reads a line into j.last. ok is false if the line has another shape, or is wrong.
func (j *jsonDecoder) scan(line []byte) (hasKey, ok bool) {
	s, e := &j.scanner, &j.last
	s.rest = line
	if len(j.like) > 0 && bytes.HasPrefix(line, j.like) { // as most lines of a base, or of a transaction, do
		e.Op, e.Stamp, e.Log, e.Schema = engine.OpPut, j.likeStamp, j.likeLog, j.likeOf
		if j.head.History == Full {
			e.Log = j.log
		}
		e.Key, s.rest = nil, line[len(j.like):]
		return false, j.scanLast()
	}
	if !s.word(`{"op":"`) {
		return false, false
	}
	switch {
	case s.word(`put"`):
		e.Op = engine.OpPut
	case s.word(`delete"`):
		e.Op = engine.OpDelete
	case s.word(`truncate"`):
		e.Op = engine.OpTruncate
	default:
		return false, false
	}
	if !s.word(`,"stamp":`) {
		return false, false
	}
	text, ok := s.quoted()
	if !ok {
		return false, false
	}
	if e.Stamp, ok = j.stampOf(text); !ok {
		return false, false
	}
	log := e.Stamp.Log()
	e.Log = log
	if s.word(`,"via":`) {
		if text, ok = s.quoted(); !ok {
			return false, false
		}
		if e.Log, ok = j.logOf(text); !ok {
			return false, false
		}
	}
	if j.head.History == Full {
		e.Log = j.log
	}
	if !s.word(`,"schema":`) {
		return false, false
	}
	id, ok := s.number()
	if !ok || id >= 1<<32 {
		return false, false
	}
	if j.schemaOf == nil || j.schemaOf.ID != uint32(id) || j.schemaLog != log {
		j.schemaOf, j.schemaLog = j.schemas[schemaKey{log, uint32(id)}], log
	}
	if e.Schema = j.schemaOf; e.Schema == nil {
		return false, false
	}
	e.Key, e.Row = nil, nil
	if s.word(`,"key":[`) {
		j.key = j.key[:0]
		for {
			if s.word("null") {
				j.key = engine.AppendKeyNull(j.key)
			} else if v, ok := s.quoted(); ok {
				j.key = engine.AppendKeyValue(j.key, v)
			} else {
				return false, false
			}
			if s.word("]") {
				break
			}
			if !s.word(",") {
				return false, false
			}
		}
		e.Key, hasKey = j.key, true
	}
	if e.Op == engine.OpPut {
		if !s.word(`,"row":`) {
			return false, false
		}
		if j.like = j.like[:0]; !hasKey {
			j.like = append(j.like, line[:len(line)-len(s.rest)]...)
			j.likeStamp, j.likeLog, j.likeOf = e.Stamp, e.Log, e.Schema
		}
		return hasKey, j.scanLast()
	}
	return hasKey, s.word("}\n") && len(s.rest) == 0
}

// scanLast takes a row, and the end of the line.
func (j *jsonDecoder) scanLast() (ok bool) {
	if j.row, ok = j.scanRow(j.row[:0], j.last.Schema); !ok {
		return false
	}
	j.last.Row = j.row
	return j.scanner.word("}\n") && len(j.scanner.rest) == 0
}

// scanRow packs a row, and makes its key.
func (j *jsonDecoder) scanRow(dst []byte, schema *engine.Schema) ([]byte, bool) {
	s := &j.scanner
	if !s.word("{") {
		return dst, false
	}
	if j.namesOf != schema {
		j.names, j.namesOf = memberNames(schema), schema
	}
	dst = engine.AppendRowHeader(dst, schema.ID, len(schema.Columns))
	key, keyed := j.keyBuf[:0], false
	first := true
	for i := range schema.Columns {
		rest := s.rest
		if !first && len(rest) > 0 && rest[0] == ',' {
			rest = rest[1:]
		} else if !first && !(len(rest) > 0 && rest[0] == '}') {
			return dst, false
		}
		name := j.names[i]
		if !bytes.HasPrefix(rest, name) {
			if schema.Columns[i].Key {
				return dst, false // entry says what is wrong
			}
			dst = engine.AppendAbsent(dst)
			continue
		}
		first = false
		s.rest = rest[len(name):]
		if s.word("null") {
			if dst = engine.AppendNull(dst); schema.Columns[i].Key {
				key, keyed = engine.AppendKeyNull(key), true
			}
		} else if v, ok := s.quoted(); ok {
			if dst = engine.AppendValue(dst, v); schema.Columns[i].Key {
				key, keyed = engine.AppendKeyValue(key, v), true
			}
		} else {
			return dst, false
		}
	}
	j.keyBuf, j.keyed, j.keyMade = key, keyed, true
	return dst, s.word("}")
}

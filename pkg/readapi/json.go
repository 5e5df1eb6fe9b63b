package readapi

import (
	"encoding/json"
	"strconv"
	"unicode/utf8"

	"github.com/tributary-dev/tributary/pkg/engine"
)

// PostgreSQL's built-in type OIDs that JSON has a form for (pg_type.dat).
const (
	oidBool    = 16
	oidInt8    = 20
	oidInt2    = 21
	oidInt4    = 23
	oidOID     = 26
	oidJSON    = 114
	oidFloat4  = 700
	oidFloat8  = 701
	oidNumeric = 1700
	oidJSONB   = 3802
)

// arrayElement maps the array types whose elements have a JSON form of their
// own, and those of text, to the element's type.
var arrayElement = map[uint32]uint32{
	1000: oidBool, 1005: oidInt2, 1007: oidInt4, 1016: oidInt8, 1028: oidOID,
	1021: oidFloat4, 1022: oidFloat8, 1231: oidNumeric,
	1009: 25, 1015: 1043, 1014: 1042, 2951: 2950, 1182: 1082, 1115: 1114, 1185: 1184,
	199: oidJSON, 3807: oidJSONB,
}

// appendRecord writes a row as a JSON object; with provenance, the row within
// an object that also names the write it came from.
func appendRecord(dst []byte, r *engine.Record, provenance bool) []byte {
	if !provenance {
		return appendRow(dst, r)
	}
	dst = append(dst, `{"row":`...)
	dst = appendStamp(append(appendRow(dst, r), ','), &r.Stamp)
	return append(dst, '}')
}

// appendStamp writes the write that a row is of, as members of an object.
func appendStamp(dst []byte, s *engine.Stamp) []byte {
	dst = append(dst, `"origin":`...)
	dst = appendString(dst, []byte(s.Origin))
	dst = append(dst, `,"epoch":`...)
	dst = strconv.AppendUint(dst, uint64(s.Epoch), 10)
	dst = append(dst, `,"version":"`...)
	dst = strconv.AppendUint(dst, s.Version.Major, 10)
	dst = append(dst, '.')
	dst = strconv.AppendUint(dst, uint64(s.Version.Minor), 10)
	dst = append(dst, `","time":"`...)
	dst = s.Time.Wall().AppendFormat(dst, "2006-01-02T15:04:05.000000Z")
	return append(dst, '"')
}

func appendRow(dst []byte, r *engine.Record) []byte {
	dst = append(dst, '{')
	first := true
	for i, c := range r.Row.Columns() {
		if c.State == engine.Absent || i >= len(r.Schema.Columns) {
			continue
		}
		if !first {
			dst = append(dst, ',')
		}
		first = false
		col := &r.Schema.Columns[i]
		dst = append(appendString(dst, []byte(col.Name)), ':')
		if c.State == engine.Null {
			dst = append(dst, "null"...)
			continue
		}
		dst = appendValue(dst, col.TypeOID, c.Value)
	}
	return append(dst, '}')
}

// appendValue writes a value in the JSON form of its type; a value that has
// none (an infinity, a range, an array with bounds) is its text as a string.
func appendValue(dst []byte, oid uint32, v []byte) []byte {
	switch oid {
	case oidBool:
		if string(v) == "t" {
			return append(dst, "true"...)
		}
		return append(dst, "false"...)
	case oidInt2, oidInt4, oidInt8, oidOID, oidFloat4, oidFloat8, oidNumeric, oidJSON, oidJSONB:
		if json.Valid(v) { // digits and duplicate keys stay as they are
			return append(dst, v...)
		}
		return appendString(dst, v)
	}
	if el, ok := arrayElement[oid]; ok {
		if out, ok := appendArray(dst, el, v); ok {
			return out
		}
	}
	return appendString(dst, v)
}

// appendArray writes PostgreSQL's array text form (manual, "Array Input and
// Output Syntax") as a JSON array. It declines one with explicit bounds.
func appendArray(dst []byte, element uint32, v []byte) ([]byte, bool) {
	p := arrayParser{rest: v, element: element}
	out, ok := p.array(dst)
	return out, ok && len(p.rest) == 0
}

type arrayParser struct {
	rest    []byte
	element uint32
}

func (p *arrayParser) array(dst []byte) ([]byte, bool) {
	if len(p.rest) == 0 || p.rest[0] != '{' {
		return dst, false
	}
	p.rest = p.rest[1:]
	dst = append(dst, '[')
	for first := true; len(p.rest) > 0; first = false {
		switch {
		case p.rest[0] == '}':
			p.rest = p.rest[1:]
			return append(dst, ']'), true
		case !first && p.rest[0] == ',':
			p.rest = p.rest[1:]
			dst = append(dst, ',')
		case !first:
			return dst, false
		}
		var ok bool
		if dst, ok = p.item(dst); !ok {
			return dst, false
		}
	}
	return dst, false
}

func (p *arrayParser) item(dst []byte) ([]byte, bool) {
	if len(p.rest) == 0 {
		return dst, false
	}
	if p.rest[0] == '{' {
		return p.array(dst)
	}
	quoted := p.rest[0] == '"'
	i := 0
	if quoted {
		i = 1
	}
	var v []byte
	for ; i < len(p.rest); i++ {
		c := p.rest[i]
		if quoted && c == '"' || !quoted && (c == ',' || c == '}') {
			break
		}
		if c == '\\' {
			if i++; i == len(p.rest) {
				return dst, false
			}
			c = p.rest[i]
		}
		v = append(v, c)
	}
	if quoted {
		i++
	}
	if i > len(p.rest) {
		return dst, false
	}
	p.rest = p.rest[i:]
	if !quoted && string(v) == "NULL" {
		return append(dst, "null"...), true
	}
	return appendValue(dst, p.element, v), true
}

const hexDigits = "0123456789abcdef"

// appendString writes a JSON string. Text from PostgreSQL is UTF-8; other bytes
// are replaced as encoding/json does.
func appendString(dst, s []byte) []byte {
	dst = append(dst, '"')
	for i := 0; i < len(s); {
		c := s[i]
		if c < utf8.RuneSelf {
			i++
			switch {
			case c == '"' || c == '\\':
				dst = append(dst, '\\', c)
			case c == '\n':
				dst = append(dst, '\\', 'n')
			case c == '\t':
				dst = append(dst, '\\', 't')
			case c == '\r':
				dst = append(dst, '\\', 'r')
			case c < ' ':
				dst = append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
			default:
				dst = append(dst, c)
			}
			continue
		}
		r, n := utf8.DecodeRune(s[i:])
		if r == utf8.RuneError && n == 1 {
			dst = append(dst, "\ufffd"...)
		} else {
			dst = append(dst, s[i:i+n]...)
		}
		i += n
	}
	return append(dst, '"')
}

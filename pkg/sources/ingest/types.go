package ingest

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// kind is how values of a type are checked and written.
type kind uint8

const (
	kindOther kind = iota // any text
	kindText
	kindChar
	kindInt
	kindNumeric
	kindFloat
	kindBool
	kindUUID
	kindJSON
	kindBytea
	kindDate
	kindTimestamp
	kindTimestampTZ
)

// pgType is a column's type.
type pgType struct {
	name   string // as format_type prints it
	oid    uint32 // 0 where it depends on the database
	mod    int32  // atttypmod; -1 for none
	kind   kind
	bits   int // kindInt, kindFloat
	length int // in characters; kindText and kindChar; 0: any
	// Digits in all and after the point; kindNumeric; precision 0: any.
	precision, scale int
}

// What PostgreSQL calls its types, and what else they are called.
var typeNames = map[string]pgType{
	"smallint": {oid: 21, kind: kindInt, bits: 16}, "integer": {oid: 23, kind: kindInt, bits: 32}, "bigint": {oid: 20, kind: kindInt, bits: 64},
	"numeric": {oid: 1700, kind: kindNumeric}, "real": {oid: 700, kind: kindFloat, bits: 32}, "double precision": {oid: 701, kind: kindFloat, bits: 64},
	"text": {oid: 25, kind: kindText}, "character varying": {oid: 1043, kind: kindText}, "character": {oid: 1042, kind: kindChar, length: 1}, "name": {oid: 19, kind: kindText},
	"boolean": {oid: 16, kind: kindBool}, "uuid": {oid: 2950, kind: kindUUID}, "json": {oid: 114, kind: kindJSON}, "jsonb": {oid: 3802, kind: kindJSON}, "bytea": {oid: 17, kind: kindBytea},
	"date": {oid: 1082, kind: kindDate}, "timestamp without time zone": {oid: 1114, kind: kindTimestamp}, "timestamp with time zone": {oid: 1184, kind: kindTimestampTZ},
	"time without time zone": {oid: 1083}, "time with time zone": {oid: 1266}, "interval": {oid: 1186}, "money": {oid: 790}, "oid": {oid: 26, kind: kindInt, bits: 64},
	"inet": {oid: 869}, "cidr": {oid: 650}, "macaddr": {oid: 829}, "macaddr8": {oid: 774}, "xml": {oid: 142}, "point": {oid: 600}, "line": {oid: 628}, "lseg": {oid: 601}, "box": {oid: 603},
	"path": {oid: 602}, "polygon": {oid: 604}, "circle": {oid: 718}, "bit": {oid: 1560}, "bit varying": {oid: 1562}, "tsvector": {oid: 3614}, "tsquery": {oid: 3615},
	"int4range": {oid: 3904}, "int8range": {oid: 3926}, "numrange": {oid: 3906}, "tsrange": {oid: 3908}, "tstzrange": {oid: 3910}, "daterange": {oid: 3912},
	"citext": {}, "hstore": {}, "ltree": {},
}

var typeAliases = map[string]string{
	"int2": "smallint", "int": "integer", "int4": "integer", "int8": "bigint", "decimal": "numeric", "float4": "real", "float8": "double precision", "float": "double precision",
	"varchar": "character varying", "char": "character", "bpchar": "character", "bool": "boolean", "timestamp": "timestamp without time zone", "timestamptz": "timestamp with time zone",
	"time": "time without time zone", "timetz": "time with time zone", "varbit": "bit varying",
}

// Array types, by their elements'.
var arrayOIDs = map[uint32]uint32{
	16: 1000, 21: 1005, 23: 1007, 20: 1016, 26: 1028, 700: 1021, 701: 1022, 1700: 1231, 25: 1009, 1043: 1015, 1042: 1014, 2950: 2951, 1082: 1182, 1114: 1115, 1184: 1185, 114: 199, 3802: 3807, 17: 1001,
}

var typeForm = regexp.MustCompile(`^([a-z_][a-z0-9_ ]*?)\s*(?:\(\s*(\d{1,7})\s*(?:,\s*(\d{1,4})\s*)?\))?\s*((?:\[\s*\])*)$`)

// parseType reads the name of a PostgreSQL type, such as numeric(10,2).
func parseType(text string) (pgType, error) {
	lower := strings.Join(strings.Fields(strings.ToLower(text)), " ")
	if strings.Contains(lower, ".") || strings.Contains(lower, `"`) { // a type of the user's own
		return pgType{name: strings.TrimSpace(text), mod: -1}, nil
	}
	m := typeForm.FindStringSubmatch(lower)
	if m == nil {
		return pgType{}, fmt.Errorf("%q is not the name of a PostgreSQL type: write one such as bigint, numeric(12,2) or text; a type of your own with its schema", text)
	}
	name := m[1]
	if full, ok := typeAliases[name]; ok {
		name = full
	}
	t, ok := typeNames[name]
	if !ok {
		return pgType{}, fmt.Errorf("%q is not a type that PostgreSQL has: write one such as bigint, numeric(12,2) or text; a type of your own with its schema", text)
	}
	t.name, t.mod = name, -1
	one, _ := strconv.Atoi(m[2])
	two, _ := strconv.Atoi(m[3])
	switch {
	case m[2] == "":
		if name == "character" {
			t.name, t.mod = "character(1)", 5
		}
	case t.kind == kindNumeric:
		if one < 1 || one > 1000 || two > one {
			return pgType{}, fmt.Errorf("%q must have from 1 to 1000 digits, and not more of them after the point than in all", text)
		}
		t.precision, t.scale, t.mod = one, two, int32(one<<16|two)+4
		t.name = fmt.Sprintf("numeric(%d,%d)", one, two)
	case m[3] != "":
		return pgType{}, fmt.Errorf("%q must not have two numbers", text)
	case name == "character varying" || name == "character":
		if one < 1 {
			return pgType{}, fmt.Errorf("%q must have a length of at least 1", text)
		}
		t.length, t.mod, t.name = one, int32(one)+4, fmt.Sprintf("%s(%d)", name, one)
	case t.kind == kindOther || t.kind == kindTimestamp || t.kind == kindTimestampTZ:
		t.kind, t.mod, t.name = kindOther, -1, lower
	default:
		return pgType{}, fmt.Errorf("%q must not have a number: leave it out", text)
	}
	if m[4] != "" {
		t = pgType{name: t.name + strings.ReplaceAll(m[4], " ", ""), oid: arrayOIDs[t.oid], mod: t.mod}
	}
	return t, nil
}

// keys reports whether equal values of the type have one text form, so that they
// can tell rows apart.
func (t *pgType) keys() bool {
	switch t.kind {
	case kindText, kindChar, kindInt, kindBool, kindUUID, kindBytea, kindDate, kindTimestamp, kindTimestampTZ:
		return true
	}
	return false
}

// adds reports whether numbers can be added to values of the type, exactly.
func (t *pgType) adds() bool { return t.kind == kindInt || t.kind == kindNumeric }

// holds reports whether every value of the type from is one of t.
func (t *pgType) holds(from *pgType) bool {
	switch {
	case t.name == from.name:
		return true
	case t.kind == kindInt && t.oid != 26:
		return from.kind == kindInt && from.oid != 26 && from.bits <= t.bits
	case t.kind == kindNumeric:
		return from.kind == kindInt && t.precision == 0 ||
			from.kind == kindNumeric && (t.precision == 0 || from.precision > 0 && from.scale == t.scale && from.precision <= t.precision)
	case t.kind == kindText:
		return from.kind == kindText && (t.length == 0 || from.length > 0 && from.length <= t.length)
	}
	return false
}

var (
	uuidForm = regexp.MustCompile(`^\{?[0-9a-fA-F]{8}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{12}\}?$`)
	intForm  = regexp.MustCompile(`^([+-]?)0*(\d+)$`)
	zoned    = regexp.MustCompile(`(Z|z|[+-]\d\d(:?\d\d)?)$`)
)

// canonical returns a value as PostgreSQL prints it, or says why it is none of
// the type.
func (t *pgType) canonical(v string) (string, error) {
	if !utf8.ValidString(v) {
		return "", fmt.Errorf("the value is not UTF-8: write bytes as bytea, such as \\x00ff")
	}
	if strings.IndexByte(v, 0) >= 0 {
		return "", fmt.Errorf("the value holds a zero byte, which PostgreSQL's text cannot")
	}
	no := func() (string, error) { return "", fmt.Errorf("%s is not a value of type %s", quoted(v), t.name) }
	switch t.kind {
	case kindText, kindChar:
		n := utf8.RuneCountInString(v)
		if t.length > 0 && n > t.length {
			return "", fmt.Errorf("the value has %d characters, and %s has room for %d", n, t.name, t.length)
		}
		if t.kind == kindChar {
			v += strings.Repeat(" ", t.length-n)
		}
		return v, nil
	case kindInt:
		m := intForm.FindStringSubmatch(v)
		if m == nil {
			return no()
		}
		text := strings.TrimPrefix(m[1], "+") + m[2]
		n, err := strconv.ParseInt(text, 10, t.bits)
		if err != nil || t.oid == 26 && (n < 0 || n > 1<<32-1) {
			return "", fmt.Errorf("%s is out of the range of type %s", quoted(v), t.name)
		}
		return strconv.FormatInt(n, 10), nil
	case kindNumeric:
		switch v {
		case "NaN":
			return v, nil
		case "Infinity", "-Infinity":
			if t.precision > 0 {
				return no()
			}
			return v, nil
		}
		d, err := parseDecimal(v)
		if err != nil {
			return "", err
		}
		return t.fit(d)
	case kindFloat:
		switch v {
		case "NaN", "Infinity", "-Infinity":
			return v, nil
		}
		if _, err := strconv.ParseFloat(v, t.bits); err != nil || strings.ContainsAny(v, "xXpP_iInN") {
			return no()
		}
		return v, nil
	case kindBool:
		switch v {
		case "t", "true":
			return "t", nil
		case "f", "false":
			return "f", nil
		}
		return no()
	case kindUUID:
		if !uuidForm.MatchString(v) {
			return no()
		}
		x := strings.ToLower(strings.NewReplacer("-", "", "{", "", "}", "").Replace(v))
		return x[:8] + "-" + x[8:12] + "-" + x[12:16] + "-" + x[16:20] + "-" + x[20:], nil
	case kindJSON:
		if !json.Valid([]byte(v)) {
			return no()
		}
		return v, nil
	case kindBytea:
		b, err := hex.DecodeString(strings.TrimPrefix(v, `\x`))
		if err != nil || !strings.HasPrefix(v, `\x`) {
			return "", fmt.Errorf("%s is not a value of type bytea: write \\x and two hexadecimal digits a byte", quoted(v))
		}
		return `\x` + hex.EncodeToString(b), nil
	case kindDate, kindTimestamp, kindTimestampTZ:
		return t.canonicalTime(v)
	}
	return v, nil
}

// canonicalTime reads dates and times of the years 1 to 9999 in ISO 8601.
func (t *pgType) canonicalTime(v string) (string, error) {
	if v == "infinity" || v == "-infinity" {
		return v, nil
	}
	const mend = "%s is not a value of type %s that is understood here: write %s"
	if t.kind == kindDate {
		d, err := time.Parse("2006-01-02", v)
		if err != nil || d.Year() < 1 {
			return "", fmt.Errorf(mend, quoted(v), t.name, "2006-01-02")
		}
		return v, nil
	}
	text, example := strings.Replace(v, "T", " ", 1), "2006-01-02 15:04:05.999999"
	layouts := []string{"2006-01-02 15:04:05"}
	if t.kind == kindTimestampTZ {
		example += "+00"
		layouts = []string{"2006-01-02 15:04:05Z07:00", "2006-01-02 15:04:05Z0700", "2006-01-02 15:04:05Z07"}
		if z := zoned.FindStringIndex(text); z == nil || z[0] < 11 {
			return "", fmt.Errorf(mend, quoted(v), t.name, example+"; the zone is missing")
		}
	}
	for _, l := range layouts {
		at, err := time.Parse(l, text)
		if err != nil {
			continue
		}
		if at.Nanosecond()%1000 != 0 {
			return "", fmt.Errorf("%s has more than six digits of a second, which is all that %s keeps", quoted(v), t.name)
		}
		at = at.UTC()
		if at.Year() < 1 || at.Year() > 9999 {
			continue
		}
		out := at.Format("2006-01-02 15:04:05.999999")
		if t.kind == kindTimestampTZ {
			out += "+00"
		}
		return out, nil
	}
	return "", fmt.Errorf(mend, quoted(v), t.name, example)
}

// quoted is a value as it is shown to a person.
func quoted(v string) string {
	const most = 60
	if len(v) > most {
		v = strings.ToValidUTF8(v[:most], "") + "..."
	}
	return strconv.Quote(v)
}

package scope

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/tributary-dev/tributary/pkg/engine"
)

// matcher reports whether a column's value, in text form, is wanted.
type matcher func(value []byte) bool

// form brings a value into the one text that all equal values of its type have;
// ok is false if it is none of the type.
type form func(text string) (normal string, ok bool)

// family is a kind of type that values are compared by.
type family struct {
	name   string
	form   form
	sample string // what a value looks like
	prefix form   // what LIKE compares; nil where it does not apply
}

var (
	familyText   = family{"text", asIs, "", asIs}
	familyChar   = family{"character", trimBlanks, "", asIs}
	familyCitext = family{"citext", foldCase, "", foldCase}
	familyBool   = family{"boolean", boolean, "true or false", nil}
	familyInt    = family{"integer", integer, "42", nil}
	familyNum    = family{"numeric", numeric, "42.5", nil}
	familyReal   = family{"real", float(32), "42.5", nil}
	familyDouble = family{"double precision", float(64), "42.5", nil}
	familyUUID   = family{"uuid", uuid, "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", nil}
	familyDate   = family{"date", date, "2024-02-29", nil}
	familyTime   = family{"time", clock, "13:45:10.5", nil}
	familyStamp  = family{"timestamp", timestamp, "2024-02-29 13:45:10", nil}
	familyStampZ = family{"timestamp with time zone", timestampTZ, "2024-02-29 13:45:10+01", nil}
	familyBytea  = family{"bytea", bytea, `\x0fab`, nil}
	familyInet   = family{"inet", inet, "10.1.0.0/16", nil}
	familyMac    = family{"macaddr", mac, "08:00:2b:01:02:03", nil}
)

// families are the built-in types that can be compared, by their OID in
// pg_type.
var families = map[uint32]*family{
	16: &familyBool, 17: &familyBytea, 18: &familyText, 19: &familyText, 20: &familyInt, 21: &familyInt, 23: &familyInt,
	25: &familyText, 26: &familyInt, 650: &familyInet, 700: &familyReal, 701: &familyDouble, 829: &familyMac, 869: &familyInet,
	1042: &familyChar, 1043: &familyText, 1082: &familyDate, 1083: &familyTime, 1114: &familyStamp, 1184: &familyStampZ,
	1700: &familyNum, 2950: &familyUUID,
}

// familyOf returns how a column is compared, or nil.
func familyOf(c *engine.Column) *family {
	oid, typ := c.TypeOID, c.TypeName
	if c.BaseOID != 0 {
		oid, typ = c.BaseOID, c.BaseName
	}
	if f := families[oid]; f != nil {
		return f
	}
	name := strings.Trim(typ[strings.LastIndexByte(typ, '.')+1:], `"`)
	if name == "citext" {
		return &familyCitext
	}
	return nil
}

// compile makes the matcher of a condition on a column.
func compile(col *engine.Column, c Condition) (matcher, error) {
	f := familyOf(col)
	if f == nil {
		typ := col.TypeName
		if typ == "" {
			typ = fmt.Sprintf("with OID %d", col.TypeOID)
		}
		return nil, fmt.Errorf("column %q is of type %s, of which two texts can mean one value, or which only the database knows: choose by a column of text, a number, a boolean, a date or time, uuid, inet, macaddr, bytea, citext, an enum, or a domain over one of them", col.Name, typ)
	}
	if c.Op == Prefix {
		if f.prefix == nil {
			return nil, fmt.Errorf("column %q is of type %s, and a prefix is one of text: compare it by equality", col.Name, f.name)
		}
		p, _ := f.prefix(c.Values[0])
		return func(v []byte) bool {
			n, _ := f.prefix(string(v))
			return strings.HasPrefix(n, p)
		}, nil
	}
	want := make(map[string]bool, len(c.Values))
	for _, v := range c.Values {
		n, ok := f.form(v)
		if !ok {
			return nil, fmt.Errorf("column %q is of type %s, and %q is no value of it: write it as in %s", col.Name, f.name, v, f.sample)
		}
		want[n] = true
	}
	if len(want) == 1 && f == &familyText {
		only := []byte(c.Values[0])
		return func(v []byte) bool { return bytes.Equal(v, only) }, nil
	}
	if f == &familyText {
		return func(v []byte) bool { return want[string(v)] }, nil
	}
	return func(v []byte) bool {
		n, ok := f.form(string(v))
		return ok && want[n]
	}, nil
}

func asIs(s string) (string, bool) { return s, true }

// trimBlanks: trailing blanks of character(n) have no meaning.
func trimBlanks(s string) (string, bool) { return strings.TrimRight(s, " "), true }

func foldCase(s string) (string, bool) { return strings.ToLower(s), true }

// boolean takes what PostgreSQL takes: unique prefixes of its words, in any case.
func boolean(s string) (string, bool) {
	s = strings.ToLower(strings.TrimSpace(s))
	if s == "" {
		return "", false
	}
	switch {
	case strings.HasPrefix("true", s), strings.HasPrefix("yes", s), s == "on", s == "1":
		return "t", true
	case strings.HasPrefix("false", s), strings.HasPrefix("no", s), s == "off", s == "of", s == "0":
		return "f", true
	}
	return "", false
}

func integer(s string) (string, bool) {
	s = strings.TrimSpace(s)
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return "", false
	}
	return strconv.FormatInt(n, 10), true
}

// numeric is exact, however many digits there are: sign, digits without zeros
// at the ends, and the power of ten of the last.
func numeric(s string) (string, bool) {
	s = strings.TrimSpace(s)
	sign, rest := "", s
	if rest != "" && (rest[0] == '-' || rest[0] == '+') {
		if rest[0] == '-' {
			sign = "-"
		}
		rest = rest[1:]
	}
	switch strings.ToLower(rest) {
	case "nan":
		return "NaN", rest == s
	case "infinity", "inf":
		return sign + "Infinity", true
	}
	exp := 0
	if i := strings.IndexAny(rest, "eE"); i >= 0 {
		n, err := strconv.Atoi(rest[i+1:])
		if err != nil || n > 200_000 || n < -200_000 {
			return "", false
		}
		exp, rest = n, rest[:i]
	}
	whole, frac, _ := strings.Cut(rest, ".")
	digits := whole + frac
	if digits == "" || strings.ContainsFunc(digits, func(r rune) bool { return r < '0' || r > '9' }) {
		return "", false
	}
	exp -= len(frac)
	trimmed := strings.TrimRight(digits, "0")
	exp += len(digits) - len(trimmed)
	if trimmed = strings.TrimLeft(trimmed, "0"); trimmed == "" {
		return "0", true
	}
	return sign + trimmed + "e" + strconv.Itoa(exp), true
}

func float(bits int) form {
	return func(s string) (string, bool) {
		f, err := strconv.ParseFloat(strings.TrimSpace(s), bits)
		if err != nil && !errors.Is(err, strconv.ErrRange) || strings.ContainsAny(s, "xX_") {
			return "", false
		}
		if f == 0 {
			f = 0 // -0 equals 0
			return "0", true
		}
		return strconv.FormatFloat(f, 'g', -1, bits), true
	}
}

// uuid takes upper and lower case, braces, and dashes after any group of four
// digits.
func uuid(s string) (string, bool) {
	s = strings.TrimSpace(s)
	if strings.HasPrefix(s, "{") && strings.HasSuffix(s, "}") {
		s = s[1 : len(s)-1]
	}
	var out [32]byte
	n := 0
	for i := range len(s) {
		c := s[i]
		switch {
		case c == '-' && n > 0 && n%4 == 0 && n < 32:
			continue
		case n == 32, !(c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F'):
			return "", false
		}
		out[n] = c | 0x20 // digits have that bit already
		n++
	}
	return string(out[:n]), n == 32
}

// date takes ISO dates with years of any size, BC, and the infinities.
func date(s string) (string, bool) {
	s = strings.TrimSpace(s)
	if t := strings.ToLower(s); t == "infinity" || t == "-infinity" {
		return t, true
	}
	body, bc := strings.CutSuffix(s, " BC")
	parts := strings.Split(body, "-")
	if len(parts) != 3 || len(parts[0]) < 4 || len(parts[1]) != 2 || len(parts[2]) != 2 {
		return "", false
	}
	var n [3]int
	for i, p := range parts {
		v, err := strconv.ParseUint(p, 10, 31)
		if err != nil {
			return "", false
		}
		n[i] = int(v)
	}
	if n[0] == 0 {
		return "", false
	}
	if bc {
		n[0] = 1 - n[0]
	}
	if t := time.Date(n[0], time.Month(n[1]), n[2], 0, 0, 0, 0, time.UTC); t.Year() != n[0] || int(t.Month()) != n[1] || t.Day() != n[2] {
		return "", false
	}
	return fmt.Sprintf("%d-%02d-%02d", n[0], n[1], n[2]), true
}

func clock(s string) (string, bool) {
	us, ok := clockMicros(strings.TrimSpace(s))
	return strconv.FormatInt(us, 10), ok
}

// clockMicros reads hh:mm[:ss[.ffffff]].
func clockMicros(s string) (int64, bool) {
	s, frac, _ := strings.Cut(s, ".")
	parts := strings.Split(s, ":")
	if len(parts) < 2 || len(parts) > 3 || len(frac) > 6 || frac != "" && len(parts) < 3 {
		return 0, false
	}
	var sec int64
	for i, most := range []uint64{24, 59, 59} {
		var v uint64
		if i < len(parts) {
			var err error
			if v, err = strconv.ParseUint(parts[i], 10, 8); err != nil || len(parts[i]) != 2 || v > most {
				return 0, false
			}
		}
		sec = sec*60 + int64(v)
	}
	us, err := strconv.ParseUint((frac + "000000")[:6], 10, 32)
	total := sec*1_000_000 + int64(us)
	return total, err == nil && total <= 24*3600*1_000_000
}

// splitStamp reads "date time[ BC]" up to a zone, which is returned.
func splitStamp(s string) (day string, us int64, zone string, ok bool) {
	s = strings.TrimSpace(s)
	body, bc := strings.CutSuffix(s, " BC")
	i := strings.IndexAny(body, " T")
	if i < 0 {
		return "", 0, "", false
	}
	d, t := body[:i], body[i+1:]
	if j := strings.IndexAny(t, "+-Zz"); j >= 0 {
		t, zone = t[:j], t[j:]
	}
	if bc {
		d += " BC"
	}
	if day, ok = date(d); !ok {
		return "", 0, "", false
	}
	us, ok = clockMicros(strings.TrimSpace(t))
	return day, us, zone, ok
}

func timestamp(s string) (string, bool) {
	if t := strings.ToLower(strings.TrimSpace(s)); t == "infinity" || t == "-infinity" {
		return t, true
	}
	day, us, zone, ok := splitStamp(s)
	if !ok || zone != "" {
		if day, ok = date(s); !ok {
			return "", false
		}
		us = 0
	}
	return day + " " + strconv.FormatInt(us, 10), true
}

// timestampTZ is the instant: a value without its zone is none.
func timestampTZ(s string) (string, bool) {
	if t := strings.ToLower(strings.TrimSpace(s)); t == "infinity" || t == "-infinity" {
		return t, true
	}
	day, us, zone, ok := splitStamp(s)
	if !ok || zone == "" {
		return "", false
	}
	off, ok := zoneSeconds(zone)
	if !ok {
		return "", false
	}
	i := strings.LastIndexByte(day[:len(day)-3], '-')
	y, err1 := strconv.Atoi(day[:i])
	m, err2 := strconv.Atoi(day[i+1 : i+3])
	d, err3 := strconv.Atoi(day[len(day)-2:])
	if err := errors.Join(err1, err2, err3); err != nil {
		return "", false
	}
	sec := time.Date(y, time.Month(m), d, 0, 0, 0, 0, time.UTC).Unix() - off
	sec, us = sec+us/1_000_000, us%1_000_000
	return strconv.FormatInt(sec, 10) + "." + strconv.FormatInt(us, 10), true
}

// zoneSeconds reads Z or ±hh[[:]mm[:ss]].
func zoneSeconds(s string) (int64, bool) {
	if s == "Z" || s == "z" {
		return 0, true
	}
	digits := strings.ReplaceAll(s[1:], ":", "")
	if len(digits) != 2 && len(digits) != 4 && len(digits) != 6 {
		return 0, false
	}
	n, err := strconv.ParseUint((digits + "0000")[:6], 10, 32)
	if err != nil {
		return 0, false
	}
	sec := int64(n/10000*3600 + n/100%100*60 + n%100)
	if s[0] == '-' {
		sec = -sec
	}
	return sec, true
}

func bytea(s string) (string, bool) {
	h, ok := strings.CutPrefix(s, `\x`)
	if !ok {
		return "", false
	}
	b, err := hex.DecodeString(strings.ReplaceAll(h, " ", ""))
	return string(b), err == nil
}

// inet takes addresses and networks; an address is the network of all its bits.
func inet(s string) (string, bool) {
	s = strings.TrimSpace(s)
	if !utf8.ValidString(s) || strings.Contains(s, "%") {
		return "", false
	}
	if a, err := netip.ParseAddr(s); err == nil {
		return netip.PrefixFrom(a, a.BitLen()).String(), true
	}
	p, err := netip.ParsePrefix(s)
	return p.String(), err == nil
}

func mac(s string) (string, bool) {
	h := strings.ToLower(strings.NewReplacer(":", "", "-", "", ".", "").Replace(strings.TrimSpace(s)))
	b, err := hex.DecodeString(h)
	return h, err == nil && len(b) == 6
}

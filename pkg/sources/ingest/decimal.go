package ingest

import (
	"fmt"
	"math/big"
	"regexp"
	"strconv"
	"strings"
)

// decimal is an exact decimal number: unscaled / 10^scale.
type decimal struct {
	unscaled *big.Int
	scale    int
}

// Bounds of PostgreSQL's numeric (manual, "Numeric Types").
const (
	maxDigitsBefore = 131072
	maxDigitsAfter  = 16383
)

var decimalForm = regexp.MustCompile(`^([+-]?)(\d*)(?:\.(\d*))?(?:[eE]([+-]?\d{1,7}))?$`)

// parseDecimal reads a number with all its digits.
func parseDecimal(v string) (decimal, error) {
	m := decimalForm.FindStringSubmatch(v)
	if m == nil || m[2]+m[3] == "" {
		return decimal{}, fmt.Errorf("%s is not a decimal number", quoted(v))
	}
	exp, _ := strconv.Atoi(m[4])
	scale := len(m[3]) - exp
	digits := strings.TrimLeft(m[2]+m[3], "0")
	if scale > maxDigitsAfter || len(digits)-scale > maxDigitsBefore {
		return decimal{}, fmt.Errorf("%s has more digits than PostgreSQL's numeric: %d before the point and %d after it are the most", quoted(v), maxDigitsBefore, maxDigitsAfter)
	}
	if digits == "" {
		return decimal{new(big.Int), max(scale, 0)}, nil
	}
	n, _ := new(big.Int).SetString(digits, 10)
	if m[1] == "-" {
		n.Neg(n)
	}
	d := decimal{n, scale}
	if scale < 0 {
		d = d.to(0)
	}
	return d, nil
}

// to returns the number with more digits after the point, all of them 0.
func (d decimal) to(scale int) decimal {
	f := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(scale-d.scale)), nil)
	return decimal{f.Mul(f, d.unscaled), scale}
}

func (d decimal) add(o decimal) decimal {
	scale := max(d.scale, o.scale)
	a, b := d.to(scale), o.to(scale)
	return decimal{a.unscaled.Add(a.unscaled, b.unscaled), scale}
}

// String writes the number as PostgreSQL does: all digits after the point are
// kept.
func (d decimal) String() string {
	s := new(big.Int).Abs(d.unscaled).String()
	if d.scale > 0 {
		if n := d.scale + 1 - len(s); n > 0 {
			s = strings.Repeat("0", n) + s
		}
		s = s[:len(s)-d.scale] + "." + s[len(s)-d.scale:]
	}
	if d.unscaled.Sign() < 0 {
		s = "-" + s
	}
	return s
}

// fit returns a number in the form of a numeric type, or says why it does not
// fit. Nothing is rounded.
func (t *pgType) fit(d decimal) (string, error) {
	if t.precision > 0 {
		if d.scale > t.scale {
			f := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(d.scale-t.scale)), nil)
			q, r := new(big.Int).QuoRem(d.unscaled, f, new(big.Int))
			if r.Sign() != 0 {
				return "", fmt.Errorf("%s has more digits after the point than %s keeps, and nothing is rounded here", quoted(d.String()), t.name)
			}
			d = decimal{q, t.scale}
		}
		d = d.to(t.scale)
		if n := len(new(big.Int).Abs(d.unscaled).String()); n > t.precision {
			return "", fmt.Errorf("%s has more digits than %s keeps", quoted(d.String()), t.name)
		}
	}
	if n := len(new(big.Int).Abs(d.unscaled).String()) - d.scale; n > maxDigitsBefore {
		return "", fmt.Errorf("the number has %d digits before the point, more than PostgreSQL's numeric", n)
	}
	return d.String(), nil
}

// sum adds a number to a value of the type; "" is a value of 0.
func (t *pgType) sum(value, delta string) (string, error) {
	switch value {
	case "NaN", "Infinity", "-Infinity":
		return value, nil
	}
	by, err := parseDecimal(delta)
	if err != nil {
		return "", err
	}
	if value != "" {
		have, err := parseDecimal(value)
		if err != nil {
			return "", err
		}
		by = have.add(by)
	}
	if t.kind == kindInt {
		return t.canonical(by.String())
	}
	return t.fit(by)
}

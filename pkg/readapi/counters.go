package readapi

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/relay"
)

// counterQuery is what is asked for of counters.
type counterQuery struct {
	columns []string
	key     []byte // of the one that is asked for; nil: a page of them
	from    []byte
	limit   int
}

// counters answers with the counters of a table that adds up over leaves: the sums,
// and what each leaf has added in each of its epochs.
func (h handler) counters(w http.ResponseWriter, r *http.Request) {
	permit, table, ok := h.table(w, r)
	if !ok {
		return
	}
	if err := permit(table); err != nil {
		fail(w, http.StatusForbidden, "%v", err)
		return
	}
	q, err := parseCounterQuery(r.URL.Query(), h.c[table])
	if err != nil {
		fail(w, http.StatusBadRequest, "%v", err)
		return
	}
	v := h.v.View()
	defer v.Close()
	out, err := q.answer(v, table)
	if err != nil {
		fail(w, http.StatusBadRequest, "%v", err)
		return
	}
	write(w, out)
}

func parseCounterQuery(v url.Values, columns []string) (counterQuery, error) {
	q := counterQuery{columns: columns, limit: DefaultLimit}
	var errs []error
	for name, values := range v {
		var err error
		switch name {
		case "column":
			q.columns = values
		case "key":
			for _, k := range values {
				q.key = engine.AppendKeyValue(q.key, k)
			}
		case "after":
			if q.from, err = base64.RawURLEncoding.DecodeString(values[0]); err == nil {
				_, err = engine.DecodeKey(bytes.TrimSuffix(q.from, []byte{0xff}))
			}
			if err != nil {
				err = fmt.Errorf("after=%q is not a cursor: pass the \"next\" of the page before, unchanged", values[0])
			}
		case "limit":
			if q.limit, err = strconv.Atoi(values[0]); err != nil || q.limit < 1 || q.limit > MaxLimit {
				err = fmt.Errorf("limit=%q must be a number from 1 to %d", values[0], MaxLimit)
			}
		default:
			err = fmt.Errorf("%q is not a parameter of this address; it takes column, key, after and limit", name)
		}
		errs = append(errs, err)
	}
	if len(q.columns) == 0 {
		errs = append(errs, errors.New("the node knows of no columns of this table that add up: repeat column= for each"))
	}
	if q.key != nil && (q.from != nil || v.Has("limit")) {
		errs = append(errs, errors.New("key asks for one counter: leave out after and limit"))
	}
	return q, errors.Join(errs...)
}

func (q *counterQuery) answer(v engine.View, table engine.TableName) ([]byte, error) {
	out := []byte(`{"counters":[`)
	n, last := 0, []byte(nil)
	more := false
	var inner error
	each := func(c relay.Counter) bool {
		if n == q.limit {
			more = true
			return false
		}
		if n > 0 {
			out = append(out, ',')
		}
		n, last = n+1, c.Past()
		out, inner = q.appendCounter(out, &c)
		return inner == nil
	}
	var err error
	if q.key == nil {
		err = relay.Counters(v, table, q.from, q.columns, each)
	} else {
		var c relay.Counter
		var ok bool
		if c, ok, err = relay.CounterOf(v, table, q.key, q.columns); ok {
			each(c)
		}
	}
	if err != nil || inner != nil {
		return nil, errors.Join(err, inner)
	}
	out = append(out, ']')
	if more {
		out = append(out, `,"next":"`...)
		out = append(base64.RawURLEncoding.AppendEncode(out, last), '"')
	}
	return append(out, '}'), nil
}

func (q *counterQuery) appendCounter(out []byte, c *relay.Counter) ([]byte, error) {
	parts, err := engine.DecodeKey(c.Key)
	if err != nil {
		return nil, err
	}
	out = append(out, `{"key":[`...)
	for i, p := range parts {
		if i > 0 {
			out = append(out, ',')
		}
		if p == nil {
			out = append(out, "null"...)
		} else {
			out = appendString(out, p)
		}
	}
	out = q.appendValues(append(out, `],"totals":`...), c.Totals)
	out = append(out, `,"shares":[`...)
	for i := range c.Shares {
		s := &c.Shares[i]
		if i > 0 {
			out = append(out, ',')
		}
		out = append(appendStamp(append(out, '{'), &s.Stamp), `,"values":`...)
		out = append(q.appendValues(out, s.Values), '}')
	}
	return append(out, "]}"...), nil
}

// appendValues writes numbers of any size in their digits, by column.
func (q *counterQuery) appendValues(out []byte, values []string) []byte {
	out = append(out, '{')
	for i, c := range q.columns {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(append(appendString(out, []byte(c)), ':'), values[i]...)
	}
	return append(out, '}')
}

// Package readapi serves a node's state over HTTP, for people and for
// applications that want a row and no session:
//
//	GET /v1/tables                               tables, row counts, columns
//	GET /v1/tables/{schema}.{table}/rows         a page of rows
//	GET /v1/tables/{schema}.{table}/rows?key=42  one row; repeat key for each key column
//	GET /v1/tables/{schema}.{table}/counters     sums over leaves, and each leaf's share
//	GET /v1/tables/{schema}.{table}/counters?key=42
//	                                             of one counter
//
// Rows are typed JSON. Numbers are written with the digits PostgreSQL printed,
// however many: read them with a decoder that keeps them (json.Number, a
// bignum reviver). NaN and infinities, which JSON has no number for, are
// strings. Every answer is consistent within itself: it comes from one view.
package readapi

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/tributary-dev/tributary/pkg/engine"
)

// Limits of a page, in rows.
const (
	DefaultLimit = 100
	MaxLimit     = 10_000
)

// Views gives consistent views of a node's state. An engine.Engine does.
type Views interface{ View() engine.View }

// Guard says who makes a request and what they may read. An auth.Guard is one.
type Guard interface {
	Request(r *http.Request) (identity string, err error)
	Permit(identity string, table engine.TableName) error
}

// Handler returns the read API over v. With a guard, who is not known gets 401, a
// table that one may not read 403, and the list has the others only. counters are the
// columns that add up over leaves, of the tables that have any.
func Handler(v Views, g Guard, counters map[engine.TableName][]string) http.Handler {
	h := handler{v, g, counters}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/tables", h.tables)
	mux.HandleFunc("GET /v1/tables/{table}/rows", h.rows)
	mux.HandleFunc("GET /v1/tables/{table}/counters", h.counters)
	mux.HandleFunc("/v1/", func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			w.Header().Set("Allow", http.MethodGet)
			fail(w, http.StatusMethodNotAllowed, "the read API answers GET only; %s is not one of its methods", r.Method)
			return
		}
		fail(w, http.StatusNotFound, "there is nothing at %s; try /v1/tables or /v1/tables/{schema}.{table}/rows", r.URL.Path)
	})
	return mux
}

type handler struct {
	v Views
	g Guard // nil: everyone may read all
	c map[engine.TableName][]string
}

// permits says why a table may not be read by who makes the request.
func (h handler) permits(w http.ResponseWriter, r *http.Request) (func(engine.TableName) error, bool) {
	if h.g == nil {
		return func(engine.TableName) error { return nil }, true
	}
	who, err := h.g.Request(r)
	if err != nil {
		w.Header().Set("WWW-Authenticate", "Bearer")
		fail(w, http.StatusUnauthorized, "%v", err)
		return nil, false
	}
	return func(t engine.TableName) error { return h.g.Permit(who, t) }, true
}

type columnDoc struct {
	Name string `json:"name"`
	Type string `json:"type,omitempty"`
	Key  bool   `json:"key,omitempty"`
}

type tableDoc struct {
	Schema  string      `json:"schema"`
	Table   string      `json:"table"`
	Rows    int         `json:"rows"`
	Columns []columnDoc `json:"columns"`
	Path    string      `json:"path"`
}

func (h handler) tables(w http.ResponseWriter, r *http.Request) {
	permit, ok := h.permits(w, r)
	if !ok {
		return
	}
	v := h.v.View()
	defer v.Close()
	docs := []tableDoc{}
	for _, t := range v.Tables() {
		if permit(t.Table) != nil {
			continue
		}
		d := tableDoc{Schema: t.Table.Schema, Table: t.Table.Name, Rows: t.Rows, Columns: []columnDoc{}}
		if t.Schema != nil {
			for _, c := range t.Schema.Columns {
				d.Columns = append(d.Columns, columnDoc{c.Name, c.TypeName, c.Key})
			}
		}
		d.Path = "/v1/tables/" + url.PathEscape(FormatTable(t.Table)) + "/rows"
		docs = append(docs, d)
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{"tables": docs})
}

// table returns the table that is asked for, and what is to say whether it is
// permitted; ok is false if the answer has been given.
func (h handler) table(w http.ResponseWriter, r *http.Request) (permit func(engine.TableName) error, table engine.TableName, ok bool) {
	if permit, ok = h.permits(w, r); !ok {
		return permit, table, false
	}
	table, err := ParseTable(r.PathValue("table"))
	if err != nil {
		fail(w, http.StatusBadRequest, "%v", err)
	}
	return permit, table, err == nil
}

func (h handler) rows(w http.ResponseWriter, r *http.Request) {
	permit, table, ok := h.table(w, r)
	if !ok {
		return
	}
	q, err := parseQuery(r.URL.Query())
	if err != nil {
		fail(w, http.StatusBadRequest, "%v", err)
		return
	}
	if err := permit(table); err != nil {
		fail(w, http.StatusForbidden, "%v", err)
		return
	}
	v := h.v.View()
	defer v.Close()
	i := slices.IndexFunc(v.Tables(), func(t engine.TableInfo) bool { return t.Table == table })
	if i < 0 {
		fail(w, http.StatusNotFound, "table %s is not on this node; GET /v1/tables lists those that are", FormatTable(table))
		return
	}
	if q.key != nil {
		h.one(w, v, v.Tables()[i], q)
		return
	}
	h.page(w, v, table, q)
}

func (h handler) one(w http.ResponseWriter, v engine.View, t engine.TableInfo, q query) {
	if n := len(t.Schema.KeyColumns()); n != len(q.key) {
		fail(w, http.StatusBadRequest, "the key of %s has %d columns and %d values were given; repeat key= once for each, in the order of the columns", FormatTable(t.Table), n, len(q.key))
		return
	}
	var key []byte
	for _, k := range q.key {
		key = engine.AppendKeyValue(key, k)
	}
	rec, ok, err := v.Get(t.Table, key)
	switch {
	case err != nil:
		fail(w, http.StatusInternalServerError, "%v", err)
	case !ok || rec.Deleted:
		fail(w, http.StatusNotFound, "table %s has no row with key %s; a key is compared with the column's text as PostgreSQL prints it", FormatTable(t.Table), strings.Join(q.key, ", "))
	default:
		write(w, appendRecord(nil, &rec, q.provenance))
	}
}

func (h handler) page(w http.ResponseWriter, v engine.View, table engine.TableName, q query) {
	out := []byte(`{"rows":[`)
	n, last := 0, []byte(nil)
	more := false
	err := v.Scan(table, q.after, func(r *engine.Record) bool {
		if r.Deleted {
			return true
		}
		if n == q.limit {
			more = true
			return false
		}
		if n > 0 {
			out = append(out, ',')
		}
		out = appendRecord(out, r, q.provenance)
		last = append(last[:0], r.Key...)
		n++
		return true
	})
	if err != nil {
		fail(w, http.StatusInternalServerError, "%v", err)
		return
	}
	out = append(out, ']')
	if more { // the next page starts just past the last key
		out = append(out, `,"next":"`...)
		out = base64.RawURLEncoding.AppendEncode(out, append(last, 0))
		out = append(out, '"')
	}
	write(w, append(out, '}'))
}

type query struct {
	key        []string
	after      []byte
	limit      int
	provenance bool
}

func parseQuery(v url.Values) (query, error) {
	q := query{limit: DefaultLimit}
	var errs []error
	for name, values := range v {
		var err error
		switch name {
		case "key":
			q.key = values
		case "after":
			if q.after, err = base64.RawURLEncoding.DecodeString(values[0]); err == nil {
				_, err = engine.DecodeKey(bytes.TrimSuffix(q.after, []byte{0}))
			}
			if err != nil {
				err = fmt.Errorf("after=%q is not a cursor: pass the \"next\" of the page before, unchanged", values[0])
			}
		case "limit":
			if q.limit, err = strconv.Atoi(values[0]); err != nil || q.limit < 1 || q.limit > MaxLimit {
				err = fmt.Errorf("limit=%q must be a number from 1 to %d", values[0], MaxLimit)
			}
		case "provenance":
			if q.provenance, err = strconv.ParseBool(values[0]); err != nil {
				err = fmt.Errorf("provenance=%q must be true or false", values[0])
			}
		default:
			err = fmt.Errorf("%q is not a parameter of this address; it takes key, after, limit and provenance", name)
		}
		errs = append(errs, err)
	}
	if q.key != nil && (q.after != nil || v.Has("limit")) {
		errs = append(errs, errors.New("key asks for one row: leave out after and limit"))
	}
	return q, errors.Join(errs...)
}

// FormatTable writes a table's name so that ParseTable reads it back: parts
// that hold a dot or a quote are quoted as in SQL.
func FormatTable(t engine.TableName) string {
	return quotePart(t.Schema) + "." + quotePart(t.Name)
}

func quotePart(s string) string {
	if s == "" || strings.ContainsAny(s, `."`) {
		return `"` + strings.ReplaceAll(s, `"`, `""`) + `"`
	}
	return s
}

// ParseTable reads schema.table. Case is kept; a part that holds a dot or a
// quote is quoted as in SQL: "a.b".c. A name without a schema is in public.
func ParseTable(s string) (engine.TableName, error) {
	var parts []string
	rest := s
	for {
		var part string
		if strings.HasPrefix(rest, `"`) {
			i := 1
			var b strings.Builder
			for ; i < len(rest); i++ {
				if rest[i] == '"' {
					if i+1 >= len(rest) || rest[i+1] != '"' {
						break
					}
					i++
				}
				b.WriteByte(rest[i])
			}
			if i >= len(rest) {
				return engine.TableName{}, fmt.Errorf("table name %s has a quote that is not closed", s)
			}
			part, rest = b.String(), rest[i+1:]
		} else {
			i := strings.IndexByte(rest, '.')
			if i < 0 {
				i = len(rest)
			}
			part, rest = rest[:i], rest[i:]
		}
		parts = append(parts, part)
		if rest == "" {
			break
		}
		if rest[0] != '.' {
			return engine.TableName{}, fmt.Errorf("table name %s: a dot must follow the quoted part", s)
		}
		rest = rest[1:]
	}
	if slices.Contains(parts, "") || len(parts) > 2 {
		return engine.TableName{}, fmt.Errorf(`table name %q must be schema.table; quote a part that holds a dot, as in "a.b".c`, s)
	}
	if len(parts) == 1 {
		return engine.TableName{Schema: "public", Name: parts[0]}, nil
	}
	return engine.TableName{Schema: parts[0], Name: parts[1]}, nil
}

func write(w http.ResponseWriter, body []byte) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(append(body, '\n'))
}

func fail(w http.ResponseWriter, code int, format string, args ...any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(map[string]string{"error": fmt.Sprintf(format, args...)})
}

package readapi_test

import (
	"encoding/base64"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/engine/store"
	"github.com/tributary-dev/tributary/pkg/readapi"
)

// A counter is read as its sum, with what each leaf has added.
func TestCounters(t *testing.T) {
	t.Parallel()
	st := store.NewMemory(store.MemoryOptions{})
	tx, err := st.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	sc := &engine.Schema{ID: 1, Table: engine.TableName{Schema: "public", Name: "visits"}, Columns: []engine.Column{
		{Name: "page", Number: 1, TypeOID: 25, Key: true}, {Name: "n", Number: 2, TypeOID: 1700}, {Name: "origin", Number: 3, TypeOID: 25, Key: true},
	}}
	for _, s := range []struct{ page, origin, n string }{{"/", "a#in", "1.10"}, {"/", "b#in", "20"}, {"/x", "a#in", "3"}} {
		log := engine.LogID{Origin: s.origin, Epoch: 7}
		if err := tx.PutSchema(log, sc); err != nil {
			t.Fatal(err)
		}
		row := engine.AppendRowHeader(nil, 1, 3)
		for _, v := range []string{s.page, s.n, s.origin} {
			row = engine.AppendValue(row, v)
		}
		if err := tx.Put(&engine.Record{
			Schema: sc, Key: engine.AppendKeyValue(engine.AppendKeyValue(nil, s.page), s.origin), Row: row, Stamp: engine.Stamp{Time: 1, Origin: s.origin, Epoch: 7, Version: engine.Version{Major: 4, Minor: 1}},
		}); err != nil {
			t.Fatal(err)
		}
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	h := readapi.Handler(views{st}, nil, map[engine.TableName][]string{sc.Table: {"n"}})
	of := func(origin, n string) string {
		return `{"origin":"` + origin + `","epoch":7,"version":"4.1","time":"1970-01-01T00:00:00.000001Z","values":{"n":` + n + `}}`
	}
	first, second := `{"key":["/"],"totals":{"n":21.10},"shares":[`+of("a#in", "1.10")+","+of("b#in", "20")+`]}`, `{"key":["/x"],"totals":{"n":3},"shares":[`+of("a#in", "3")+`]}`
	next := base64.RawURLEncoding.EncodeToString(append(engine.AppendKeyValue(nil, "/"), 0xff))
	for path, want := range map[string]string{
		"":                       `{"counters":[` + first + "," + second + `]}`,
		"?key=/":                 `{"counters":[` + first + `]}`,
		"?column=n&key=/x":       `{"counters":[` + second + `]}`,
		"?limit=1":               `{"counters":[` + first + `],"next":"` + next + `"}`,
		"?limit=1&after=" + next: `{"counters":[` + second + `]}`,
		"?key=/none":             `{"counters":[]}`,
		"?column=m":              `column m of the share of a#in: the table has no such column`,
		"?before=1":              `is not a parameter`,
		"?after=1":               `is not a cursor`,
		"?key=/&limit=1":         `leave out after and limit`,
	} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/v1/tables/public.visits/counters"+path, nil))
		if got := w.Body.String(); !strings.Contains(got, want) {
			t.Errorf("%s: got %s, want %s", path, got, want)
		}
	}
}

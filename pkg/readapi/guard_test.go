package readapi_test

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/engine/store"
	"github.com/tributary-dev/tributary/pkg/fanout/auth"
	"github.com/tributary-dev/tributary/pkg/readapi"
)

// With a guard the read API knows who asks, and shows what they may read.
func TestGuard(t *testing.T) {
	t.Parallel()
	st := store.NewMemory(store.MemoryOptions{})
	tx, err := st.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	log := engine.LogID{Origin: "a#pg", Epoch: 1}
	for i, name := range []string{"open", "secret"} {
		sc := &engine.Schema{ID: uint32(i + 1), Table: engine.TableName{Schema: "public", Name: name}, Columns: []engine.Column{{Name: "id", Number: 1, TypeOID: 25, Key: true}}}
		if err := tx.PutSchema(log, sc); err != nil {
			t.Fatal(err)
		}
		if err := tx.Put(&engine.Record{Schema: sc, Key: engine.AppendKeyValue(nil, "1"), Row: engine.AppendValue(engine.AppendRowHeader(nil, sc.ID, 1), "1"), Stamp: engine.Stamp{Time: 1, Origin: log.Origin, Epoch: 1}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	tokens := t.TempDir()
	if err := os.WriteFile(filepath.Join(tokens, "app"), []byte("0123456789abcdef-app\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	g, err := auth.NewGuard(auth.Config{TokensDir: tokens, Rules: []auth.Rule{{Identity: "app", Tables: []engine.TableName{{Schema: "public", Name: "open"}}}}})
	if err != nil {
		t.Fatal(err)
	}
	h := readapi.Handler(views{st}, g, nil)
	for _, tc := range []struct {
		path, token string
		code        int
		has, lacks  string
	}{
		{"/v1/tables", "", 401, "it must send a bearer token", "open\""},
		{"/v1/tables/public.open/rows", "0123456789abcdef-other", 401, "not known here", "rows"},
		{"/v1/tables", "0123456789abcdef-app", 200, "public.open", "secret"},
		{"/v1/tables/public.open/rows", "0123456789abcdef-app", 200, `"id":"1"`, "error"},
		{"/v1/tables/public.secret/rows", "0123456789abcdef-app", 403, "app may not read table public.secret", "rows"},
		{"/v1/tables/public.none/rows", "0123456789abcdef-app", 403, "may not read", "rows"},
	} {
		r := httptest.NewRequest(http.MethodGet, tc.path, nil)
		if tc.token != "" {
			r.Header.Set("Authorization", "Bearer "+tc.token)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if body := w.Body.String(); w.Code != tc.code || !strings.Contains(body, tc.has) || strings.Contains(body, tc.lacks) {
			t.Errorf("%s with %q: %d %s", tc.path, tc.token, w.Code, body)
		}
	}
}

type views struct{ engine.Store }

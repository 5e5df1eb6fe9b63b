package auth_test

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/fanout/auth"
)

const (
	first  = "0123456789abcdef-first"
	second = "0123456789abcdef-second"
)

func write(t *testing.T, path, text string) {
	t.Helper()
	next := filepath.Join(filepath.Dir(path), ".next") // a mount changes by a rename
	if err := os.WriteFile(next, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(next, path); err != nil {
		t.Fatal(err)
	}
}

func TestPermit(t *testing.T) {
	t.Parallel()
	orders, stock := engine.TableName{Schema: "public", Name: "orders"}, engine.TableName{Schema: "stock", Name: "a.b"}
	g, err := auth.NewGuard(auth.Config{Rules: []auth.Rule{
		{Identity: "*", Tables: []engine.TableName{orders}}, {Identity: "audit", Tables: []engine.TableName{stock}}, {Identity: "root"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		who   string
		table engine.TableName
		ok    bool
	}{
		{"anyone", orders, true}, {"audit", orders, true}, {"audit", stock, true}, {"root", stock, true}, {"anyone", stock, false},
		{"audit", engine.TableName{Schema: "stock.a", Name: "b"}, false},
	} {
		err := g.Permit(tc.who, tc.table)
		if (err == nil) != tc.ok {
			t.Errorf("%+v: %v", tc, err)
		}
		if err != nil && !strings.Contains(err.Error(), "permissions of the node's configuration") {
			t.Errorf("%v does not say what to do", err)
		}
	}
	w, err := auth.NewGuard(auth.Config{Rules: []auth.Rule{{Identity: "app", Writes: []engine.TableName{orders}}, {Identity: "root"}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.PermitWrite("app", orders); err != nil {
		t.Error(err)
	}
	for who, table := range map[string]engine.TableName{"app": stock, "root": orders} {
		if err := w.PermitWrite(who, table); err == nil || !strings.Contains(err.Error(), "writes of its permission") {
			t.Errorf("%s may write %s: %v", who, table, err)
		}
	}
	all, err := auth.NewGuard(auth.Config{})
	if err != nil || all.Permit("anyone", engine.TableName{Schema: "a", Name: "b"}) != nil {
		t.Error("without rules everything is permitted")
	}
	if all.PermitWrite("anyone", orders) == nil {
		t.Error("without rules nobody may write")
	}
}

// Tokens change without a restart; a file that goes bad changes nothing.
func TestTokens(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a"), first+"\n")
	g, err := auth.NewGuard(auth.Config{TokensDir: dir})
	if err != nil {
		t.Fatal(err)
	}
	who := func(token string) (string, error) {
		return g.Peer(metadata.NewIncomingContext(t.Context(), metadata.Pairs("authorization", "Bearer "+token)))
	}
	if id, err := who(first); id != "a" || err != nil {
		t.Errorf("%q %v", id, err)
	}
	if _, err := who(second); status.Code(err) != codes.Unauthenticated || !strings.Contains(err.Error(), "has been given") {
		t.Errorf("%v", err)
	}
	if _, err := g.Peer(t.Context()); status.Code(err) != codes.Unauthenticated || !strings.Contains(err.Error(), "it must send a bearer token") {
		t.Errorf("%v", err)
	}
	r, _ := http.NewRequest(http.MethodGet, "/", nil)
	r.Header.Set("Authorization", "Basic eDp5")
	if _, err := g.Request(r); err == nil || !strings.Contains(err.Error(), "a bearer token is needed") {
		t.Errorf("%v", err)
	}
	eventually := func(token, want string) {
		t.Helper()
		for end := time.Now().Add(10 * time.Second); ; time.Sleep(50 * time.Millisecond) {
			if id, _ := who(token); id == want {
				return
			} else if time.Now().After(end) {
				t.Fatalf("%q is %q, want %q", token, id, want)
			}
		}
	}
	write(t, filepath.Join(dir, "b"), second+"\n")
	eventually(second, "b")
	if err := os.Remove(filepath.Join(dir, "a")); err != nil {
		t.Fatal(err)
	}
	eventually(first, "")
	write(t, filepath.Join(dir, "b"), "short\n")
	time.Sleep(1200 * time.Millisecond)
	eventually(second, "b")
	if _, err := auth.NewGuard(auth.Config{TokensDir: dir}); err == nil || !strings.Contains(err.Error(), "file b must hold one token of at least 16") {
		t.Errorf("%v", err)
	}
	if _, err := auth.NewGuard(auth.Config{TokensDir: filepath.Join(dir, "none")}); err == nil {
		t.Error("a missing folder is taken")
	}
}

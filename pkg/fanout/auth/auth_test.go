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
	next := path + ".next" // a mount changes by a rename
	if err := os.WriteFile(next, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(next, path); err != nil {
		t.Fatal(err)
	}
}

func TestPermit(t *testing.T) {
	t.Parallel()
	g, err := auth.NewGuard(auth.Config{Rules: []auth.Rule{
		{Identities: []string{"shop/*", "audit"}, Tables: []string{"public.orders", "stock.*"}},
		{Identities: []string{"root"}, Tables: []string{"*"}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		who, schema, table string
		ok                 bool
	}{
		{"shop/a", "public", "orders", true}, {"audit", "stock", "anything.with dots", true}, {"root", "x", "y", true},
		{"shop/a", "public", "customers", false}, {"shop/a/b", "public", "orders", false}, {"stranger", "public", "orders", false},
		{"", "public", "orders", false}, {"shop/a", "stock/x", "y", false},
	} {
		err := g.Permit(tc.who, engine.TableName{Schema: tc.schema, Name: tc.table})
		if (err == nil) != tc.ok {
			t.Errorf("%+v: %v", tc, err)
		}
		if err != nil && !strings.Contains(err.Error(), "permissions of the node's configuration") {
			t.Errorf("%v does not say what to do", err)
		}
	}
	if _, err := auth.NewGuard(auth.Config{Rules: []auth.Rule{{Identities: []string{"["}, Tables: []string{"*"}}}}); err == nil {
		t.Error("a broken pattern is taken")
	}
	all, err := auth.NewGuard(auth.Config{})
	if err != nil || all.Permit("anyone", engine.TableName{Schema: "a", Name: "b"}) != nil {
		t.Error("without rules everything is permitted")
	}
}

// Tokens change without a restart; a file that goes bad changes nothing.
func TestTokens(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "tokens")
	write(t, file, "# who may come\n\nshop/a "+first+"\n")
	g, err := auth.NewGuard(auth.Config{TokensFile: file})
	if err != nil {
		t.Fatal(err)
	}
	who := func(token string) (string, error) {
		return g.Peer(metadata.NewIncomingContext(t.Context(), metadata.Pairs("authorization", "Bearer "+token)))
	}
	if id, err := who(first); id != "shop/a" || err != nil {
		t.Errorf("%q %v", id, err)
	}
	if _, err := who(second); status.Code(err) != codes.Unauthenticated || !strings.Contains(err.Error(), "file of tokens") {
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
	write(t, file, "shop/b "+second+"\n")
	eventually(second, "shop/b")
	eventually(first, "")
	write(t, file, "one two three\n")
	time.Sleep(1200 * time.Millisecond)
	eventually(second, "shop/b")
	for text, want := range map[string]string{"a b": "at least 16", "alone\n": "an identity and a token"} {
		bad := filepath.Join(t.TempDir(), "tokens")
		write(t, bad, text)
		if _, err := auth.NewGuard(auth.Config{TokensFile: bad}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
	if _, err := auth.NewGuard(auth.Config{TokensFile: filepath.Join(t.TempDir(), "none")}); err == nil {
		t.Error("a missing file is taken")
	}
}

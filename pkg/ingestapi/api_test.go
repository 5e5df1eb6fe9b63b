package ingestapi_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/engine/store"
	"github.com/tributary-dev/tributary/pkg/fanout/auth"
	"github.com/tributary-dev/tributary/pkg/ingestapi"
	"github.com/tributary-dev/tributary/pkg/ingestapi/ingestpb"
	"github.com/tributary-dev/tributary/pkg/readapi"
	"github.com/tributary-dev/tributary/pkg/sources/ingest"
)

var orders = engine.TableName{Schema: "public", Name: "orders"}

// served is a node's write and read API on one port.
type served struct {
	source *ingest.Source
	url    string
}

func serve(t *testing.T, g *auth.Guard, cfg ingest.Config) *served {
	t.Helper()
	cfg.Tables = []ingest.Table{
		{Name: orders, Columns: []ingest.Column{{Name: "id", Type: "bigint", Key: true}, {Name: "total", Type: "numeric(30,2)"}, {Name: "doc", Type: "jsonb"}, {Name: "paid", Type: "boolean"}}},
		{Name: engine.TableName{Schema: "public", Name: "secret"}, Columns: []ingest.Column{{Name: "k", Type: "text", Key: true}}},
	}
	src, err := ingest.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	st := store.NewMemory(store.MemoryOptions{})
	e := engine.New(engine.Options{NodeID: "n", Store: st, Logger: slog.New(slog.DiscardHandler)})
	e.AddSource("in", src, engine.Keep{})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = e.Run(ctx) }()
	var wg ingestapi.Guard
	var rg readapi.Guard
	if g != nil {
		wg, rg = g, g
	}
	api := ingestapi.New(src, wg)
	mux := http.NewServeMux()
	mux.Handle("POST /v1/write", api)
	mux.Handle("/v1/", readapi.Handler(e, rg, nil))
	srv := httptest.NewUnstartedServer(api.Over(mux))
	srv.Config.Protocols = new(http.Protocols)
	srv.Config.Protocols.SetHTTP1(true)
	srv.Config.Protocols.SetUnencryptedHTTP2(true)
	srv.Start()
	t.Cleanup(func() {
		srv.Close()
		api.Close()
		cancel()
		<-ended
		_ = st.Close()
	})
	return &served{src, srv.URL}
}

func (s *served) post(t *testing.T, body string, header ...string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.url+"/v1/write", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(text)
}

func (s *served) get(t *testing.T, path string) string {
	t.Helper()
	res, err := http.Get(s.url + path)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// Every operation over HTTP, and the row as the read API shows it: no digit is
// lost on the way.
func TestHTTP(t *testing.T) {
	t.Parallel()
	s := serve(t, nil, ingest.Config{})
	for _, step := range []struct {
		body string
		rows int
		row  string // of id 9007199254740993
	}{
		{`{"operations": [{"op": "put", "table": "public.orders", "row": {"id": 9007199254740993, "total": 1234567890123456789012345678.90, "doc": {"a": 1.10, "a": [1e400]}, "paid": true}}]}`,
			1, `{"id":9007199254740993,"total":1234567890123456789012345678.90,"doc":{"a": 1.10, "a": [1e400]},"paid":true}`},
		{`{"operations": [{"op": "add", "table": "orders", "row": {"id": "9007199254740993", "total": "0.01"}}]}`,
			1, `{"id":9007199254740993,"total":1234567890123456789012345678.91,"doc":{"a": 1.10, "a": [1e400]},"paid":true}`},
		{`{"operations": [{"op": "set", "table": "orders", "row": {"id": 9007199254740993, "paid": "f", "doc": null}}]}`,
			1, `{"id":9007199254740993,"total":1234567890123456789012345678.91,"doc":null,"paid":false}`},
		{`{"operations": [{"op": "delete", "table": "orders", "row": {"id": 9007199254740993}}, {"op": "delete", "table": "orders", "row": {"id": 1}}]}`,
			1, `no row`},
		{`{"operations": [{"op": "add", "table": "orders", "row": {"id": 9007199254740993, "total": -5e-1}}]}`,
			1, `{"id":9007199254740993,"total":-0.50,"doc":null,"paid":null}`},
		{`{"operations": [{"op": "truncate", "table": "orders"}]}`, 1, `no row`},
	} {
		code, text := s.post(t, step.body)
		var d struct {
			Origin, Epoch, Position, Time string
			Rows                          int
		}
		if err := json.Unmarshal([]byte(text), &d); err != nil || code != 200 || d.Rows != step.rows || d.Origin != "n#in" || d.Position == "" || d.Epoch == "" || d.Time == "" {
			t.Fatalf("%s: %d %s", step.body, code, text)
		}
		got := s.get(t, "/v1/tables/public.orders/rows?key=9007199254740993")
		if !strings.Contains(got, step.row) {
			t.Errorf("%s: the row is %s", step.body, got)
		}
	}
}

// What is wrong with a request is told with status, code and sentence, and
// nothing of it is applied.
func TestBadRequests(t *testing.T) {
	t.Parallel()
	s := serve(t, nil, ingest.Config{})
	put := func(row string) string {
		return `{"operations": [{"op": "put", "table": "orders", "row": {"id": 7}}, {"op": "put", "table": "orders", "row": ` + row + `}]}`
	}
	for _, c := range []struct {
		body string
		code int
		want []string // in the answer
	}{
		{``, 400, []string{"cannot be read", "invalid"}},
		{`[]`, 400, []string{"cannot be read"}},
		{`{"operations": []}`, 400, []string{"has no operations"}},
		{`{"ops": []}`, 400, []string{"unknown field", "ops"}},
		{`{"operations": [{"op": "put", "table": "a.b.c"}]}`, 400, []string{"operation 0", "must be schema.table"}},
		{`{"operations": [{"op": "upsert", "table": "orders"}]}`, 400, []string{`is not an operation: write put, set, delete, add or truncate`}},
		{`{"operations": [{"op": "put", "table": "nope", "row": {"id": 1}}]}`, 404, []string{"table public.nope is not declared", "no_table"}},
		{put(`{"id": 1}`) + `{}`, 400, []string{"there is more after the batch"}},
		{put(`[1]`), 400, []string{"a row must be an object"}},
		{put(`{}`), 400, []string{`"operation":1`, "column id is of the key of table public.orders and has no value"}},
		{put(`{"id": null}`), 400, []string{"has no value"}},
		{put(`{"id": 1, "x": 1}`), 400, []string{`has no column \"x\"`}},
		{put(`{"id": 1, "paid": true, "paid": false}`), 400, []string{"column paid of table public.orders is given twice"}},
		{put(`{"id": 1.5}`), 400, []string{"is not a value of type bigint"}},
		{put(`{"id": 9223372036854775808}`), 400, []string{"out of the range of type bigint"}},
		{put(`{"id": 1, "total": 0.001}`), 400, []string{"nothing is rounded here"}},
		{put(`{"id": 1, "total": {"a": 1}}`), 400, []string{"for columns of type json and jsonb"}},
		{put(`{"id": 1, "doc": "{"}`), 400, []string{"is not a value of type jsonb"}},
		{put("{\"id\": 1, \"doc\": \"\xff\"}"), 400, []string{"not UTF-8"}},
		{put(`{"id": 1, "paid": 2}`), 400, []string{"is not a value of type boolean"}},
		{`{"operations": [{"op": "delete", "table": "orders", "row": {"id": 1, "paid": true}}]}`, 400, []string{"a delete names columns beside the key"}},
		{`{"operations": [{"op": "add", "table": "orders", "row": {"id": 1}}]}`, 400, []string{"names no column beside the key"}},
		{`{"operations": [{"op": "add", "table": "orders", "row": {"id": 1, "paid": 1}}]}`, 400, []string{"can be added to integers and to numeric only"}},
		{`{"operations": [{"op": "put", "table": "orders", "row": {"id": 7}}, {"op": "add", "table": "orders", "row": {"id": 7, "total": 1e40}}]}`, 409, []string{`"operation":1`, "conflict", "more digits than numeric(30,2) keeps"}},
		{`{"idempotencyKey": "` + strings.Repeat("k", 201) + `", "operations": [{"op": "truncate", "table": "orders"}]}`, 400, []string{"201 bytes long"}},
		{`{"operations": [` + strings.Repeat(`{"op": "truncate", "table": "orders"},`, 10_000) + `{"op": "truncate", "table": "orders"}]}`, 413, []string{"10001 operations", "too_large"}},
		{`{"operations": [{"op": "put", "table": "orders", "row": {"id": 1, "doc": "` + strings.Repeat(" ", ingest.MaxBatchBytes) + `1"}}]}`, 413, []string{"larger than"}},
		{strings.Repeat(" ", ingestapi.MaxBody+1), 413, []string{"larger than"}},
	} {
		code, text := s.post(t, c.body)
		short := c.body[:min(len(c.body), 160)]
		if code != c.code {
			t.Errorf("%s: %d, want %d: %s", short, code, c.code, text)
		}
		for _, w := range c.want {
			if !strings.Contains(text, w) {
				t.Errorf("%s: the answer lacks %q: %s", short, w, text)
			}
		}
	}
	if code, text := s.post(t, put(`{"id": 1}`), "Content-Type", "text/plain"); code != 400 || !strings.Contains(text, "application/json") {
		t.Errorf("%d %s", code, text)
	}
	if code, text := s.post(t, `{"idempotencyKey": "a", "operations": [{"op": "truncate", "table": "orders"}]}`, "Idempotency-Key", "b"); code != 400 || !strings.Contains(text, "give one of them") {
		t.Errorf("%d %s", code, text)
	}
	if got := s.get(t, "/v1/tables/public.orders/rows"); strings.Contains(got, `"id"`) {
		t.Errorf("something was applied: %s", got)
	}
}

// Of a batch that is sent again, in whatever way, the first answer comes again.
func TestIdempotencyKeys(t *testing.T) {
	t.Parallel()
	s := serve(t, nil, ingest.Config{})
	const body = `{"idempotencyKey": "k1", "operations": [{"op": "add", "table": "orders", "row": {"id": 1, "total": 2}}]}`
	code, first := s.post(t, body)
	if code != 200 {
		t.Fatal(first)
	}
	again := strings.Replace(strings.TrimSpace(first), "}", `,"repeated":true}`, 1)
	for _, how := range []func() string{
		func() string { _, text := s.post(t, body); return text },
		func() string {
			_, text := s.post(t, strings.Replace(body, `"idempotencyKey": "k1", `, "", 1), "Idempotency-Key", "k1")
			return text
		},
	} {
		if text := how(); strings.TrimSpace(text) != again {
			t.Errorf("got %s, want %s", text, again)
		}
	}
	c := &ingestapi.Client{URL: s.url}
	n := "2"
	b := &ingest.Batch{Key: "k1", Ops: []ingest.Op{{Kind: ingest.Add, Table: orders, Row: []ingest.Field{{Column: "id", Value: &n}, {Column: "total", Value: &n}}}}}
	res, err := c.Write(t.Context(), b)
	if err != nil || !res.Repeated || !strings.Contains(first, fmt.Sprintf(`"position":"%s"`, res.Position)) {
		t.Errorf("%+v %v", res, err)
	}
	b.Key = ""
	if res, err = c.Write(t.Context(), b); err != nil || res.Repeated || res.Rows != 1 || res.Log.Origin != "n#in" || res.Time == 0 {
		t.Errorf("%+v %v", res, err)
	}
	if got := s.get(t, "/v1/tables/public.orders/rows"); !strings.Contains(got, `{"id":1,"total":2.00`) || !strings.Contains(got, `{"id":2,"total":2.00`) {
		t.Error(got)
	}
	b.Ops[0].Table.Name = "nope"
	var e *ingest.Error
	if _, err = c.Write(t.Context(), b); !errors.As(err, &e) || e.Code != ingest.NoTable {
		t.Errorf("%v", err)
	}
}

func TestGRPC(t *testing.T) {
	t.Parallel()
	s := serve(t, nil, ingest.Config{})
	conn, err := grpc.NewClient(strings.TrimPrefix(s.url, "http://"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	c := ingestpb.NewIngestClient(conn)
	text := func(s string) *string { return &s }
	op := func(k ingestpb.Operation_Kind, row ...*ingestpb.Field) *ingestpb.Operation {
		return &ingestpb.Operation{Kind: k, Table: "orders", Row: row}
	}
	id := &ingestpb.Field{Column: "id", Text: text("1")}
	req := &ingestpb.WriteRequest{IdempotencyKey: "g", Operations: []*ingestpb.Operation{
		op(ingestpb.Operation_KIND_PUT, id, &ingestpb.Field{Column: "total", Text: text("1.25")}, &ingestpb.Field{Column: "paid"}),
		op(ingestpb.Operation_KIND_ADD, id, &ingestpb.Field{Column: "total", Text: text("1")}),
		op(ingestpb.Operation_KIND_SET, id, &ingestpb.Field{Column: "paid", Text: text("true")}),
	}}
	first, err := c.Write(t.Context(), req)
	if err != nil || first.Rows != 3 || first.Repeated {
		t.Fatal(first, err)
	}
	again, err := c.Write(t.Context(), req)
	if err != nil || !again.Repeated || again.Position != first.Position || again.Time != first.Time || again.Epoch != first.Epoch {
		t.Fatal(again, err)
	}
	if got := s.get(t, "/v1/tables/public.orders/rows"); !strings.Contains(got, `{"id":1,"total":2.25,"doc":null,"paid":true}`) {
		t.Error(got)
	}
	for _, bad := range []struct {
		op   *ingestpb.Operation
		code codes.Code
		want string
		op1  int32
	}{
		{op(0, id), codes.InvalidArgument, "KIND_UNSPECIFIED", 1},
		{op(99, id), codes.InvalidArgument, "none that is known", 1},
		{nil, codes.InvalidArgument, "none that is known", 1},
		{op(1), codes.InvalidArgument, "has no value", 1},
		{op(1, nil), codes.InvalidArgument, "no column", 1},
		{&ingestpb.Operation{Kind: 1, Table: "x", Row: nil}, codes.NotFound, "not declared", 1},
		{op(ingestpb.Operation_KIND_ADD, id, &ingestpb.Field{Column: "total", Text: text("1e50")}), codes.FailedPrecondition, "keeps", 1},
	} {
		_, err := c.Write(t.Context(), &ingestpb.WriteRequest{Operations: []*ingestpb.Operation{op(ingestpb.Operation_KIND_DELETE, id), bad.op}})
		st := status.Convert(err)
		if st.Code() != bad.code || !strings.Contains(st.Message(), bad.want) || len(st.Details()) != 1 {
			t.Errorf("%v: %v", bad.op, err)
			continue
		}
		if f := st.Details()[0].(*ingestpb.WriteFault); f.Operation != bad.op1 || f.Code == "" {
			t.Errorf("%v: %v", bad.op, f)
		}
	}
	if got := s.get(t, "/v1/tables/public.orders/rows"); !strings.Contains(got, `{"id":1,"total":2.25`) {
		t.Errorf("a refused batch has deleted the row: %s", got)
	}
}

func TestGuard(t *testing.T) {
	t.Parallel()
	tokens := t.TempDir()
	for _, who := range []string{"app", "reader"} {
		if err := os.WriteFile(filepath.Join(tokens, who), []byte("0123456789abcdef-"+who+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	g, err := auth.NewGuard(auth.Config{TokensDir: tokens, Rules: []auth.Rule{{Identity: "app", Writes: []engine.TableName{orders}}, {Identity: "*"}}})
	if err != nil {
		t.Fatal(err)
	}
	s := serve(t, g, ingest.Config{})
	const body = `{"operations": [{"op": "put", "table": "orders", "row": {"id": 1}}]}`
	for _, c := range []struct {
		token, body string
		code        int
		want        string
	}{
		{"", body, 401, "it must send a bearer token"},
		{"wrong-wrong-wrong-wrong", body, 401, "not known here"},
		{"0123456789abcdef-reader", body, 403, "reader may not write table public.orders"},
		{"0123456789abcdef-app", strings.Replace(body, "}]}", `}, {"op": "put", "table": "secret", "row": {"k": 1}}]}`, 1), 403, `"operation":1`},
		{"0123456789abcdef-app", body, 200, "position"},
	} {
		var h []string
		if c.token != "" {
			h = []string{"Authorization", "Bearer " + c.token}
		}
		if code, text := s.post(t, c.body, h...); code != c.code || !strings.Contains(text, c.want) {
			t.Errorf("%q: %d %s", c.token, code, text)
		}
	}
	conn, err := grpc.NewClient(strings.TrimPrefix(s.url, "http://"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for token, want := range map[string]codes.Code{"": codes.Unauthenticated, "0123456789abcdef-reader": codes.PermissionDenied, "0123456789abcdef-app": codes.OK} {
		ctx := t.Context()
		if token != "" {
			ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
		}
		_, err := ingestpb.NewIngestClient(conn).Write(ctx, &ingestpb.WriteRequest{Operations: []*ingestpb.Operation{{Kind: ingestpb.Operation_KIND_TRUNCATE, Table: "orders"}}})
		if status.Code(err) != want {
			t.Errorf("%q: %v", token, err)
		}
	}
}

// A batch that cannot be committed in time is not written, and its writer is
// told so; later it is not written either.
func TestUnavailable(t *testing.T) {
	t.Parallel()
	s := serve(t, nil, ingest.Config{Timeout: 100 * time.Millisecond, MaxPending: 2, Stalled: func() error { return errors.New("the disk is full") }})
	if code, text := s.post(t, `{"operations": [{"op": "put", "table": "orders", "row": {"id": 1}}]}`); code != 200 {
		t.Fatal(text)
	}
	s.source.Pause()
	code, text := s.post(t, `{"operations": [{"op": "put", "table": "orders", "row": {"id": 2}}]}`)
	if code != 503 || !strings.Contains(text, "nothing was written") || !strings.Contains(text, "the disk is full") || !strings.Contains(text, `"unavailable"`) {
		t.Errorf("%d %s", code, text)
	}
	answers := make(chan string, 6)
	for range 6 {
		go func() {
			res, err := http.Post(s.url+"/v1/write", "application/json", bytes.NewReader([]byte(`{"operations": [{"op": "put", "table": "orders", "row": {"id": 3}}]}`)))
			if err != nil {
				answers <- err.Error()
				return
			}
			defer res.Body.Close()
			text, _ := io.ReadAll(res.Body)
			answers <- res.Header.Get("Retry-After") + string(text)
		}()
	}
	busy := 0
	for range 6 {
		if a := <-answers; strings.Contains(a, `"busy"`) && strings.HasPrefix(a, "1") {
			busy++
		}
	}
	if busy != 4 {
		t.Errorf("%d of 6 were told to come back, want 4", busy)
	}
	s.source.Resume()
	if code, text := s.post(t, `{"operations": [{"op": "put", "table": "orders", "row": {"id": 4}}]}`); code != 200 {
		t.Fatal(text)
	}
	if got := s.get(t, "/v1/tables/public.orders/rows"); strings.Contains(got, `"id":2`) || strings.Contains(got, `"id":3`) || !strings.Contains(got, `"id":4`) {
		t.Error(got)
	}
	s.source.Drain()
	if code, text := s.post(t, `{"operations": [{"op": "put", "table": "orders", "row": {"id": 5}}]}`); code != 503 || !strings.Contains(text, "about to end") {
		t.Errorf("%d %s", code, text)
	}
}

// Whatever comes in, what is read is written out again to be read the same.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"idempotencyKey": "k", "operations": [{"op": "put", "table": "a.b", "row": {"id": 1e5, "x": null, "y": "z", "j": [1, {}]}}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		b, err := ingestapi.Decode(bytes.NewReader(text))
		if err == nil && b == nil {
			t.Fatal("neither a batch nor an error")
		}
	})
}

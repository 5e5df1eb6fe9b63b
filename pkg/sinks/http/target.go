// Package http is a sink that posts changes to an address as JSON.
//
// Each request is a batch: whole transactions of one log, in order, or a
// numbered part of a large one. A batch comes at least once: the answer can be
// lost. The Idempotency-Key header, sink:log@epoch:from-to, is the same each time, so
// that the receiver can tell a repetition; sinks that post to one address have keys of
// their own. Values are PostgreSQL's text form as strings, null for null: no digit is lost.
//
// A baseline is a run of requests of kind "baseline". Rows of its tables that
// none of them has are to be deleted by the receiver with the last one.
//
// An answer of 2xx means that the receiver has the batch. 408, 425, 429 and 5xx
// are tried again, as Retry-After says. 400, 409, 413 and 422 reject the batch,
// and the entry at fault is searched for by sending less; other answers hold the
// sink until someone mends the address or the credentials.
//
// The cursors are kept in the node's store. With a memory store the sink starts
// with a baseline.
package http

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/sinks"
)

// Config says where to post, and how. Name, Store and URL are required.
type Config struct {
	Name  string // in the node: what its cursors are kept under
	Sink  string // what the receiver knows the sink by; Name when empty
	Store engine.Store
	URL   string
	// TokenFile holds the bearer token of the Authorization header. Files of tokens
	// and headers are read for each request, those of certificates at each Open: a
	// changed secret takes effect without a restart.
	TokenFile string
	Headers   []Header
	// CAFile holds the certificates of the authorities to trust; the system's when
	// empty. CertFile and KeyFile are a certificate to show.
	CAFile, CertFile, KeyFile string
	// ServerName that the certificate of the address must have; its host when empty.
	ServerName string
	Gzip       bool
	// Timeout of one request; DefaultTimeout when 0.
	Timeout time.Duration
	// MaxBytes is the size past which a request takes no further entry, before
	// compression; DefaultMaxBytes when 0. Only a transaction that is large is cut
	// by it, or a baseline.
	MaxBytes int
}

// Header is sent with each request. Its value is in a file, or given.
type Header struct {
	Name, Value, ValueFile string
}

// The defaults of Config.
const (
	DefaultTimeout  = 30 * time.Second
	DefaultMaxBytes = 1 << 20
)

// bounds of trying one request again, before the sink as a whole waits.
const (
	tries      = 4
	retryFirst = 250 * time.Millisecond
	retryMax   = 10 * time.Second
	maxAnswer  = 2 << 10 // of an answer that is shown
)

// Target is an address. It implements sinks.Target.
type Target struct {
	cfg     Config
	client  *http.Client
	cursors engine.Cursors
}

var _ sinks.Target = (*Target)(nil)

// New returns a target. Nothing is sent yet.
func New(c Config) (*Target, error) {
	u, err := url.Parse(c.URL)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, fmt.Errorf("a sink cannot post to %q: write http:// or https:// and a host", c.URL)
	}
	if c.Timeout == 0 {
		c.Timeout = DefaultTimeout
	}
	if c.MaxBytes == 0 {
		c.MaxBytes = DefaultMaxBytes
	}
	if c.Sink == "" {
		c.Sink = c.Name
	}
	return &Target{cfg: c}, nil
}

// Open reads the cursors.
func (t *Target) Open(context.Context) (engine.Cursors, error) {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.DisableCompression = true
	var err error
	if transport.TLSClientConfig, err = t.tls(); err != nil {
		return nil, err
	}
	t.client = &http.Client{
		Transport: transport, Timeout: t.cfg.Timeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	t.cursors, err = t.load()
	return t.cursors, err
}

// tls says whom to trust and what certificate to show.
func (t *Target) tls() (*tls.Config, error) {
	out := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.cfg.ServerName}
	if t.cfg.CAFile != "" {
		pem, err := os.ReadFile(t.cfg.CAFile)
		if err != nil {
			return nil, fmt.Errorf("cannot read the authorities' certificates: %w", err)
		}
		out.RootCAs = x509.NewCertPool()
		if !out.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%s holds no certificate in PEM form", t.cfg.CAFile)
		}
	}
	if t.cfg.CertFile != "" {
		pair, err := tls.LoadX509KeyPair(t.cfg.CertFile, t.cfg.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("cannot read the certificate to show: %w", err)
		}
		out.Certificates = []tls.Certificate{pair}
	}
	return out, nil
}

// Close lets connections go.
func (t *Target) Close() {
	if t.client != nil {
		t.client.CloseIdleConnections()
	}
}

// Apply posts a batch, and then keeps its cursor.
func (t *Target) Apply(ctx context.Context, b *sinks.Batch) error {
	p := newPost(t, "changes")
	p.head.Origin, p.head.Epoch = b.From.Log.Origin, b.From.Log.Epoch.String()
	p.head.From, p.head.To = string(b.From.Position), string(b.To.Position)
	p.key = fmt.Sprintf("%s:%s:%s-%s", t.cfg.Sink, b.From.Log, b.From.Position, b.To.Position)
	if b.Replay != "" {
		p.key += "!" + b.Replay
	}
	if b.Careful {
		p.reject = b.Reject
	}
	p.parts = b.Large
	if err := b.Each(func(e *sinks.Entry) error { return p.add(ctx, e) }); err != nil {
		return err
	}
	if err := p.end(ctx); err != nil {
		return err
	}
	if b.From == b.To {
		return nil
	}
	return t.keep(ctx, []engine.Cursor{b.To}, nil)
}

// Baseline posts the rows of all tables, and then keeps the cursors.
func (t *Target) Baseline(ctx context.Context, s *sinks.Snapshot) error {
	p := newPost(t, "baseline")
	p.parts, p.always = true, true
	p.reject = s.Reject
	p.head.Reason = s.Reason
	// What its requests hold depends on the logs' positions, the tables and where it is
	// cut. That is too much for a header where there are many.
	what := sha256.New()
	fmt.Fprintf(what, "%d", t.cfg.MaxBytes)
	for _, c := range s.Cursors {
		p.head.Cursors = append(p.head.Cursors, cursorJSON{c.Log.Origin, c.Log.Epoch.String(), string(c.Position)})
		fmt.Fprintf(what, " %q %q", c.Log, c.Position)
	}
	for _, tab := range s.Tables {
		p.head.Covers = append(p.head.Covers, tableJSON{tab.Schema.Table.Schema, tab.Schema.Table.Name})
		fmt.Fprintf(what, " %q.%q", tab.Schema.Table.Schema, tab.Schema.Table.Name)
	}
	p.key = fmt.Sprintf("%s:baseline:%x", t.cfg.Sink, what.Sum(nil)[:16])
	for _, tab := range s.Tables {
		if err := s.Rows(tab.Schema.Table, func(e *sinks.Entry) error { return p.add(ctx, e) }); err != nil {
			return err
		}
	}
	if err := p.end(ctx); err != nil {
		return err
	}
	return t.keep(ctx, s.Cursors, s.Forget)
}

// send posts one request until it is taken, a few times at most.
func (t *Target) send(ctx context.Context, key string, body []byte) error {
	delay := retryFirst
	for try := 1; ; try++ {
		err := t.once(ctx, key, body)
		var no *answer
		var rej *sinks.Rejection
		if err == nil || ctx.Err() != nil || errors.As(err, &rej) {
			return err
		}
		wait := delay/2 + rand.N(delay)
		if errors.As(err, &no) {
			if rej := no.rejection(); rej != nil {
				return rej
			}
			wait = max(wait, no.after)
		}
		if try >= tries || wait > 2*retryMax {
			return &sinks.Later{Err: err, After: wait}
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return ctx.Err()
		}
		delay = min(2*delay, retryMax)
	}
}

func (t *Target) once(ctx context.Context, key string, body []byte) error {
	var r io.Reader = bytes.NewReader(body)
	if t.cfg.Gzip {
		var z bytes.Buffer
		w := gzip.NewWriter(&z)
		_, _ = w.Write(body) // to memory
		_ = w.Close()
		r = &z
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, t.cfg.URL, r)
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Idempotency-Key", key)
	if t.cfg.Gzip {
		req.Header.Set("Content-Encoding", "gzip")
	}
	if err := t.credentials(req); err != nil {
		return err
	}
	resp, err := t.client.Do(req)
	if err != nil {
		return fmt.Errorf("%w. Check the address, and that the network lets this node reach it", err)
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(resp.Body, maxAnswer)) // only shown
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 1<<20))
	if resp.StatusCode/100 == 2 {
		return nil
	}
	return &answer{url: t.cfg.URL, code: resp.StatusCode, text: strings.TrimSpace(string(text)), after: retryAfter(resp.Header.Get("Retry-After"), time.Now())}
}

// credentials sets the headers that are configured.
func (t *Target) credentials(req *http.Request) error {
	if t.cfg.TokenFile != "" {
		token, err := readLine(t.cfg.TokenFile)
		if err != nil {
			return fmt.Errorf("cannot read the bearer token: %w", err)
		}
		req.Header.Set("Authorization", "Bearer "+token)
	}
	for _, h := range t.cfg.Headers {
		v := h.Value
		if h.ValueFile != "" {
			var err error
			if v, err = readLine(h.ValueFile); err != nil {
				return fmt.Errorf("cannot read the value of header %s: %w", h.Name, err)
			}
		}
		req.Header.Set(h.Name, v)
	}
	return nil
}

func readLine(path string) (string, error) {
	b, err := os.ReadFile(path)
	return strings.TrimRight(string(b), "\r\n"), err
}

// answer is one that is not 2xx.
type answer struct {
	url   string
	code  int
	text  string
	after time.Duration
}

func (a *answer) Error() string {
	s := fmt.Sprintf("%s answers %d %s", a.url, a.code, http.StatusText(a.code))
	if a.text != "" {
		s += ": " + a.text
	}
	return s
}

// ofBatch reports whether it is about what was sent.
func (a *answer) ofBatch() bool {
	switch a.code {
	case http.StatusBadRequest, http.StatusConflict, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity:
		return true
	}
	return false
}

// rejection returns the answer as one that trying again does not mend, or nil.
func (a *answer) rejection() error {
	switch {
	case a.code >= 500, a.code == http.StatusRequestTimeout, a.code == http.StatusTooEarly, a.code == http.StatusTooManyRequests:
		return nil
	case a.code/100 == 3:
		return &sinks.Rejection{Err: fmt.Errorf("%w. Configure the address that it leads to: a post is not redirected", a)}
	case a.code == http.StatusUnauthorized, a.code == http.StatusForbidden:
		return &sinks.Rejection{Err: fmt.Errorf("%w. Check the token and the headers", a)}
	}
	return &sinks.Rejection{Err: a}
}

// retryAfter reads the header (RFC 9110, 10.2.3): seconds, or a date.
func retryAfter(v string, now time.Time) time.Duration {
	if n, err := strconv.Atoi(v); err == nil && n >= 0 {
		return time.Duration(min(n, 24*3600)) * time.Second
	}
	if at, err := http.ParseTime(v); err == nil {
		return min(max(0, at.Sub(now)), 24*time.Hour)
	}
	return 0
}

// metaKey is where the cursors are kept.
func (t *Target) metaKey() string { return "sink/" + t.cfg.Name + "/cursors" }

type keptCursor struct {
	Origin   string       `json:"origin"`
	Epoch    engine.Epoch `json:"epoch"`
	Scope    string       `json:"scope,omitempty"`
	Position string       `json:"position"`
	Time     engine.Time  `json:"time"`
}

func (t *Target) load() (engine.Cursors, error) {
	v := t.cfg.Store.View()
	defer v.Close()
	all := engine.Cursors{}
	text := v.Meta(t.metaKey())
	if text == nil {
		return all, nil
	}
	var kept []keptCursor
	if err := json.Unmarshal(text, &kept); err != nil {
		return nil, fmt.Errorf("the cursors of sink %s cannot be read from the node's store: %w", t.cfg.Name, err)
	}
	for _, k := range kept {
		c := engine.Cursor{
			CursorKey: engine.CursorKey{Log: engine.LogID{Origin: k.Origin, Epoch: k.Epoch}, Scope: engine.Scope(k.Scope)},
			Position:  engine.Position(k.Position), Time: k.Time,
		}
		all[c.CursorKey] = c
	}
	return all, nil
}

// keep moves cursors and forgets others.
func (t *Target) keep(ctx context.Context, moved []engine.Cursor, forget []engine.CursorKey) error {
	next := engine.Cursors{}
	for k, c := range t.cursors {
		next[k] = c
	}
	for _, k := range forget {
		delete(next, k)
	}
	for _, c := range moved {
		next[c.CursorKey] = c
	}
	kept := make([]keptCursor, 0, len(next))
	for _, c := range next {
		kept = append(kept, keptCursor{c.Log.Origin, c.Log.Epoch, string(c.Scope), string(c.Position), c.Time})
	}
	text, err := json.Marshal(kept)
	if err != nil {
		return err
	}
	tx, err := t.cfg.Store.Begin(ctx)
	if err != nil {
		return fmt.Errorf("keeping the sink's cursor: %w", err)
	}
	defer tx.Rollback()
	if err := tx.SetMeta(t.metaKey(), text); err != nil {
		return fmt.Errorf("keeping the sink's cursor: %w", err)
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("keeping the sink's cursor: %w", err)
	}
	t.cursors = next
	return nil
}

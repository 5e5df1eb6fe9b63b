package s3_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"golang.org/x/sys/unix"

	"github.com/tributary-dev/tributary/internal/tests3"
	"github.com/tributary-dev/tributary/pkg/archive/dest"
	"github.com/tributary-dev/tributary/pkg/archive/dest/s3"
)

// before is what happens to a request on its way to the store; it reports whether it
// has been answered.
type before func(w http.ResponseWriter, r *http.Request) bool

// through is a store behind a proxy.
func through(t *testing.T, b *tests3.Bucket, do before) s3.Config {
	t.Helper()
	store, err := url.Parse(b.Endpoint)
	if err != nil {
		t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host, r.Out.Host = store.Scheme, store.Host, r.In.Host
		},
		ErrorLog: nil,
	}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !do(w, r) {
			proxy.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(srv.Close)
	c := config(t, b)
	c.Endpoint = srv.URL
	return c
}

// sign signs a request again that was changed on its way.
func sign(t *testing.T, r *http.Request) {
	r.Header.Del("Authorization")
	err := v4.NewSigner(func(o *v4.SignerOptions) { o.DisableURIPathEscaping = true }).SignHTTP(r.Context(),
		aws.Credentials{AccessKeyID: tests3.AccessKey, SecretAccessKey: tests3.SecretKey}, r, r.Header.Get("X-Amz-Content-Sha256"), "s3", tests3.Region, time.Now())
	if err != nil {
		t.Error(err)
	}
}

// Stores without conditional writes are found before anything is written, and are
// used only if that is chosen.
func TestNoConditionalWrites(t *testing.T) {
	t.Parallel()
	drop := func(headers ...string) before {
		return func(_ http.ResponseWriter, r *http.Request) bool {
			changed := false
			for _, h := range headers {
				changed = changed || r.Header.Get(h) != ""
				r.Header.Del(h)
			}
			if changed {
				sign(t, r)
			}
			return false
		}
	}
	for name, c := range map[string]struct {
		do   before
		want string
	}{
		"501": {func(w http.ResponseWriter, r *http.Request) bool {
			if r.Method != http.MethodPut || r.Header.Get("If-None-Match")+r.Header.Get("If-Match") == "" {
				return false
			}
			w.WriteHeader(http.StatusNotImplemented)
			fmt.Fprint(w, `<?xml version="1.0" encoding="UTF-8"?><Error><Code>NotImplemented</Code><Message>A header you provided implies functionality that is not implemented.</Message></Error>`)
			return true
		}, "it answers NotImplemented (HTTP 501) to If-None-Match"},
		"ignores both":     {drop("If-None-Match", "If-Match"), "it ignores If-None-Match"},
		"ignores If-Match": {drop("If-Match"), "it ignores If-Match"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			config := through(t, tests3.NewBucket(t), c.do)
			config.Attempts = 2
			d := open(t, config)
			err := d.Check(t.Context())
			if !errors.Is(err, dest.ErrNoSwap) || dest.Retryable(err) || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "single-writer") {
				t.Errorf("Check: %v", err)
			}
			config.SingleWriter = true
			d = open(t, config)
			if err := d.Check(t.Context()); err != nil {
				t.Errorf("with a single writer: %v", err)
			}
			tag, err := d.Swap(t.Context(), "m", "", []byte("first"))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := d.Swap(t.Context(), "m", "", []byte("other")); !errors.Is(err, dest.ErrConflict) {
				t.Errorf("a second one: %v", err)
			}
			if _, err := d.Swap(t.Context(), "m", tag, []byte("second")); err != nil {
				t.Error(err)
			}
			for info := range d.List(t.Context(), "") {
				if info.Key != "m" {
					t.Errorf("left is %s", info.Key)
				}
			}
		})
	}
}

// cut does a request and then loses its answer, or that of the first of them.
func cut(t *testing.T, b *tests3.Bucket, lose func(r *http.Request) bool) s3.Config {
	store := b.Endpoint
	return through(t, b, func(w http.ResponseWriter, r *http.Request) bool {
		if !lose(r) {
			return false
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		out, err := http.NewRequestWithContext(context.WithoutCancel(r.Context()), r.Method, store+r.URL.RequestURI(), bytes.NewReader(body))
		if err != nil {
			t.Error(err)
			return true
		}
		out.Header, out.Host = r.Header, r.Host
		resp, err := http.DefaultClient.Do(out)
		if err != nil {
			t.Error(err)
			return true
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Errorf("%s %s: %s", r.Method, r.URL, resp.Status)
		}
		panic(http.ErrAbortHandler) // the connection is cut
	})
}

// A write whose answer is lost, and which is tried again, is done once and is no
// error: a swap, a small artifact, a part, the end of a large one.
func TestLostAnswers(t *testing.T) {
	t.Parallel()
	lost := map[string]int{}
	var mu sync.Mutex
	c := cut(t, tests3.NewBucket(t), func(r *http.Request) bool {
		kind := r.Method
		switch q := r.URL.Query(); {
		case r.Method == http.MethodGet || r.Method == http.MethodHead || q.Has("uploads"):
			return false
		case q.Has("partNumber"):
			kind = "part"
		case q.Has("uploadId"):
			kind = "complete"
		case r.Header.Get("If-None-Match")+r.Header.Get("If-Match") != "":
			kind = "swap " + r.Header.Get("If-None-Match")
		}
		mu.Lock()
		defer mu.Unlock()
		lost[kind]++
		return lost[kind] == 1
	})
	d := open(t, c)
	tag, err := d.Swap(t.Context(), "m", "", []byte("first"))
	if err != nil {
		t.Fatalf("a first swap: %v", err)
	}
	tag, err = d.Swap(t.Context(), "m", tag, []byte("second"))
	if err != nil {
		t.Fatalf("a second swap: %v", err)
	}
	if data, now, err := d.Read(t.Context(), "m", ""); err != nil || string(data) != "second" || now != tag {
		t.Errorf("there is %q, %q and not %q, %v", data, now, tag, err)
	}
	for _, size := range []int{10, 11 << 20} {
		data := bytes.Repeat([]byte("0123456789"), size/10)
		w, err := d.Create(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(data); err != nil {
			t.Fatal(err)
		}
		if err := w.Commit(); err != nil {
			t.Fatalf("an artifact of %d bytes: %v", size, err)
		}
		r, err := d.Open(t.Context(), "a", 0)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(r); err != nil || !bytes.Equal(got, data) {
			t.Errorf("it holds %d bytes of %d, %v", len(got), len(data), err)
		}
		r.Close()
	}
	for _, kind := range []string{"swap *", "swap ", "PUT", "part", "complete"} {
		if lost[kind] < 2 {
			t.Errorf("%s: %d requests, and the first answer was to be lost", kind, lost[kind])
		}
	}
}

// A 409, as a store gives while another request changes the object, is tried again.
func TestBusyStore(t *testing.T) {
	t.Parallel()
	var busy atomic.Int64
	d := open(t, through(t, tests3.NewBucket(t), func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodPut || busy.Add(1) > 2 {
			return false
		}
		w.WriteHeader(http.StatusConflict)
		fmt.Fprint(w, `<Error><Code>ConditionalRequestConflict</Code><Message>try again</Message></Error>`)
		return true
	}))
	if _, err := d.Swap(t.Context(), "m", "", []byte("m")); err != nil {
		t.Error(err)
	}
	if busy.Load() != 3 {
		t.Errorf("%d requests", busy.Load())
	}
}

// A connection that breaks while an object is read, or stands still, is made again
// where it broke.
func TestBrokenReads(t *testing.T) {
	t.Parallel()
	b := tests3.NewBucket(t)
	data := make([]byte, 1<<20)
	_, _ = rand.Read(data)
	if _, err := open(t, config(t, b)).Swap(t.Context(), "a", "", data); err != nil {
		t.Fatal(err)
	}
	for name, stall := range map[string]bool{"broken": false, "stalled": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var n atomic.Int64
			c := through(t, b, func(w http.ResponseWriter, r *http.Request) bool {
				if n.Add(1) > 3 {
					return false
				}
				var from int
				_, _ = fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-", &from)
				w.Header().Set("ETag", r.Header.Get("If-Match"))
				w.Header().Set("Content-Length", fmt.Sprint(len(data)-from))
				_, _ = w.Write(data[from : from+100_000])
				w.(http.Flusher).Flush()
				if stall {
					<-r.Context().Done()
				}
				panic(http.ErrAbortHandler)
			})
			c.Timeout = time.Second
			r, err := open(t, c).Open(t.Context(), "a", 50_000)
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			if got, err := io.ReadAll(r); err != nil || !bytes.Equal(got, data[50_000:]) {
				t.Errorf("%d bytes of %d, %v", len(got), len(data)-50_000, err)
			}
			if n.Load() != 4 {
				t.Errorf("%d requests", n.Load())
			}
		})
	}
}

// An object that is replaced while it is read is not read as a mixture.
func TestReplacedWhileRead(t *testing.T) {
	t.Parallel()
	b := tests3.NewBucket(t)
	plain := open(t, config(t, b))
	tag, err := plain.Swap(t.Context(), "a", "", bytes.Repeat([]byte("a"), 1<<20))
	if err != nil {
		t.Fatal(err)
	}
	var n atomic.Int64
	d := open(t, through(t, b, func(w http.ResponseWriter, r *http.Request) bool {
		if n.Add(1) > 1 {
			return false
		}
		w.Header().Set("ETag", string(tag))
		w.Header().Set("Content-Length", fmt.Sprint(1<<20))
		_, _ = w.Write(bytes.Repeat([]byte("a"), 1000))
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}))
	r, err := d.Open(t.Context(), "a", 0)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := plain.Swap(t.Context(), "a", tag, bytes.Repeat([]byte("b"), 1<<20)); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(r)
	if err == nil || bytes.Contains(got, []byte("b")) || !strings.Contains(err.Error(), "replaced") {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}

// A small object whose content is not what was written is no answer, whatever its tag.
func TestMispairedContent(t *testing.T) {
	t.Parallel()
	b := tests3.NewBucket(t)
	if _, err := open(t, config(t, b)).Swap(t.Context(), "m", "", []byte("right")); err != nil {
		t.Fatal(err)
	}
	var wrong atomic.Int64
	mispair := func(times int64) *s3.Dest {
		wrong.Store(times)
		return open(t, through(t, b, func(w http.ResponseWriter, r *http.Request) bool {
			if r.Method != http.MethodGet || wrong.Add(-1) < 0 {
				return false
			}
			w.Header().Set("ETag", `"of another moment"`)
			w.Header().Set("x-amz-meta-tributary-sha256", strings.Repeat("0", 64))
			_, _ = io.WriteString(w, "other")
			return true
		}))
	}
	if data, _, err := mispair(2).Read(t.Context(), "m", ""); err != nil || string(data) != "right" {
		t.Errorf("%q, %v", data, err)
	}
	if data, _, err := mispair(1000).Read(t.Context(), "m", ""); err == nil {
		t.Errorf("%q was taken", data)
	}
}

// A store that does not answer fails in bounded time, and says that it does.
func TestStalledStore(t *testing.T) {
	t.Parallel()
	c := through(t, tests3.NewBucket(t), func(_ http.ResponseWriter, r *http.Request) bool {
		_, _ = io.Copy(io.Discard, r.Body) // the server sees that the other side has gone only then
		<-r.Context().Done()
		return true
	})
	c.Timeout, c.Attempts = 300*time.Millisecond, 2
	began := time.Now()
	_, err := open(t, c).Swap(t.Context(), "m", "", []byte("m"))
	if err == nil || !dest.Retryable(err) || time.Since(began) > 30*time.Second {
		t.Errorf("after %v: %v", time.Since(began), err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := open(t, c).Stat(ctx, "m"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("with a deadline: %v", err)
	}
}

// What a store refuses is told in a sentence, and by errors.Is.
func TestRefusals(t *testing.T) {
	t.Parallel()
	b := tests3.NewBucket(t)
	c := config(t, b)
	c.Bucket = "no-such-bucket"
	err := open(t, c).Check(t.Context())
	if err == nil || errors.Is(err, dest.ErrNotExist) || !strings.Contains(err.Error(), "there is no bucket no-such-bucket") {
		t.Errorf("no bucket: %v", err)
	}
	c = config(t, b)
	c.SecretKeyFile = file(t, "wrong", "wrong")
	if err := open(t, c).Check(t.Context()); !errors.Is(err, dest.ErrDenied) || !strings.Contains(err.Error(), "SignatureDoesNotMatch") {
		t.Errorf("a wrong key: %v", err)
	}
	c.SecretKeyFile = filepath.Join(t.TempDir(), "missing")
	if err := open(t, c).Check(t.Context()); err == nil || !strings.Contains(err.Error(), c.SecretKeyFile) {
		t.Errorf("a missing key: %v", err)
	}
	for code, status := range map[string]int{"QuotaExceeded": 409, "XMinioStorageFull": 507, "Whatever": 507} {
		c := through(t, b, func(w http.ResponseWriter, _ *http.Request) bool {
			w.WriteHeader(status)
			fmt.Fprintf(w, `<Error><Code>%s</Code><Message>no more</Message></Error>`, code)
			return true
		})
		c.Attempts = 1
		if _, err := open(t, c).Swap(t.Context(), "m", "", nil); !errors.Is(err, dest.ErrFull) || !strings.Contains(err.Error(), code) {
			t.Errorf("%s: %v", code, err)
		}
	}
	// As S3 answers in the wrong region: to some requests without a body.
	for code, status := range map[string]int{"PermanentRedirect": 301, "AuthorizationHeaderMalformed": 400, "": 301} {
		c := through(t, b, func(w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set("X-Amz-Bucket-Region", "eu-north-1")
			w.WriteHeader(status)
			if code != "" {
				fmt.Fprintf(w, `<Error><Code>%s</Code><Message>elsewhere</Message></Error>`, code)
			}
			return true
		})
		began := time.Now()
		err := open(t, c).Check(t.Context())
		if err == nil || !strings.Contains(err.Error(), "is in region eu-north-1") || !strings.Contains(err.Error(), "looked for in "+tests3.Region) || time.Since(began) > 30*time.Second {
			t.Errorf("%d %s: after %s: %v", status, code, time.Since(began), err)
		}
	}
	for name, c := range map[string]s3.Config{
		"no bucket": {}, "prefix": {Bucket: "b", Prefix: "a//b"}, "parts": {Bucket: "b", PartSize: 1}, "authorities": {Bucket: "b", CAFile: "/missing"},
	} {
		if _, err := s3.New(t.Context(), c); err == nil {
			t.Errorf("%s was taken", name)
		}
	}
}

// A store whose disk is full.
func TestStoreFull(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("it mounts a small file system, which takes root")
	}
	t.Parallel()
	root := t.TempDir()
	if err := unix.Mount("tributary", root, "tmpfs", 0, "size=8m"); err != nil {
		t.Skip("cannot mount a small file system: ", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(root, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	c := config(t, tests3.Start(t, tests3.Options{Root: root}))
	c.Attempts = 2
	d := open(t, c)
	if err := d.Check(t.Context()); err != nil {
		t.Skip("the small file system does not keep what the store needs: ", err)
	}
	w, err := d.Create(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	defer w.Abort()
	if _, err = w.Write(make([]byte, 20<<20)); err == nil {
		err = w.Commit()
	}
	if !errors.Is(err, dest.ErrFull) || !dest.Retryable(err) {
		t.Errorf("on a full disk: %v", err)
	}
	w.Abort()
	if _, err := d.Stat(t.Context(), "a"); !errors.Is(err, dest.ErrNotExist) {
		t.Errorf("then: %v", err)
	}
	if _, err := d.Swap(t.Context(), "m", "", []byte("m")); err != nil {
		t.Errorf("after it was given up: %v", err)
	}
}

// What is asked of the store for encryption stands in its requests.
func TestEncryption(t *testing.T) {
	t.Parallel()
	for _, kms := range []string{"", "arn:aws:kms:eu-west-1:1:key/k"} {
		var mu sync.Mutex
		var asked []string
		c := through(t, tests3.NewBucket(t), func(w http.ResponseWriter, r *http.Request) bool {
			q := r.URL.Query()
			if r.Method == http.MethodPut && !q.Has("partNumber") || r.Method == http.MethodPost && q.Has("uploads") {
				mu.Lock()
				asked = append(asked, r.Header.Get("X-Amz-Server-Side-Encryption")+" "+r.Header.Get("X-Amz-Server-Side-Encryption-Aws-Kms-Key-Id"))
				mu.Unlock()
			}
			for _, h := range []string{"X-Amz-Server-Side-Encryption", "X-Amz-Server-Side-Encryption-Aws-Kms-Key-Id"} {
				r.Header.Del(h) // this store has no keys
			}
			if asked != nil {
				sign(t, r)
			}
			return false
		})
		c.Encryption, c.KMSKey = "AES256", kms
		if kms != "" {
			c.Encryption = "aws:kms"
		}
		d := open(t, c)
		if _, err := d.Swap(t.Context(), "m", "", []byte("m")); err != nil {
			t.Fatal(err)
		}
		w, err := d.Create(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(make([]byte, 6<<20)); err != nil {
			t.Fatal(err)
		}
		if err := w.Commit(); err != nil {
			t.Fatal(err)
		}
		want := c.Encryption + " " + kms
		if len(asked) != 2 || asked[0] != want || asked[1] != want {
			t.Errorf("asked for %q, want %q", asked, want)
		}
	}
}

// Credentials from a profile, and from a role that is assumed with a token; and those
// in files may change.
func TestCredentials(t *testing.T) {
	b := tests3.NewBucket(t)
	c := config(t, b)
	c.AccessKeyFile, c.SecretKeyFile = "", ""

	shared := filepath.Join(t.TempDir(), "credentials")
	if err := b.ConfigFile(shared, "archives"); err != nil {
		t.Fatal(err)
	}
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", shared)
	t.Setenv("AWS_CONFIG_FILE", filepath.Join(t.TempDir(), "none"))
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
	c.Profile = "archives"
	if err := open(t, c).Check(t.Context()); err != nil {
		t.Errorf("a profile: %v", err)
	}
	c.Profile = "other"
	if _, err := s3.New(t.Context(), c); err == nil || !strings.Contains(err.Error(), "other") {
		t.Errorf("a profile that is not there: %v", err)
	}
	c.Profile = ""
	if err := open(t, c).Check(t.Context()); err == nil {
		t.Error("without credentials it went well")
	}
	t.Setenv("AWS_ACCESS_KEY_ID", tests3.AccessKey)
	t.Setenv("AWS_SECRET_ACCESS_KEY", tests3.SecretKey)
	if err := open(t, c).Check(t.Context()); err != nil {
		t.Errorf("the environment: %v", err)
	}
	t.Setenv("AWS_ACCESS_KEY_ID", "")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "")

	asked := make(chan url.Values, 10)
	sts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = r.ParseForm()
		asked <- r.Form
		fmt.Fprintf(w, `<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleWithWebIdentityResult><Credentials>
<AccessKeyId>%s</AccessKeyId><SecretAccessKey>%s</SecretAccessKey><SessionToken></SessionToken><Expiration>%s</Expiration>
</Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>`, tests3.AccessKey, tests3.SecretKey, time.Now().Add(time.Hour).UTC().Format(time.RFC3339))
	}))
	defer sts.Close()
	c.RoleARN, c.WebIdentityTokenFile, c.STSEndpoint = "arn:aws:iam::1:role/archives", file(t, "token", "the-token"), sts.URL
	if err := open(t, c).Check(t.Context()); err != nil {
		t.Fatalf("a role: %v", err)
	}
	form := <-asked
	if form.Get("Action") != "AssumeRoleWithWebIdentity" || form.Get("RoleArn") != c.RoleARN || strings.TrimSpace(form.Get("WebIdentityToken")) != "the-token" || form.Get("RoleSessionName") != "tributary" {
		t.Errorf("asked was %v", form)
	}
}

// TLS with an authority of one's own.
func TestTLS(t *testing.T) {
	t.Parallel()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "tests3"}, NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	cert := file(t, "cert.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	b := tests3.Start(t, tests3.Options{CertFile: cert, KeyFile: file(t, "key.pem", string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})))})
	c := config(t, b)
	c.Attempts = 1
	if err := open(t, c).Check(t.Context()); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("an unknown authority: %v", err)
	}
	c.CAFile = cert
	if err := open(t, c).Check(t.Context()); err != nil {
		t.Errorf("with the authority's file: %v", err)
	}
}

// An upload that is given up is given up at the store too.
func TestUnfinishedUploads(t *testing.T) {
	t.Parallel()
	b := tests3.NewBucket(t)
	var uploads, aborts atomic.Int64
	d := open(t, through(t, b, func(_ http.ResponseWriter, r *http.Request) bool {
		q := r.URL.Query()
		if r.Method == http.MethodPost && q.Has("uploads") {
			uploads.Add(1)
		}
		if r.Method == http.MethodDelete && q.Has("uploadId") {
			aborts.Add(1)
		}
		return false
	}))
	w, err := d.Create(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	for range 30 {
		if _, err := w.Write(make([]byte, 1<<20)); err != nil {
			t.Fatal(err)
		}
	}
	w.Abort()
	if uploads.Load() != 1 || aborts.Load() < 1 { // what is not answered in time is asked again
		t.Errorf("%d uploads, %d given up", uploads.Load(), aborts.Load())
	}
}

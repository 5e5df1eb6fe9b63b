package auth

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"
)

// recheck is how long what was read from a file is used before the file is
// looked at again.
const recheck = time.Second

// watched is something made of files, made again when one of them changes.
type watched[T any] struct {
	log   *slog.Logger
	parse func(files []file) (T, error)
	paths []string

	mu     sync.Mutex
	looked time.Time
	text   []file
	value  T
	err    error // while there has been no value
	told   string
}

func watch[T any](log *slog.Logger, parse func([]file) (T, error), paths ...string) *watched[T] {
	return &watched[T]{log: log, parse: parse, paths: paths, err: errors.New("not read yet")}
}

// get returns what the files hold; what they held last, if they cannot be used.
func (w *watched[T]) get() (T, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if now := time.Now(); now.Sub(w.looked) >= recheck {
		w.looked = now
		if err := w.look(); err != nil {
			if w.err != nil {
				w.err = err
			} else if w.told != err.Error() {
				w.told = err.Error()
				w.log.Warn("a file cannot be used; going on with what it held before", "error", err)
			}
		}
	}
	return w.value, w.err
}

func (w *watched[T]) look() error {
	var all []file
	for _, p := range w.paths {
		fs, err := read(p)
		if err != nil {
			return fmt.Errorf("%w: mount the Secret that holds it there, or name another path", err)
		}
		all = append(all, fs...)
	}
	if w.err == nil && slices.EqualFunc(all, w.text, func(a, b file) bool { return a.name == b.name && bytes.Equal(a.text, b.text) }) {
		return nil
	}
	v, err := w.parse(all)
	if err != nil {
		return fmt.Errorf("%s: %w", strings.Join(w.paths, ", "), err)
	}
	w.text, w.value, w.err, w.told = all, v, nil, ""
	return nil
}

// file is a file as it was read.
type file struct {
	name string
	text []byte
}

// read reads a file, or those of a folder.
func read(path string) ([]file, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	paths := []string{path}
	if info.IsDir() {
		entries, err := os.ReadDir(path)
		if err != nil {
			return nil, err
		}
		paths = nil
		for _, e := range entries {
			if !strings.HasPrefix(e.Name(), ".") { // a mount keeps its own there
				paths = append(paths, filepath.Join(path, e.Name()))
			}
		}
	}
	files := make([]file, len(paths))
	for i, p := range paths {
		text, err := os.ReadFile(p)
		if err != nil {
			return nil, err
		}
		files[i] = file{filepath.Base(p), text}
	}
	return files, nil
}

// ServerFiles are the files of a server's TLS.
type ServerFiles struct {
	Cert, Key string
	// ClientCA is the authority of clients' certificates; empty: clients show none.
	ClientCA string
	// Optional lets clients in that show no certificate: a token says who they are.
	Optional bool
	Logger   *slog.Logger // nil: slog.Default()
}

// Config returns the TLS configuration that the files give, now and later. It
// fails if they cannot be used now.
func (f ServerFiles) Config() (*tls.Config, error) {
	paths := []string{f.Cert, f.Key}
	if f.ClientCA != "" {
		paths = append(paths, f.ClientCA)
	}
	w := watch(orDefault(f.Logger), func(files []file) (*tls.Config, error) {
		cert, err := tls.X509KeyPair(files[0].text, files[1].text)
		if err != nil {
			return nil, fmt.Errorf("the server's certificate and its key: %w", err)
		}
		c := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{cert}, NextProtos: []string{"h2", "http/1.1"}}
		if len(files) > 2 {
			if c.ClientCAs, err = pool(files[2].text); err != nil {
				return nil, err
			}
			if c.ClientAuth = tls.RequireAndVerifyClientCert; f.Optional {
				c.ClientAuth = tls.VerifyClientCertIfGiven
			}
		}
		return c, nil
	}, paths...)
	first, err := w.get()
	if err != nil {
		return nil, fmt.Errorf("auth: %w", err)
	}
	c := first.Clone()
	c.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return w.get() }
	return c, nil
}

// ClientFiles are the files with which a client secures its connections, and
// says who it is.
type ClientFiles struct {
	CA         string // authority of the server's certificate; empty: the system's
	Cert, Key  string // the client's own; empty: none
	ServerName string // that the server's certificate must be for; empty: the host dialled
	Logger     *slog.Logger
}

// Credentials returns what a client dials with. It fails if the files cannot be
// used now; later they are read again when they change.
func (f ClientFiles) Credentials() (credentials.TransportCredentials, error) {
	var paths []string
	for _, p := range []string{f.CA, f.Cert, f.Key} {
		if p != "" {
			paths = append(paths, p)
		}
	}
	if (f.Cert == "") != (f.Key == "") {
		return nil, errors.New("auth: a client's certificate and its key come together: name both files or neither")
	}
	w := watch(orDefault(f.Logger), func(files []file) (*tls.Config, error) {
		c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: f.ServerName}
		var err error
		if f.CA != "" {
			if c.RootCAs, err = pool(files[0].text); err != nil {
				return nil, err
			}
			files = files[1:]
		}
		if f.Cert != "" {
			cert, err := tls.X509KeyPair(files[0].text, files[1].text)
			if err != nil {
				return nil, fmt.Errorf("the client's certificate and its key: %w", err)
			}
			c.Certificates = []tls.Certificate{cert}
		}
		return c, nil
	}, paths...)
	if _, err := w.get(); err != nil {
		return nil, fmt.Errorf("auth: %w", err)
	}
	return &fresh{TransportCredentials: credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS12}), files: w}, nil
}

// fresh makes each handshake with what the files hold then.
type fresh struct {
	credentials.TransportCredentials
	files *watched[*tls.Config]
}

func (f *fresh) Clone() credentials.TransportCredentials {
	return &fresh{f.TransportCredentials.Clone(), f.files}
}

// Token is a bearer token in a file. It is sent over TLS only, unless Plain.
type Token struct {
	file  *watched[string]
	plain bool
}

// NewToken returns the token in a file. plain allows it to go over connections
// that are not secured, where anyone on the way can read it.
func NewToken(path string, plain bool) (*Token, error) {
	t := &Token{watch(slog.Default(), func(files []file) (string, error) {
		text := strings.TrimSpace(string(files[0].text))
		if text == "" || strings.ContainsAny(text, " \t\r\n") {
			return "", errors.New("must hold one token and nothing else")
		}
		return text, nil
	}, path), plain}
	if _, err := t.file.get(); err != nil {
		return nil, fmt.Errorf("auth: the token: %w", err)
	}
	return t, nil
}

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (t *Token) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	text, err := t.file.get()
	if err != nil {
		return nil, err
	}
	return map[string]string{"authorization": "Bearer " + text}, nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials.
func (t *Token) RequireTransportSecurity() bool { return !t.plain }

func pool(pem []byte) (*x509.CertPool, error) {
	p := x509.NewCertPool()
	if !p.AppendCertsFromPEM(pem) {
		return nil, errors.New("the authority's file holds no certificate in PEM form")
	}
	return p, nil
}

func orDefault(l *slog.Logger) *slog.Logger {
	if l == nil {
		return slog.Default()
	}
	return l
}

// ClientHandshake implements credentials.TransportCredentials.
func (f *fresh) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	c, err := f.files.get()
	if err != nil {
		return nil, nil, err
	}
	if c.ServerName != "" { // grpc would have the address's name win
		authority = c.ServerName
	}
	return credentials.NewTLS(c).ClientHandshake(ctx, authority, conn)
}

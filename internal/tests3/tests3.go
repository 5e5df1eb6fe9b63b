// Package tests3 runs a real S3 server for tests: versitygw over a folder.
//
// Tests share one server per package and take a bucket each:
//
//	func TestMain(m *testing.M) { os.Exit(tests3.With(m).Run()) }
//
//	func TestX(t *testing.T) {
//		b := tests3.NewBucket(t)
//		// connect to b.Server.Endpoint ...
//	}
//
// With composes with others of its kind: testpg.Main(tests3.With(m), ...).
//
// The program is built by hack/tool once and kept; $TRIBUTARY_VERSITYGW names another.
// Nothing outlives the process: the server is told to stop by the kernel when its
// parent dies (Linux), and a folder left by a killed process is removed by the next
// Run.
package tests3

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/tributary-dev/tributary/internal/testport"
)

// The credentials and region of every server.
const (
	AccessKey = "tributary"
	SecretKey = "tributary-secret"
	Region    = "us-east-1"
)

// Options say how a server differs from the default one.
type Options struct {
	// CertFile and KeyFile make it serve TLS.
	CertFile, KeyFile string
	// Root is the folder of its buckets; one of its own when empty.
	Root string
}

// Server is one running server.
type Server struct {
	// Endpoint is its URL.
	Endpoint string
	// Root holds a folder for each bucket.
	Root string

	dir  string
	lock *os.File
	cmd  *exec.Cmd
	exit chan struct{}
	made atomic.Int64
}

const dirPrefix = "tributary-s3-"

// Run starts a server and waits until it answers. Close ends it.
func Run(ctx context.Context, o Options) (*Server, error) {
	bin, err := program(ctx)
	if err != nil {
		return nil, err
	}
	sweep()
	dir, err := os.MkdirTemp("", dirPrefix)
	if err != nil {
		return nil, err
	}
	s := &Server{dir: dir, Root: o.Root}
	if s.Root == "" {
		s.Root = filepath.Join(dir, "buckets")
		err = os.Mkdir(s.Root, 0o755)
	}
	if err == nil {
		s.lock, err = os.Create(filepath.Join(dir, "lock"))
	}
	if err == nil {
		err = syscall.Flock(int(s.lock.Fd()), syscall.LOCK_EX)
	}
	if err == nil {
		err = s.start(ctx, bin, o)
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// program finds the server, building it if it is missing.
var program = func() func(context.Context) (string, error) {
	var once sync.Once
	var path string
	var err error
	return func(ctx context.Context) (string, error) {
		once.Do(func() {
			if path = os.Getenv("TRIBUTARY_VERSITYGW"); path != "" {
				return
			}
			var mod, out []byte
			if mod, err = exec.CommandContext(ctx, "go", "env", "GOMOD").Output(); err != nil {
				return
			}
			tool := filepath.Join(filepath.Dir(strings.TrimSpace(string(mod))), "hack", "tool")
			cmd := exec.CommandContext(ctx, tool, "versitygw-path")
			var stderr strings.Builder
			cmd.Stderr = &stderr
			if out, err = cmd.Output(); err != nil {
				err = fmt.Errorf("%s versitygw-path: %w: %s", tool, err, stderr.String())
			}
			path = strings.TrimSpace(string(out))
		})
		return path, err
	}
}()

// sweep removes what servers of killed processes left behind.
func sweep() {
	dirs, _ := filepath.Glob(filepath.Join(os.TempDir(), dirPrefix+"*"))
	for _, dir := range dirs {
		f, err := os.Open(filepath.Join(dir, "lock"))
		if err != nil {
			continue
		}
		st, err := f.Stat()
		if err == nil && time.Since(st.ModTime()) > time.Minute && syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			_ = os.RemoveAll(dir)
		}
		f.Close()
	}
}

func (s *Server) start(ctx context.Context, bin string, o Options) error {
	address, err := testport.TakeAddress()
	if err != nil {
		return err
	}
	args := []string{"--access", AccessKey, "--secret", SecretKey, "--region", Region, "--port", address, "--keep-alive", "--quiet"}
	scheme := "http://"
	if o.CertFile != "" {
		scheme, args = "https://", append(args, "--cert", o.CertFile, "--key", o.KeyFile)
	}
	s.Endpoint = scheme + address
	log, err := os.Create(s.logFile())
	if err != nil {
		return err
	}
	defer log.Close()
	s.cmd = exec.Command(bin, append(args, "posix", s.Root)...)
	s.cmd.Dir = s.dir
	s.cmd.Stdout, s.cmd.Stderr = log, log
	s.cmd.SysProcAttr = deathWithParent()
	s.exit = make(chan struct{})
	started := make(chan error)
	go func() {
		// The kernel sends the parent-death signal when the thread that forked ends, so
		// this one stays for as long as the server.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(s.exit)
		err := s.cmd.Start()
		started <- err
		if err == nil {
			_ = s.cmd.Wait() // how it ended is in the log
		}
	}()
	if err := <-started; err != nil {
		return err
	}
	return s.waitReady(ctx, address)
}

func (s *Server) waitReady(ctx context.Context, addr string) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
		if err == nil {
			return conn.Close()
		}
		select {
		case <-s.exit:
			return fmt.Errorf("versitygw ended while starting: %s", s.Log())
		case <-ctx.Done():
			return fmt.Errorf("versitygw does not answer: %w: %s", err, s.Log())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func (s *Server) logFile() string { return filepath.Join(s.dir, "log") }

// Log returns what the server has printed.
func (s *Server) Log() string {
	raw, err := os.ReadFile(s.logFile())
	if err != nil {
		return err.Error()
	}
	return string(raw)
}

// Kill ends the server as a crash would, and waits until it is gone.
func (s *Server) Kill() error {
	if s.exit == nil {
		return nil
	}
	err := s.cmd.Process.Kill()
	<-s.exit
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	return err
}

// Close stops the server and removes all that it has left.
func (s *Server) Close() error {
	err := errors.Join(s.Kill(), os.RemoveAll(s.dir))
	if s.lock != nil {
		err = errors.Join(err, s.lock.Close())
	}
	return err
}

// Bucket is a bucket of a server.
type Bucket struct {
	*Server
	Name string
}

// CreateBucket makes a bucket. To this server a folder is one.
func (s *Server) CreateBucket() (*Bucket, error) {
	name := fmt.Sprintf("bucket-%d", s.made.Add(1))
	return &Bucket{s, name}, os.Mkdir(filepath.Join(s.Root, name), 0o755)
}

// ConfigFile writes a profile of Amazon's shared credentials file with the server's
// credentials.
func (s *Server) ConfigFile(path, profile string) error {
	text := fmt.Sprintf("[%s]\naws_access_key_id = %s\naws_secret_access_key = %s\n", profile, AccessKey, SecretKey)
	return os.WriteFile(path, []byte(text), 0o600)
}

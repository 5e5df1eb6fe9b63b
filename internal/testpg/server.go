package testpg

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sys/unix"

	"github.com/tributary-dev/tributary/internal/testport"
)

// User and Password are the superuser of every server. Over TCP the server
// asks for the password by SCRAM; over its Unix socket it trusts.
const (
	User     = "postgres"
	Password = "tributary"
)

// Options say how a server differs from the default one.
type Options struct {
	// Major is the major version; 0 takes the newest one installed.
	Major int
	// Settings are added to postgresql.conf.
	Settings map[string]string
	// Fsync turns fsync, full page writes and synchronous commit on.
	Fsync bool
	// HBA are pg_hba.conf lines that come before the default ones.
	HBA []string
}

// StopMode is how PostgreSQL shuts down.
type StopMode syscall.Signal

// Smart waits for clients to leave; Fast disconnects them; Immediate leaves
// without a checkpoint.
const (
	Smart     = StopMode(syscall.SIGTERM)
	Fast      = StopMode(syscall.SIGINT)
	Immediate = StopMode(syscall.SIGQUIT)
)

// Server is one running PostgreSQL. Its methods are safe for one caller at a
// time; its databases may be used at once.
type Server struct {
	// Major is the major version that runs.
	Major int
	// Port is the TCP port on 127.0.0.1, kept over restarts.
	Port int
	// Dir holds the data directory (data), the socket and the server's log.
	Dir string

	bin    string
	uid    int
	gid    int
	unlock func()

	mu   sync.Mutex
	exit chan struct{} // closed when the postmaster has ended; nil before the first start
	pid  int
	dbs  int
}

const dirPrefix = "tributary-pg-"

// Run starts a server and waits until it answers. Close ends it.
func Run(ctx context.Context, o Options) (*Server, error) {
	bin, major, err := findBinaries(ctx, o.Major)
	if err != nil {
		return nil, err
	}
	uid, gid, err := serverUser()
	if err != nil {
		return nil, err
	}
	sweep()
	template, err := templateDir(ctx, bin, uid, gid)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", dirPrefix)
	if err != nil {
		return nil, err
	}
	s := &Server{Major: major, Dir: dir, bin: bin, uid: uid, gid: gid}
	if s.unlock, err = lockFile(filepath.Join(dir, "lock")); err == nil {
		err = s.prepare(template, o)
	}
	if err == nil {
		err = s.Start(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func serverUser() (uid, gid int, err error) {
	if os.Getuid() != 0 {
		return os.Getuid(), os.Getgid(), nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		if u, err := user.Lookup(name); err == nil {
			uid, _ = strconv.Atoi(u.Uid)
			gid, _ = strconv.Atoi(u.Gid)
			return uid, gid, nil
		}
	}
	return 0, 0, errors.New("PostgreSQL does not run as root and there is no user postgres or nobody to run it as: add one of them")
}

// sweep removes what servers of killed processes left behind.
func sweep() {
	dirs, _ := filepath.Glob(filepath.Join(os.TempDir(), dirPrefix+"*"))
	for _, dir := range dirs {
		lock := filepath.Join(dir, "lock")
		if fi, err := os.Stat(lock); err == nil && time.Since(fi.ModTime()) > time.Minute && !ownedElsewhere(lock) {
			removeSharedMemory(filepath.Join(dir, "data"))
			_ = os.RemoveAll(dir)
		}
	}
}

// templateDir returns a fresh data directory of that version, made once.
func templateDir(ctx context.Context, bin string, uid, gid int) (string, error) {
	out, err := exec.CommandContext(ctx, filepath.Join(bin, "postgres"), "--version").Output()
	if err != nil {
		return "", err
	}
	version := strings.Map(func(r rune) rune {
		if r == '.' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' {
			return r
		}
		return -1
	}, strings.TrimPrefix(string(out), "postgres (PostgreSQL) "))
	root := filepath.Join(cacheDir(), "pgtemplate")
	if err := os.MkdirAll(root, 0o755); err != nil {
		return "", err
	}
	dir := filepath.Join(root, version)
	unlock, err := lockFile(dir + ".lock")
	if err != nil {
		return "", err
	}
	defer unlock()
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	scratch, err := os.MkdirTemp("", "tributary-initdb-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(scratch)
	pw := filepath.Join(scratch, "pw")
	if err := errors.Join(os.WriteFile(pw, []byte(Password), 0o600), chown(pw, uid, gid), chown(scratch, uid, gid)); err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, filepath.Join(bin, "initdb"), "-D", filepath.Join(scratch, "data"), "-U", User,
		"--pwfile", pw, "--auth-local=trust", "--auth-host=scram-sha-256", "--encoding=UTF8", "--locale=C", "--no-sync")
	cmd.SysProcAttr = credential(uid, gid)
	cmd.Dir = scratch
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("initdb: %w: %s", err, out)
	}
	partial := dir + ".partial"
	if err := os.RemoveAll(partial); err != nil {
		return "", err
	}
	if err := copyTree(filepath.Join(scratch, "data"), partial, uid, gid); err != nil {
		return "", err
	}
	return dir, os.Rename(partial, dir)
}

func credential(uid, gid int) *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGQUIT}
	if os.Getuid() == 0 {
		attr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid), NoSetGroups: true}
	}
	return attr
}

func (s *Server) data() string    { return filepath.Join(s.Dir, "data") }
func (s *Server) logFile() string { return filepath.Join(s.Dir, "log") }

func (s *Server) prepare(template string, o Options) error {
	if err := chown(s.Dir, s.uid, s.gid); err != nil {
		return err
	}
	if err := copyTree(template, s.data(), s.uid, s.gid); err != nil {
		return err
	}
	port, err := testport.Take()
	if err != nil {
		return err
	}
	s.Port = port
	onOff := map[bool]string{true: "on", false: "off"}[o.Fsync]
	settings := map[string]string{
		"port":                    strconv.Itoa(port),
		"listen_addresses":        "127.0.0.1",
		"unix_socket_directories": s.Dir,
		"wal_level":               "logical",
		"max_wal_senders":         "50",
		"max_replication_slots":   "50",
		"max_connections":         "200",
		"fsync":                   onOff,
		"full_page_writes":        onOff,
		"synchronous_commit":      onOff,
		"shared_buffers":          "128MB",
		"max_wal_size":            "4GB",
		"autovacuum_naptime":      "1h",
	}
	for k, v := range o.Settings {
		settings[k] = v
	}
	var conf strings.Builder
	for _, k := range sortedKeys(settings) {
		fmt.Fprintf(&conf, "%s = '%s'\n", k, strings.ReplaceAll(settings[k], "'", "''"))
	}
	if err := appendFile(filepath.Join(s.data(), "postgresql.conf"), conf.String()); err != nil {
		return err
	}
	if len(o.HBA) == 0 {
		return nil
	}
	hba := filepath.Join(s.data(), "pg_hba.conf")
	old, err := os.ReadFile(hba)
	if err != nil {
		return err
	}
	return os.WriteFile(hba, append([]byte(strings.Join(o.HBA, "\n")+"\n"), old...), 0o600)
}

func sortedKeys(m map[string]string) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

func appendFile(path, text string) (err error) {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	_, err = f.WriteString(text)
	return err
}

// Start starts a stopped or killed server and waits until it answers.
func (s *Server) Start(ctx context.Context) error {
	// After a kill the old backends may still hold the shared memory for a
	// moment, and the postmaster then refuses to start.
	var err error
	for range 5 {
		if err = s.start(ctx); err == nil || !strings.Contains(err.Error(), "shared memory block") {
			return err
		}
		time.Sleep(200 * time.Millisecond)
	}
	return err
}

func (s *Server) start(ctx context.Context) error {
	if s.running() {
		return nil
	}
	log, err := os.OpenFile(s.logFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(filepath.Join(s.bin, "postgres"), "-D", s.data())
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = credential(s.uid, s.gid)
	cmd.Dir = s.Dir
	exit := make(chan struct{})
	started := make(chan error)
	go func() {
		// The kernel sends the parent-death signal when the thread that
		// forked ends, so this one stays for as long as the server.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(exit)
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // how it ended is in the log
		}
	}()
	if err := <-started; err != nil {
		return err
	}
	s.mu.Lock()
	s.exit, s.pid = exit, cmd.Process.Pid
	s.mu.Unlock()
	return s.waitReady(ctx, exit)
}

func (s *Server) waitReady(ctx context.Context, exit chan struct{}) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for {
		conn, err := pgconn.Connect(ctx, s.SocketString("postgres"))
		if err == nil {
			return conn.Close(ctx)
		}
		select {
		case <-exit:
			return fmt.Errorf("postgres %d ended while starting: %s", s.Major, tail(s.logFile(), 10))
		case <-ctx.Done():
			return fmt.Errorf("postgres %d does not answer: %w: %s", s.Major, err, tail(s.logFile(), 10))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (s *Server) running() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.exit == nil {
		return false
	}
	select {
	case <-s.exit:
		return false
	default:
		return true
	}
}

// Stop asks the server to shut down and waits until it has.
func (s *Server) Stop(ctx context.Context, mode StopMode) error {
	if err := s.Signal(syscall.Signal(mode)); err != nil {
		return err
	}
	return s.Wait(ctx)
}

// Kill ends the server as a crash would, and waits until it is gone.
func (s *Server) Kill(ctx context.Context) error {
	if err := s.Signal(syscall.SIGKILL); err != nil {
		return err
	}
	return s.Wait(ctx)
}

// Restart stops and starts the server on the same port.
func (s *Server) Restart(ctx context.Context, mode StopMode) error {
	if err := s.Stop(ctx, mode); err != nil {
		return err
	}
	return s.Start(ctx)
}

// Signal sends a signal to the postmaster. A stopped server gets none.
func (s *Server) Signal(sig syscall.Signal) error {
	if !s.running() {
		return nil
	}
	if err := syscall.Kill(s.pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
		return err
	}
	return nil
}

// Wait waits until the postmaster has ended.
func (s *Server) Wait(ctx context.Context) error {
	s.mu.Lock()
	exit := s.exit
	s.mu.Unlock()
	if exit == nil {
		return nil
	}
	select {
	case <-exit:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("postgres %d (pid %d) has not stopped: %w: %s", s.Major, s.pid, ctx.Err(), tail(s.logFile(), 5))
	}
}

// Close stops the server at once and removes all that it has left.
func (s *Server) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	err := s.Stop(ctx, Immediate)
	if err != nil {
		err = s.Kill(context.Background())
	}
	removeSharedMemory(s.data())
	err = errors.Join(err, os.RemoveAll(s.Dir))
	if s.unlock != nil {
		s.unlock()
	}
	return err
}

// removeSharedMemory removes the System V segment of a killed postmaster,
// which postmaster.pid names on its seventh line as "key id".
func removeSharedMemory(data string) {
	raw, err := os.ReadFile(filepath.Join(data, "postmaster.pid"))
	if err != nil {
		return
	}
	lines := strings.Split(string(raw), "\n")
	if len(lines) < 7 {
		return
	}
	f := strings.Fields(lines[6])
	if len(f) != 2 {
		return
	}
	if id, err := strconv.Atoi(f[1]); err == nil {
		_, _ = unix.SysvShmCtl(id, unix.IPC_RMID, nil)
	}
}

// Log returns the last n lines of the server's log.
func (s *Server) Log(n int) string { return tail(s.logFile(), n) }

// Bin is the path of one of the server's programs.
func (s *Server) Bin(name string) string { return filepath.Join(s.bin, name) }

// ConnString connects to a database over TCP as the superuser.
func (s *Server) ConnString(db string) string { return s.ConnStringAs(db, User, Password) }

// ConnStringAs connects to a database over TCP as a given user.
func (s *Server) ConnStringAs(db, user, password string) string {
	u := url.URL{Scheme: "postgres", User: url.UserPassword(user, password), Host: net.JoinHostPort("127.0.0.1", strconv.Itoa(s.Port)),
		Path: "/" + db, RawQuery: "sslmode=disable"}
	return u.String()
}

// SocketString connects to a database over the Unix socket as the superuser.
func (s *Server) SocketString(db string) string {
	return fmt.Sprintf("host=%s port=%d user=%s dbname='%s'", s.Dir, s.Port, User, db)
}

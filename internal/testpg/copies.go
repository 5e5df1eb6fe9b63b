package testpg

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/tributary-dev/tributary/internal/testport"
)

// Backup stops the server, copies its data directory aside, and starts it
// again. Restore puts the copy back.
func (s *Server) Backup(ctx context.Context) error {
	if err := s.Stop(ctx, Fast); err != nil {
		return err
	}
	if err := copyTree(s.data(), filepath.Join(s.Dir, "backup"), s.uid, s.gid); err != nil {
		return err
	}
	return s.Start(ctx)
}

// Restore stops the server, puts its data back to what Backup has copied, and
// starts it again.
func (s *Server) Restore(ctx context.Context) error {
	if err := s.Stop(ctx, Immediate); err != nil {
		return err
	}
	if err := os.RemoveAll(s.data()); err != nil {
		return err
	}
	if err := copyTree(filepath.Join(s.Dir, "backup"), s.data(), s.uid, s.gid); err != nil {
		return err
	}
	return s.Start(ctx)
}

// Standby stops a server, copies it, starts it again, and starts the copy as a
// streaming standby, on a port of its own. Close both.
func (s *Server) Standby(ctx context.Context, o Options) (*Server, error) {
	const slot = "standby"
	admin := &DB{Name: "postgres", Server: s}
	if err := admin.ExecContext(ctx, "SELECT pg_create_physical_replication_slot('"+slot+"', true)"); err != nil {
		return nil, err
	}
	if err := s.Stop(ctx, Fast); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", dirPrefix)
	if err != nil {
		return nil, err
	}
	c := &Server{Major: s.Major, Dir: dir, bin: s.bin, uid: s.uid, gid: s.gid}
	if c.unlock, err = lockFile(filepath.Join(dir, "lock")); err == nil {
		err = errors.Join(chown(dir, s.uid, s.gid), copyTree(s.data(), c.data(), s.uid, s.gid))
	}
	// Slots of the original are not the copy's.
	err = errors.Join(err, os.RemoveAll(filepath.Join(c.data(), "pg_replslot")), os.Mkdir(filepath.Join(c.data(), "pg_replslot"), 0o700),
		chown(filepath.Join(c.data(), "pg_replslot"), s.uid, s.gid))
	if err == nil {
		c.Port, err = testport.Take()
	}
	conf := fmt.Sprintf("port = '%d'\nunix_socket_directories = '%s'\nprimary_slot_name = '%s'\nprimary_conninfo = 'host=%s port=%d user=%s dbname=postgres application_name=standby'\nhot_standby_feedback = on\n",
		c.Port, dir, slot, s.Dir, s.Port, User)
	for _, k := range sortedKeys(o.Settings) {
		conf += fmt.Sprintf("%s = '%s'\n", k, o.Settings[k])
	}
	if err == nil {
		err = errors.Join(appendFile(filepath.Join(c.data(), "postgresql.conf"), conf),
			os.WriteFile(filepath.Join(c.data(), "standby.signal"), nil, 0o600), chown(filepath.Join(c.data(), "standby.signal"), s.uid, s.gid))
	}
	err = errors.Join(err, s.Start(ctx))
	if err == nil {
		err = c.Start(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// Promote makes a standby a primary.
func (s *Server) Promote(ctx context.Context) error {
	admin := &DB{Name: "postgres", Server: s}
	return admin.ExecContext(ctx, "SELECT pg_promote(true, 60)")
}

// In returns a database of the same name in another server: its copy.
func (d *DB) In(s *Server) *DB {
	return &DB{Name: d.Name, ConnString: s.ConnString(d.Name), Server: s}
}

package main

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/tributary-dev/tributary/pkg/pgsession"
)

// What an export that does not follow makes for its own time, it marks as in use: its folder by a lock of a file in
// it, its publication by an advisory lock. So the next one knows what one that was killed has left.

const folderPattern = "tributary-export-"

// makeFolder makes a folder for the time of the export, and removes those that were left.
func makeFolder() (dir string, remove func() error, err error) {
	left, _ := filepath.Glob(filepath.Join(os.TempDir(), folderPattern+"*"))
	for _, dir := range left {
		if f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR, 0); err == nil {
			if syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
				_ = os.RemoveAll(dir) // it is another's if that fails
			}
			_ = f.Close()
		}
	}
	for range 10 {
		if dir, err = os.MkdirTemp("", folderPattern); err != nil {
			return "", nil, err
		}
		f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
		if err == nil && syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			if _, err := os.Stat(f.Name()); err == nil {
				return dir, func() error { return errors.Join(os.RemoveAll(dir), f.Close()) }, nil
			}
		}
		if err == nil {
			_ = f.Close() // another export took it for one that was left
		}
	}
	return "", nil, fmt.Errorf("no folder could be made in %s", os.TempDir())
}

// ours are the publications that exports make for their own time.
var ours = regexp.MustCompile(`^tributary_once_[a-z2-7]{8}$`)

func onceName() string { return "tributary_once_" + strings.ToLower(rand.Text()[:8]) }

func lockOf(publication string) string {
	sum := sha256.Sum256([]byte("tributary archive export: " + publication))
	return fmt.Sprint(int64(binary.LittleEndian.Uint64(sum[:])))
}

// use marks a publication as in use while the connection lasts, and drops those that were left.
func (s *server) use(ctx context.Context, publication string) error {
	ctx, cancel := context.WithTimeout(ctx, reachIn)
	defer cancel()
	ask := func(sql string) ([][]string, error) {
		rs, err := s.conn.Exec(ctx, sql).ReadAll()
		return pgsession.Text(rs...), err
	}
	if _, err := ask("SELECT pg_catalog.pg_advisory_lock(" + lockOf(publication) + ")"); err != nil {
		return err
	}
	left, err := ask(`SELECT pubname FROM pg_catalog.pg_publication WHERE pubname LIKE 'tributary\_once\_%' AND pg_catalog.pg_has_role(pubowner, 'USAGE')`)
	if err != nil {
		return err
	}
	for _, row := range left {
		name := row[0]
		if !ours.MatchString(name) {
			continue
		}
		free, err := ask("SELECT pg_catalog.pg_try_advisory_lock(" + lockOf(name) + ")")
		if err != nil {
			return err
		}
		if free[0][0] != "t" {
			continue
		}
		_, err = ask("DROP PUBLICATION IF EXISTS " + pgsession.QuoteIdent(name))
		if _, uerr := ask("SELECT pg_catalog.pg_advisory_unlock(" + lockOf(name) + ")"); uerr != nil {
			return errors.Join(err, uerr)
		}
		var refused *pgconn.PgError
		if err != nil && !errors.As(err, &refused) { // another's, or another export drops it now
			return err
		}
	}
	return nil
}

package testpg

import (
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// lockFile takes an exclusive lock on a file, waiting for it. The lock ends
// with the process, however that ends.
func lockFile(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		f.Close()
		return nil, err
	}
	return func() { f.Close() }, nil
}

// ownedElsewhere says whether a living process holds the lock.
func ownedElsewhere(path string) bool {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist)
	}
	defer f.Close()
	return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil
}

// copyTree copies a data directory and gives it to uid and gid.
func copyTree(src, dst string, uid, gid int) error {
	return filepath.WalkDir(src, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(src, path)
		if err != nil {
			return err
		}
		to := filepath.Join(dst, rel)
		if d.IsDir() {
			err = os.MkdirAll(to, 0o700)
		} else {
			err = copyFile(path, to)
		}
		if err != nil {
			return err
		}
		return chown(to, uid, gid)
	})
}

func copyFile(src, dst string) (err error) {
	in, err := os.Open(src)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(dst, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	_, err = io.Copy(out, in)
	return err
}

func chown(path string, uid, gid int) error {
	if os.Getuid() != 0 {
		return nil
	}
	return os.Chown(path, uid, gid)
}

// restoreSymlinks makes the links that an embedded package lists. Its
// pg-symlinks.json names the file as source and the link as target.
func restoreSymlinks(native string) error {
	raw, err := os.ReadFile(filepath.Join(native, "pg-symlinks.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var links []struct{ Source, Target string }
	if err := json.Unmarshal(raw, &links); err != nil {
		return err
	}
	root := filepath.Dir(native)
	for _, l := range links {
		if !filepath.IsLocal(l.Source) || !filepath.IsLocal(l.Target) {
			continue
		}
		link := filepath.Join(root, l.Target)
		to, err := filepath.Rel(filepath.Dir(link), filepath.Join(root, l.Source))
		if err != nil {
			return err
		}
		if err := os.Symlink(to, link); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return nil
}

// tail returns the last lines of a log file, for an error message.
func tail(path string, n int) string {
	raw, err := os.ReadFile(path)
	if err != nil {
		return "no log: " + err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(raw)), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

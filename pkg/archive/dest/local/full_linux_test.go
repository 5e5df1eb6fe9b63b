package local_test

import (
	"errors"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tributary-dev/tributary/pkg/archive/dest"
)

// On a disk that is full an object is whole or not there, and writing goes on once
// there is room.
func TestDiskFull(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("it mounts a small file system, which takes root")
	}
	folder := t.TempDir()
	if err := unix.Mount("tributary", folder, "tmpfs", 0, "size=1m"); err != nil {
		t.Skip("cannot mount a small file system: ", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(folder, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	d := open(t, folder)
	tag, err := d.Swap(t.Context(), "m", "", []byte("first"))
	if err != nil {
		t.Fatal(err)
	}
	big := []byte(strings.Repeat("x", 2<<20))
	artifact := func() error {
		w, err := d.Create(t.Context(), "a")
		if err != nil {
			return err
		}
		defer w.Abort()
		if _, err := w.Write(big); err != nil {
			return err
		}
		return w.Commit()
	}
	full := func(err error) {
		t.Helper()
		if !errors.Is(err, dest.ErrFull) || !dest.Retryable(err) || !strings.Contains(err.Error(), folder) {
			t.Errorf("on a full disk: %v", err)
		}
	}
	full(artifact())
	_, err = d.Swap(t.Context(), "m", tag, big)
	full(err)
	if data, now, err := d.Read(t.Context(), "m", ""); err != nil || string(data) != "first" || now != tag {
		t.Errorf("then there is %q, %v", data, err)
	}
	if _, err := d.Stat(t.Context(), "a"); !errors.Is(err, dest.ErrNotExist) {
		t.Errorf("and the artifact: %v", err)
	}
	if err := unix.Mount("tributary", folder, "tmpfs", unix.MS_REMOUNT, "size=16m"); err != nil {
		t.Fatal(err)
	}
	if err := artifact(); err != nil {
		t.Error(err)
	}
	if _, err := d.Swap(t.Context(), "m", tag, big); err != nil {
		t.Error(err)
	}
}

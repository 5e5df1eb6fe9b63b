package local_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tributary-dev/tributary/pkg/archive/dest"
	"github.com/tributary-dev/tributary/pkg/archive/dest/desttest"
	"github.com/tributary-dev/tributary/pkg/archive/dest/local"
)

func open(t *testing.T, folder string) *local.Dest {
	t.Helper()
	d, err := local.New(folder)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestConformance(t *testing.T) {
	t.Parallel()
	desttest.Run(t, func(t *testing.T) desttest.Place {
		folder := filepath.Join(t.TempDir(), "not", "yet", "there")
		return func() dest.Destination { return open(t, folder) }
	})
}

// swapEnv makes a process of the test write a manifest in a folder, and then another one over it.
const swapEnv = "TRIBUTARY_TEST_SWAP_IN"

// TestMain is also the process that is killed while it writes.
func TestMain(m *testing.M) {
	if folder := os.Getenv(swapEnv); folder != "" {
		d, err := local.New(folder)
		var tag dest.Tag
		for _, text := range []string{"first", "second"} {
			if err == nil {
				tag, err = d.Swap(context.Background(), "t/manifest.json", tag, []byte(text))
			}
		}
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if folder := os.Getenv("TRIBUTARY_TEST_WRITE_TO"); folder != "" {
		w, err := write(folder)
		fmt.Println(err)
		time.Sleep(time.Hour)
		runtime.KeepAlive(w) // else its file would be closed as garbage
	}
	os.Exit(m.Run())
}

func write(folder string) (dest.Writer, error) {
	d, err := local.New(folder)
	if err != nil {
		return nil, err
	}
	w, err := d.Create(context.Background(), "t/a")
	if err != nil {
		return nil, err
	}
	_, err = w.Write(bytes.Repeat([]byte("x"), 1<<16))
	return w, err
}

// What a killed process was writing is removed by the next that writes; what a living
// one is writing is not.
func TestKilledWriter(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), "TRIBUTARY_TEST_WRITE_TO="+folder)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	said := make([]byte, 100)
	n, err := out.Read(said)
	if err != nil || string(said[:n]) != "<nil>\n" {
		t.Fatalf("the other process: %q, %v", said[:n], err)
	}
	left := func() (names []string) {
		entries, err := os.ReadDir(filepath.Join(folder, ".tributary"))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if strings.HasPrefix(e.Name(), "new-") {
				names = append(names, e.Name())
			}
		}
		return names
	}
	if err := open(t, folder).Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	if names := left(); len(names) != 1 {
		t.Fatalf("while it writes, there are %q", names)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if err := open(t, folder).Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	if names := left(); len(names) > 0 {
		t.Errorf("after it was killed, there are %q", names)
	}
}

// What lies in the folder and is no object is neither listed nor read.
func TestForeignFiles(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	d := open(t, folder)
	if _, err := d.Swap(t.Context(), "t/m", "", []byte("m")); err != nil {
		t.Fatal(err)
	}
	outside := filepath.Join(t.TempDir(), "outside")
	if err := os.WriteFile(outside, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{
		os.WriteFile(filepath.Join(folder, "a\nb"), nil, 0o644),
		os.WriteFile(filepath.Join(folder, ".tributary-x"), nil, 0o644),
		os.Symlink(outside, filepath.Join(folder, "link")),
		os.Mkdir(filepath.Join(folder, "empty"), 0o755),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	var keys []string
	for info, err := range d.List(t.Context(), "") {
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, info.Key)
	}
	if !slices.Equal(keys, []string{"t/m"}) {
		t.Errorf("listed are %q", keys)
	}
	if err := d.Delete(t.Context(), "empty"); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(folder, "empty")); err != nil {
		t.Errorf("a folder was deleted as an object: %v", err)
	}
	// A key below another.
	if _, err := d.Swap(t.Context(), "t/m/n", "", []byte("x")); err == nil || errors.Is(err, dest.ErrNotExist) {
		t.Errorf("a key below another: %v", err)
	}
}

// A folder that cannot be written to says so, and can be read.
func TestDenied(t *testing.T) {
	t.Parallel()
	if os.Getuid() == 0 {
		t.Skip("root may write everywhere")
	}
	folder := t.TempDir()
	d := open(t, folder)
	if _, err := d.Swap(t.Context(), "m", "", []byte("m")); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{folder, filepath.Join(folder, ".tributary")} {
		if err := os.Chmod(name, 0o555); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.Chmod(name, 0o755) })
	}
	if err := open(t, folder).Check(t.Context()); !errors.Is(err, dest.ErrDenied) || !strings.Contains(err.Error(), folder) {
		t.Errorf("Check: %v", err)
	}
	if data, _, err := d.Read(t.Context(), "m", ""); err != nil || string(data) != "m" {
		t.Errorf("Read: %q, %v", data, err)
	}
}

// A folder that is not there is empty, and reading does not make it.
func TestNoFolder(t *testing.T) {
	t.Parallel()
	folder := filepath.Join(t.TempDir(), "not there")
	d := open(t, folder)
	if _, _, err := d.Read(t.Context(), "m", ""); !errors.Is(err, dest.ErrNotExist) {
		t.Error(err)
	}
	for info, err := range d.List(t.Context(), "") {
		t.Errorf("listed is %v, %v", info, err)
	}
	if _, err := os.Stat(folder); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("reading has made the folder: %v", err)
	}
	if _, err := local.New(""); err == nil {
		t.Error("a folder without a name was taken")
	}
}

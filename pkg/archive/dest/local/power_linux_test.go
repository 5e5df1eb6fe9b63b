package local_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// A02: power is cut right after the rename of a manifest. What a name leads to was on the disk before it had the name, and
// the folder is on the disk before the answer, also that of a folder that is new.
func TestCaseA02(t *testing.T) {
	t.Parallel()
	strace, err := exec.LookPath("strace")
	if err != nil {
		t.Skip("it looks at system calls, which takes strace")
	}
	folder, trace := t.TempDir(), filepath.Join(t.TempDir(), "trace")
	cmd := exec.CommandContext(t.Context(), strace, "-f", "-y", "-o", trace, "-e", "trace=fsync,fdatasync,rename,renameat,renameat2,mkdir,mkdirat", os.Args[0])
	cmd.Env = append(os.Environ(), swapEnv+"="+folder)
	if out, err := cmd.CombinedOutput(); err != nil {
		if strings.Contains(string(out), "ptrace") {
			t.Skipf("system calls cannot be looked at here: %s", out)
		}
		t.Fatalf("%v: %s", err, out)
	}
	text, err := os.ReadFile(trace)
	if err != nil {
		t.Fatal(err)
	}
	var did []string // in short
	// A call that another thread's comes between is two lines, of which the first has what it is about.
	call := regexp.MustCompile(`(fsync|fdatasync)\(\d+<(.*)>(?:\)| <unfinished)|(rename\w*)\(.*"(.*)"[^"]*"(.*)"|(mkdir\w*)\(.*"(.*)", `)
	for line := range strings.Lines(string(text)) {
		m := call.FindStringSubmatch(line)
		short := func(path string) string {
			path = strings.TrimPrefix(strings.TrimPrefix(path, folder), "/")
			if strings.Contains(path, "/new-") {
				return "new"
			}
			return path
		}
		switch {
		case m == nil:
		case m[1] != "":
			did = append(did, "sync "+short(m[2]))
		case m[3] != "":
			did = append(did, short(m[4])+" becomes "+short(m[5]))
		case m[6] != "":
			did = append(did, "make "+short(m[7]))
		}
	}
	want := []string{"make .tributary", "sync ", "sync new", "make t", "sync ", "new becomes t/manifest.json", "sync t", "sync new", "new becomes t/manifest.json", "sync t"}
	if !slices.Equal(did, want) {
		t.Errorf("it did\n%s\nwant\n%s", strings.Join(did, "\n"), strings.Join(want, "\n"))
	}
}

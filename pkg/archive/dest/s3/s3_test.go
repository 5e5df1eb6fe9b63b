package s3_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/tributary-dev/tributary/internal/tests3"
	"github.com/tributary-dev/tributary/pkg/archive/dest"
	"github.com/tributary-dev/tributary/pkg/archive/dest/desttest"
	"github.com/tributary-dev/tributary/pkg/archive/dest/s3"
)

func TestMain(m *testing.M) { os.Exit(tests3.With(m).Run()) }

// config is that of a bucket, with its credentials in files.
func config(t *testing.T, b *tests3.Bucket) s3.Config {
	t.Helper()
	return s3.Config{
		Bucket: b.Name, Prefix: "archive", Endpoint: b.Endpoint, PathStyle: true, Region: tests3.Region,
		AccessKeyFile: file(t, "access", tests3.AccessKey), SecretKeyFile: file(t, "secret", tests3.SecretKey), PartSize: 5 << 20,
	}
}

func file(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func open(t *testing.T, c s3.Config) *s3.Dest {
	t.Helper()
	d, err := s3.New(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestConformance(t *testing.T) {
	t.Parallel()
	desttest.Run(t, func(t *testing.T) desttest.Place {
		c := config(t, tests3.NewBucket(t))
		return func() dest.Destination {
			d := open(t, c)
			d.SetPage(100)
			return d
		}
	})
}

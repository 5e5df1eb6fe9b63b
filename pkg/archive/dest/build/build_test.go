package build_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/tributary-dev/tributary/pkg/archive"
	"github.com/tributary-dev/tributary/pkg/archive/dest/build"
	"github.com/tributary-dev/tributary/pkg/archive/dest/s3"
	"github.com/tributary-dev/tributary/pkg/nodeconfig"
)

func TestLocation(t *testing.T) {
	t.Parallel()
	region := nodeconfig.StoreConfig{Region: "eu-west-1"}
	for location, want := range map[string]string{
		"/srv/archive": "/srv/archive", "file:///srv/archive": "/srv/archive",
		"s3://bucket": "s3://bucket", "s3://bucket/": "s3://bucket", "s3://bucket/a/b/": "s3://bucket/a/b",
	} {
		store, c, err := build.Location(location, region)
		if err != nil {
			t.Fatal(err)
		}
		d, err := build.Destination(t.Context(), store, &c)
		if err != nil || d.Describe() != want {
			t.Errorf("%s: %v, %v", location, d, err)
		}
	}
	for _, location := range []string{"", "s3://", "gs://bucket/a", "http://host/bucket"} {
		if _, _, err := build.Location(location, region); err == nil || !strings.Contains(err.Error(), "s3://BUCKET") {
			t.Errorf("%q: %v", location, err)
		}
	}
	if _, err := build.Destination(t.Context(), "tape", &region); err == nil {
		t.Error("there is a store on tape")
	}
}

// The formats that the configuration can name are those of archives.
func TestFormats(t *testing.T) {
	t.Parallel()
	if got, want := fmt.Sprint(nodeconfig.ArchiveFormats), fmt.Sprint([]archive.Format{archive.Protobuf, archive.JSONL, archive.JSONLZstd}); got != want {
		t.Errorf("formats are %s, and writers have %s", got, want)
	}
}

// What the configuration can say of encryption is what the store knows.
func TestEncryptions(t *testing.T) {
	t.Parallel()
	if got, want := strings.Join(nodeconfig.Encryptions, " "), strings.Join(s3.Encryptions, " "); got != want {
		t.Errorf("%s, and the store has %s", got, want)
	}
}

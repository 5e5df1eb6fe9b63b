package s3_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/tributary-dev/tributary/pkg/archive/dest"
	"github.com/tributary-dev/tributary/pkg/archive/dest/s3"
)

// A key that S3 would refuse is refused before it is asked, with what is too long.
func TestLongKeys(t *testing.T) {
	t.Parallel()
	long := func(names int) string { return strings.Repeat(strings.Repeat("n", 99)+"/", names) }
	d, err := s3.New(t.Context(), s3.Config{Bucket: "b", Prefix: long(6), Region: "r"})
	if err != nil {
		t.Fatal(err)
	}
	_, err = d.Create(t.Context(), long(4)+strings.Repeat("m", 25))
	if !errors.Is(err, dest.ErrKey) || !strings.Contains(err.Error(), "1025 bytes long, and 1024") {
		t.Errorf("%v", err)
	}
	w, err := d.Create(t.Context(), long(4)+strings.Repeat("m", 24))
	if err != nil {
		t.Fatal(err)
	}
	w.Abort()
}

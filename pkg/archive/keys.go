package archive

import (
	"crypto/rand"
	"encoding/base32"
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/tributary-dev/tributary/pkg/archive/dest"
)

// normalPrefix makes a key prefix end in a slash and not begin with one. The empty
// prefix is the destination's root.
func normalPrefix(p string) (string, error) {
	p = strings.Trim(p, "/")
	if p == "" {
		return "", nil
	}
	if err := dest.CheckKey(p + "/" + ManifestName); err != nil {
		return "", fmt.Errorf("archive prefix: %w", err)
	}
	return p + "/", nil
}

// newID returns a name that no other attempt has.
func newID() string {
	var b [10]byte
	_, _ = rand.Read(b[:]) // it never fails
	return strings.ToLower(base32.StdEncoding.EncodeToString(b[:]))
}

// ours are the names of the objects that a writer makes beside the manifest.
var ours = regexp.MustCompile(`^(base|diff|manifest)-[0-9]{10,20}-[a-z2-7]{16}\.(pb|jsonl|jsonl\.zst|json)$`)

func (a *Artifact) keyOf(f Format) string {
	return fmt.Sprintf("%s-%010d-%s%s", a.Kind, a.Generation, a.ID, f.ext())
}

func segmentKey(generation uint64) string {
	return fmt.Sprintf("manifest-%010d-%s.json", generation, newID())
}

// checkText refuses what JSON cannot hold.
func checkText(what, s string) error {
	if !utf8.ValidString(s) {
		return fmt.Errorf("%s %q is not UTF-8, and cannot be archived", what, s)
	}
	return nil
}

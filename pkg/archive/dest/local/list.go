package local

import (
	"context"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"strings"

	"github.com/tributary-dev/tributary/pkg/archive/dest"
)

// List walks the folders that can hold such keys.
func (d *Dest) List(ctx context.Context, prefix string) iter.Seq2[dest.Info, error] {
	return func(yield func(dest.Info, error) bool) {
		from := ""
		if i := strings.LastIndexByte(prefix, '/'); i >= 0 {
			from = prefix[:i]
			if err := dest.CheckKey(from); err != nil {
				yield(dest.Info{}, d.fail("list", prefix, err))
				return
			}
		}
		d.walk(ctx, from, prefix, yield)
	}
}

// walk yields what a folder holds and reports whether to go on.
func (d *Dest) walk(ctx context.Context, folder, prefix string, yield func(dest.Info, error) bool) bool {
	err := ctx.Err()
	var entries []fs.DirEntry
	if err == nil {
		entries, err = os.ReadDir(filepath.Join(d.root, filepath.FromSlash(folder)))
	}
	if err != nil {
		return gone(err) || yield(dest.Info{}, d.fail("list", prefix, err)) && false
	}
	for _, e := range entries {
		key := e.Name()
		if folder != "" {
			key = folder + "/" + key
		}
		switch {
		case dest.CheckKey(key) != nil:
			// Not an archive's: the destination's own, or somebody else's.
		case e.IsDir():
			if (strings.HasPrefix(key+"/", prefix) || strings.HasPrefix(prefix, key+"/")) && !d.walk(ctx, key, prefix, yield) {
				return false
			}
		case strings.HasPrefix(key, prefix):
			st, err := e.Info()
			if gone(err) || err == nil && !st.Mode().IsRegular() {
				continue
			}
			if err != nil {
				yield(dest.Info{}, d.fail("list", prefix, err))
				return false
			}
			if !yield(dest.Info{Key: key, Size: st.Size(), Modified: st.ModTime()}, nil) {
				return false
			}
		}
	}
	return true
}

package archive

import (
	"path/filepath"

	"github.com/tributary-dev/tributary/pkg/archive/dest"
)

// KeepStateIn makes the source keep its state file in a destination of the test's.
func (s *Source) KeepStateIn(d dest.Destination) { s.folders[filepath.Dir(s.cfg.StatePath)] = d }

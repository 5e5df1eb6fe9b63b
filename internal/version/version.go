// Package version names the build.
package version

import "runtime/debug"

// Version is set by the linker for releases.
var Version = ""

// String returns the version, or the revision that was built, or "dev".
func String() string {
	if Version != "" {
		return Version
	}
	if b, ok := debug.ReadBuildInfo(); ok {
		for _, s := range b.Settings {
			if s.Key == "vcs.revision" && len(s.Value) >= 12 {
				return "dev-" + s.Value[:12]
			}
		}
	}
	return "dev"
}

package node

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
)

// How much garbage may wait for the collector, beside what is in use. By default it
// is as much again: a node whose table is large, or whose rows are, would need twice
// the memory. What a node holds for long is in slabs without pointers, which cost the
// collector next to nothing, so that it can come more often; where little is in use
// it comes less often than by default.
const (
	garbageBytes    = 32 << 20
	garbageLeast    = 25 // percent of what is in use
	garbageMost     = 400
	garbageInUse    = "/gc/heap/live:bytes"
	garbageVariable = "GOGC" // in the environment, it is left alone
)

var boundGarbageOnce sync.Once

// boundGarbage keeps garbage within its bounds for as long as the process lasts.
func boundGarbage() {
	if os.Getenv(garbageVariable) != "" {
		return
	}
	boundGarbageOnce.Do(func() {
		debug.SetGCPercent(garbagePercent(0))
		afterCollection(100)
	})
}

// afterCollection adapts the bound after each collection; was is what it is.
func afterCollection(was int) {
	runtime.AddCleanup(&struct{ _ [16]byte }{}, func(was int) {
		s := []metrics.Sample{{Name: garbageInUse}}
		metrics.Read(s)
		p := garbagePercent(s[0].Value.Uint64())
		if p != was {
			debug.SetGCPercent(p)
		}
		afterCollection(p)
	}, was)
}

// garbagePercent is the collector's target for so many bytes in use. It is rounded, so
// that it seldom changes.
func garbagePercent(inUse uint64) int {
	p := garbageMost
	if inUse > 0 {
		p = int(min(uint64(garbageMost), garbageBytes*100/inUse))
	}
	return max(p/garbageLeast*garbageLeast, garbageLeast)
}

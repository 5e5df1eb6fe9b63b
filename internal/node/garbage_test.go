package node

import "testing"

func TestGarbagePercent(t *testing.T) {
	t.Parallel()
	for inUse, want := range map[uint64]int{0: 400, 4 << 20: 400, 16 << 20: 200, 32 << 20: 100, 60 << 20: 50, 128 << 20: 25, 10 << 30: 25} {
		if got := garbagePercent(inUse); got != want {
			t.Errorf("%d MiB in use: %d %%, want %d", inUse>>20, got, want)
		}
	}
}

// Package testlog keeps what is logged in a test.
package testlog

import (
	"bytes"
	"sync"
)

// Buffer is what a logger writes to while a test reads it.
type Buffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write adds to what was logged.
func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

// String is what was logged since the last Reset.
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// Reset forgets what was logged.
func (b *Buffer) Reset() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.text.Reset()
}

package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/term"
)

// progress is a line on a terminal that is written over; elsewhere it is nothing.
type progress struct {
	w    io.Writer // nil: nowhere
	last time.Time
	long int
}

func progressTo(w io.Writer) *progress {
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		return &progress{w: w}
	}
	return &progress{}
}

// say writes the line, a few times a second at most.
func (p *progress) say(format string, args ...any) {
	if p.w == nil || time.Since(p.last) < 200*time.Millisecond {
		return
	}
	line := fmt.Sprintf(format, args...)
	fmt.Fprintf(p.w, "\r%s%s", line, strings.Repeat(" ", max(0, p.long-len(line))))
	p.last, p.long = time.Now(), len(line)
}

// end takes the line away.
func (p *progress) end() {
	if p.w != nil && p.long > 0 {
		fmt.Fprintf(p.w, "\r%s\r", strings.Repeat(" ", p.long))
		p.long = 0
	}
}

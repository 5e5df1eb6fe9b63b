package archive

import (
	"fmt"
	"slices"
	"strings"
)

// Format is how an artifact is stored.
type Format string

// The formats.
const (
	// Protobuf is compact and fast: compressed, checksummed blocks.
	Protobuf Format = "protobuf"
	// JSONL is a JSON object a line, that people and any tool can read.
	JSONL Format = "jsonl"
	// JSONLZstd is JSONL, compressed as a whole.
	JSONLZstd Format = "jsonl.zst"
)

var formats = []Format{Protobuf, JSONL, JSONLZstd}

// ParseFormats reads the names of formats.
func ParseFormats(names ...string) ([]Format, error) {
	var fs []Format
	for _, n := range names {
		f := Format(strings.TrimSpace(n))
		if !slices.Contains(formats, f) {
			return nil, fmt.Errorf("unknown archive format %q: use protobuf, jsonl or jsonl.zst", n)
		}
		if !slices.Contains(fs, f) {
			fs = append(fs, f)
		}
	}
	return fs, nil
}

// ext ends the keys of artifacts.
func (f Format) ext() string {
	if f == Protobuf {
		return ".pb"
	}
	return "." + string(f)
}

// History says what diffs hold.
type History string

// The histories.
const (
	// Net diffs hold the last record of each key of each log, and the newest truncate of each
	// origin.
	Net History = "net"
	// Full diffs hold every change, in order, and where transactions end.
	Full History = "full"
)

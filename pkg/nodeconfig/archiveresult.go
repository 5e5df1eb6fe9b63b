package nodeconfig

import (
	"encoding/json"
	"time"
)

// ArchiveResult is what an archive holds, in little room: the last word of a node that
// archives once and ends, and what status shows of one that goes on.
type ArchiveResult struct {
	Destination string `json:"destination,omitempty"`
	Tables      int    `json:"tables,omitempty"`
	// Generation is the highest of the tables'.
	Generation uint64 `json:"generation,omitempty"`
	Bytes      int64  `json:"bytes,omitempty"`
	// Heads are how far tables are archived, at most MaxArchiveHeads.
	Heads []ArchiveHead `json:"heads,omitempty"`
	// Lag is the largest of the tables'; nil while none is known.
	Lag     *time.Duration `json:"-"`
	Replays int64          `json:"-"`
	// Error says why the archive was not written; empty if it was.
	Error string `json:"error,omitempty"`
}

// ArchiveHead is how far a log of a table is archived.
type ArchiveHead struct {
	Table string `json:"table"`
	ArchivePosition
}

// MaxArchiveHeads bounds the heads of an ArchiveResult, and MaxArchiveResult its bytes:
// what a container may leave behind as its last word.
const (
	MaxArchiveHeads  = 16
	MaxArchiveResult = 4096
)

// Result puts the tables of an archive together.
func (a *ArchiveStatus) Result() ArchiveResult {
	out := ArchiveResult{Destination: a.Destination, Tables: len(a.Tables)}
	for _, t := range a.Tables {
		out.Generation = max(out.Generation, t.Generation)
		out.Bytes += t.Bytes
		out.Replays += t.Replays
		if t.LagKnown {
			lag := time.Duration(t.LagSeconds * float64(time.Second))
			if out.Lag == nil || lag > *out.Lag {
				out.Lag = &lag
			}
		}
		for _, p := range t.Through {
			if len(out.Heads) < MaxArchiveHeads {
				out.Heads = append(out.Heads, ArchiveHead{t.Table, p})
			}
		}
	}
	return out
}

// Encode writes the result in at most MaxArchiveResult bytes: heads are left out until
// it fits, and then the end of the error.
func (r ArchiveResult) Encode() []byte {
	for {
		data, err := json.Marshal(r)
		switch {
		case err == nil && len(data) <= MaxArchiveResult:
			return data
		case len(r.Heads) > 0:
			r.Heads = r.Heads[:len(r.Heads)-1]
		case len(r.Error) > 0:
			r.Error = r.Error[:len(r.Error)/2]
		default:
			return nil
		}
	}
}

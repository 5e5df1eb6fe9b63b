// Package session is the wire protocol's logic: two state machines without
// clock, socket or goroutine. A Writer serves logs, a Reader takes them; each is
// fed frames and facts, and gives back frames to send and things to do. The
// drivers are packages server and client.
//
// What they hold to:
//
//   - nothing is sent but what the node's store has committed;
//   - a reader's place in a log moves only from prev to position: what is lower is
//     a repetition and dropped, what is higher is a hole and asked for again;
//   - a cursor that cannot be served is answered with Gap, or with a snapshot the
//     reader allowed: never with silence, never from somewhere else;
//   - a log whose path holds the reader is refused;
//   - bytes go out only against credit, channels in turn, so that one log's slow
//     reader costs the others nothing;
//   - whatever a peer sends, the answer is an Error that names the fault, and the
//     memory it can make a node hold is bounded by Limits.
//
// Machines are not safe for concurrent use.
package session

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/fanout/wirepb"
)

// The range of protocol versions spoken here.
const (
	MinVersion = 1
	Version    = 1
)

// Capabilities.
const (
	CapOriginCursors = "origin-cursors" // the peer keeps one cursor per log
	CapStateDelta    = "state-delta"    // the peer can be caught up by STATE_DELTA
	CapReplayArchive = "replay-archive" // the peer can be caught up by REPLAY_ARCHIVE
	CapDuplex        = "duplex"         // each side may read from the other in one session
	CapFreshTables   = "fresh-tables"   // the peer serves tables that a cursor does not cover beside it
	CapVector        = "cursor-vector"  // many channels are opened by one vector of cursors, of which the peer remembers the last
	CapShapes        = "advert-shapes"  // adverts say once what many schemas have in common
	CapFloors        = "floors"         // the peer speaks of holders: acks by holder, Stable, FLOOR
	CapBehind        = "behind-tables"  // the peer speaks of tables that a cursor is ahead of
)

func capabilitiesOf(duplex, basic bool) []string {
	all := []string{CapStateDelta, CapReplayArchive, CapFreshTables, CapVector, CapShapes, CapFloors, CapBehind}
	if !basic {
		all = append(all, CapOriginCursors)
	}
	if duplex {
		all = append(all, CapDuplex)
	}
	return all
}

// ForReader reports whether a frame of a session in which both sides read is for
// the Reader of this side, rather than its Writer; a Hello is for both.
func ForReader(f *wirepb.Frame) (reader, writer bool) {
	switch f.GetKind().(type) {
	case *wirepb.Frame_Hello:
		return true, true
	case *wirepb.Frame_Subscribe, *wirepb.Frame_Resume, *wirepb.Frame_Unsubscribe, *wirepb.Frame_Credit, *wirepb.Frame_Ack:
		return false, true
	}
	return true, false // an Error of a channel is the writer's
}

// MaxPath is the longest path of an advert that a node accepts.
const MaxPath = 8

// Limits bound what a peer can make a node hold.
type Limits struct {
	MaxChannels      int           // per session
	MaxFrame         int           // bytes; a row larger than this cannot be sent. PostgreSQL allows 1 GiB a value
	HandshakeTimeout time.Duration // until the peer's Hello
}

// DefaultLimits are used for zero fields.
var DefaultLimits = Limits{MaxChannels: 1024, MaxFrame: 1 << 30, HandshakeTimeout: 5 * time.Second}

func (l Limits) withDefaults() Limits {
	if l.MaxChannels == 0 {
		l.MaxChannels = DefaultLimits.MaxChannels
	}
	if l.MaxFrame == 0 {
		l.MaxFrame = DefaultLimits.MaxFrame
	}
	if l.HandshakeTimeout == 0 {
		l.HandshakeTimeout = DefaultLimits.HandshakeTimeout
	}
	return l
}

// Error ends a session, or one channel of it.
type Error struct {
	Code       wirepb.ErrorCode
	Channel    uint32 // 0: the session
	Message    string
	Remote     bool // the peer sent it
	RetryAfter time.Duration
}

func (e *Error) Error() string {
	if e.Remote {
		return "the peer ended it: " + e.Message
	}
	return e.Message
}

func malformed(format string, args ...any) *Error {
	return &Error{Code: wirepb.ErrorCode_ERROR_CODE_MALFORMED, Message: fmt.Sprintf(format, args...)}
}

func frame(kind any) *wirepb.Frame {
	f := &wirepb.Frame{}
	switch k := kind.(type) {
	case *wirepb.Hello:
		f.Kind = &wirepb.Frame_Hello{Hello: k}
	case *wirepb.Advert:
		f.Kind = &wirepb.Frame_Advert{Advert: k}
	case *wirepb.Subscribe:
		f.Kind = &wirepb.Frame_Subscribe{Subscribe: k}
	case *wirepb.Subscribed:
		f.Kind = &wirepb.Frame_Subscribed{Subscribed: k}
	case *wirepb.SnapshotBegin:
		f.Kind = &wirepb.Frame_SnapshotBegin{SnapshotBegin: k}
	case *wirepb.SnapshotMarks:
		f.Kind = &wirepb.Frame_SnapshotMarks{SnapshotMarks: k}
	case *wirepb.SnapshotEnd:
		f.Kind = &wirepb.Frame_SnapshotEnd{SnapshotEnd: k}
	case *wirepb.Schema:
		f.Kind = &wirepb.Frame_Schema{Schema: k}
	case *wirepb.Progress:
		f.Kind = &wirepb.Frame_Progress{Progress: k}
	case *wirepb.Head:
		f.Kind = &wirepb.Frame_Head{Head: k}
	case *wirepb.Credit:
		f.Kind = &wirepb.Frame_Credit{Credit: k}
	case *wirepb.Stable:
		f.Kind = &wirepb.Frame_Stable{Stable: k}
	case *wirepb.Ack:
		f.Kind = &wirepb.Frame_Ack{Ack: k}
	case *wirepb.Gap:
		f.Kind = &wirepb.Frame_Gap{Gap: k}
	case *wirepb.Reset:
		f.Kind = &wirepb.Frame_Reset_{Reset_: k}
	case *wirepb.GoAway:
		f.Kind = &wirepb.Frame_GoAway{GoAway: k}
	case *wirepb.Error:
		f.Kind = &wirepb.Frame_Error{Error: k}
	case *wirepb.Resume:
		f.Kind = &wirepb.Frame_Resume{Resume: k}
	case *wirepb.Behind:
		f.Kind = &wirepb.Frame_Behind{Behind: k}
	case *wirepb.Unsubscribe:
		f.Kind = &wirepb.Frame_Unsubscribe{Unsubscribe: k}
	default:
		panic(fmt.Sprintf("session: no frame for %T", kind))
	}
	return f
}

// ErrorFrame returns the frame that tells a peer of an error, or nil for an
// error that came from it.
func ErrorFrame(err error) *wirepb.Frame {
	var e *Error
	if !errors.As(err, &e) || e.Remote {
		return nil
	}
	m := &wirepb.Error{Code: e.Code, Message: e.Message, RetryAfterMs: uint32(e.RetryAfter.Milliseconds())}
	if e.Channel != 0 {
		m.Channel = &e.Channel
	}
	return frame(m)
}

// kindName names a frame for people.
func kindName(f *wirepb.Frame) string {
	if f.GetKind() == nil {
		return "unknown"
	}
	return strings.TrimSuffix(strings.TrimPrefix(fmt.Sprintf("%T", f.GetKind()), "*wirepb.Frame_"), "_")
}

// negotiate checks a peer's Hello.
func negotiate(self string, h *wirepb.Hello) error {
	switch {
	case h.GetNodeId() == "":
		return malformed("Hello names no node")
	case h.GetVersion() < h.GetMinVersion():
		return malformed("Hello has version range %d to %d", h.GetMinVersion(), h.GetVersion())
	case h.GetMinVersion() > Version || h.GetVersion() < MinVersion:
		return &Error{Code: wirepb.ErrorCode_ERROR_CODE_VERSION, Message: fmt.Sprintf(
			"node %s speaks protocol versions %d to %d and node %s (%s) speaks %d to %d: upgrade the older of them",
			self, MinVersion, Version, h.GetNodeId(), h.GetSoftware(), h.GetMinVersion(), h.GetVersion())}
	}
	return nil
}

// Refusal says why a log that a peer offers is not read from it.
type Refusal struct {
	Log    engine.LogID
	Path   []string
	Code   RefusalCode
	Reason string // for people
}

// RefusalCode is why.
type RefusalCode string

// Why a log is refused.
const (
	RefusedLoop  RefusalCode = "Loop"       // its path holds this node, or the peer says it would
	RefusedPath  RefusalCode = "PathLength" // its path is too long
	RefusedEpoch RefusalCode = "Epoch"      // a newer epoch of the origin is held
	RefusedScope RefusalCode = "Scope"      // the peer has less of a table than is wanted
	RefusedPeer  RefusalCode = "Peer"       // the peer refused, for another reason
)

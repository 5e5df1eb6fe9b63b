package archive

import "github.com/tributary-dev/tributary/pkg/engine"

// Entry is one change of a diff. It is valid during the call that passes it.
type Entry struct {
	engine.Change
	// Log that delivered the change: not always the log of its stamp.
	Log engine.LogID
	// Position, Time and Major are those of the transaction in Log that the change
	// is part of. Changes of one log and position that come together are one
	// transaction. Of a net diff that is read, they are those of the diff's end.
	Position engine.Position
	Time     engine.Time
	Major    uint64
}

// Schemas are the schemas that changes and rows use, by the log of their stamp.
type Schemas map[engine.LogID][]*engine.Schema

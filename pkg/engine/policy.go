package engine

// Policy decides, per edge, in which log of this node what the edge delivers
// is served on. Keep is the one of fan-out and meshes; package relay has the
// one of fan-in trees.
type Policy interface {
	// Append adds blocks that came in as log in to the log that serves them on.
	Append(tx Tx, in LogID, compare Comparator, blocks []*Block) error
}

// Keep serves a log on under its own identity and positions, so that any node
// that carries it can resume any reader of it.
type Keep struct{}

// Append adds the blocks to the log they came from, verbatim.
func (Keep) Append(tx Tx, in LogID, compare Comparator, blocks []*Block) error {
	return tx.Append(in, compare, blocks...)
}

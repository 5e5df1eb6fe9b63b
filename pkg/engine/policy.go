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

// Append adds the blocks to the log they came from, verbatim. A log that another policy
// has read up to the cursor, and served on elsewhere, has no entries: it begins there.
func (Keep) Append(tx Tx, in LogID, compare Comparator, blocks []*Block) error {
	if len(blocks) > 0 && blocks[0].Part == 0 {
		info, held := tx.Log(in)
		c, read := tx.Cursor(CursorKey{Log: in})
		if held && read && info.Head != c.Position && c.Position == blocks[0].Prev {
			if err := tx.ResetLog(in, compare, c.Position, c.Time); err != nil {
				return err
			}
		}
	}
	return tx.Append(in, compare, blocks...)
}

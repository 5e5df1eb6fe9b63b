package engine

import "slices"

// forgetOtherScopes takes out of the state what was read of a log's origin under
// another scope, and the logs with it: a row looks another way there, or is a
// tombstone, under the same stamp, so that the two cannot be merged.
func forgetOtherScopes(tx Tx, log LogID, scope Scope) error {
	others := map[LogID]bool{}
	for k := range tx.Cursors() {
		if k.Log.Origin == log.Origin && k.Scope != scope {
			others[k.Log] = true
		}
	}
	if len(others) == 0 {
		return nil
	}
	for l := range others {
		if err := tx.DropLog(l); err != nil {
			return err
		}
	}
	for _, t := range slices.Clone(tx.Tables()) {
		if err := removeOrigin(tx, t.Table, log.Origin); err != nil {
			return err
		}
	}
	return nil
}

// removeOrigin takes an origin's rows out of a table, some at a time.
func removeOrigin(tx Tx, table TableName, origin string) error {
	const some = 10_000
	var from []byte
	for {
		var keys [][]byte
		err := tx.Scan(table, from, func(r *Record) bool {
			if r.Stamp.Origin == origin {
				keys = append(keys, slices.Clone(r.Key))
			}
			return len(keys) < some
		})
		if err != nil {
			return err
		}
		for _, k := range keys {
			if err := tx.Remove(table, k); err != nil {
				return err
			}
		}
		if len(keys) < some {
			return nil
		}
		from = keys[some-1]
	}
}

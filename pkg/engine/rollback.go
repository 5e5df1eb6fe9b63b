package engine

// An origin that has gone back, to a backup say, does not make its old rows the
// newest there are. What its own lost writes have made of a row they supersede,
// here and wherever the log is carried: so a restored row is at the time of the
// last write that its origin has lost, in the new epoch, which is above that
// write and no further. Where nothing is known of such a write it is at the time
// of what the origin still has. What another origin has written later stays.

// rollback is what is known of a history that a source has gone back in.
type rollback struct {
	log   LogID  // as it was
	major uint64 // Version.Major of the last of it that the source still has
}

// from returns the time from which a restored row is newer than all that its
// origin still has. Of deletes that the state does not know any more it takes
// the latest there can have been.
func (r *rollback) from(v View) (Time, error) {
	t := Time(r.log.Epoch)
	if l, ok := v.Log(r.log); ok {
		t = max(t, l.CompleteFrom)
	}
	for _, table := range v.Tables() {
		err := v.Scan(table.Table, nil, func(rec *Record) bool {
			if s := rec.Stamp; s.Log() == r.log && s.Version.Major <= r.major {
				t = max(t, s.Time)
			}
			return true
		})
		if err != nil {
			return 0, err
		}
	}
	return t, nil
}

// over returns the stamp of a restored row, or of the tombstone of one that is
// not there any more. have is what the state has of it, if anything.
func (b *baseline) over(tx Tx, table TableName, have *Record) Stamp {
	s := b.stamp
	if b.restored {
		s.Time = max(s.Time, tx.Truncated(table, s.Origin).Time)
		if have != nil && have.Stamp.Origin == s.Origin {
			s.Time = max(s.Time, have.Stamp.Time)
		}
	}
	return s
}

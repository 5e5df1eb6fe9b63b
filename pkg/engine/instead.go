package engine

import "slices"

// What brings tables whole can come from another origin than before: an archive that has been taken over. The
// rows of the log that there was are in nobody's hands then: those that the new one has not are gone.

// replace removes the rows of the logs in whose place the baseline comes that the baseline lacks, and puts those that it
// has in the place of newer ones of those logs. Both get stamps above what was there, of the baseline's log if the row was
// of one of those, by which all that read it learn of them. Of logs that it only stands over nothing is removed.
func (b *baseline) replace(tx Tx, net *netChanges) error {
	e := b.source.engine
	gone, held := map[string]bool{}, map[string]bool{}
	tables := slices.Clone(b.spec.Tables)
	elsewhere := map[TableName]bool{} // tables that other logs bring too
	e.mu.Lock()
	for _, log := range b.spec.Instead {
		gone[log.Origin] = true
		if l := e.logs[log]; l != nil {
			for _, t := range l.tables {
				if !slices.Contains(tables, t) {
					tables = append(tables, t)
				}
			}
		}
	}
	for _, log := range b.spec.Over {
		gone[log.Origin] = true
	}
	for log, l := range e.logs {
		if slices.Contains(b.spec.Instead, log) || slices.Contains(b.spec.Over, log) {
			continue
		}
		held[log.Origin] = true
		for _, t := range l.tables {
			elsewhere[t] = elsewhere[t] || log != b.log
		}
	}
	e.mu.Unlock()
	for _, table := range tables {
		// Of a relay's log the rows are of origins that have no log here. They are of the logs that there were if no
		// other brings the table.
		was := func(origin string) bool { return gone[origin] || !held[origin] && !elsewhere[table] }
		may := !elsewhere[table]
		for origin := range gone {
			may = may || tx.MayHold(table, origin)
		}
		if !may {
			continue
		}
		stage := b.stages[table]
		put := func(g *Record) error { net.add(g); return tx.Put(g) }
		err := replacing(tx, table, put, func(r *Record) ([]Record, error) {
			if !was(r.Stamp.Origin) {
				return nil, nil
			}
			now := Record{Schema: r.Schema, Deleted: true}
			if stage != nil {
				has, ok, err := stage.Get(r.Key)
				if err != nil || ok && (!gone[r.Stamp.Origin] || has.Stamp.Log() != b.log) {
					return nil, err // it was written elsewhere, and the newer of the two stays
				}
				if ok {
					now = has
				}
			}
			if now.Deleted {
				if r.Deleted || len(b.spec.Instead) == 0 {
					return nil, nil
				}
				now.Schema = b.schemaOf(table, nil)
			}
			now.Key, now.Row = slices.Clone(r.Key), slices.Clone(now.Row)
			if !gone[r.Stamp.Origin] || now.Schema == nil { // right after what its own log wrote: the log in place has no schema of it
				now.Schema, now.Stamp = r.Schema, r.Stamp
				now.Stamp.Version.Minor++
				return []Record{now}, nil
			}
			now.Stamp = Stamp{max(b.spec.Time, r.Stamp.Time+1), b.log.Origin, b.log.Epoch, Version{Major: b.spec.Major}}
			return []Record{now}, nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// ends reports whether a log ends with the baseline.
func (b *baseline) ends(log LogID) bool {
	return log.Origin == b.log.Origin && log.Epoch < b.log.Epoch || slices.Contains(b.spec.Instead, log)
}

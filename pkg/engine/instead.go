package engine

import "slices"

// What brings tables whole can come from another origin than before: an archive that has been taken over. The
// rows of the log that there was are in nobody's hands then: those that the new one has not are gone.

// replace removes the rows of the logs in whose place the baseline comes that the baseline lacks. They get
// tombstones of the baseline's log, by which all that read it learn of them.
func (b *baseline) replace(tx Tx, net *netChanges) error {
	e := b.source.engine
	origins, tables := map[string]bool{}, slices.Clone(b.spec.Tables)
	e.mu.Lock()
	for _, log := range b.spec.Instead {
		origins[log.Origin] = true
		if l := e.logs[log]; l != nil {
			for _, t := range l.tables {
				if !slices.Contains(tables, t) {
					tables = append(tables, t)
				}
			}
		}
	}
	e.mu.Unlock()
	for _, table := range tables {
		may := false
		for origin := range origins {
			may = may || tx.MayHold(table, origin)
		}
		if !may {
			continue
		}
		stage := b.stages[table]
		put := func(g *Record) error { net.add(g); return tx.Put(g) }
		err := replacing(tx, table, put, func(r *Record) ([]Record, error) {
			if r.Deleted || !origins[r.Stamp.Origin] {
				return nil, nil
			}
			if stage != nil {
				if _, ok, err := stage.Get(r.Key); err != nil || ok {
					return nil, err
				}
			}
			s := Stamp{max(b.spec.Time, r.Stamp.Time+1), b.log.Origin, b.log.Epoch, Version{Major: b.spec.Major}}
			return []Record{{Schema: b.schemaOf(table, r.Schema), Key: slices.Clone(r.Key), Stamp: s, Deleted: true}}, nil
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

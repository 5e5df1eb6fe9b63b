package node

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/nodeconfig"
)

// conflictsOf returns the conflict policies of a configuration; nil for none.
func conflictsOf(all []nodeconfig.Conflict) (*engine.Conflicts, error) {
	if len(all) == 0 {
		return nil, nil
	}
	policies := make([]engine.Conflict, len(all))
	for i, q := range all {
		p := engine.Conflict{
			Table: engine.TableName{Schema: q.Table.Schema, Name: q.Table.Name}, Policy: engine.ConflictPolicy(q.Policy),
			Column: q.OwnerColumn + q.OriginColumn, PerEpoch: q.PerEpoch, // at most one of the columns is set
		}
		for _, o := range q.Owners {
			p.Owners = append(p.Owners, engine.Owner{Value: o.Value + o.Prefix, Prefix: o.Value == "", Node: o.Node})
		}
		policies[i] = p
	}
	c, err := engine.NewConflicts(policies...)
	if err != nil {
		return nil, fmt.Errorf("conflicts: %w", err)
	}
	return c, nil
}

// describeConflicts fills in what has become of conflicting writes to a table.
func describeConflicts(d *nodeconfig.TableStatus, all []engine.TableConflicts, table engine.TableName) {
	for _, c := range all {
		if c.Table != table {
			continue
		}
		d.Conflicts = &nodeconfig.ConflictStatus{Policy: string(c.Policy), Lost: c.Lost, Overwrote: c.Overwrote}
		for _, o := range c.Refused {
			d.Conflicts.Refused = append(d.Conflicts.Refused, nodeconfig.RefusedWrites{Origin: o.Origin, Writes: o.Count})
		}
	}
}

var (
	descConflicts = prometheus.NewDesc("tributary_table_conflicts_total",
		"Writes that met one of another origin on the same row: lost found a newer one, overwrote replaced an older one.", []string{"schema", "table", "outcome"}, nil)
	descRefusedWrites = prometheus.NewDesc("tributary_table_refused_writes_total",
		"Writes to rows that belong to another node, by the origin that made them.", []string{"schema", "table", "origin"}, nil)
	descRepeated = prometheus.NewDesc("tributary_log_repeated_changes_total",
		"Changes of the log that had come before, and were dropped.", []string{"origin"}, nil)
)

// collectConflicts turns what the engine counts of conflicts into metrics.
func collectConflicts(st *engine.Status, count func(d *prometheus.Desc, v float64, labels ...string)) {
	for _, c := range st.Conflicts {
		count(descConflicts, float64(c.Lost), c.Table.Schema, c.Table.Name, "lost")
		count(descConflicts, float64(c.Overwrote), c.Table.Schema, c.Table.Name, "overwrote")
		for _, o := range c.Refused {
			count(descRefusedWrites, float64(o.Count), c.Table.Schema, c.Table.Name, o.Origin)
		}
	}
	for _, l := range st.Logs {
		count(descRepeated, float64(l.Repeated), l.ID.Origin)
	}
}

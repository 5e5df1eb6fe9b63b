package postgres

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/pgsession"
)

// TotalSuffix is what the view with the totals of a table of counters is named by,
// behind the table's name. The table has a row for what each leaf has added in each of
// its epochs, and the view one for each counter.
const TotalSuffix = "_total"

// totals returns what puts the view with the totals of a table away, ahead of what
// changes the table, and what makes it; nothing if it is there as it is to be, or
// something else has its name.
func (t *Target) totals(ctx context.Context, tab *table, s *engine.Schema, changes bool) (before, after []string, err error) {
	columns := t.cfg.Counters[s.Table]
	if len(columns) == 0 || !t.cfg.CreateTables {
		return nil, nil, nil
	}
	name := tab.name + TotalSuffix
	rows, err := t.query(ctx, `SELECT c.relkind = 'v', a.attname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 WHERE n.nspname = $1 AND c.relname = $2 ORDER BY a.attnum`, tab.schema, name)
	if err != nil {
		return nil, nil, err
	}
	var keys, names, all []string
	for i := range s.Columns {
		if c := &s.Columns[i]; c.Key && !c.Added() {
			names, keys = append(names, c.Name), append(keys, pgsession.QuoteIdent(c.Name))
		}
	}
	all, names = append(all, keys...), append(names, columns...)
	for _, c := range columns {
		q := pgsession.QuoteIdent(c)
		all = append(all, "pg_catalog.sum("+q+") AS "+q)
	}
	view := pgsession.QuoteTable(tab.schema, name)
	if len(rows) > 0 {
		var has []string
		for _, r := range rows {
			if r[0] != "t" {
				return nil, nil, nil
			}
			has = append(has, r[1])
		}
		if !changes && slices.Equal(has, names) {
			return nil, nil, nil
		}
		before = []string{"DROP VIEW " + view}
	}
	return before, []string{fmt.Sprintf("CREATE VIEW %s AS SELECT %s FROM %s GROUP BY %s", view, strings.Join(all, ", "), tab.quoted(), strings.Join(keys, ", "))}, nil
}

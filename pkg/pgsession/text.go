package pgsession

import "github.com/jackc/pgx/v5/pgconn"

// Text returns the rows of the last of results as text, a null as "".
func Text(results ...*pgconn.Result) [][]string {
	if len(results) == 0 {
		return nil
	}
	last := results[len(results)-1]
	rows := make([][]string, len(last.Rows))
	for i, r := range last.Rows {
		rows[i] = make([]string, len(r))
		for j, v := range r {
			rows[i][j] = string(v)
		}
	}
	return rows
}

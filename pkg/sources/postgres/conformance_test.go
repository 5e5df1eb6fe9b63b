package postgres

import (
	"context"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/tributary-dev/tributary/internal/testpg"
	"github.com/tributary-dev/tributary/pkg/engine/sourcetest"
)

// The suite that every source passes, against the real engine.
func TestConformance(t *testing.T) { // not parallel: the suite looks for goroutines left behind
	sourcetest.Run(t, func(t testing.TB) sourcetest.Fixture {
		db := testpg.NewDB(t)
		createWorkloadTables(t, db)
		src, err := New(Config{ConnString: db.ConnString, Tables: names(workloadTables...), Slot: "suite_" + db.Name})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(src.Close)
		r := rand.New(rand.NewPCG(1, 2))
		return sourcetest.Fixture{
			Source: src,
			Mutate: func(n int) {
				for n > 0 {
					tx := []string{"BEGIN"}
					for range min(n, 1+r.IntN(20)) {
						tx = append(tx, statement(r))
						n--
					}
					if err := db.ExecContext(context.Background(), strings.Join(append(tx, "COMMIT"), ";")); err != nil {
						t.Fatal(err)
					}
				}
			},
			Truth: func() sourcetest.Rows {
				rows := sourcetest.Rows{}
				for _, table := range names(workloadTables...) {
					rows[table] = []string{}
					all, err := db.QueryContext(context.Background(), "SELECT * FROM "+quoteTable(table.Schema, table.Name))
					if err != nil {
						t.Fatal(err)
					}
					for _, row := range all {
						rows[table] = append(rows[table], sourcetest.Row(row...))
					}
				}
				return rows
			},
			Lose: func() {
				if _, err := db.TerminateWalsenders(context.Background()); err != nil {
					t.Fatal(err)
				}
			},
		}
	})
}

package ingest

import (
	"fmt"
	"math/big"
	"math/rand/v2"
	"strconv"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/engine/sourcetest"
)

var (
	orders = engine.TableName{Schema: "public", Name: "orders"}
	counts = engine.TableName{Schema: "app", Name: "counts"}
)

func testTables() []Table {
	return []Table{
		{orders, []Column{{"id", "bigint", true}, {"name", "text", false}, {"total", "numeric", false}, {"n", "int", false}}},
		{counts, []Column{{"day", "date", true}, {"who", "text", true}, {"hits", "numeric(40,3)", false}}},
	}
}

// model is what batches come to, worked out the plain way.
type model map[engine.TableName]map[string]map[string]*string

func newModel() model { return model{orders: {}, counts: {}} }

var modelColumns = map[engine.TableName][]string{orders: {"id", "name", "total", "n"}, counts: {"day", "who", "hits"}}

func (m model) clone() model {
	c := model{}
	for t, rows := range m {
		c[t] = map[string]map[string]*string{}
		for k, row := range rows {
			r := map[string]*string{}
			for n, v := range row {
				r[n] = v
			}
			c[t][k] = r
		}
	}
	return c
}

func (m model) apply(b *Batch) {
	for _, op := range b.Ops {
		if op.Kind == Truncate {
			m[op.Table] = map[string]map[string]*string{}
			continue
		}
		given := map[string]*string{}
		for _, f := range op.Row {
			given[f.Column] = f.Value
		}
		key := *given[keyName(op.Table)]
		if op.Table == counts {
			key += "/" + *given["who"]
		}
		row := m[op.Table][key]
		if op.Kind == Delete {
			delete(m[op.Table], key)
			continue
		}
		if row == nil || op.Kind == Put {
			row = map[string]*string{}
			m[op.Table][key] = row
		}
		for n, v := range given {
			if op.Kind == Add && n != "id" && n != "day" && n != "who" {
				sum, ok := new(big.Rat).SetString(*v)
				if !ok {
					panic(*v)
				}
				digits := 0
				for _, x := range []*string{v, row[n]} {
					if x != nil {
						y, _ := new(big.Rat).SetString(*x)
						sum2 := new(big.Rat).Set(y)
						if x != v {
							sum.Add(sum, sum2)
						}
						digits = max(digits, fraction(*x))
					}
				}
				if n == "hits" {
					digits = 3
				}
				text := sum.FloatString(digits)
				v = &text
			}
			row[n] = v
		}
	}
}

func keyName(t engine.TableName) string {
	if t == orders {
		return "id"
	}
	return "day"
}

func fraction(s string) int {
	for i := range s {
		if s[i] == '.' {
			return len(s) - i - 1
		}
	}
	return 0
}

func (m model) rows() sourcetest.Rows {
	out := sourcetest.Rows{}
	for t, rows := range m {
		out[t] = []string{}
		for _, row := range rows {
			var values []*string
			for _, c := range modelColumns[t] {
				values = append(values, row[c])
			}
			out[t] = append(out[t], sourcetest.Row(values...))
		}
	}
	return out
}

func field(column, v string) Field { return Field{Column: column, Value: &v} }

// randomBatch has up to n operations on few rows.
func randomBatch(r *rand.Rand, n int) *Batch {
	b := &Batch{}
	for range n {
		b.Ops = append(b.Ops, randomOp(r))
	}
	return b
}

func randomOp(r *rand.Rand) Op {
	decimal := func() string {
		return fmt.Sprintf("%s%d%019d.%03d", []string{"", "-"}[r.IntN(2)], 1+r.IntN(999), r.Int64N(1e18), r.IntN(1000))
	}
	k := Kinds[r.IntN(4)]
	if r.IntN(300) == 0 {
		k = Truncate
	}
	if r.IntN(2) == 0 {
		op := Op{Kind: k, Table: orders}
		if k == Truncate {
			return op
		}
		op.Row = []Field{field("id", strconv.Itoa(r.IntN(40)))}
		switch k {
		case Put, Set:
			if r.IntN(3) > 0 {
				op.Row = append(op.Row, field("name", fmt.Sprint("name ", r.IntN(1000))))
			}
			if r.IntN(3) > 0 {
				op.Row = append(op.Row, field("total", decimal()))
			}
			if r.IntN(3) > 0 {
				op.Row = append(op.Row, Field{Column: "n"})
			}
		case Add:
			op.Row = append(op.Row, field("n", strconv.Itoa(r.IntN(100)-50)), field("total", decimal()))
		}
		return op
	}
	op := Op{Kind: k, Table: counts}
	if k == Truncate {
		return op
	}
	op.Row = []Field{field("day", fmt.Sprintf("2024-02-%02d", 1+r.IntN(9))), field("who", []string{"a", "b", ""}[r.IntN(3)])}
	switch k {
	case Put, Set, Add:
		op.Row = append(op.Row, field("hits", decimal()))
	}
	return op
}

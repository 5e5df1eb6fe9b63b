package archive

import (
	"slices"

	"github.com/tributary-dev/tributary/pkg/engine"
)

// Known returns what archives say of the log that was minted as an origin, for engine.Engine.Recall: where a node
// begins anew, and is to go on with the log. Of tables that it writes, what it stamps comes after what is there, whoever
// has written that.
func Known(origin string, tables []engine.TableName, archives ...*Manifest) (k engine.Known) {
	for _, m := range archives {
		if slices.Contains(tables, m.Table) {
			k.Time = max(k.Time, m.Through.Time())
		}
		for _, c := range m.Through {
			if c.Log.Origin != origin {
				continue
			}
			k.Time = max(k.Time, c.Time, engine.Time(c.Log.Epoch))
			if c.Log.Epoch < k.Log.Epoch {
				continue
			}
			if c.Log != k.Log {
				k.Log, k.Schemas, k.At = c.Log, 0, c.Position
			}
			said := m.Minted[c.Log.String()]
			k.History, k.Schemas = said.History, max(k.Schemas, said.Schemas)
			if c.compare(k.At) > 0 {
				k.At = c.Position
			}
		}
	}
	return k
}

package archive

import (
	"slices"

	"github.com/tributary-dev/tributary/pkg/engine"
)

// Known returns what archives say of the log that was minted as an origin, for engine.Engine.Recall: where a node
// begins anew, and is to go on with the log. Of tables that it writes, what it stamps comes after what is there, whoever
// has written that. An archive of the log that does not say what was minted, as older ones do not, has it end: what the
// others say is not all of it.
func Known(origin string, tables []engine.TableName, archives ...*Manifest) (k engine.Known) {
	ends := false // the log k.Log
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
				k.Log, k.History, k.Schemas, k.At, ends = c.Log, "", 0, c.Position, false
			}
			said := m.Minted[c.Log.String()]
			ends = ends || said.History == ""
			k.History, k.Schemas = said.History, max(k.Schemas, said.Schemas)
			if c.Compare(k.At) > 0 {
				k.At = c.Position
			}
		}
	}
	if ends {
		k.History = ""
	}
	return k
}

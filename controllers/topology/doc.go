// Package topology turns all resources of a topology into one plan: for each
// node the sources it takes data from, its candidate parents in order, its
// depth and children, and the conditions that say what is wrong.
//
// It is pure: it reads no clock, calls no API and changes none of its inputs,
// and the same resources in any order give the same plan. So the same code
// serves the manager, the check of files in a pipeline and local runs.
//
// An edge runs from parent to child, the way data travels. The declared edge
// of a source is its first upstream; the others are standbys. Invariants:
//
//   - Following, for each source, the first eligible candidate of its wiring
//     never leads in a circle, whatever the declarations say.
//   - A cycle of declared edges is refused: its members, and nobody else, have
//     Acyclic=False and keep their last good wiring.
//   - A candidate that stands below the node, by what is declared or by what
//     nodes report, is listed but not eligible.
//   - The edges of a mesh are no edges of trees: they may lead in circles, which
//     the nodes' paths take care of, and no loop is looked for along them.
//   - A node's wiring epoch grows when its wiring changes and only then.
//
// Cycles are looked for per table: an edge that carries only some tables takes
// part only in the cycles of those. Limits: addresses outside are leaves of the
// graph here; what lies behind them is for the wire protocol's paths to check.
package topology

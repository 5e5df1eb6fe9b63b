// Package relaymodel is a model of relay trees: what docs/design/relay.md says of
// them, as naive as can be, in a simulation that is driven by a seed. It is there
// to try the rules before and beside the code that keeps them. Each rule has a
// switch that puts the obvious alternative in its place, and the test asserts
// that the alternative is found out.
//
// A world has leaves in branches, one or two levels of relays with redundant
// parents, and roots. Steps come in random order: writes, reads, flushes,
// acknowledgements, collections of tombstones, crashes, losses of a whole node,
// lost connections, reassignments of leaves. Then everything is healed, and each
// root must hold what the leaves hold.
package relaymodel

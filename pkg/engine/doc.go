// Package engine is what runs in every node: it holds logs, a state and a
// cursor vector, and changes all three in one atomic commit.
//
// A log is an ordered run of transactions from one place, named by
// (origin, epoch). The state is the materialized rows, each stamped with the
// identity of the write that produced it. The cursor vector maps each upstream
// log to the last position applied from it. Sources feed an engine, the
// fan-out server and the read API read from it; neither reaches round it.
//
// Invariants (each has a property test against a naive model):
//
//   - state, log append and cursor advance are one store commit;
//   - a baseline at P plus the changes after P equals the source at any later
//     position: no gap, nothing applied twice in effect;
//   - transactions are applied whole and readers never see half of one;
//   - a cursor never goes back within an epoch;
//   - nothing is advertised or acknowledged before the store has committed it;
//   - any order, repetition or path of the same stamped changes ends in the
//     same state, byte for byte.
//
// The reasons behind stamps, epochs and positions are in
// docs/design/identity.md.
package engine

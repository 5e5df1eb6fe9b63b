// Package relay is what a node of a fan-in tree does with what it takes in: it
// serves it on in one log of its own, so that its parents hold a log and a cursor
// for it and not for each leaf below. Records and their stamps stay as they are;
// docs/design/relay.md has the rules, and what the obvious others lose.
//
// Reoriginate is the policy: an engine.Recorder. What comes in is gathered for a
// while, and becomes one commit and one transaction of the log. Of a table that is
// delivered as Latest, a row has one place in the log, its newest, and Since reads
// what changed after a place, however long ago that was. Floors says how far those
// above have what the children have.
//
// Invariants:
//
//   - two relays that take in the same changes hold equal records: nothing in a
//     record is of the relay;
//   - a change that is in the state already has no second place;
//   - who has read the log up to the end of a flush has the effect of all that the
//     children had written up to that flush's checkpoint;
//   - what waits for a flush is bounded: callers wait.
package relay

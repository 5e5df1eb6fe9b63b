// Package sinks delivers what a node holds to other systems: package postgres
// to a database, package http to an address that takes batches.
//
// A Sink is a reader of its own node: it takes a baseline of the state, and
// then the blocks of each log, in order. It has cursors of its own and registers
// as a reader, so that retention knows of it. One that fails is tried again, and
// holds nobody but itself.
//
// What holds, whatever the target:
//
//   - A cursor moves only past what the target has taken, or what was put aside
//     durably (a dead letter).
//   - Transactions come in the order of their log. A batch holds whole ones.
//   - The target has what the state has, but for the keys of dead letters.
//   - Where several logs write one table, the greatest stamp of a key stays, as
//     in the state.
//
// A log that can no longer serve a sink's cursor, or that has a new epoch, is
// baselined again, with all logs that share a table with it.
package sinks

// Package store keeps a node's logs, state and cursor vector: in memory
// (Memory), or on disk (Pebble; docs/design/store.md says how). Package
// storetest has the suite that every engine.Store passes.
//
// In memory, rows lie encoded in large byte slabs, and the trees that find them hold
// nothing but numbers: the garbage collector sees no pointer per row. Trees are
// copy-on-write, and a commit swaps one pointer to an immutable root, so views
// cost nothing to take, never block a writer, and see whole commits only.
//
// Invariants of Memory:
//
//   - what a published root refers to is never altered: records are appended
//     past the end that any view knows, and a slab is let go of only when no
//     root in use refers to it;
//   - a transaction that is rolled back leaves no bytes behind;
//   - the journal holds at most MemoryOptions.JournalBytes over all logs, and
//     whole transactions only.
//
// Limits of Memory: a table holds at most 2^31 slabs; names of origins and schemas that
// rows were ever stamped with are kept for the life of the store (they are few).
package store

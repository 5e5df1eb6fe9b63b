// Package ingest is a node's own write API as a source: what applications write
// to the node becomes a log of the node's own, so that a leaf or a member of a
// mesh needs no database.
//
// A Batch of operations is one transaction: it is applied whole, in the order of
// its operations, or not at all. Write returns once the store has committed it.
// What many write at the same time shares commits.
//
// The state of the node is the only copy of the data. So a new epoch (another
// node has seen more of this one than it has itself) begins with the rows that
// stand, under the stamps they have, but for what was written since the node had lost
// what the other has seen: that is written again in the new epoch. A store that was
// wiped begins with nothing.
//
// Positions are decimal numbers of 16 digits that grow by at least one with each
// batch: as numbers, and as text; the major version of a stamp is the same number. The last one is the cursor in the
// store, so no position that was ever committed comes again within an epoch.
//
// A batch with an idempotency key that was committed before is not applied
// again: the first result is the answer. Keys are remembered in the commit of
// their batch, each for itself, for Config.KeyRetention and at most
// Config.MaxKeys of them, oldest first to go; each writer has keys of its own.
//
// Values are in PostgreSQL's text form. They are checked, and written the one way
// that PostgreSQL prints them, for the types that packages here know; a value
// that would lose digits is refused. Numbers are added up exactly.
//
// Limits: MaxOps operations and MaxBatchBytes bytes a batch; a table needs a key,
// of types whose values have one form; an operation that changes the key of a row
// is a delete and a put; a truncate covers the rows that were last written here.
package ingest

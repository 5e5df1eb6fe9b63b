// Package postgres is the source that reads a PostgreSQL database: a consistent
// baseline by COPY, then every transaction through logical replication
// (pgoutput, protocol 1).
//
// # Seam
//
// A baseline is read in the snapshot that the replication slot exports, at the
// slot's consistent point; the stream starts at that point. No position is
// ever read from elsewhere, so a commit is in the baseline or in the stream,
// never in both and never in neither.
//
// # Positions
//
// The only positions are ends of transactions. Transactions come whole and in
// commit order.
//
// # Confirming
//
// One goroutine owns the replication socket. It reads, decodes and reports
// status, at least every third of wal_sender_timeout, also while the engine
// holds delivery up: then it stops reading, and PostgreSQL waits. Write, flush
// and apply are always set; flush and apply only move forward, to the last
// transaction that the engine has acknowledged (durably, with a permanent
// slot). The position of a keepalive is confirmed only while nothing that was
// received is unacknowledged.
//
// # Slots
//
// With a memory store the slot is temporary: it ends with its connection, and
// Stream then gives engine.ErrReBaselineRequired. With Config.Permanent the
// slot is made permanent after the baseline has been committed, and Stream
// resumes on it.
//
// # Values
//
// Values are the text that PostgreSQL's output functions give under pinned
// settings (ISO dates, UTC, hex bytea, shortest exact floats), the same in
// baseline and stream.
//
// # Limits
//
// While a baseline is read, its tables are locked in ACCESS SHARE mode: reads and
// writes go on, TRUNCATE and ALTER TABLE wait, and so does what queues up behind
// them.
//
// PostgreSQL 14 or later. A table needs a primary key or a replica identity
// index. A transaction is held in memory until its commit arrives. A change of
// a table's shape after which older rows cannot be known to read the same (a
// column added with a default, a type whose text differs, another key, a column
// dropped and added under its old name) asks for a new baseline. Dropping a
// column and adding it again is seen with the next change of that table.
package postgres

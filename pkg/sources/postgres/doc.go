// Package postgres is the source that reads a PostgreSQL database: a consistent
// baseline by COPY, then every transaction through logical replication
// (pgoutput, protocol 2).
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
// # Large transactions
//
// PostgreSQL sends a large transaction while it is in progress. What comes of it,
// and what one that is sent whole has beyond some MiB, is kept as it came in a
// scratch file; what is rolled back is dropped there. Once the commit has come the
// engine gets the changes a run at a time (engine.Transaction.More), so that
// memory is bounded whatever the size. While the scratch directory is full the
// source stops reading and says so.
//
// # Confirming
//
// One goroutine owns the replication socket. It reads, decodes and reports
// status, at least every third of wal_sender_timeout, also while the engine
// holds delivery up: then it stops reading, and PostgreSQL waits. Write, flush
// and apply are always set; flush and apply only move forward, to the last
// transaction that the engine has acknowledged (durably, with a permanent
// slot). The position of a keepalive is confirmed only while nothing that was
// received is unacknowledged; with a permanent slot the log's cursor is moved to
// it first (engine.Sink.Progress). So an idle or filtered database keeps no WAL,
// without a table that is written to for the purpose.
//
// # Slots
//
// With a memory store the slot is temporary: it ends with its connection, and
// Stream then gives engine.ErrReBaselineRequired. With Config.Permanent the
// slot is made permanent after the baseline has been committed, and Stream
// resumes on it.
//
// The server is asked for the slot every ten seconds (Source.Slot). One that was
// invalidated, dropped or made anew asks for one new baseline, which replaces it.
// From PostgreSQL 17 on standbys take the slot over. A slot that is in use is
// waited for, and its holder named.
//
// # Histories
//
// A history is named by system identifier and timeline. After a promotion the log
// goes on in its epoch if the cursor lies before the point where the timelines
// part and the slot is there; else, and after a restore, a new epoch begins. A
// restore on the same timeline that has overtaken the cursor before it was looked
// at cannot be told.
//
// Of several hosts, all sessions are with the one that the first has found, until
// its connection is lost. From PostgreSQL 16 on that can be a standby; its
// publication is made at the primary.
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
// PostgreSQL 14 or later. A table without a key needs REPLICA IDENTITY FULL; its
// equal rows are counted. Money is printed in the C locale, as dollars: the
// number is the same.
//
// # Tables alone
//
// A table that cannot go on from what the state holds of it is baselined alone,
// in the snapshot of a second, temporary slot, while the others go on: one that is
// added (SetTables), made anew or rewritten, or whose older rows cannot be known
// to read the same in its new shape (a column added with a default, a type whose
// text differs, another key, a column dropped and added under its old name).
//
// The catalog is looked at every ten seconds for what the log does not tell:
// partitions that are attached, detached or truncated, tables that are rewritten,
// another row filter, values of an enum that are renamed, attributes that a composite
// type has gained or lost. A table that is not there, or cannot be replicated any
// more, is reported, and keeps none of the others. What is not found is what
// happens to partitions or is rewritten while the node is down.
package postgres

// Package archive keeps a table's history outside of any node: written from one,
// read by others, by people and by tools, long after both the node and its
// database are gone.
//
// An archive of a table is one small object, the manifest, and the artifacts that
// it lists, all under a key prefix of a dest.Destination. A base artifact holds the
// state of the table at a vector of cursors: its rows, and the tombstones and
// truncates that are needed to merge what other logs say of it. A diff artifact
// holds what came after one vector, up to another. A base and the diffs that follow
// on from it are a generation.
//
// # Invariants
//
//   - What the manifest lists is there, whole, and was never changed since. An
//     artifact is written under a name that no other attempt has, and listed by a
//     compare-and-swap of the manifest once it is there.
//   - Within a generation each diff begins where the artifact before it ends. A diff
//     is never applied to anything else.
//   - A record carries the stamp of its write. Of two records of a key the one with
//     the greater stamp stays, whatever artifact it comes from, as in a node.
//   - Vectors name logs with their epochs. Nothing is replayed across an epoch.
//   - Nothing of an artifact is passed on before its checksum has been verified; the
//     rows of a fold and of a replay not before all of the artifact has been.
//   - There is one writer at a time: each has a fence, a greater one than the one
//     before, and one that has been overtaken fails with ErrFenced.
//
// A Writer takes the state and the changes; where they come from is not its
// concern. A Reader folds, replays, follows and verifies. Both take memory that is
// bounded by their configuration, whatever the size of the table; what does not
// fit goes to scratch files.
//
// The format is documented in docs/archive-format.md, to the byte.
package archive

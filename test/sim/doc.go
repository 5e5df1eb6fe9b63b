// Package sim runs whole meshes and relay trees of real node logic, on a
// simulated clock, network and disk, driven by a seed: see the tests.
//
// What is real: the engine, the store's logic, what serves a session (package
// server), what reads one (the machines of package session). What is simulated:
// time, connections, disks, and the loops that package client has goroutines for.
// All happens in one goroutine, but for what a relay commits together.
//
// In a tree the truth is what the leaves have committed. At any time no row of a relay
// or root goes back, nothing is there that nobody has written, what a leaf says that
// holders have they have, and logs and cursors are those of the children; in the end
// the roots hold what the leaves hold, to the byte.
//
// A Plan is made of a seed: the nodes, and a schedule of writes and faults. A plan
// that fails is run again with parts of it left out, for as long as it fails, and
// what is left is printed.
package sim

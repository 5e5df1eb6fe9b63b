//go:build !linux

package pgsession

import "syscall"

// limitUnacknowledged does nothing where the system has no such limit.
func limitUnacknowledged(string, string, syscall.RawConn) error { return nil }

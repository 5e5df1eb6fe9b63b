//go:build !linux

package pgsession

func (*LowWater) set(int) {}

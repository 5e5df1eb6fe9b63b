package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
)

// Exit codes of the program.
const (
	exitFailed = 1 // what was asked for could not be done
	exitUsage  = 2 // the command line is wrong
	exitFound  = 3 // what was looked at is faulty, or not the same
)

const exitCodes = `Exit codes: 0 all is well; 1 it could not be done; 2 the command line is wrong;
3 what was looked at is faulty (validate, archive verify) or differs (archive diff).`

// exitError ends the program with a code of its own.
type exitError struct {
	code int
	err  error // nil: all has been said
}

func (e *exitError) Error() string {
	if e.err == nil {
		return ""
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// usage is an error of the command line that shows only when it is looked at closely.
func usage(format string, args ...any) error {
	return &exitError{exitUsage, fmt.Errorf(format, args...)}
}

// execute runs a command, and returns the program's exit code beside its error.
func execute(ctx context.Context, root *cobra.Command) (code int, err error) {
	began := false
	var watch func(*cobra.Command)
	watch = func(c *cobra.Command) {
		if run := c.RunE; run != nil {
			c.RunE = func(c *cobra.Command, args []string) error {
				began = true
				return run(c, args)
			}
		}
		for _, sub := range c.Commands() {
			watch(sub)
		}
	}
	watch(root)
	err = root.ExecuteContext(ctx)
	var exit *exitError
	switch {
	case err == nil:
		return 0, nil
	case errors.As(err, &exit):
		return exit.code, err
	case !began: // flags, arguments or the command's name
		return exitUsage, err
	}
	return exitFailed, err
}

package postgres

import (
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/pgsession"
	"github.com/tributary-dev/tributary/pkg/sinks"
)

// fault is what kind of trouble an error of the server is.
type fault int

const (
	// passing: the connection, or the server as it is now; trying again helps.
	passing fault = iota
	// general: something has to be mended, such as a missing table or right.
	general
	// ofRow: the server does not take this row.
	ofRow
)

// classify goes by the SQLSTATE (PostgreSQL manual, appendix A).
func classify(err error) fault {
	code := pgsession.SQLState(err)
	switch {
	case errors.Is(err, engine.ErrCorruptRow):
		return general
	case len(code) != 5:
		return passing
	}
	switch code[:2] {
	case "22", "23", "44", "P0", "21": // data, constraints, CHECK OPTION, RAISE, cardinality
		return ofRow
	case "08", "40", "53", "55", "57", "58", "25", "26", "XX":
		return passing
	}
	if code == "54000" || code == "54001" { // a limit that this row passes
		return ofRow
	}
	return general
}

func asRejection(err error, r **sinks.Rejection) bool { return errors.As(err, r) }

// rejection makes a Rejection of an error that trying again does not mend.
func rejection(err error) error {
	var r *sinks.Rejection
	var l *sinks.Lost
	if errors.As(err, &r) || errors.As(err, &l) || classify(err) == passing {
		return err
	}
	return &sinks.Rejection{Err: explain(err)}
}

// explain adds what the server says beside its message.
func explain(err error) error {
	var pe *pgconn.PgError
	if !errors.As(err, &pe) {
		return err
	}
	var more []string
	for _, s := range []string{pe.Detail, pe.Hint} {
		if s != "" {
			more = append(more, strings.TrimSuffix(s, "."))
		}
	}
	if pe.TableName != "" {
		more = append(more, "in table "+pe.SchemaName+"."+pe.TableName)
	}
	if len(more) == 0 {
		return err
	}
	return fmt.Errorf("%w (%s)", err, strings.Join(more, "; "))
}

// connectError says what to do about a connection that was refused.
func connectError(err error, user string) error {
	switch code := pgsession.SQLState(err); {
	case code == "28P01":
		return fmt.Errorf("user %q was refused: %w. Check the user and the password", user, err)
	case code == "28000":
		return fmt.Errorf("user %q was refused: %w. Allow this user from this address in pg_hba.conf, and reload the server", user, err)
	case code == "3D000":
		return fmt.Errorf("the database cannot be opened: %w. Check its name", err)
	case code == "":
		return fmt.Errorf("the server cannot be reached: %w. Check its address, that it runs, and that the network lets this node reach it", err)
	}
	return err
}

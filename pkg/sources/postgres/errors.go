package postgres

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/pgsession"
)

// Reason says what kind of thing is wrong at the server.
type Reason string

// What Init can find wrong.
const (
	ServerUnreachable        Reason = "ServerUnreachable"
	AuthenticationFailed     Reason = "AuthenticationFailed"
	ServerVersion            Reason = "ServerVersion"
	WalLevel                 Reason = "WalLevel"
	MissingPrivilege         Reason = "MissingPrivilege"
	TableNotFound            Reason = "TableNotFound"
	TableUnsupported         Reason = "TableUnsupported"
	NoReplicaIdentity        Reason = "NoReplicaIdentity"
	PublicationMissingTables Reason = "PublicationMissingTables"
	SlotBusy                 Reason = "SlotBusy"
	SlotsExhausted           Reason = "SlotsExhausted"
	WalSendersExhausted      Reason = "WalSendersExhausted"
)

// Problem is one thing that is wrong at the server and that someone has to mend.
type Problem struct {
	Reason Reason
	// Table it concerns; zero for the server as a whole.
	Table engine.TableName
	// What is wrong and where, and how to mend it.
	What, Mend string
	// Err is the cause, where there is one.
	Err error
}

func (p *Problem) Error() string {
	s := p.What
	if p.Err != nil {
		s += ": " + p.Err.Error()
	}
	if p.Mend != "" {
		s += ". " + p.Mend
	}
	return s
}

func (p *Problem) Unwrap() error { return p.Err }

// PreflightError is all that Init has found wrong.
type PreflightError struct {
	Server   string // host, port and database
	Problems []*Problem
}

func (e *PreflightError) Error() string {
	if len(e.Problems) == 1 {
		return fmt.Sprintf("PostgreSQL at %s: %s", e.Server, e.Problems[0])
	}
	var b strings.Builder
	fmt.Fprintf(&b, "PostgreSQL at %s: %d things are in the way", e.Server, len(e.Problems))
	for i, p := range e.Problems {
		fmt.Fprintf(&b, "; (%d) %s", i+1, p)
	}
	return b.String()
}

// Unwrap gives the problems to errors.As and errors.Is.
func (e *PreflightError) Unwrap() []error {
	errs := make([]error, len(e.Problems))
	for i, p := range e.Problems {
		errs[i] = p
	}
	return errs
}

// Has says whether one of the problems has this reason.
func (e *PreflightError) Has(r Reason) bool {
	for _, p := range e.Problems {
		if p.Reason == r {
			return true
		}
	}
	return false
}

// sourceError gives problems to the engine under one of its reasons.
func sourceError(server string, problems ...*Problem) error {
	reason, permanent := engine.ReasonPreflightFailed, false
	switch problems[0].Reason {
	case AuthenticationFailed:
		reason = engine.ReasonAuthenticationFailed
	case TableNotFound:
		reason = engine.ReasonTableNotFound
	case NoReplicaIdentity:
		reason = engine.ReasonNoReplicaIdentity
	case MissingPrivilege:
		reason = engine.ReasonPermissionDenied
	case SlotBusy:
		reason = engine.ReasonSlotBusy
	case ServerUnreachable:
		reason = engine.ReasonDisconnected
	}
	for _, p := range problems {
		switch p.Reason {
		case ServerUnreachable, SlotBusy, SlotsExhausted, WalSendersExhausted: // may end by itself
		default:
			permanent = true
		}
	}
	return &engine.SourceError{Reason: reason, Permanent: permanent, Err: &PreflightError{Server: server, Problems: problems}}
}

// identityError is an update or a delete that does not say which row it
// concerns.
type identityError struct {
	schema *engine.Schema
	column string // of the key, that has no value; "" if all do
}

func (e *identityError) Error() string {
	s := fmt.Sprintf("an update or delete of %s came without the row it concerns", e.schema.Table)
	if e.column != "" {
		s = fmt.Sprintf("an update or delete of %s came without key column %q", e.schema.Table, e.column)
	}
	return s
}

// Unwrap: the message is none that PostgreSQL sends for a table as it is described.
func (e *identityError) Unwrap() error { return errMessage }

// problem says how to mend it. A partition has a replica identity of its own.
func (e *identityError) problem() *Problem {
	t := e.schema.Table
	return &Problem{Reason: NoReplicaIdentity, Table: t, What: "the stream cannot go on past a change", Err: e,
		Mend: fmt.Sprintf("Give %s, and each of its partitions, the same replica identity: ALTER TABLE %s REPLICA IDENTITY FULL, or DEFAULT with a primary key", t, quoteTable(t.Schema, t.Name))}
}

// asSourceError makes an error of the source of what ended Init or Baseline: a
// Problem, or a connection that was lost.
func (s *Source) asSourceError(err error) error {
	var p *Problem
	var done *engine.SourceError
	var ne net.Error
	switch {
	case err == nil || errors.As(err, &done) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded):
		return err
	case errors.As(err, &p):
		return sourceError(s.server(), p)
	case sqlState(err) == "42501":
		return sourceError(s.server(), &Problem{Reason: MissingPrivilege, What: "the server does not let the node do what it has to", Err: err,
			Mend: "As the owner of what is named: GRANT SELECT ON <table> TO the node's user (and USAGE ON SCHEMA <its schema>)"})
	case strings.HasPrefix(sqlState(err), "57P"), strings.HasPrefix(sqlState(err), "08"), errors.As(err, &ne), errors.Is(err, io.ErrUnexpectedEOF):
		return sourceError(s.server(), &Problem{Reason: ServerUnreachable, What: "the connection was lost", Err: err})
	}
	return err
}

func sqlState(err error) string { return pgsession.SQLState(err) }

// connectProblem classifies why a connection could not be made.
func connectProblem(err error, user string, replication bool) *Problem {
	var pe *pgconn.PgError
	errors.As(err, &pe)
	switch code := sqlState(err); {
	case code == "28P01" || code == "28000" && !strings.Contains(pe.Message, "pg_hba") && strings.Contains(pe.Message, "does not exist"):
		return &Problem{Reason: AuthenticationFailed, What: fmt.Sprintf("user %q was refused", user), Err: pe,
			Mend: "Check the user and the password in the Secret"}
	case code == "28000":
		return &Problem{Reason: AuthenticationFailed, What: fmt.Sprintf("user %q was refused", user), Err: pe,
			Mend: "Allow this user from this address in pg_hba.conf, and reload the server"}
	case code == "3D000":
		return &Problem{Reason: ServerUnreachable, What: "the database cannot be opened", Err: pe, Mend: "Check the database's name"}
	case code == "53300" && strings.Contains(pe.Message, "max_wal_senders"):
		return walSenders(pe)
	case code == "42501" && replication:
		return replicationPrivilege(user, pe)
	case code == "42501":
		return &Problem{Reason: MissingPrivilege, What: fmt.Sprintf("user %q may not use the database", user), Err: pe,
			Mend: fmt.Sprintf("As its owner: GRANT CONNECT ON DATABASE ... TO %s", quoteIdent(user))}
	case code != "":
		return &Problem{Reason: ServerUnreachable, What: "the server does not take connections now", Err: pe}
	}
	if mend := certificateMend(err); mend != "" {
		return &Problem{Reason: AuthenticationFailed, What: "the server's certificate is not accepted", Err: err, Mend: mend}
	}
	return &Problem{Reason: ServerUnreachable, What: "the server cannot be reached", Err: err,
		Mend: "Check its address, that it runs, and that the network lets this node reach it"}
}

// certificateMend says what mends the fault that was found in a server's certificate;
// empty for another error.
func certificateMend(err error) string {
	var signer x509.UnknownAuthorityError
	var name x509.HostnameError
	var invalid x509.CertificateInvalidError
	switch {
	case errors.As(err, &signer):
		return "Set the authority of the source's TLS to the one that has signed it"
	case errors.As(err, &name):
		return "Connect by a name that it is for, or give the server a certificate for this name"
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return "Renew it at the server, or set this machine's clock"
	case errors.As(err, &invalid), errors.As(err, new(*tls.CertificateVerificationError)):
		return "Replace it at the server"
	}
	return ""
}

func walSenders(err error) *Problem {
	return &Problem{Reason: WalSendersExhausted, What: "the server has no free WAL sender", Err: err,
		Mend: "Raise max_wal_senders (and restart the server), or end a replication connection that is not needed: SELECT * FROM pg_stat_replication"}
}

// slotsNeeded is how many slots a first baseline takes: a permanent slot is a copy of
// the temporary one that the baseline is read by, and both are there for a moment.
func (s *Source) slotsNeeded() int {
	if s.cfg.Permanent {
		return 2
	}
	return 1
}

func (s *Source) slotsExhausted(err error) *Problem {
	what := "the server has no free replication slot"
	if s.cfg.Permanent {
		what = "the server lacks free replication slots: a baseline takes two, one that stays and one while it is read"
	}
	return &Problem{Reason: SlotsExhausted, What: what, Err: err,
		Mend: "Drop a slot that is not needed (SELECT * FROM pg_replication_slots WHERE NOT active), or raise max_replication_slots and restart the server"}
}

func replicationPrivilege(user string, err error) *Problem {
	return &Problem{Reason: MissingPrivilege, What: fmt.Sprintf("user %q may not replicate", user), Err: err,
		Mend: fmt.Sprintf("As a superuser: ALTER ROLE %s REPLICATION", quoteIdent(user))}
}

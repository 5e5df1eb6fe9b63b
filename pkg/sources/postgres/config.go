package postgres

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/tributary-dev/tributary/pkg/engine"
)

// Config says what to replicate, and from where.
type Config struct {
	// ConnString is a libpq URL or key=value string. It is parsed at every
	// connect, so that the files it names (sslrootcert, sslcert, sslkey,
	// passfile) are read again.
	ConnString string
	// Credentials, if set, gives the user and password for each connect, in place
	// of those of ConnString: a rotated secret is used at the next connect. An
	// empty user or password leaves that of ConnString.
	Credentials func(ctx context.Context) (user, password string, err error)
	// Tables to replicate, in the order in which they are baselined.
	Tables []engine.TableName
	// Publication to create or adopt; by default tributary_<source>. One that this
	// package made is extended when a table is added; another is only checked.
	Publication string
	// AdoptOnly leaves publications alone: the one named must be there and hold
	// the tables.
	AdoptOnly bool
	// Slot to create; by default tributary_<node>_<source>.
	Slot string
	// Permanent keeps the slot over restarts. It needs a durable store.
	Permanent bool
	// BaselineWorkers is how many connections read the baseline; 2 by default.
	BaselineWorkers int
	// MaxBuffer bounds the bytes that are received and not yet applied, the
	// transaction being received apart; 16 MiB by default.
	MaxBuffer int

	// advance is how often the cursor follows an idle stream; tests shorten it.
	advance time.Duration
	// watch is how often the server is asked for the slot; tests shorten it.
	watch time.Duration
	// ping is how often a session is used while a baseline goes on; tests shorten it.
	ping time.Duration
	// silence, if set, is how long a server may say nothing.
	silence time.Duration
	// retry is the longest wait between two attempts to connect; tests shorten it.
	retry time.Duration
	// audit is how often the catalog is looked at for what the log does not tell.
	audit time.Duration
	// partPages is how many pages of a table are read at once; tests lower it.
	partPages int64
	// patience is how long a slot that is in use is waited for.
	patience time.Duration
}

var slotName = regexp.MustCompile(`^[a-z0-9_]{1,63}$`)

// withDefaults checks the configuration and fills in what it leaves out.
func (c Config) withDefaults() (Config, error) {
	var errs []error
	if c.ConnString == "" {
		errs = append(errs, errors.New("no connection string: say where the server is, such as postgres://db.example:5432/orders"))
	} else if _, err := pgconn.ParseConfig(c.ConnString); err != nil {
		errs = append(errs, err)
	}
	if len(c.Tables) == 0 {
		errs = append(errs, errors.New("no tables: name at least one"))
	}
	for i, t := range c.Tables {
		if t.Schema == "" || t.Name == "" {
			errs = append(errs, fmt.Errorf("table %d: %q has no schema or no name", i+1, t))
		}
		if slices.Contains(c.Tables[:i], t) {
			errs = append(errs, fmt.Errorf("table %s is named twice", t))
		}
	}
	if c.Slot != "" && !slotName.MatchString(c.Slot) {
		errs = append(errs, fmt.Errorf("slot %q: PostgreSQL allows at most 63 lower-case letters, digits and underscores", c.Slot))
	}
	if len(c.Publication) > 63 {
		errs = append(errs, fmt.Errorf("publication %q: PostgreSQL allows at most 63 bytes", c.Publication))
	}
	if c.BaselineWorkers < 0 || c.MaxBuffer < 0 {
		errs = append(errs, errors.New("baseline workers and buffer size cannot be negative"))
	}
	if c.BaselineWorkers == 0 {
		c.BaselineWorkers = 2
	}
	if c.MaxBuffer == 0 {
		c.MaxBuffer = 16 << 20
	}
	if c.advance == 0 {
		c.advance = advanceEvery
	}
	if c.ping == 0 {
		c.ping = idlePing
	}
	if c.watch == 0 {
		c.watch = watchEvery
	}
	if c.retry == 0 {
		c.retry = 15 * time.Second
	}
	if c.audit == 0 {
		c.audit = 10 * time.Second
	}
	if c.partPages == 0 {
		c.partPages = partPages
	}
	if c.patience == 0 {
		c.patience = 10 * time.Second
	}
	return c, errors.Join(errs...)
}

// objectName makes a slot's or publication's name from names of other kinds.
func objectName(parts ...string) string {
	name := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '_'
	}, strings.ToLower("tributary_"+strings.Join(parts, "_")))
	return name[:min(len(name), 63)]
}

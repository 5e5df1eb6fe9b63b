package client

import (
	"slices"
	"time"

	"github.com/tributary-dev/tributary/pkg/fanout/session"
)

// Policy says when a reader moves between its upstreams. Zero fields have
// defaults.
type Policy struct {
	// UnhealthyAfter is how long the upstream may be silent; it speaks every
	// session.HeadEvery, and three times that is the least. Default 1 s. (A
	// connection that breaks is left at once.)
	UnhealthyAfter time.Duration
	// RecoverAfter is how long a preferred upstream must have been well before the
	// reader moves back to it. Default 30 s.
	RecoverAfter time.Duration
	// Failback says whether it moves back. Default FailbackPreferred.
	Failback Failback
	// MaxSwitchesPerHour bounds moves that nobody is forced to make: when it is
	// reached, the reader stays where it is as long as that works. Default 12.
	MaxSwitchesPerHour int
	// Standby says that of the peers of a group one is read, and another when that is
	// gone; else all are.
	Standby bool
}

// Failback says whether a reader moves back to a preferred upstream.
type Failback string

// The ways to fail back.
const (
	FailbackPreferred Failback = "Preferred"
	FailbackNever     Failback = "Never"
)

func (p Policy) withDefaults() Policy {
	if p.UnhealthyAfter == 0 {
		p.UnhealthyAfter = time.Second
	}
	p.UnhealthyAfter = max(p.UnhealthyAfter, 3*session.HeadEvery)
	if p.RecoverAfter == 0 {
		p.RecoverAfter = 30 * time.Second
	}
	if p.Failback == "" {
		p.Failback = FailbackPreferred
	}
	if p.MaxSwitchesPerHour == 0 {
		p.MaxSwitchesPerHour = 12
	}
	return p
}

// selector decides which upstream to read from. It is pure: time comes in, and
// evidence comes only from the reader's own attempts and streams.
type selector struct {
	policy   Policy
	jitter   func() float64 // in [0, 1)
	all      []*upstream    // in order of preference
	current  string         // being read from; empty for none
	leaving  bool           // current wants the reader gone, or is no longer listed
	last     string         // read from most recently
	since    time.Time      // it reads from current
	switches []time.Time    // of the last hour
}

// upstream is what is known of one address.
type upstream struct {
	address string
	again   redial
	retry   time.Time // not before
	well    time.Time // since when probes succeed; zero if the last did not
	probe   time.Time // when the next is due
}

// verb is what a selector wants done.
type verb uint8

const (
	wait    verb = iota // nothing, until the time given or until something happens
	connect             // read from the address, then let go of the current one
	probe               // see whether the address is well
)

type choice struct {
	do      verb
	address string
	until   time.Time // zero: no time
}

func newSelector(addresses []string, p Policy, jitter func() float64) *selector {
	s := &selector{jitter: jitter}
	s.replace(addresses, p)
	return s
}

// replace takes another list or policy. The current upstream is left, once
// there is another, only if the list no longer has it.
func (s *selector) replace(addresses []string, p Policy) {
	s.policy = p.withDefaults()
	var all []*upstream
	for _, a := range addresses {
		u := s.find(a)
		if u == nil {
			u = &upstream{address: a}
		}
		if !slices.Contains(all, u) {
			all = append(all, u)
		}
	}
	s.all = all
	if s.current != "" && s.find(s.current) == nil {
		s.leaving = true
	}
}

func (s *selector) find(address string) *upstream {
	for _, u := range s.all {
		if u.address == address {
			return u
		}
	}
	return nil
}

// next says what to do now.
func (s *selector) next(now time.Time) choice {
	if s.current == "" || s.leaving {
		return s.pick(now)
	}
	c := choice{do: wait}
	if s.policy.Failback == FailbackNever || s.spent(now) {
		return c
	}
	sooner := func(t time.Time) {
		if c.until.IsZero() || t.Before(c.until) {
			c.until = t
		}
	}
	for _, u := range s.all {
		if u.address == s.current {
			break
		}
		switch {
		case !u.well.IsZero() && now.Sub(u.well) >= s.policy.RecoverAfter && !now.Before(u.retry):
			return choice{do: connect, address: u.address}
		case !now.Before(u.probe):
			return choice{do: probe, address: u.address}
		}
		sooner(u.probe)
	}
	return c
}

// pick is next for a reader that needs another upstream. The one it is leaving
// comes last: its address may lead to another instance.
func (s *selector) pick(now time.Time) choice {
	c := choice{do: wait}
	order := s.all
	if s.current != "" {
		order = nil
		for _, u := range s.all {
			if u.address != s.current {
				order = append(order, u)
			}
		}
		if u := s.find(s.current); u != nil {
			order = append(order, u)
		}
	}
	for _, u := range order {
		if !now.Before(u.retry) {
			return choice{do: connect, address: u.address}
		}
		if c.until.IsZero() || u.retry.Before(c.until) {
			c.until = u.retry
		}
	}
	return c
}

// spent reports whether the hour's switches are used up.
func (s *selector) spent(now time.Time) bool {
	s.switches = slices.DeleteFunc(s.switches, func(t time.Time) bool { return now.Sub(t) >= time.Hour })
	return len(s.switches) >= s.policy.MaxSwitchesPerHour
}

// connected: the reader reads from address now.
func (s *selector) connected(now time.Time, address string) {
	if s.last != "" && s.last != address {
		s.switches = append(s.switches, now)
	}
	s.current, s.last, s.leaving, s.since = address, address, false, now
	if u := s.find(address); u != nil {
		u.retry = time.Time{}
	}
	for _, u := range s.all { // a probe from before the switch proves nothing now
		u.well, u.probe = time.Time{}, now.Add(s.probeEvery())
	}
}

func (s *selector) probeEvery() time.Duration {
	return max(s.policy.RecoverAfter/4, 50*time.Millisecond)
}

// failed: an attempt to reach address, or the stream from it, has failed. atMost
// bounds the time to the next attempt, 0 for the usual; away is how long the address has
// asked to be left alone.
func (s *selector) failed(now time.Time, address string, atMost, away time.Duration) {
	if s.current == address && !s.leaving {
		s.current = ""
	}
	u := s.find(address)
	if u == nil {
		return
	}
	u.retry = now.Add(u.again.next(atMost, away, s.jitter()))
	u.well, u.probe = time.Time{}, now.Add(s.probeEvery())
	if away > 0 {
		u.probe = u.retry
	}
}

// lost: the stream from the current upstream has ended; brought says that something of it
// has been applied.
func (s *selector) lost(now time.Time, brought bool, away time.Duration) {
	address := s.current
	s.current, s.leaving = "", false
	if u := s.find(address); u != nil {
		u.again.ended(now.Sub(s.since), brought)
	}
	s.failed(now, address, 0, away)
}

// leave: the current upstream wants the reader gone, is of no use, or is silent.
// Its address is tried again too, after the others: it may lead to another
// instance. One that is only silent is given longer to speak again. brought is as in lost.
func (s *selector) leave(now time.Time, silent, brought bool) {
	s.leaving = true
	if u := s.find(s.current); u != nil {
		u.again.ended(now.Sub(s.since), brought)
		u.retry = now.Add(u.again.next(0, 0, s.jitter()))
		if silent {
			u.retry = now.Add(4 * s.policy.UnhealthyAfter)
		}
	}
}

// probed: a probe of address has ended.
func (s *selector) probed(now time.Time, address string, ok bool) {
	u := s.find(address)
	switch {
	case u == nil:
	case !ok:
		s.failed(now, address, 0, 0)
	default:
		if u.well.IsZero() {
			u.well = now
		}
		u.again, u.retry = redial{}, time.Time{}
		u.probe = now.Add(s.probeEvery())
		if due := u.well.Add(s.policy.RecoverAfter); due.Before(u.probe) {
			u.probe = due
		}
	}
}

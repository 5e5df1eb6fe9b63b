package client

import "time"

// redial says how long a peer is left alone before it is dialled again. It grows with each attempt in a row that has
// come to nothing. A session is such an attempt too, unless it has lasted or brought something: else a peer that accepts
// each, and ends it, would be dialled without a pause. It is pure: time comes in.
type redial struct {
	failures int // attempts in a row that have come to nothing
}

const (
	backoffFirst = 100 * time.Millisecond
	backoffMax   = 15 * time.Second
	// lasting is how long a session that has brought nothing has to stand to have come to something.
	lasting = 10 * time.Second
	// maxAway bounds how long a peer can ask to be left alone.
	maxAway = 5 * time.Minute
)

// ended takes note of a session that has ended: how long it stood, and whether something has been applied that came
// over it.
func (r *redial) ended(stood time.Duration, brought bool) {
	if brought || stood >= lasting {
		r.failures = 0
	}
}

// next returns how long to wait after an attempt, or after a session. atMost bounds it, and 0 is the usual bound; away
// is how long the peer has asked to be left alone. A part is at random, so that those who were told the same do not come
// together: jitter is in [0, 1).
func (r *redial) next(atMost, away time.Duration, jitter float64) time.Duration {
	if atMost == 0 {
		atMost = backoffMax
	}
	delay := min(backoffFirst<<min(r.failures, 10), atMost)
	r.failures++
	delay = delay/2 + time.Duration(jitter*float64(delay))
	away = min(away, maxAway)
	return max(delay, away+time.Duration(jitter*float64(away)/4))
}

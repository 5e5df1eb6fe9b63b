package pgsession

import (
	"context"
	"net"
	"time"
)

// unanswered is how long the network may swallow what was sent before the
// connection counts as broken.
const unanswered = 20 * time.Second

// dial connects so that a network that drops everything is noticed: by
// keepalives while nothing is sent, by a limit on unacknowledged data otherwise.
func dial(ctx context.Context, network, addr string) (net.Conn, error) {
	d := net.Dialer{
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: unanswered / 2, Interval: unanswered / 6, Count: 3},
		Control:         limitUnacknowledged,
	}
	return d.DialContext(ctx, network, addr)
}

package server

import (
	"context"
	"net"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/fanout/auth"
	"github.com/tributary-dev/tributary/pkg/fanout/scope"
	"github.com/tributary-dev/tributary/pkg/fanout/session"
)

// gate lets sessions begin at a bounded rate. Those who come while it is shut
// get a time each, one after the other at the same rate, so that a storm comes
// back as a stream.
type gate struct {
	rate float64 // a second
	free float64 // sessions that may begin at once, at most twice the rate
	at   time.Time
	next time.Time // to be given out
}

// pass returns 0 for a session that may begin, or how long it should stay away.
func (g *gate) pass(now time.Time) time.Duration {
	if g.at.IsZero() {
		g.free = 2 * g.rate
	} else if now.After(g.at) {
		g.free = min(2*g.rate, g.free+now.Sub(g.at).Seconds()*g.rate)
	}
	g.at = now
	if g.free >= 1 {
		g.free--
		return 0
	}
	if g.next.Before(now) {
		g.next = now
	}
	g.next = g.next.Add(time.Duration(float64(time.Second) / g.rate))
	return max(g.next.Sub(now), time.Millisecond)
}

type identityKey struct{}

// identityOf returns who makes a call; empty where nobody is identified.
func identityOf(ctx context.Context) string {
	id, _ := ctx.Value(identityKey{}).(string)
	return id
}

// identified returns the context of a call with the identity of who makes it.
// Probes of health are open to all.
func (s *Server) identified(ctx context.Context, method string) (context.Context, error) {
	if s.cfg.Guard == nil || strings.HasPrefix(method, "/grpc.health.") {
		return ctx, nil
	}
	id, err := s.cfg.Guard.Peer(ctx)
	if err != nil {
		s.metrics.faults.WithLabelValues("UNAUTHENTICATED").Inc()
		return nil, err
	}
	return context.WithValue(ctx, identityKey{}, id), nil
}

func (s *Server) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	ctx, err := s.identified(ctx, info.FullMethod)
	if err != nil {
		return nil, err
	}
	return next(ctx, req)
}

func (s *Server) streaming(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	ctx, err := s.identified(stream.Context(), info.FullMethod)
	if err != nil {
		return err
	}
	return next(srv, identifiedStream{stream, ctx})
}

type identifiedStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s identifiedStream) Context() context.Context { return s.ctx }

// owner is whom a session counts for.
func (v *serving) owner() string {
	if v.identity != "" {
		return v.identity
	}
	if host, _, err := net.SplitHostPort(v.address); err == nil {
		return host
	}
	return v.address
}

// seenBy returns what an identity may see of the node, worked out once for all of
// its sessions.
func (m *moment) seenBy(g *auth.Guard, identity string) []session.Served {
	if g == nil {
		return m.served
	}
	m.seenMu.Lock()
	defer m.seenMu.Unlock()
	seen, ok := m.seen[identity]
	if ok {
		return seen
	}
	for _, l := range m.served {
		permitted := func(t engine.TableName) bool { return g.Permit(identity, t) == nil }
		tables := slices.DeleteFunc(slices.Clone(l.Tables), func(t engine.TableName) bool { return !permitted(t) })
		if len(tables) == 0 {
			continue
		}
		if len(tables) < len(l.Tables) {
			l.Hidden, l.Tables = true, tables
			l.Schemas = slices.DeleteFunc(slices.Clone(l.Schemas), func(sc *engine.Schema) bool { return !permitted(sc.Table) })
			l.Scope = only(l.Scope, tables)
		}
		seen = append(seen, l)
	}
	if m.seen == nil {
		m.seen = map[string][]session.Served{}
	}
	m.seen[identity] = seen
	return seen
}

// only returns the part of a scope that is about some tables.
func only(s *scope.Scope, tables []engine.TableName) *scope.Scope {
	return s.Only(slices.DeleteFunc(slices.Clone(tables), func(t engine.TableName) bool { return !s.Covers(t) })).Partial()
}

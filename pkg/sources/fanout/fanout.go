// Package fanout is the source of a cascade: an upstream node's fan-out as an
// engine.SyncSource, so that a node can serve on what another serves.
//
// The logs keep their identity and positions: any upstream that carries a log
// resumes any cursor of it, so a node with several upstreams moves between them
// without a baseline. Whatever stands behind the first node of the cascade
// decides what positions look like; by default they are PostgreSQL's.
//
// Limits: one upstream is read at a time, for all of its logs. Each hop adds
// its delay and a copy of the state.
package fanout

import (
	"context"
	"log/slog"

	"google.golang.org/grpc/credentials"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/fanout/client"
	"github.com/tributary-dev/tributary/pkg/fanout/scope"
)

// Source is an engine.SyncSource over an ordered list of upstream nodes.
type Source = client.Source

var _ engine.SyncSource = (*Source)(nil)

// Option configures a Source.
type Option func(*options)

type options struct {
	client.Config
	ordering engine.Ordering
}

// WithPositionComparator sets the order of the upstream's positions, for one
// that does not front PostgreSQL. The default is PostgreSQL LSN order.
func WithPositionComparator(compare engine.Comparator) Option {
	return func(o *options) { o.Compare = compare }
}

// WithOrderingGuarantee sets what the source promises. The default is
// engine.TotalOrder, which holds for an upstream that carries one log.
func WithOrderingGuarantee(g engine.Ordering) Option {
	return func(o *options) { o.ordering = g }
}

// WithTables narrows the source to tables; without it, it takes all.
func WithTables(tables ...engine.TableName) Option {
	return WithScope(scope.Tables(tables...))
}

// WithScope narrows the source to tables, columns and rows: see scope.New.
func WithScope(s *scope.Scope) Option { return func(o *options) { o.Scope = s } }

// WithPolicy sets when the source moves between its upstreams.
func WithPolicy(p client.Policy) Option { return func(o *options) { o.Policy = p } }

// WithBuffer bounds the bytes received and not yet applied, while paused too.
func WithBuffer(bytes int64) Option { return func(o *options) { o.Buffer = bytes } }

// WithCredentials secures the connections.
func WithCredentials(c credentials.TransportCredentials) Option {
	return func(o *options) { o.Credentials = c }
}

// WithToken says who the source is: see auth.NewToken.
func WithToken(token credentials.PerRPCCredentials) Option {
	return func(o *options) { o.Token = token }
}

// WithEdges shares what is read from whom with the node's server.
func WithEdges(e *client.Edges) Option { return func(o *options) { o.Edges = e } }

// WithSharedCursor reads with one cursor for all logs of an upstream, as nodes do
// that lack the capability for one cursor per origin.
func WithSharedCursor(shared bool) Option { return func(o *options) { o.Basic = shared } }

// WithSoftware names the software to the upstream, for people.
func WithSoftware(s string) Option { return func(o *options) { o.Software = s } }

// WithLogger sets where the source logs; by default slog.Default().
func WithLogger(l *slog.Logger) Option { return func(o *options) { o.Logger = l } }

// WithResolver replaces the look-up of an address's instances in DNS.
func WithResolver(f func(ctx context.Context, address string) ([]string, error)) Option {
	return func(o *options) { o.Resolve = f }
}

// New returns a source named name, of the node with that id, which reads from
// upstreams (host:port), in order of preference.
func New(nodeID, name string, upstreams []string, opts ...Option) (*Source, error) {
	o := options{Config: client.Config{NodeID: nodeID, Name: name, Upstreams: upstreams}}
	for _, f := range opts {
		f(&o)
	}
	return client.NewSource(o.Config, o.ordering)
}

// Package server serves a node's logs to its readers over the wire protocol.
//
// Readers pull: a session keeps a cursor per log into the store's shared blocks,
// and one goroutine that sends what the reader has given credit for. A reader
// costs no copy of the data and no buffer; one that stops reading holds up its
// own session only. What a session reads of the store at a commit, and what a
// block looks like through a filter, is worked out once and shared by all.
//
// Baselines are read from the store in turns, one frame each, a few at a time:
// readers that all come back at once wait for one another, and cost the rest
// nothing. Those that begin within a second share a view.
//
// Limits: a snapshot keeps a view of the store open while it is sent, so one
// whose reader takes nothing for StallTimeout is given up.
package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/fanout/auth"
	"github.com/tributary-dev/tributary/pkg/fanout/scope"
	"github.com/tributary-dev/tributary/pkg/fanout/session"
	"github.com/tributary-dev/tributary/pkg/fanout/wire"
	"github.com/tributary-dev/tributary/pkg/fanout/wirepb"
)

// Config configures a Server. Host is required; zero fields have defaults.
type Config struct {
	Host     engine.Host
	Logger   *slog.Logger
	Registry prometheus.Registerer // nil: no metrics are registered
	Software string                // for people, in Hello and Describe
	// Credentials secure the connections; nil for none.
	Credentials credentials.TransportCredentials
	Limits      session.Limits
	// Guard knows who may read what; nil: everyone may read all.
	Guard *auth.Guard
	// MaxSessions bounds the readers; 0: 10,000. MaxPeerSessions bounds those of one
	// identity, or of one address where nobody is identified; 0: MaxSessions.
	MaxSessions, MaxPeerSessions int
	// AdmitRate is how many sessions may begin in a second; twice as many may at
	// once. Others are told when to come back. 0: 500.
	AdmitRate int
	// StallTimeout is how long a snapshot waits for its reader; 0: 30 s.
	StallTimeout time.Duration
	// MaxScans is how many frames of baselines are read from the store at once; the
	// readers take turns. 0: half of GOMAXPROCS, and at least 2.
	MaxScans int
	// Scopes are what the node's sources read, by their names, where that is not
	// everything.
	Scopes map[string]*scope.Scope
	// Tree is what the node knows as a part of a relay tree; nil where it is part of
	// none.
	Tree Tree
	// Archives lead readers to where the node's logs begin; nil where nothing is
	// archived.
	Archives Archives
	// Basic says that the node keeps one cursor for all that it reads from a peer.
	Basic bool
	// Accept lets the node read from a peer that has dialled; nil where it reads from
	// nobody who has.
	Accept session.Join
	Now    func() time.Time // nil: time.Now
	// Provider returns the peer from which the node reads an origin's log, or is
	// about to: see client.Edges. Nil where the node reads from nobody.
	Provider func(origin string) string
}

// Server serves a Host.
type Server struct {
	wirepb.UnimplementedReplicationServer
	cfg     Config
	hub     *hub
	vectors *session.Vectors
	turns   turns
	metrics *metrics
	grpc    *grpc.Server
	health  *health.Server
	wg      sync.WaitGroup // of goroutines that receive, or serve in a session that was dialled here
	life    context.Context
	end     context.CancelFunc

	mu       sync.Mutex
	sessions map[*serving]struct{}
	peers    map[string]int // sessions by identity or address
	gate     gate
	drain    chan struct{} // closed when draining
	deadline time.Time     // of the drain
	idle     chan struct{} // closed when the last session has ended while draining
}

// New returns a Server. Its gRPC health and reflection services are on.
func New(cfg Config) *Server {
	s := bare(cfg)
	cfg = s.cfg
	s.health = health.NewServer()
	opts := []grpc.ServerOption{
		grpc.ForceServerCodecV2(wire.NewCodec()),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 15 * time.Second, Timeout: 10 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
		grpc.ConnectionTimeout(10 * time.Second),
		// Readers send little, and most connections are idle most of the time.
		grpc.ReadBufferSize(4 << 10), grpc.SharedWriteBuffer(true),
		grpc.ChainUnaryInterceptor(s.unary), grpc.ChainStreamInterceptor(s.streaming),
	}
	if cfg.Accept != nil { // what the node reads comes this way too
		opts = append(opts, grpc.MaxRecvMsgSize(session.DefaultLimits.MaxFrame+1<<20),
			grpc.StaticConnWindowSize(4<<20), grpc.StaticStreamWindowSize(1<<20))
	} else { // readers send control frames only
		opts = append(opts, grpc.MaxRecvMsgSize(1<<20),
			grpc.StaticConnWindowSize(64<<10), grpc.StaticStreamWindowSize(64<<10))
	}
	if cfg.Credentials != nil {
		opts = append(opts, grpc.Creds(cfg.Credentials))
	}
	s.grpc = grpc.NewServer(opts...)
	wirepb.RegisterReplicationServer(s.grpc, s)
	healthpb.RegisterHealthServer(s.grpc, s.health)
	reflection.Register(s.grpc)
	return s
}

// bare returns a Server that has no way in.
func bare(cfg Config) *Server {
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	if cfg.MaxSessions == 0 {
		cfg.MaxSessions = 10_000
	}
	if cfg.MaxPeerSessions == 0 {
		cfg.MaxPeerSessions = cfg.MaxSessions
	}
	if cfg.AdmitRate == 0 {
		cfg.AdmitRate = 500
	}
	if cfg.StallTimeout == 0 {
		cfg.StallTimeout = 30 * time.Second
	}
	if cfg.MaxScans == 0 {
		cfg.MaxScans = max(2, runtime.GOMAXPROCS(0)/2)
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	s := &Server{
		cfg: cfg, hub: newHub(cfg.Host, cfg.Scopes, cfg.Tree, cfg.Now), vectors: session.NewVectors(0), metrics: newMetrics(cfg.Registry),
		sessions: map[*serving]struct{}{}, peers: map[string]int{}, gate: gate{rate: float64(cfg.AdmitRate)}, drain: make(chan struct{}), idle: make(chan struct{}),
	}
	s.life, s.end = context.WithCancel(context.Background())
	s.turns = turns{metrics: s.metrics, free: cfg.MaxScans}
	return s
}

// Serve accepts connections until Close, and then returns nil.
func (s *Server) Serve(l net.Listener) error {
	if err := s.grpc.Serve(l); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("serving readers on %s: %w", l.Addr(), err)
	}
	return nil
}

// Drain asks the readers to move to another node and waits until they have, or
// until ctx ends. New sessions and subscriptions are refused from now on.
func (s *Server) Drain(ctx context.Context) error {
	s.health.Shutdown()
	s.mu.Lock()
	select {
	case <-s.drain:
	default:
		s.deadline = time.Now().Add(30 * time.Second)
		if d, ok := ctx.Deadline(); ok {
			s.deadline = d
		}
		close(s.drain)
		if len(s.sessions) == 0 {
			close(s.idle)
		}
	}
	s.mu.Unlock()
	select {
	case <-s.idle:
		return nil
	case <-ctx.Done():
		s.mu.Lock()
		defer s.mu.Unlock()
		return fmt.Errorf("draining: %d readers have not moved: %w", len(s.sessions), context.Cause(ctx))
	}
}

// Close ends every session and waits for them.
func (s *Server) Close() {
	s.health.Shutdown()
	s.end()
	s.grpc.Stop()
	s.wg.Wait()
}

// enter takes in a session, unless the server is full, draining or in a storm of
// them.
func (s *Server) enter(v *serving) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.life.Err() != nil {
		return status.Errorf(codes.Unavailable, "node %s has ended", s.cfg.Host.NodeID())
	}
	select {
	case <-s.drain:
		return status.Errorf(codes.Unavailable, "node %s is draining", s.cfg.Host.NodeID())
	default:
	}
	if len(s.sessions) >= s.cfg.MaxSessions {
		return status.Errorf(codes.ResourceExhausted, "node %s has %d readers, as many as it takes", s.cfg.Host.NodeID(), s.cfg.MaxSessions)
	}
	if s.peers[v.owner()] >= s.cfg.MaxPeerSessions {
		return status.Errorf(codes.ResourceExhausted, "node %s has %d readers of %s, as many as it takes of one", s.cfg.Host.NodeID(), s.cfg.MaxPeerSessions, v.owner())
	}
	if wait := s.gate.pass(v.since); wait > 0 {
		s.metrics.deferred.Inc()
		return &session.Error{Code: wirepb.ErrorCode_ERROR_CODE_LIMIT, RetryAfter: wait, Message: fmt.Sprintf(
			"node %s takes %d new readers in a second: come back in %s", s.cfg.Host.NodeID(), s.cfg.AdmitRate, wait.Round(time.Millisecond))}
	}
	s.sessions[v] = struct{}{}
	s.peers[v.owner()]++
	s.metrics.sessions.Inc()
	return nil
}

func (s *Server) leave(v *serving) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.sessions, v)
	if s.peers[v.owner()]--; s.peers[v.owner()] <= 0 {
		delete(s.peers, v.owner())
	}
	s.metrics.sessions.Dec()
	select {
	case <-s.drain:
		if len(s.sessions) == 0 {
			close(s.idle)
		}
	default:
	}
}

// Readers returns who reads from the node, the longest connected first.
func (s *Server) Readers() []*wirepb.Reader {
	s.mu.Lock()
	all := make([]*serving, 0, len(s.sessions))
	for v := range s.sessions {
		all = append(all, v)
	}
	s.mu.Unlock()
	slices.SortFunc(all, func(a, b *serving) int { return a.since.Compare(b.since) })
	readers := make([]*wirepb.Reader, len(all))
	for i, v := range all {
		readers[i] = v.reader()
	}
	return readers
}

// Describe says what the node serves.
func (s *Server) Describe(ctx context.Context, _ *wirepb.DescribeRequest) (*wirepb.DescribeResponse, error) {
	m := s.hub.acquire()
	defer s.hub.release(m)
	r := &wirepb.DescribeResponse{NodeId: s.cfg.Host.NodeID(), Software: s.cfg.Software}
	for _, l := range m.seenBy(s.cfg.Guard, identityOf(ctx)) {
		r.Logs = append(r.Logs, &wirepb.LogAdvert{
			Log: wire.FromLog(l.Log), Tables: wire.FromTables(l.Tables), Schemas: wire.FromSchemas(l.Log, l.Schemas),
			Oldest: string(l.Oldest), Head: wire.FromCursor(l.Head, l.Time), Path: l.Path, Scope: wire.FromScope(l.Scope), CompleteSince: uint64(l.CompleteFrom), Order: l.Order,
		})
	}
	return r, nil
}

// ListSnapshots lists stored snapshots. A node without an archive has none.
func (s *Server) ListSnapshots(context.Context, *wirepb.ListSnapshotsRequest) (*wirepb.ListSnapshotsResponse, error) {
	return &wirepb.ListSnapshotsResponse{}, nil
}

// Status says who reads from the node.
func (s *Server) Status(context.Context, *wirepb.StatusRequest) (*wirepb.StatusResponse, error) {
	r := &wirepb.StatusResponse{NodeId: s.cfg.Host.NodeID(), Readers: s.Readers()}
	select {
	case <-s.drain:
		r.Draining = true
	default:
	}
	return r, nil
}

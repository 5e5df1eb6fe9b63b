package client

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/engine/store"
	"github.com/tributary-dev/tributary/pkg/fanout/scope"
	"github.com/tributary-dev/tributary/pkg/relay"
)

// Client keeps tables of a node in memory and tells what changes in them. It is
// a node without a server: it goes on from its cursor after a break, at any
// instance of any of its upstreams.
type Client struct {
	engine  *engine.Engine
	source  *Source
	watched *watchedStore
	end     context.CancelFunc
	done    sync.WaitGroup
	file    *keptFile // nil: none

	mu  sync.Mutex
	err error // why the engine ended
}

// Option configures a Client.
type Option func(*Config)

// WithUpstreams sets the nodes to read from, host:port, in order of preference.
func WithUpstreams(addresses ...string) Option {
	return func(c *Config) { c.Upstreams = addresses }
}

// WithPolicy sets when the client moves between its upstreams.
func WithPolicy(p Policy) Option { return func(c *Config) { c.Policy = p } }

// WithTables narrows the client to tables; without it, it has all.
func WithTables(tables ...engine.TableName) Option { return WithScope(scope.Tables(tables...)) }

// WithScope narrows the client to tables, columns and rows: see scope.New.
func WithScope(s *scope.Scope) Option { return func(c *Config) { c.Scope = s } }

// WithNodeID names the client to its upstreams; by default it has a random name.
func WithNodeID(id string) Option { return func(c *Config) { c.NodeID = id } }

// WithPositionComparator sets the order of positions; by default PostgreSQL's.
func WithPositionComparator(compare engine.Comparator) Option {
	return func(c *Config) { c.Compare = compare }
}

// WithCredentials secures the connections.
func WithCredentials(creds credentials.TransportCredentials) Option {
	return func(c *Config) { c.Credentials = creds }
}

// WithToken says who the client is: see auth.NewToken.
func WithToken(token credentials.PerRPCCredentials) Option {
	return func(c *Config) { c.Token = token }
}

// WithLogger sets where the client logs; by default slog.Default().
func WithLogger(l *slog.Logger) Option { return func(c *Config) { c.Logger = l } }

// WithSnapshotFile keeps what the client has in a file, for a quick start: New
// reads it, and the client goes on from there if an upstream still has what it is
// of. While no upstream can be reached, what is read is what the file has: see
// Stale. A file that is damaged, of other tables or of another topology is ignored,
// and the log says why. It is written by Close, and every minute in which
// something has changed. Each client needs a file of its own.
func WithSnapshotFile(path string) Option { return func(c *Config) { c.snapshotFile = path } }

// WithSnapshotEvery sets how often the snapshot file is written while the client
// runs; by default every minute.
func WithSnapshotEvery(d time.Duration) Option { return func(c *Config) { c.snapshotEvery = d } }

// WithListener calls fn as ListenWithPosition does, from the first row on: what
// Listen is told begins when it is called, and the client may have its tables by then.
func WithListener(fn func(old, fresh *engine.Record, at engine.Position)) Option {
	return func(c *Config) { c.listeners = append(c.listeners, fn) }
}

// New starts a client. Close it.
func New(opts ...Option) (*Client, error) {
	cfg := Config{Name: "client"}
	for _, o := range opts {
		o(&cfg)
	}
	if cfg.NodeID == "" {
		cfg.NodeID = "client-" + rand.Text()[:10]
	}
	source, err := NewSource(cfg, "")
	if err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	c := &Client{source: source, watched: watch(store.NewMemory(store.MemoryOptions{JournalBytes: 1 << 20}))}
	for _, fn := range cfg.listeners {
		c.watched.listen(fn)
	}
	c.engine = engine.New(engine.Options{NodeID: cfg.NodeID, Store: c.watched, Logger: cfg.Logger})
	if cfg.snapshotFile != "" {
		c.file = keepFile(source.cfg, c.watched)
	}
	c.engine.AddSource("upstream", singly{source, c.file}, engine.Keep{})
	ctx, cancel := context.WithCancel(context.Background())
	c.end = cancel
	if c.file != nil {
		c.done.Add(1)
		go func() {
			defer c.done.Done()
			c.file.run(ctx)
		}()
	}
	c.done.Add(1)
	go func() {
		defer c.done.Done()
		err := c.engine.Run(ctx)
		c.mu.Lock()
		c.err = err
		c.mu.Unlock()
	}()
	return c, nil
}

// Close ends the client and waits for it. With a snapshot file it writes it.
func (c *Client) Close() {
	c.end()
	c.done.Wait()
	if c.file != nil {
		c.file.close()
	}
	_ = c.watched.Store.Close()
}

// AwaitReady waits until the client has all its tables. It says what has been
// in the way if ctx ends first.
func (c *Client) AwaitReady(ctx context.Context) error {
	for {
		changed := c.engine.Changed()
		st := c.engine.Status()
		if st.Ready {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("the client has not got its tables: %s %s: %w", st.Sources[0].Reason, st.Sources[0].Message, context.Cause(ctx))
		}
	}
}

// Stale says whether what is read is what the snapshot file has, since no upstream
// has been reached yet, and when the newest of it was committed at its origin. It
// ends once the client has its tables from an upstream.
func (c *Client) Stale() (asOf time.Time, stale bool) {
	v, stale := c.view()
	defer v.Close()
	if !stale {
		return time.Time{}, false
	}
	for _, l := range v.Logs() {
		if at := l.Time.Wall(); l.Time > 0 && at.After(asOf) {
			asOf = at
		}
	}
	return asOf, true
}

// view returns what to read from, and whether it is the snapshot file's.
func (c *Client) view() (v engine.View, stale bool) {
	if v = c.engine.View(); c.file == nil {
		return v, false
	}
	return c.file.view(v)
}

// Columns returns the columns of each table, those of its key marked.
func (c *Client) Columns() map[engine.TableName][]engine.Column {
	v, _ := c.view()
	defer v.Close()
	all := map[engine.TableName][]engine.Column{}
	for _, t := range v.Tables() {
		if t.Schema != nil {
			all[t.Table] = slices.Clone(t.Schema.Columns)
		}
	}
	return all
}

// All returns a table's rows, in the order of their encoded keys.
func (c *Client) All(table engine.TableName) ([]engine.Record, error) {
	v, _ := c.view()
	defer v.Close()
	var rows []engine.Record
	err := v.Scan(table, nil, func(r *engine.Record) bool {
		if !r.Deleted {
			rows = append(rows, *keep(r))
		}
		return true
	})
	return rows, err
}

// Get returns the row whose key columns have these values, in text form.
func (c *Client) Get(table engine.TableName, key ...string) (row engine.Record, ok bool, err error) {
	var k []byte
	for _, v := range key {
		k = engine.AppendKeyValue(k, v)
	}
	v, _ := c.view()
	defer v.Close()
	r, ok, err := v.Get(table, k)
	if err != nil || !ok || r.Deleted {
		return engine.Record{}, false, err
	}
	return *keep(&r), true, nil
}

// Counters returns the counters of a table that adds up over the leaves of a relay
// tree: the sums of columns, and what each leaf has added to them in each of its
// epochs.
func (c *Client) Counters(table engine.TableName, columns ...string) ([]relay.Counter, error) {
	v, _ := c.view()
	defer v.Close()
	var all []relay.Counter
	err := relay.Counters(v, table, nil, columns, func(n relay.Counter) bool { all = append(all, n); return true })
	return all, err
}

// Listen calls fn with each change of a row, in order: old is nil for a new
// row, fresh for one that is gone. A baseline after a break is told as what it
// changed. What is committed after Listen has been called is told, and what was there
// before is not: to know of every row, call All after it, or use WithListener. fn
// holds up the stream while it runs; it may call the client's other methods. The
// function returned ends it.
func (c *Client) Listen(fn func(old, fresh *engine.Record)) (stop func()) {
	return c.ListenWithPosition(func(old, fresh *engine.Record, _ engine.Position) { fn(old, fresh) })
}

// ListenWithPosition is Listen with the position of the transaction, or of the
// baseline, that made the change.
func (c *Client) ListenWithPosition(fn func(old, fresh *engine.Record, at engine.Position)) (stop func()) {
	return c.watched.listen(fn)
}

// LastSourcePosition returns how far the client has got. It is empty before the
// first baseline, and where the client reads several logs: see Cursors.
func (c *Client) LastSourcePosition() engine.Position {
	all := c.Cursors()
	if len(all) != 1 {
		return ""
	}
	for _, cur := range all {
		return cur.Position
	}
	return ""
}

// Cursors returns how far the client has got in each log.
func (c *Client) Cursors() engine.Cursors {
	v, _ := c.view()
	defer v.Close()
	all := engine.Cursors{}
	for k, cur := range v.Cursors() {
		all[k] = cur
	}
	return all
}

// Status says whom the client reads from.
func (c *Client) Status() Status { return c.source.Status() }

// keep copies a record out of the store's memory.
func keep(r *engine.Record) *engine.Record {
	k := *r
	k.Key, k.Row = slices.Clone(r.Key), slices.Clone(r.Row)
	return &k
}

// singly delivers one transaction at a time, so that each change can be told
// with the position of its own. Once connected, it first takes in the snapshot
// file if there is one; until then, the file is read from.
type singly struct {
	*Source
	file *keptFile
}

func (s singly) Init(ctx context.Context, env engine.Env) (engine.Info, error) {
	if s.file == nil {
		return s.Source.Init(ctx, env)
	}
	report := env.Report
	env.Report = func(reason string, err error) {
		if reason == engine.ReasonNoHealthyParent {
			s.file.serve(ctx)
		}
		report(reason, err)
	}
	info, err := s.Source.Init(ctx, env)
	if err == nil {
		err = s.file.takeIn(ctx, s.offered())
	}
	return info, err
}

func (s singly) Stream(ctx context.Context, from engine.Cursors, sink engine.Sink) error {
	return s.Source.Stream(ctx, from, oneByOne{sink})
}

type oneByOne struct{ engine.Sink }

var _ engine.Covering = oneByOne{}

// Covered is as in engine.Covering.
func (o oneByOne) Covered(log engine.LogID) []engine.TableName {
	if c, ok := o.Sink.(engine.Covering); ok {
		return c.Covered(log)
	}
	return nil
}

// Behind is as in engine.Covering.
func (o oneByOne) Behind(log engine.LogID, at engine.Position) map[engine.TableName]engine.Reached {
	if c, ok := o.Sink.(engine.Covering); ok {
		return c.Behind(log, at)
	}
	return nil
}

func (o oneByOne) ApplyBlocks(ctx context.Context, key engine.CursorKey, blocks []*engine.Block) error {
	for _, b := range blocks {
		all := b.Split(key.Log)
		if b.Behind != nil && len(all) > 1 {
			// From its first transaction on: what a table lacks at the end may be of any. One that was behind
			// is so up to the last.
			behind := maps.Clone(b.Behind)
			maps.Copy(behind, o.Behind(key.Log, b.Prev))
			all[0].Behind = behind
		}
		for _, t := range all {
			if err := o.Sink.ApplyBlocks(ctx, key, []*engine.Block{t}); err != nil {
				return err
			}
		}
	}
	return nil
}

package postgres

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tributary-dev/tributary/internal/testpg"
	"github.com/tributary-dev/tributary/pkg/engine"
)

func TestMain(m *testing.M) {
	code := testpg.Main(m, testpg.Options{})
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// eachVersion runs a test on every version asked for, each in a database of its own.
func eachVersion(t *testing.T, test func(t *testing.T, db *testpg.DB)) {
	t.Helper()
	versions, err := testpg.Versions()
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range versions {
		if v == 0 {
			test(t, testpg.NewDB(t))
			continue
		}
		t.Run(fmt.Sprintf("pg%d", v), func(t *testing.T) { test(t, testpg.Shared(t, v).NewDB(t)) })
	}
}

// model is a naive engine: maps, and checks of everything that a source
// promises.
type model struct {
	src     *Source
	durable bool
	// hold, if set, is called before each Apply.
	hold func(context.Context) error
	// inBaseline, if set, is called once the slot is there and before a row is read.
	inBaseline func()
	// inRun, if set, is called after each run of a large transaction, with their number.
	inRun func(int)

	mu        sync.Mutex
	tables    map[engine.TableName]map[string]modelRow
	schemas   map[engine.TableName]*engine.Schema // newest
	announced map[*engine.Schema]bool
	cursor    engine.Position
	baselines int
	txs       []engine.Transaction // shallow: positions and counts only
	changes   int
	partial   []string // tables that were baselined alone, and why
	heads     atomic.Int64
	runs      int // of large transactions
	history   string
	// rolledBack is where history was rolled back to when it last changed.
	rolledBack engine.LSN
	scratch    string
	memory     []byte
	epochs     int
	advanced   int // times that the cursor moved without changes
	broken     error
}

type modelRow struct {
	schema *engine.Schema
	row    engine.Row
}

func (m *model) Head(engine.LogID, engine.Head) {
	m.heads.Add(1) // without the lock: a source counts on Head to return at once
}

func (m *model) ApplyBlocks(context.Context, engine.CursorKey, []*engine.Block) error {
	return errors.New("not for this source")
}

func (m *model) Progress(_ context.Context, key engine.CursorKey, prev, through engine.Position, t engine.Time) error {
	m.mu.Lock()
	if (key != engine.CursorKey{}) || prev != "" || t != 0 || engine.CompareLSN(through, m.cursor) <= 0 {
		m.broken = fmt.Errorf("progress of %v from %q to %q at %d, with the cursor at %q", key, prev, through, t, m.cursor)
	}
	m.cursor = through
	m.advanced++
	err := m.broken
	m.mu.Unlock()
	if err == nil {
		m.src.Ack(engine.Cursor{Position: through}, m.durable)
	}
	return err
}

func (m *model) Carry(engine.LogID, engine.Comparator, []string, []engine.TableName) error {
	return errors.New("not for this source")
}

type modelBaseline struct {
	m      *model
	spec   engine.BaselineSpec
	mu     sync.Mutex
	later  []*engine.Schema // of changes after the baseline's position
	spent  bool
	tables map[engine.TableName]map[string]modelRow
}

func (m *model) Baseline(_ context.Context, spec engine.BaselineSpec) (engine.BaselineWriter, error) {
	b := &modelBaseline{m: m, spec: spec, tables: map[engine.TableName]map[string]modelRow{}}
	for _, t := range spec.Tables {
		b.tables[t] = map[string]modelRow{}
	}
	if m.inBaseline != nil {
		m.inBaseline()
	}
	return b, nil
}

func (b *modelBaseline) Rows(table engine.TableName, rs []engine.Record) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, r := range rs {
		if err := checkRow(r.Schema, r.Key, r.Row, false); err != nil {
			return err
		}
		key := ordinal(b.tables[table], r.Schema, r.Key)
		if _, twice := b.tables[table][key]; twice {
			return fmt.Errorf("key %q of %s comes twice in a baseline", r.Key, table)
		}
		b.tables[table][key] = modelRow{r.Schema, bytes.Clone(r.Row)}
	}
	return nil
}

// ordinal returns the key of a row: of a table without a key, that of one more
// copy of it.
func ordinal(rows map[string]modelRow, s *engine.Schema, key []byte) string {
	if !s.Multiset() {
		return string(key)
	}
	for i := 0; ; i++ {
		k := fmt.Sprintf("%s#%d", key, i)
		if _, taken := rows[k]; !taken {
			return k
		}
	}
}

// Apply brings a partial baseline up to date.
func (b *modelBaseline) Apply(txs []engine.Transaction) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.spec.Partial {
		return errors.New("only a partial baseline is brought up to date")
	}
	staged := &model{tables: b.tables}
	for i := range txs {
		if t := &txs[i]; engine.CompareLSN(t.Position, b.spec.At) <= 0 {
			return fmt.Errorf("a baseline as of %s is brought up to date by %s", b.spec.At, t.Position)
		}
		for j := range txs[i].Changes {
			if b.tables[txs[i].Changes[j].Schema.Table] == nil {
				return fmt.Errorf("table %s is not part of the baseline", txs[i].Changes[j].Schema.Table)
			}
			if err := staged.change(&txs[i], j); err != nil {
				return fmt.Errorf("change %d of %s, beside a baseline: %w", j, txs[i].Position, err)
			}
		}
		b.later = append(b.later, txs[i].Schemas...)
	}
	return nil
}

func (b *modelBaseline) Commit(context.Context) error {
	if b.spec.Partial {
		return errors.New("a partial baseline is committed by a transaction")
	}
	b.m.mu.Lock()
	b.m.tables, b.m.cursor, b.m.memory = b.tables, b.spec.At, b.spec.Memory
	b.m.schemas, b.m.announced = map[engine.TableName]*engine.Schema{}, map[*engine.Schema]bool{}
	b.m.announce(b.spec.Schemas)
	b.m.baselines++
	b.m.mu.Unlock()
	b.m.src.Ack(engine.Cursor{Position: b.spec.At}, b.m.durable)
	return nil
}

func (b *modelBaseline) Abort() { b.spent = true }

// announce takes in schemas. As in a store, a table's newest is the one with the
// highest ID.
func (m *model) announce(schemas []*engine.Schema) {
	for _, s := range schemas {
		m.announced[s] = true
		if have := m.schemas[s.Table]; have == nil || have.ID < s.ID {
			m.schemas[s.Table] = s
		}
	}
}

// adopt makes a partial baseline the state, ahead of a transaction's changes.
func (m *model) adopt(t *engine.Transaction, w engine.BaselineWriter) error {
	b := w.(*modelBaseline)
	if b.spent || !b.spec.Partial || engine.CompareLSN(t.Position, b.spec.At) < 0 {
		return fmt.Errorf("a baseline as of %s, spent: %t, partial: %t", b.spec.At, b.spent, b.spec.Partial)
	}
	b.spent = true
	m.announce(b.spec.Schemas)
	m.announce(b.later)
	for table, rows := range b.tables {
		m.tables[table] = rows
		m.partial = append(m.partial, table.Name+": "+b.spec.Reason)
	}
	return nil
}

func checkRow(s *engine.Schema, key []byte, row engine.Row, partial bool) error {
	unchanged, err := row.Check(s)
	if err != nil {
		return err
	}
	if unchanged != partial {
		return fmt.Errorf("a row of %s has unchanged columns: %t, and says %t", s.Table, unchanged, partial)
	}
	keyed := s
	if s.Multiset() { // all of the row
		all := *s
		all.Columns = slices.Clone(s.Columns)
		for i := range all.Columns {
			all.Columns[i].Key = true
		}
		keyed = &all
	}
	want, err := engine.AppendKey(nil, keyed, row)
	if err != nil {
		return err
	}
	if !bytes.Equal(want, key) {
		return fmt.Errorf("a row of %s has key %q, and comes with %q", s.Table, want, key)
	}
	return nil
}

func (m *model) Apply(ctx context.Context, txs []engine.Transaction) error {
	if m.hold != nil {
		if err := m.hold(ctx); err != nil {
			return err
		}
	}
	m.mu.Lock()
	for i := range txs {
		err := m.whole(&txs[i])
		if err == nil && txs[i].Memory != nil {
			m.memory = slices.Clone(txs[i].Memory)
		}
		if err != nil && ctx.Err() == nil {
			m.broken = err
		}
		if err != nil {
			m.mu.Unlock()
			return err
		}
	}
	cursor := m.cursor
	m.mu.Unlock()
	m.src.Ack(engine.Cursor{Position: cursor}, m.durable)
	return nil
}

// whole applies a transaction or, if it breaks off, nothing of it.
func (m *model) whole(t *engine.Transaction) error {
	if t.More == nil {
		return m.apply(t)
	}
	before := m.tables
	m.tables = map[engine.TableName]map[string]modelRow{}
	for name, rows := range before {
		m.tables[name] = maps.Clone(rows)
	}
	err := m.apply(t)
	if err != nil {
		m.tables = before
	}
	return err
}

func (m *model) apply(t *engine.Transaction) error {
	if t.Prev != m.cursor && (t.Prev != "" || len(t.Changes) > 0) || engine.CompareLSN(t.Position, t.Prev) <= 0 {
		return fmt.Errorf("transaction (%s, %s] after cursor %s", t.Prev, t.Position, m.cursor)
	}
	for _, w := range t.Tables {
		if err := m.adopt(t, w); err != nil {
			return fmt.Errorf("transaction %s names %w", t.Position, err)
		}
	}
	if len(t.Changes) == 0 {
		m.cursor = t.Position // the log has got this far, and nothing has happened
		return nil
	}
	if engine.LSN(t.Major).Position() != t.Position || time.Since(t.Commit).Abs() > time.Hour {
		return fmt.Errorf("transaction %s: %d changes, major %d, commit %s", t.Position, len(t.Changes), t.Major, t.Commit)
	}
	m.announce(t.Schemas)
	n, last := 0, uint32(0)
	for run := *t; ; {
		for i := range run.Changes {
			c := &run.Changes[i]
			n++
			minor := c.Stamp.Version.Minor // grows; what is kept from the engine leaves holes
			if (c.Stamp != engine.Stamp{Version: engine.Version{Major: t.Major, Minor: minor}}) || minor <= last {
				return fmt.Errorf("change %d of %s has stamp %s", n, t.Position, c.Stamp)
			}
			last = minor
			if !m.announced[c.Schema] {
				return fmt.Errorf("change %d of %s uses schema %d of %s, which has not been announced", n, t.Position, c.Schema.ID, c.Schema.Table)
			}
			if err := m.change(&run, i); err != nil {
				return fmt.Errorf("change %d of %s: %w", n, t.Position, err)
			}
		}
		if t.More == nil {
			break
		}
		m.runs++
		if m.inRun != nil {
			m.inRun(m.runs)
		}
		var err error
		if run.Changes, err = t.More(); err != nil {
			return err
		}
		if len(run.Changes) == 0 {
			break
		}
	}
	m.cursor = t.Position
	m.txs = append(m.txs, engine.Transaction{Position: t.Position, Prev: t.Prev})
	m.changes += n
	return nil
}

func (m *model) change(t *engine.Transaction, i int) error {
	c := &t.Changes[i]
	rows := m.tables[c.Schema.Table]
	switch c.Op {
	case engine.OpTruncate:
		clear(rows)
	case engine.OpDelete:
		if c.Schema.Multiset() {
			for i := 0; ; i++ {
				k := fmt.Sprintf("%s#%d", c.Key, i)
				if _, there := rows[k]; there {
					continue
				}
				if i == 0 {
					return fmt.Errorf("deletes row %q of %s, which is not there", c.Key, c.Schema.Table)
				}
				delete(rows, fmt.Sprintf("%s#%d", c.Key, i-1))
				return nil
			}
		}
		old, ok := rows[string(c.Key)]
		if !ok {
			return fmt.Errorf("deletes key %q of %s, which is not there", c.Key, c.Schema.Table)
		}
		delete(rows, string(c.Key))
		if i+1 < len(t.Changes) && bytes.Equal(t.Changes[i+1].OldKey, c.Key) {
			return m.put(rows, &t.Changes[i+1], old)
		}
	case engine.OpPut:
		if c.OldKey != nil {
			if _, ok := rows[string(c.Key)]; !ok || i == 0 || !bytes.Equal(t.Changes[i-1].Key, c.OldKey) {
				return errors.New("a moved row does not follow its delete")
			}
			return nil // done with its delete
		}
		return m.put(rows, c, rows[string(c.Key)])
	}
	return nil
}

func (m *model) put(rows map[string]modelRow, c *engine.Change, old modelRow) error {
	if err := checkRow(c.Schema, c.Key, c.Row, c.Partial); err != nil {
		return err
	}
	row := bytes.Clone(c.Row)
	if c.Partial {
		if old.row == nil {
			return fmt.Errorf("unchanged columns of a row of %s that is not there", c.Schema.Table)
		}
		var err error
		if row, err = c.Row.FillUnchanged(nil, c.Schema, old.row, old.schema); err != nil {
			return err
		}
	}
	rows[ordinal(rows, c.Schema, c.Key)] = modelRow{c.Schema, row}
	return nil
}

// digest digests a table as a query of the source's columns would.
func (m *model) digest(table engine.TableName) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var d testpg.Digest
	newest := m.schemas[table]
	for _, r := range m.tables[table] {
		values := make([][]byte, len(newest.Columns))
		for i, c := range r.row.Columns() {
			for j := range newest.Columns {
				if newest.Columns[j].Number == r.schema.Columns[i].Number && c.State == engine.Present {
					values[j] = append([]byte{}, c.Value...)
				}
			}
		}
		d.Add(values)
	}
	return d.String()
}

// node runs a source on a model, as an engine would.
type node struct {
	t      *testing.T
	model  *model
	src    *Source
	info   engine.Info
	cancel context.CancelFunc
	done   chan struct{}
	err    error

	mu      sync.Mutex
	reports []string
	lastErr error
	logs    bytes.Buffer
}

func (n *node) Write(p []byte) (int, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.logs.Write(p)
}

func (n *node) report(reason string, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.reports) == 0 || n.reports[len(n.reports)-1] != reason {
		n.reports = append(n.reports, reason)
	}
	n.lastErr = err
	if err != nil {
		fmt.Fprintf(&n.logs, "%s: %v\n", reason, err)
	}
}

// names splits "schema.name" pairs; a name without a schema is in public.
func names(list ...string) (out []engine.TableName) {
	for _, s := range list {
		schema, name, ok := strings.Cut(s, ".")
		if !ok {
			schema, name = "public", s
		}
		out = append(out, engine.TableName{Schema: schema, Name: name})
	}
	return out
}

// start runs a node until the test ends or stop.
func start(t *testing.T, cfg Config, edit ...func(*model)) *node {
	t.Helper()
	if cfg.retry == 0 {
		cfg.retry = 300 * time.Millisecond
	}
	src, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return startSource(t, src, &model{}, edit...)
}

func startSource(t *testing.T, src *Source, m *model, edit ...func(*model)) *node {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	n := &node{t: t, src: src, model: m, cancel: cancel, done: make(chan struct{})}
	n.model.src = src
	for _, e := range edit {
		e(n.model)
	}
	go func() {
		defer close(n.done)
		n.err = n.run(ctx)
	}()
	t.Cleanup(func() {
		n.stop()
		if t.Failed() {
			t.Logf("reports: %v\n%s", n.reports, n.logs.String())
		}
		n.model.mu.Lock()
		defer n.model.mu.Unlock()
		if n.model.broken != nil {
			t.Errorf("the source broke a promise: %v", n.model.broken)
		}
	})
	return n
}

func (n *node) run(ctx context.Context) error {
	defer n.src.Close()
	env := engine.Env{NodeID: "node", Source: n.t.Name(), Schemas: engine.NewSchemaSet(slices.Collect(maps.Keys(n.model.announced))...), Report: n.report,
		Logger: slog.New(slog.NewTextHandler(n, &slog.HandlerOptions{Level: slog.LevelDebug}))}
	rebaseline := false
	for {
		var err error
		env.History, env.Cursor, env.Scratch, env.Memory = n.model.history, n.model.cursor, n.model.scratch, n.model.memory
		if n.info, err = n.src.Init(ctx, env); err == nil {
			if n.info.History != n.model.history && !n.info.Continues {
				n.model.epochs++
				n.model.cursor = "" // of another log
			}
			n.model.history, n.model.rolledBack = n.info.History, engine.LSN(n.info.RolledBackTo)
			if rebaseline || n.model.cursor == "" || !n.src.SupportsResume() {
				err = n.src.Baseline(ctx, n.model)
				rebaseline = rebaseline && err != nil
			}
		}
		if err == nil {
			err = n.src.Stream(ctx, engine.Cursors{{}: {Position: n.model.cursor}}, n.model)
		}
		var se *engine.SourceError
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, engine.ErrReBaselineRequired):
			rebaseline = true
		case errors.As(err, &se), errors.Is(err, errHistory):
		default:
			return err
		}
		n.report("ended", err)
		if sleep(ctx, 50*time.Millisecond) != nil {
			return nil
		}
	}
}

func (n *node) stop() {
	n.cancel()
	<-n.done
	if n.err != nil && !n.t.Failed() {
		n.t.Errorf("the source ended: %v", n.err)
	}
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(90 * time.Second); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within 90 s: %s", what)
		}
	}
}

// ready waits for the first baseline.
func (n *node) ready() {
	n.t.Helper()
	eventually(n.t, "the baseline", func() bool {
		select {
		case <-n.done:
			n.t.Fatalf("the source ended: %v", n.err)
		default:
		}
		n.model.mu.Lock()
		defer n.model.mu.Unlock()
		return n.model.baselines > 0
	})
}

// converges waits until the node's tables equal the database's.
func (n *node) converges(db *testpg.DB, tables ...string) {
	n.t.Helper()
	n.ready()
	for _, name := range names(tables...) {
		want := db.Digest(n.t, "SELECT * FROM "+quoteTable(name.Schema, name.Name))
		var got string
		pause := 10 * time.Millisecond
		for deadline := time.Now().Add(90 * time.Second); ; time.Sleep(pause) {
			pause = min(2*pause, time.Second)
			if got = n.model.digest(name); got == want {
				break
			}
			select {
			case <-n.done:
				n.t.Fatalf("the source ended: %v", n.err)
			default:
			}
			if time.Now().After(deadline) {
				n.t.Fatalf("table %s: after 90 s the node has %s, the source %s", name, got, want)
			}
		}
	}
}

func (n *node) baselines() int {
	n.model.mu.Lock()
	defer n.model.mu.Unlock()
	return n.model.baselines
}

func (n *node) position() engine.Position {
	n.model.mu.Lock()
	defer n.model.mu.Unlock()
	return n.model.cursor
}

func (n *node) sawReport(reason string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Contains(n.reports, reason)
}

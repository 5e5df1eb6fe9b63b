package session_test

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/fanout/scope"
	"github.com/tributary-dev/tributary/pkg/fanout/session"
	"github.com/tributary-dev/tributary/pkg/fanout/wire"
	"github.com/tributary-dev/tributary/pkg/fanout/wirepb"
)

// The transcripts in testdata are conversations between a Writer and a Reader
// over a toy node. The commands:
//
//	node id=a [provider=x]          the node that serves
//	log name=a#pg@5 [path=(a,b)] [tables=(t)] [oldest=..] [rows=n] [complete=time] [hidden] [unwritten|places]
//	                                a log of it, empty but for a baseline at oldest; unwritten:
//	                                at its beginning; with places, one that can be read from
//	                                anywhere
//	narrowed log=.. columns=(c) where=(column,value)
//	                                the node has only that of its tables
//	append log=.. at=(p1,p2) [size=n] [parts=n] [table=t]
//	                                transactions of one change each, a block each
//	trim log=.. to=..               the log's older entries go
//	behind log=.. from=.. [t=..]    of its tables these are there only up to a place, from a position on
//	drop log=.. | replace log=.. by=..
//	reroute log=.. path=(a,b)       it comes to the node by another way
//	only log=.. tables=(t)          it has no more than these of its tables from now on
//	forget                          the node forgets the vectors of its readers
//	session [reader=b] [shared] [holder=b@1] [notree] [tables=(t) [columns=(c)] [where=(column,value)]] [window=n] [nosnapshot] [upward=(x)]
//	                                a new session; the reader keeps its places; shared: one
//	                                cursor for all logs
//	activate                        the reader subscribes
//	talk                            deliver frames until both are quiet
//	pull [n=1]                      the writer reads n times from its node
//	holders log=.. [stable=..] r@1=..
//	                                what the node knows of those above it; without
//	                                this command it is part of no relay tree
//	takeover log=..                 the reader has what is below the floor
//	above r@1=..                    what the reader knows of those above it
//	untaken log=..                  the reader cannot take in the baseline that has come
//	applied log=.. bytes=n | ack log=.. at=.. [durable] | window bytes=n
//	elsewhere log=.. at=..          the reader has got there by way of another session
//	pass time=1s                    time passes for both
//	drain
//	to-writer, to-reader            a frame in prototext, or (raw) bytes in hex
func TestTranscripts(t *testing.T) {
	t.Parallel()
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		s := &stage{now: time.Unix(1000, 0), places: session.Places{}, told: session.Told{}, scalars: session.Scalars{}, vectors: session.NewVectors(0)}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			s.out.Reset()
			s.run(t, d)
			if s.out.Len() == 0 {
				return "ok\n"
			}
			return s.out.String()
		})
	})
}

type toyLog struct {
	served session.Served
	blocks []*engine.Block
	rows   []engine.Record
	// what is known of those above
	holders session.Holdings
	stable  engine.Position
}

type stage struct {
	out     strings.Builder
	now     time.Time
	id      string
	picked  string // provider of every origin
	logs    []*toyLog
	w       *session.Writer
	r       *session.Reader
	toW     []*wirepb.Frame
	toR     []*wirepb.Frame
	places  session.Places
	told    session.Told
	scalars session.Scalars
	merged  *session.Merged
	vectors *session.Vectors
	begun   map[uint32]int // frames of a snapshot given
	tree    bool
	above   session.Holdings
}

func logOf(s string) engine.LogID {
	o, e, _ := strings.Cut(s, "@")
	n, _ := strconv.ParseUint(e, 10, 64)
	return engine.LogID{Origin: o, Epoch: engine.Epoch(n)}
}

func arg(d *datadriven.TestData, key, otherwise string) string {
	if v := list(d, key); len(v) > 0 {
		return v[0]
	}
	return otherwise
}

func list(d *datadriven.TestData, key string) []string {
	for _, a := range d.CmdArgs {
		if a.Key == key {
			return a.Vals
		}
	}
	return nil
}

func number(d *datadriven.TestData, key string, otherwise int) int {
	n, err := strconv.Atoi(arg(d, key, strconv.Itoa(otherwise)))
	if err != nil {
		panic(err)
	}
	return n
}

func tablesOf(names []string) []engine.TableName {
	var ts []engine.TableName
	for _, n := range names {
		ts = append(ts, engine.TableName{Schema: "public", Name: n})
	}
	return ts
}

// scopeOf reads tables=(t,u) where=(column,value): rows of each by a column.
func scopeOf(d *datadriven.TestData) *scope.Scope {
	var ts []scope.Table
	for _, n := range tablesOf(list(d, "tables")) {
		t := scope.Table{Name: n, Columns: list(d, "columns")}
		if w := list(d, "where"); w != nil {
			t.Where = []scope.Condition{{Column: w[0], Op: scope.In, Values: w[1:]}}
		}
		ts = append(ts, t)
	}
	s, err := scope.New(ts...)
	if err != nil {
		panic(err)
	}
	return s
}

func (s *stage) find(log engine.LogID) *toyLog {
	for _, l := range s.logs {
		if l.served.Log == log {
			return l
		}
	}
	panic("no log " + log.String())
}

func (s *stage) run(t *testing.T, d *datadriven.TestData) {
	switch d.Cmd {
	case "node":
		s.id, s.picked, s.logs = arg(d, "id", "a"), arg(d, "provider", ""), nil
		s.merged = session.NewMerged(s.id, 1)
	case "forget":
		s.vectors = session.NewVectors(0)
	case "log":
		l := &toyLog{}
		l.served = session.Served{Compare: engine.CompareLSN}
		l.served.Log = logOf(arg(d, "name", ""))
		l.served.Path = list(d, "path")
		if l.served.Path == nil {
			l.served.Path = []string{s.id}
		}
		names := list(d, "tables")
		if names == nil {
			names = []string{"t"}
		}
		l.served.Tables = tablesOf(names)
		for i, n := range l.served.Tables {
			l.served.Schemas = append(l.served.Schemas, &engine.Schema{ID: uint32(i + 1), Table: n, ReplicaIdentity: 'd', Columns: []engine.Column{{Name: "id", Number: 1, TypeOID: 25, Key: true}}})
		}
		l.served.Oldest = engine.Position(arg(d, "oldest", "0/10"))
		l.served.Head, l.served.Time = l.served.Oldest, 100
		if d.HasArg("places") || d.HasArg("unwritten") {
			l.served.Oldest, l.served.Head = "", ""
		}
		if d.HasArg("places") {
			d.CmdArgs = append(d.CmdArgs, datadriven.CmdArg{Key: "complete", Vals: []string{strconv.Itoa(math.MaxInt64)}})
		}
		l.served.CompleteFrom, l.served.Hidden = engine.Time(number(d, "complete", 0)), d.HasArg("hidden")
		for i := range number(d, "rows", 0) {
			sc := l.served.Schemas[0]
			k := fmt.Sprint("row", i)
			l.rows = append(l.rows, engine.Record{
				Schema: sc, Key: engine.AppendKeyValue(nil, k), Row: engine.AppendValue(engine.AppendRowHeader(nil, 1, 1), k),
				Stamp: engine.Stamp{Time: 100, Origin: l.served.Log.Origin, Epoch: l.served.Log.Epoch, Version: engine.Version{Major: 16}},
			})
		}
		s.logs = append(s.logs, l)
		slices.SortFunc(s.logs, func(a, b *toyLog) int {
			return cmp.Or(cmp.Compare(a.served.Log.Origin, b.served.Log.Origin), cmp.Compare(a.served.Log.Epoch, b.served.Log.Epoch))
		})
	case "narrowed":
		l := s.find(logOf(arg(d, "log", "")))
		var names []string
		for _, t := range l.served.Tables {
			names = append(names, t.Name)
		}
		d.CmdArgs = append(d.CmdArgs, datadriven.CmdArg{Key: "tables", Vals: names})
		l.served.Scope = scopeOf(d)
	case "holders":
		l := s.find(logOf(arg(d, "log", "")))
		s.tree, l.holders, l.stable = true, holdings(d), engine.Position(arg(d, "stable", ""))
	case "takeover":
		log := logOf(arg(d, "log", ""))
		if s.places.Of(log) == nil {
			s.places.Put(log, &session.Place{})
		}
		s.places.Of(log).Floor = true
	case "untaken":
		log := logOf(arg(d, "log", ""))
		s.places.Of(log).Lost, s.places.Of(log).Parts = "its baseline could not be taken in", 0
		s.actions(s.r.Stop(s.now, log))
		s.actions(s.r.Retry(s.now, log))
	case "above":
		s.above = holdings(d)
	case "append":
		s.append(d)
	case "trim":
		l, to := s.find(logOf(arg(d, "log", ""))), engine.Position(arg(d, "to", ""))
		l.blocks = slices.DeleteFunc(l.blocks, func(b *engine.Block) bool { return engine.CompareLSN(b.Position, to) <= 0 })
		l.served.Oldest = to
	case "behind":
		l, behind := s.find(logOf(arg(d, "log", ""))), map[engine.TableName]engine.Reached{}
		for _, t := range l.served.Tables {
			if at := engine.Position(arg(d, t.Name, "")); at != "" {
				behind[t] = engine.Reached{Position: at, Time: 1}
			}
		}
		l.served.Trail = l.served.Trail.With(engine.Position(arg(d, "from", "")), behind, engine.CompareLSN)
	case "forget-deletes":
		s.outputs(s.w.DeltaFailed(uint32(number(d, "channel", 1)), engine.Time(number(d, "complete", 0))))
	case "drop":
		log := logOf(arg(d, "log", ""))
		s.logs = slices.DeleteFunc(s.logs, func(l *toyLog) bool { return l.served.Log == log })
	case "only":
		l := s.find(logOf(arg(d, "log", "")))
		l.served.Tables = tablesOf(list(d, "tables"))
	case "reroute":
		s.find(logOf(arg(d, "log", ""))).served.Path = list(d, "path")
	case "replace":
		l := s.find(logOf(arg(d, "log", "")))
		l.served.Log, l.blocks = logOf(arg(d, "by", "")), nil
		l.served.Oldest, l.served.Head = "0/10", "0/10"
	case "session":
		s.session(d)
	case "activate":
		s.actions(s.r.Activate(s.now))
	case "talk":
		s.talk()
	case "pull":
		for range number(d, "n", 1) {
			s.pull()
		}
	case "applied":
		log := logOf(arg(d, "log", ""))
		s.places.Of(log).Buffered -= int64(number(d, "bytes", 0))
		s.actions(s.r.Applied(log))
	case "window":
		s.actions(s.r.SetWindow(int64(number(d, "bytes", 0))))
	case "ack":
		s.r.Ack(engine.CursorKey{Log: logOf(arg(d, "log", ""))}, engine.Position(arg(d, "at", "")), d.HasArg("durable"))
	case "rewind":
		s.actions(s.r.Rewind(s.now, logOf(arg(d, "log", "")), engine.Position(arg(d, "to", "")), 0))
	case "elsewhere":
		s.places.Of(logOf(arg(d, "log", ""))).Position = engine.Position(arg(d, "at", ""))
	case "pass":
		dt, err := time.ParseDuration(arg(d, "time", ""))
		if err != nil {
			t.Fatal(err)
		}
		s.now = s.now.Add(dt)
		s.outputs(s.w.Tick(s.now))
		if s.r != nil {
			s.actions(s.r.Tick(s.now))
		}
	case "drain":
		s.outputs(s.w.Drain(30 * time.Second))
	case "to-writer", "to-reader":
		f := &wirepb.Frame{}
		if err := prototext.Unmarshal([]byte(d.Input), f); err != nil {
			d.Fatalf(t, "%v", err)
		}
		if d.Cmd == "to-writer" {
			s.outputs(s.w.Frame(f))
		} else {
			s.actions(s.r.Frame(s.now, f))
		}
	default:
		d.Fatalf(t, "unknown command %s", d.Cmd)
	}
	if s.w != nil && (d.Cmd == "log" || d.Cmd == "append" || d.Cmd == "behind" || d.Cmd == "trim" || d.Cmd == "drop" || d.Cmd == "replace" || d.Cmd == "reroute") {
		s.outputs(s.w.Serve(s.serve()))
	}
}

// holdings reads the arguments that name holders.
func holdings(d *datadriven.TestData) session.Holdings {
	hs := session.Holdings{}
	for _, a := range d.CmdArgs {
		if strings.Contains(a.Key, "@") {
			hs[a.Key] = engine.Position(strings.Join(a.Vals, ""))
		}
	}
	return hs
}

func (s *stage) serve() []session.Served {
	var all []session.Served
	for _, l := range s.logs {
		all = append(all, l.served)
	}
	s.merged.Advance(all)
	return all
}

func (s *stage) append(d *datadriven.TestData) {
	l := s.find(logOf(arg(d, "log", "")))
	sc := l.served.Schemas[0]
	for _, x := range l.served.Schemas {
		if x.Table.Name == arg(d, "table", "t") {
			sc = x
		}
	}
	for _, at := range list(d, "at") {
		lsn, err := engine.ParseLSN(engine.Position(at))
		if err != nil {
			panic(err)
		}
		tx := engine.Transaction{Position: engine.Position(at), Time: l.served.Time + 1, Major: uint64(lsn)}
		for i := range number(d, "parts", 1) {
			k := fmt.Sprint(at, ".", i)
			row := engine.AppendValue(engine.AppendRowHeader(nil, sc.ID, 1), strings.Repeat("x", number(d, "size", 1)))
			tx.Changes = append(tx.Changes, engine.Change{
				Op: engine.OpPut, Schema: sc, Key: engine.AppendKeyValue(nil, k), Row: row,
				Stamp: engine.Stamp{Time: tx.Time, Origin: l.served.Log.Origin, Epoch: l.served.Log.Epoch, Version: engine.Version{Major: uint64(lsn), Minor: uint32(i + 1)}},
			})
		}
		b := engine.NewBlockBuilder(l.served.Log, l.served.Head)
		b.Add(&tx)
		l.blocks = append(l.blocks, b.Blocks()...)
		l.served.Head, l.served.Time = tx.Position, tx.Time
		for i := range tx.Changes {
			c := &tx.Changes[i]
			if l.served.CompleteFrom == 0 {
				break // nobody asks for its rows
			}
			l.rows = append(l.rows, engine.Record{Schema: c.Schema, Key: c.Key, Row: c.Row, Stamp: c.Stamp})
		}
	}
}

func (s *stage) session(d *datadriven.TestData) {
	s.toR, s.toW, s.begun = nil, nil, map[uint32]int{}
	if s.r != nil {
		s.actions(s.r.End())
	}
	var holders func(engine.LogID) (session.Holdings, engine.Position)
	var floor func(engine.LogID, string) engine.Position
	if s.tree && !d.HasArg("notree") {
		holders = func(log engine.LogID) (session.Holdings, engine.Position) {
			l := s.find(log)
			return l.holders, l.stable
		}
		floor = func(log engine.LogID, holder string) engine.Position { return s.find(log).holders[holder] }
	}
	s.w = session.NewWriter(session.WriterConfig{
		Holders: holders, Floor: floor,
		NodeID: s.id, Software: "toy", Basic: d.HasArg("shared"), Merged: s.merged,
		Held: func(node string) (e engine.Epoch, t engine.Time) {
			for _, l := range s.logs {
				if strings.HasPrefix(l.served.Log.Origin, node+"#") {
					e, t = max(e, l.served.Log.Epoch), max(t, l.served.Time)
				}
			}
			return e, t
		},
		Provider: func(string) string { return s.picked },
		Limits:   session.Limits{MaxChannels: 3, MaxFrame: 1 << 20}, Vectors: s.vectors,
	}, s.now)
	s.outputs(s.w.Serve(s.serve()))
	var acts []session.Action
	upward := list(d, "upward")
	s.r, acts = session.NewReader(session.ReaderConfig{
		NodeID: arg(d, "reader", "b"), Name: "up", Software: "toy", Scope: scopeOf(d), Compare: engine.CompareLSN,
		Window: int64(number(d, "window", 1000)), Upward: func() []string { return upward }, NoSnapshot: d.HasArg("nosnapshot"),
		Limits: session.Limits{MaxFrame: 1 << 20}, Places: s.places, Vectors: s.told, Scalars: s.scalars,
		Holder: arg(d, "holder", ""), Above: func(engine.LogID) session.Holdings { return s.above },
	}, s.now)
	s.actions(acts)
}

func (s *stage) talk() {
	for len(s.toW)+len(s.toR) > 0 {
		w, r := s.toW, s.toR
		s.toW, s.toR = nil, nil
		for _, f := range w {
			s.outputs(s.w.Frame(f))
		}
		for _, f := range r {
			s.actions(s.r.Frame(s.now, f))
		}
	}
}

func (s *stage) pull() {
	work, ok := s.w.Next()
	if !ok {
		fmt.Fprintln(&s.out, "nothing to pull")
		return
	}
	if work.Snapshot {
		l := s.find(work.Log)
		fmt.Fprintf(&s.out, "pull channel %d: snapshot, %d bytes\n", work.Channel, work.MaxSize)
		rows := slices.DeleteFunc(slices.Clone(l.rows), func(r engine.Record) bool { return r.Stamp.Time <= work.Since })
		n := s.begun[work.Channel]
		s.begun[work.Channel]++
		switch {
		case n == 0:
			s.outputs(s.w.SnapshotBegin(work.Channel, session.Baseline{At: l.served.Head, Time: l.served.Time, Schemas: l.served.Schemas, Rows: len(rows), CompleteFrom: l.served.CompleteFrom}))
		case n <= len(rows):
			var enc engine.RecordEncoder
			enc.Append(&rows[n-1])
			s.outputs(s.w.SnapshotRows(work.Channel, 0, 1, enc.Take()))
		default:
			s.outputs(s.w.SnapshotEnd(work.Channel))
			delete(s.begun, work.Channel)
		}
		return
	}
	fmt.Fprintf(&s.out, "pull channel %d: after %s part %d, %d bytes\n", work.Channel, work.After, work.Part, work.MaxSize)
	l := s.find(work.Log)
	if engine.CompareLSN(work.After, l.served.Oldest) < 0 {
		s.outputs(s.w.Read(work.Channel, nil, engine.ErrGap))
		return
	}
	schema := func(_ engine.LogID, id uint32) *engine.Schema { return l.served.Schemas[id-1] }
	var pieces []session.Piece
	size := 0
	for _, b := range l.blocks {
		if engine.CompareLSN(b.Position, work.After) <= 0 || (len(pieces) == 0 && b.Part < work.Part) {
			continue
		}
		if size += len(b.Payload); size > work.MaxSize && len(pieces) > 0 {
			break
		}
		p := session.Piece{Block: b, Through: b.Position, Time: b.Time}
		if work.Scope != nil {
			var err error
			if p.Block, err = b.Narrow(work.Log, schema, work.Scope.View()); err != nil {
				panic(err)
			}
		}
		pieces = append(pieces, p)
	}
	s.outputs(s.w.Read(work.Channel, pieces, nil))
}

// outputs carries out what the writer wants: frames go to the reader.
func (s *stage) outputs(out []session.Output) {
	for _, o := range out {
		switch {
		case o.Frame != nil:
			s.sent("writer", o.Frame)
			s.toR = append(s.toR, o.Frame)
		case o.Shared != nil:
			f := overWire(o.Shared)
			s.sent("writer", f)
			s.toR = append(s.toR, f)
		case o.Acked != nil:
			fmt.Fprintf(&s.out, "  writer: acked %s %s at %s durable=%t\n", o.Acked.Reader, o.Acked.Key.Log, o.Acked.At, o.Acked.Durable)
			if o.Acked.Holders != nil {
				fmt.Fprintf(&s.out, "  writer: holders of %s: %v\n", o.Acked.Key.Log, o.Acked.Holders)
			}
		case o.Witness != nil:
			fmt.Fprintf(&s.out, "  writer: peer %s holds epoch %d, time %d of this node\n", o.Witness.Peer, o.Witness.Epoch, o.Witness.Time)
		case o.Abandon != 0:
			fmt.Fprintf(&s.out, "  writer: abandons the snapshot of channel %d\n", o.Abandon)
			delete(s.begun, o.Abandon)
		case o.Close != nil:
			fmt.Fprintf(&s.out, "  writer: CLOSED %s\n", closing(o.Close))
		}
	}
}

func (s *stage) actions(acts []session.Action) {
	for _, a := range acts {
		switch {
		case a.Frame != nil:
			s.sent("reader", a.Frame)
			s.toW = append(s.toW, a.Frame)
		case a.Deliver != nil:
			s.delivered(a.Deliver)
		case a.Head != nil:
			fmt.Fprintf(&s.out, "  reader: head of %s is %s\n", a.Head.Log, a.Head.Position)
		case a.Stable != nil:
			fmt.Fprintf(&s.out, "  reader: of %s all roots have %q, and holders %v\n", a.Stable.Log, a.Stable.At, a.Stable.Holders)
		case a.GoAway != nil:
			fmt.Fprintf(&s.out, "  reader: is to go within %s: %s\n", a.GoAway.Within, a.GoAway.Message)
		case a.Offers:
			for _, o := range s.r.Offers() {
				if o.Refused != nil {
					fmt.Fprintf(&s.out, "  reader: refuses %s (%s): %s\n", o.Log, o.Refused.Code, o.Refused.Reason)
				}
			}
		case a.Close != nil:
			fmt.Fprintf(&s.out, "  reader: CLOSED %s\n", closing(a.Close))
		}
	}
}

func closing(err error) string {
	var e *session.Error
	if errors.As(err, &e) {
		return fmt.Sprintf("%s: %v", strings.TrimPrefix(e.Code.String(), "ERROR_CODE_"), err)
	}
	return err.Error()
}

func (s *stage) delivered(d *session.Delivery) {
	fmt.Fprintf(&s.out, "  reader: delivers %s of %s", d.Kind, d.Key.Log)
	switch d.Kind {
	case session.DeliverCarry:
		fmt.Fprintf(&s.out, " path=%v tables=%v", d.Path, d.Tables)
	case session.DeliverBaseline:
		if d.Spec.Delta {
			fmt.Fprint(&s.out, " (delta)")
		}
		fmt.Fprintf(&s.out, " at %s tables=%v schemas=%d reason=%q", d.Spec.At, d.Spec.Tables, len(d.Spec.Schemas), d.Spec.Reason)
	case session.DeliverRows:
		rs, err := engine.DecodeRecords(nil, d.Table, d.Payload, d.Schemas.Schema)
		fmt.Fprintf(&s.out, " %d of %s err=%v", len(rs), d.Table, err)
	case session.DeliverBlock:
		err := d.Block.Index(d.Key.Log, d.Schemas.Schema)
		fmt.Fprintf(&s.out, " %s→%s part=%d last=%t changes=%d schemas=%d err=%v", d.Block.Prev, d.Block.Position, d.Block.Part, d.Block.Last, d.Block.Changes, len(d.Block.Schemas), err)
	case session.DeliverProgress:
		fmt.Fprintf(&s.out, " %s→%s", d.Prev, d.Through)
	}
	behind := d.Behind
	switch {
	case d.Spec != nil:
		behind = d.Spec.Behind
	case d.Block != nil:
		behind = d.Block.Behind
	}
	if behind != nil {
		fmt.Fprint(&s.out, " behind=[")
		for i, t := range slices.SortedFunc(maps.Keys(behind), engine.TableName.Compare) {
			fmt.Fprint(&s.out, [...]string{"", " "}[min(i, 1)], t.Name, ":", behind[t].Position)
		}
		fmt.Fprint(&s.out, "]")
	}
	fmt.Fprintln(&s.out)
}

func (s *stage) sent(who string, f *wirepb.Frame) {
	fmt.Fprintf(&s.out, "%s: ", who)
	if f.GetKind() == nil {
		fmt.Fprintln(&s.out, "(unknown)")
		return
	}
	m := f.ProtoReflect()
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		fmt.Fprintf(&s.out, "%s%s\n", fd.Message().Name(), text(v.Message()))
		return true
	})
}

// text prints a message in the order of its fields, payloads by their size.
func text(m protoreflect.Message) string {
	switch x := m.Interface().(type) {
	case *wirepb.LogID:
		return fmt.Sprintf("%s@%d", x.GetOrigin(), x.GetEpoch())
	case *wirepb.TableName:
		return x.GetName()
	case *wirepb.Cursor:
		return x.GetPosition()
	case *wirepb.Schema:
		if x.GetShape() != 0 {
			return fmt.Sprintf("%d:%s/%d", x.GetId(), x.GetTable().GetName(), x.GetShape())
		}
		return fmt.Sprintf("%d:%s", x.GetId(), x.GetTable().GetName())
	}
	var parts []string
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		fd := fields.Get(i)
		if !m.Has(fd) || fd.Name() == "software" || fd.Name() == "capabilities" {
			continue
		}
		one := func(v protoreflect.Value) string {
			switch fd.Kind() {
			case protoreflect.MessageKind:
				return text(v.Message())
			case protoreflect.BytesKind:
				if len(v.Bytes()) == 8 && fd.Name() != "payload" {
					return fmt.Sprintf("%x", v.Bytes()[:2])
				}
				return fmt.Sprintf("%dB", len(v.Bytes()))
			case protoreflect.EnumKind:
				return string(fd.Enum().Values().ByNumber(v.Enum()).Name())
			}
			return v.String()
		}
		v := m.Get(fd)
		if fd.IsList() {
			var vs []string
			for j := range v.List().Len() {
				vs = append(vs, one(v.List().Get(j)))
			}
			parts = append(parts, fmt.Sprintf("%s=[%s]", fd.Name(), strings.Join(vs, " ")))
		} else {
			parts = append(parts, fmt.Sprintf("%s=%s", fd.Name(), one(v)))
		}
	}
	return "{" + strings.Join(parts, " ") + "}"
}

// overWire takes a shared frame through the codec.
func overWire(s *wire.Shared) *wirepb.Frame {
	data, err := wire.NewCodec().Marshal(s)
	if err != nil {
		panic(err)
	}
	f := &wirepb.Frame{}
	if err := proto.Unmarshal(data.Materialize(), f); err != nil {
		panic(err)
	}
	return f
}

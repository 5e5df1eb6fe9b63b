package wire

import (
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/fanout/scope"
	"github.com/tributary-dev/tributary/pkg/fanout/wirepb"
)

// FromLog returns a log's id as it is sent.
func FromLog(l engine.LogID) *wirepb.LogID {
	return &wirepb.LogID{Origin: l.Origin, Epoch: uint64(l.Epoch)}
}

// Log returns a log's id as the engine has it; zero for nil.
func Log(l *wirepb.LogID) engine.LogID {
	return engine.LogID{Origin: l.GetOrigin(), Epoch: engine.Epoch(l.GetEpoch())}
}

// FromTable returns a table's name as it is sent.
func FromTable(t engine.TableName) *wirepb.TableName {
	return &wirepb.TableName{Schema: t.Schema, Name: t.Name}
}

// Table returns a table's name as the engine has it.
func Table(t *wirepb.TableName) engine.TableName {
	return engine.TableName{Schema: t.GetSchema(), Name: t.GetName()}
}

// FromTables and Tables convert lists of names.
func FromTables(ts []engine.TableName) []*wirepb.TableName { return each(ts, FromTable) }

// Tables returns names as the engine has them.
func Tables(ts []*wirepb.TableName) []engine.TableName { return each(ts, Table) }

func each[A, B any](in []A, f func(A) B) []B {
	out := make([]B, len(in))
	for i, a := range in {
		out[i] = f(a)
	}
	return out
}

// FromSchema returns a schema of a log as it is sent on a channel.
func FromSchema(log engine.LogID, s *engine.Schema) *wirepb.Schema {
	m := &wirepb.Schema{
		Log: FromLog(log), Id: s.ID, Table: FromTable(s.Table), RelationOid: s.RelationOID,
		ReplicaIdentity: uint32(s.ReplicaIdentity), Columns: make([]*wirepb.Column, len(s.Columns)),
	}
	for i, c := range s.Columns {
		m.Columns[i] = &wirepb.Column{
			Name: c.Name, Number: int32(c.Number), TypeOid: c.TypeOID, TypeName: c.TypeName, TypeModifier: c.TypeMod, Key: c.Key, BaseOid: c.BaseOID, BaseName: c.BaseName,
		}
	}
	return m
}

// FromSchemas converts the schemas of a log.
func FromSchemas(log engine.LogID, ss []*engine.Schema) []*wirepb.Schema {
	return each(ss, func(s *engine.Schema) *wirepb.Schema { return FromSchema(log, s) })
}

// maxColumns is above what PostgreSQL allows (1,600).
const maxColumns = 4096

// Schema checks a schema that was received and returns it with its log.
func Schema(m *wirepb.Schema) (engine.LogID, *engine.Schema, error) {
	log := Log(m.GetLog())
	s := &engine.Schema{ID: m.GetId(), Table: Table(m.GetTable()), RelationOID: m.GetRelationOid(), ReplicaIdentity: engine.ReplicaIdentity(m.GetReplicaIdentity())}
	switch {
	case log.Origin == "" || log.Epoch == 0:
		return log, nil, fmt.Errorf("schema %d names no log", s.ID)
	case s.ID == 0:
		return log, nil, fmt.Errorf("a schema of log %s has no id", log)
	case s.Table.Name == "":
		return log, nil, fmt.Errorf("schema %d of log %s names no table", s.ID, log)
	case m.GetReplicaIdentity() > math.MaxUint8:
		return log, nil, fmt.Errorf("schema %d of log %s: replica identity %d is not a byte", s.ID, log, m.GetReplicaIdentity())
	case len(m.GetColumns()) > maxColumns:
		return log, nil, fmt.Errorf("schema %d of log %s has %d columns; at most %d are allowed", s.ID, log, len(m.GetColumns()), maxColumns)
	}
	s.Columns = make([]engine.Column, len(m.GetColumns()))
	for i, c := range m.GetColumns() {
		if c.GetNumber() < math.MinInt16 || c.GetNumber() > math.MaxInt16 {
			return log, nil, fmt.Errorf("schema %d of log %s: column %q has number %d", s.ID, log, c.GetName(), c.GetNumber())
		}
		s.Columns[i] = engine.Column{
			Name: c.GetName(), Number: int16(c.GetNumber()), TypeOID: c.GetTypeOid(), TypeName: c.GetTypeName(), TypeMod: c.GetTypeModifier(), Key: c.GetKey(),
			BaseOID: c.GetBaseOid(), BaseName: c.GetBaseName(),
		}
	}
	return log, s, nil
}

// Block returns the block that a batch carries. Its payload is not checked yet:
// see engine.Block.Index.
func Block(m *wirepb.Batch) *engine.Block {
	return &engine.Block{
		Prev: engine.Position(m.GetPrev()), Position: engine.Position(m.GetPosition()), Time: engine.Time(m.GetTime()),
		Changes: int(m.GetChanges()), Part: m.GetPart(), Last: m.GetLast(), Payload: m.GetPayload(),
	}
}

// FromCursor returns a position with its time as it is sent.
func FromCursor(p engine.Position, t engine.Time) *wirepb.Cursor {
	return &wirepb.Cursor{Position: string(p), Time: uint64(t)}
}

// FromBehind returns tables that a place in a log is ahead of as they are sent.
func FromBehind(behind map[engine.TableName]engine.Reached) []*wirepb.TableReached {
	names := slices.SortedFunc(maps.Keys(behind), engine.TableName.Compare)
	return each(names, func(t engine.TableName) *wirepb.TableReached {
		return &wirepb.TableReached{Table: FromTable(t), At: FromCursor(behind[t].Position, behind[t].Time)}
	})
}

// Behind returns tables that a place in a log is ahead of as the engine has them; never nil.
func Behind(ts []*wirepb.TableReached) map[engine.TableName]engine.Reached {
	behind := make(map[engine.TableName]engine.Reached, len(ts))
	for _, t := range ts {
		behind[Table(t.GetTable())] = engine.Reached{Position: engine.Position(t.GetAt().GetPosition()), Time: engine.Time(t.GetAt().GetTime())}
	}
	return behind
}

// FromHead returns how far a log has got at its origin as it is sent.
func FromHead(h engine.Head) *wirepb.SourceHead {
	if !h.Known() {
		return nil
	}
	return &wirepb.SourceHead{At: FromCursor(h.Position, h.Time), Changes: h.Changes, Counter: h.Counter}
}

// Head returns how far a log has got at its origin as the engine has it.
func Head(m *wirepb.SourceHead) engine.Head {
	return engine.Head{Position: engine.Position(m.GetAt().GetPosition()), Time: engine.Time(m.GetAt().GetTime()), Changes: m.GetChanges(), Counter: m.GetCounter()}
}

// FromStamp returns the identity of a write as it is sent.
func FromStamp(s engine.Stamp) *wirepb.Stamp {
	return &wirepb.Stamp{Time: uint64(s.Time), Log: FromLog(s.Log()), Major: s.Version.Major, Minor: s.Version.Minor}
}

// Stamp returns the identity of a write as the engine has it.
func Stamp(m *wirepb.Stamp) engine.Stamp {
	l := Log(m.GetLog())
	return engine.Stamp{Time: engine.Time(m.GetTime()), Origin: l.Origin, Epoch: l.Epoch, Version: engine.Version{Major: m.GetMajor(), Minor: m.GetMinor()}}
}

// FromScope returns a scope as it is sent; nil for the whole log.
func FromScope(s *scope.Scope) *wirepb.Scope {
	if s == nil {
		return nil
	}
	m := &wirepb.Scope{}
	for _, t := range s.Tables() {
		ts := &wirepb.TableScope{Table: FromTable(t.Name), Columns: t.Columns}
		for _, c := range t.Where {
			ts.Where = append(ts.Where, &wirepb.Condition{Column: c.Column, Operator: wirepb.Condition_Operator(c.Op), Values: c.Values})
		}
		m.Tables = append(m.Tables, ts)
	}
	return m
}

// Scope checks a scope that was received.
func Scope(m *wirepb.Scope) (*scope.Scope, error) {
	ts := make([]scope.Table, len(m.GetTables()))
	for i, t := range m.GetTables() {
		ts[i] = scope.Table{Name: Table(t.GetTable()), Columns: t.GetColumns()}
		for _, c := range t.GetWhere() {
			op := c.GetOperator()
			if op < 0 || op > math.MaxUint8 {
				op = 0 // scope.New says what is wrong
			}
			ts[i].Where = append(ts[i].Where, scope.Condition{Column: c.GetColumn(), Op: scope.Operator(op), Values: c.GetValues()})
		}
	}
	return scope.New(ts...)
}

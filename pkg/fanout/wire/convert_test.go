package wire

import (
	"reflect"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/fanout/scope"
	"github.com/tributary-dev/tributary/pkg/fanout/wirepb"
)

var log = engine.LogID{Origin: "a#pg", Epoch: 5}

func TestSchemaKeepsEverything(t *testing.T) {
	t.Parallel()
	s := &engine.Schema{ID: 3, Table: engine.TableName{Schema: "a.b", Name: `c"d`}, RelationOID: 4_000_000_000, ReplicaIdentity: engine.IdentityIndex, Columns: []engine.Column{
		{Name: "id", Number: 1, TypeOID: 20, TypeName: "bigint", TypeMod: -1, Key: true},
		{Name: "sys", Number: -7, TypeOID: 1700, TypeName: "numeric(10,2)", TypeMod: 655366, BaseOID: 25, BaseName: "text"},
	}}
	of, got, err := Schema(FromSchema(log, s))
	if err != nil || of != log || !reflect.DeepEqual(got, s) || got.Fingerprint() != s.Fingerprint() {
		t.Errorf("%v %+v %v", of, got, err)
	}
}

func TestSchemaChecks(t *testing.T) {
	t.Parallel()
	for want, spoil := range map[string]func(*wirepb.Schema){
		"names no log":   func(m *wirepb.Schema) { m.Log.Epoch = 0 },
		"has no id":      func(m *wirepb.Schema) { m.Id = 0 },
		"names no table": func(m *wirepb.Schema) { m.Table = nil },
		"not a byte":     func(m *wirepb.Schema) { m.ReplicaIdentity = 256 },
		"has number":     func(m *wirepb.Schema) { m.Columns[0].Number = 40_000 },
		"at most":        func(m *wirepb.Schema) { m.Columns = make([]*wirepb.Column, maxColumns+1) },
	} {
		m := FromSchema(log, &engine.Schema{ID: 1, Table: engine.TableName{Schema: "s", Name: "t"}, Columns: []engine.Column{{Name: "c"}}})
		spoil(m)
		if _, _, err := Schema(m); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
}

func FuzzSchema(f *testing.F) {
	f.Fuzz(func(_ *testing.T, p []byte) {
		m := &wirepb.Schema{}
		if proto.Unmarshal(p, m) == nil {
			_, _, _ = Schema(m)
		}
	})
}

// A scope arrives as it was sent, and under the same name.
func TestScopeKeepsEverything(t *testing.T) {
	t.Parallel()
	s, err := scope.New(scope.Table{Name: engine.TableName{Schema: "a.b", Name: "t"}, Columns: []string{"x", "y"}, Where: []scope.Condition{
		{Column: "x", Op: scope.Equal, Values: []string{""}}, {Column: "y", Op: scope.In, Values: []string{"1", "2"}}, {Column: "z", Op: scope.Prefix, Values: []string{"p"}},
	}}, scope.Table{Name: engine.TableName{Schema: "p", Name: "u"}})
	if err != nil {
		t.Fatal(err)
	}
	got, err := Scope(FromScope(s))
	if err != nil || got.ID() != s.ID() || !reflect.DeepEqual(got.Tables(), s.Tables()) {
		t.Errorf("%+v, %v", got.Tables(), err)
	}
	if got, err := Scope(FromScope(nil)); got != nil || err != nil {
		t.Errorf("the whole log became %v, %v", got, err)
	}
}

package client_test

import (
	"fmt"
	"testing"

	"go.uber.org/goleak"

	"github.com/tributary-dev/tributary/pkg/engine"
	ft "github.com/tributary-dev/tributary/pkg/fanout/fanouttest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestCascade(t *testing.T) {
	t.Parallel()
	o := ft.NewOrigin(2000, "t", "u")
	a := ft.Start(t, "a", ft.Options{}, map[string]engine.SyncSource{"pg": o})
	b, _ := ft.Child(t, "b", nil, a)
	c, _ := ft.Child(t, "c", nil, b)
	ft.Converged(t, o, ft.Table("t"), a, b, c)
	for i := range 500 {
		o.Write(
			ft.Change{Table: ft.Table("t"), Key: fmt.Sprintf("k%06d", i*3), Value: fmt.Sprint("changed ", i)},
			ft.Change{Table: ft.Table("u"), Key: fmt.Sprintf("k%06d", i), Gone: true},
		)
	}
	ft.Converged(t, o, ft.Table("t"), a, b, c)
	ft.Converged(t, o, ft.Table("u"), a, b, c)
	if n := c.Baselines(); n != 1 {
		t.Errorf("%d baselines at c, want 1", n)
	}
	if ad := c.Engine.Adverts(); len(ad) != 1 || fmt.Sprint(ad[0].Path) != "[c b a]" {
		t.Errorf("c serves %v", ad)
	}
}

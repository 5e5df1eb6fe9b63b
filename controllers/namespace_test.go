package controllers_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tributary-dev/tributary/api/v1alpha1"
	"github.com/tributary-dev/tributary/pkg/nodeconfig"
)

// K06: every parent is scaled to zero: what is below waits, on watches, and asks the API
// nothing again and again. Then the namespace is deleted: the nodes go at once, though
// nothing can be made there any more that drops a slot.
func TestCaseK06(t *testing.T) {
	ns := namespace(t)
	root := func(replicas int) string {
		return fmt.Sprintf(`
kind: ReplicationNode
metadata: {name: root}
spec:
  replicas: %d
  storage: {type: Persistent, size: 1Gi}
  sources:
  - name: db
    postgres:
      hosts: [{host: db}]
      database: shop
      credentialsSecretRef: {name: login}
      tables: [{schema: public, name: orders}]
      slot: {deletionPolicy: Delete}
---`, replicas)
	}
	apply(t, ns, login+root(1)+below("mid", "root")+below("edge", "mid"))
	wantWiring(t, ns, "edge", "mid")
	(&kubelet{doc: func() nodeconfig.Statusz {
		return nodeconfig.Statusz{Node: ns + "/edge", Sources: []nodeconfig.SourceStatus{{
			Name: "up", State: nodeconfig.StateFailed, Reason: v1alpha1.ReasonNoHealthyParent, Message: "No upstream answers.",
		}}}
	}}).run(t, ns, "edge", "127.0.7.96")
	apply(t, ns, root(0)+with(below("mid", "root"), "replicas: 0"))
	for _, name := range []string{"root", "mid"} {
		wantCondition(t, ns, name, v1alpha1.ConditionWorkloadAvailable, metav1.ConditionFalse, v1alpha1.ReasonSuspended, "")
	}
	wantCondition(t, ns, "edge", v1alpha1.ConditionReconciling, metav1.ConditionTrue, v1alpha1.ReasonNoHealthyParent, "")
	settled(t)
	wrote, read := len(writes.in(ns)), len(reads.in(ns))
	time.Sleep(10 * time.Second)
	if after := writes.in(ns); len(after) != wrote {
		t.Errorf("%d writes while nothing happens: %v", len(after)-wrote, after[wrote:])
	}
	if after := reads.in(ns); len(after) > read+1 { // the Secret, in its time
		t.Errorf("%d reads while nothing happens: %v", len(after)-read, after[read:])
	}

	// The namespace controller, which does not run here, deletes kind by kind.
	if err := cl.Delete(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}); err != nil {
		t.Fatal(err)
	}
	if err := cl.DeleteAllOf(t.Context(), &corev1.Secret{}, client.InNamespace(ns)); err != nil {
		t.Fatal(err)
	}
	if err := cl.DeleteAllOf(t.Context(), &v1alpha1.ReplicationNode{}, client.InNamespace(ns)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the nodes are gone", func(ctx context.Context) error {
		var l v1alpha1.ReplicationNodeList
		if err := cl.List(ctx, &l, client.InNamespace(ns)); err != nil || len(l.Items) == 0 {
			return err
		}
		return fmt.Errorf("%s has %v", l.Items[0].Name, l.Items[0].Finalizers)
	})
	for _, o := range []client.Object{&appsv1.StatefulSet{}, &appsv1.Deployment{}, &corev1.ConfigMap{}} {
		if err := cl.DeleteAllOf(t.Context(), o, client.InNamespace(ns)); err != nil {
			t.Error(err)
		}
	}
	settled(t)
	if _, err := get[corev1.Namespace](t.Context(), "", ns); apierrors.IsNotFound(err) {
		t.Error("the namespace is gone already: nothing was tested")
	}
	if l := failures.in(ns); len(l) > 0 {
		t.Errorf("%d errors, such as %s", len(l), l[0])
	}
}

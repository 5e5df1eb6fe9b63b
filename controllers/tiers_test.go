package controllers_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tributary-dev/tributary/api/v1alpha1"
	"github.com/tributary-dev/tributary/pkg/nodeconfig"
)

// image returns the image that a node's pods are to run, and its workload.
func image(ctx context.Context, ns, name string) (string, client.Object, error) {
	if s, err := get[appsv1.StatefulSet](ctx, ns, name); err == nil {
		return s.Spec.Template.Spec.Containers[0].Image, s, nil
	}
	d, err := get[appsv1.Deployment](ctx, ns, name)
	if err != nil {
		return "", nil, err
	}
	return d.Spec.Template.Spec.Containers[0].Image, d, nil
}

func wantImage(t *testing.T, ns, name, want string) {
	t.Helper()
	eventually(t, "the image of "+name, func(ctx context.Context) error {
		got, _, err := image(ctx, ns, name)
		if err == nil && got != want {
			err = fmt.Errorf("%s, want %s", got, want)
		}
		return err
	})
}

// replaced says that the pods of a node have been: all of them run what they are to.
func replaced(t *testing.T, ns, name string) {
	t.Helper()
	eventually(t, "the pods of "+name, func(ctx context.Context) error {
		_, w, err := image(ctx, ns, name)
		if err != nil {
			return err
		}
		switch w := w.(type) {
		case *appsv1.StatefulSet:
			w.Status.ObservedGeneration = w.Generation
		case *appsv1.Deployment:
			w.Status.ObservedGeneration = w.Generation
		}
		return cl.Status().Update(ctx, w)
	})
}

// TestCaseK17: a change that concerns all nodes, as a new version of the manager with its
// default image does, is rolled out from the leaves up, and of two nodes that stand in for
// each other one at a time; wiring does not wait; and what is broken does not.
func TestCaseK17(t *testing.T) {
	ns := namespace(t)
	docs := func(image string) string {
		all := below("far", "b", "a") + below("edge", "a", "b") + below("b", "root") + below("a", "root") + rootNode("root")
		return login + strings.ReplaceAll(all, "spec:", "spec:\n  image: "+image)
	}
	const before, after = "example.test/node:1", "example.test/node:2"
	apply(t, ns, docs(before))
	for i, name := range []string{"root", "a", "b", "edge", "far"} {
		k := &kubelet{doc: func() nodeconfig.Statusz {
			return nodeconfig.Statusz{Node: ns + "/" + name, Ready: true, Sources: []nodeconfig.SourceStatus{{
				Name: map[bool]string{true: "db", false: "up"}[name == "root"], State: nodeconfig.StateStreaming,
			}}}
		}}
		k.run(t, ns, name, fmt.Sprintf("127.0.7.%d", 80+i))
		wantCondition(t, ns, name, v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady, "")
	}

	apply(t, ns, docs(after))
	wantImage(t, ns, "edge", after) // they do not stand in for each other
	wantImage(t, ns, "far", after)
	for name, whom := range map[string]string{"a": "edge", "b": "far", "root": "a"} {
		wantCondition(t, ns, name, v1alpha1.ConditionWorkloadAvailable, metav1.ConditionTrue, v1alpha1.ReasonWaitingForTier, "the pods of "+whom+", which reads from it, have yet to be replaced")
		wantCondition(t, ns, name, v1alpha1.ConditionReconciling, metav1.ConditionTrue, v1alpha1.ReasonWaitingForTier, "")
		wantCondition(t, ns, name, v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady, "")
		wantImage(t, ns, name, before)
	}
	apply(t, ns, strings.ReplaceAll(below("a", "root")+below("edge", "b", "a")+below("far", "a", "b"), "spec:", "spec:\n  image: "+after))
	wantWiring(t, ns, "edge", "b", "a")

	replaced(t, ns, "edge")
	replaced(t, ns, "far")
	first := ""
	eventually(t, "one of a and b", func(ctx context.Context) error {
		for _, name := range []string{"a", "b"} {
			if got, _, err := image(ctx, ns, name); err != nil {
				return err
			} else if got == after {
				first = name
				return nil
			}
		}
		return fmt.Errorf("none")
	})
	other := map[string]string{"a": "b", "b": "a"}[first]
	wantCondition(t, ns, other, v1alpha1.ConditionWorkloadAvailable, metav1.ConditionTrue, v1alpha1.ReasonWaitingForTier, "the pods of "+first+", which stands in for it, are being replaced")
	time.Sleep(2 * cacheLag)
	wantImage(t, ns, other, before)
	replaced(t, ns, first)
	wantImage(t, ns, other, after)
	time.Sleep(2 * cacheLag)
	wantImage(t, ns, "root", before)

	// it does not come up: its mending does not wait, nor is anybody else's held up by it
	eventually(t, "a pod that fails", func(ctx context.Context) error {
		_, w, err := image(ctx, ns, "root")
		if err != nil {
			return err
		}
		s := w.(*appsv1.StatefulSet)
		s.Status.AvailableReplicas, s.Status.ReadyReplicas = 0, 0
		return cl.Status().Update(ctx, s)
	})
	wantImage(t, ns, "root", after)
}

package controllers_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tributary-dev/tributary/api/v1alpha1"
	"github.com/tributary-dev/tributary/pkg/nodeconfig"
)

func leafNode(name string) string {
	return fmt.Sprintf(`
kind: ReplicationNode
metadata: {name: %s, labels: {mesh: shops}}
spec:
  sources:
  - name: local
    ingest: {volatile: true, tables: [{schema: public, name: tally, columns: [{name: id, type: bigint, key: true}, {name: v, type: bigint}]}]}
---`, name)
}

const shopsMesh = `
kind: ReplicationMesh
metadata: {name: shops}
spec: {members: {selector: {matchLabels: {mesh: shops}}}}
---`

// wantMesh waits for a condition of a mesh.
func wantMesh(t *testing.T, ns, name, kind string, status metav1.ConditionStatus, reason, message string) {
	t.Helper()
	eventually(t, fmt.Sprintf("%s: %s=%s, %s", name, kind, status, reason), func(ctx context.Context) error {
		m, err := get[v1alpha1.ReplicationMesh](ctx, ns, name)
		if err != nil {
			return err
		}
		c := meta.FindStatusCondition(m.Status.Conditions, kind)
		if c == nil || c.Status != status || c.Reason != reason || !strings.Contains(c.Message, message) || c.ObservedGeneration != m.Generation {
			return fmt.Errorf("generation %d has %+v", m.Generation, m.Status.Conditions)
		}
		return nil
	})
}

// The members of a mesh are wired in whatever order things come, another member
// changes the wiring of the others alone, and what the members say becomes the
// mesh's status.
func TestMesh(t *testing.T) {
	ns := namespace(t)
	apply(t, ns, leafNode("b")+shopsMesh)
	time.Sleep(200 * time.Millisecond)
	apply(t, ns, leafNode("a"))
	wantWiring(t, ns, "a", "b")
	wantWiring(t, ns, "b", "a")
	hash := func() (h string) {
		t.Helper()
		eventually(t, "the pods of a", func(ctx context.Context) error {
			s, err := get[appsv1.StatefulSet](ctx, ns, "a")
			if err == nil {
				h = s.Spec.Template.Annotations["tributary.dev/config-hash"]
			}
			return err
		})
		return h
	}
	before := hash()
	wantMesh(t, ns, "shops", v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonMembersNotReady, "a is not ready.")

	apply(t, ns, leafNode("c"))
	wantWiring(t, ns, "a", "b", "c")
	if after := hash(); after != before {
		t.Error("another member rolls the pods of the others")
	}

	// what the members say
	var mu sync.Mutex
	lag, apart, state, policies := 0.0, "", nodeconfig.LogCurrent, ""
	names := []string{"a", "b", "c"}
	for i, name := range names {
		k := &kubelet{doc: func() nodeconfig.Statusz {
			mu.Lock()
			defer mu.Unlock()
			d := nodeconfig.Statusz{Node: ns + "/" + name, Ready: true, Sources: []nodeconfig.SourceStatus{
				{Name: "local", Kind: nodeconfig.KindIngest, State: nodeconfig.StateStreaming}, {Name: "mesh", Kind: nodeconfig.KindMesh, State: nodeconfig.StateStreaming},
			}}
			if name == "b" {
				d.ConflictDigest = policies
			}
			for _, o := range names {
				l := nodeconfig.LogStatus{Origin: ns + "/" + o + "#local", Epoch: "1", Source: "mesh", Head: "0000000000000007", State: nodeconfig.LogCurrent, LagKnown: true, Path: []string{ns + "/" + name, ns + "/" + o}}
				if o == name {
					l.Source, l.Path = "local", l.Path[:1]
				} else {
					p := nodeconfig.PeerStatus{ID: ns + "/" + o, Connected: apart != name+"-"+o}
					if !p.Connected {
						p.Message = "connection refused"
					}
					d.Sources[1].Peers = append(d.Sources[1].Peers, p)
				}
				if name == "c" && o == "a" {
					l.LagSeconds, l.State, l.Head = lag, state, "0000000000000003"
				}
				d.Logs = append(d.Logs, l)
			}
			return d
		}}
		k.run(t, ns, name, fmt.Sprintf("127.0.7.%d", 40+i))
	}
	wantMesh(t, ns, "shops", v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady, "")
	wantMesh(t, ns, "shops", v1alpha1.ConditionConverged, metav1.ConditionTrue, v1alpha1.ReasonConverged, "Every member has all 3 logs")
	m, err := get[v1alpha1.ReplicationMesh](t.Context(), ns, "shops")
	if err != nil {
		t.Fatal(err)
	}
	if m.Status.Summary != "3/3" || m.Status.OriginCount != 3 || len(m.Status.Members) != 3 || m.Status.Members[2].Connected != 2 || m.Status.Lag != "<1s" {
		t.Errorf("%+v", m.Status)
	}
	if o := m.Status.Origins[0]; o.Node != "a" || o.Head != "0000000000000007" || o.Members != 3 || o.Current != 3 || o.Worst != nil {
		t.Errorf("%+v", o)
	}
	n, err := node(t.Context(), ns, "a")
	if err != nil {
		t.Fatal(err)
	}
	if s := n.Status.Sources; n.Status.Mesh != "shops" || len(s) != 2 || s[0].Kind != nodeconfig.KindIngest || s[1].Kind != nodeconfig.KindMesh || len(s[1].Candidates) != 2 {
		t.Errorf("%+v", n.Status)
	}

	mu.Lock()
	policies = "other"
	mu.Unlock()
	wantMesh(t, ns, "shops", v1alpha1.ConditionConflictPolicyAgreed, metav1.ConditionFalse, v1alpha1.ReasonPoliciesDiffer, "Not with the conflict policies of a: b.")
	mu.Lock()
	policies = ""
	mu.Unlock()
	wantMesh(t, ns, "shops", v1alpha1.ConditionConflictPolicyAgreed, metav1.ConditionTrue, v1alpha1.ReasonAgreed, "")

	// a session that is missing is said at once; lag in its time
	mu.Lock()
	lag, apart, state = 20, "b-a", nodeconfig.LogStalled
	mu.Unlock()
	wantMesh(t, ns, "shops", v1alpha1.ConditionPeersConnected, metav1.ConditionFalse, v1alpha1.ReasonPeersMissing, "b has sessions with 1 of 2 peers. No session with a. connection refused")
	wantMesh(t, ns, "shops", v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonPeersMissing, "")
	wantMesh(t, ns, "shops", v1alpha1.ConditionConverged, metav1.ConditionFalse, v1alpha1.ReasonConverging, "c is behind with 1 of 3 logs. Worst: c is Stalled with "+ns+"/a#local, <1m.")
	eventually(t, "an event", func(ctx context.Context) error {
		var list eventsv1.EventList
		if err := cl.List(ctx, &list, client.InNamespace(ns)); err != nil {
			return err
		}
		if !slices.ContainsFunc(list.Items, func(e eventsv1.Event) bool {
			return e.Regarding.Kind == "ReplicationMesh" && e.Reason == v1alpha1.ReasonPeersMissing
		}) {
			return fmt.Errorf("none of %d events", len(list.Items))
		}
		return nil
	})

	// one that leaves is nobody's peer any more, and loses the source
	c := &v1alpha1.ReplicationNode{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "c"}}
	if err := cl.Patch(t.Context(), c, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"labels":null}}`))); err != nil {
		t.Fatal(err)
	}
	wantWiring(t, ns, "a", "b")
	eventually(t, "c without a mesh", func(ctx context.Context) error {
		cm, err := get[corev1.ConfigMap](ctx, ns, "c-static")
		if err == nil && strings.Contains(cm.Data["node.yaml"], "mesh:") {
			err = fmt.Errorf("%s", cm.Data["node.yaml"])
		}
		return err
	})
	if after := hash(); after != before {
		t.Error("a member that leaves rolls the pods of the others")
	}
}

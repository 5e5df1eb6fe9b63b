package controllers

import (
	"context"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tributary-dev/tributary/api/v1alpha1"
	"github.com/tributary-dev/tributary/controllers/workload"
)

// running is how far a node's workload is.
type running struct {
	object                                 client.Object // nil: there is none
	desired, existing, available, upToDate int32
	settled                                bool // its controller has seen the spec
	trouble                                string
}

// rolling says whether pods of a former kind are being replaced.
func (r *running) rolling() bool {
	return r.object != nil && r.existing > 0 && (!r.settled || r.upToDate < r.desired || r.existing > r.upToDate)
}

// expect says that what runs is to be of what was just applied. A cache that does not
// show it yet shows a workload at rest that is not: its controller has yet to see the spec.
func (r *running) expect(workload client.Object) {
	if r.object != nil && hashOf(r.object) != hashOf(workload) {
		r.settled = false
	}
}

// look reads the workload of a node, and what keeps its pods from starting.
func look(ctx context.Context, c client.Reader, n *v1alpha1.ReplicationNode) (*running, error) {
	r := &running{}
	key := client.ObjectKeyFromObject(n)
	var d appsv1.Deployment
	if err := c.Get(ctx, key, &d); client.IgnoreNotFound(err) != nil {
		return nil, err
	} else if err == nil && metav1.IsControlledBy(&d, n) && d.DeletionTimestamp == nil {
		s := d.Status
		*r = running{object: &d, desired: *d.Spec.Replicas, existing: s.Replicas, available: s.AvailableReplicas, upToDate: s.UpdatedReplicas, settled: s.ObservedGeneration >= d.Generation}
	}
	var f appsv1.StatefulSet
	if err := c.Get(ctx, key, &f); client.IgnoreNotFound(err) != nil {
		return nil, err
	} else if err == nil && metav1.IsControlledBy(&f, n) && f.DeletionTimestamp == nil {
		s := f.Status
		*r = running{object: &f, desired: *f.Spec.Replicas, existing: s.Replicas, available: s.AvailableReplicas, upToDate: s.UpdatedReplicas, settled: s.ObservedGeneration >= f.Generation}
	}
	if r.object == nil || r.available >= r.desired && !r.rolling() {
		return r, nil
	}
	var pods corev1.PodList
	if err := c.List(ctx, &pods, client.InNamespace(n.Namespace), client.MatchingLabels{workload.LabelName: workload.NodeName, workload.LabelInstance: n.Name}); err != nil {
		return nil, err
	}
	r.trouble = trouble(pods.Items)
	return r, nil
}

// trouble names what keeps a container from running, if something does that
// does not pass by itself.
func trouble(pods []corev1.Pod) string {
	var out []string
	for _, p := range pods {
		for _, s := range p.Status.ContainerStatuses {
			if s.State.Waiting == nil {
				continue
			}
			switch reason := s.State.Waiting.Reason; reason {
			case "ErrImagePull", "ImagePullBackOff", "InvalidImageName":
				out = append(out, fmt.Sprintf("the image %s cannot be pulled", s.Image))
			case "CrashLoopBackOff", "CreateContainerConfigError", "CreateContainerError", "RunContainerError":
				out = append(out, fmt.Sprintf("the pod %s is in %s", p.Name, reason))
			}
		}
	}
	if len(out) == 0 {
		return ""
	}
	slices.Sort(out)
	return " " + out[0] + "."
}

package controllers

import (
	"context"
	"fmt"
	"math/bits"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tributary-dev/tributary/api/v1alpha1"
	"github.com/tributary-dev/tributary/controllers/topology"
	"github.com/tributary-dev/tributary/controllers/workload"
	"github.com/tributary-dev/tributary/pkg/nodeconfig"
)

// volume is how far the volume of a node with persistent storage is.
type volume struct {
	claim    string
	class    string
	exists   bool
	bound    bool
	capacity resource.Quantity
	wanted   resource.Quantity
	refused  bool // the claim may not grow
}

// volume looks at a node's claim, and lets it grow to the size that is wanted:
// the claims of a StatefulSet cannot change, the claim itself can.
func (a *applier) volume(ctx context.Context, n *v1alpha1.ReplicationNode) (*volume, error) {
	if !topology.Persistent(n) || n.Spec.Storage.Size == nil {
		return nil, nil
	}
	v := &volume{claim: workload.ClaimName(n.Name), wanted: *n.Spec.Storage.Size}
	var claim corev1.PersistentVolumeClaim
	err := a.Get(ctx, client.ObjectKey{Namespace: n.Namespace, Name: v.claim}, &claim)
	if err != nil {
		return v, client.IgnoreNotFound(err)
	}
	if claim.Spec.StorageClassName != nil {
		v.class = *claim.Spec.StorageClassName
	}
	v.exists, v.bound = true, claim.Status.Phase == corev1.ClaimBound
	v.capacity = claim.Status.Capacity[corev1.ResourceStorage]
	asked := claim.Spec.Resources.Requests[corev1.ResourceStorage]
	if !v.bound || asked.Cmp(v.wanted) >= 0 {
		return v, nil
	}
	patch := fmt.Appendf(nil, `{"spec":{"resources":{"requests":{"storage":%q}}}}`, v.wanted.String())
	err = a.Patch(ctx, &claim, client.RawPatch("application/merge-patch+json", patch), fieldOwner)
	if apierrors.IsForbidden(err) || apierrors.IsInvalid(err) {
		v.refused = true
		return v, nil
	}
	return v, client.IgnoreNotFound(err)
}

// storage is the condition StorageHealthy.
func (v *volume) storage(o *observed) (status metav1.ConditionStatus, reason, message string) {
	switch {
	case !v.exists:
		return metav1.ConditionFalse, v1alpha1.ReasonVolumePending, fmt.Sprintf("The claim %s does not exist yet: it comes with the pod.", v.claim)
	case !v.bound:
		class := "the default storage class"
		if v.class != "" {
			class = "the storage class " + v.class
		}
		return metav1.ConditionFalse, v1alpha1.ReasonVolumePending, fmt.Sprintf("The claim %s is not bound: %s must be there, and make or have a volume of %s.", v.claim, class, v.wanted.String())
	case o != nil && o.store.Reason != "":
		mend := "see the node's log."
		if o.store.Reason == nodeconfig.StoreDiskFull {
			mend = "let the volume grow by spec.storage.size, or keep less: spec.storage.journal, spec.storage.tombstones. The node holds meanwhile, and loses nothing."
		}
		return metav1.ConditionFalse, o.store.Reason, fmt.Sprintf("%s Mend: %s", o.store.Message, mend)
	case v.refused:
		return metav1.ConditionTrue, v1alpha1.ReasonExpansionRefused, fmt.Sprintf("The claim %s stays at %s and cannot grow to %s: the storage class %s must have allowVolumeExpansion: true, and the volume must have been made by it.", v.claim, v.capacity.String(), v.wanted.String(), v.class)
	case v.capacity.Cmp(v.wanted) < 0:
		return metav1.ConditionTrue, v1alpha1.ReasonResizing, fmt.Sprintf("The volume of the claim %s grows from %s to %s.", v.claim, v.capacity.String(), v.wanted.String())
	}
	return metav1.ConditionTrue, v1alpha1.ReasonHealthy, "The store can be written, on a volume of the size wanted."
}

// round is a number of bytes rounded up to 1 Mi and to four binary digits, so
// that status changes seldom; nil for none.
func round(bytes int64) *resource.Quantity {
	if bytes <= 0 {
		return nil
	}
	step := int64(1) << max(20, bits.Len64(uint64(bytes))-4)
	return resource.NewQuantity((bytes+step-1)/step*step, resource.BinarySI)
}

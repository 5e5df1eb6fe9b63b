package workload

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	appsac "k8s.io/client-go/applyconfigurations/apps/v1"
	coreac "k8s.io/client-go/applyconfigurations/core/v1"

	"github.com/tributary-dev/tributary/api/v1alpha1"
)

// claimName is the name of the claim for a node's volume within its pod.
const claimName = "store"

// ClaimName is the name of the claim for a node's volume: the StatefulSet makes
// it for its only pod.
func ClaimName(node string) string { return claimName + "-" + node + "-0" }

func (b *builder) claim() *coreac.PersistentVolumeClaimApplyConfiguration {
	st := b.n.Spec.Storage
	spec := coreac.PersistentVolumeClaimSpec().
		WithAccessModes(corev1.ReadWriteOnce).WithVolumeMode(corev1.PersistentVolumeFilesystem).
		WithResources(coreac.VolumeResourceRequirements().WithRequests(corev1.ResourceList{corev1.ResourceStorage: *st.Size}))
	if st.StorageClassName != nil {
		spec.WithStorageClassName(*st.StorageClassName)
	}
	c := &coreac.PersistentVolumeClaimApplyConfiguration{Spec: spec}
	return c.WithAPIVersion("v1").WithKind("PersistentVolumeClaim").WithName(claimName).WithLabels(b.labels())
}

// retention says what becomes of the claim. A node that is suspended, and so
// scaled to nothing, always keeps it.
func (b *builder) retention() *appsac.StatefulSetPersistentVolumeClaimRetentionPolicyApplyConfiguration {
	deleted := appsv1.RetainPersistentVolumeClaimRetentionPolicyType
	if b.n.Spec.Storage.PersistentVolumeClaimRetentionPolicy == v1alpha1.DeletionDelete {
		deleted = appsv1.DeletePersistentVolumeClaimRetentionPolicyType
	}
	return appsac.StatefulSetPersistentVolumeClaimRetentionPolicy().WithWhenDeleted(deleted).
		WithWhenScaled(appsv1.RetainPersistentVolumeClaimRetentionPolicyType)
}

// KeepClaims takes over the claims of a StatefulSet that is there into a desired
// one, since they cannot change: a volume grows by its claim, not by these. It
// says false if only another StatefulSet can have the claims that are desired,
// as when a node turns to persistent storage.
func KeepClaims(desired, live *unstructured.Unstructured) bool {
	want, _, _ := unstructured.NestedSlice(desired.Object, "spec", "volumeClaimTemplates")
	have, _, _ := unstructured.NestedSlice(live.Object, "spec", "volumeClaimTemplates")
	if len(want) != len(have) {
		return false
	}
	if len(have) > 0 {
		for _, c := range have {
			unstructured.RemoveNestedField(c.(map[string]any), "status")
			unstructured.RemoveNestedField(c.(map[string]any), "metadata", "creationTimestamp")
		}
		_ = unstructured.SetNestedSlice(desired.Object, have, "spec", "volumeClaimTemplates") // it has a spec
	}
	return true
}

package workload

import (
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	batchac "k8s.io/client-go/applyconfigurations/batch/v1"
	coreac "k8s.io/client-go/applyconfigurations/core/v1"

	"github.com/tributary-dev/tributary/api/v1alpha1"
	"github.com/tributary-dev/tributary/controllers/topology"
)

const (
	// AnnotationDropSlots lists, with commas, the slots that must not outlive the
	// node. It stands on the StatefulSet, so that it is known when the sources
	// that say so are gone.
	AnnotationDropSlots = "tributary.dev/drop-slots"
	// CleanupName is the value of LabelName of what drops slots.
	CleanupName = "tributary-slot-cleanup"
)

// DropJobName is the name of the Job that drops the slots of a node.
func DropJobName(node string) string { return node + "-drop-slots" }

// DropSlots lists the slots that must not outlive a node.
func DropSlots(plan *topology.Node) (out []string) {
	for _, s := range plan.Sources {
		if s.Postgres != nil && s.Postgres.DropSlot {
			out = append(out, s.Postgres.Slot)
		}
	}
	slices.Sort(out)
	return out
}

// SlotsToDrop reads what DropSlots said when the StatefulSet was made.
func SlotsToDrop(s *appsv1.StatefulSet) []string {
	return strings.FieldsFunc(s.Annotations[AnnotationDropSlots], func(r rune) bool { return r == ',' })
}

// DropJob makes the Job that drops the slots of a node that is being deleted. It
// runs the node's own image with the configuration and the Secrets of its pods,
// as they are in its StatefulSet. It ends before limit, and each try before half
// of it, so that there is time to say why it failed.
func DropJob(n *v1alpha1.ReplicationNode, s *appsv1.StatefulSet, limit time.Duration) (*unstructured.Unstructured, error) {
	podLabels := map[string]string{LabelName: CleanupName, LabelInstance: n.Name, LabelManagedBy: ManagedBy}
	template := s.Spec.Template.Spec
	spec := as[coreac.PodSpecApplyConfiguration](&corev1.PodSpec{
		RestartPolicy: corev1.RestartPolicyNever, AutomountServiceAccountToken: new(false), EnableServiceLinks: new(false),
		ServiceAccountName: template.ServiceAccountName, SecurityContext: template.SecurityContext,
		NodeSelector: template.NodeSelector, Tolerations: template.Tolerations, ImagePullSecrets: template.ImagePullSecrets,
		Volumes: template.Volumes,
		Containers: []corev1.Container{{
			Name: "drop-slots", Image: template.Containers[0].Image, Command: []string{"/node"},
			Args:                     append([]string{"drop-slots", "--timeout", (limit / 2).String()}, SlotsToDrop(s)...),
			SecurityContext:          template.Containers[0].SecurityContext,
			TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
			VolumeMounts: slices.DeleteFunc(slices.Clone(template.Containers[0].VolumeMounts), func(m corev1.VolumeMount) bool {
				return m.Name == claimName
			}),
		}},
	})
	return object(batchac.Job(DropJobName(n.Name), n.Namespace).WithLabels(podLabels).WithOwnerReferences(owner(n)).
		WithSpec(batchac.JobSpec().WithBackoffLimit(2).WithActiveDeadlineSeconds(int64(limit.Seconds())).
			WithTemplate(coreac.PodTemplateSpec().WithLabels(podLabels).WithSpec(spec))))
}

// Finished says whether a Job has ended, and well.
func Finished(j *batchv1.Job) (done, well bool) {
	for _, c := range j.Status.Conditions {
		if c.Status == corev1.ConditionTrue && (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) {
			return true, c.Type == batchv1.JobComplete
		}
	}
	return false, false
}

// JobPods selects the pods of a Job that DropJob made.
func JobPods(node string) map[string]string {
	return map[string]string{LabelName: CleanupName, LabelInstance: node}
}

// NodePods selects the pods of a node.
func NodePods(node string) map[string]string { return selector(node) }

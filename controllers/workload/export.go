package workload

import (
	"encoding/json"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	batchac "k8s.io/client-go/applyconfigurations/batch/v1"
	metaac "k8s.io/client-go/applyconfigurations/meta/v1"
	networkac "k8s.io/client-go/applyconfigurations/networking/v1"

	"github.com/tributary-dev/tributary/api/v1alpha1"
	"github.com/tributary-dev/tributary/controllers/topology"
)

const (
	// ExportName is the value of LabelName of what runs an export.
	ExportName = "tributary-export"
	// LabelExport is the export that a Job runs.
	LabelExport = "tributary.dev/export"
	// resultFile is where a container leaves its last word.
	resultFile = corev1.TerminationMessagePathDefault

	defaultBackoff = 6
	// kept is how many Jobs of a schedule are kept that ended well, and that did not.
	kept = 1
)

// ExportObjects are what an export consists of.
type ExportObjects struct {
	// List in the order to apply it in. The last runs the export: a Job, a CronJob, or a
	// ReplicationNode.
	List []*unstructured.Unstructured
	// Job is the name of the only Job, of an export that runs once.
	Job string
}

// Workload is what runs the export.
func (o *ExportObjects) Workload() *unstructured.Unstructured { return o.List[len(o.List)-1] }

func exportOwner(e *v1alpha1.ArchiveExport) *metaac.OwnerReferenceApplyConfiguration {
	return metaac.OwnerReference().WithAPIVersion(v1alpha1.GroupVersion.String()).WithKind("ArchiveExport").
		WithName(e.Name).WithUID(e.UID).WithController(true).WithBlockOwnerDeletion(true)
}

// BuildExport makes all objects of an export whose plan is ready. Nothing of them is
// the archive, which stays when they go.
func BuildExport(e *v1alpha1.ArchiveExport, plan *topology.Export, o Options) (*ExportObjects, error) {
	if e.Spec.Mode == v1alpha1.ExportFollow {
		u, err := exportNode(e, plan.Spec)
		if err != nil {
			return nil, err
		}
		return &ExportObjects{List: []*unstructured.Unstructured{u}}, nil
	}
	b := builder{n: plan.Spec, plan: plan.Node, options: o, export: e}
	objects, err := b.files()
	if err != nil {
		return nil, err
	}
	out := &ExportObjects{}
	if e.Spec.Mode == v1alpha1.ExportScheduled {
		objects = append(objects, b.cronJob())
	} else {
		if out.Job, err = jobName(e); err != nil {
			return nil, err
		}
		objects = append(objects, batchac.Job(out.Job, e.Namespace).WithLabels(b.jobLabels()).WithOwnerReferences(exportOwner(e)).WithSpec(b.job()))
	}
	for _, ac := range objects {
		u, err := object(ac)
		if err != nil {
			return nil, err
		}
		out.List = append(out.List, u)
	}
	return out, nil
}

// jobName is another for each spec: a Job cannot change, and another export is to be
// written. Whether it is suspended makes no difference.
func jobName(e *v1alpha1.ArchiveExport) (string, error) {
	spec := e.Spec.DeepCopy()
	spec.Suspend = false
	data, err := json.Marshal(spec)
	return topology.ExportNodeName(e.Name) + "-" + short(data), err
}

// exportNode is the ReplicationNode of an export that goes on.
func exportNode(e *v1alpha1.ArchiveExport, n *v1alpha1.ReplicationNode) (*unstructured.Unstructured, error) {
	return ownedNode(exportOwner(e), map[string]string{LabelExport: e.Name}, n)
}

func (b *builder) jobLabels() map[string]string {
	m := b.labels()
	m[LabelExport] = b.export.Name
	return m
}

func (b *builder) job() *batchac.JobSpecApplyConfiguration {
	limit := int32(defaultBackoff)
	if b.export.Spec.BackoffLimit != nil {
		limit = *b.export.Spec.BackoffLimit
	}
	spec := batchac.JobSpec().WithBackoffLimit(limit).WithTemplate(b.pod())
	if b.export.Spec.Mode != v1alpha1.ExportScheduled {
		spec.WithSuspend(b.export.Spec.Suspend)
	}
	return spec
}

func (b *builder) cronJob() *batchac.CronJobApplyConfiguration {
	return batchac.CronJob(b.n.Name, b.n.Namespace).WithLabels(b.labels()).WithOwnerReferences(exportOwner(b.export)).
		WithSpec(batchac.CronJobSpec().WithSchedule(b.export.Spec.Schedule).WithSuspend(b.export.Spec.Suspend).
			WithConcurrencyPolicy(batchv1.ForbidConcurrent).WithSuccessfulJobsHistoryLimit(kept).WithFailedJobsHistoryLimit(kept).
			WithJobTemplate(batchac.JobTemplateSpec().WithLabels(b.jobLabels()).WithSpec(b.job())))
}

// exportPolicy lets in the manager, who asks for the status, and nobody else.
func (b *builder) exportPolicy() *networkac.NetworkPolicyApplyConfiguration {
	spec := networkac.NetworkPolicySpec().WithPodSelector(metaac.LabelSelector().WithMatchLabels(b.selector())).WithPolicyTypes(networkingv1.PolicyTypeIngress)
	if ns := b.options.ManagerNamespace; ns != "" {
		spec.WithIngress(networkac.NetworkPolicyIngressRule().WithPorts(tcp(portHTTP)).WithFrom(
			networkac.NetworkPolicyPeer().WithNamespaceSelector(metaac.LabelSelector().WithMatchLabels(map[string]string{corev1.LabelMetadataName: ns}))))
	}
	return networkac.NetworkPolicy(b.n.Name, b.n.Namespace).WithLabels(b.labels()).WithOwnerReferences(b.owner()).WithSpec(spec)
}

// JobsOf selects the Jobs of an export, and their pods.
func JobsOf(export string) map[string]string { return map[string]string{LabelExport: export} }

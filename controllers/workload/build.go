package workload

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/intstr"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	appsac "k8s.io/client-go/applyconfigurations/apps/v1"
	coreac "k8s.io/client-go/applyconfigurations/core/v1"
	metaac "k8s.io/client-go/applyconfigurations/meta/v1"
	networkac "k8s.io/client-go/applyconfigurations/networking/v1"
	policyac "k8s.io/client-go/applyconfigurations/policy/v1"

	"encoding/json"

	"github.com/tributary-dev/tributary/api/v1alpha1"
	"github.com/tributary-dev/tributary/controllers/topology"
	"github.com/tributary-dev/tributary/pkg/nodeconfig"
)

// Labels and annotations of the objects.
const (
	LabelName      = "app.kubernetes.io/name"
	LabelInstance  = "app.kubernetes.io/instance"
	LabelManagedBy = "app.kubernetes.io/managed-by"
	// NodeName is the value of LabelName, and ManagedBy of LabelManagedBy.
	NodeName  = "tributary-node"
	ManagedBy = "tributary"

	// AnnotationConfigHash is the hash of the fixed configuration that a pod
	// runs with.
	AnnotationConfigHash = "tributary.dev/config-hash"
	// AnnotationDesiredHash is the hash of an object as it was last applied.
	AnnotationDesiredHash = "tributary.dev/desired-hash"
)

// Options are what the manager adds.
type Options struct {
	// NodeImage runs nodes that name no image of their own.
	NodeImage string
	// ManagerNamespace may ask nodes for their status.
	ManagerNamespace string
}

// Objects are what a node consists of.
type Objects struct {
	// List in the order to apply it in.
	List []*unstructured.Unstructured
	// ConfigHash of what of the configuration takes effect as a pod starts.
	ConfigHash string
	// Image that the node runs.
	Image string
	// Selector of the pods.
	Selector string
}

// Workload is what runs the pods.
func (o *Objects) Workload() *unstructured.Unstructured { return o.List[len(o.List)-1] }

// Rolls says whether an object is of what the pods run with: the workload, and the
// configuration that they read as they start.
func (o *Objects) Rolls(u *unstructured.Unstructured) bool {
	return u == o.Workload() || u.GetKind() == "ConfigMap" && u.GetName() == StaticName(o.Workload().GetName())
}

// StaticName is the name of the ConfigMap with the static configuration of a
// node, WiringName of the one with its wiring.
func StaticName(node string) string { return node + "-static" }

// WiringName is the name of the ConfigMap with a node's wiring.
func WiringName(node string) string { return node + "-wiring" }

// Build makes all objects of a node. The plan's Action must be Apply.
func Build(n *v1alpha1.ReplicationNode, plan *topology.Node, o Options) (*Objects, error) {
	b := builder{n: n, plan: plan, options: o}
	objects, err := b.files()
	if err != nil {
		return nil, err
	}
	out := &Objects{
		ConfigHash: b.hash, Image: b.image(),
		Selector: metav1.FormatLabelSelector(&metav1.LabelSelector{MatchLabels: selector(n.Name)}),
	}
	for _, ac := range append(objects, b.service(), b.budget(), b.workload()) {
		u, err := object(ac)
		if err != nil {
			return nil, err
		}
		out.List = append(out.List, u)
	}
	return out, nil
}

// files are the objects that the pods are started with, and the policy of who may
// reach them.
func (b *builder) files() ([]any, error) {
	config := Config(b.n, b.plan, Layout{})
	static, err := config.Marshal()
	if err != nil {
		return nil, err
	}
	fixed, err := config.Fixed().Marshal()
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(fixed)
	b.hash = hex.EncodeToString(sum[:8])
	wiring, err := b.wiring()
	if err != nil {
		return nil, err
	}
	account := coreac.ServiceAccount(b.n.Name, b.n.Namespace).WithLabels(b.labels()).WithOwnerReferences(b.owner()).WithAutomountServiceAccountToken(false)
	if t := b.n.Spec.PodTemplate; t != nil && len(t.ServiceAccountAnnotations) > 0 {
		account.WithAnnotations(t.ServiceAccountAnnotations)
	}
	policy := b.networkPolicy()
	if b.export != nil {
		policy = b.exportPolicy()
	}
	return []any{account, b.configMap(StaticName(b.n.Name), staticFile, static), wiring, policy}, nil
}

// BuildWiring makes the ConfigMap with the wiring alone, for a plan whose
// Action is Rewire.
func BuildWiring(n *v1alpha1.ReplicationNode, plan *topology.Node) (*unstructured.Unstructured, error) {
	b := builder{n: n, plan: plan}
	wiring, err := b.wiring()
	if err != nil {
		return nil, err
	}
	return object(wiring)
}

// ReadWiring reads the wiring out of a node's ConfigMap.
func ReadWiring(cm *corev1.ConfigMap) (*nodeconfig.Wiring, error) {
	return nodeconfig.ParseWiring(fmt.Sprintf("ConfigMap %s/%s, %s", cm.Namespace, cm.Name, wiringFile), []byte(cm.Data[wiringFile]))
}

// object turns an apply configuration into what is sent, with its hash.
func object(ac any) (*unstructured.Unstructured, error) {
	data, err := json.Marshal(ac)
	if err != nil {
		return nil, err
	}
	u := &unstructured.Unstructured{}
	if err := utiljson.Unmarshal(data, &u.Object); err != nil {
		return nil, err
	}
	sum := sha256.Sum256(data)
	annotations := u.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[AnnotationDesiredHash] = hex.EncodeToString(sum[:8])
	u.SetAnnotations(annotations)
	return u, nil
}

type builder struct {
	n       *v1alpha1.ReplicationNode
	plan    *topology.Node
	options Options
	hash    string
	// export that the node runs, and ends; nil for one that goes on.
	export *v1alpha1.ArchiveExport
}

func (b *builder) owner() *metaac.OwnerReferenceApplyConfiguration {
	if b.export != nil {
		return exportOwner(b.export)
	}
	return owner(b.n)
}

func (b *builder) selector() map[string]string {
	m := selector(b.n.Name)
	if b.export != nil {
		m[LabelName] = ExportName
	}
	return m
}

func (b *builder) labels() map[string]string {
	m := b.selector()
	m[LabelManagedBy] = ManagedBy
	return m
}

func selector(node string) map[string]string {
	return map[string]string{LabelName: NodeName, LabelInstance: node}
}

func owner(n *v1alpha1.ReplicationNode) *metaac.OwnerReferenceApplyConfiguration {
	return metaac.OwnerReference().WithAPIVersion(v1alpha1.GroupVersion.String()).WithKind("ReplicationNode").
		WithName(n.Name).WithUID(n.UID).WithController(true).WithBlockOwnerDeletion(true)
}

func (b *builder) image() string {
	if b.n.Spec.Image != "" {
		return b.n.Spec.Image
	}
	return b.options.NodeImage
}

func (b *builder) configMap(name, file string, data []byte) *coreac.ConfigMapApplyConfiguration {
	return coreac.ConfigMap(name, b.n.Namespace).WithLabels(b.labels()).WithOwnerReferences(b.owner()).
		WithData(map[string]string{file: string(data)})
}

func (b *builder) wiring() (*coreac.ConfigMapApplyConfiguration, error) {
	data, err := b.plan.Wiring.Config().Marshal()
	if err != nil {
		return nil, err
	}
	return b.configMap(WiringName(b.n.Name), wiringFile, data), nil
}

func (b *builder) service() *coreac.ServiceApplyConfiguration {
	return coreac.Service(b.n.Name, b.n.Namespace).WithLabels(b.labels()).WithOwnerReferences(b.owner()).
		WithSpec(coreac.ServiceSpec().WithClusterIP(corev1.ClusterIPNone).WithSelector(b.selector()).WithPorts(
			coreac.ServicePort().WithName("grpc-replication").WithProtocol(corev1.ProtocolTCP).WithAppProtocol("grpc").
				WithPort(topology.Port(b.n)).WithTargetPort(intstr.FromString(portReplication)),
			coreac.ServicePort().WithName("http").WithProtocol(corev1.ProtocolTCP).WithAppProtocol("http").
				WithPort(nodeconfig.DefaultHTTPPort).WithTargetPort(intstr.FromString(portHTTP)),
		))
}

// budget lets one pod of the node be evicted at a time.
func (b *builder) budget() *policyac.PodDisruptionBudgetApplyConfiguration {
	return policyac.PodDisruptionBudget(b.n.Name, b.n.Namespace).WithLabels(b.labels()).WithOwnerReferences(b.owner()).
		WithSpec(policyac.PodDisruptionBudgetSpec().WithMaxUnavailable(intstr.FromInt32(1)).
			WithSelector(metaac.LabelSelector().WithMatchLabels(b.selector())))
}

// networkPolicy lets in whoever is in the node's namespace or in one that may
// read from it, and the manager, who asks for the status.
func (b *builder) networkPolicy() *networkac.NetworkPolicyApplyConfiguration {
	readers := networkac.NetworkPolicyIngressRule().WithFrom(networkac.NetworkPolicyPeer().WithPodSelector(metaac.LabelSelector())).
		WithPorts(tcp(portReplication), tcp(portHTTP))
	if s := b.n.Spec.Serve; s != nil {
		for _, g := range s.AllowedConsumers {
			namespaces := metaac.LabelSelector()
			if g.Namespace != "*" {
				namespaces.WithMatchLabels(map[string]string{corev1.LabelMetadataName: g.Namespace})
			}
			readers.WithFrom(networkac.NetworkPolicyPeer().WithNamespaceSelector(namespaces))
		}
	}
	spec := networkac.NetworkPolicySpec().WithPodSelector(metaac.LabelSelector().WithMatchLabels(b.selector())).
		WithPolicyTypes(networkingv1.PolicyTypeIngress).WithIngress(readers)
	if ns := b.options.ManagerNamespace; ns != "" {
		spec.WithIngress(networkac.NetworkPolicyIngressRule().WithPorts(tcp(portHTTP)).WithFrom(
			networkac.NetworkPolicyPeer().WithNamespaceSelector(metaac.LabelSelector().WithMatchLabels(map[string]string{corev1.LabelMetadataName: ns}))))
	}
	return networkac.NetworkPolicy(b.n.Name, b.n.Namespace).WithLabels(b.labels()).WithOwnerReferences(b.owner()).WithSpec(spec)
}

func tcp(port string) *networkac.NetworkPolicyPortApplyConfiguration {
	return networkac.NetworkPolicyPort().WithProtocol(corev1.ProtocolTCP).WithPort(intstr.FromString(port))
}

// workload is what runs the pods: a StatefulSet where there may be at most one
// pod of an identity at a time, else a Deployment.
func (b *builder) workload() any {
	replicas := int32(1)
	switch {
	case b.n.Spec.Suspend:
		replicas = 0
	case b.n.Spec.Replicas != nil:
		replicas = *b.n.Spec.Replicas
	}
	match := metaac.LabelSelector().WithMatchLabels(b.selector())
	if b.plan.Single {
		// Parallel, since an ordered StatefulSet never replaces a pod that has not
		// become ready, whatever is mended in its configuration.
		spec := appsac.StatefulSetSpec().WithReplicas(replicas).WithServiceName(b.n.Name).
			WithPodManagementPolicy(appsv1.ParallelPodManagement).
			WithUpdateStrategy(appsac.StatefulSetUpdateStrategy().WithType(appsv1.RollingUpdateStatefulSetStrategyType)).
			WithSelector(match).WithTemplate(b.pod())
		if topology.Persistent(b.n) {
			spec.WithVolumeClaimTemplates(b.claim()).WithPersistentVolumeClaimRetentionPolicy(b.retention())
		}
		sts := appsac.StatefulSet(b.n.Name, b.n.Namespace).WithLabels(b.labels()).WithOwnerReferences(b.owner()).WithSpec(spec)
		if slots := DropSlots(b.plan); len(slots) > 0 {
			sts.WithAnnotations(map[string]string{AnnotationDropSlots: strings.Join(slots, ",")})
		}
		return sts
	}
	// A pod is added before one is taken away, so that readers have a place to
	// move to.
	rolling := appsac.RollingUpdateDeployment().WithMaxSurge(intstr.FromInt32(1)).WithMaxUnavailable(intstr.FromInt32(0))
	return appsac.Deployment(b.n.Name, b.n.Namespace).WithLabels(b.labels()).WithOwnerReferences(b.owner()).
		WithSpec(appsac.DeploymentSpec().WithReplicas(replicas).WithSelector(match).WithTemplate(b.pod()).
			WithStrategy(appsac.DeploymentStrategy().WithType("RollingUpdate").WithRollingUpdate(rolling)))
}

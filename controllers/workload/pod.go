package workload

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"path"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	coreac "k8s.io/client-go/applyconfigurations/core/v1"
	metaac "k8s.io/client-go/applyconfigurations/meta/v1"

	"github.com/tributary-dev/tributary/controllers/topology"
	"github.com/tributary-dev/tributary/pkg/nodeconfig"
)

const (
	portReplication = "grpc"
	portHTTP        = "http"
	nodeUser        = 65532

	// preStop gives the Service's addresses time to lose the pod before it asks
	// its readers to move; margin is what a pod may take beyond draining.
	preStopSeconds = 2
	marginSeconds  = 10

	// openSeconds is how long a node may take to open its store.
	openSeconds = 600
)

func (b *builder) pod() *coreac.PodTemplateSpecApplyConfiguration {
	podLabels, annotations := map[string]string{}, map[string]string{}
	template := b.n.Spec.PodTemplate
	if template != nil {
		maps.Copy(podLabels, template.Labels)
		maps.Copy(annotations, template.Annotations)
	}
	maps.Copy(podLabels, b.labels())
	annotations[AnnotationConfigHash] = b.hash

	volumes, mounts := b.volumes()
	if topology.Persistent(b.n) {
		mounts = append(mounts, coreac.VolumeMount().WithName(claimName).WithMountPath(volumeDir))
	}
	spec := coreac.PodSpec().
		WithServiceAccountName(b.n.Name).
		WithAutomountServiceAccountToken(false).
		WithEnableServiceLinks(false).
		WithTerminationGracePeriodSeconds(b.gracePeriod()).
		WithSecurityContext(podSecurity()).
		WithVolumes(volumes...).
		WithContainers(b.container(mounts))
	if b.export != nil {
		spec.WithRestartPolicy(corev1.RestartPolicyNever) // each try leaves its last word
		podLabels[LabelExport] = b.export.Name
	}
	if template != nil {
		spec.WithNodeSelector(template.NodeSelector)
		for _, s := range template.ImagePullSecrets {
			spec.WithImagePullSecrets(coreac.LocalObjectReference().WithName(s.Name))
		}
		for _, t := range template.Tolerations {
			spec.WithTolerations(as[coreac.TolerationApplyConfiguration](t))
		}
	}
	if template != nil && template.Affinity != nil {
		spec.WithAffinity(as[coreac.AffinityApplyConfiguration](template.Affinity))
	} else {
		spec.WithTopologySpreadConstraints(coreac.TopologySpreadConstraint().
			WithMaxSkew(1).WithTopologyKey(corev1.LabelHostname).WithWhenUnsatisfiable(corev1.ScheduleAnyway).
			WithLabelSelector(metaac.LabelSelector().WithMatchLabels(b.selector())))
	}
	return coreac.PodTemplateSpec().WithLabels(podLabels).WithAnnotations(annotations).WithSpec(spec)
}

// podSecurity and containerSecurity are what the standard "restricted" asks for.
// The volume's files are given to the group of the node's user, once.
func podSecurity() *coreac.PodSecurityContextApplyConfiguration {
	return coreac.PodSecurityContext().
		WithRunAsNonRoot(true).WithRunAsUser(nodeUser).WithRunAsGroup(nodeUser).
		WithFSGroup(nodeUser).WithFSGroupChangePolicy(corev1.FSGroupChangeOnRootMismatch).
		WithSeccompProfile(coreac.SeccompProfile().WithType(corev1.SeccompProfileTypeRuntimeDefault))
}

func containerSecurity() *coreac.SecurityContextApplyConfiguration {
	return coreac.SecurityContext().
		WithAllowPrivilegeEscalation(false).WithReadOnlyRootFilesystem(true).WithRunAsNonRoot(true).
		WithCapabilities(coreac.Capabilities().WithDrop("ALL")).
		WithSeccompProfile(coreac.SeccompProfile().WithType(corev1.SeccompProfileTypeRuntimeDefault))
}

func (b *builder) container(mounts []*coreac.VolumeMountApplyConfiguration) *coreac.ContainerApplyConfiguration {
	field := func(name, path string) *coreac.EnvVarApplyConfiguration {
		return coreac.EnvVar().WithName(name).WithValueFrom(coreac.EnvVarSource().WithFieldRef(coreac.ObjectFieldSelector().WithAPIVersion("v1").WithFieldPath(path)))
	}
	probe := func(at string) *coreac.ProbeApplyConfiguration {
		return coreac.Probe().WithHTTPGet(coreac.HTTPGetAction().WithPath(at).WithPort(intstr.FromString(portHTTP)).WithScheme(corev1.URISchemeHTTP)).
			WithTimeoutSeconds(3)
	}
	c := coreac.Container().WithName("node").WithImage(b.image()).
		WithCommand("/node").WithArgs("--config", path.Join(staticDir, staticFile)).
		WithPorts(
			coreac.ContainerPort().WithName(portReplication).WithProtocol(corev1.ProtocolTCP).WithContainerPort(topology.Port(b.n)),
			coreac.ContainerPort().WithName(portHTTP).WithProtocol(corev1.ProtocolTCP).WithContainerPort(nodeconfig.DefaultHTTPPort),
		).
		WithEnv(field("POD_NAME", "metadata.name"), field("POD_NAMESPACE", "metadata.namespace")).
		WithVolumeMounts(mounts...).
		WithLivenessProbe(probe("/healthz").WithPeriodSeconds(10).WithFailureThreshold(6)).
		WithReadinessProbe(probe("/readyz").WithPeriodSeconds(2).WithFailureThreshold(3)).
		WithLifecycle(coreac.Lifecycle().WithPreStop(coreac.LifecycleHandler().WithSleep(coreac.SleepAction().WithSeconds(preStopSeconds)))).
		WithSecurityContext(containerSecurity())
	if env := b.profileEnv(); env != nil {
		c.WithEnv(env)
	}
	if b.export != nil {
		c.WithArgs("--archive-once", "--result", resultFile).WithTerminationMessagePath(resultFile).WithTerminationMessagePolicy(corev1.TerminationMessageFallbackToLogsOnError)
		c.ReadinessProbe, c.Lifecycle = nil, nil // it serves nobody
	}
	if topology.Persistent(b.n) { // a large store takes a while to open
		c.WithStartupProbe(probe("/healthz").WithPeriodSeconds(2).WithFailureThreshold(openSeconds / 2))
	}
	if r := b.n.Spec.Resources; r != nil {
		c.WithResources(as[coreac.ResourceRequirementsApplyConfiguration](r))
		if limit, ok := r.Limits[corev1.ResourceMemory]; ok { // the collector works harder before the kernel kills
			c.WithEnv(coreac.EnvVar().WithName("GOMEMLIMIT").WithValue(strconv.FormatInt(limit.Value()/10*9, 10)))
		}
	}
	return c
}

func (b *builder) gracePeriod() int64 {
	drain := nodeconfig.DefaultDrainTimeout
	if b.n.Spec.DrainTimeout != nil {
		drain = b.n.Spec.DrainTimeout.Duration
	}
	return int64(math.Ceil(drain.Seconds())) + preStopSeconds + marginSeconds
}

// volumes are the two ConfigMaps, scratch space, and of each Secret the keys
// that are used.
func (b *builder) volumes() (volumes []*coreac.VolumeApplyConfiguration, mounts []*coreac.VolumeMountApplyConfiguration) {
	add := func(v *coreac.VolumeApplyConfiguration, name, at string, readOnly bool) {
		volumes = append(volumes, v.WithName(name))
		m := coreac.VolumeMount().WithName(name).WithMountPath(at)
		if readOnly {
			m.WithReadOnly(true)
		}
		mounts = append(mounts, m)
	}
	configMap := func(name string) *coreac.VolumeApplyConfiguration {
		return coreac.Volume().WithConfigMap(coreac.ConfigMapVolumeSource().WithName(name).WithDefaultMode(0o444))
	}
	add(configMap(StaticName(b.n.Name)), "static", staticDir, true)
	add(configMap(WiringName(b.n.Name)), "wiring", wiringDir, true)
	scratch := coreac.EmptyDirVolumeSource()
	if st := b.n.Spec.Storage; st != nil && st.ScratchSize != nil {
		scratch.WithSizeLimit(*st.ScratchSize)
	}
	add(coreac.Volume().WithEmptyDir(scratch), "scratch", scratchDir, false)
	for i, use := range b.plan.Secrets {
		secret := coreac.SecretVolumeSource().WithSecretName(use.Name).WithDefaultMode(0o440)
		for _, k := range use.Keys {
			secret.WithItems(coreac.KeyToPath().WithKey(k).WithPath(k))
		}
		add(coreac.Volume().WithSecret(secret), fmt.Sprintf("secret-%d", i), mountedAt(use.Name), true)
	}
	for i, v := range b.archiveVolumes() {
		add(v.volume, fmt.Sprintf("archive-%d", i), v.at, v.readOnly)
	}
	return volumes, mounts
}

// as turns a typed value into its apply configuration, which has the same
// fields.
func as[T any](v any) *T {
	out := new(T)
	data, err := json.Marshal(v)
	if err == nil {
		err = json.Unmarshal(data, out)
	}
	if err != nil { // both types come from one definition
		panic(fmt.Sprintf("%T is not a %T: %v", v, out, err))
	}
	return out
}

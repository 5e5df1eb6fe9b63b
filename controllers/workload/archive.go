package workload

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"path"

	coreac "k8s.io/client-go/applyconfigurations/core/v1"

	"github.com/tributary-dev/tributary/api/v1alpha1"
	"github.com/tributary-dev/tributary/controllers/topology"
	"github.com/tributary-dev/tributary/pkg/nodeconfig"
)

const (
	archivesDir = "/var/lib/tributary-archives"
	tokensDir   = "/var/run/tributary/tokens"
	tokenFile   = "token"
	// DefaultAudience is that of tokens for roles.
	DefaultAudience = "sts.amazonaws.com"
	tokenSeconds    = 3600
)

// volumeOf names the volume of a local store, within the folder of all. Files that
// keys of a ConfigMap are given make it another volume.
func volumeOf(s *v1alpha1.LocalStore) string {
	if s.Claim != nil {
		return "claim/" + s.Claim.Name
	}
	if len(s.ConfigMap.Items) == 0 {
		return "configmap/" + s.ConfigMap.Name
	}
	items, _ := json.Marshal(s.ConfigMap.Items) // it has strings alone
	return "configmap/" + s.ConfigMap.Name + "-" + short(items)
}

func short(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:4])
}

func tokenDir(w *v1alpha1.WebIdentity) string {
	return path.Join(tokensDir, short([]byte(audience(w))))
}

func audience(w *v1alpha1.WebIdentity) string {
	if w.Audience == "" {
		return DefaultAudience
	}
	return w.Audience
}

func archiveStore(a *v1alpha1.ArchiveLocation, l Layout) nodeconfig.ArchiveStore {
	out := nodeconfig.ArchiveStore{KeyPrefix: a.KeyPrefix}
	for _, f := range a.Formats {
		out.Formats = append(out.Formats, string(f))
	}
	if s := a.Store.Local; s != nil {
		out.Store, out.StoreConfig.Path = nodeconfig.StoreLocal, path.Join(l.VolumeDir(volumeOf(s)), s.Path)
		return out
	}
	s := a.Store.S3
	out.Store = nodeconfig.StoreS3
	out.StoreConfig = nodeconfig.StoreConfig{
		Bucket: s.Bucket, Prefix: s.Prefix, Region: s.Region, Endpoint: s.Endpoint, PathStyle: s.PathStyle,
		CAFile: l.file(s.CASecretRef, topology.SecretCA), Encryption: s.Encryption, KMSKey: s.KMSKey, SingleWriter: s.SingleWriter,
	}
	if c := s.Credentials; c != nil {
		r := &nodeconfig.StoreCredentials{
			AccessKeyFile: l.file(c.SecretRef, topology.SecretAccessKey), SecretKeyFile: l.file(c.SecretRef, topology.SecretSecretKey),
			RoleARN: c.RoleARN, RoleSessionName: c.RoleSessionName, ExternalID: c.ExternalID, STSEndpoint: c.STSEndpoint,
		}
		if c.Profile != nil {
			r.Profile = c.Profile.Name
		}
		if c.WebIdentity != nil {
			r.WebIdentityTokenFile = path.Join(tokenDir(c.WebIdentity), tokenFile)
		}
		out.StoreConfig.Credentials = r
	}
	return out
}

func archiveSource(s *v1alpha1.ArchiveSourceSpec, l Layout) *nodeconfig.ArchiveSource {
	out := &nodeconfig.ArchiveSource{
		ArchiveStore: archiveStore(&s.ArchiveLocation, l), Tables: tables(s.Tables), Group: s.Group, Follow: s.Follow, Comparator: string(s.Comparator),
	}
	if s.PollInterval != nil {
		out.PollInterval = s.PollInterval.Duration
	}
	return out
}

func nodeArchive(a *v1alpha1.NodeArchive, l Layout) nodeconfig.Archive {
	out := nodeconfig.Archive{Name: a.Name, ArchiveStore: archiveStore(&a.ArchiveLocation, l), Tables: tables(a.Tables), Group: a.Group}
	if a.Write != nil {
		out.Write = archiveWrite(a.Write)
	}
	return out
}

func archiveWrite(w *v1alpha1.ArchiveWrite) *nodeconfig.ArchiveWrite {
	out := &nodeconfig.ArchiveWrite{
		MaxDiffBytes: size(w.MaxDiffBytes), History: string(w.History), Writer: w.Writer, TakeOver: w.TakeOver, CompressionLevel: int(w.CompressionLevel),
	}
	if w.Interval != nil {
		out.Interval = w.Interval.Duration
	}
	if r := w.Rebase; r != nil {
		out.Rebase = nodeconfig.ArchiveRebase{
			DiffBytes: size(r.DiffBytes), Fraction: float64(r.FractionPercent) / 100, Churn: float64(r.ChurnPercent) / 100, MaxDiffs: int(r.MaxDiffs),
		}
		if r.MaxAge != nil {
			out.Rebase.MaxAge = r.MaxAge.Duration
		}
		if r.MinInterval != nil {
			out.Rebase.MinInterval = r.MinInterval.Duration
		}
	}
	if r := w.Retention; r != nil {
		out.Retention.Generations = int(r.Generations)
		if r.Age != nil {
			out.Retention.Age = r.Age.Duration
		}
		if r.Grace != nil {
			out.Retention.Grace = r.Grace.Duration
		}
	}
	return out
}

// archiveVolume is what is mounted for archives.
type archiveVolume struct {
	at       string
	volume   *coreac.VolumeApplyConfiguration
	readOnly bool
}

// archiveVolumes are the volumes of local stores and the tokens of roles, each once. A
// claim is mounted read only where nothing writes to it.
func (b *builder) archiveVolumes() (out []*archiveVolume) {
	at := map[string]*archiveVolume{}
	add := func(path string, writes bool, v func() *coreac.VolumeApplyConfiguration) {
		if at[path] == nil {
			at[path] = &archiveVolume{at: path, volume: v(), readOnly: true}
			out = append(out, at[path])
		}
		at[path].readOnly = at[path].readOnly && !writes
	}
	one := func(s *v1alpha1.ArchiveStore, writes bool) {
		if l := s.Local; l != nil {
			add(path.Join(archivesDir, volumeOf(l)), writes, func() *coreac.VolumeApplyConfiguration { return localVolume(l) })
		} else if c := s.S3.Credentials; c != nil && c.WebIdentity != nil {
			add(tokenDir(c.WebIdentity), false, func() *coreac.VolumeApplyConfiguration {
				return coreac.Volume().WithProjected(coreac.ProjectedVolumeSource().WithDefaultMode(0o440).WithSources(coreac.VolumeProjection().WithServiceAccountToken(
					coreac.ServiceAccountTokenProjection().WithAudience(audience(c.WebIdentity)).WithExpirationSeconds(tokenSeconds).WithPath(tokenFile))))
			})
		}
	}
	for i := range b.n.Spec.Archives {
		a := &b.n.Spec.Archives[i]
		one(&a.Store, a.Write != nil)
	}
	for _, s := range b.plan.Sources {
		if s.Archive != nil {
			one(&s.Archive.Store, false)
		}
	}
	return out
}

func localVolume(s *v1alpha1.LocalStore) *coreac.VolumeApplyConfiguration {
	if s.Claim != nil {
		return coreac.Volume().WithPersistentVolumeClaim(coreac.PersistentVolumeClaimVolumeSource().WithClaimName(s.Claim.Name))
	}
	c := coreac.ConfigMapVolumeSource().WithName(s.ConfigMap.Name).WithDefaultMode(0o444)
	for _, i := range s.ConfigMap.Items {
		c.WithItems(coreac.KeyToPath().WithKey(i.Key).WithPath(i.Path))
	}
	return coreac.Volume().WithConfigMap(c)
}

// profileEnv says where the profiles of stores are.
func (b *builder) profileEnv() *coreac.EnvVarApplyConfiguration {
	secret, err := topology.ProfileSecret(b.plan.Stores(b.n))
	if err != nil || secret == "" {
		return nil
	}
	return coreac.EnvVar().WithName("AWS_CONFIG_FILE").WithValue(path.Join(mountedAt(secret), topology.SecretConfig))
}

package controllers

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/tributary-dev/tributary/api/v1alpha1"
	"github.com/tributary-dev/tributary/controllers/topology"
	"github.com/tributary-dev/tributary/controllers/workload"
)

// topologyRequest is the one request of the Topology reconciler: whatever
// changes, everything is planned anew.
var topologyRequest = reconcile.Request{NamespacedName: types.NamespacedName{Name: "topology"}}

// topologyReconciler makes the plan.
type topologyReconciler struct {
	client.Client
	board   *board
	secrets *secretReader

	// last is the wiring that each node has. It is read from ConfigMaps once,
	// and then kept here, where it is never behind.
	last map[topology.Key]topology.Wiring
	uids map[topology.Key]types.UID
}

const (
	// secretsRecheck is how soon a missing Secret is looked for again, and
	// secretsRefresh how soon one that is there.
	secretsRecheck = 10 * time.Second
	secretsRefresh = time.Minute
)

func (r *topologyReconciler) setup(mgr ctrl.Manager) error {
	all := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request { return []reconcile.Request{topologyRequest} })
	relevant := builder.WithPredicates(predicate.Or(predicate.GenerationChangedPredicate{}, predicate.LabelChangedPredicate{}, deletionStarted))
	return ctrl.NewControllerManagedBy(mgr).Named("topology").
		Watches(&v1alpha1.ReplicationNode{}, all, relevant).
		Watches(&v1alpha1.PostgresSource{}, all, relevant).
		Watches(&v1alpha1.FanoutSource{}, all, relevant).
		Watches(&v1alpha1.ArchiveSource{}, all, relevant).
		Watches(&v1alpha1.ArchiveExport{}, all, relevant).
		Watches(&v1alpha1.ReplicationMesh{}, all, relevant).
		Watches(&v1alpha1.RelayTree{}, all, relevant).
		WatchesRawSource(r.board.topology.source()).
		Complete(r)
}

// deletionStarted passes updates that mark an object for deletion; they do not
// change its generation in every case.
var deletionStarted = predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
	return e.ObjectOld.GetDeletionTimestamp().IsZero() && !e.ObjectNew.GetDeletionTimestamp().IsZero()
}}

// Reconcile plans everything.
func (r *topologyReconciler) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	start := time.Now()
	in, err := r.inputs(ctx)
	if err != nil {
		return reconcile.Result{}, err
	}
	var unread error // a Secret that cannot be read holds up nobody else
	in.Secrets, unread = r.secrets.read(ctx, usedSecrets(in))
	plan := topology.Compute(in)
	r.remember(plan)
	r.board.setPlan(plan)
	planSeconds.Observe(time.Since(start).Seconds())
	countNodes(plan)
	if unread != nil {
		return reconcile.Result{}, unread
	}
	return reconcile.Result{RequeueAfter: recheck(plan)}, nil
}

func (r *topologyReconciler) inputs(ctx context.Context) (in topology.Inputs, err error) {
	var nodes v1alpha1.ReplicationNodeList
	var postgres v1alpha1.PostgresSourceList
	var fanout v1alpha1.FanoutSourceList
	var meshes v1alpha1.ReplicationMeshList
	var trees v1alpha1.RelayTreeList
	var archives v1alpha1.ArchiveSourceList
	var exports v1alpha1.ArchiveExportList
	for _, l := range []client.ObjectList{&nodes, &postgres, &fanout, &archives, &exports, &meshes, &trees} {
		if err := r.List(ctx, l); err != nil {
			return in, fmt.Errorf("cannot list what the topology is made of: %w", err)
		}
	}
	if r.last == nil {
		if err := r.readWirings(ctx, nodes.Items); err != nil {
			return in, err
		}
	}
	relays := r.board.relayReports()
	for i := range nodes.Items { // a node of the same name is another node
		if n := &nodes.Items[i]; r.uids[client.ObjectKeyFromObject(n)] != n.UID {
			delete(r.last, client.ObjectKeyFromObject(n))
			delete(relays, client.ObjectKeyFromObject(n))
		}
	}
	return topology.Inputs{
		Nodes: nodes.Items, PostgresSources: postgres.Items, FanoutSources: fanout.Items, ArchiveSources: archives.Items, Exports: exports.Items, Meshes: meshes.Items, Trees: trees.Items,
		Last: r.last, Reported: r.board.reported(nodes.Items), Relays: relays,
	}, nil
}

// readWirings reads the wirings that an earlier manager left.
func (r *topologyReconciler) readWirings(ctx context.Context, nodes []v1alpha1.ReplicationNode) error {
	last, uids := map[topology.Key]topology.Wiring{}, map[topology.Key]types.UID{}
	for i := range nodes {
		n := &nodes[i]
		k := client.ObjectKeyFromObject(n)
		uids[k] = n.UID
		var cm corev1.ConfigMap
		err := r.Get(ctx, types.NamespacedName{Namespace: n.Namespace, Name: workload.WiringName(n.Name)}, &cm)
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("cannot read the wiring of %s: %w", k, err)
		}
		if err == nil && metav1.IsControlledBy(&cm, n) {
			if w, err := workload.ReadWiring(&cm); err == nil { // else it is made anew
				last[k] = topology.WiringFromConfig(w)
				continue
			}
		}
		if e := n.Status.WiringEpoch; e > 0 {
			last[k] = topology.Wiring{Epoch: uint64(e)}
		}
	}
	r.last, r.uids = last, uids
	return nil
}

func (r *topologyReconciler) remember(p topology.Plan) {
	last, uids := map[topology.Key]topology.Wiring{}, map[topology.Key]types.UID{}
	for k, n := range p.Nodes {
		uids[k] = n.UID
		if w, ok := r.last[k]; ok {
			last[k] = w
		}
		if n.Action != topology.Hold {
			last[k] = n.Wiring
		}
	}
	r.last, r.uids = last, uids
}

// recheck is when to plan again for what no watch tells: Secrets, which are
// read and not watched.
func recheck(p topology.Plan) time.Duration {
	var after time.Duration
	missing := func(resolved topology.Condition) bool { return resolved.Reason == v1alpha1.ReasonSecretNotFound }
	for _, s := range p.Nodes {
		if missing(s.Condition(v1alpha1.ConditionResolvedRefs)) {
			return secretsRecheck
		}
		if len(s.Secrets) > 0 {
			after = secretsRefresh
		}
	}
	for _, sources := range []map[topology.Key]*topology.SourcePlan{p.PostgresSources, p.FanoutSources, p.ArchiveSources} {
		for _, s := range sources {
			if missing(s.Condition(v1alpha1.ConditionResolvedRefs)) {
				return secretsRecheck
			}
			after = secretsRefresh
		}
	}
	for _, e := range p.Exports {
		if missing(e.Condition(v1alpha1.ConditionResolvedRefs)) {
			return secretsRecheck
		}
		after = secretsRefresh
	}
	for _, m := range p.Meshes {
		if missing(m.Condition(v1alpha1.ConditionResolvedRefs)) {
			return secretsRecheck
		}
	}
	for _, t := range p.Trees {
		if missing(t.Condition(v1alpha1.ConditionResolvedRefs)) {
			return secretsRecheck
		}
	}
	return after
}

func countNodes(p topology.Plan) {
	counts := map[string]float64{}
	for _, n := range p.Nodes {
		reason := "OK"
		if i := slices.IndexFunc(n.Conditions, func(c topology.Condition) bool { return c.Status != metav1.ConditionTrue }); i >= 0 {
			reason = n.Conditions[i].Reason
		}
		counts[reason]++
	}
	planNodes.Reset()
	for reason, n := range counts {
		planNodes.WithLabelValues(reason).Set(n)
	}
}

// secretReader reads the names of the keys of Secrets. It may read only
// Secrets that resources name, one by one, and remembers each for a while.
type secretReader struct {
	reader client.Reader
	known  map[topology.Key]secretKeys
}

type secretKeys struct {
	keys []string // nil: there is none
	at   time.Time
}

func usedSecrets(in topology.Inputs) map[topology.Key]bool {
	out := map[topology.Key]bool{}
	add := func(namespace string, used []topology.SecretUse) {
		for _, use := range used {
			if len(validation.IsDNS1123Subdomain(use.Name)) > 0 {
				continue // no Secret can have this name
			}
			out[topology.Key{Namespace: namespace, Name: use.Name}] = true
		}
	}
	for i := range in.PostgresSources {
		add(in.PostgresSources[i].Namespace, topology.PostgresSecrets(&in.PostgresSources[i].Spec))
	}
	for i := range in.FanoutSources {
		add(in.FanoutSources[i].Namespace, topology.FanoutSecrets(&in.FanoutSources[i].Spec))
	}
	for i := range in.ArchiveSources {
		add(in.ArchiveSources[i].Namespace, topology.ArchiveSecrets(&in.ArchiveSources[i].Spec))
	}
	for i := range in.Exports {
		add(in.Exports[i].Namespace, topology.ExportSecrets(&in.Exports[i].Spec))
	}
	for i := range in.Meshes {
		add(in.Meshes[i].Namespace, topology.MeshSecrets(&in.Meshes[i].Spec))
	}
	for i := range in.Trees {
		add(in.Trees[i].Namespace, topology.TreeSecrets(&in.Trees[i].Spec))
	}
	for i := range in.Nodes {
		add(in.Nodes[i].Namespace, topology.SecretsNamed(&in.Nodes[i]))
	}
	return out
}

// read returns the names of the keys of those Secrets that exist. One that
// cannot be read counts as it was before, and as missing if it never was; the
// error tells.
func (r *secretReader) read(ctx context.Context, used map[topology.Key]bool) (map[topology.Key][]string, error) {
	now := time.Now()
	known, out := map[topology.Key]secretKeys{}, map[topology.Key][]string{}
	var errs []error
	for k := range used {
		s, ok := r.known[k]
		fresh := secretsRefresh
		if s.keys == nil {
			fresh = secretsRecheck
		}
		if !ok || now.Sub(s.at) > fresh-time.Second {
			var secret corev1.Secret
			err := r.reader.Get(ctx, k, &secret)
			switch {
			case err == nil:
				s = secretKeys{keys: slices.AppendSeq([]string{}, maps.Keys(secret.Data)), at: now}
			case apierrors.IsNotFound(err):
				s = secretKeys{at: now}
			default:
				errs = append(errs, fmt.Errorf("cannot read the Secret %s: %w", k, err))
			}
		}
		known[k] = s
		if s.keys != nil {
			out[k] = s.keys
		}
	}
	r.known = known
	return out, errors.Join(errs...)
}

package controllers

import (
	"cmp"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/labels"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tributary-dev/tributary/controllers/topology"
	"github.com/tributary-dev/tributary/controllers/workload"
)

// Options of the controllers.
type Options struct {
	workload.Options
	// StatusInterval is how often nodes are asked for their status.
	StatusInterval time.Duration
	// SlotTimeout bounds how long a node that is being deleted waits for its slots
	// to be dropped; DefaultSlotTimeout when zero.
	SlotTimeout time.Duration
}

// CacheOptions are the options of the manager's cache: of kinds that are not of
// this API only the objects of nodes. Without namespaces, all of them.
func CacheOptions(namespaces ...string) cache.Options {
	ours := cache.ByObject{Label: labels.SelectorFromSet(labels.Set{workload.LabelManagedBy: workload.ManagedBy})}
	o := cache.Options{
		DefaultTransform: cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{
			&appsv1.Deployment{}: ours, &appsv1.StatefulSet{}: ours, &corev1.Pod{}: ours,
			&corev1.Service{}: ours, &corev1.ConfigMap{}: ours, &corev1.ServiceAccount{}: ours,
			&policyv1.PodDisruptionBudget{}: ours, &networkingv1.NetworkPolicy{}: ours,
			&batchv1.Job{}: ours, &batchv1.CronJob{}: ours, &corev1.PersistentVolumeClaim{}: ours,
		},
	}
	for _, ns := range namespaces {
		if o.DefaultNamespaces == nil {
			o.DefaultNamespaces = map[string]cache.Config{}
		}
		o.DefaultNamespaces[ns] = cache.Config{}
	}
	return o
}

// Setup adds all controllers to a manager whose cache has CacheOptions.
func Setup(mgr ctrl.Manager, o Options) error {
	b := &board{}
	recorder := mgr.GetEventRecorder("tributary")
	for _, r := range []interface{ setup(ctrl.Manager) error }{
		&topologyReconciler{Client: mgr.GetClient(), board: b, secrets: &secretReader{reader: mgr.GetAPIReader()}},
		&nodeReconciler{
			Client: mgr.GetClient(), board: b, recorder: recorder, options: o.Options,
			applier: applier{Client: mgr.GetClient(), live: mgr.GetAPIReader()}, slotTimeout: cmp.Or(o.SlotTimeout, DefaultSlotTimeout),
			rollouts: rollouts{waits: map[topology.Key]time.Time{}, started: map[topology.Key]string{}},
		},
		&postgresSourceReconciler{Client: mgr.GetClient(), board: b, recorder: recorder},
		&fanoutSourceReconciler{mgr.GetClient(), b, recorder},
		&archiveSourceReconciler{mgr.GetClient(), b, recorder},
		&exportReconciler{
			Client: mgr.GetClient(), board: b, recorder: recorder, options: o.Options,
			applier: applier{Client: mgr.GetClient(), live: mgr.GetAPIReader()},
		},
		&meshReconciler{Client: mgr.GetClient(), board: b, recorder: recorder},
		&treeReconciler{
			Client: mgr.GetClient(), board: b, recorder: recorder, applier: applier{Client: mgr.GetClient(), live: mgr.GetAPIReader()},
		},
	} {
		if err := r.setup(mgr); err != nil {
			return fmt.Errorf("cannot set up the controllers: %w", err)
		}
	}
	return mgr.Add(newPoller(mgr.GetClient(), b, o.StatusInterval))
}

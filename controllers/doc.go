// Package controllers brings a cluster to what the resources of the API say: one
// reconciler per kind, and one that makes the plan for all of them.
//
// The Topology reconciler is the only one that thinks, and it does so in package
// topology: it reads all resources, makes the plan and wakes those whose part of
// it has changed. It runs one at a time. The reconcilers of the kinds put their
// part in place and write status. The Poller asks nodes how they are; what it
// learns changes status and who may fail over to whom, and nothing else: a node
// that the manager cannot reach goes on as it is.
//
// Invariants: spec is never written; every object is applied by server-side
// apply under one field owner, only when it differs, and never if it belongs to
// someone else; at rest nothing is written. Secrets are read by name, for the
// names of their keys alone. A node has a finalizer only while it holds slots
// that must not outlive it, and is let go when the time for that is over.
package controllers

// +kubebuilder:rbac:groups=tributary.dev,resources=replicationnodes;postgressources;fanoutsources;replicationmeshes;relaytrees;archivesources;archiveexports,verbs=get;list;watch
// +kubebuilder:rbac:groups=tributary.dev,resources=replicationnodes,verbs=create;patch;delete
// +kubebuilder:rbac:groups=tributary.dev,resources=replicationnodes/status;postgressources/status;fanoutsources/status;replicationmeshes/status;relaytrees/status;archivesources/status;archiveexports/status,verbs=get;patch
// +kubebuilder:rbac:groups=tributary.dev,resources=replicationnodes/finalizers;archiveexports/finalizers;relaytrees/finalizers,verbs=update
// +kubebuilder:rbac:groups=apps,resources=deployments;statefulsets,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups="",resources=services;configmaps;serviceaccounts,verbs=get;list;watch;create;patch
// +kubebuilder:rbac:groups=policy,resources=poddisruptionbudgets,verbs=get;list;watch;create;patch
// +kubebuilder:rbac:groups=networking.k8s.io,resources=networkpolicies,verbs=get;list;watch;create;patch
// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=batch,resources=jobs;cronjobs,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups="",resources=pods,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=secrets,verbs=get
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// Package workload turns a node and its plan into Kubernetes objects. It is
// pure: the same node and plan give the same objects, byte for byte.
//
// A node becomes a Deployment, or a StatefulSet if at most one pod of it may run;
// a headless Service, so that clients see each replica; two ConfigMaps; a
// ServiceAccount without a token; a PodDisruptionBudget and a NetworkPolicy.
//
// The ConfigMap name-static holds node.yaml; the hash of all of it but the tables
// of PostgreSQL sources is in the pod template, so a change of it rolls the pods,
// and nodes take up other tables while they run. The ConfigMap name-wiring holds wiring.yaml and
// is not in the hash: nodes reload it while they run.
//
// Secrets are mounted as files, only the keys that are used, and are in no
// object here; a node reads them again at each connection, so a changed Secret
// needs no restart. Pods satisfy the Pod Security Standard "restricted".
//
// Names: everything is called after the node, at most 60 characters for a node's
// name of 52.
package workload

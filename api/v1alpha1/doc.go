// Package v1alpha1 is the API of Tributary: the custom resources of the group
// tributary.dev that say what a replication topology is.
//
// A ReplicationNode runs the engine. It takes data from sources, which it
// either names (PostgresSource, FanoutSource) or gives inline, and serves it
// to the nodes and readers below it.
//
// Invariants: a spec is written by people and autoscalers only, never by the
// controllers; no field of a spec has a default in the schema, so what is
// applied reads back unchanged; values that took effect are in status.
// References to Secrets and to sources stay inside a namespace; a reference to
// a parent node may cross one where the parent's serve.allowedConsumers says
// so. Nothing in these types ever holds the content of a Secret.
//
// +kubebuilder:object:generate=true
// +groupName=tributary.dev
package v1alpha1

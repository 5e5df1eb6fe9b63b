package controllers

import (
	"context"
	"errors"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tributary-dev/tributary/api/v1alpha1"
	"github.com/tributary-dev/tributary/controllers/workload"
)

// fieldOwner owns the fields of objects and of status that are applied here.
const fieldOwner = client.FieldOwner("tributary")

// errNotOurs: an object that a node needs exists and belongs to someone else.
var errNotOurs = errors.New("exists and does not belong to this node")

// applier writes the objects of nodes, and only what differs.
type applier struct {
	client.Client
	// live reads past the cache, which holds only objects with our label.
	live client.Reader
}

// ensure brings one object to what is desired.
func (a *applier) ensure(ctx context.Context, owner client.Object, desired *unstructured.Unstructured) error {
	typed, err := a.Scheme().New(desired.GroupVersionKind())
	if err != nil {
		return err
	}
	cached := typed.(client.Object)
	err = a.Get(ctx, client.ObjectKeyFromObject(desired), cached)
	switch {
	case apierrors.IsNotFound(err):
		if err := a.checkOwner(ctx, owner, desired); err != nil {
			return err
		}
	case err != nil:
		return err
	case !metav1.IsControlledBy(cached, owner):
		return notOurs(desired)
	default:
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(cached)
		if err != nil {
			return err
		}
		live := &unstructured.Unstructured{Object: content}
		live.SetGroupVersionKind(desired.GroupVersionKind()) // typed objects from the cache have none
		if desired.GetKind() == "StatefulSet" && !workload.KeepClaims(desired, live) {
			// its deletion wakes the node, which makes another
			return a.remove(ctx, cached)
		}
		if !workload.Differs(desired, live) {
			return nil
		}
	}
	err = a.Apply(ctx, client.ApplyConfigurationFromUnstructured(desired.DeepCopy()), fieldOwner, client.ForceOwnership)
	if err != nil {
		return fmt.Errorf("cannot apply %s %s: %w", desired.GetKind(), desired.GetName(), err)
	}
	objectsApplied.WithLabelValues(desired.GetKind()).Inc()
	return nil
}

// checkOwner looks past the cache for an object that the cache does not hold:
// it may be someone else's, who would lose it.
func (a *applier) checkOwner(ctx context.Context, owner client.Object, desired *unstructured.Unstructured) error {
	meta := &metav1.PartialObjectMetadata{}
	meta.SetGroupVersionKind(desired.GroupVersionKind())
	err := a.live.Get(ctx, client.ObjectKeyFromObject(desired), meta)
	if err == nil && !metav1.IsControlledBy(meta, owner) {
		return notOurs(desired)
	}
	return client.IgnoreNotFound(err)
}

func notOurs(u *unstructured.Unstructured) error {
	return fmt.Errorf("the %s %s %w", u.GetKind(), u.GetName(), errNotOurs)
}

// removeOther deletes the workload of the kind that the node no longer is.
func (a *applier) removeOther(ctx context.Context, owner client.Object, single bool) error {
	var other client.Object = &appsv1.StatefulSet{}
	if single {
		other = &appsv1.Deployment{}
	}
	err := a.Get(ctx, client.ObjectKeyFromObject(owner), other)
	if err != nil || !metav1.IsControlledBy(other, owner) {
		return client.IgnoreNotFound(err)
	}
	return a.remove(ctx, other)
}

// remove deletes a workload, and its pods with it.
func (a *applier) remove(ctx context.Context, o client.Object) error {
	if !o.GetDeletionTimestamp().IsZero() {
		return nil
	}
	return client.IgnoreNotFound(a.Delete(ctx, o, client.PropagationPolicy(metav1.DeletePropagationBackground), client.Preconditions{UID: new(o.GetUID())}))
}

// stop scales a node's workload to nothing, whatever else is wrong with it.
func (a *applier) stop(ctx context.Context, w *running) error {
	if w.object == nil || w.desired == 0 {
		return nil
	}
	return client.IgnoreNotFound(a.Patch(ctx, w.object, client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"replicas":0}}`)), fieldOwner))
}

// applyStatus writes the status of a resource.
func applyStatus(ctx context.Context, c client.Client, kind string, o client.Object, status any) error {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(status)
	if err != nil {
		return err
	}
	u := &unstructured.Unstructured{Object: map[string]any{"status": content}}
	u.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(kind))
	u.SetNamespace(o.GetNamespace())
	u.SetName(o.GetName())
	err = c.Status().Apply(ctx, client.ApplyConfigurationFromUnstructured(u), &client.SubResourceApplyOptions{ApplyOptions: client.ApplyOptions{Force: new(true), FieldManager: string(fieldOwner)}})
	if err != nil {
		return client.IgnoreNotFound(err)
	}
	statusWrites.WithLabelValues(kind).Inc()
	return nil
}

// obstacle is why an object could not be applied, where a person must act.
type obstacle struct {
	conflict string // it is another's
	invalid  string // the API refuses it
}

func (o *obstacle) stands() bool { return o.conflict != "" || o.invalid != "" }

// settle keeps an error that a person must mend, and returns any other. owner is the
// kind of what owns the object, in a word.
func (o *obstacle) settle(owner string, err error) error {
	switch {
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause): // the object goes with it
	case errors.Is(err, errNotOurs):
		o.conflict = fmt.Sprintf("T%s: rename the %s, or delete the object.", err.Error()[1:], owner)
	case apierrors.IsInvalid(err):
		o.invalid = fmt.Sprintf("The API refuses what the spec asks for: %v", err)
	default:
		return err
	}
	return nil
}

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var (
	// GroupVersion is the group and version of every kind in this package.
	GroupVersion = schema.GroupVersion{Group: "tributary.dev", Version: "v1alpha1"}

	// SchemeBuilder collects what AddToScheme adds.
	SchemeBuilder = runtime.NewSchemeBuilder(addKnownTypes)

	// AddToScheme adds the kinds of this package to a scheme.
	AddToScheme = SchemeBuilder.AddToScheme
)

func addKnownTypes(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion,
		&ReplicationNode{}, &ReplicationNodeList{},
		&PostgresSource{}, &PostgresSourceList{},
		&FanoutSource{}, &FanoutSourceList{},
		&ReplicationMesh{}, &ReplicationMeshList{},
		&RelayTree{}, &RelayTreeList{},
		&ArchiveSource{}, &ArchiveSourceList{},
		&ArchiveExport{}, &ArchiveExportList{},
	)
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}

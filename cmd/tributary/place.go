package main

import (
	"fmt"

	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// place is where a topology runs: in a cluster, or as a local run.
type place struct {
	kubeconfig, context, namespace string
	run                            string // directory of a local run; empty: a cluster
}

func (p *place) flags(f *pflag.FlagSet) {
	f.StringVar(&p.kubeconfig, "kubeconfig", "", "path of the kubeconfig file (default: $KUBECONFIG or ~/.kube/config)")
	f.StringVar(&p.context, "context", "", "context of the kubeconfig file")
	f.StringVarP(&p.namespace, "namespace", "n", "", "namespace (default: that of the context)")
	f.StringVar(&p.run, "run", "", "a local run instead: the directory that tributary run printed")
}

// cluster returns how to reach the cluster, and the namespace.
func (p *place) cluster() (*rest.Config, string, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = p.kubeconfig
	cfg := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: p.context})
	c, err := cfg.ClientConfig()
	if err != nil {
		return nil, "", fmt.Errorf("no cluster to ask: %w; name one by --kubeconfig or --context, or a local run by --run", err)
	}
	namespace := p.namespace
	if namespace == "" {
		namespace, _, err = cfg.Namespace()
	}
	return c, namespace, err
}

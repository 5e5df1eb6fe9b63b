package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"

	"github.com/tributary-dev/tributary/internal/localrun"
	"github.com/tributary-dev/tributary/internal/node"
	"github.com/tributary-dev/tributary/pkg/nodeconfig"
)

func deadLettersCommand() *cobra.Command {
	var from place
	c := &cobra.Command{
		Use:     "deadletters",
		Aliases: []string{"deadletter", "dl"},
		Short:   "Entries that sinks have put aside: list, show, replay and discard them",
		Long: `deadletters is about entries that the target of a sink has rejected and that were
put aside, as onReject: DeadLetter asks for.

A node is asked through the API server, which takes the right to get and create
pods/proxy, or directly in a local run (--run).`,
		Example: `  tributary deadletters list edge search
  tributary deadletters show edge search 5f0c
  tributary deadletters replay edge search --all`,
	}
	from.flags(c.PersistentFlags())
	c.AddCommand(
		&cobra.Command{
			Use: "list NODE SINK", Short: "List the dead letters of a sink, oldest first", Args: cobra.ExactArgs(2),
			RunE: func(c *cobra.Command, args []string) error {
				letters, err := listLetters(c.Context(), &from, args[0], args[1])
				if err != nil {
					return err
				}
				return printLetters(c.OutOrStdout(), args[1], letters)
			},
		},
		&cobra.Command{
			Use: "show NODE SINK ID", Short: "Show one dead letter with its row; ID may be cut short", Args: cobra.ExactArgs(3),
			RunE: func(c *cobra.Command, args []string) error {
				letters, err := listLetters(c.Context(), &from, args[0], args[1])
				if err != nil {
					return err
				}
				l, err := pick(letters, args[1], args[2])
				if err != nil {
					return err
				}
				return printLetter(c.OutOrStdout(), l)
			},
		},
		settleCommand(&from, "replay", "requeue", "Give dead letters to the target again",
			`replay gives a dead letter to the sink's target again. Applied: the target has taken
it. Overtaken: a later write of the row has been delivered, or is about to be.
Either way it is a dead letter no more. One that is rejected again stays.`),
		settleCommand(&from, "discard", "drop", "Forget dead letters",
			`discard forgets a dead letter: the target's row stays as it is until it is written
again. This cannot be undone.`),
	)
	return c
}

// settleCommand makes a command that does away with dead letters.
func settleCommand(from *place, verb, alias, short, long string) *cobra.Command {
	var all bool
	c := &cobra.Command{
		Use: verb + " NODE SINK (ID... | --all)", Aliases: []string{alias}, Short: short, Long: long, Args: cobra.MinimumNArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			ids := args[2:]
			if all == (len(ids) > 0) {
				return usage("say which dead letters to %s: their ids, or --all", verb)
			}
			n, err := from.node(args[0])
			if err != nil {
				return err
			}
			letters, err := n.letters(c.Context(), args[1])
			if err != nil {
				return err
			}
			if !all {
				for i, id := range ids {
					l, err := pick(letters, args[1], id)
					if err != nil {
						return err
					}
					ids[i] = l.ID
				}
			} else {
				for _, l := range letters {
					ids = append(ids, l.ID)
				}
			}
			left := 0
			for _, id := range ids {
				var s node.Settled
				if err := n.call(c.Context(), http.MethodPost, "/sinks/"+url.PathEscape(args[1])+"/deadletters/"+id+"/"+verb, &s); err != nil {
					left++
					fmt.Fprintf(c.OutOrStdout(), "%s: %v\n", id, err)
					if errors.Is(err, errUnreachable) || c.Context().Err() != nil {
						return fmt.Errorf("%d of %d dead letters are left", len(ids)-slices.Index(ids, id), len(ids))
					}
					continue
				}
				fmt.Fprintf(c.OutOrStdout(), "%s: %s\n", id, s.Outcome)
			}
			if left > 0 {
				return fmt.Errorf("%d of %d dead letters are left", left, len(ids))
			}
			return nil
		},
	}
	c.Flags().BoolVar(&all, "all", false, "all of the sink, oldest first")
	return c
}

func listLetters(ctx context.Context, from *place, name, sink string) ([]node.DeadLetter, error) {
	n, err := from.node(name)
	if err != nil {
		return nil, err
	}
	return n.letters(ctx, sink)
}

// pick finds a dead letter by the beginning of its id.
func pick(letters []node.DeadLetter, sink, id string) (found node.DeadLetter, err error) {
	n := 0
	for _, l := range letters {
		if strings.HasPrefix(l.ID, id) && id != "" {
			found = l
			n++
		}
	}
	switch n {
	case 0:
		return found, fmt.Errorf("sink %s has no dead letter %q: list them by tributary deadletters list", sink, id)
	case 1:
		return found, nil
	}
	return found, fmt.Errorf("%d dead letters of sink %s begin with %q: give more of the id", n, sink, id)
}

func printLetters(w io.Writer, sink string, letters []node.DeadLetter) error {
	if len(letters) == 0 {
		_, err := fmt.Fprintf(w, "Sink %s has no dead letters.\n", sink)
		return err
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "ID\tTABLE\tOP\tKEY\tATTEMPTS\tSINCE\tERROR")
	for _, l := range letters {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%d\t%s\t%s\n", l.ID, l.Table, l.Op, l.Key, l.Attempts, l.Since.Format(time.RFC3339), firstLine(l.Error))
	}
	return t.Flush()
}

func firstLine(s string) string {
	s, _, _ = strings.Cut(s, "\n")
	return s
}

func printLetter(w io.Writer, l node.DeadLetter) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "id\t%s\ntable\t%s\nop\t%s\nkey\t%s\nlog\t%s@%s\nposition\t%s\nattempts\t%d\nsince\t%s\nlast\t%s\nerror\t%s\n",
		l.ID, l.Table, l.Op, l.Key, l.Origin, l.Epoch, l.Position, l.Attempts, l.Since.Format(time.RFC3339), l.Last.Format(time.RFC3339), strings.ReplaceAll(l.Error, "\n", "\n\t"))
	for _, name := range slices.Sorted(maps.Keys(l.Row)) {
		if v := l.Row[name]; v == nil {
			fmt.Fprintf(t, "row.%s\tnull\n", name)
		} else {
			fmt.Fprintf(t, "row.%s\t%q\n", name, *v)
		}
	}
	return t.Flush()
}

// webNode is a node's HTTP address.
type webNode struct {
	name, base string
	http       *http.Client
}

// errUnreachable: the node has not answered, or its sink cannot now.
var errUnreachable = errors.New("no answer")

// node finds a node's HTTP address. A node with sinks has one pod, NODE-0.
func (p *place) node(name string) (*webNode, error) {
	if p.run != "" {
		st, err := localrun.ReadState(p.run)
		if err != nil {
			return nil, err
		}
		for _, n := range st.Nodes {
			if n.ID == name || strings.HasSuffix(n.ID, "/"+name) && (p.namespace == "" || n.ID == p.namespace+"/"+name) {
				return &webNode{name, n.HTTP, http.DefaultClient}, nil
			}
		}
		return nil, fmt.Errorf("the run in %s has no node %s: tributary tree --run %s draws those it has", p.run, name, p.run)
	}
	a, err := p.api()
	if err != nil {
		return nil, err
	}
	n := a.pod(a.namespace, name+"-0")
	n.name = a.namespace + "/" + name
	return &n, nil
}

// api is the API server, through which pods are reached.
type api struct {
	rest      *rest.Config
	namespace string // of the context, unless another was asked for
	base      *url.URL
	http      *http.Client
}

func (p *place) api() (a *api, err error) {
	a = &api{}
	if a.rest, a.namespace, err = p.cluster(); err != nil {
		return nil, err
	}
	if a.http, err = rest.HTTPClientFor(a.rest); err != nil {
		return nil, err
	}
	a.base, _, err = rest.DefaultServerUrlFor(a.rest)
	return a, err
}

// pod is the HTTP address of a node's pod.
func (a *api) pod(namespace, name string) webNode {
	base := a.base.JoinPath("api/v1/namespaces", namespace, "pods", fmt.Sprintf("%s:%d", name, nodeconfig.DefaultHTTPPort), "proxy")
	return webNode{namespace + "/" + name, base.String(), a.http}
}

func (n *webNode) letters(ctx context.Context, sink string) ([]node.DeadLetter, error) {
	var out struct {
		DeadLetters []node.DeadLetter `json:"deadLetters"`
	}
	err := n.call(ctx, http.MethodGet, "/sinks/"+url.PathEscape(sink)+"/deadletters", &out)
	return out.DeadLetters, err
}

// call asks the node. An answer other than OK is an error that says why.
func (n *webNode) call(ctx context.Context, method, path string, into any) error {
	req, err := http.NewRequestWithContext(ctx, method, n.base+path, nil)
	if err != nil {
		return err
	}
	resp, err := n.http.Do(req)
	if err != nil {
		return fmt.Errorf("node %s: %w: %w", n.name, errUnreachable, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 256<<20))
	if err != nil {
		return fmt.Errorf("node %s: %w: %w", n.name, errUnreachable, err)
	}
	if resp.StatusCode == http.StatusOK {
		return json.Unmarshal(body, into)
	}
	var why struct{ Error, Message string } // of a node, of the API server
	_ = json.Unmarshal(body, &why)
	switch {
	case resp.StatusCode == http.StatusServiceUnavailable && why.Error != "":
		return fmt.Errorf("%w: %s", errUnreachable, why.Error)
	case why.Error != "":
		return errors.New(why.Error)
	case resp.StatusCode == http.StatusForbidden:
		return fmt.Errorf("node %s: %s: it takes the right to get and create pods/proxy", n.name, why.Message)
	case why.Message != "":
		return fmt.Errorf("node %s: %w: %s", n.name, errUnreachable, why.Message)
	}
	return fmt.Errorf("node %s answers %s: %s", n.name, resp.Status, firstLine(string(body)))
}

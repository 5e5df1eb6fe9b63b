// Package origins lists how far nodes are with the log of each origin, from the
// status documents of the nodes.
package origins

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"

	"github.com/tributary-dev/tributary/pkg/nodeconfig"
)

// Answer is what an instance of a node says, or why it does not.
type Answer struct {
	Node     string // namespace/name
	Instance string // pod, or process
	Status   nodeconfig.Statusz
	Err      error
}

// Row is how far one instance of a node is with one log.
type Row struct {
	Origin   string `json:"origin"`
	Epoch    string `json:"epoch"`
	Node     string `json:"node"`
	Instance string `json:"instance"`
	// Head is how far the log has got, as far as the node knows; Received, Applied
	// and Durable how far it has come there. Empty where it is not known, or not so.
	Head     string `json:"head,omitempty"`
	Received string `json:"received,omitempty"`
	Applied  string `json:"applied,omitempty"`
	Durable  string `json:"durable,omitempty"`
	// LagSeconds is nil while it is not known; 0 is caught up.
	LagSeconds *float64 `json:"lagSeconds"`
	// LagChanges is nil while it is not known.
	LagChanges *uint64 `json:"lagChanges"`
	State      string  `json:"state"`
	// Peer that the log is read from; empty for a node's own.
	Peer string `json:"peer,omitempty"`
	// Counts since the node started.
	Duplicates   int64  `json:"duplicates"`
	Holes        int64  `json:"holes"`
	Resets       int64  `json:"resets"`
	CreditStalls int64  `json:"creditStalls"`
	Message      string `json:"message,omitempty"`
}

// Silent is an instance that does not answer.
type Silent struct {
	Node     string `json:"node"`
	Instance string `json:"instance"`
	Error    string `json:"error"`
}

// Report is all that was asked for.
type Report struct {
	Logs   []Row    `json:"logs"`
	Silent []Silent `json:"silent,omitempty"`
}

// Collect puts answers together, by origin, epoch, node and instance.
func Collect(answers []Answer) Report {
	r := Report{Logs: []Row{}}
	for _, a := range answers {
		if a.Err != nil {
			r.Silent = append(r.Silent, Silent{a.Node, a.Instance, a.Err.Error()})
			continue
		}
		for i := range a.Status.Logs {
			r.Logs = append(r.Logs, row(&a, &a.Status.Logs[i]))
		}
	}
	slices.SortFunc(r.Logs, func(a, b Row) int {
		return cmp.Or(cmp.Compare(a.Origin, b.Origin), cmp.Compare(a.Epoch, b.Epoch), cmp.Compare(a.Node, b.Node), cmp.Compare(a.Instance, b.Instance))
	})
	slices.SortFunc(r.Silent, func(a, b Silent) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Instance, b.Instance))
	})
	return r
}

func row(a *Answer, l *nodeconfig.LogStatus) Row {
	r := Row{
		Origin: l.Origin, Epoch: l.Epoch, Node: a.Node, Instance: a.Instance,
		Head: l.SourceHead, Received: l.Received, Applied: l.Head, Durable: l.Durable, State: l.State, Peer: l.Peer,
	}
	if len(l.Path) == 1 && r.Head == "" { // the node's own
		r.Head = l.Head
	}
	if l.LagKnown {
		r.LagSeconds = &l.LagSeconds
	}
	r.LagChanges = l.LagChanges
	if d := l.Delivery; d != nil {
		r.Duplicates, r.Holes, r.Resets, r.CreditStalls, r.Message = d.Duplicates, d.Holes, d.Resets, d.CreditStalls, d.Message
	}
	return r
}

// JSON writes the report for programs.
func (r Report) JSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

// Table writes the report for people: an origin's name and epoch stand once, with
// a line for each node below.
func (r Report) Table(w io.Writer) error {
	if len(r.Logs) == 0 && len(r.Silent) == 0 {
		_, err := fmt.Fprintln(w, "No node carries a log.")
		return err
	}
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	fmt.Fprintln(t, "ORIGIN / NODE\tSTATE\tLAG\tCHANGES\tHEAD\tRECEIVED\tAPPLIED\tDURABLE\tPEER\tDUP\tHOLES\tRESETS\tSTALLS")
	last := ""
	for _, l := range r.Logs {
		if id := l.Origin + " @ " + l.Epoch; id != last {
			fmt.Fprintf(t, "%s\t\t\t\t\t\t\t\t\t\t\t\t\n", id)
			last = id
		}
		lag := "unknown"
		if l.LagSeconds != nil {
			lag = fmt.Sprintf("%.1fs", *l.LagSeconds)
		}
		changes := "-"
		if l.LagChanges != nil {
			changes = fmt.Sprint(*l.LagChanges)
		}
		fmt.Fprintf(t, "  %s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%d\t%d\t%d\t%d\n", l.Instance, cmp.Or(l.State, "-"), lag, changes,
			cmp.Or(l.Head, "-"), cmp.Or(l.Received, "-"), cmp.Or(l.Applied, "-"), cmp.Or(l.Durable, "-"), cmp.Or(l.Peer, "-"),
			l.Duplicates, l.Holes, l.Resets, l.CreditStalls)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, l := range r.Logs {
		if l.Message != "" {
			if _, err := fmt.Fprintf(w, "\n%s, %s: %s", l.Instance, l.Origin, l.Message); err != nil {
				return err
			}
		}
	}
	for _, s := range r.Silent {
		if _, err := fmt.Fprintf(w, "\n%s does not answer: %s", s.Instance, s.Error); err != nil {
			return err
		}
	}
	if len(r.Silent) > 0 || slices.ContainsFunc(r.Logs, func(l Row) bool { return l.Message != "" }) {
		_, err := fmt.Fprintln(w)
		return err
	}
	return nil
}

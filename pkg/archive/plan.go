package archive

import (
	"context"
	"fmt"

	"github.com/tributary-dev/tributary/pkg/engine"
)

// AsOf is a moment. The zero AsOf is the head.
type AsOf struct {
	// At is a vector of some or all logs: nothing after it. Between the ends of net
	// diffs, the last end before it counts.
	At Vector
	// Time is the time of the last transaction to count; 0 is no bound.
	Time engine.Time
}

func (a AsOf) String() string {
	switch {
	case a.Time != 0 && len(a.At) > 0:
		return fmt.Sprintf("%s and %s", a.At, a.Time.Wall().Format("2006-01-02 15:04:05.999999Z07:00"))
	case a.Time != 0:
		return a.Time.Wall().Format("2006-01-02 15:04:05.999999Z07:00")
	case len(a.At) > 0:
		return a.At.String()
	}
	return "its head"
}

func (a AsOf) isHead() bool { return a.Time == 0 && len(a.At) == 0 }

// holds reports whether all up to a vector is at or before the moment.
func (a AsOf) holds(v Vector) bool {
	for _, c := range a.At {
		if have, ok := v.Cursor(c.Log); !ok || have.Compare(c.Position) > 0 {
			return false
		}
	}
	for _, c := range v {
		if a.Time != 0 && c.Time > a.Time {
			return false
		}
	}
	return true
}

// takes reports whether a transaction is at or before the moment.
func (a AsOf) takes(e *Entry, order string) bool {
	if a.Time != 0 && e.Time > a.Time {
		return false
	}
	c, ok := a.At.Cursor(e.Log)
	c.Order = order
	return !ok || c.Compare(e.Position) >= 0
}

// Mode is how a reader gets from where it is to where it is to be.
type Mode string

// The modes.
const (
	// PlanNone: the archive does not lead there. Plan.Reason says why.
	PlanNone Mode = "none"
	// PlanDiffs: by diffs only.
	PlanDiffs Mode = "diffs"
	// PlanBase: by a base and the diffs after it.
	PlanBase Mode = "base"
)

// Plan is a chain of artifacts.
type Plan struct {
	Mode   Mode
	Reason string // why it is not by diffs only, or not at all
	Base   *Artifact
	Diffs  []Artifact
	// To is where the chain ends: at AsOf, or before it. Within a diff of a full
	// history it is known once that has been read.
	To    Vector
	Bytes int64 // stored, in the formats that are tried first

	partial bool // the last diff goes beyond the moment
	m       *Manifest
}

// Within reports whether the last diff goes beyond the moment. It is of a full history then, and what it has up to the
// moment is read, so that the state is exactly as of it.
func (p *Plan) Within() bool { return p.partial }

// Plan returns how to get from a vector, which may be empty, to a moment. It is an
// error only if the manifest cannot be read.
func (r *Reader) Plan(ctx context.Context, from Vector, to AsOf) (*Plan, error) {
	m, err := r.Manifest(ctx)
	if err != nil {
		return nil, err
	}
	return m.plan(r.cfg.Formats, from, to, nil), nil
}

// Plan returns how to get from a vector, which may be empty, to a moment.
func (m *Manifest) Plan(from Vector, to AsOf) *Plan { return m.plan(nil, from, to, nil) }

// plan is Reader.Plan. skip names bases that cannot be read.
func (m *Manifest) plan(formats []Format, from Vector, to AsOf, skip map[string]bool) *Plan {
	why := ""
	if len(from) > 0 {
		p := m.planDiffs(from, to)
		if p.Mode == PlanDiffs {
			return p.weigh(formats)
		}
		why = p.Reason
	}
	p := m.planBase(to, skip)
	if why != "" {
		if p.Reason != "" {
			why += "; " + p.Reason
		}
		p.Reason = why
	}
	return p.weigh(formats)
}

func (p *Plan) weigh(formats []Format) *Plan {
	if p.Base != nil {
		p.Bytes = p.Base.Stored(formats...)
	}
	for i := range p.Diffs {
		p.Bytes += p.Diffs[i].Stored(formats...)
	}
	return p
}

// planBase finds the newest base at or before a moment, and the diffs after it.
func (m *Manifest) planBase(to AsOf, skip map[string]bool) *Plan {
	p := &Plan{Mode: PlanNone, m: m}
	var oldest *Artifact
	for i := len(m.Artifacts) - 1; i >= 0; i-- {
		a := &m.Artifacts[i]
		if a.Kind != KindBase {
			continue
		}
		oldest = a
		if skip[a.ID] || !to.holds(a.To) {
			continue
		}
		if !p.chain(i+1, a.To, to) {
			p.Reason = fmt.Sprintf("no chain of diffs leads from the base at %s to %s", a.To, to)
			return p
		}
		p.Mode, p.Base = PlanBase, a
		return p
	}
	switch {
	case oldest == nil:
		p.Reason = "it has no base"
	case len(skip) > 0:
		p.Reason = fmt.Sprintf("none of its bases that lead to %s can be read", to)
	default:
		p.Reason = fmt.Sprintf("its oldest base is at %s (%s), and %s was asked for", oldest.To, oldest.To.Time().Wall().Format("2006-01-02 15:04:05Z07:00"), to)
	}
	return p
}

// planDiffs finds the diffs that lead on from a vector.
func (m *Manifest) planDiffs(from Vector, to AsOf) *Plan {
	p := &Plan{Mode: PlanNone, m: m}
	switch {
	case len(m.Artifacts) == 0:
		p.Reason = "it has no base"
		return p
	case !from.SameLogs(m.Through):
		p.Reason = fmt.Sprintf("it is of other logs: it is at %s, and the reader at %s", m.Through, from)
		return p
	case !m.Through.Reaches(from) && from.Reaches(m.Through):
		p.Reason = fmt.Sprintf("it ends at %s, and the reader is at %s", m.Through, from)
		return p
	}
	n := len(m.Artifacts)
	if from.Reaches(m.Artifacts[n-1].To) {
		if p.chain(n, m.Artifacts[n-1].To, to) {
			p.Mode = PlanDiffs
		}
		return p
	}
	for i := n - 1; i >= 0; i-- {
		a := &m.Artifacts[i]
		if a.Kind != KindDiff || !from.Reaches(a.From) {
			continue
		}
		if !p.chain(i, a.From, to) {
			p.Reason = fmt.Sprintf("no chain of diffs leads from %s to %s: there is a base between that the diffs before it do not lead to", from, to)
			return p
		}
		p.Mode = PlanDiffs
		return p
	}
	p.Reason = fmt.Sprintf("its diffs begin after %s", from)
	return p
}

// chain collects the diffs that follow a vector, from an artifact on. It reports false if
// they break off before the moment.
func (p *Plan) chain(i int, at Vector, to AsOf) bool {
	p.Diffs, p.partial = nil, false
	as := p.m.Artifacts
	for ; i < len(as); i++ {
		a := &as[i]
		if a.Kind == KindBase {
			if a.Continues && a.To.Equal(at) {
				continue
			}
			p.To = at
			return !to.holds(a.To) && !to.isHead()
		}
		if !a.From.Equal(at) {
			p.To = at
			return false
		}
		if !to.holds(a.To) {
			p.To = at
			if a.Quiet != nil {
				p.To = to.upTo(at, a.Quiet)
			}
			if a.History == Full {
				p.Diffs, p.partial = append(p.Diffs, *a), true
			}
			return true
		}
		p.Diffs = append(p.Diffs, *a)
		at = a.To
	}
	p.To = to.upTo(at, p.m.Through)
	return true
}

// upTo returns where a state is that holds everything up to at, if nothing has changed from there up to
// through.
func (a AsOf) upTo(at, through Vector) Vector {
	if !at.SameLogs(through) {
		return at
	}
	out := make(Vector, len(at))
	for i, c := range at {
		out[i] = through[i]
		if out[i].Compare(c.Position) < 0 || a.Time != 0 && through[i].Time > a.Time {
			out[i] = c
		} else if bound, ok := a.At.Cursor(c.Log); ok && through[i].Compare(bound.Position) > 0 {
			if out[i] = c; c.Compare(bound.Position) < 0 {
				out[i].Position = bound.Position
			}
		}
	}
	return out
}

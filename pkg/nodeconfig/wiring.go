package nodeconfig

import "time"

// Wiring is wiring.yaml: which nodes a node may read from.
type Wiring struct {
	Version int `yaml:"version"`
	// Epoch grows with every change of the wiring of this node. A node ignores
	// wiring with an epoch below the one it has.
	Epoch uint64 `yaml:"epoch"`
	// Sources are the fan-out sources of node.yaml, by name.
	Sources []WiredSource `yaml:"sources,omitempty"`
	// Parents are what a leaf of a relay tree needs to know; nil for a node that is none.
	Parents *WiredParents `yaml:"parents,omitempty"`
}

// WiredSource holds the candidates of one fan-out or mesh source in order of
// preference, or the children of a children source, and the policy of choosing. There
// may be none yet: the node then holds and serves what it has.
type WiredSource struct {
	Name       string      `yaml:"name"`
	Candidates []Candidate `yaml:"candidates,omitempty"`
	// Children, and how those of one group are read.
	Children   []Child `yaml:"children,omitempty"`
	Redundancy string  `yaml:"redundancy,omitempty"`
	// Readers are the node ids of those that read a relay's log, and Roots those of the
	// roots of its tree. Tombstones wait for the readers; a child that is no longer wired
	// is forgotten once all of them have what was read of it.
	Readers []string `yaml:"readers,omitempty"`
	Roots   []string `yaml:"roots,omitempty"`
	Policy  Policy   `yaml:"policy"`
}

// Candidate is a parent that a node may read from.
type Candidate struct {
	// ID is the parent's node id, or its address where that is not known.
	ID string `yaml:"id"`
	// Address is a gRPC target: host:port or dns:///host:port. Each address
	// that it resolves to is an instance of the parent.
	Address string `yaml:"address"`
	// Eligible is false for a candidate that must not be moved to, since it
	// would close a loop.
	Eligible bool `yaml:"eligible"`
}

// Modes of failback.
const (
	FailbackAutomatic = "automatic"
	FailbackManual    = "manual"
)

// Policy says when a node leaves its parent for the next candidate.
type Policy struct {
	// UnhealthyAfter is how long a parent's stream must be down.
	UnhealthyAfter time.Duration `yaml:"unhealthyAfter"`
	// RecoverAfter is how long a preferred parent must have been well before
	// the node moves back to it.
	RecoverAfter time.Duration `yaml:"recoverAfter"`
	// Failback is automatic or manual.
	Failback string `yaml:"failback"`
	// MaxSwitchesPerHour bounds the moves made while the present parent answers.
	MaxSwitchesPerHour int `yaml:"maxSwitchesPerHour"`
}

// Defaults of Policy.
const (
	DefaultUnhealthyAfter     = time.Second
	DefaultRecoverAfter       = 30 * time.Second
	DefaultFailback           = FailbackAutomatic
	DefaultMaxSwitchesPerHour = 12
)

// SetDefaults fills in every value that is not set and has a default.
func (w *Wiring) SetDefaults() {
	for i := range w.Sources {
		w.Sources[i].Policy.SetDefaults()
		if len(w.Sources[i].Children) > 0 {
			def(&w.Sources[i].Redundancy, ActiveActive)
		}
	}
}

// SetDefaults fills in every value that is not set and has a default.
func (p *Policy) SetDefaults() {
	def(&p.UnhealthyAfter, DefaultUnhealthyAfter)
	def(&p.RecoverAfter, DefaultRecoverAfter)
	def(&p.Failback, DefaultFailback)
	def(&p.MaxSwitchesPerHour, DefaultMaxSwitchesPerHour)
}

// Source returns the wiring of a source; nil if there is none.
func (w *Wiring) Source(name string) *WiredSource {
	for i := range w.Sources {
		if w.Sources[i].Name == name {
			return &w.Sources[i]
		}
	}
	return nil
}

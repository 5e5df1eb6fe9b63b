package nodeconfig

import (
	"bytes"
	"fmt"
	"os"
	"slices"

	"go.yaml.in/yaml/v3"
)

// Parse reads node.yaml, fills in the defaults and checks it. The error, if
// there is one, joins all Problems; file is the name that they use. A file whose name
// ends in .conf or .hocon is HOCON.
func Parse(file string, data []byte) (*Config, error) {
	c := &Config{}
	var p *problems
	if hoconFile(file) {
		p = decodeHOCON(file, data, c)
	} else {
		p = decode(file, data, c)
	}
	if len(p.list) == 0 {
		c.SetDefaults()
		c.check(p)
	}
	if err := p.err(); err != nil {
		return nil, err
	}
	return c, nil
}

// ParseWiring reads wiring.yaml as Parse reads node.yaml.
func ParseWiring(file string, data []byte) (*Wiring, error) {
	w := &Wiring{}
	p := decode(file, data, w)
	if len(p.list) == 0 {
		w.SetDefaults()
		w.check(p)
	}
	if err := p.err(); err != nil {
		return nil, err
	}
	return w, nil
}

// Load reads and parses the node.yaml at path.
func Load(path string) (*Config, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("cannot read the node's configuration: %w", err)
	}
	return Parse(path, data)
}

// LoadWiring reads and parses the wiring.yaml at path.
func LoadWiring(path string) (*Wiring, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("cannot read the node's wiring: %w", err)
	}
	return ParseWiring(path, data)
}

// Marshal writes the configuration. Equal configurations give equal bytes.
func (c *Config) Marshal() ([]byte, error) { return marshal(c) }

// Fixed returns what of the configuration takes effect only as a node starts: a
// node that runs takes up other tables of its PostgreSQL sources by itself.
func (c *Config) Fixed() *Config {
	f := *c
	f.Sources = slices.Clone(c.Sources)
	for i, s := range f.Sources {
		if s.Postgres != nil {
			p := *s.Postgres
			p.Tables = nil
			f.Sources[i].Postgres = &p
		}
	}
	return &f
}

// Marshal writes the wiring. Equal wirings give equal bytes.
func (w *Wiring) Marshal() ([]byte, error) { return marshal(w) }

func marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	if err := enc.Close(); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

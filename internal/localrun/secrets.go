package localrun

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"go.yaml.in/yaml/v3"

	"github.com/tributary-dev/tributary/controllers/topology"
)

// secrets are the Secrets of the files: their keys and values.
type secrets map[topology.Key]map[string][]byte

type secretDoc struct {
	APIVersion string `yaml:"apiVersion"`
	Kind       string `yaml:"kind"`
	Metadata   struct {
		Name      string `yaml:"name"`
		Namespace string `yaml:"namespace"`
	} `yaml:"metadata"`
	Data       map[string]string `yaml:"data"`
	StringData map[string]string `yaml:"stringData"`
}

func loadSecrets(paths []string) (secrets, error) {
	found := secrets{}
	for _, p := range paths {
		err := filepath.WalkDir(p, func(file string, d os.DirEntry, err error) error {
			if err != nil || d.IsDir() || !slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(file)) && file != p {
				return err
			}
			text, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			return found.read(file, text)
		})
		if err != nil {
			return nil, err
		}
	}
	return found, nil
}

func (s secrets) read(file string, text []byte) error {
	dec := yaml.NewDecoder(bytes.NewReader(text))
	for {
		var doc yaml.Node
		switch err := dec.Decode(&doc); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("%s: %w", file, err)
		}
		var d secretDoc
		if doc.Decode(&d) != nil || d.APIVersion != "v1" || d.Kind != "Secret" {
			continue // another kind
		}
		key := topology.Key{Namespace: d.Metadata.Namespace, Name: d.Metadata.Name}
		if key.Namespace == "" {
			key.Namespace = topology.DefaultNamespace
		}
		values := map[string][]byte{}
		for k, v := range d.Data {
			b, err := base64.StdEncoding.DecodeString(v)
			if err != nil {
				return fmt.Errorf("%s: Secret %s: data.%s is not base64; write plain text under stringData", file, key, k)
			}
			values[k] = b
		}
		for k, v := range d.StringData {
			values[k] = []byte(v)
		}
		s[key] = values
	}
}

// keys is what the planner needs to know of Secrets.
func (s secrets) keys() map[topology.Key][]string {
	out := map[topology.Key][]string{}
	for k, values := range s {
		for name := range values {
			out[k] = append(out[k], name)
		}
		slices.Sort(out[k])
	}
	return out
}

// write puts every key into a file of its own that only this user can read.
func (s secrets) write(dirOf func(topology.Key) string) error {
	for k, values := range s {
		dir := dirOf(k)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
		for name, v := range values {
			if err := writeFile(filepath.Join(dir, filepath.Base(name)), v, 0o600); err != nil {
				return err
			}
		}
	}
	return nil
}

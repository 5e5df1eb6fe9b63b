package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/engine/ticks"
	"github.com/tributary-dev/tributary/pkg/nodeconfig"
)

// reloadPoll is how often the files that are reloaded are looked at. They are
// replaced by a rename (a ConfigMap's mount swaps a link), which a poll sees on
// every file system.
const reloadPoll = 500 * time.Millisecond

// watchFile calls use with the text of a file whenever that has changed, until
// ctx ends. What cannot be used changes nothing: the node goes on with what it
// has, and says so once.
func (n *node) watchFile(ctx context.Context, what, file string, use func(text []byte) error) error {
	look := ticks.New(reloadPoll)
	defer look.Stop()
	var last []byte
	var complained string
	for {
		text, err := os.ReadFile(file)
		if err == nil && !bytes.Equal(text, last) {
			if err = use(text); err == nil {
				last, complained = text, ""
			}
		}
		if err != nil && complained != err.Error() {
			complained = err.Error()
			n.log.Warn("the "+what+" cannot be used; going on with what there is", "file", file, "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-look.C:
		}
	}
}

// watchWiring puts new wiring in place as it appears.
func (n *node) watchWiring(ctx context.Context) error {
	file := n.cfg.WiringFile
	return n.watchFile(ctx, "wiring", file, func(text []byte) error {
		w, err := nodeconfig.ParseWiring(file, text)
		if err == nil {
			err = n.cfg.CheckWiring(file, w)
		}
		if err == nil {
			n.rewire(w)
		}
		return err
	})
}

// watchConfig takes up other tables of PostgreSQL sources as the configuration
// names them.
func (n *node) watchConfig(ctx context.Context, file string) error {
	return n.watchFile(ctx, "configuration", file, func(text []byte) error {
		next, err := nodeconfig.Parse(file, text)
		if err != nil {
			return err
		}
		if !bytes.Equal(fixed(next), fixed(n.cfg)) {
			return errors.New("more has changed than the tables of PostgreSQL sources, which takes a start of the node: start it again")
		}
		for i, s := range next.Sources {
			if s.Postgres == nil {
				continue
			}
			if err := n.database(n.cfg.Sources[i].Name).retable(tablesOf(s.Postgres.Tables)); err != nil {
				return fmt.Errorf("source %q: %w", s.Name, err)
			}
		}
		return nil
	})
}

// fixed is what of a configuration takes effect only as the node starts.
func fixed(c *nodeconfig.Config) []byte {
	text, err := c.Fixed().Marshal()
	if err != nil { // it was parsed, or is running
		panic(err)
	}
	return text
}

// database returns the PostgreSQL source of a name that the configuration has.
func (n *node) database(name string) *database {
	i := slices.IndexFunc(n.databases, func(d *database) bool { return d.name == name })
	return n.databases[i]
}

// retable makes the tables of a source others.
func (d *database) retable(tables []engine.TableName) error {
	if slices.Equal(d.tables, tables) {
		return nil
	}
	if err := d.source.SetTables(tables); err != nil {
		return err
	}
	added, gone := difference(tables, d.tables), difference(d.tables, tables)
	d.tables = tables
	d.log.Info("other tables are replicated", "source", d.name, "added", added, "taken_out", gone)
	return nil
}

// difference returns the names of a that are not in b.
func difference(a, b []engine.TableName) (names []string) {
	for _, t := range a {
		if !slices.Contains(b, t) {
			names = append(names, t.String())
		}
	}
	return names
}

// tablesOf returns the names of configured tables.
func tablesOf(all []nodeconfig.Table) []engine.TableName {
	var tables []engine.TableName
	for _, t := range all {
		tables = append(tables, engine.TableName{Schema: t.Schema, Name: t.Name})
	}
	return tables
}

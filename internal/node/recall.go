package node

import (
	"context"
	"errors"
	"time"

	"github.com/tributary-dev/tributary/pkg/archive"
	places "github.com/tributary-dev/tributary/pkg/archive/dest/build"
	"github.com/tributary-dev/tributary/pkg/engine"
	"github.com/tributary-dev/tributary/pkg/nodeconfig"
)

// recallIn bounds how long the archives that are there are read for.
const recallIn = 30 * time.Second

// recall has a source of a node that archives once go on with the log that it has minted when it did so before: the node's
// store is empty each time, but its archives are not. What cannot be read says so when it is written.
func (n *node) recall(ctx context.Context, s *nodeconfig.Source, given map[string]engine.Known) error {
	k, ok := given[s.Name]
	if !ok && n.once && s.Postgres != nil {
		k, ok = n.archivedOf(ctx, s), true
	}
	if !ok {
		return nil
	}
	return n.engine.Recall(s.Name, k)
}

// archivedOf is what the archives that the node writes say of a source's log.
func (n *node) archivedOf(ctx context.Context, s *nodeconfig.Source) engine.Known {
	ctx, cancel := context.WithTimeout(ctx, recallIn)
	defer cancel()
	var all []*archive.Manifest
	var written []engine.TableName
	for i := range n.cfg.Archives {
		a := &n.cfg.Archives[i]
		d, err := places.Destination(ctx, a.Store, &a.StoreConfig)
		if err != nil || a.Write == nil {
			continue
		}
		tables := a.Tables
		if len(tables) == 0 {
			tables = s.Postgres.Tables
		}
		for _, t := range tables {
			name := engine.TableName{Schema: t.Schema, Name: t.Name}
			r, err := archive.NewReader(archive.ReaderConfig{Destination: d, Prefix: a.Prefix(t), Table: name})
			if err != nil {
				continue
			}
			m, err := r.Manifest(ctx)
			switch {
			case err == nil:
				all, written = append(all, m), append(written, name)
			case !errors.Is(err, archive.ErrNoArchive):
				n.log.Warn("the archive that is there cannot be read: its log is not gone on with", "archive", a.Name, "table", name.String(), "error", err)
			}
		}
	}
	return archive.Known(engine.Origin(n.cfg.Node.ID, s.Name), written, all...)
}

package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/tributary-dev/tributary/pkg/archive/export"
	"github.com/tributary-dev/tributary/pkg/nodeconfig"
	"github.com/tributary-dev/tributary/pkg/readapi"
)

const (
	// sourcePatience is how long a source may fail before a node that archives once gives
	// up: what started it tries again.
	sourcePatience = 2 * time.Minute
	// progressEvery is how often it says how far it is.
	progressEvery = 10 * time.Second
)

// archiveOnce writes a new base of every table to every archive that the node is to
// write, once every source has been baselined.
func (n *node) archiveOnce(ctx context.Context) error {
	writes := false
	for _, a := range n.archives.all {
		if a.err != nil {
			return fmt.Errorf("archive %s cannot be used: %w", a.cfg.Name, a.err)
		}
		writes = writes || a.exporter != nil
	}
	if !writes {
		return errors.New("the configuration has no archive that the node is to write: give one of archives the block write")
	}
	if err := n.untilReady(ctx); err != nil {
		return err
	}
	for _, a := range n.archives.all {
		if a.exporter == nil {
			continue
		}
		n.log.Info("archiving", "archive", a.cfg.Name, "destination", a.destination.Describe())
		if err := n.exportOnce(ctx, a); err != nil {
			return fmt.Errorf("archive %s at %s: %w", a.cfg.Name, a.destination.Describe(), err)
		}
	}
	return nil
}

// untilReady waits until every source has been baselined.
func (n *node) untilReady(ctx context.Context) error {
	failing := map[string]time.Time{}
	for {
		changed, st := n.engine.Changed(), n.Status()
		if st.Ready {
			return nil
		}
		for _, s := range st.Sources {
			if s.State != nodeconfig.StateFailed {
				delete(failing, s.Name)
			} else if since, ok := failing[s.Name]; !ok {
				failing[s.Name] = time.Now()
			} else if time.Since(since) > sourcePatience {
				return fmt.Errorf("source %s: %s: %s", s.Name, s.Reason, s.Message)
			}
		}
		select {
		case <-ctx.Done():
			return errUnwritten
		case <-changed:
		case <-time.After(time.Second):
		}
	}
}

var errUnwritten = errors.New("the node was told to end before the archive was written")

// exportOnce brings one archive to what the node holds, and says how far it is
// meanwhile.
func (n *node) exportOnce(ctx context.Context, a *archived) error {
	done := make(chan error, 1)
	go func() { done <- a.exporter.Once(ctx, true) }()
	tick := time.NewTicker(progressEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			written, doing := 0, []string{}
			for t, st := range a.exporter.Status().Tables {
				if st.Doing != "" {
					doing = append(doing, readapi.FormatTable(t))
				} else if st.Generation > 0 {
					written++
				}
			}
			slices.Sort(doing)
			n.log.Info("archiving goes on", "archive", a.cfg.Name, "written", written, "under way", doing)
			continue
		case err := <-done:
			if ctx.Err() != nil {
				return errUnwritten
			}
			if err != nil {
				return err
			}
		}
		st := a.exporter.Status()
		if st.State != export.StateStreaming {
			return errors.New(st.Message)
		}
		missing := []string{}
		for _, t := range tablesOf(a.cfg.Tables) {
			if st.Tables[t].Generation == 0 {
				missing = append(missing, readapi.FormatTable(t))
			}
		}
		if len(missing) > 0 {
			return fmt.Errorf("the node does not have %s: name tables that its sources have", strings.Join(missing, ", "))
		}
		r := n.archiveResult(nil)
		n.log.Info("archived", "archive", a.cfg.Name, "tables", r.Tables, "bytes", r.Bytes, "generation", r.Generation)
		return nil
	}
}

// archiveResult is the last word of a node that archives once: of the first archive
// that it writes.
func (n *node) archiveResult(err error) (out nodeconfig.ArchiveResult) {
	if n.archives != nil {
		for _, a := range n.archives.describe() {
			if a.Writes {
				out = a.Result()
				break
			}
		}
	}
	if err != nil {
		out.Error = err.Error()
	}
	return out
}

// leaveResult writes the last word of a node that archives once.
func (n *node) leaveResult(file string, err error) error {
	if file == "" {
		return nil
	}
	if err := os.WriteFile(file, n.archiveResult(err).Encode(), 0o644); err != nil { //nolint:gosec // it is for others to read
		return fmt.Errorf("the result cannot be left: %w", err)
	}
	return nil
}

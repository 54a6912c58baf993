package main

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/layout"
)

// pruneCommand returns the verb prune.
func (t *tool) pruneCommand() *cobra.Command {
	cmd := t.command(verb{
		name: "prune", words: "[PATH]", root: true, short: "remove empty directories that nothing removes by itself, after a question",
		long: `
PATH is / by default. On etcd versions of coord before containers left the directory of each lock that was ever taken, and so
does a client that may not remove it. Prune removes the directories of locks, elections, semaphores, groups, queues,
transactions and shards that have nothing in them, and the directories above that are empty without them. It never
removes a value, a counter, a barrier, an item, a node of another program, or a directory that a client uses. A client
that uses one later makes it again.

It prints the paths. With --dry-run it removes nothing.`,
		example: `
coordctl prune --dry-run
coordctl prune /locks --yes`,
		exits: []int{exitNo},
		do:    t.prune,
	})
	cmd.Flags().BoolVar(&t.dry, "dry-run", false, "only print what would be removed")
	return cmd
}

// empty are the recipes whose directory says nothing when it is empty. A barrier is set as long as there
// is its node.
var empty = []layout.RecipeKind{
	layout.KindMutex, layout.KindRWMutex, layout.KindElection, layout.KindSemaphore, layout.KindGroup, layout.KindDoubleBarrier,
	layout.KindQueue, layout.KindPriorityQueue, layout.KindDelayQueue, layout.KindTwoPhase, layout.KindShards, layout.KindSchedule,
}

// pruner finds empty directories.
type pruner struct {
	s     backend.Session
	found []backend.Op // their deletions, children first
}

// mostPruned is the number of nodes in one commit.
const mostPruned = 32

// pruned is what prune has removed, as JSON.
type pruned struct {
	Path        string   `json:"path"`
	Removed     bool     `json:"removed"`
	Directories []string `json:"directories"`
}

func (t *tool) prune(ctx context.Context, c *coord.Client) error {
	s, err := c.Session(ctx)
	if err != nil {
		return err
	}
	ns := layout.Namespace(t.namespace)
	p := &pruner{s: s}
	stop := t.progress("reading the tree below %s", t.path)
	err = s.Sync(ctx, "/")
	if err == nil {
		_, err = p.look(ctx, []string{ns.Full(t.path)}, false)
	}
	stop()
	if err != nil {
		return err
	}
	if len(p.found) > 0 && !t.dry {
		if err := t.confirm(ctx, "remove the %d empty directories at and below %s", len(p.found), t.path); err != nil {
			return err
		}
	}
	removed := p.found
	if !t.dry {
		stop := t.progress("removing empty directories below %s", t.path)
		removed, err = p.remove(ctx, p.found)
		stop()
	}
	v := pruned{Path: t.path, Removed: !t.dry, Directories: []string{}}
	var b strings.Builder
	for _, op := range removed {
		rel := ns.Rel(op.Path)
		v.Directories = append(v.Directories, rel)
		b.WriteString(pathText(rel) + "\n")
	}
	return answered(t.done(ctx, v, b.String(), "  ", err))
}

// read returns the data of nodes, or an error for each.
func (p *pruner) read(ctx context.Context, paths []string) ([]backend.ReadResult, error) {
	if p.s.Features().Has(backend.Batches) {
		reads := make([]backend.Read, len(paths))
		for i, path := range paths {
			reads[i] = backend.Read{Path: path}
		}
		return p.s.ReadMany(ctx, reads...)
	}
	results := make([]backend.ReadResult, len(paths))
	for i, path := range paths {
		r := &results[i]
		r.Data, r.Stat, r.Err = p.s.Get(ctx, path, nil)
		if ctx.Err() != nil || errors.Is(r.Err, backend.ErrSessionLost) {
			return nil, r.Err
		}
	}
	return results, nil
}

// mostRead is the number of nodes that are read at once.
const mostRead = 512

// look finds the empty directories among nodes and below them. within is set for nodes of a recipe. It reports
// whether all the nodes are among them.
func (p *pruner) look(ctx context.Context, paths []string, within bool) (all bool, err error) {
	all = true
	for chunk := range slices.Chunk(paths, mostRead) {
		results, err := p.read(ctx, chunk)
		if err != nil {
			return false, err
		}
		for i, path := range chunk {
			prunable := false
			if results[i].Err == nil {
				if prunable, err = p.lookAt(ctx, path, results[i].Data, results[i].Stat, within); err != nil {
					return false, err
				}
			}
			all = all && prunable
		}
	}
	return all, nil
}

// lookAt is look for one node.
func (p *pruner) lookAt(ctx context.Context, path string, data []byte, stat backend.Stat, within bool) (bool, error) {
	if stat.EphemeralOwner != 0 || path == "/zookeeper" {
		return false, nil
	}
	kind, marked := layout.ParseMark(data)
	above := marked && kind == layout.KindDirectory // of recipes
	bare := true
	if stat.NumChildren > 0 {
		names, _, err := p.s.Children(ctx, path, nil)
		switch {
		case errors.Is(err, backend.ErrNotFound), errors.Is(err, backend.ErrDenied):
			return false, nil
		case err != nil:
			return false, err
		}
		slices.Sort(names)
		for i, name := range names {
			names[i] = strings.TrimSuffix(path, "/") + "/" + name
		}
		if bare, err = p.look(ctx, names, within || marked && !above); err != nil {
			return false, err
		}
	}
	switch {
	case !bare, path == "/", stat.Container: // the service, or the sessions of clients, remove containers
		return false, nil
	case marked:
		if !above && !slices.Contains(empty, kind) {
			return false, nil
		}
	case within, stat.NumChildren == 0, len(data) > 0, stat.Version > 0:
		return false, nil // without children it can be an item or a value, or mean something to its owner
	}
	p.found = append(p.found, backend.Delete(path, stat.Version))
	return true, nil
}

// remove removes nodes, and returns those that it has removed. It leaves a node that is in use, or was written, meanwhile.
func (p *pruner) remove(ctx context.Context, ops []backend.Op) (removed []backend.Op, err error) {
	for chunk := range slices.Chunk(ops, mostPruned) {
		some, err := p.removeSome(ctx, chunk)
		removed = append(removed, some...)
		if err != nil {
			return removed, err
		}
	}
	return removed, nil
}

func (p *pruner) removeSome(ctx context.Context, ops []backend.Op) ([]backend.Op, error) {
	_, err := p.s.Commit(ctx, ops...)
	switch {
	case err == nil:
		return ops, nil
	case ctx.Err() != nil || errors.Is(err, backend.ErrSessionLost):
		return nil, err
	case len(ops) > 1: // one of them is in use, or the reply was lost
		var removed []backend.Op
		for _, op := range ops {
			some, err := p.removeSome(ctx, []backend.Op{op})
			removed = append(removed, some...)
			if err != nil {
				return removed, err
			}
		}
		return removed, nil
	case errors.Is(err, backend.ErrNotFound):
		return ops, nil
	case errors.Is(err, backend.ErrNotEmpty), errors.Is(err, backend.ErrBadVersion):
		return nil, nil
	case backend.IsUncertain(err):
		return p.removeSome(ctx, ops)
	}
	return nil, err
}

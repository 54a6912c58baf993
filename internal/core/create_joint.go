package core

import (
	"context"
	"errors"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/kinds"
	"github.com/go-coord/coord/internal/layout"
	"github.com/go-coord/coord/internal/parallel"
)

// mostJoint is how often the joint commit of a call is sent: a second time, if the client's
// knowledge of the directories was out of date, or if the first one was not applied.
const mostJoint = 2

// CreateTogether creates the nodes of specs, each in another directory, with a joint commit. It returns
// nil if that failed; then the nodes that it may have created are removed in the background, or go
// with the session. It overwrites specs: a second attempt uses other names.
func (s *Session) CreateTogether(ctx context.Context, specs []Spec) []Node {
	states := make([]kinds.DirState, len(specs))
	for attempt := range mostJoint {
		var unknown []int
		for i := range specs {
			if sp := &specs[i]; attempt > 0 {
				*sp = NewSpec(s.c, sp.RecipeDir, sp.Kind, sp.Data)
			}
			known := false
			if states[i], known = s.c.kinds.Known(specs[i].RecipeDir); !known {
				unknown = append(unknown, i)
			}
		}
		if s.setDirStates(ctx, specs, states, unknown) != nil {
			return nil
		}
		nodes, err := s.commitTogether(ctx, specs, states)
		switch {
		case err == nil:
			return nodes
		case backend.IsUncertain(err):
			nodes, again := s.adoptTogether(ctx, err, specs)
			if !again {
				return nodes
			}
		case errs.IsNotFound(err), errors.Is(err, backend.ErrBadVersion), errs.Answers(err, backend.ErrDenied):
			for i := range specs {
				s.c.kinds.Forget(specs[i].Dir)
				if errors.Is(err, backend.ErrBadVersion) && states[i].Mark != nil && states[i].Version == backend.AnyVersion {
					s.overwrite(ctx, specs[i].RecipeDir, states[i])
				}
			}
		default:
			return nil
		}
	}
	return nil
}

// setDirStates sets the states of the directories of those specs whose indices are in unknown. The specs are in
// path order, and setDirStates creates missing directories one after the other. So a path above two of
// them has the permissions of the first one, as if the caller had nested the locks.
func (s *Session) setDirStates(ctx context.Context, specs []Spec, states []kinds.DirState, unknown []int) error {
	if len(unknown) == 0 {
		return nil
	}
	missing := make([]bool, len(unknown))
	err := parallel.Read(ctx, len(unknown), func(ctx context.Context, k int) (err error) {
		i := unknown[k]
		if states[i], err = s.DirState(ctx, specs[i].RecipeDir); errs.IsNotFound(err) {
			missing[k], err = true, nil
		}
		return err
	})
	for k, i := range unknown {
		if err == nil && missing[k] {
			if err = s.MakeDir(ctx, specs[i].RecipeDir); err == nil {
				states[i], err = s.DirState(ctx, specs[i].RecipeDir)
			}
		}
	}
	return err
}

// commitTogether sends one joint commit.
func (s *Session) commitTogether(ctx context.Context, specs []Spec, states []kinds.DirState) ([]Node, error) {
	ops := make([]backend.Op, 0, 2*len(specs))
	for i := range specs {
		sp := &specs[i]
		ops = append(ops, backend.Create(sp.Prefix, sp.Data, backend.EphemeralSequential))
		if states[i].Mark != nil {
			ops = append(ops, states[i].Write(sp.Dir))
		}
	}
	began := s.send()
	res, err := s.b.Commit(ctx, ops...)
	if err != nil {
		return nil, err
	}
	nodes := make([]Node, len(specs))
	paths := make([]string, len(specs))
	k := 0
	for i := range specs {
		created := res[k]
		paths[i] = created.Path
		k++
		var dir *backend.Stat
		if states[i].Mark != nil {
			dir = &res[k].Stat
			k++
			s.sent(began, dir)
		}
		n, merr := s.made(ctx, &specs[i], created, dir)
		if nodes[i] = n; merr == nil && s.b.Limits().Sequence-n.Seq <= layout.LeftClose {
			merr = errs.ErrDrained // the call must wait for the directory to be replaced
		}
		err = errors.Join(err, merr)
	}
	if err != nil {
		s.RemoveAllAndWait(paths)
		return nil, errs.ErrGone
	}
	return nodes, nil
}

// adoptTogether looks up the nodes of a joint commit that failed with err, whose outcome is
// unknown. If the commit was not applied, it may be sent again, with other names. Otherwise
// adoptTogether returns the nodes, or nil if any of them was not found; then all of them are
// removed.
func (s *Session) adoptTogether(ctx context.Context, err error, specs []Spec) (nodes []Node, again bool) {
	if ctx.Err() != nil || errs.IsOver(err) {
		s.removeAllAttemptsLater(specs)
		return nil, false
	}
	nodes = make([]Node, len(specs))
	found := make([]bool, len(specs))
	if parallel.Read(ctx, len(specs), func(ctx context.Context, i int) (err error) {
		nodes[i], found[i], err = s.adopt(ctx, &specs[i])
		return err
	}) != nil {
		s.removeAllAttemptsLater(specs)
		return nil, false
	}
	var paths []string
	whole := true
	for i := range nodes {
		if found[i] {
			paths = append(paths, nodes[i].Path)
		}
		whole = whole && found[i] && nodes[i].Czxid == nodes[0].Czxid && s.b.Limits().Sequence-nodes[i].Seq > layout.LeftClose
	}
	s.resolved(ctx, specs[0].Prefix, len(paths) > 0)
	// The Stats that show whether the directories are the known ones were lost.
	if whole && parallel.Read(ctx, len(specs), func(ctx context.Context, i int) error {
		if f, ok := s.c.kinds.Known(specs[i].RecipeDir); ok && f.Mark == nil {
			return nil
		}
		_, err := s.examineAnew(ctx, specs[i].RecipeDir, nodes[i].Path, 0)
		return err
	}) == nil {
		return nodes, false
	}
	s.RemoveAllAndWait(paths)
	return nil, len(paths) == 0
}

// removeAllAttemptsLater is RemoveAttemptsLater for nodes in several directories. It waits for the removals, see
// CleanUp.Wait.
func (s *Session) removeAllAttemptsLater(specs []Spec) {
	all := make([]*CleanUp, len(specs))
	for i, sp := range specs {
		all[i] = s.RemoveAttemptsLater(sp)
		all[i].Note(sp.Dir)
	}
	s.waitForAll(all...)
}

package contender

import (
	"context"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/errs"
)

// Neighbour is a watched node of the queue. The zero Neighbour is none.
type Neighbour struct {
	name string
	W    *backend.Watch
}

// Stop stops the watch.
func (n *Neighbour) Stop() {
	n.W.Stop()
	*n = Neighbour{}
}

// IsGone reports whether the node called name was deleted while it was watched.
func (n *Neighbour) IsGone(name string) bool { return n.name == name && n.W.Kind() == backend.Deleted }

// watches reports whether a watch on the node called name is armed and has not fired.
func (n *Neighbour) watches(name string) bool {
	return n.W != nil && n.name == name && n.W.Kind() == 0
}

// Aim appends the target to be armed so that the node called name is watched, or
// nothing if the node is watched already.
func (n *Neighbour) Aim(targets []backend.Target, dir, name string) []backend.Target {
	if n.watches(name) {
		return targets
	}
	n.Stop()
	*n = Neighbour{name, backend.NewWatch()}
	return append(targets, backend.Target{Path: dir + "/" + name, Children: true, Watch: n.W})
}

// Watch arms a watch on the node called name, unless one is armed already. It reports
// false if the node is gone.
func (n *Neighbour) Watch(ctx context.Context, s *core.Session, dir, name string) (bool, error) {
	if n.watches(name) {
		return true, nil
	}
	n.Stop()
	w, _, err := s.WatchDeletion(ctx, dir+"/"+name)
	if errs.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	*n = Neighbour{name, w}
	return true, nil
}

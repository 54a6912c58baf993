package coord

import (
	"context"

	"github.com/go-coord/coord/backend"
)

// neighbour is a watched node of the queue.
type neighbour struct {
	name string
	w    *backend.Watch
}

func (n *neighbour) stop() {
	n.w.Stop()
	*n = neighbour{}
}

// gone reports whether the node called name was deleted while it was watched.
func (n *neighbour) gone(name string) bool { return n.name == name && n.w.Kind() == backend.Deleted }

// watches reports whether a watch on the node called name is armed and has not fired.
func (n *neighbour) watches(name string) bool {
	return n.w != nil && n.name == name && n.w.Kind() == 0
}

// aim appends the target to be armed so that the node called name is watched, or
// nothing if the node is watched already.
func (n *neighbour) aim(targets []backend.Target, dir, name string) []backend.Target {
	if n.watches(name) {
		return targets
	}
	n.stop()
	*n = neighbour{name, backend.NewWatch()}
	return append(targets, backend.Target{Path: dir + "/" + name, Children: true, Watch: n.w})
}

// watch arms a watch on the node called name, unless one is armed already. It reports
// false if the node is gone.
func (n *neighbour) watch(ctx context.Context, s *session, dir, name string) (bool, error) {
	if n.watches(name) {
		return true, nil
	}
	n.stop()
	w, _, err := s.watchDeletion(ctx, dir+"/"+name)
	if isNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	*n = neighbour{name, w}
	return true, nil
}

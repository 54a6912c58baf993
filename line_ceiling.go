package coord

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/layout"
)

// isHigh reports whether the directory of a node with the number seq is to be replaced
// as soon as no other contender is in it.
func isHigh(seq int32) bool { return seq < 0 || seq >= layout.SeqSoft }

// removeWithDir deletes a node of this client that is no hold, and dir with it if dir
// is otherwise empty.
func (s *session) removeWithDir(ctx context.Context, path, dir string) error {
	if _, err := s.b.Commit(ctx, backend.Delete(path, backend.AnyVersion), backend.Delete(dir, backend.AnyVersion)); err == nil {
		return nil
	}
	return s.remove(ctx, path) // dir not empty, denied, or outcome unknown: the own node must go
}

// checkNumber returns nil for a place whose number is valid. Otherwise it removes the
// node, waits until the queue has drained and the directory is deleted, and returns
// errDrained. A try does not wait and gets ErrLocked. The error is ErrLimit past
// layout.SeqHard, or if foreign nodes keep the directory.
func (l *line) checkNumber(ctx context.Context, p place, try bool) error {
	if p.seq >= 0 && p.seq < layout.SeqClose {
		return nil
	}
	if err := p.s.remove(ctx, p.path); err != nil {
		p.s.giveUp(p.path)
		return err
	}
	if p.seq < 0 || p.seq >= layout.SeqHard {
		return fmt.Errorf("%w: sequence numbers of the directory are used up", ErrLimit)
	}
	for {
		w := backend.NewWatch()
		names, stat, err := p.s.b.Children(ctx, l.dir, w)
		if isNotFound(err) {
			return errDrained
		}
		if err != nil {
			return err
		}
		if stat.NumChildren == 0 {
			w.Stop()
			_, err := p.s.b.Commit(ctx, backend.Delete(l.dir, backend.AnyVersion))
			switch {
			case err == nil, isNotFound(err):
				return errDrained
			case errors.Is(err, backend.ErrNotEmpty), mayRepeat(ctx, err):
				continue
			}
			return err
		}
		if len(l.kinds.Order(names)) == 0 {
			w.Stop()
			return fmt.Errorf("%w: sequence numbers are used up, and foreign nodes keep the directory", ErrLimit)
		}
		if try {
			w.Stop()
			return ErrLocked
		}
		select {
		case <-w.Fired():
		case <-p.s.b.Done():
			return p.s.b.Err()
		case <-ctx.Done():
			w.Stop()
			return backend.ContextError(ctx)
		}
	}
}

// release and lost make a line the recipe of holds that each have a node of their own.
// If the number of the node is high, release deletes the directory too, provided that
// it is otherwise empty.
func (l *line) release(h *Hold) error {
	q, ok := l.kinds.Parse(base(h.Path()))
	if !ok || !isHigh(q.Seq) {
		return h.remove(nil)
	}
	_, err := h.removeWith(l.dir)
	return err
}

func (l *line) lost(*Hold) {}

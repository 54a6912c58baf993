package coord

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-coord/coord/backend"
)

// settle makes sure that the id belongs to n, our new node. Nothing that comes
// after it has a lower number, so one list shows all that can be in its way:
//
//   - A node that a lost session of ours has left, and the service has not
//     removed yet, goes first. Others may have been refused by it until then.
//   - What others have is taken over, or we withdraw: ErrDuplicate.
//
// Each of these is one commit that checks what it relies on: nothing is removed
// for a node of ours that is gone, and nobody is refused by a node that is gone.
func (m *Membership[T]) settle(ctx context.Context, s *session, n node, takeover bool) error {
	if n.seq < 0 || n.seq >= seqHard {
		return fmt.Errorf("%w: sequence numbers of the directory are used up", ErrLimit)
	}
	if n.siblings == 1 {
		return nil
	}
	pause := pauses{c: s.c}
	synced, withdrawing := false, false
	for {
		names, _, err := s.b.Children(ctx, m.g.path.full, nil)
		if err != nil && !isNotFound(err) {
			return err
		}
		l := m.rivals(names, n)
		if !l.own {
			if withdrawing {
				return m.duplicate()
			}
			if !synced {
				// A server that lags behind what it has answered before.
				synced = true
				if err := s.b.Sync(ctx, m.g.path.full); err != nil {
					return err
				}
				continue
			}
			if takeover && l.newer {
				return m.duplicate() // taken over from us in turn
			}
			return errGone
		}
		var ops []backend.Op
		refused := false
		switch {
		case len(l.zombies) > 0:
			ops = removeUnder(n.path, l.zombies)
		case len(l.older) == 0:
			return nil
		case takeover:
			ops = removeUnder(n.path, l.older)
		default:
			refused = true
			ops = []backend.Op{backend.Check(l.first.path, backend.AnyVersion), backend.Delete(n.path, backend.AnyVersion)}
		}
		_, err = s.b.Commit(ctx, ops...)
		switch {
		case err == nil && refused:
			return m.duplicate()
		case err == nil, isNotFound(err):
		case mayRepeat(ctx, err):
			withdrawing = withdrawing || refused
			pause.wait(ctx.Done(), s.b.Done())
			if err := s.b.Sync(ctx, m.g.path.full); err != nil {
				return err
			}
		default:
			return err
		}
	}
}

// removeUnder removes nodes on the condition that the one at own stands.
func removeUnder(own string, paths []string) []backend.Op {
	ops := []backend.Op{backend.Check(own, backend.AnyVersion)}
	for _, p := range paths {
		ops = append(ops, backend.Delete(p, backend.AnyVersion))
	}
	return ops
}

func (m *Membership[T]) duplicate() error { return fmt.Errorf("%w: %q", ErrDuplicate, m.id) }

// rivals is what a list shows of an id.
type rivals struct {
	own   bool
	newer bool     // others that came after the own node
	older []string // paths of those of others that came before it
	first struct { // of those
		memberNode
		path string
	}
	zombies []string // paths of those that lost sessions of ours have left
}

func (m *Membership[T]) rivals(names []string, n node) (l rivals) {
	own := memberNode{name: base(n.path), id: m.id, seq: n.seq}
	for _, name := range names {
		other, ok := parseMember(name)
		switch {
		case name == own.name:
			l.own = true
		case !ok || other.id != m.id:
		case m.isMine(name):
			l.zombies = append(l.zombies, m.g.path.full+"/"+name)
		case other.older(own):
			path := m.g.path.full + "/" + name
			if len(l.older) == 0 || other.older(l.first.memberNode) {
				l.first.memberNode, l.first.path = other, path
			}
			l.older = append(l.older, path)
		default:
			l.newer = true
		}
	}
	return l
}

// isMine reports whether a node is a trace of this membership, or of one that is
// over.
func (m *Membership[T]) isMine(name string) bool {
	if slices.ContainsFunc(m.mine, func(sp spec) bool { return strings.HasPrefix(name, base(sp.prefix)) }) {
		return true
	}
	m.g.mu.Lock()
	defer m.g.mu.Unlock()
	return slices.ContainsFunc(m.g.ghosts[m.id], func(x ghost) bool { return strings.HasPrefix(name, x.prefix) })
}

// ghost is the name, up to the number, of a node of a Join or Membership of this
// Group that is over. It may stand for a while: it is being removed, or the
// service has not ended its session yet. Nobody is refused by his own ghost.
type ghost struct {
	prefix string
	since  time.Time
}

const (
	// mostGhosts bounds what is remembered of lost nodes, for each id. It takes one
	// lost session for each.
	mostGhosts = 64
	// ghostsLast is for how long a ghost is remembered: far longer than a service
	// lets a dead session stand.
	ghostsLast = 10 * time.Minute
)

// bury remembers nodes of ours that nobody answers for any more.
func (g *Group[T]) bury(id string, specs []spec) {
	now := time.Now()
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ghosts == nil {
		g.ghosts = make(map[string][]ghost)
	}
	for other, list := range g.ghosts {
		if now.Sub(list[len(list)-1].since) > ghostsLast {
			delete(g.ghosts, other)
		}
	}
	list := g.ghosts[id]
	for _, sp := range specs {
		list = append(list, ghost{base(sp.prefix), now})
	}
	if len(list) > 0 {
		g.ghosts[id] = list[max(0, len(list)-mostGhosts):]
	}
}

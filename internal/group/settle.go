package group

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/contender"
	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/layout"
	"github.com/go-coord/coord/internal/nodepath"
)

// settle makes sure that the id belongs to n, the new node of m. Nodes that are
// created later have higher numbers, so one listing shows all nodes that can have the id
// instead of n:
//
//   - Nodes of this membership's lost sessions, which the service has not removed
//     yet, are removed first. Until then other newcomers may be refused because of
//     them.
//   - Older nodes of other members are removed if takeover is set. Otherwise n is
//     removed, and the error is ErrDuplicate.
//
// Each of these steps is one commit that checks its premise: no node is removed on
// behalf of an own node that is gone, and no newcomer is refused because of a node
// that is gone.
func (m *Membership) settle(ctx context.Context, s *core.Session, n core.Node, takeover bool) error {
	if contender.NumbersLeft(s, n.Seq) <= layout.LeftHard {
		return fmt.Errorf("%w: the sequence numbers of the directory are exhausted", errs.ErrLimit)
	}
	if n.Siblings == 1 {
		return nil
	}
	pause := core.NewPauses(s.Client())
	synced, withdrawing := false, false
	for {
		names, _, err := s.Backend().Children(ctx, m.g.path.Full(), nil)
		if err != nil && !errs.IsNotFound(err) {
			return err
		}
		if err := s.ConfirmKind(ctx, m.g.recipeDir(), n.Path, names); err != nil {
			return err
		}
		l := m.rivals(names, n)
		if !l.own {
			if withdrawing {
				return m.duplicate()
			}
			if !synced {
				// The server may lag behind its earlier answers.
				synced = true
				if err := s.Backend().Sync(ctx, m.g.path.Full()); err != nil {
					return err
				}
				continue
			}
			if takeover && l.newer {
				return m.duplicate() // another member took the id over in turn
			}
			return errs.ErrGone
		}
		var ops []backend.Op
		refused := false
		switch {
		case len(l.orphans) > 0:
			ops = removeUnder(n.Path, l.orphans)
		case len(l.older) == 0:
			return nil
		case takeover:
			ops = removeUnder(n.Path, l.older)
		default:
			refused = true
			ops = []backend.Op{backend.Check(l.first.path, backend.AnyVersion), backend.Delete(n.Path, backend.AnyVersion)}
		}
		_, err = s.Backend().Commit(ctx, ops...)
		switch {
		case err == nil && refused:
			return m.duplicate()
		case err == nil, errs.IsNotFound(err):
		case errs.MayRepeat(ctx, err):
			withdrawing = withdrawing || refused
			pause.Wait(ctx.Done(), s.Backend().Done())
			if err := s.Backend().Sync(ctx, m.g.path.Full()); err != nil {
				return err
			}
		default:
			return err
		}
	}
}

// removeUnder returns the operations that remove the nodes if the one at own
// exists.
func removeUnder(own string, paths []string) []backend.Op {
	ops := []backend.Op{backend.Check(own, backend.AnyVersion)}
	for _, p := range paths {
		ops = append(ops, backend.Delete(p, backend.AnyVersion))
	}
	return ops
}

func (m *Membership) duplicate() error { return fmt.Errorf("%w: %q", errs.ErrDuplicate, m.id) }

// rivals is the result of a listing for one id.
type rivals struct {
	own   bool     // the own node exists
	newer bool     // nodes of other members exist that were created after the own node
	older []string // paths of nodes of other members that were created before the own node
	first struct { // the first of older
		layout.MemberNode
		path string
	}
	orphans []string // paths of nodes that lost sessions of this membership have left
}

func (m *Membership) rivals(names []string, n core.Node) (l rivals) {
	own := layout.MemberNode{Name: nodepath.Base(n.Path), ID: m.id, Seq: n.Seq}
	for _, name := range names {
		other, ok := layout.ParseMember(name)
		switch {
		case name == own.Name:
			l.own = true
		case !ok || other.ID != m.id:
		case m.isMine(name):
			l.orphans = append(l.orphans, m.g.path.Full()+"/"+name)
		case other.Older(own):
			path := m.g.path.Full() + "/" + name
			if len(l.older) == 0 || other.Older(l.first.MemberNode) {
				l.first.MemberNode, l.first.path = other, path
			}
			l.older = append(l.older, path)
		default:
			l.newer = true
		}
	}
	return l
}

// isMine reports whether a node was left by this membership, or by an earlier membership of this
// Group.
func (m *Membership) isMine(name string) bool {
	if slices.ContainsFunc(m.mine, func(sp core.Spec) bool { return strings.HasPrefix(name, nodepath.Base(sp.Prefix)) }) {
		return true
	}
	m.g.mu.Lock()
	defer m.g.mu.Unlock()
	return slices.ContainsFunc(m.g.leftovers[m.id], func(x leftover) bool { return strings.HasPrefix(name, x.prefix) })
}

// leftover is the name, without the number, of a node of a Join or Membership of this
// Group that is over. The node may exist for a while: it is being removed, or the
// service has not ended its session yet. A Join is never refused because of a leftover
// of its own Group.
type leftover struct {
	prefix string
	since  time.Time
}

const (
	// mostLeftovers bounds the leftovers that are remembered for each id. Each lost
	// session adds one.
	mostLeftovers = 64
	// leftoversLast is how long a leftover is remembered: far longer than a service keeps
	// a dead session.
	leftoversLast = 10 * time.Minute
)

// addLeftovers remembers nodes whose membership is over.
func (g *Group) addLeftovers(id string, specs []core.Spec) {
	now := time.Now()
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.leftovers == nil {
		g.leftovers = make(map[string][]leftover)
	}
	for other, list := range g.leftovers {
		if now.Sub(list[len(list)-1].since) > leftoversLast {
			delete(g.leftovers, other)
		}
	}
	list := g.leftovers[id]
	for _, sp := range specs {
		list = append(list, leftover{nodepath.Base(sp.Prefix), now})
	}
	if len(list) > 0 {
		g.leftovers[id] = list[max(0, len(list)-mostLeftovers):]
	}
}

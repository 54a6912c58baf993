package coord

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/layout"
	"github.com/go-coord/coord/trace"
)

// entrant is one node of an Enter, which waits for a round to take it in.
type entrant struct {
	d      *DoubleBarrier
	trail  *trail // nil without Trace
	s      *session
	path   string
	czxid  int64  // of the node at path; 0 if unknown
	prefix string // of all nodes of the same Enter
	guest  string // the path of its node as an extra, set before that is created
	sent   bool   // a commit of this entrant may have opened a round

	own   *backend.Watch // on its node
	ready *backend.Watch
	ahead neighbour // with WaitForNextRound: a member of the round in progress, whose end the entrant awaits
}

// enter creates a new node and waits for a round. If it returns an error, the node
// has been removed, or awaitCleanUps waits for its removal.
func (m *entrant) enter(ctx context.Context, sp spec) (*Entry, error) {
	// A node that another call of this client has left behind must not count beside
	// the new node, neither for this client nor for another one.
	if err := m.d.c.awaitCleanUps(ctx, m.d.members, sp.prefix); err != nil {
		return nil, err
	}
	s, err := m.d.c.session(ctx)
	if err != nil {
		return nil, err
	}
	if err := s.occupy(ctx, m.d.ground()); err != nil {
		return nil, err
	}
	n, err := s.create(ctx, &sp)
	if err != nil {
		if sp.made && s.b.Err() != nil {
			m.d.disownLost(s.b.ID(), sp)
		}
		return nil, err
	}
	m.s, m.path, m.czxid, m.prefix = s, n.path, n.czxid, sp.prefix
	e, err := m.await(ctx, n.siblings)
	m.stopWatches()
	if err != nil {
		m.d.takeOut(m.s, sp.prefix, "withdraw", m.undo, m.path, m.guest)
	}
	return e, err
}

// disownLost removes, in the background and over the next session, the nodes that a
// lost session may have created. The GUID alone does not identify them, because a
// call that goes on keeps its GUID.
func (d *DoubleBarrier) disownLost(lost int64, sp spec) {
	d.c.goCleanUp(func(ctx context.Context, u *cleanUp) {
		d.c.overSessions(ctx, func(s *session) {
			s.retry(ctx, u, "remove", sp.prefix, func(ctx context.Context) error {
				paths, err := s.find(ctx, []spec{sp})
				for _, p := range paths {
					err = errors.Join(err, d.removeOf(ctx, s, lost, p))
				}
				return err
			})
		})
	}).madeFor(sp.prefix).note(d.members)
}

// removeOf removes the node at path if the session with the ID owner created it, and
// spares a later node of the same name. The caller has made sure that the server has
// caught up.
func (d *DoubleBarrier) removeOf(ctx context.Context, s *session, owner int64, path string) error {
	stat, err := s.b.Exists(ctx, path, nil)
	if isNotFound(err) || err == nil && stat.EphemeralOwner != owner {
		return nil
	}
	if err != nil {
		return err
	}
	return s.remove(ctx, path)
}

// await waits until a round takes the entrant in. siblings is the number of nodes in
// the directory when its own node was created, or -1 if unknown.
//
// An entrant that counts n members opens the round. Each entrant counts after its
// arrival, and whenever a round has ended. So the last to arrive, or the first to see
// that the previous round has ended, opens the next one. An entrant that arrived when
// there were fewer than n members leaves the counting to those behind it, and watches
// ready.
func (m *entrant) await(ctx context.Context, siblings int32) (*Entry, error) {
	few := siblings >= 0 && int(siblings) < m.d.n
	// An entrant that may open the round needs no watch on its own node: the commit
	// checks the node.
	for glance := !few; ; glance = false {
		if !glance && (m.own == nil || m.own.Kind() != 0) {
			m.own.Stop()
			own, _, czxid, err := m.s.watchOwn(ctx, m.path)
			if err != nil {
				return nil, err // undo needs the czxid that was known before
			}
			m.own, m.czxid = own, czxid
		}
		var e *Entry
		wait, err := false, error(nil)
		if few {
			few = false
			wait, err = m.watchReady(ctx)
			wait = !wait
		}
		if !wait && err == nil {
			e, wait, err = m.look(ctx)
		}
		switch {
		case errors.Is(err, errAgain), err == nil && e == nil && glance:
			continue
		case err != nil || e != nil:
			return e, err
		case !wait:
			continue
		}
		m.trail.waiting(ctx, m.path, -1)
		if err := m.wait(ctx); err != nil {
			return nil, err
		}
		// The usual reason is that the round has opened.
		names, opened, err := m.d.readReady(ctx, m.s)
		if err != nil {
			return nil, err
		}
		if m.czxid != 0 && opened > m.czxid && slices.Contains(names, base(m.path)) {
			if e, err := m.in(ctx, names); !errors.Is(err, errAgain) {
				return e, err
			}
		}
	}
}

// wait returns nil when one of the entrant's watches has fired.
func (m *entrant) wait(ctx context.Context) error {
	select {
	case <-m.ready.Fired():
	case <-m.ahead.w.Fired():
	case <-m.own.Fired():
	case <-m.s.b.Done():
		return m.s.b.Err()
	case <-ctx.Done():
		return backend.ContextError(ctx)
	}
	return nil
}

func (m *entrant) stopWatches() {
	m.own.Stop()
	m.ready.Stop()
	m.ahead.stop()
}

// look reads the barrier and takes the next step. It returns an entry, or wait if the
// entrant can only wait, or errAgain.
func (m *entrant) look(ctx context.Context) (e *Entry, wait bool, err error) {
	// A node that a call of this client has left behind since enter must not count
	// either.
	if err := m.d.c.awaitCleanUps(ctx, m.d.members, m.prefix); err != nil {
		return nil, false, err
	}
	r, err := m.read(ctx)
	if err != nil {
		return nil, false, err
	}
	name := base(m.path)
	if !r.open || !m.d.next {
		m.ahead.stop()
	}
	switch {
	case slices.Contains(r.Living, name):
		e, err = m.in(ctx, r.names)
	case !slices.Contains(r.Waiting, name):
		err = errGone
	case r.open && len(r.Living) == 0:
		err = m.clear(ctx, r)
	case r.open && !m.d.next:
		e, err = m.join(ctx, r)
	case r.open:
		// The last member of the round removes ready, unless that member dies. So a
		// member is watched too.
		wait, err = m.ahead.watch(ctx, m.s, m.d.members, r.Living[0])
		if err == nil && !wait {
			err = errAgain
		}
	case len(r.Waiting) >= m.d.n:
		e, err = m.open(ctx, r)
	default:
		wait = true
	}
	return e, wait, err
}

// open opens the round of the n lowest members.
func (m *entrant) open(ctx context.Context, r round) (*Entry, error) {
	named := r.Waiting[:m.d.n]
	ops := make([]backend.Op, 0, len(named)+2)
	for _, name := range named {
		ops = append(ops, backend.Check(m.d.members+"/"+name, backend.AnyVersion))
	}
	ops = append(ops,
		backend.SetData(m.d.path.full, r.data, r.version),
		backend.Create(m.d.ready, []byte(strings.Join(named, "\n")), backend.Persistent))
	m.sent = true
	if err := m.commit(ctx, ops...); err != nil {
		return nil, err
	}
	if m.trail != nil {
		tell(ctx, m.d.c, trace.RoundOpened{Subject: m.trail.at(m.path), Members: len(named)})
	}
	if !slices.Contains(named, base(m.path)) {
		return nil, errAgain
	}
	return m.in(ctx, named)
}

// clear removes a stale ready, whose round has died.
func (m *entrant) clear(ctx context.Context, r round) error {
	err := m.commit(ctx,
		backend.Check(m.path, backend.AnyVersion),
		backend.SetData(m.d.path.full, r.data, r.version),
		backend.Delete(m.d.ready, backend.AnyVersion))
	if err == nil {
		err = errAgain
	}
	return err
}

// commit applies operations that check the state that was read, and so cannot apply
// twice.
func (m *entrant) commit(ctx context.Context, ops ...backend.Op) error {
	_, err := m.s.b.Commit(ctx, ops...)
	return m.s.lookAgain(ctx, m.d.members, err)
}

// join joins the round in progress as an extra.
func (m *entrant) join(ctx context.Context, r round) (*Entry, error) {
	if err := m.agree(r.names); err != nil {
		return nil, err
	}
	name := base(m.path)
	i := strings.LastIndex(name, layout.EntrantInfix)
	m.guest = m.d.members + "/" + name[:i] + layout.ExtraInfix + name[i+len(layout.EntrantInfix):]
	_, _, err := m.s.commitOnce(ctx,
		backend.Check(m.d.members+"/"+r.Living[0], backend.AnyVersion),
		backend.Delete(m.path, backend.AnyVersion),
		backend.Create(m.guest, nil, backend.Ephemeral))
	if isNotFound(err) {
		return nil, errAgain
	}
	if err != nil {
		return nil, err
	}
	return m.grant(ctx, m.guest, r.names, nil)
}

// in returns the entry of a member that a round has taken in.
func (m *entrant) in(ctx context.Context, names []string) (*Entry, error) {
	if err := m.agree(names); err != nil {
		return nil, err
	}
	return m.grant(ctx, m.path, names, m.own)
}

// agree returns an error if the round does not have n members.
func (m *entrant) agree(names []string) error {
	if len(names) != m.d.n {
		return fmt.Errorf("%w: the round has %d members, this client expects %d", ErrLimit, len(names), m.d.n)
	}
	return nil
}

// grant returns an entry with a hold on the node at path. own is the armed watch on
// that node, or nil.
func (m *entrant) grant(ctx context.Context, path string, names []string, own *backend.Watch) (*Entry, error) {
	e := &Entry{d: m.d, names: names, since: m.czxid, extra: path == m.guest}
	e.Hold = &Hold{s: m.s, path: path, trail: m.trail, recipe: e}
	c := m.d.c
	if err := m.s.grant(e.Hold, own); err != nil {
		return nil, err
	}
	m.trail.grant(ctx, e.Hold, 1)
	if own != nil {
		m.own = nil
		if !c.goWork(func() { e.watchNode(path, own) }) {
			own.Stop()
		}
	}
	return e, nil
}

// takeOut removes in the background, by do, the nodes of a member that gave up, and
// waits for that; see cleanUp.wait. If the session is lost, it removes the nodes over
// the next session: the service may not know of the loss yet, and would count them
// among the next n. prefix is that of the nodes of the call, or "".
func (d *DoubleBarrier) takeOut(s *session, prefix, what string, do func(context.Context) error, paths ...string) {
	d.c.goCleanUp(func(ctx context.Context, u *cleanUp) {
		if s.b.Err() == nil {
			s.retry(ctx, u, what, paths[0], do)
		}
		if s.b.Err() == nil {
			return
		}
		d.c.overSessions(ctx, func(next *session) {
			for _, path := range paths {
				if path == "" {
					continue
				}
				err := next.b.Sync(ctx, path)
				if err == nil {
					err = d.removeOf(ctx, next, s.b.ID(), path)
				}
				if err != nil && !isOver(err) {
					d.c.log.Warn("coord: cannot remove a node of a lost session, it stays until the service ends that session", "path", path, "error", err)
				}
			}
		})
	}).madeFor(prefix).wait(s, d.members)
}

// undo takes out an entrant that gave up. If a round has opened with it meanwhile,
// the other members see a member that has entered and left.
func (m *entrant) undo(ctx context.Context) error {
	if m.sent || m.guest != "" {
		// A commit of this entrant that is still under way takes effect before the
		// reads below.
		if err := m.s.b.Sync(ctx, m.d.members); err != nil {
			return err
		}
	}
	if m.guest != "" {
		if err := m.s.remove(ctx, m.guest); err != nil {
			return err
		}
	}
	names, opened, err := m.d.readReady(ctx, m.s)
	if err != nil {
		return err
	}
	if opened < m.czxid {
		names = nil // an older ready lists other nodes
	}
	return m.d.depart(ctx, m.s, m.path, names)
}

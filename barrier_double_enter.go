package coord

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/trace"
)

// entrant is one node that waits to get in.
type entrant struct {
	d      *DoubleBarrier
	trail  *trail // nil without Trace
	s      *session
	path   string
	czxid  int64  // of the node at path; 0: not known
	prefix string // of all nodes of the same Enter
	guest  string // the path of its node as an extra, once that may have been made
	sent   bool   // a commit of its own may have opened a round

	own   *backend.Watch // on its node
	ready *backend.Watch
	ahead neighbour // a member of the round that it waits for the end of
}

// enter comes with a new node and waits. When it returns an error, the node has been
// removed, or awaitCleanUps tells when it is.
func (m *entrant) enter(ctx context.Context, sp spec) (*Entry, error) {
	// Neither this client nor another must count what another call has left beside
	// the new node.
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

// disownLost removes, over the next session and in the background, what a lost one
// may have made. The GUID alone does not tell it: a call that goes on keeps that.
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

// removeOf removes a node that the session owner has left, and spares a later one of the
// name. The server that is read from has caught up.
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

// await looks until a round has taken it in. siblings is the number of nodes in
// the directory when its own was made, or -1.
//
// A round is opened by whoever sees n members: each counts after it has come, and
// whenever a round has ended, so the last to come or the first to see that the
// way is free opens it. Who came when there were fewer than n leaves the counting
// to those behind, and watches ready.
func (m *entrant) await(ctx context.Context, siblings int32) (*Entry, error) {
	few := siblings >= 0 && int(siblings) < m.d.n
	// Who may open the round needs no watch on his node: the commit checks it.
	for glance := !few; ; glance = false {
		if !glance && (m.own == nil || m.own.Kind() != 0) {
			m.own.Stop()
			own, _, czxid, err := m.s.watchOwn(ctx, m.path)
			if err != nil {
				return nil, err // undo needs the czxid as it was known
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
		// The usual reason: the round has opened.
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

// wait returns when something has changed.
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

// look reads the barrier and does what is to be done: it returns an entry, or wait
// if there is nothing but to wait, or errAgain.
func (m *entrant) look(ctx context.Context) (e *Entry, wait bool, err error) {
	// Nor what one has left meanwhile.
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
	case slices.Contains(r.living, name):
		e, err = m.in(ctx, r.names)
	case !slices.Contains(r.waiting, name):
		err = errGone
	case r.open && len(r.living) == 0:
		err = m.clear(ctx, r)
	case r.open && !m.d.next:
		e, err = m.join(ctx, r)
	case r.open:
		// ready goes with the last of the round, unless that one dies.
		wait, err = m.ahead.watch(ctx, m.s, m.d.members, r.living[0])
		if err == nil && !wait {
			err = errAgain
		}
	case len(r.waiting) >= m.d.n:
		e, err = m.open(ctx, r)
	default:
		wait = true
	}
	return e, wait, err
}

// open opens the round of the n lowest.
func (m *entrant) open(ctx context.Context, r round) (*Entry, error) {
	named := r.waiting[:m.d.n]
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

// clear removes a ready whose round has died.
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

// commit applies what is bound to what was read, and so cannot apply twice.
func (m *entrant) commit(ctx context.Context, ops ...backend.Op) error {
	_, err := m.s.b.Commit(ctx, ops...)
	return m.s.lookAgain(ctx, m.d.members, err)
}

// join joins the round in progress.
func (m *entrant) join(ctx context.Context, r round) (*Entry, error) {
	if err := m.agree(r.names); err != nil {
		return nil, err
	}
	name := base(m.path)
	i := strings.LastIndex(name, entrantKind)
	m.guest = m.d.members + "/" + name[:i] + extraKind + name[i+len(entrantKind):]
	_, _, err := m.s.commitOnce(ctx,
		backend.Check(m.d.members+"/"+r.living[0], backend.AnyVersion),
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

// in makes an entry of a member that a round has taken in.
func (m *entrant) in(ctx context.Context, names []string) (*Entry, error) {
	if err := m.agree(names); err != nil {
		return nil, err
	}
	return m.grant(ctx, m.path, names, m.own)
}

// agree returns an error if a round is not one of n members.
func (m *entrant) agree(names []string) error {
	if len(names) != m.d.n {
		return fmt.Errorf("%w: the round has %d members, this client expects %d", ErrLimit, len(names), m.d.n)
	}
	return nil
}

// grant makes the entry stand. own is the armed watch on its node, or nil.
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

// takeOut removes in the background what a member has left that gave up, by do, and
// waits for that, see cleanUp.wait. What goes with a lost session is removed over the
// next one: the service may not know of the loss yet, and would count the node among
// the next n. prefix is that of the nodes of the call, or "".
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
					d.c.log.Warn("coord: a node of a lost session stands until the service ends it", "path", path, "error", err)
				}
			}
		})
	}).madeFor(prefix).wait(s, d.members)
}

// undo takes an entrant out that gave up. If a round has opened with it meanwhile, it
// is a member that has come and left.
func (m *entrant) undo(ctx context.Context) error {
	if m.sent || m.guest != "" {
		// What is still under way comes before what follows.
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
		names = nil // they are those of other nodes
	}
	return m.d.depart(ctx, m.s, m.path, names)
}

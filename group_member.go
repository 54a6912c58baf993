package coord

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/trace"
)

// A Membership is one's own place in a group. It keeps itself: when the session
// is lost it joins again on the next one, and when somebody deletes its node it
// makes a new one. It ends when its owner leaves, when the client is closed, when
// the id is another's by then (ErrDuplicate), or when the service refuses
// (ErrDenied, ErrLimit).
//
// A process that is cut off, or paused, may believe in its membership for as
// long as that lasts; a membership is not exclusive as a lock is.
//
// A Membership is safe for concurrent use.
type Membership[T any] struct {
	g    *Group[T]
	id   string
	stop context.CancelFunc // ends keep
	done chan struct{}      // closed when it ends
	left chan struct{}      // closed when keep has ended

	now *latest[*stand] // its node; nil while it has none; final when it ends

	mine []spec // nodes of ours that may stand, the present one last; of Join, then of keep

	turn      chan struct{} // held by the SetValue under way
	unsettled *session      // a SetValue of it may still be applied; of the holder of turn

	mu       sync.Mutex
	data     []byte // of the next incarnation
	rev      int    // counts the changes of data
	err      error  // why it ended
	leaving  bool
	leaveErr error // written before left is closed
}

// stand is one incarnation.
type stand struct {
	s   *session
	n   node
	rev int // of the data that it was made with
}

// Join enters the group under an id: any text of at most 200 bytes that can be
// part of a node's name, without a slash. It returns when the node stands and the
// id is its own. ctx bounds the joining only; if it ends first, nothing is left
// behind.
//
// If the id is taken, Join returns ErrDuplicate, or with GroupOptions.TakeOver
// takes it over: the other's node is removed in the commit that checks the new one.
// Of several that take over at once the last wins. The Membership that was taken over
// ends with ErrDuplicate when it comes to join again and finds the successor. The
// service does not remember takeovers: if the successor has left by then, it joins again
// and stays. It can come late, as it is told only when it has contact; a process that
// must not come back closes its client.
//
// The node of a process that has died stands until the service has ended its
// session. Until then a successor with the same id gets ErrDuplicate, and tries
// again as long as it likes, or has TakeOver.
func (g *Group[T]) Join(ctx context.Context, id string, v T) (*Membership[T], error) {
	if err := g.path.check("join"); err != nil {
		return nil, err
	}
	if err := checkMemberID(id); err != nil {
		return nil, opError("join", g.path.full, err)
	}
	data, err := g.codec.encode(v)
	if err != nil {
		return nil, opError("join", g.path.full, err)
	}
	m := &Membership[T]{
		g: g, id: id, data: data,
		done: make(chan struct{}),
		left: make(chan struct{}),
		turn: make(chan struct{}, 1),
		now:  newLatest[*stand](nil),
	}
	st, err := m.enter(ctx, ctx, g.replace)
	if err != nil {
		return nil, opError("join", g.path.full, err)
	}
	m.now.set(st, false)
	m.joined(ctx, st, "join", false)
	life, stop := context.WithCancel(context.WithoutCancel(ctx))
	m.stop = stop
	if !g.c.goWork(func() { m.keep(life, st) }) {
		stop() // the node goes with the client's session
		return nil, opError("join", g.path.full, ErrClosed)
	}
	return m, nil
}

// ID is the id that was joined under.
func (m *Membership[T]) ID() string { return m.id }

// Done is closed when the membership has ended for good. It stays open while a
// lost session is being replaced.
func (m *Membership[T]) Done() <-chan struct{} { return m.done }

// Err is nil until Done is closed. Then it matches ErrReleased after Leave,
// ErrDuplicate, ErrClosed, or what the service refused with.
func (m *Membership[T]) Err() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.err
}

// Leave ends the membership: first Done is closed, then the node is removed, and
// Leave returns. It is idempotent, and takes no context since it must succeed:
// while contact is broken it waits, but not longer than the session can last,
// with which the node goes. If the service refuses the removal, Leave returns
// that error and goes on trying in the background. If the membership had ended
// before, it returns Err.
func (m *Membership[T]) Leave() error {
	m.mu.Lock()
	switch {
	case m.leaving:
		m.mu.Unlock()
		<-m.left
		return m.leaveErr
	case m.err != nil:
		defer m.mu.Unlock()
		return m.err
	}
	m.leaving = true
	m.err = opError("member", m.g.path.full, fmt.Errorf("%q left: %w", m.id, ErrReleased))
	close(m.done)
	m.mu.Unlock()
	m.now.set(nil, true)
	m.stop()
	<-m.left
	return m.leaveErr
}

// end ends the membership early.
func (m *Membership[T]) end(err error) {
	m.mu.Lock()
	if m.err == nil {
		m.err = opError("member", m.g.path.full, err)
		close(m.done)
	}
	m.mu.Unlock()
	m.now.set(nil, true)
}

// keep keeps the member there until ctx, which Leave ends, or for as long as it
// can.
func (m *Membership[T]) keep(ctx context.Context, st *stand) {
	defer close(m.left)
	defer m.stop()
	c := m.g.c
	for {
		err := st.watch(ctx)
		if ctx.Err() != nil {
			m.leaveErr = m.withdraw(st)
			m.parted(st, nil, false)
			return
		}
		m.now.set(nil, false)
		if isClosed(err) {
			m.end(ErrClosed)
			m.parted(st, ErrClosed, false)
			return
		}
		m.parted(st, err, true)
		c.log.Warn("coord: a member has lost its node and joins again", "path", st.n.path, "error", err)
		// A member that has the id by now keeps it: to take it back would be a fight.
		// Leave ends the wait for a session, and no request: what may have been made
		// is found, and then removed.
		next, err := m.enter(ctx, context.WithoutCancel(ctx), false)
		switch {
		case ctx.Err() != nil:
			if err == nil {
				m.leaveErr = m.withdraw(next)
			}
			m.parted(st, nil, false)
			return
		case err != nil:
			m.end(err)
			if !errors.Is(err, ErrClosed) {
				c.log.Error("coord: a member cannot join again", "path", m.g.path.full, "member", m.id, "error", err)
			}
			m.parted(st, err, false)
			return
		}
		st = next
		m.now.set(st, false)
		m.joined(context.Background(), st, "", true)
	}
}

// joined and parted tell of the member's coming and going.

func (m *Membership[T]) joined(ctx context.Context, st *stand, op string, again bool) {
	tell(ctx, m.g.c, trace.MemberJoined{
		Subject: trace.Subject{Recipe: "group", Path: m.g.path.full, Op: op, Node: st.n.path},
		Member:  m.id, Token: st.n.czxid, Again: again,
	})
}

func (m *Membership[T]) parted(st *stand, err error, rejoins bool) {
	tell(context.Background(), m.g.c, trace.MemberLeft{
		Subject: trace.Subject{Recipe: "group", Path: m.g.path.full, Node: st.n.path},
		Member:  m.id, Err: err, Rejoins: rejoins,
	})
}

// watch returns when the node has been deleted, errGone, when its session is
// over, or when ctx ends. The watch is on the children, of which it has none:
// nothing but the deletion fires it.
func (st *stand) watch(ctx context.Context) error {
	b := st.s.b
	pause := pauses{c: st.s.c}
	for {
		w, stat, err := st.s.watchDeletion(ctx, st.n.path)
		switch {
		case isNotFound(err), err == nil && stat.EphemeralOwner != b.ID():
			w.Stop()
			return errGone
		case err != nil && (isOver(err) || ctx.Err() != nil):
			return err
		case err != nil:
			st.s.c.log.Warn("coord: cannot watch a member's own node, trying again", "path", st.n.path, "error", err)
			pause.wait(ctx.Done(), b.Done())
			continue
		}
		pause.reset()
		select {
		case <-w.Fired():
			if w.Kind() == backend.Deleted {
				return errGone
			}
		case <-b.Done():
			return b.Err()
		case <-ctx.Done():
			w.Stop()
			return backend.ContextError(ctx)
		}
	}
}

// withdraw removes the node of a member that leaves. With a high number the
// directory goes too, should nobody else be in it: the next one begins at zero.
func (m *Membership[T]) withdraw(st *stand) error {
	ctx := context.Background() // the session bounds it
	if st.s.b.Err() != nil {
		m.abandon()
		return nil
	}
	var err error
	if isHigh(st.n.seq) {
		err = st.s.removeWithDir(ctx, st.n.path, m.g.path.full)
	} else {
		err = st.s.remove(ctx, st.n.path)
	}
	if err != nil {
		st.s.removeLater(st.n.path)
		m.g.bury(m.id, m.mine)
		return opError("leave", m.g.path.full, err)
	}
	if st.s.b.Err() != nil {
		m.abandon()
	}
	return nil
}

// abandon removes, over the next sessions and in the background, what lost sessions
// of ours may have left standing: the service can take a while to end them.
func (m *Membership[T]) abandon() {
	mine := m.mine
	m.mine = nil
	if len(mine) == 0 {
		return
	}
	m.g.bury(m.id, mine)
	c := m.g.c
	c.goWork(func() {
		c.overSessions(context.Background(), func(s *session) { // Close ends it
			if u := s.disown(mine...); u != nil {
				<-u.done
			}
		})
	})
}

// enter makes a node and makes sure of the id, on the next session if one is
// lost, until ctx ends. The requests are made with calls. When it fails, nothing
// stays.
func (m *Membership[T]) enter(ctx, calls context.Context, takeover bool) (*stand, error) {
	pause := pauses{c: m.g.c}
	for {
		st, err := m.enterOnce(ctx, calls, takeover)
		if err == nil {
			return st, nil
		}
		err, again := afterAttempt(ctx, err)
		if !again {
			if !isClosed(err) {
				m.abandon()
			}
			return nil, err
		}
		pause.wait(ctx.Done(), m.g.c.closing)
	}
}

func (m *Membership[T]) enterOnce(ctx, calls context.Context, takeover bool) (*stand, error) {
	s, err := m.g.c.session(ctx)
	if err == nil {
		err = backend.ContextError(ctx)
	}
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	data, rev := m.data, m.rev
	m.mu.Unlock()
	sp := newSpec(m.g.c, ground{dir: m.g.path.full, recipe: kindGroup}, memberKind+m.id+"-", data)
	m.mine = append(m.mine, spec{ground: sp.ground, kind: sp.kind, prefix: sp.prefix}) // the data has served
	m.mine = m.mine[max(0, len(m.mine)-mostGhosts):]
	n, err := s.create(calls, &sp)
	if err == nil {
		if err = m.settle(calls, s, n, takeover); err == nil {
			m.mine = m.mine[len(m.mine)-1:] // no other was found
			return &stand{s, n, rev}, nil
		}
		if !errors.Is(err, errGone) && !errors.Is(err, ErrDuplicate) && s.b.Err() == nil {
			s.removeLater(n.path)
		}
	}
	if s.b.Err() == nil {
		// What there is of it is being removed.
		last := len(m.mine) - 1
		m.g.bury(m.id, m.mine[last:])
		m.mine = m.mine[:last]
	}
	return nil, err
}

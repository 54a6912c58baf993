package coord

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/go-coord/coord/internal/line"

	"github.com/go-coord/coord/internal/core"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/layout"
	"github.com/go-coord/coord/trace"
)

// A Membership is the caller's own place in a group. It maintains itself: if the
// session is lost, it joins again on the next one, and if another program deletes
// its node, it makes a new one. It ends when its owner leaves, when the client is
// closed, when it joins again and another member has the id (ErrDuplicate), or when
// the service refuses (ErrDenied, ErrLimit).
//
// A process that is cut off or paused does not notice during that time that it is no
// longer a member. Unlike a lock, a membership is not exclusive.
//
// A Membership is safe for concurrent use.
type Membership[T any] struct {
	g    *Group[T]
	id   string
	stop context.CancelFunc // ends keep
	done chan struct{}      // closed when the membership ends
	left chan struct{}      // closed when keep has returned

	now *core.Latest[*stand] // its node; nil while there is none; final when it ends

	// Used by Join, then by keep.
	mine    []core.Spec   // own nodes that may still exist, the current one last
	removal *core.CleanUp // of the node of the latest attempt, if that has failed

	turn      chan struct{} // held by the current SetValue
	unsettled *core.Session // the session on which a SetValue may still be applied; guarded by turn

	mu       sync.Mutex
	data     []byte // for the next incarnation
	rev      int    // incremented with each change of data
	used     int    // the rev with which an incarnation was last attempted
	err      error  // why it ended
	leaving  bool
	leaveErr error // written before left is closed
}

// stand is an incarnation.
type stand struct {
	s   *core.Session
	n   core.Node
	rev int // of the data with which it was made
}

// Join enters the group under an id: any text of at most 200 bytes that can be part of a
// node's name, without a slash. It returns when the node exists and the id belongs to it.
// ctx bounds only the joining; if it ends first, Join removes its node, see "What is
// promised" in the package comment.
//
// If the id is taken, Join returns ErrDuplicate. The node of a dead process exists until
// the service has ended its session, so a successor with the same id retries, or uses
// GroupOptions.TakeOver.
//
// With TakeOver, Join removes the other member's node in a commit that checks the new node.
// If several take over at the same time, the last one wins. The Membership that was taken
// over ends with ErrDuplicate when it tries to join again and finds its successor, which
// can be late: it needs contact. If the successor has left by then, the old member joins
// again and stays. A process that must not come back closes its client.
func (g *Group[T]) Join(ctx context.Context, id string, v T) (*Membership[T], error) {
	if err := g.path.Check("join"); err != nil {
		return nil, err
	}
	if err := checkMemberID(g.c.Rules().CheckPath, id); err != nil {
		return nil, core.OpError("join", g.path.Full(), err)
	}
	data, err := g.codec.encode(v)
	if err != nil {
		return nil, core.OpError("join", g.path.Full(), err)
	}
	m := &Membership[T]{
		g: g, id: id, data: data,
		done: make(chan struct{}),
		left: make(chan struct{}),
		turn: make(chan struct{}, 1),
		now:  core.NewLatest[*stand](nil),
	}
	st, err := m.enter(ctx, ctx, g.replace)
	if err != nil {
		return nil, core.OpError("join", g.path.Full(), err)
	}
	m.now.Set(st, false)
	m.joined(ctx, st, "join", false)
	life, stop := context.WithCancel(context.WithoutCancel(ctx))
	m.stop = stop
	if !g.c.GoWork(func() { m.keep(life, st) }) {
		stop() // the node goes with the client's session
		return nil, core.OpError("join", g.path.Full(), ErrClosed)
	}
	return m, nil
}

// ID returns the id under which the member joined.
func (m *Membership[T]) ID() string { return m.id }

// Done returns a channel that is closed when the membership has ended for good. It
// stays open while a lost session is being replaced.
func (m *Membership[T]) Done() <-chan struct{} { return m.done }

// Err returns nil until Done is closed. Then the error matches ErrReleased after
// Leave, ErrDuplicate, ErrClosed, or the error with which the service refused.
func (m *Membership[T]) Err() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.err
}

// Leave ends the membership: it closes Done, removes the node, and returns. It is
// idempotent. It takes no context because it must succeed: without contact it
// waits, but not longer than the session can last, since the end of the session deletes
// the node. If the service refuses the removal, Leave returns that error and retries
// in the background. If the membership had ended before, Leave returns Err.
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
	m.err = core.OpError("member", m.g.path.Full(), fmt.Errorf("%q left: %w", m.id, ErrReleased))
	close(m.done)
	m.mu.Unlock()
	m.now.Set(nil, true)
	m.stop()
	<-m.left
	return m.leaveErr
}

// end ends the membership early, with err. It reports false if Leave has ended it.
func (m *Membership[T]) end(err error) bool {
	m.mu.Lock()
	early := m.err == nil
	if early {
		m.err = core.OpError("member", m.g.path.Full(), err)
		close(m.done)
	}
	m.mu.Unlock()
	m.now.Set(nil, true)
	return early
}

// keep maintains the membership until ctx ends, which Leave causes, or until it
// fails for good.
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
		m.now.Set(nil, false)
		if core.IsClosed(err) {
			m.end(ErrClosed)
			m.parted(st, ErrClosed, false)
			return
		}
		m.parted(st, err, true)
		c.Log().Warn("coord: a member lost its node, joining again", "path", st.n.Path, "error", err)
		// If another member has the id now, that member keeps it: taking it back
		// would start a fight. Leave ends the wait for a session but no request, so
		// that a node that may have been made is found and removed.
		next, err := m.enter(ctx, context.WithoutCancel(ctx), false)
		switch {
		case err == nil && ctx.Err() != nil:
			m.leaveErr = m.withdraw(next)
			m.parted(st, nil, false)
			return
		case err != nil && !m.end(err):
			// Leave was called, even if it has not ended ctx yet.
			m.leaveErr = core.OpError("leave", m.g.path.Full(), m.removal.Outcome())
			m.parted(st, nil, false)
			return
		case err != nil:
			if !errors.Is(err, ErrClosed) {
				c.Log().Error("coord: a member cannot join again, its membership has ended", "path", m.g.path.Full(), "member", m.id, "error", err)
			}
			m.parted(st, err, false)
			return
		}
		st = next
		m.now.Set(st, false)
		m.joined(context.Background(), st, "", true)
	}
}

// joined and parted trace the coming and going of the member.

func (m *Membership[T]) joined(ctx context.Context, st *stand, op string, again bool) {
	core.Emit(ctx, m.g.c, trace.MemberJoined{
		Subject: trace.Subject{Recipe: "group", Path: m.g.path.Full(), Op: op, Node: st.n.Path},
		Member:  m.id, Token: st.n.Czxid, Again: again,
	})
}

func (m *Membership[T]) parted(st *stand, err error, rejoins bool) {
	core.Emit(context.Background(), m.g.c, trace.MemberLeft{
		Subject: trace.Subject{Recipe: "group", Path: m.g.path.Full(), Node: st.n.Path},
		Member:  m.id, Err: err, Rejoins: rejoins,
	})
}

// watch returns core.ErrGone when the node has been deleted, and an error when its
// session is over or ctx ends. The watch is on the children of the node, which has
// none, so only the deletion fires it.
func (st *stand) watch(ctx context.Context) error {
	b := st.s.Backend()
	pause := core.NewPauses(st.s.Client())
	for {
		w, stat, err := st.s.WatchDeletion(ctx, st.n.Path)
		switch {
		case core.IsNotFound(err), err == nil && stat.EphemeralOwner != b.ID():
			w.Stop()
			return core.ErrGone
		case err != nil && (core.IsOver(err) || ctx.Err() != nil):
			return err
		case err != nil:
			st.s.Client().Log().Warn("coord: cannot watch the node of a member, retrying", "path", st.n.Path, "error", err)
			pause.Wait(ctx.Done(), b.Done())
			continue
		}
		pause.Reset()
		select {
		case <-w.Fired():
			if w.Kind() == backend.Deleted {
				return core.ErrGone
			}
		case <-b.Done():
			return b.Err()
		case <-ctx.Done():
			w.Stop()
			return backend.ContextError(ctx)
		}
	}
}

// withdraw removes the node of a member that leaves. If its number is high, it also
// removes the directory if that is empty, so that the numbers begin at zero again.
func (m *Membership[T]) withdraw(st *stand) error {
	ctx := context.Background() // the session bounds it
	if st.s.Backend().Err() != nil {
		m.abandon()
		return nil
	}
	var err error
	if line.IsHighNumber(st.s, st.n.Seq) {
		err = line.RemoveWithDir(ctx, st.s, st.n.Path, m.g.path.Full())
	} else {
		err = st.s.Remove(ctx, st.n.Path)
	}
	if err != nil {
		st.s.RemoveLater(st.n.Path)
		m.g.bury(m.id, m.mine)
		return core.OpError("leave", m.g.path.Full(), err)
	}
	if st.s.Backend().Err() != nil {
		m.abandon()
	}
	return nil
}

// abandon removes nodes that lost sessions of this membership may have left, over
// the next sessions and in the background: the service can take a while to end
// those sessions.
func (m *Membership[T]) abandon() {
	mine := m.mine
	m.mine = nil
	if len(mine) == 0 {
		return
	}
	m.g.bury(m.id, mine)
	c := m.g.c
	c.GoWork(func() {
		c.OverSessions(context.Background(), func(s *core.Session) { // Close ends it
			if u := s.RemoveAttemptsLater(mine...); u != nil {
				<-u.Done
			}
		})
	})
}

// enter makes a node and secures the id. If a session is lost, it goes on with the
// next one, until ctx ends. Its requests use calls as their context. If it fails,
// no node is left, or m.removal removes it.
func (m *Membership[T]) enter(ctx, calls context.Context, takeover bool) (*stand, error) {
	pause := core.NewPauses(m.g.c)
	for {
		st, err := m.enterOnce(ctx, calls, takeover)
		if err == nil {
			return st, nil
		}
		err, again := m.g.c.AfterAttempt(ctx, err)
		if !again {
			if !core.IsClosed(err) {
				m.abandon()
			}
			return nil, err
		}
		pause.Wait(ctx.Done(), m.g.c.Closing())
	}
}

func (m *Membership[T]) enterOnce(ctx, calls context.Context, takeover bool) (*stand, error) {
	// The node of an earlier call of this client, which may be that of another Group, must
	// not refuse the new one.
	if err := m.g.c.AwaitCleanUps(ctx, m.g.path.Full(), ""); err != nil {
		return nil, err
	}
	s, err := m.g.c.Live(ctx)
	if err == nil {
		err = backend.ContextError(ctx)
	}
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	data, rev := m.data, m.rev
	m.used = rev
	m.mu.Unlock()
	sp := core.NewSpec(m.g.c, m.g.recipeDir(), layout.MemberInfix+m.id+"-", data)
	m.mine = append(m.mine, core.Spec{RecipeDir: sp.RecipeDir, Kind: sp.Kind, Prefix: sp.Prefix}) // the data is not needed any more
	m.mine = m.mine[max(0, len(m.mine)-mostGhosts):]
	n, err := s.Create(calls, &sp)
	m.removal = sp.Left
	if err == nil {
		if err = m.settle(calls, s, n, takeover); err == nil {
			m.mine = m.mine[len(m.mine)-1:] // no other own node is left
			return &stand{s, n, rev}, nil
		}
		if !core.Answers(err, core.ErrGone) && !core.Answers(err, ErrDuplicate) && s.Backend().Err() == nil {
			m.removal = s.RemoveAndWait(n.Path)
		}
	}
	if s.Backend().Err() == nil {
		// Any node of this attempt is being removed.
		last := len(m.mine) - 1
		m.g.bury(m.id, m.mine[last:])
		m.mine = m.mine[:last]
	}
	return nil, err
}

// SetValue changes the member's value. After it returns nil, the node has the
// value, and so has every later incarnation. While the membership has no node,
// SetValue waits for the next one, until ctx ends. Concurrent calls are served in
// the order in which they arrive.
//
// If SetValue fails before the outcome is known, for example because ctx ends, the
// error also matches ErrUncertain: the change may become visible, but never after
// the change of a later SetValue. After any other error it does not become visible. If
// the membership ends first, the error matches that of Err.
func (m *Membership[T]) SetValue(ctx context.Context, v T) error {
	data, err := m.g.codec.encode(v)
	if err == nil {
		// Data with which the next incarnation could not be created is refused now.
		sp := core.NewSpec(m.g.c, m.g.recipeDir(), layout.MemberInfix+m.id+"-", nil)
		err = m.g.c.Rules().Limits().Refuse([]backend.Op{
			backend.Create(sp.Prefix, data, backend.EphemeralSequential), backend.Carry(sp.Dir, sp.Recipe.Mark()),
		})
	}
	if err != nil {
		return core.OpError("set", m.g.path.Full(), err)
	}
	select {
	case m.turn <- struct{}{}:
	case <-m.done:
		return m.Err()
	case <-ctx.Done():
		return core.OpError("set", m.g.path.Full(), m.g.c.ContextError(ctx))
	}
	defer func() { <-m.turn }()
	return core.OpError("set", m.g.path.Full(), m.setData(ctx, data))
}

func (m *Membership[T]) setData(ctx context.Context, data []byte) error {
	st, err := m.standing(ctx, nil)
	if err != nil {
		return err
	}
	// The data is stored before it is sent: the session may be lost at any time,
	// and the next incarnation must not go back behind a value that others have
	// seen.
	m.mu.Lock()
	old := m.data
	m.data = data
	m.rev++
	rev := m.rev
	m.mu.Unlock()
	pause := core.NewPauses(m.g.c)
	for definite := true; ; {
		err := m.write(ctx, st, data)
		switch {
		case err == nil:
			return nil
		case core.IsUncertain(err):
			definite = false
			m.unsettled = st.s
		}
		switch {
		case core.MayRepeat(ctx, err):
			pause.Wait(ctx.Done(), st.s.Backend().Done())
			continue
		case ctx.Err() == nil && (core.IsNotFound(err) || core.IsOver(err)):
			// The session is lost or the node deleted; the next incarnation may
			// have the new data already.
			if st, err = m.standing(ctx, st); err == nil {
				if st.rev == rev {
					return nil
				}
				continue
			}
		}
		if definite && m.takeBack(rev, old) {
			return err
		}
		return backend.Uncertain(err)
	}
}

// write writes the data of the node, ordered after all earlier writes.
func (m *Membership[T]) write(ctx context.Context, st *stand, data []byte) error {
	if m.unsettled == st.s {
		// A write whose outcome is unknown could be applied after this one.
		if err := st.s.Backend().Sync(ctx, st.n.Path); err != nil {
			return err
		}
	}
	m.unsettled = nil
	_, err := st.s.Backend().Commit(ctx, backend.SetData(st.n.Path, data, backend.AnyVersion))
	return err
}

// takeBack restores the old data unless an incarnation may have been made with the
// data of rev.
func (m *Membership[T]) takeBack(rev int, old []byte) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.used == rev {
		return false
	}
	m.data = old
	return true
}

// standing waits for an incarnation other than not.
func (m *Membership[T]) standing(ctx context.Context, not *stand) (*stand, error) {
	for {
		st, changed, ended := m.now.Get()
		if ended {
			return nil, m.Err()
		}
		if st != nil && st != not {
			return st, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, backend.ContextError(ctx)
		}
	}
}

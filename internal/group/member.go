package group

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/contender"
	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/latest"
	"github.com/go-coord/coord/internal/layout"
	"github.com/go-coord/coord/trace"
)

// A Membership is the caller's own place in a group. Its goroutine (keep) maintains it: if the session is lost,
// the member joins again on the next session, and if another client deletes its node, it creates another. The
// membership ends when its owner leaves, when the client is closed, when the member joins again and
// another member has the id (ErrDuplicate), or when the service refuses.
type Membership struct {
	g    *Group
	id   string
	stop context.CancelFunc // makes keep return
	done chan struct{}      // closed when the membership ends
	left chan struct{}      // closed when keep has returned

	now *latest.Value[*incarnation] // its node; nil while there is none; final when it ends

	// Used by Join, then by keep.
	mine    []core.Spec   // own nodes that may still exist, the current one last
	removal *core.CleanUp // of the node of the latest attempt, if that has failed

	turn      chan struct{} // held by the current Set
	unsettled *core.Session // the session on which a Set may still be applied; guarded by turn

	mu       sync.Mutex
	data     []byte // for the next incarnation
	rev      int    // incremented with each change of data
	used     int    // the rev with which an incarnation was last attempted
	err      error  // why it ended
	leaving  bool
	leaveErr error // written before left is closed
}

// incarnation is the node of a member on one session.
type incarnation struct {
	s   *core.Session
	n   core.Node
	rev int // of the data with which it was created
}

// Join enters the group under an id, with the data of the member's node. It returns when the node exists
// and the id belongs to it. ctx bounds only the joining. If the id is taken, Join returns ErrDuplicate,
// unless the group takes ids over: then it removes the other member's node, see settle. The member that
// was taken over ends with ErrDuplicate when it joins again and finds its successor.
func (g *Group) Join(ctx context.Context, id string, data []byte) (*Membership, error) {
	if err := g.CheckMember("join", id); err != nil {
		return nil, err
	}
	m := &Membership{
		g: g, id: id, data: data,
		done: make(chan struct{}),
		left: make(chan struct{}),
		turn: make(chan struct{}, 1),
		now:  latest.NewValue[*incarnation](nil),
	}
	inc, err := m.enter(ctx, ctx, g.takeOver)
	if err != nil {
		return nil, errs.Op("join", g.path.Full(), err)
	}
	m.now.Set(inc, false)
	m.emitJoined(ctx, inc, "join", false)
	life, stop := context.WithCancel(context.WithoutCancel(ctx))
	m.stop = stop
	if !g.c.GoWork(func() { m.keep(life, inc) }) {
		stop() // the node goes with the client's session
		return nil, errs.Op("join", g.path.Full(), backend.ErrClosed)
	}
	return m, nil
}

// Group returns the group of the membership.
func (m *Membership) Group() *Group { return m.g }

// ID returns the id under which the member joined.
func (m *Membership) ID() string { return m.id }

// Done returns a channel that is closed when the membership has ended for good.
func (m *Membership) Done() <-chan struct{} { return m.done }

// Err returns nil until Done is closed, and then why the membership has ended.
func (m *Membership) Err() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.err
}

// Leave ends the membership: it closes Done, removes the node, and returns. Without contact it waits, but
// not longer than the session can last, since the end of the session deletes the node. If the service
// refuses the removal, Leave returns that error and retries in the background.
func (m *Membership) Leave() error {
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
	m.err = errs.Op("member", m.g.path.Full(), fmt.Errorf("%q left: %w", m.id, errs.ErrReleased))
	close(m.done)
	m.mu.Unlock()
	m.now.Set(nil, true)
	m.stop()
	<-m.left
	return m.leaveErr
}

// end ends the membership early, with err. It reports false if Leave has ended it.
func (m *Membership) end(err error) bool {
	m.mu.Lock()
	early := m.err == nil
	if early {
		m.err = errs.Op("member", m.g.path.Full(), err)
		close(m.done)
	}
	m.mu.Unlock()
	m.now.Set(nil, true)
	return early
}

// keep maintains the membership until Leave ends ctx, or until the member cannot join again.
func (m *Membership) keep(ctx context.Context, inc *incarnation) {
	defer close(m.left)
	defer m.stop()
	c := m.g.c
	short := core.NewShortage(c, "join again", m.g.path.Full())
	for {
		err := inc.watch(ctx)
		if ctx.Err() != nil {
			m.leaveErr = m.withdraw(inc)
			m.emitLeft(inc, nil, false)
			return
		}
		m.now.Set(nil, false)
		if errs.IsClosed(err) {
			m.end(backend.ErrClosed)
			m.emitLeft(inc, backend.ErrClosed, false)
			return
		}
		m.emitLeft(inc, err, true)
		c.Log().Warn("coord: a member lost its node, joining again", "path", inc.n.Path, "error", err)
		// If another member has the id now, that member keeps it: taking it back
		// would start a fight. Leave ends the wait for a session but no request, so
		// that a node that may have been made is found and removed.
		next, err := m.enter(ctx, context.WithoutCancel(ctx), false)
		for short.Waited(ctx, err) {
			next, err = m.enter(ctx, context.WithoutCancel(ctx), false)
		}
		switch {
		case err == nil && ctx.Err() != nil:
			m.leaveErr = m.withdraw(next)
			m.emitLeft(inc, nil, false)
			return
		case err != nil && !m.end(err):
			// Leave was called, even if it has not ended ctx yet.
			m.leaveErr = errs.Op("leave", m.g.path.Full(), m.removal.Outcome())
			m.emitLeft(inc, nil, false)
			return
		case err != nil:
			if !errors.Is(err, backend.ErrClosed) {
				c.Log().Error("coord: a member cannot join again, its membership has ended", "path", m.g.path.Full(), "member", m.id, "error", err)
			}
			m.emitLeft(inc, err, false)
			return
		}
		inc = next
		m.now.Set(inc, false)
		m.emitJoined(context.Background(), inc, "", true)
	}
}

// emitJoined and emitLeft trace that the member has joined, and that it has left.
func (m *Membership) emitJoined(ctx context.Context, inc *incarnation, op string, again bool) {
	core.Emit(ctx, m.g.c, trace.MemberJoined{
		Subject: trace.Subject{Recipe: "group", Path: m.g.path.Full(), Op: op, Node: inc.n.Path},
		Member:  m.id, Token: inc.n.Czxid, Again: again,
	})
}

func (m *Membership) emitLeft(inc *incarnation, err error, rejoins bool) {
	core.Emit(context.Background(), m.g.c, trace.MemberLeft{
		Subject: trace.Subject{Recipe: "group", Path: m.g.path.Full(), Node: inc.n.Path},
		Member:  m.id, Err: err, Rejoins: rejoins,
	})
}

// watch returns errs.ErrGone when the node has been deleted, and an error when its
// session is over or ctx ends. The watch is on the children of the node, which has
// none, so only the deletion fires it.
func (inc *incarnation) watch(ctx context.Context) error {
	b := inc.s.Backend()
	pause := core.NewPauses(inc.s.Client())
	for {
		w, stat, err := inc.s.WatchDeletion(ctx, inc.n.Path)
		switch {
		case errs.IsNotFound(err), err == nil && stat.EphemeralOwner != b.ID():
			w.Stop()
			return errs.ErrGone
		case err != nil && (errs.IsOver(err) || ctx.Err() != nil):
			return err
		case err != nil:
			inc.s.Client().Log().Warn("coord: cannot watch the node of a member, retrying", "path", inc.n.Path, "error", err)
			pause.Wait(ctx.Done(), b.Done())
			continue
		}
		pause.Reset()
		select {
		case <-w.Fired():
			if w.Kind() == backend.Deleted {
				return errs.ErrGone
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
func (m *Membership) withdraw(inc *incarnation) error {
	ctx := context.Background() // the session bounds it
	if inc.s.Backend().Err() != nil {
		m.abandon()
		return nil
	}
	var err error
	if contender.IsHighNumber(inc.s, inc.n.Seq) {
		err = contender.RemoveWithDir(ctx, inc.s, inc.n.Path, m.g.path.Full())
	} else {
		err = inc.s.Remove(ctx, inc.n.Path)
	}
	if err != nil {
		inc.s.RemoveLater(inc.n.Path)
		m.g.addLeftovers(m.id, m.mine)
		return errs.Op("leave", m.g.path.Full(), err)
	}
	if inc.s.Backend().Err() != nil {
		m.abandon()
	}
	return nil
}

// abandon removes nodes that lost sessions of this membership may have left, over
// the next sessions and in the background: the service can take a while to end
// those sessions.
func (m *Membership) abandon() {
	mine := m.mine
	m.mine = nil
	if len(mine) == 0 {
		return
	}
	m.g.addLeftovers(m.id, mine)
	c := m.g.c
	c.GoWork(func() {
		c.OverSessions(context.Background(), func(s *core.Session) { // Close ends it
			if u := s.RemoveAttemptsLater(mine...); u != nil {
				<-u.Done
			}
		})
	})
}

// enter creates the member's node, and makes sure that no other member has the id. If a session is lost,
// it tries again on the next session, until ctx ends. calls is the context of its requests. If enter
// fails, it leaves no node, or m.removal removes the node.
func (m *Membership) enter(ctx, calls context.Context, takeover bool) (*incarnation, error) {
	pause := core.NewPauses(m.g.c)
	for {
		inc, err := m.enterOnce(ctx, calls, takeover)
		if err == nil {
			return inc, nil
		}
		err, again := m.g.c.AfterAttempt(ctx, err)
		if !again {
			if !errs.IsClosed(err) {
				m.abandon()
			}
			return nil, err
		}
		pause.Wait(ctx.Done(), m.g.c.Closing())
	}
}

func (m *Membership) enterOnce(ctx, calls context.Context, takeover bool) (*incarnation, error) {
	// A node that an earlier call of this client has left, perhaps of another Group, must
	// not make this call fail with ErrDuplicate.
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
	m.mine = m.mine[max(0, len(m.mine)-mostLeftovers):]
	n, err := s.Create(calls, &sp)
	m.removal = sp.Left
	if err == nil {
		if err = m.settle(calls, s, n, takeover); err == nil {
			m.mine = m.mine[len(m.mine)-1:] // no other own node is left
			return &incarnation{s, n, rev}, nil
		}
		if !errs.Answers(err, errs.ErrGone) && !errs.Answers(err, errs.ErrDuplicate) && s.Backend().Err() == nil {
			m.removal = s.RemoveAndWait(n.Path)
		}
	}
	if s.Backend().Err() == nil {
		// Any node of this attempt is being removed.
		last := len(m.mine) - 1
		m.g.addLeftovers(m.id, m.mine[last:])
		m.mine = m.mine[:last]
	}
	return nil, err
}

// Set changes the data of the member's node, and of every later incarnation. While the membership has no
// node, Set waits for the next incarnation, until ctx ends. Concurrent calls are served in the order in
// which they arrive. If Set fails before the outcome is known, the error also matches ErrUncertain: the
// change may become visible, but never after the change of a later Set.
func (m *Membership) Set(ctx context.Context, data []byte) error {
	// Data with which the next incarnation could not be created is refused now.
	sp := core.NewSpec(m.g.c, m.g.recipeDir(), layout.MemberInfix+m.id+"-", nil)
	err := m.g.c.Rules().Limits().Refuse([]backend.Op{
		backend.Create(sp.Prefix, data, backend.EphemeralSequential), backend.Carry(sp.Dir, sp.Recipe.Mark()),
	})
	if err != nil {
		return errs.Op("set", m.g.path.Full(), err)
	}
	select {
	case m.turn <- struct{}{}:
	case <-m.done:
		return m.Err()
	case <-ctx.Done():
		return errs.Op("set", m.g.path.Full(), m.g.c.ContextError(ctx))
	}
	defer func() { <-m.turn }()
	return errs.Op("set", m.g.path.Full(), m.setData(ctx, data))
}

func (m *Membership) setData(ctx context.Context, data []byte) error {
	inc, err := m.awaitIncarnation(ctx, nil)
	if err != nil {
		return err
	}
	// The data is stored before it is sent: the session may be lost at any time,
	// and the next incarnation must not have older data than other clients have
	// seen.
	m.mu.Lock()
	old := m.data
	m.data = data
	m.rev++
	rev := m.rev
	m.mu.Unlock()
	pause := core.NewPauses(m.g.c)
	for definite := true; ; {
		err := m.write(ctx, inc, data)
		switch {
		case err == nil:
			return nil
		case backend.IsUncertain(err):
			definite = false
			m.unsettled = inc.s
		}
		switch {
		case errs.MayRepeat(ctx, err):
			pause.Wait(ctx.Done(), inc.s.Backend().Done())
			continue
		case ctx.Err() == nil && (errs.IsNotFound(err) || errs.IsOver(err)):
			// The session is lost or the node deleted; the next incarnation may
			// have the new data already.
			if inc, err = m.awaitIncarnation(ctx, inc); err == nil {
				if inc.rev == rev {
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
func (m *Membership) write(ctx context.Context, inc *incarnation, data []byte) error {
	if m.unsettled == inc.s {
		// A write whose outcome is unknown could be applied after this one.
		if err := inc.s.Backend().Sync(ctx, inc.n.Path); err != nil {
			return err
		}
	}
	m.unsettled = nil
	_, err := inc.s.Backend().Commit(ctx, backend.SetData(inc.n.Path, data, backend.AnyVersion))
	return err
}

// takeBack restores the old data and reports true, unless an incarnation may have been created with the
// data of rev.
func (m *Membership) takeBack(rev int, old []byte) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.used == rev {
		return false
	}
	m.data = old
	return true
}

// awaitIncarnation waits for an incarnation other than not.
func (m *Membership) awaitIncarnation(ctx context.Context, not *incarnation) (*incarnation, error) {
	for {
		inc, changed, ended := m.now.Get()
		if ended {
			return nil, m.Err()
		}
		if inc != nil && inc != not {
			return inc, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, backend.ContextError(ctx)
		}
	}
}

package coord

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-coord/coord/internal/line"

	"github.com/go-coord/coord/internal/core"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/layout"
	"github.com/go-coord/coord/trace"
)

// entrant is one node of an Enter, which waits for a round to take it in.
type entrant struct {
	d      *DoubleBarrier
	span   *core.Span // nil without Trace
	s      *core.Session
	path   string
	czxid  int64  // of the node at path; 0 if unknown
	prefix string // of all nodes of the same Enter
	guest  string // the path of its node as an extra, set before that is created
	sent   bool   // a commit of this entrant may have opened a round
	entry  *Entry // of an entrant that is inside

	own   *backend.Watch // on its node
	ready *backend.Watch
	ahead line.Neighbour // with WaitForNextRound: a member of the round in progress, whose end the entrant awaits
}

// enter creates a new node and waits for a round. If it returns an error, the node
// has been removed, or AwaitCleanUps waits for its removal.
func (m *entrant) enter(ctx context.Context, sp core.Spec) (*Entry, error) {
	// A node that another call of this client has left behind must not count beside
	// the new node, neither for this client nor for another one.
	if err := m.d.c.AwaitCleanUps(ctx, m.d.members, sp.Prefix); err != nil {
		return nil, err
	}
	s, err := m.d.c.Live(ctx)
	if err != nil {
		return nil, err
	}
	if err := s.ClaimKind(ctx, m.d.recipeDir()); err != nil {
		return nil, err
	}
	n, err := s.Create(ctx, &sp)
	if err != nil {
		return nil, err
	}
	m.s, m.path, m.czxid, m.prefix = s, n.Path, n.Czxid, sp.Prefix
	e, err := m.await(ctx, n.Siblings)
	m.stopWatches()
	if err != nil {
		m.d.takeOut(m.s, sp.Prefix, "withdraw", m.undo, m.path, m.guest)
	}
	return e, err
}

// entrantState is what an entrant does next.
//
//	entrantCounted:  no round is in progress              -> entrantWaiting
//	                 ready exists                         -> entrantLooking
//	entrantGlancing: there is nothing to do but wait,
//	                 or the barrier has changed meanwhile -> entrantLooking
//	entrantLooking:  there is nothing to do but wait      -> entrantWaiting
//	                 the barrier has changed meanwhile    -> entrantLooking
//	entrantWaiting:  a watch has fired                    -> entrantLooking
//	all of these:    a round takes the entrant in         -> entrantInside
//
// An entrant that counts n members opens the round. Each entrant counts after its
// arrival, and whenever a round has ended. So the last to arrive, or the first to see
// that the previous round has ended, opens the next one.
type entrantState int8

const (
	// Fewer than n nodes were in the directory when this one was created. The entrant
	// leaves the counting to those behind it. It watches its own node and ready.
	entrantCounted entrantState = iota
	// The entrant may open the round. It reads the barrier without a watch on its own
	// node: the commit that opens the round checks the node.
	entrantGlancing
	// The entrant watches its own node, reads the barrier and takes the next step.
	entrantLooking
	// The entrant waits until a watch fires, and then reads ready first.
	entrantWaiting
	// The entry stands.
	entrantInside
)

// entrantEvent is the result of a step of an entrant.
type entrantEvent int8

const (
	entrantMustLook entrantEvent = iota
	entrantMustWait
	entrantTakenIn // see grant
)

// after returns the state that an event leads to.
func (s entrantState) after(e entrantEvent) entrantState {
	switch {
	case e == entrantTakenIn:
		return entrantInside
	case e == entrantMustWait && s != entrantGlancing:
		return entrantWaiting
	}
	return entrantLooking
}

// await waits until a round takes the entrant in. siblings is the number of nodes in
// the directory when its own node was created, or 0 if unknown.
func (m *entrant) await(ctx context.Context, siblings int32) (*Entry, error) {
	state := entrantGlancing
	if siblings > 0 && int(siblings) < m.d.n {
		state = entrantCounted
	}
	for state != entrantInside {
		e, err := m.step(ctx, state)
		if errors.Is(err, core.ErrAgain) {
			e, err = entrantMustLook, nil
		}
		if err != nil {
			return nil, err
		}
		state = state.after(e)
	}
	return m.entry, nil
}

// step takes the step of a state. It returns core.ErrAgain if the barrier has changed
// meanwhile.
func (m *entrant) step(ctx context.Context, state entrantState) (entrantEvent, error) {
	switch state {
	case entrantGlancing:
		return m.look(ctx)
	case entrantWaiting:
		return m.wait(ctx)
	}
	if m.own == nil || m.own.Kind() != 0 {
		m.own.Stop()
		own, _, czxid, err := m.s.WatchOwn(ctx, m.path)
		if err != nil {
			return 0, err // undo needs the czxid that was known before
		}
		m.own, m.czxid = own, czxid
	}
	if state == entrantCounted {
		open, err := m.watchReady(ctx)
		if open || err != nil {
			return entrantMustLook, err
		}
		return entrantMustWait, nil
	}
	return m.look(ctx)
}

// wait waits until one of the entrant's watches fires. The usual reason is that the
// round has opened.
func (m *entrant) wait(ctx context.Context) (entrantEvent, error) {
	m.span.Waiting(ctx, m.path, -1)
	select {
	case <-m.ready.Fired():
	case <-m.ahead.W.Fired():
	case <-m.own.Fired():
	case <-m.s.Backend().Done():
		return 0, m.s.Backend().Err()
	case <-ctx.Done():
		return 0, m.s.ContextError(ctx)
	}
	o, err := m.d.readReady(ctx, m.s)
	if err != nil {
		return 0, err
	}
	if names := o.since(m.czxid); slices.Contains(names, core.Base(m.path)) {
		return entrantTakenIn, m.in(ctx, names)
	}
	return entrantMustLook, nil
}

func (m *entrant) stopWatches() {
	m.own.Stop()
	m.ready.Stop()
	m.ahead.Stop()
}

// look reads the barrier and takes the next step.
func (m *entrant) look(ctx context.Context) (entrantEvent, error) {
	// A node that a call of this client has left behind since enter must not count
	// either.
	if err := m.d.c.AwaitCleanUps(ctx, m.d.members, m.prefix); err != nil {
		return 0, err
	}
	r, err := m.read(ctx)
	if err != nil {
		return 0, err
	}
	name := core.Base(m.path)
	if !r.open || !m.d.next {
		m.ahead.Stop()
	}
	switch {
	case slices.Contains(r.Living, name):
		return entrantTakenIn, m.in(ctx, r.names)
	case !slices.Contains(r.Waiting, name):
		return 0, core.ErrGone
	case r.open && len(r.Living) == 0:
		return entrantMustLook, m.clear(ctx, r)
	case r.open && !m.d.next:
		return entrantTakenIn, m.join(ctx, r)
	case r.open:
		// The last member of the round removes ready, unless that member dies. So a
		// member is watched too.
		stands, err := m.ahead.Watch(ctx, m.s, m.d.members, r.Living[0])
		if err == nil && !stands {
			err = core.ErrAgain
		}
		return entrantMustWait, err
	case len(r.Waiting) >= m.d.n:
		return entrantTakenIn, m.open(ctx, r)
	}
	return entrantMustWait, nil
}

// open opens the round of the n lowest members. It returns core.ErrAgain if the entrant is
// not one of them.
func (m *entrant) open(ctx context.Context, r round) error {
	named := r.Waiting[:m.d.n]
	ops := make([]backend.Op, 0, len(named)+2)
	for _, name := range named {
		ops = append(ops, backend.Check(m.d.members+"/"+name, backend.AnyVersion))
	}
	ops = append(ops,
		backend.SetData(m.d.path.Full(), r.data, r.version),
		backend.Create(m.d.ready, []byte(strings.Join(named, "\n")), backend.Persistent))
	m.sent = true
	if err := m.commit(ctx, ops...); err != nil {
		return err
	}
	if m.span != nil {
		core.Emit(ctx, m.d.c, trace.RoundOpened{Subject: m.span.At(m.path), Members: len(named)})
	}
	if !slices.Contains(named, core.Base(m.path)) {
		return core.ErrAgain
	}
	return m.in(ctx, named)
}

// clear removes a stale ready, whose round has died.
func (m *entrant) clear(ctx context.Context, r round) error {
	return m.commit(ctx,
		backend.Check(m.path, backend.AnyVersion),
		backend.SetData(m.d.path.Full(), r.data, r.version),
		backend.Delete(m.d.ready, backend.AnyVersion))
}

// commit applies operations that check the state that was read, and so cannot apply
// twice.
func (m *entrant) commit(ctx context.Context, ops ...backend.Op) error {
	_, err := m.s.Backend().Commit(ctx, ops...)
	return m.s.LookAgain(ctx, m.d.members, err)
}

// join joins the round in progress as an extra.
func (m *entrant) join(ctx context.Context, r round) error {
	if err := m.agree(r.names); err != nil {
		return err
	}
	name := core.Base(m.path)
	i := strings.LastIndex(name, layout.EntrantInfix)
	m.guest = m.d.members + "/" + name[:i] + layout.ExtraInfix + name[i+len(layout.EntrantInfix):]
	_, _, err := m.s.CommitOnce(ctx,
		backend.Check(m.d.members+"/"+r.Living[0], backend.AnyVersion),
		backend.Delete(m.path, backend.AnyVersion),
		backend.Create(m.guest, nil, backend.Ephemeral))
	if core.IsNotFound(err) {
		return core.ErrAgain
	}
	if err != nil {
		return err
	}
	return m.grant(ctx, m.guest, r.names, nil)
}

// in takes in a member of the round in progress.
func (m *entrant) in(ctx context.Context, names []string) error {
	if err := m.agree(names); err != nil {
		return err
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

// grant makes the entry, with a hold on the node at path. That node is a member that
// ready lists, or an extra that was created while a member of the round stood. own is
// the armed watch on the node, or nil. It returns core.ErrAgain if own has fired.
func (m *entrant) grant(ctx context.Context, path string, names []string, own *backend.Watch) error {
	e := &Entry{d: m.d, names: names, since: m.czxid, extra: path == m.guest}
	h := core.NewHold(m.s, path, 0, m.span, (*entryHold)(e), nil)
	e.Hold = &Hold{h}
	c := m.d.c
	if err := m.s.Grant(h, own); err != nil {
		return err
	}
	m.entry = e
	m.span.Grant(ctx, h, 1)
	if own != nil {
		m.own = nil
		if !c.GoWork(func() { h.WatchNode(path, own) }) {
			own.Stop()
		}
	}
	return nil
}

// takeOut removes in the background, by do, the nodes of a member that gave up, and
// waits for that; see core.core.CleanUp.Wait. If the session is lost, it removes the nodes over
// the next session: the service may not know of the loss yet, and would count them
// among the next n. prefix is that of the nodes of the call, or "".
func (d *DoubleBarrier) takeOut(s *core.Session, prefix, what string, do func(context.Context) error, paths ...string) {
	d.c.GoCleanUp(func(ctx context.Context, u *core.CleanUp) {
		if s.Backend().Err() == nil {
			s.Retry(ctx, u, what, paths[0], do)
		}
		if s.Backend().Err() == nil {
			return
		}
		d.c.OverSessions(ctx, func(next *core.Session) {
			for _, path := range paths {
				if path == "" {
					continue
				}
				err := next.Backend().Sync(ctx, path)
				if err == nil {
					err = next.RemoveOf(ctx, s.Backend().ID(), path)
				}
				if err != nil && !core.IsOver(err) {
					d.c.Log().Warn("coord: cannot remove a node of a lost session, it remains until the service ends that session", "path", path, "error", err)
				}
			}
		})
	}).MadeFor(prefix).Wait(s, d.members)
}

// undo takes out an entrant that gave up. If a round has opened with it meanwhile,
// the other members see a member that has entered and left.
func (m *entrant) undo(ctx context.Context) error {
	if m.sent || m.guest != "" {
		// A commit of this entrant that is still under way takes effect before the
		// reads below.
		if err := m.s.Backend().Sync(ctx, m.d.members); err != nil {
			return err
		}
	}
	if m.guest != "" {
		if err := m.s.Remove(ctx, m.guest); err != nil {
			return err
		}
	}
	o, err := m.d.readReady(ctx, m.s)
	if err != nil {
		return err
	}
	return m.d.depart(ctx, m.s, m.path, o.since(m.czxid))
}

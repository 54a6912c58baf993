package doublebarrier

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/contender"
	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/layout"
	"github.com/go-coord/coord/internal/nodepath"
	"github.com/go-coord/coord/internal/tracing"
	"github.com/go-coord/coord/trace"
)

// Enter waits until a round admits the caller, and returns the entry.
func (b *Barrier) Enter(ctx context.Context) (*Entry, error) {
	const op = "enter"
	if err := b.check(op); err != nil {
		return nil, err
	}
	if err := backend.ContextError(ctx); err != nil {
		return nil, errs.Op(op, b.path.Full(), err)
	}
	span := b.c.NewSpan("doublebarrier", b.path.Full(), op)
	sp := core.NewSpec(b.c, b.recipeDir().Part(b.members, layout.KindMembers), layout.BarrierMemberInfix, nil)
	sp.Counted = true
	for {
		w := &waiter{b: b, span: span}
		e, err := w.enter(ctx, sp)
		if err == nil {
			return e, nil
		}
		err, again := b.c.AfterAttempt(ctx, err)
		if !again {
			err = errs.Op(op, b.path.Full(), err)
			span.Over(ctx, err)
			return nil, err
		}
		b.c.Log().Debug("coord: lost the place in a double barrier, entering it again", "path", b.path.Full(), "error", err)
		span.Requeued(ctx, err)
	}
}

// waiter is one node of an Enter, which waits until a round admits it.
type waiter struct {
	b             *Barrier
	span          *tracing.Span // nil without Trace
	s             *core.Session
	path          string // of its node
	czxid         int64  // of the node at path; 0 if unknown
	prefix        string // of all nodes of the same Enter
	extraPath     string // of its node as an extra, set before that node is created
	mayHaveOpened bool   // a commit of this waiter may have opened a round
	entry         *Entry // in stateInside

	own    *backend.Watch // on its node
	ready  *backend.Watch
	member contender.Neighbour // with waitForNext: a member of the round in progress, whose end the waiter awaits
}

// enter creates a new node and waits for a round. If it returns an error, the node
// has been removed, or AwaitCleanUps waits for its removal.
func (w *waiter) enter(ctx context.Context, sp core.Spec) (*Entry, error) {
	// A node that another call of this client has left behind must not count beside
	// the new node, neither for this client nor for another one.
	if err := w.b.c.AwaitCleanUps(ctx, w.b.members, sp.Prefix); err != nil {
		return nil, err
	}
	s, err := w.b.c.Live(ctx)
	if err != nil {
		return nil, err
	}
	if err := s.ClaimKind(ctx, w.b.recipeDir()); err != nil {
		return nil, err
	}
	n, err := s.Create(ctx, &sp)
	if err != nil {
		return nil, err
	}
	w.s, w.path, w.czxid, w.prefix = s, n.Path, n.Czxid, sp.Prefix
	e, err := w.await(ctx, n.Siblings)
	w.stopWatches()
	if err != nil {
		w.b.cleanUp(w.s, sp.Prefix, "withdraw", w.withdraw, w.path, w.extraPath)
	}
	return e, err
}

// waiterState is what a waiter does next.
//
//	stateArrived:   no round is in progress               -> stateWaiting
//	                ready exists                          -> stateReading
//	stateFirstRead: there is nothing to do but wait,
//	                or the barrier has changed meanwhile  -> stateReading
//	stateReading:   there is nothing to do but wait       -> stateWaiting
//	                the barrier has changed meanwhile     -> stateReading
//	stateWaiting:   a watch has fired                     -> stateReading
//	all of these:   a round admits the waiter             -> stateInside
//
// A waiter that counts n members opens the round. Each waiter counts after its arrival,
// and whenever a round has ended. So the last waiter to arrive, or the first to see that
// the previous round has ended, opens the next round.
type waiterState int8

const (
	// Fewer than n nodes were in the directory when this waiter's node was created. It
	// leaves the counting to later waiters. It watches its own node and ready.
	stateArrived waiterState = iota
	// The waiter may open the round. It reads the barrier without a watch on its own
	// node: the commit that opens the round checks the node.
	stateFirstRead
	// The waiter watches its own node, reads the barrier and takes the next step.
	stateReading
	// The waiter waits until a watch fires, and then reads ready first.
	stateWaiting
	// The entry stands.
	stateInside
)

// waiterEvent is the result of a step of a waiter.
type waiterEvent int8

const (
	eventReadAgain waiterEvent = iota
	eventWait
	eventAdmitted // see grant
)

// after returns the state that an event leads to.
func (s waiterState) after(e waiterEvent) waiterState {
	switch {
	case e == eventAdmitted:
		return stateInside
	case e == eventWait && s != stateFirstRead:
		return stateWaiting
	}
	return stateReading
}

// await waits until a round admits the waiter. siblings is the number of nodes in
// the directory when its own node was created, or 0 if unknown.
func (w *waiter) await(ctx context.Context, siblings int32) (*Entry, error) {
	state := stateFirstRead
	if siblings > 0 && int(siblings) < w.b.n {
		state = stateArrived
	}
	for state != stateInside {
		e, err := w.step(ctx, state)
		if errors.Is(err, errs.ErrAgain) {
			e, err = eventReadAgain, nil
		}
		if err != nil {
			return nil, err
		}
		state = state.after(e)
	}
	return w.entry, nil
}

// step takes the step of a state. It returns errs.ErrAgain if the barrier has changed
// meanwhile.
func (w *waiter) step(ctx context.Context, state waiterState) (waiterEvent, error) {
	switch state {
	case stateFirstRead:
		return w.advance(ctx)
	case stateWaiting:
		return w.wait(ctx)
	}
	if w.own == nil || w.own.Kind() != 0 {
		w.own.Stop()
		own, _, czxid, err := w.s.WatchOwn(ctx, w.path)
		if err != nil {
			return 0, err // withdraw needs the czxid that was known before
		}
		w.own, w.czxid = own, czxid
	}
	if state == stateArrived {
		open, err := w.watchReady(ctx)
		if open || err != nil {
			return eventReadAgain, err
		}
		return eventWait, nil
	}
	return w.advance(ctx)
}

// wait waits until one of the waiter's watches fires. The usual reason is that the
// round has opened.
func (w *waiter) wait(ctx context.Context) (waiterEvent, error) {
	w.span.Waiting(ctx, w.path, -1)
	select {
	case <-w.ready.Fired():
	case <-w.member.W.Fired():
	case <-w.own.Fired():
	case <-w.s.Backend().Done():
		return 0, w.s.Backend().Err()
	case <-ctx.Done():
		return 0, w.s.ContextError(ctx)
	}
	r, err := w.b.readReady(ctx, w.s)
	if err != nil {
		return 0, err
	}
	if names := r.namesSince(w.czxid); slices.Contains(names, nodepath.Base(w.path)) {
		return eventAdmitted, w.admit(ctx, names)
	}
	return eventReadAgain, nil
}

func (w *waiter) stopWatches() {
	w.own.Stop()
	w.ready.Stop()
	w.member.Stop()
}

// advance reads the barrier and takes the next step.
func (w *waiter) advance(ctx context.Context) (waiterEvent, error) {
	// A node that a call of this client has left behind since enter must not count
	// either.
	if err := w.b.c.AwaitCleanUps(ctx, w.b.members, w.prefix); err != nil {
		return 0, err
	}
	r, err := w.read(ctx)
	if err != nil {
		return 0, err
	}
	name := nodepath.Base(w.path)
	if !r.open || !w.b.waitForNext {
		w.member.Stop()
	}
	switch {
	case slices.Contains(r.Inside, name):
		return eventAdmitted, w.admit(ctx, r.names)
	case !slices.Contains(r.Waiting, name):
		return 0, errs.ErrGone
	case r.open && len(r.Inside) == 0:
		return eventReadAgain, w.removeStaleReady(ctx, r)
	case r.open && !w.b.waitForNext:
		return eventAdmitted, w.joinAsExtra(ctx, r)
	case r.open:
		// The last member of the round removes ready, unless that member dies. So a
		// member is watched too.
		stands, err := w.member.Watch(ctx, w.s, w.b.members, r.Inside[0])
		if err == nil && !stands {
			err = errs.ErrAgain
		}
		return eventWait, err
	case len(r.Waiting) >= w.b.n:
		return eventAdmitted, w.openRound(ctx, r)
	}
	return eventWait, nil
}

// snapshot is what a waiter has read of the barrier.
type snapshot struct {
	data    []byte   // of the directory
	version int32    // of the directory
	open    bool     // ready exists
	names   []string // that ready lists
	layout.BarrierMembers
}

// read reads the whole state. It reads the version of the directory first: if a later
// commit finds that version unchanged, ready has not changed since it was read.
func (w *waiter) read(ctx context.Context) (snapshot, error) {
	data, stat, err := w.s.Backend().Get(ctx, w.b.path.Full(), nil)
	if err != nil {
		return snapshot{}, ownGone(err)
	}
	var r round
	open, err := w.watchReady(ctx)
	if err == nil && open {
		r, err = w.b.readReady(ctx, w.s)
		if err == nil && r.zxid == 0 {
			err = errs.ErrAgain
		}
	}
	if err != nil {
		return snapshot{}, err
	}
	list, members, err := w.s.Backend().Children(ctx, w.b.members, nil)
	if err != nil {
		return snapshot{}, ownGone(err)
	}
	names := r.namesSince(members.Czxid)
	return snapshot{data: data, version: stat.Version, open: open, names: names, BarrierMembers: layout.SortMembers(names, list)}, nil
}

// ownGone turns the error of a missing directory into errs.ErrGone: a node in that
// directory is gone too.
func ownGone(err error) error {
	if errs.IsNotFound(err) {
		return errs.ErrGone
	}
	return err
}

// watchReady reports whether ready exists, and arms a watch on it.
func (w *waiter) watchReady(ctx context.Context) (bool, error) {
	w.ready.Stop()
	w.ready = backend.NewWatch()
	_, err := w.s.Backend().Exists(ctx, w.b.ready, w.ready)
	if errs.IsNotFound(err) {
		return false, nil
	}
	return err == nil, err
}

// openRound opens the round of the n lowest waiters. It returns errs.ErrAgain if this waiter is
// not one of them.
func (w *waiter) openRound(ctx context.Context, r snapshot) error {
	named := r.Waiting[:w.b.n]
	ops := make([]backend.Op, 0, len(named)+2)
	for _, name := range named {
		ops = append(ops, backend.Check(w.b.members+"/"+name, backend.AnyVersion))
	}
	ops = append(ops,
		backend.SetData(w.b.path.Full(), r.data, r.version),
		backend.Create(w.b.ready, []byte(strings.Join(named, "\n")), backend.Persistent))
	w.mayHaveOpened = true
	if err := w.commit(ctx, ops...); err != nil {
		return err
	}
	if w.span != nil {
		core.Emit(ctx, w.b.c, trace.RoundOpened{Subject: w.span.At(w.path), Members: len(named)})
	}
	if !slices.Contains(named, nodepath.Base(w.path)) {
		return errs.ErrAgain
	}
	return w.admit(ctx, named)
}

// removeStaleReady removes a ready whose round has died.
func (w *waiter) removeStaleReady(ctx context.Context, r snapshot) error {
	return w.commit(ctx,
		backend.Check(w.path, backend.AnyVersion),
		backend.SetData(w.b.path.Full(), r.data, r.version),
		backend.Delete(w.b.ready, backend.AnyVersion))
}

// commit applies operations that check the state that was read, and so cannot apply
// twice.
func (w *waiter) commit(ctx context.Context, ops ...backend.Op) error {
	_, err := w.s.Backend().Commit(ctx, ops...)
	return w.s.LookAgain(ctx, w.b.members, err)
}

// joinAsExtra joins the round in progress as an extra.
func (w *waiter) joinAsExtra(ctx context.Context, r snapshot) error {
	if err := w.checkSize(r.names); err != nil {
		return err
	}
	name := nodepath.Base(w.path)
	i := strings.LastIndex(name, layout.BarrierMemberInfix)
	w.extraPath = w.b.members + "/" + name[:i] + layout.BarrierExtraInfix + name[i+len(layout.BarrierMemberInfix):]
	_, _, err := w.s.CommitOnce(ctx,
		backend.Check(w.b.members+"/"+r.Inside[0], backend.AnyVersion),
		backend.Delete(w.path, backend.AnyVersion),
		backend.Create(w.extraPath, nil, backend.Ephemeral))
	if errs.IsNotFound(err) {
		return errs.ErrAgain
	}
	if err != nil {
		return err
	}
	return w.grant(ctx, w.extraPath, r.names, nil)
}

// admit makes the waiter a member of the round in progress.
func (w *waiter) admit(ctx context.Context, names []string) error {
	if err := w.checkSize(names); err != nil {
		return err
	}
	return w.grant(ctx, w.path, names, w.own)
}

// checkSize returns an error if the round does not have n members.
func (w *waiter) checkSize(names []string) error {
	if len(names) != w.b.n {
		return fmt.Errorf("%w: the round has %d members, this client expects %d", errs.ErrLimit, len(names), w.b.n)
	}
	return nil
}

// grant makes the entry, with a hold on the node at path. That node is a member that
// ready lists, or an extra that was created while a member of the round stood. own is
// the armed watch on the node, or nil. It returns errs.ErrAgain if own has fired.
func (w *waiter) grant(ctx context.Context, path string, names []string, own *backend.Watch) error {
	e := &Entry{b: w.b, span: w.span, names: names, since: w.czxid, extra: path == w.extraPath}
	e.h = core.NewHold(w.s, path, 0, w.span, (*owner)(e))
	if err := e.h.Grant(ctx, 1, own, nil); err != nil {
		return err
	}
	w.entry = e
	if own != nil {
		w.own = nil
	}
	return nil
}

// withdraw removes the nodes of a waiter that gave up. If a round has opened with it meanwhile,
// the other members see a member that has entered and left.
func (w *waiter) withdraw(ctx context.Context) error {
	if w.mayHaveOpened || w.extraPath != "" {
		// A commit of this waiter that is still under way takes effect before the
		// reads below.
		if err := w.s.Backend().Sync(ctx, w.b.members); err != nil {
			return err
		}
	}
	if w.extraPath != "" {
		if err := w.s.Remove(ctx, w.extraPath); err != nil {
			return err
		}
	}
	r, err := w.b.readReady(ctx, w.s)
	if err != nil {
		return err
	}
	return w.b.removeMember(ctx, w.s, w.path, r.namesSince(w.czxid))
}

package core

import (
	"context"
	"errors"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/nodepath"
	"github.com/go-coord/coord/internal/tracing"
	"github.com/go-coord/coord/trace"
)

// A Hold is coord.Hold: the possession of a thing that can be lost, bound to an ephemeral node of a session.
type Hold struct {
	s      *Session // nil if the hold never stood; err is the reason then
	token  int64
	span   *tracing.Span // nil without Trace
	recipe Owner
	keeper NodeKeeper // nil unless the node can outlast the hold

	mu         sync.Mutex
	path       string        // of its node; a downgrade changes it
	until      time.Time     // when the hold ends with ErrClaimTimeout; zero: never
	moving     chan struct{} // closed when a downgrade under way is complete, nil if there is none
	request    *Revocation   // the request read from the node
	revoked    chan struct{} // made on first use
	err        error         // why the hold ended
	done       chan struct{} // made on first use
	ends       []*onEnd      // further functions to call at the end
	ended      released      // the value of err after a Release
	releasing  bool          // Release was called
	isReleased bool          // the Release is complete
	waiting    chan struct{} // made by a concurrent second Release, closed when isReleased is set
	releaseErr error

	guarded int  // commits under the guard that are not answered
	exposed bool // a commit under the guard can come at any time

	own *backend.Watch // on the node, nil if none is armed

	held time.Duration // until the Release began, for the span; used by its goroutine
}

// Owner is the recipe that granted a hold.
type Owner interface {
	// Release removes the node of a hold that its owner released, by Hold.Remove, and
	// hands the lock to the next local waiter, if any.
	Release(*Hold) error
	// Leftovers returns what a hold leaves on the service when it is lost for cause while
	// its session lives on: the nodes at paths, in the order in which they are to be removed, by
	// remove. The next acquisition of the client in dir waits for that. It is called before the
	// hold is marked as lost and again after that.
	Leftovers(h *Hold, cause error) (dir string, paths []string, remove func(ctx context.Context, path string) error)
	// Lost is called once, after a hold ended early. It must not do I/O.
	Lost(*Hold)
}

// NodeKeeper is what keeps the node of a hold for later holds of the client.
type NodeKeeper interface {
	// OwnWatch returns the watch on the node. It may not be armed yet.
	OwnWatch() *backend.Watch
	// Watch begins to watch the node for all of these holds. It reports false if the client
	// is closed.
	Watch() bool
}

// onEnd is a further function to call at the end of a hold. It does not block, and calls
// nothing of the user's.
type onEnd struct{ f func(error) }

// heldContext is the value in the contexts of holds: the hold, and those around it.
type heldContext struct {
	h     *Hold
	outer *heldContext
}

type heldKey struct{}

// NewHold returns a hold that by grants, on the node at path. The hold begins with Grant, or with
// Stand. If by is a tracing.Item, it has events of its own.
func NewHold(s *Session, path string, token int64, t *tracing.Span, by Owner) *Hold {
	if item, ok := by.(tracing.Item); ok && t != nil {
		t.SetItem(item)
	}
	return &Hold{s: s, path: path, token: token, span: t, recipe: by}
}

// Grant makes h stand, and reports that, see Stand. If own is armed, Grant watches the node with it;
// data is what was read with own, or nil. A keeper watches the node of its holds itself.
func (h *Hold) Grant(ctx context.Context, weight int, own *backend.Watch, data []byte) error {
	path := h.path
	if h.keeper == nil {
		h.own = own
	}
	if err := h.Stand(own); err != nil {
		return err
	}
	h.span.Grant(ctx, path, h.token, weight)
	if own == nil || h.keeper != nil {
		return nil
	}
	h.readRequest(data)
	if !h.s.c.GoWork(func() { h.WatchNode(path, own) }) {
		own.Stop()
	}
	return nil
}

// Stand makes h stand, provided that its session lives, its lease lasts and the watch
// own on its node has not fired. The session and the watch are tested under the lock
// that Session.end takes before it collects the holds. So a grant that comes with the event of
// another watch is refused if the deletion of the own node came first on the wire. It
// returns ErrAgain if own has fired.
//
// The lease is tested just before that lock is taken, since the test of an expired
// lease ends the backend's session, under locks of the backend. A lease that expires
// after the test ends the hold as any later loss does.
func (h *Hold) Stand(own *backend.Watch) error {
	s := h.s
	if err := s.b.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return s.err
	}
	if own.Kind() != 0 {
		return errs.ErrAgain
	}
	s.holds[h] = struct{}{}
	if own == nil {
		s.armLater(h)
	}
	return nil
}

// ReportGrant reports the grant of a hold that began with Stand. call is the span of the call that
// receives the hold, or nil.
func (h *Hold) ReportGrant(ctx context.Context, call *tracing.Span) {
	h.span.BeginWith(call)
	h.span.Grant(ctx, h.Path(), h.token, 1)
}

// EndedHold returns a hold that never stood.
func EndedHold(err error) *Hold { return &Hold{err: err} }

// SetKeeper is called before the grant of a hold whose node can outlast it. k may be nil.
func (h *Hold) SetKeeper(k NodeKeeper) { h.keeper = k }

// Done returns a channel that is closed when the hold ends. Done compares the session's
// lease, and the time of a claim, with the clock, so after a pause of the process the
// channel of a lost hold is closed already.
func (h *Hold) Done() <-chan struct{} {
	h.checkLease()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.done == nil {
		h.done = make(chan struct{})
		if h.err != nil {
			close(h.done)
		}
	}
	return h.done
}

// Err returns nil until the hold ends. Afterwards the error matches ErrReleased, or
// ErrLost together with the reason: ErrSessionLost, ErrClosed, ErrDeleted, ErrRevoked,
// ErrClaimTimeout. (If the service ends a session, and the client sees the deletion of the
// node first, the reason is ErrDeleted.) Err compares the clock as Done does.
func (h *Hold) Err() error {
	h.checkLease()
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.err
}

// Context is Hold.Context of package coord.
func (h *Hold) Context(parent context.Context) context.Context {
	h.checkLease()
	outer, _ := parent.Value(heldKey{}).(*heldContext)
	// The cancel function of a context calls methods of the context's parent, which can be of a
	// type of the user's. So the parent of ctx is link, and no goroutine that others wait for
	// calls leave.
	link, leave := context.WithCancel(context.WithValue(parent, heldKey{}, &heldContext{h, outer}))
	ctx, cancel := context.WithCancelCause(link)
	e := &onEnd{f: cancel}
	h.mu.Lock()
	err := h.err
	if err == nil {
		h.ends = append(h.ends, e)
		h.s.c.contexts.Add(1) // before the end of the hold, and so before Close waits
	}
	h.mu.Unlock()
	if err != nil {
		cancel(err)
		leave()
		return ctx
	}
	context.AfterFunc(ctx, func() {
		defer h.s.c.contexts.Done()
		leave()
		// Remove e when the parent ends first, or a long hold would accumulate them.
		h.mu.Lock()
		defer h.mu.Unlock()
		if i := slices.Index(h.ends, e); i >= 0 {
			h.ends = slices.Delete(h.ends, i, i+1)
		}
	})
	return ctx
}

// HoldsUnder yields the holds that stand, from which ctx derives, and whose nodes are
// in dir, with the names of the nodes. A ctx that never ends (context.WithoutCancel)
// does not end with a hold either, so it yields none for it.
func HoldsUnder(ctx context.Context, dir string) iter.Seq2[string, *Hold] {
	return func(yield func(string, *Hold) bool) {
		u, _ := ctx.Value(heldKey{}).(*heldContext)
		if ctx.Done() == nil {
			u = nil
		}
		for ; u != nil; u = u.outer {
			path := u.h.Path()
			if nodepath.Parent(path) == dir && u.h.Err() == nil && !yield(nodepath.Base(path), u.h) {
				return
			}
		}
	}
}

// Token returns the fencing token of an exclusive hold. It is greater than that of
// every earlier holder on the same path, unless the service was restored to an older
// state. With MutexOptions.Keep it is greater than the token of every earlier client,
// and successive holds of one client can have the same token. (It is the czxid of the
// hold's node.) A resource that remembers the highest token it has seen, and refuses
// lower ones, is safe from a holder that was paused. Token is zero for a hold that
// several clients can have at a time.
func (h *Hold) Token() int64 { return h.token }

// Path returns the path of the hold's node: absolute, the namespace included. A
// downgrade changes it.
func (h *Hold) Path() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.path
}

// Session returns the id of the hold's session.
func (h *Hold) Session() int64 {
	if h.s == nil {
		return 0
	}
	return h.s.b.ID()
}

// Guard returns the condition "this hold has not ended" for a transaction. A downgrade
// changes it.
func (h *Hold) Guard() Guard {
	g := Guard{Checks: []backend.Op{backend.Check(h.Path(), backend.AnyVersion)}}
	if h.keeper != nil {
		g.kept = []*Hold{h}
	}
	return g
}

// enterGuarded is called before a commit under the guard of a hold whose node can outlast
// the hold. It reports false if the hold has ended: then the service would not refuse the
// commit.
func (h *Hold) enterGuarded() bool {
	h.checkLease()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.err == nil {
		h.guarded++
	}
	return h.err == nil
}

// leaveGuarded is called when the commit has ended with err. If its outcome is unknown, it
// may be applied at any time.
func (h *Hold) leaveGuarded(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.guarded--
	if backend.IsUncertain(err) {
		h.exposed = true
	}
}

// expose is called when the operations of the guard are handed out. It reports false if the
// hold has ended.
func (h *Hold) expose() bool {
	h.checkLease()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.err == nil {
		h.exposed = true
	}
	return h.err == nil
}

// IsGuarded reports whether a commit under the guard of h may still be applied. If h has
// ended, that does not change from false to true.
func (h *Hold) IsGuarded() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.guarded > 0 || h.exposed
}

// IsDoubted reports whether a watch on the node of h has fired, and the client has not read
// the node since.
func (h *Hold) IsDoubted() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.own.Kind() != 0 || h.keeper != nil && h.keeper.OwnWatch().Kind() != 0
}

// watchedBy records the watch on the node, or nil.
func (h *Hold) watchedBy(own *backend.Watch) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.own = own
}

// Verify asks the service whether the hold's node exists. Nil means that it existed when
// the service was asked. It costs two requests; use the Guard to write safely. If the
// node does not exist, the hold ends, and Verify returns Err. With other errors the answer
// is unknown.
func (h *Hold) Verify(ctx context.Context) error {
	for {
		if err := h.Err(); err != nil {
			return err
		}
		path := h.Path()
		err := h.awaitMove(ctx)
		if err == nil {
			path = h.Path()
			err = h.s.b.Sync(ctx, path)
		}
		if err == nil {
			_, err = h.s.b.Exists(ctx, path, nil)
		}
		if errs.IsNotFound(err) {
			// The name is never used again, so the node was deleted: by another client,
			// or by a downgrade that has begun meanwhile.
			var ended bool
			if ended, err = h.NodeGone(ctx, path); err == nil && !ended {
				continue
			}
		}
		switch {
		case errs.IsOver(err):
			h.Lose(err)
		case err != nil:
			return errs.Op("verify", path, err)
		}
		return h.Err()
	}
}

// Release ends the hold, so that Done is closed, then removes its node and returns. It is
// idempotent. It takes no context, since it must succeed: without contact it waits, but not
// longer than the session can last. The hold has ended in any case.
//
// Nil means that the hold had not ended before its release, and that this Release has
// removed the node, or keeps it (MutexOptions.Keep). Otherwise the error matches
//
//   - ErrLost, if the hold was lost before the release: another client may have been
//     granted already. Err returns the same error, or ErrReleased if only the removal
//     detects the loss.
//   - ErrUncertain, if the reply to the removal was lost and the node does not exist:
//     another client may have removed it first. The error matches ErrLost too if the
//     session was lost after that.
//   - the reason for which the service refuses the removal, such as ErrDenied. Release
//     continues in the background.
func (h *Hold) Release() error {
	if h.BeginRelease() {
		h.EndRelease(h.recipe.Release(h))
	}
	return h.releaseOutcome()
}

// BeginRelease ends the hold for a Release. It reports false if the hold has ended before. If
// it reports true, the caller removes the node and then calls EndRelease.
func (h *Hold) BeginRelease() bool {
	h.checkLease()
	h.mu.Lock()
	if h.err != nil {
		h.mu.Unlock()
		return false
	}
	h.releasing = true
	h.ended.path = h.path
	ends := h.finish(&h.ended)
	h.mu.Unlock()
	h.held = h.span.Held()
	h.s.endHold(h)
	runEnds(ends, &h.ended)
	h.awaitMove(context.Background()) // the session bounds it
	return true
}

// EndRelease ends the Release that BeginRelease began, with its result.
func (h *Hold) EndRelease(err error) {
	h.mu.Lock()
	h.isReleased, h.releaseErr = true, err
	if h.waiting != nil {
		close(h.waiting)
	}
	path := h.path
	h.mu.Unlock()
	h.span.Released(path, h.token, h.held, err)
}

// releaseOutcome returns the result of the Release, for which it waits, or the loss.
func (h *Hold) releaseOutcome() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.releasing {
		return h.err
	}
	if !h.isReleased {
		if h.waiting == nil {
			h.waiting = make(chan struct{})
		}
		waiting := h.waiting
		h.mu.Unlock()
		<-waiting
		h.mu.Lock()
	}
	return h.releaseErr
}

// Remove deletes the node of a hold that its owner releases, and returns the result of
// Release. The deletion is the first operation of a commit, to which with, if it is not
// nil, adds operations that must happen at the same moment. If that commit is refused,
// remove deletes the node alone.
//
// A commit whose reply was lost is sent again: the name of the node is never used
// again, so the retry cannot delete a successor.
func (h *Hold) Remove(with func(ctx context.Context, del backend.Op) error) error {
	ctx := context.Background() // the session bounds it
	s, path := h.s, h.Path()
	del := backend.Delete(path, backend.AnyVersion)
	doubt := false // an earlier attempt may have deleted the node
	for pause := NewPauses(s.c); ; {
		var err error
		if with != nil {
			err = with(ctx, del)
		} else {
			_, err = s.b.Commit(ctx, del)
		}
		switch {
		case err == nil:
			return nil
		case errs.IsOver(err) && doubt:
			return &errs.Loss{Path: path, Cause: backend.Uncertain(err)}
		case errs.IsOver(err):
			return &errs.Loss{Path: path, Cause: err}
		case backend.IsUncertain(err):
			doubt = true
			pause.Wait(nil, s.b.Done())
		case with != nil:
			with = nil
		case errs.IsNotFound(err) && doubt:
			return errs.Op("release", path, backend.Uncertain(err))
		case errs.IsNotFound(err):
			return &errs.Loss{Path: path, Cause: h.deleted()}
		default:
			s.RemoveLater(path)
			return errs.Op("release", path, err)
		}
	}
}

// RemoveWith is remove, and at the same moment deletes the node at path, if the service
// permits that. It reports whether the node at path was deleted.
func (h *Hold) RemoveWith(path string) (both bool, err error) {
	err = h.Remove(func(ctx context.Context, del backend.Op) error {
		_, err := h.s.b.Commit(ctx, del, backend.Delete(path, backend.AnyVersion))
		both = err == nil
		return err
	})
	return both, err
}

// finish marks the end of the hold, and returns the functions to call. The caller holds
// mu, and has checked that err is nil.
func (h *Hold) finish(err error) []*onEnd {
	h.err = err
	if h.done != nil {
		close(h.done)
	}
	ends := h.ends
	h.ends = nil
	return ends
}

func runEnds(ends []*onEnd, err error) {
	for _, e := range ends {
		e.f(err)
	}
}

// Lose ends the hold early. It calls nothing of the user's.
func (h *Hold) Lose(cause error) {
	e, ok := h.fail(cause)
	if !ok {
		return
	}
	h.s.endHold(h)
	e.removal.start()
	runEnds(e.ends, e.err)
	e.tell()
}

// ending is the end of a hold that is already marked as lost.
type ending struct {
	h       *Hold
	err     *errs.Loss
	ends    []*onEnd    // functions to be called
	removal lossRemoval // to be started
}

// lossRemoval removes what a lost hold has left behind.
type lossRemoval struct {
	h     *Hold // nil: the nodes go with the session
	cause error
	u     *CleanUp
}

// removalFor registers the removal of what h leaves behind when it is lost for cause. It is
// called before Done is closed, so that an acquisition that begins when Done is closed waits
// for the removal.
func (h *Hold) removalFor(cause error) lossRemoval {
	if h.s.b.Err() != nil {
		return lossRemoval{}
	}
	r := lossRemoval{h: h, cause: cause}
	if dir, paths, _ := h.recipe.Leftovers(h, cause); len(paths) > 0 {
		r.u = h.s.c.BeginCleanUp()
		r.u.Note(dir)
	}
	return r
}

// start begins the removal, before any function of the user's is called. It asks the
// recipe again for the nodes: a call that ran while the hold was being marked as lost may
// have added one, such as an announcement.
func (r lossRemoval) start() {
	if r.h == nil {
		return
	}
	_, paths, remove := r.h.recipe.Leftovers(r.h, r.cause)
	if len(paths) == 0 {
		r.u.End()
		return
	}
	if r.u == nil {
		r.u = r.h.s.c.BeginCleanUp()
	}
	s := r.h.s
	r.u.start(func(ctx context.Context, u *CleanUp) {
		for _, path := range paths {
			s.Retry(ctx, u, "remove", path, func(ctx context.Context) error { return remove(ctx, path) })
		}
	})
}

// fail marks the hold as lost, unless it has ended. It calls no functions: a session
// ends all of its holds before it reports any loss.
func (h *Hold) fail(cause error) (ending, bool) {
	removal := h.removalFor(cause)
	h.mu.Lock()
	if h.err != nil {
		h.mu.Unlock()
		removal.u.End()
		return ending{}, false
	}
	defer h.mu.Unlock()
	err := &errs.Loss{Path: h.path, Cause: cause}
	return ending{h, err, h.finish(err), removal}, true
}

// tell reports the loss to the Logger, Trace and the recipe.
func (e *ending) tell() {
	h := e.h
	if !errors.Is(e.err.Cause, backend.ErrClosed) {
		h.s.c.log.Warn("coord: hold lost", "path", e.err.Path, "token", h.token, "error", e.err.Cause)
	}
	h.span.Lost(e.err.Path, h.token, e.err)
	h.recipe.Lost(h)
}

// checkLease ends the hold if its session is over, or its own time, even if no event has
// reported that yet.
func (h *Hold) checkLease() {
	if h.s == nil {
		return // the hold never stood
	}
	if err := h.s.b.Err(); err != nil {
		h.Lose(err)
	} else if h.isOverdue() {
		h.Lose(errs.ErrClaimTimeout)
	}
}

// Move moves the hold to another node: one commit creates that node, with data, and deletes the
// node of the hold. next returns the path of the other node, or the reason why the hold cannot move; moving
// says that it is about to move already. Move returns the path from which the hold has moved, or is to
// move. If ctx ends first, the error matches ErrUncertain, and the move continues in the background.
func (h *Hold) Move(ctx context.Context, data []byte, next func(path string, moving bool) (string, error)) (from string, err error) {
	from, to, err := h.beginMove(next)
	if err != nil {
		return "", err
	}
	result := make(chan error, 1)
	if !h.s.c.GoWork(func() { result <- h.move(ctx, from, to, data) }) {
		h.endMove("")
		return from, backend.ErrClosed
	}
	select {
	case err := <-result:
		return from, err
	case <-ctx.Done():
		return from, backend.Uncertain(backend.ContextError(ctx))
	}
}

// beginMove marks the hold as about to move.
func (h *Hold) beginMove(next func(path string, moving bool) (string, error)) (from, to string, err error) {
	if err := h.Err(); err != nil {
		return "", "", err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if to, err = next(h.path, h.moving != nil); err != nil {
		return "", "", err
	}
	if h.err != nil {
		return "", "", h.err
	}
	h.moving = make(chan struct{})
	return h.path, to, nil
}

// move carries out a move.
func (h *Hold) move(ctx context.Context, from, to string, data []byte) error {
	err := h.s.replaceNode(from, to, data)
	if err == nil {
		h.endMove(to)
	} else {
		h.endMove("")
	}
	switch {
	case errs.IsNotFound(err):
		h.NodeGone(context.Background(), from)
		err = h.Err()
	case errs.IsOver(err):
		h.Lose(err)
		err = h.Err()
	case err == nil:
		h.Emit(ctx, func(at trace.Subject, _ time.Duration) trace.Event {
			return trace.HoldDowngraded{Subject: at, Token: h.token}
		})
	}
	return err
}

// endMove ends the move: the hold is on the node at path, or, if path is empty, where it was.
func (h *Hold) endMove(path string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if path != "" {
		h.path = path
	}
	close(h.moving)
	h.moving = nil
}

// replaceNode deletes the node at from and creates one at to, in one commit. If the reply
// is lost, it determines the outcome. The error matches ErrNotFound if an outsider
// deleted the node at from.
func (s *Session) replaceNode(from, to string, data []byte) error {
	ctx := context.Background() // the session bounds it
	err := s.CommitAgain(ctx, backend.Create(to, data, backend.Ephemeral), backend.Delete(from, backend.AnyVersion))
	if errors.Is(err, backend.ErrExists) {
		return nil // created by an attempt whose reply was lost, since the name is this hold's alone
	}
	return err
}

// EndAfter limits the hold to d from now on.
func (h *Hold) EndAfter(d time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.until = time.Now().Add(d)
}

func (h *Hold) isOverdue() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.err == nil && !h.until.IsZero() && !time.Now().Before(h.until)
}

// Guard is coord.Guard.
type Guard struct {
	Checks []backend.Op
	kept   []*Hold // nil, or for each check the hold whose node can outlast it, or nil
}

// Ops is Guard.Ops of package coord. After it a Release deletes a node that could be kept, since the
// commit can come at any time.
func (g Guard) Ops() []backend.Op {
	ops := slices.Clone(g.Checks)
	for i, h := range g.kept {
		if h != nil && !h.expose() {
			// The node can still exist. It is ephemeral, so it never has a child.
			ops[i].Path += "/released"
		}
	}
	return ops
}

// Enter is called before a commit under g, and leave after it. If a hold of g has ended
// whose node may still exist, enter returns the error with which the service refuses the
// commit when the node is gone.
func (g Guard) Enter() error {
	for i, h := range g.kept {
		if h != nil && !h.enterGuarded() {
			Guard{kept: g.kept[:i]}.Leave(nil)
			return &backend.Error{Op: "check", Path: g.Checks[i].Path, Err: backend.ErrNotFound}
		}
	}
	return nil
}

func (g Guard) Leave(err error) {
	for _, h := range g.kept {
		if h != nil {
			h.leaveGuarded(err)
		}
	}
}

// IsZero reports whether g checks nothing.
func (g Guard) IsZero() bool { return len(g.Checks) == 0 }

// And returns g with further conditions.
func (g Guard) And(checks ...backend.Op) Guard {
	g.Checks = append(slices.Clip(g.Checks), checks...)
	return g
}

// GuardAll returns the condition that all of the holds still stand.
func GuardAll(holds []*Hold) Guard {
	var all Guard
	for i, h := range holds {
		g := h.Guard()
		all.Checks = append(all.Checks, g.Checks...)
		if g.kept != nil && all.kept == nil {
			all.kept = make([]*Hold, len(holds))
		}
		if g.kept != nil {
			all.kept[i] = h
		}
	}
	return all
}

// Do implements Do for every lock.
func Do(ctx context.Context, path string, lock func(context.Context) (*Hold, error), f func(context.Context, *Hold) error) (err error) {
	if f == nil {
		return errs.Op("do", path, errs.ErrNoFunction)
	}
	h, err := lock(ctx)
	if err != nil {
		return err
	}
	// Release also when f panics, or ends the goroutine.
	defer func() {
		if rerr := h.Release(); err == nil {
			err = rerr
		} else if rerr != nil {
			err = errors.Join(err, rerr)
		}
	}()
	return f(h.Context(ctx), h)
}

// WhenEnded calls f when the hold ends, or at once if it has ended.
func (h *Hold) WhenEnded(f func(error)) {
	h.checkLease()
	h.mu.Lock()
	err := h.err
	if err == nil {
		h.ends = append(h.ends, &onEnd{f: f})
	}
	h.mu.Unlock()
	if err != nil {
		f(err)
	}
}

// On returns the session of the hold, or nil if the hold was never granted.
func (h *Hold) On() *Session { return h.s }

// Emit reports an event of the hold while it stands: e makes it from the subject and the time since
// the grant.
func (h *Hold) Emit(ctx context.Context, e func(at trace.Subject, held time.Duration) trace.Event) {
	if h.span != nil {
		h.span.Emit(ctx, e(h.span.At(h.Path()), h.span.Held()))
	}
}

// Keeper returns what keeps the node beyond the hold, or nil.
func (h *Hold) Keeper() NodeKeeper { return h.keeper }

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

// A Hold is coord.Hold: a lock, a term, a shard or a claim, for example. It can be lost, since it is bound to
// an ephemeral node of a session.
type Hold struct {
	s      *Session // nil if the hold never stood; err is the reason then
	token  int64
	span   *tracing.Span // nil without Trace
	owner  Owner
	keeper NodeKeeper // nil unless the node can outlast the hold
	claim  bool       // see SetClaim

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
	// RemoveNode is called by Hold.Release when the hold has ended. It removes the node by
	// Hold.Remove, or keeps it for later holds (NodeKeeper), and hands the lock to the next local
	// waiter, if any.
	RemoveNode(*Hold) error
	// Leftovers returns the nodes to remove when a hold is lost for cause while its session lives
	// on: their paths, in the order of the removal, and the function that removes each. The next
	// acquisition of the client in dir waits for the removal. Leftovers is called before the hold
	// is marked as lost, and again afterwards.
	Leftovers(h *Hold, cause error) (dir string, paths []string, remove func(ctx context.Context, path string) error)
	// Lost is called once, after a hold ended early. It must not do I/O.
	Lost(*Hold)
}

// Settler is an Owner whose node can also be deleted by a commit that settles the hold, but is not that of
// a Release.
type Settler interface {
	// EndIfSettled is called when the node was found deleted. If such a commit has deleted it, it ends the
	// hold as released and reports true. The error is that of ctx.
	EndIfSettled(ctx context.Context) (bool, error)
}

// NodeKeeper keeps the node of a hold for later holds of the client.
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

// NewHold returns a hold on the node at path, whose owner is by. The hold begins with Grant, or with
// Stand. If by is a tracing.Item, its events replace those of the hold.
func NewHold(s *Session, path string, token int64, t *tracing.Span, by Owner) *Hold {
	if t != nil {
		if item, ok := by.(tracing.Item); ok {
			t.SetItem(item)
		}
	}
	return &Hold{s: s, path: path, token: token, span: t, owner: by}
}

// Grant makes h stand, see Stand, and reports the grant. own is an armed watch on the node, or nil. With
// own, the client watches the node from now on, unless a keeper does; without it, the client arms a watch
// later. data is the data of the node that was read when own was armed, or nil.
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
// own on its node has not fired. If own has fired, it returns ErrAgain. The session and the watch
// are tested under the lock that Session.end takes before it collects the holds. So if the event that
// grants the lock came after the deletion of the own node, the grant is refused.
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
	// calls leave. If the parent never ends, there is nothing to leave.
	held := context.WithValue(parent, heldKey{}, &heldContext{h, outer})
	link, leave := context.WithoutCancel(held), context.CancelFunc(nil)
	if held.Done() != nil {
		link, leave = context.WithCancel(held)
	}
	ctx, cancel := context.WithCancelCause(link)
	e := &onEnd{f: cancel}
	h.mu.Lock()
	err := h.err
	if err == nil {
		h.ends = append(h.ends, e)
		if leave != nil {
			h.s.c.contexts.Add(1) // before the end of the hold, and so before Close waits
		}
	}
	h.mu.Unlock()
	if err != nil {
		cancel(err)
		if leave != nil {
			leave()
		}
		return ctx
	}
	if leave == nil {
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

// HoldsUnder yields the holds from which ctx derives, if they stand and their nodes are
// in dir, with the names of the nodes. A ctx that never ends (context.WithoutCancel)
// does not end with a hold either, so HoldsUnder yields nothing for it.
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

// Emit queues an event of h for the client's Trace. It calls e for the event, and only if the client has a
// Trace. at is the subject of the event, with the hold's node, and held the time since the grant. An event
// that is queued after the end of the hold was reported is dropped.
func (h *Hold) Emit(ctx context.Context, e func(at trace.Subject, held time.Duration) trace.Event) {
	if h.span != nil {
		h.span.Emit(ctx, e(h.span.At(h.Path()), h.span.Held()))
	}
}

// Keeper returns the NodeKeeper of the hold, or nil.
func (h *Hold) Keeper() NodeKeeper { return h.keeper }

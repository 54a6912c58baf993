package semaphore

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/contender"
	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/layout"
	"github.com/go-coord/coord/internal/nodepath"
	"github.com/go-coord/coord/internal/tracing"
)

// The protocol of the semaphore. Let S(i) be the sum of the weights of the requests up
// to and including i, in the order of their numbers. S(i) never grows, since no request
// is inserted before another.
//
// The turn of i comes at the first moment at which S(i) is within the limit. A later, lower limit
// does not take it back. The requests whose turn has come are always a prefix of the queue: if S(i) is
// within the limit, so is the sum of every earlier request. So at the moment of each
// turn the sum over all requests whose turn has come, granted or not yet, is S of the
// last of them and within the limit of that moment: the limit is never exceeded.
//
// A client knows that its turn has come in three cases. First, it reads the queue and then, not
// before, the limit: as S never grows, S was within the limit at the time of the second read. Second,
// it reads the queue, and a watch on the limit that it armed before has not fired. Third, it is alone in
// the directory when its node is created, and wants one permit: no limit is lower. Then it reads
// nothing: the creation has the condition that the limit is one that the client accepts. (For more
// permits this is not sufficient: a limit node that was deleted and created anew can have the same
// version.)
//
// A waiter is woken by its own node, by the limit, and by one of
//
//   - the directory's children, if it is the first whose turn has not come;
//   - otherwise its predecessor: another waiter, whose turn must come first unless it
//     leaves. When the turn of the predecessor comes, its client marks its node.
//
// The second case requires certainty that the predecessor will be marked. Every granted
// request is marked, except for a request whose turn came with the creation of its node: its
// client has read the same sum as at that moment, under a limit that has not changed since.
// So an unmarked node will be marked if its S exceeded the limit at its creation. A waiter
// knows this if the node's S exceeds the limit now, and the limit has not changed since the
// creation: the node's czxid is above the limit's mzxid. This stays true when the limit
// changes later, and the node stays the predecessor until it is deleted. If the waiter does not
// know it (the limit was changed, and the predecessor may have been granted since without a
// mark), it watches the children too. That can cause a superfluous wake-up, never a missing one.
//
// If any of these conditions is left out, the exhaustive model in the tests finds a
// lost wake-up or an exceeded limit.

// acquisition is one call of Acquire or TryAcquire.
type acquisition struct {
	sem    *Semaphore
	op     string        // for errors
	n      int           // the number of permits
	try    bool          // ErrLocked instead of waiting
	span   *tracing.Span // nil without Trace
	agreed bool          // the limit was found to be one that the client accepts
	*contender.Lookup
}

// request is the node of an acquisition, in the session that owns it.
type request struct {
	s *core.Session
	core.Node
}

// Acquire is Semaphore.Acquire of package coord.
func (s *Semaphore) Acquire(ctx context.Context, n int) (*core.Hold, error) {
	return s.acquire(ctx, &acquisition{sem: s, op: "acquire", n: n})
}

// TryAcquire is Semaphore.TryAcquire of package coord.
func (s *Semaphore) TryAcquire(ctx context.Context, n int) (*core.Hold, error) {
	return s.acquire(ctx, &acquisition{sem: s, op: "tryacquire", n: n, try: true})
}

// acquire makes requests until one is granted or fails for good.
func (s *Semaphore) acquire(ctx context.Context, a *acquisition) (*core.Hold, error) {
	if err := a.begin(ctx); err != nil {
		return nil, err
	}
	path := s.path.Full()
	for {
		h, err := a.attempt(ctx)
		if a.try {
			contender.SetCalm(s.c, s.requests, err == nil)
		}
		if err == nil {
			return h, nil
		}
		err, again := s.c.AfterAttempt(ctx, err)
		if !again {
			err = errs.Op(a.op, path, a.Explain(err))
			a.span.Over(ctx, err)
			return nil, err
		}
		s.c.Log().Debug("coord: lost the place in the queue of waiters, joining it again at the end", "path", path, "error", err)
		a.span.Requeued(ctx, err)
	}
}

// begin checks an acquisition and completes it.
func (a *acquisition) begin(ctx context.Context) error {
	s := a.sem
	if err := s.check(ctx, a.op); err != nil {
		return err
	}
	path := s.path.Full()
	if err := s.bad; err != nil {
		return errs.Op(a.op, path, err)
	}
	want := int(s.want.Load())
	switch {
	case a.n < 1:
		return errs.Op(a.op, path, fmt.Errorf("%w: %d permits requested, want at least 1", backend.ErrInvalid, a.n))
	case a.n > layout.MaxPermits:
		return errs.Op(a.op, path, exceedsLimit(a.n, layout.MaxPermits))
	case a.n > want && !s.adopt:
		return errs.Op(a.op, path, exceedsLimit(a.n, want))
	}
	if err := a.heldUnder(ctx); err != nil {
		return errs.Op(a.op, path, err)
	}
	a.span = s.c.NewSpan("semaphore", path, a.op)
	a.Lookup = contender.NewLookup(s.hasID)
	return nil
}

// exceedsLimit returns the error for a request that exceeds the limit.
func exceedsLimit(n, limit int) error {
	return fmt.Errorf("%w: %d permits requested, limit %d", errs.ErrLimit, n, limit)
}

// attempt makes one request. A node that does not become a hold is removed.
func (a *acquisition) attempt(ctx context.Context) (*core.Hold, error) {
	sem := a.sem
	if err := sem.c.AwaitCleanUps(ctx, sem.requests, ""); err != nil {
		return nil, err
	}
	s, err := sem.c.Live(ctx)
	if err != nil {
		return nil, err
	}
	if err := s.ClaimKind(ctx, sem.recipeDir()); err != nil {
		return nil, err
	}
	// A request that is bound to fail delays the requests behind it for a moment. So read
	// the limit first, unless the limit that was last seen admits the request.
	if seen := sem.seen.Load(); seen == nil || a.n > seen.n {
		l, _, err := a.limit(ctx, s, false)
		if err != nil {
			return nil, err
		}
		if a.n > l.n {
			return nil, exceedsLimit(a.n, l.n)
		}
	}
	if a.try && !contender.IsCalm(sem.c, sem.requests) {
		if err := a.look(ctx, s); err != nil {
			a.beginLookup(ctx, s, "", err)()
			return nil, err
		}
	}
	sp := core.NewSpec(sem.c, sem.recipeDir().Part(sem.requests, layout.KindRequests), layout.PermitInfix+strconv.Itoa(a.n)+"-", sem.data)
	if a.n == 1 {
		sp.Check = sem.limitUnchanged()
	}
	n, err := s.Create(ctx, &sp)
	if err != nil {
		return nil, err
	}
	r := &request{s: s, Node: n}
	if err := sem.checkNumber(ctx, r); err != nil {
		return nil, err
	}
	if n.Siblings == 1 && sp.Check.Kind != 0 {
		// One permit for the only contender: no limit is lower than that, so the turn
		// came with the node, under the limit that the client accepts.
		return a.hold(ctx, r, nil, grantedAtCreation)
	}
	var w watches
	h, err := a.grantAtOnce(ctx, r, &w)
	if errors.Is(err, errs.ErrAgain) {
		h, err = a.wait(ctx, r, &w)
		w.stop(err != nil)
	}
	if err != nil && !errors.Is(err, errs.ErrGone) {
		endLookup := a.beginLookup(ctx, s, r.Path, err)
		s.RemoveAndWait(r.Path)
		endLookup()
	}
	return h, err
}

// look returns ErrLocked if a try would fail now, before the try creates a node, see
// Line.look of package line. Here too a try fails only if another request was granted: of the requests that
// were made after the look of the failing try, the first was granted, unless it wanted too many permits.
func (a *acquisition) look(ctx context.Context, s *core.Session) error {
	names, err := contender.LookAt(ctx, s, a.sem.requests)
	if err != nil {
		return err
	}
	l, _, err := a.limit(ctx, s, false) // after reading the queue
	if err != nil {
		return err
	}
	queue := layout.OrderPermits(names)
	switch sum := layout.Weigh(queue) + int64(a.n); {
	case a.n > l.n:
		return exceedsLimit(a.n, l.n)
	case sum > int64(l.n):
		return a.Locked(func() []string { return a.holders(queue, "") })
	}
	return nil
}

// grantAtOnce grants a request that need not wait. It returns ErrAgain if the request must
// wait.
func (a *acquisition) grantAtOnce(ctx context.Context, r *request, w *watches) (*core.Hold, error) {
	queue := []layout.Permit{{Name: nodepath.Base(r.Path), Seq: r.Seq, Weight: a.n}}
	if r.Siblings != 1 {
		var err error
		if queue, err = a.list(ctx, r, nil); err != nil {
			return nil, err
		}
	}
	l, _, err := a.limit(ctx, r.s, false) // after reading the queue
	if err != nil {
		return nil, err
	}
	sum := layout.Weigh(queue)
	fits := sum <= int64(l.n)
	switch {
	case a.n > l.n:
		return nil, exceedsLimit(a.n, l.n)
	case fits && r.Siblings == int32(len(queue)) && r.Czxid > l.changed:
		// No earlier request has left since this node was created, and the limit has
		// not changed since: the turn came with the node.
		return a.hold(ctx, r, nil, grantedAtCreation)
	case !fits && a.try:
		return nil, a.Locked(func() []string { return a.holders(queue, nodepath.Base(r.Path)) })
	case !fits:
		if err := a.behindOwn(ctx, r.s, queue, l); err != nil {
			return nil, err
		}
	}
	if err := a.mayMark(ctx, r); err != nil {
		return nil, err
	}
	if fits {
		return a.hold(ctx, r, nil, grantedLater)
	}
	if sum-int64(a.n) <= int64(l.n) {
		w.move(firstWaiting)
	}
	return nil, errs.ErrAgain
}

// list returns the queue up to and including r, which is its last element. w may be
// nil.
func (a *acquisition) list(ctx context.Context, r *request, w *backend.Watch) ([]layout.Permit, error) {
	for synced := false; ; synced = true {
		names, _, err := r.s.Backend().Children(ctx, a.sem.requests, w)
		if err != nil && !errs.IsNotFound(err) {
			return nil, err
		}
		queue := layout.OrderPermits(names)
		i := slices.IndexFunc(queue, func(q layout.Permit) bool { return q.Name == nodepath.Base(r.Path) })
		if i >= 0 {
			return queue[:i+1], nil
		}
		if synced {
			return nil, errs.ErrGone
		}
		// Deleted, or the server lags behind its earlier replies.
		if err := r.s.Backend().Sync(ctx, a.sem.requests); err != nil {
			return nil, err
		}
		if errs.IsNotFound(err) {
			continue // w is not armed
		}
		w = nil // already armed, and older than the next listing
	}
}

// mayMark returns an error if the session may not write the node of r, since waiters may rely on
// its mark. It tests that with a write that cannot be applied: a service tests the
// permission before the version. A session tests once for each directory.
func (a *acquisition) mayMark(ctx context.Context, r *request) error {
	s, dir := r.s, a.sem.requests
	if s.IsAllowed(dir) {
		return nil
	}
	err := s.CommitAgain(ctx, backend.SetData(r.Path, nil, math.MaxInt32))
	switch {
	case errs.Answers(err, backend.ErrBadVersion):
		s.SetAllowed(dir)
		return nil
	case errs.IsNotFound(err):
		return errs.ErrGone
	case errs.Answers(err, backend.ErrDenied):
		return fmt.Errorf("a waiter needs write permission on its own node: %w", err)
	}
	return err
}

// grantTime is the moment at which the turn of a granted request came.
type grantTime int8

const (
	// The turn came with the creation of the node. Its S has never exceeded the limit,
	// so no successor waits for a mark.
	grantedAtCreation grantTime = iota
	// The turn came later, or may have: successors may wait for the mark.
	grantedLater
)

// hold turns a request whose turn has come into a hold, and marks its node unless the turn
// came with the node. own is the armed watch on the node; if own is nil, a watch is armed
// later. It returns ErrAgain if own has fired.
func (a *acquisition) hold(ctx context.Context, r *request, own *backend.Watch, turn grantTime) (*core.Hold, error) {
	c, s := a.sem.c, r.s
	h := core.NewHold(s, r.Path, 0, a.span, (*owner)(a.sem))
	if err := h.Grant(ctx, a.n, own, nil); err != nil {
		return nil, err
	}
	if turn == grantedLater {
		c.GoWork(func() {
			s.Retry(context.Background(), nil, "mark", r.Path, func(ctx context.Context) error { return a.mark(ctx, r) })
		})
	}
	return h, nil
}

// mark marks the node of r, which tells its successor that r was granted.
func (a *acquisition) mark(ctx context.Context, r *request) error {
	err := r.s.CommitAgain(ctx, backend.SetData(r.Path, a.sem.data, backend.AnyVersion))
	if errs.IsNotFound(err) {
		return nil // released, so its successor is woken by the deletion
	}
	return err
}

// heldUnder returns ErrHeld for a call that would wait for itself: the permits of the holds from which ctx
// derives never become free for this call. It saves a request that is bound to fail. In doubt it returns nil,
// and behindOwn decides.
func (a *acquisition) heldUnder(ctx context.Context) error {
	if a.try || a.sem.adopt {
		return nil
	}
	held, want := 0, int(a.sem.want.Load())
	var counted []string // a context can derive from one hold twice
	for name, h := range core.HoldsUnder(ctx, a.sem.requests) {
		q, ok := layout.ParsePermit(name)
		if !ok || slices.Contains(counted, name) {
			continue
		}
		if here, err := contender.Serves(ctx, a.sem.c, h); err != nil {
			return err
		} else if !here {
			continue
		}
		counted = append(counted, name)
		if held += q.Weight; held+a.n > want {
			return fmt.Errorf("%w: the caller holds %d of %d permits", errs.ErrHeld, held, want)
		}
	}
	return nil
}

// behindOwn is Line.behindOwn of package line. The last request of the queue is that of this call. behindOwn
// returns ErrHeld if a request in the queue does not fit beside earlier permits of the holds from which ctx
// derives. Then that request waits for these permits, this call waits behind that request, and ctx ends with
// the holds.
//
// The request of another caller counts only if its node is younger than the limit: then its
// turn has never come. An older request may have been granted under an earlier limit, and may
// not be marked yet.
func (a *acquisition) behindOwn(ctx context.Context, s *core.Session, queue []layout.Permit, l storedLimit) error {
	var names []string
	for name := range core.HoldsUnder(ctx, a.sem.requests) {
		names = append(names, name)
	}
	isOwn := func(q layout.Permit) bool { return slices.Contains(names, q.Name) }
	own := layout.Weigh(slices.DeleteFunc(slices.Clone(queue), func(q layout.Permit) bool { return !isOwn(q) }))
	for i, q := range slices.Backward(queue) {
		switch {
		case own == 0:
			return nil
		case isOwn(q):
			own -= int64(q.Weight)
			continue
		case own+int64(q.Weight) <= int64(l.n), q.Weight > l.n: // it fits, or it will fail
			continue
		}
		if i < len(queue)-1 {
			stat, err := s.Backend().Exists(ctx, a.sem.requests+"/"+q.Name, nil)
			if errs.IsNotFound(err) {
				continue // deleted since the listing
			}
			if err != nil || stat.Czxid <= l.changed { // earlier requests are older still
				return err
			}
		}
		return fmt.Errorf("%w: the caller holds %d of %d permits", errs.ErrHeld, own, l.n)
	}
	return nil
}

// holders returns the names of the nodes ahead of own that hold permits: the longest
// beginning of the queue that is within the limit, and at least one.
func (a *acquisition) holders(queue []layout.Permit, own string) []string {
	limit := int64(0)
	if seen := a.sem.seen.Load(); seen != nil {
		limit = int64(seen.n)
	}
	var names []string
	sum := int64(0)
	for _, q := range queue {
		if sum += int64(q.Weight); q.Name == own || len(names) > 0 && sum > limit {
			break
		}
		names = append(names, q.Name)
	}
	return names
}

// beginLookup begins the lookup of a call whose node, if it has one, is at own.
func (a *acquisition) beginLookup(ctx context.Context, s *core.Session, own string, err error) (end func()) {
	return a.Begin(ctx, s, a.sem.requests, err, func(names []string) []string {
		return a.holders(layout.OrderPermits(names), nodepath.Base(own))
	})
}

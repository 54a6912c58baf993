package coord

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/go-coord/coord/backend"
)

// The protocol of the semaphore. Let S(i) be the sum of the weights of the
// requests up to and including i, in the order of their numbers. S(i) never
// grows, since no request comes in before another.
//
// The turn of i comes at the first moment at which S(i) is within the limit, and
// stays come. Whose turn has come is always the first part of the line: what is
// true of S(i) was true of those before i. So at the moment of every turn the sum
// of all whose turn has come, holders or not yet, is S of the last of them and
// within the limit of that moment: the limit is never exceeded.
//
// A client sees that its turn has come when it reads the line and then, not
// before, the limit: at the time of the second read both were so. Or it reads the
// line while a watch on the limit stands that was armed before. Or he is alone in
// the directory when his node is created, and wants one permit: no limit is lower.
// That it is the limit he accepts is a condition of the creation, so he reads
// nothing. (For more permits that would not do: a node that was deleted and made
// anew can have the same version.)
//
// A waiter is woken by its own node, by the limit, and by one of
//
//   - the directory's children, if it is the first whose turn has not come;
//   - else the node right before its own, which is that of a waiter whose turn
//     must come first or who goes. When its turn comes its owner marks the node.
//
// The second needs certainty that the one before will mark. Everybody marks who
// is granted, except for one whose turn came at the very creation of his node:
// he has read the same sum as it was then, under a limit that has not changed
// since. So a node without a mark will get one if its S was over the limit at its
// creation. That is known if its S is over the limit now, and the limit is the
// one under which it was created: its czxid is above the limit's mzxid. Once
// known of a node it stays true, whatever becomes of the limit; a node before
// ours is the one before ours until it goes. Where it is not known (the limit was
// changed, and the one before has perhaps held on since) the waiter watches the
// children too: a wake-up too many, never one too few.
//
// Without each of these conditions a lost wake-up, or a limit exceeded, is found
// by the exhaustive model in the tests.

// orderPermits returns the requests among the children, first come first.
func orderPermits(names []string) []permit {
	var queue []permit
	for _, name := range names {
		if q, ok := parsePermit(name); ok {
			queue = append(queue, q)
		}
	}
	slices.SortFunc(queue, func(a, b permit) int { return bySeq(a.seq, a.name, b.seq, b.name) })
	return queue
}

// weigh returns the sum of the weights.
func weigh(queue []permit) int64 {
	sum := int64(0)
	for _, q := range queue {
		sum += int64(q.weight)
	}
	return sum
}

// acquisition is one call of Acquire or TryAcquire.
type acquisition struct {
	sem    *Semaphore
	op     string // for errors
	n      int
	try    bool
	trail  *trail // nil without Trace
	agreed bool   // the limit was found to be one that the client accepts
}

// heldUnder is line.heldUnder: the permits of the holds that ctx comes from are never
// free for this call. It spares a request that is bound to fail; behindOwn decides.
func (a *acquisition) heldUnder(ctx context.Context) error {
	if a.try || a.sem.adopt {
		return nil
	}
	held, want := 0, int(a.sem.want.Load())
	var counted []string // a context can be that of one hold twice
	for name, h := range holdsUnder(ctx, a.sem.requests) {
		q, ok := parsePermit(name)
		if !ok || slices.Contains(counted, name) {
			continue
		}
		if here, err := a.sem.c.serves(ctx, h); err != nil {
			return err
		} else if !here {
			continue
		}
		counted = append(counted, name)
		if held += q.weight; held+a.n > want {
			return fmt.Errorf("%w: %d of %d permits", ErrHeld, held, want)
		}
	}
	return nil
}

// behindOwn is line.behindOwn. It returns ErrHeld if a request in the queue, whose last is
// that of this call, does not fit beside the permits before it that ctx comes from. This
// call waits behind that request, which waits for those permits, and ctx ends with them.
//
// Another's request counts if its node is younger than the limit: it never had its turn
// then. Under an earlier limit it may have been granted, and not have marked its node.
func (a *acquisition) behindOwn(ctx context.Context, s *session, queue []permit, l permits) error {
	var names []string
	for name := range holdsUnder(ctx, a.sem.requests) {
		names = append(names, name)
	}
	isOwn := func(q permit) bool { return slices.Contains(names, q.name) }
	own := weigh(slices.DeleteFunc(slices.Clone(queue), func(q permit) bool { return !isOwn(q) }))
	for i, q := range slices.Backward(queue) {
		switch {
		case own == 0:
			return nil
		case isOwn(q):
			own -= int64(q.weight)
			continue
		case own+int64(q.weight) <= int64(l.n), q.weight > l.n: // too heavy: it will fail
			continue
		}
		if i < len(queue)-1 {
			stat, err := s.b.Exists(ctx, a.sem.requests+"/"+q.name, nil)
			if isNotFound(err) {
				continue // gone since
			}
			if err != nil || stat.Czxid <= l.changed { // those before it are older
				return err
			}
		}
		return fmt.Errorf("%w: %d of %d permits", ErrHeld, own, l.n)
	}
	return nil
}

// run makes requests until one is granted, or fails for good.
func (a *acquisition) run(ctx context.Context) (*Hold, error) {
	path := a.sem.path.full
	for {
		h, err := a.attempt(ctx)
		if a.try {
			a.sem.c.setCalm(a.sem.requests, err == nil)
		}
		if err == nil {
			return h, nil
		}
		err, again := afterAttempt(ctx, err)
		if !again {
			err = opError(a.op, path, err)
			a.trail.over(ctx, err)
			return nil, err
		}
		a.sem.c.log.Debug("coord: back to the tail of the line", "path", path, "error", err)
		a.trail.requeued(ctx, err)
	}
}

// attempt makes one request. A node that does not become a hold is removed.
func (a *acquisition) attempt(ctx context.Context) (*Hold, error) {
	sem := a.sem
	if err := sem.c.awaitCleanUps(ctx, sem.requests, ""); err != nil {
		return nil, err
	}
	s, err := sem.c.session(ctx)
	if err != nil {
		return nil, err
	}
	if err := s.occupy(ctx, sem.ground()); err != nil {
		return nil, err
	}
	// A request that is bound to fail holds up those behind it for a moment. So
	// ask first, unless the last answer is known and would do.
	if seen := sem.seen.Load(); seen == nil || a.n > seen.n {
		l, _, err := a.limit(ctx, s, false)
		if err != nil {
			return nil, err
		}
		if a.n > l.n {
			return nil, tooHeavy(a.n, l.n)
		}
	}
	if a.try && !sem.c.isCalm(sem.requests) {
		if err := a.look(ctx, s); err != nil {
			return nil, err
		}
	}
	sp := newSpec(sem.c, sem.ground().within(sem.requests, kindRequests), permitKind+strconv.Itoa(a.n)+"-", sem.data)
	if a.n == 1 {
		sp.check = sem.limitStands()
	}
	n, err := s.create(ctx, &sp)
	if err != nil {
		return nil, err
	}
	p := &place{s: s, node: n}
	if err := sem.checkNumber(ctx, p); err != nil {
		return nil, err
	}
	if n.siblings == 1 && sp.check.Kind != 0 {
		// One permit for who is alone: no limit is lower than that, so the turn came
		// with the node, and the limit that the client accepts stood then.
		return a.hold(ctx, p, nil, false)
	}
	var w permitWaits
	h, err := a.glance(ctx, p, &w)
	if errors.Is(err, errAgain) {
		h, err = a.wait(ctx, p, &w)
		w.stop(err != nil)
	}
	if err != nil && !errors.Is(err, errGone) {
		s.giveUp(p.path)
	}
	return h, err
}

// look returns ErrLocked if a try would fail now, before it makes a node, see
// line.look. Here too a failure means that another was granted: of the requests made
// since the look of one that fails, the first was granted, or failed for being
// heavier.
func (a *acquisition) look(ctx context.Context, s *session) error {
	names, err := s.lookAt(ctx, a.sem.requests)
	if err != nil {
		return err
	}
	l, _, err := a.limit(ctx, s, false) // after the line
	if err != nil {
		return err
	}
	switch sum := weigh(orderPermits(names)) + int64(a.n); {
	case a.n > l.n:
		return tooHeavy(a.n, l.n)
	case sum > int64(l.n):
		return ErrLocked
	}
	return nil
}

// list returns the line up to and including p, which is the last of it. w may be
// nil.
func (a *acquisition) list(ctx context.Context, p *place, w *backend.Watch) ([]permit, error) {
	for synced := false; ; synced = true {
		names, _, err := p.s.b.Children(ctx, a.sem.requests, w)
		if err != nil && !isNotFound(err) {
			return nil, err
		}
		queue := orderPermits(names)
		i := slices.IndexFunc(queue, func(q permit) bool { return q.name == base(p.path) })
		if i >= 0 {
			return queue[:i+1], nil
		}
		if synced {
			return nil, errGone
		}
		// Gone, or the server lags behind what it has answered before.
		if err := p.s.b.Sync(ctx, a.sem.requests); err != nil {
			return nil, err
		}
		if isNotFound(err) {
			continue // w is not armed
		}
		w = nil // armed, and older than what is read next
	}
}

// glance grants a request that needs not wait. It returns errAgain if it must.
func (a *acquisition) glance(ctx context.Context, p *place, w *permitWaits) (*Hold, error) {
	queue := []permit{{base(p.path), p.seq, a.n}}
	if p.siblings != 1 {
		var err error
		if queue, err = a.list(ctx, p, nil); err != nil {
			return nil, err
		}
	}
	l, _, err := a.limit(ctx, p.s, false) // after the line
	if err != nil {
		return nil, err
	}
	sum := weigh(queue)
	fits := sum <= int64(l.n)
	switch {
	case a.n > l.n:
		return nil, tooHeavy(a.n, l.n)
	case fits && p.siblings == int32(len(queue)) && p.czxid > l.changed:
		// Nobody before us has gone since our node was created, and the limit is
		// the one of then: our turn came with the node and nobody takes it for one
		// that will be marked.
		return a.hold(ctx, p, nil, false)
	case !fits && a.try:
		return nil, ErrLocked
	case !fits:
		if err := a.behindOwn(ctx, p.s, queue, l); err != nil {
			return nil, err
		}
	}
	if err := a.mayMark(ctx, p); err != nil {
		return nil, err
	}
	if fits {
		return a.hold(ctx, p, nil, true)
	}
	w.first = sum-int64(a.n) <= int64(l.n)
	return nil, errAgain
}

// mayMark returns an error if the session may not write the node of p, of which others
// may rely on the mark. It asks by a write that cannot be applied: a service tests the
// permission before the version. A session asks once in each directory.
func (a *acquisition) mayMark(ctx context.Context, p *place) error {
	s, dir := p.s, a.sem.requests
	if s.isAllowed(dir) {
		return nil
	}
	err := s.commitAgain(ctx, backend.SetData(p.path, nil, math.MaxInt32))
	switch {
	case answers(err, backend.ErrBadVersion):
		s.setAllowed(dir)
		return nil
	case isNotFound(err):
		return errGone
	case errors.Is(err, backend.ErrDenied):
		return fmt.Errorf("a waiter has to write its own node: %w", err)
	}
	return err
}

// hold makes the place a hold, and marks its node if mark says so. own is the
// armed watch on the node; nil has one armed later. It returns errAgain if that
// watch has fired.
func (a *acquisition) hold(ctx context.Context, p *place, own *backend.Watch, mark bool) (*Hold, error) {
	c, s := a.sem.c, p.s
	h := &Hold{s: s, path: p.path, trail: a.trail, recipe: a.sem}
	if err := s.grant(h, own); err != nil {
		return nil, err
	}
	a.trail.grant(ctx, h, a.n)
	if mark {
		c.goWork(func() {
			s.retry(context.Background(), nil, "mark", p.path, func(ctx context.Context) error { return a.mark(ctx, p) })
		})
	}
	if own != nil && !c.goWork(func() { h.watchNode(p.path, own) }) {
		own.Stop()
	}
	return h, nil
}

// mark tells whoever is behind in line that p was granted.
func (a *acquisition) mark(ctx context.Context, p *place) error {
	err := p.s.commitAgain(ctx, backend.SetData(p.path, a.sem.data, backend.AnyVersion))
	if isNotFound(err) {
		return nil // released, which tells as much
	}
	return err
}

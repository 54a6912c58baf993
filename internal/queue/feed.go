package queue

import (
	"cmp"
	"context"
	"errors"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/tracing"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/layout"
)

// itemRequest is a caller that waits for items.
type itemRequest struct {
	want  int     // the maximum
	try   bool    // fails with errs.ErrEmpty instead of waiting
	in    *intake // of Work, or nil
	reply chan handOut
	waits chan struct{} // closed when the feeder begins to wait; nil without Trace, and once it is closed
}

// onlyFor reports whether all requests are those of an intake.
func onlyFor(in *intake, requests []*itemRequest) bool {
	return !slices.ContainsFunc(requests, func(a *itemRequest) bool { return a.in != in })
}

type handOut struct {
	claims []*Claim
	err    error
}

// request waits for at least one item and returns at most want. With try it fails with
// ErrEmpty if no item is available. If ctx ends first, no claim is left behind for
// the caller. The claims that Acks have made for the intake, which may be nil, come first.
func (q *Queue) request(ctx context.Context, op string, want int, try bool, in *intake) (claims []*Claim, err error) {
	if err := backend.ContextError(ctx); err != nil {
		return nil, err
	}
	a := &itemRequest{want: want, try: try, in: in, reply: make(chan handOut, 1)}
	var waits <-chan struct{}
	span := q.newSpan(op)
	if span != nil {
		a.waits = make(chan struct{})
		waits = a.waits
		defer func() {
			span.Over(ctx, errs.Op(op, q.path.Full(), err))
			q.tellClaims(ctx, claims, span)
		}()
	}
	q.mu.Lock()
	if claims := in.takeReady(want); len(claims) > 0 {
		q.mu.Unlock()
		return claims, nil
	}
	if in != nil {
		in.request = a
	}
	q.requests = append(q.requests, a)
	if q.feeding {
		select {
		case q.more <- struct{}{}:
		default:
		}
	} else if q.feeding = q.c.GoWork(q.feed); !q.feeding {
		q.requests = nil
		q.mu.Unlock()
		return nil, backend.ErrClosed
	}
	q.mu.Unlock()
	select {
	case <-waits:
		span.Waiting(ctx, "", -1)
	case ans := <-a.reply:
		return ans.claims, ans.err
	case <-ctx.Done():
	case <-q.c.Closing():
	}
	select {
	case ans := <-a.reply:
		return ans.claims, ans.err
	case <-ctx.Done():
	case <-q.c.Closing():
	}
	q.mu.Lock()
	i := slices.Index(q.requests, a)
	if i >= 0 {
		q.requests = slices.Delete(q.requests, i, i+1)
		if len(q.requests) == 0 && q.idle != nil {
			q.idle()
		}
	}
	q.mu.Unlock()
	if i >= 0 {
		return nil, cmp.Or(q.c.ContextError(ctx), backend.ErrClosed)
	}
	ans := <-a.reply // the answer came at the same moment
	return ans.claims, ans.err
}

// answer distributes the claims over the requests that are still present, in order, at
// least one to each as far as they go. If an Ack has answered the request of Work meanwhile, the claims are for its
// next one. answer gives the rest back.
func (q *Queue) answer(requests []*itemRequest, claims []*Claim) {
	in := requests[0].in
	q.mu.Lock()
	if !onlyFor(in, requests) {
		in = nil
	}
	requests = slices.DeleteFunc(slices.Clone(q.requests), func(a *itemRequest) bool {
		return !slices.Contains(requests, a) && (in == nil || a.in != in)
	})
	for i, a := range requests {
		n := min(a.want, max(1, len(claims)-(len(requests)-1-i)), len(claims))
		if n == 0 {
			break
		}
		a.reply <- handOut{claims: claims[:n:n]}
		claims = claims[n:]
		q.requests = slices.DeleteFunc(q.requests, func(b *itemRequest) bool { return b == a })
	}
	if in != nil && !in.isOver() {
		for _, cl := range claims {
			in.add(&nextClaim{cl: cl, cleanUp: q.c.BeginCleanUp()})
		}
		claims = nil
	}
	q.mu.Unlock()
	q.tellClaims(context.Background(), claims, nil)
	for _, cl := range claims {
		cl.later(verbGiveBack)
	}
}

// tellWaits signals to all callers that the feeder waits, so that they trace it.
func (q *Queue) tellWaits() {
	if !q.c.IsTraced() {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, a := range q.requests {
		if a.waits != nil {
			close(a.waits)
			a.waits = nil
		}
	}
}

// tellClaims traces claims. call is the span of the caller that receives them, or nil if no
// caller receives them.
func (q *Queue) tellClaims(ctx context.Context, claims []*Claim, call *tracing.Span) {
	if !q.c.IsTraced() {
		return
	}
	for _, cl := range claims {
		cl.hold.ReportGrant(ctx, call)
	}
}

// later ends a claim in the background. Close waits for it. Until then the feeder
// takes nothing, so that a single consumer does not get a later item first.
func (cl *Claim) later(v claimVerb) { cl.laterFor(v, deadReason{}) }

// laterFor is later with the reason for verbBury.
func (cl *Claim) laterFor(v claimVerb, why deadReason) {
	cl.endLater(func() { cl.finishFor(context.Background(), v, 0, why) })
}

// giveBackFor is later of verbGiveBack, with a reason that Err of the hold has.
func (cl *Claim) giveBackFor(why string) { cl.endLater(func() { cl.hold.ReleaseFor(why) }) }

// endLater ends a claim by end in the background, see later.
func (cl *Claim) endLater(end func()) {
	done := cl.q.begin()
	if cl.q.c.GoCleanUp(func(context.Context, *core.CleanUp) {
		defer done()
		end()
	}) == nil {
		done() // the session is about to end, and the claim with it
	}
}

// begin makes the feeder wait until done is called. done may be called more than
// once.
func (q *Queue) begin() (done func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.beginLocked(&q.ending)
}

// underWay counts claims, with Queue.mu held.
type underWay struct {
	n    int
	over chan struct{} // closed when n is 0 again; nil before the first claim
}

// beginLocked is begin for a caller that holds q.mu. It counts a claim in w, which is q.ending or q.beside.
func (q *Queue) beginLocked(w *underWay) (done func()) {
	if w.n++; w.n == 1 {
		w.over = make(chan struct{})
	}
	return sync.OnceFunc(func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		if w.n--; w.n == 0 {
			close(w.over)
		}
	})
}

// takeUp returns the requests for which the feeder takes items now. If claims are under way that it waits for, it
// returns a channel that is closed when they are over. It does not wait for claims that Acks make for the Work which
// alone requests items, as long as items are remembered.
func (q *Queue) takeUp() (requests []*itemRequest, wait <-chan struct{}) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.ending.n > 0:
		return nil, q.ending.over
	case q.beside.n > 0 && (len(q.ahead.items) == 0 || !onlyFor(q.intake, q.requests)):
		return nil, q.beside.over
	}
	q.taking = slices.Clone(q.requests)
	return q.taking, nil
}

// tookUp ends what takeUp has begun.
func (q *Queue) tookUp() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.taking = nil
}

// awaitGivenBack waits for the claims that are being given back, as long as a call
// that is given up waits for its clean-up, see core.CleanUp.
func (q *Queue) awaitGivenBack() {
	q.mu.Lock()
	ending := q.ending
	q.mu.Unlock()
	if ending.n > 0 {
		q.c.Present().WaitFor(ending.over, core.GiveUpWait)
	}
}

// settle waits while claims are being given back, or made beside an Ack, or removed since they timed out, and
// returns the requests to serve: see takeUp. If it has waited for one of the first two kinds, it returns none: then it
// is called again.
func (f *feeder) settle(ctx context.Context) ([]*itemRequest, error) {
	if err := f.s.Client().AwaitCleanUps(ctx, f.q.items, ""); err != nil {
		return nil, err
	}
	requests, ended := f.q.takeUp()
	if ended == nil {
		return requests, nil
	}
	select {
	case <-ended:
		return nil, nil
	case <-f.s.Backend().Done():
		return nil, f.s.Backend().Err()
	case <-ctx.Done():
		return nil, f.s.ContextError(ctx)
	}
}

// fail answers the requests with an error.
func (q *Queue) fail(requests []*itemRequest, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, a := range requests {
		if i := slices.Index(q.requests, a); i >= 0 {
			q.requests = slices.Delete(q.requests, i, i+1)
			a.reply <- handOut{err: err}
		}
	}
}

// feed claims items for the callers of this client until no caller waits. So the
// callers share one set of watches and one waiter, and get the items in order.
func (q *Queue) feed() {
	for {
		ctx, cancel := context.WithCancel(context.Background())
		q.mu.Lock()
		if len(q.requests) == 0 {
			q.feeding, q.idle = false, nil
			q.mu.Unlock()
			cancel()
			return
		}
		q.idle = cancel
		q.mu.Unlock()
		err := q.feedOn(ctx)
		gone := ctx.Err() != nil
		cancel()
		if err != nil && !gone {
			q.fail(q.present(), err)
		}
	}
}

// present returns a copy of the current requests.
func (q *Queue) present() []*itemRequest {
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.Clone(q.requests)
}

// feedOn runs feeders, on one session after the other, until no caller waits.
func (q *Queue) feedOn(ctx context.Context) error {
	_, err := core.OnSession(ctx, q.c, func(s *core.Session) (struct{}, error) {
		f := &feeder{q: q, s: s, place: slotPlace{l: q.waiters, s: s}, passed: q.passedOn(s)}
		defer f.place.leave()
		return struct{}{}, f.run(ctx)
	})
	return err
}

// feeder serves the requests of a queue on one session.
type feeder struct {
	q     *Queue
	s     *core.Session
	stale bool   // the last snapshot may be stale: Sync first
	later bool   // others had the item that this holder of a slot tried to claim: W8
	gone  string // path of the first item of the last claim, if all its items had vanished
	place slotPlace
	ws    *backend.WatchSet

	passed *passed // of s
}

// run answers requests until none is left.
func (f *feeder) run(ctx context.Context) error {
	defer f.unwatch()
	if err := f.s.CheckKind(ctx, f.q.recipeDir()); err != nil {
		return err
	}
	for {
		tries := func(a *itemRequest) bool { return a.try }
		requests := f.q.present()
		if len(requests) == 0 {
			return nil
		}
		if f.place.path != "" && !f.place.slot && !slices.ContainsFunc(requests, tries) {
			err := f.place.stand(ctx, func(changed, filled <-chan struct{}) error { return f.await(ctx, changed, nil, filled) })
			if err != nil {
				return err
			}
			continue
		}
		requests, err := f.settle(ctx)
		if err != nil {
			return err
		}
		if len(requests) == 0 {
			continue
		}
		want := 0
		for _, a := range requests {
			want += a.want
		}
		took, v, err := f.takeFor(ctx, requests, min(want, f.q.batch(f.s)), slices.ContainsFunc(requests, tries))
		switch {
		case errors.Is(err, errUnderWay):
		case errors.Is(err, errs.ErrAgain):
			f.stale = true
		case err != nil:
			return err
		case took:
		default:
			f.q.fail(slices.DeleteFunc(slices.Clone(requests), func(a *itemRequest) bool { return !a.try }), errs.ErrEmpty)
			if len(f.q.present()) == 0 {
				continue
			}
			if err := f.wait(ctx, v); err != nil {
				return err
			}
		}
	}
}

// takeFor takes items for the requests and reports whether it found any. Close waits
// for it, so that items claimed for a request that is gone are given back first.
func (f *feeder) takeFor(ctx context.Context, requests []*itemRequest, want int, tries bool) (bool, sight, error) {
	defer f.q.tookUp()
	u := f.q.c.BeginCleanUp()
	defer u.End()
	if f.q.c.IsClosing() { // also if u is nil
		return false, sight{}, backend.ErrClosed
	}
	claims, v, err := f.take(ctx, want, tries)
	if err != nil || len(claims) == 0 {
		return false, v, err
	}
	f.q.answer(requests, claims)
	return true, v, nil
}

// errUnderWay is the error of a take that would list items while Acks claim some of them.
var errUnderWay = errors.New("coord: claims of Acks are under way")

// take looks for items once, and claims them. It returns errs.ErrAgain if it
// found items but claimed none.
func (f *feeder) take(ctx context.Context, want int, sync bool) ([]*Claim, sight, error) {
	if claims, err := f.takeAhead(ctx, want); len(claims) > 0 || err != nil {
		return claims, sight{}, err
	}
	if !f.q.beginList() {
		return nil, sight{}, errUnderWay
	}
	l := learnsNow
	if f.place.path == "" && !sync {
		l = learnsLater
	}
	syncs := 0
	if sync || f.stale || f.q.kind == layout.KindPriorityQueue {
		syncs++
	}
	yields := f.yields()
	if yields {
		syncs++
	}
	for range syncs {
		// The Sync makes the walk see each item that was put before the call began. The lists
		// are not sent together with it: a leader answers the Sync of a client of its own at once, and
		// reads that are sent with it can be older than what a follower has answered before.
		if err := f.s.Backend().Sync(ctx, f.q.items); err != nil {
			return nil, sight{}, err
		}
	}
	f.unwatch()
	if f.place.slot {
		f.ws = backend.NewWatchSet()
	}
	f.q.prune(f.passed)
	if sync || f.stale {
		f.passed.dir.w.Stop()
		f.passed.dir = itemsList{}
	}
	p := f.passed
	if !f.place.slot && !f.q.remembers(f.s) {
		p = nil
	}
	began, gen := time.Now(), f.q.generation()
	var v sight
	var err error
	if f.ws == nil {
		v, err = f.q.walkInTurn(ctx, f.s, p, l)
	} else {
		v, err = f.q.walk(ctx, f.s, math.MaxInt, f.ws, p, f.q.stuckItems(), l)
	}
	f.stale = false
	if err != nil || len(v.found) == 0 {
		return nil, v, err
	}
	found, rest := f.q.choose(f.q.spare(v.found), want)
	claims, faster, err := f.q.claim(ctx, f.s, found, nil, f.place.path, syncs > 0)
	if errors.Is(err, errNotDue) {
		f.place.vacated()
		return nil, v, errs.ErrAgain
	}
	if f.place.slot && (faster || errors.Is(err, errs.ErrAgain)) {
		f.later = true
	}
	switch {
	case err != nil:
		return nil, v, err
	case len(claims) == 0:
		if !faster {
			f.vanished(found)
		}
		if !yields { // after a yield another holder is expected to be faster (W8), so that is no rival at the next items
			f.q.noteRival(faster)
		}
		return nil, v, errs.ErrAgain
	}
	f.q.noteRival(false)
	f.q.keep(f.s, began, gen, &v, rest)
	f.later = false
	prompt := f.s
	if f.place.path != "" || !v.retry.IsZero() {
		prompt = nil // it has waited, or a list cannot be kept
	}
	f.q.setPrompt(prompt)
	f.place.vacated()
	return claims, v, nil
}

// yields reports whether a holder of a slot leaves the next item to the others, see W8.
func (f *feeder) yields() bool {
	return f.later && f.place.slot && !f.stale && f.q.c.Random("yield")%3 > 0
}

// takeAhead claims items that an earlier list has shown. It returns no claims if there is no such
// list. If an item cannot be claimed, another consumer has had it, and takeAhead tries the next
// item. It returns errs.ErrAgain after two failures, that of a commit of Acks included, or if one of several items
// in a commit cannot be claimed: the other items of the commit precede the next item.
func (f *feeder) takeAhead(ctx context.Context, want int) ([]*Claim, error) {
	if f.place.slot || f.stale {
		return nil, nil
	}
	for tries := f.q.tries(); ; tries++ {
		found, reads := f.q.next(f.s, want)
		if len(found) == 0 {
			if tries > 1 {
				return nil, errs.ErrAgain
			}
			return nil, nil
		}
		claims, _, err := f.q.claim(ctx, f.s, found, reads, f.place.path, false)
		switch {
		case len(claims) > 0 && err == nil:
			f.q.hit()
			f.place.vacated()
			return claims, nil
		case errors.Is(err, errNotDue):
			f.place.vacated()
			return nil, errs.ErrAgain
		case err == nil || errors.Is(err, errs.ErrAgain):
			f.q.noteMissed(f.s)
			if tries == 1 && len(found) == 1 {
				continue
			}
			err = errs.ErrAgain
		}
		f.q.forget() // these items may still be free
		return nil, err
	}
}

// vanished notes that the service did not have the items that a list showed. If a
// later list shows them again, the server of this session has items that the service
// does not have, and would show them for ever.
func (f *feeder) vanished(found []layout.QueueEntry) {
	first := found[0].Path()
	if f.q.stuckItems()[first].After(time.Now()) {
		return // it is there, but cannot be moved
	}
	if f.gone != first {
		f.gone = first
		return
	}
	f.s.Client().Log().Warn("coord: the server lists items that the service no longer has, ignoring them for a minute", "path", first, "items", len(found))
	for i := range found {
		f.q.ignore(found[i].Path())
	}
}

func (f *feeder) unwatch() {
	f.ws.Stop()
	f.ws = nil
}

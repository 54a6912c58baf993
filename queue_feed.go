package coord

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/go-coord/coord/backend"
)

// queueAsk is a caller that wants items.
type queueAsk struct {
	want  int  // at most
	try   bool // he does not wait
	reply chan handOut
	waits chan struct{} // closed when the feeder waits for something; nil without Trace or if that was told
}

type handOut struct {
	claims []*itemClaim
	err    error
}

// ask waits for one item at least, and want of them at most. With try it fails
// with ErrEmpty when there is none. When ctx ends nothing stays behind.
func (q *queue) ask(ctx context.Context, op string, want int, try bool) (claims []*itemClaim, err error) {
	if err := backend.ContextError(ctx); err != nil {
		return nil, err
	}
	a := &queueAsk{want: want, try: try, reply: make(chan handOut, 1)}
	var waits <-chan struct{}
	trail := q.trail(op)
	if trail != nil {
		a.waits = make(chan struct{})
		waits = a.waits
		defer func() {
			trail.over(ctx, opError(op, q.path.full, err))
			q.tellClaims(ctx, claims, trail.began)
		}()
	}
	q.mu.Lock()
	q.asks = append(q.asks, a)
	if q.feeding {
		select {
		case q.more <- struct{}{}:
		default:
		}
	} else if q.feeding = q.c.goWork(q.feed); !q.feeding {
		q.asks = nil
		q.mu.Unlock()
		return nil, ErrClosed
	}
	q.mu.Unlock()
	select {
	case <-waits:
		trail.waiting(ctx, "", -1)
	case ans := <-a.reply:
		return ans.claims, ans.err
	case <-ctx.Done():
	case <-q.c.closing:
	}
	select {
	case ans := <-a.reply:
		return ans.claims, ans.err
	case <-ctx.Done():
	case <-q.c.closing:
	}
	q.mu.Lock()
	i := slices.Index(q.asks, a)
	if i >= 0 {
		q.asks = slices.Delete(q.asks, i, i+1)
		if len(q.asks) == 0 && q.idle != nil {
			q.idle()
		}
	}
	q.mu.Unlock()
	if i >= 0 {
		return nil, cmp.Or(backend.ContextError(ctx), ErrClosed)
	}
	ans := <-a.reply // it was answered in this moment
	return ans.claims, ans.err
}

// answer gives the claims to those of the asks that have not gone, in order, one
// to each at least. What is left over is given back.
func (q *queue) answer(asks []*queueAsk, claims []*itemClaim) {
	q.mu.Lock()
	asks = slices.DeleteFunc(slices.Clone(asks), func(a *queueAsk) bool { return !slices.Contains(q.asks, a) })
	for i, a := range asks {
		n := min(a.want, max(1, len(claims)-(len(asks)-1-i)), len(claims))
		if n == 0 {
			break
		}
		a.reply <- handOut{claims: claims[:n:n]}
		claims = claims[n:]
		q.asks = slices.DeleteFunc(q.asks, func(b *queueAsk) bool { return b == a })
	}
	q.mu.Unlock()
	q.tellClaims(context.Background(), claims, time.Time{})
	for _, cl := range claims {
		cl.later(verbGiveBack)
	}
}

// tellWaits has those who asked tell that they wait.
func (q *queue) tellWaits() {
	if q.c.trace == nil {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, a := range q.asks {
		if a.waits != nil {
			close(a.waits)
			a.waits = nil
		}
	}
}

// tellClaims tells of claims that somebody who has asked at began gets, or nobody.
func (q *queue) tellClaims(ctx context.Context, claims []*itemClaim, began time.Time) {
	if q.c.trace == nil {
		return
	}
	for _, cl := range claims {
		if !began.IsZero() {
			cl.hold.trail.began = began
		}
		cl.hold.trail.grant(ctx, cl.hold, 1)
	}
}

// later ends a claim in the background. Close waits for it. The feeder takes nothing
// meanwhile, so that a single consumer does not get a later item first.
func (cl *itemClaim) later(v claimVerb) {
	done := cl.q.begin()
	if cl.q.c.goCleanUp(func(context.Context, *cleanUp) {
		defer done()
		cl.finish(context.Background(), v, 0)
	}) == nil {
		done() // the session is being ended, and the claim goes with it
	}
}

// begin makes the feeder wait until what it returns is called, once or more often.
func (q *queue) begin() (done func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.ending++; q.ending == 1 {
		q.ended = make(chan struct{})
	}
	return sync.OnceFunc(func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		if q.ending--; q.ending == 0 {
			close(q.ended)
		}
	})
}

// begun returns a channel that is closed when what was begun is done, or nil if it is.
func (q *queue) begun() <-chan struct{} {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.ending == 0 {
		return nil
	}
	return q.ended
}

// awaitGivenBack waits for what was begun as a call that is given up waits, see cleanUp.
func (q *queue) awaitGivenBack() {
	if ended := q.begun(); ended != nil {
		q.c.current.Load().waitFor(ended, giveUpWait)
	}
}

// settle waits for what was begun.
func (f *feeder) settle(ctx context.Context) error {
	ended := f.q.begun()
	if ended == nil {
		return nil
	}
	select {
	case <-ended:
		return nil
	case <-f.s.b.Done():
		return f.s.b.Err()
	case <-ctx.Done():
		return backend.ContextError(ctx)
	}
}

// fail answers asks with an error.
func (q *queue) fail(asks []*queueAsk, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, a := range asks {
		if i := slices.Index(q.asks, a); i >= 0 {
			q.asks = slices.Delete(q.asks, i, i+1)
			a.reply <- handOut{err: err}
		}
	}
}

// feed claims items for the callers of this client as long as there are some. So
// they share one set of watches and one waiter, and take in order.
func (q *queue) feed() {
	for {
		ctx, cancel := context.WithCancel(context.Background())
		q.mu.Lock()
		if len(q.asks) == 0 {
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

// present returns the asks of this moment.
func (q *queue) present() []*queueAsk {
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.Clone(q.asks)
}

// feedOn feeds on one session after the other, until nobody asks.
func (q *queue) feedOn(ctx context.Context) error {
	_, err := onSession(ctx, q.c, func(s *session) (struct{}, error) {
		f := &feeder{q: q, s: s}
		defer f.leave()
		return struct{}{}, f.run(ctx)
	})
	return err
}

// feeder is feed on one session.
type feeder struct {
	q     *queue
	s     *session
	lost  int    // claims that somebody else was faster with, in a row
	stale bool   // what was read before may be too old
	place string // path of the waiter, "" if there is none
	front bool   // it is among the first, which watch the items
	ws    *backend.WatchSet
}

// run answers asks until there are none.
func (f *feeder) run(ctx context.Context) error {
	defer f.unwatch()
	if err := f.s.meet(ctx, f.q.ground()); err != nil {
		return err
	}
	for {
		asks := f.q.present()
		if len(asks) == 0 {
			return nil
		}
		want, tries := 0, false
		for _, a := range asks {
			want += a.want
			tries = tries || a.try
		}
		if f.place != "" && !f.front && !tries {
			if err := f.stand(ctx); err != nil {
				return err
			}
			continue
		}
		if err := f.settle(ctx); err != nil {
			return err
		}
		took, v, err := f.takeFor(ctx, asks, min(want, f.q.batch), tries)
		switch {
		case errors.Is(err, errAgain):
			f.stale = true
		case err != nil:
			return err
		case took:
		default:
			f.q.fail(slices.DeleteFunc(asks, func(a *queueAsk) bool { return !a.try }), ErrEmpty)
			if len(f.q.present()) == 0 {
				continue
			}
			if err := f.wait(ctx, v.next); err != nil {
				return err
			}
		}
	}
}

// takeFor takes for those who ask, and reports whether there was something. Close
// waits for it: what it claims for an ask that has gone is given back first.
func (f *feeder) takeFor(ctx context.Context, asks []*queueAsk, want int, tries bool) (bool, sight, error) {
	u := f.q.c.beginCleanUp()
	if u == nil || f.q.c.isClosing() {
		u.end()
		return false, sight{}, ErrClosed
	}
	defer u.end()
	claims, v, err := f.take(ctx, want, tries)
	if err != nil || len(claims) == 0 {
		return false, v, err
	}
	f.q.answer(asks, claims)
	return true, v, nil
}

// take looks once, and claims what it finds. It returns errAgain if others were
// faster.
func (f *feeder) take(ctx context.Context, want int, sync bool) ([]*itemClaim, sight, error) {
	fresh := sync || f.stale || f.q.kind == priorityQueue
	if fresh {
		// A better item that was there before the call began wins.
		if err := f.s.b.Sync(ctx, f.q.items); err != nil {
			return nil, sight{}, err
		}
	}
	f.stale = false
	f.unwatch()
	if f.front {
		f.ws = backend.NewWatchSet()
	}
	v, err := f.q.walk(ctx, f.s, want+f.spread(), f.ws, f.q.stuckItems())
	if err != nil || len(v.found) == 0 {
		return nil, v, err
	}
	found := v.found
	if extra := min(f.spread(), len(found)-1); extra > 0 {
		found = found[f.q.c.random("spread")%uint64(extra+1):]
	}
	found = found[:min(want, len(found))]
	claims, faster, err := f.q.claim(ctx, f.s, found, f.place, fresh)
	switch {
	case err != nil:
		return nil, v, err
	case len(claims) == 0:
		if faster {
			f.lost++
		}
		return nil, v, errAgain
	}
	f.lost = 0
	f.place, f.front = "", false
	return claims, v, nil
}

// spread is how many items further a consumer looks that has lost a race.
func (f *feeder) spread() int {
	if f.q.kind != fifoQueue {
		return 0
	}
	return min(4*f.lost, 32)
}

func (f *feeder) unwatch() {
	f.ws.Stop()
	f.ws = nil
}

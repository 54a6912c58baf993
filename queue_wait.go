package coord

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/layout"
)

// frontWaiters is the number of waiters, counted from the head of the queue of
// waiters, that watch the items, and the number of predecessors that every other
// waiter watches: see W1 in queue_engine.go. Up to frontWaiters-1 of them can be dead,
// cut off or paused, or have a slow clock where that counts (W7), without delaying any
// other waiter.
const frontWaiters = 4

// wait waits for a reason to look again after the feeder found nothing. It joins
// the waiters first. A waiter that has just reached the front looks once more, with
// watches, before it waits.
func (f *feeder) wait(ctx context.Context, v sight) error {
	switch {
	case f.place == "":
		// A node left behind by a failed create is removed before Close ends the
		// session.
		u := f.q.c.beginCleanUp()
		sp := newSpec(f.q.c, f.q.ground().within(f.q.waiters, layout.KindWaiters), layout.WaiterInfix, nil)
		n, err := f.s.create(ctx, &sp)
		u.end()
		if err != nil {
			return err
		}
		f.place = n.path
		f.front = n.siblings > 0 && int(n.siblings) <= frontWaiters
		return nil
	case !f.front || f.ws == nil:
		return nil
	}
	var due <-chan time.Time
	var moved <-chan struct{}
	if d, ok := v.rest(f.s); ok {
		// At least a millisecond, because due times have that resolution: a shorter
		// wait could become a busy loop.
		t := time.NewTimer(max(d, time.Millisecond))
		defer t.Stop()
		due = t.C
	}
	if v.next > 0 {
		moved = v.now.moved // the timer may be wrong then
	}
	return f.await(ctx, f.ws.Ready(), due, moved)
}

// rest returns how long to wait before the next look if nothing changes. It reports false if
// only a change can make an item available.
func (v *sight) rest(s *session) (d time.Duration, ok bool) {
	if v.next > 0 {
		d, ok = s.untilDue(v.next), true
	}
	if v.retry > 0 {
		retry := time.Until(time.UnixMilli(v.retry))
		if !ok || retry < d {
			d, ok = retry, true
		}
	}
	return d, ok
}

// await returns when one of the channels is ready, or when a caller asks that does
// not wait. Other new asks change nothing: the same watches serve them.
func (f *feeder) await(ctx context.Context, changed <-chan struct{}, due <-chan time.Time, moved <-chan struct{}) error {
	for {
		f.q.tellWaits()
		select {
		case <-changed:
			return nil
		case <-due:
			return nil
		case <-moved:
			return nil
		case <-f.q.more:
			if slices.ContainsFunc(f.q.present(), func(a *queueAsk) bool { return a.try }) {
				return nil
			}
		case <-f.s.b.Done():
			return f.s.b.Err()
		case <-ctx.Done():
			return backend.ContextError(ctx)
		}
	}
}

// stand waits behind the front until something changes. If the client's waiter has
// reached the front, it sets f.front and returns.
func (f *feeder) stand(ctx context.Context) error {
	names, _, err := f.s.b.Children(ctx, f.q.waiters, nil)
	if err != nil && !isNotFound(err) {
		return err
	}
	type waiter struct {
		name string
		seq  int64
	}
	var all []waiter
	for _, name := range names {
		if seq, ok := layout.ParseSeq(name, "-"+layout.WaiterInfix); ok && layout.IsOurs(name) {
			all = append(all, waiter{name, seq})
		}
	}
	slices.SortFunc(all, func(a, b waiter) int { return layout.BySeq(a.seq, a.name, b.seq, b.name) })
	i := slices.IndexFunc(all, func(w waiter) bool { return w.name == base(f.place) })
	switch {
	case i < 0:
		// An outsider deleted the waiter, or the server lags behind: make a new
		// one.
		f.leave()
		return f.s.b.Sync(ctx, f.q.waiters)
	case i < frontWaiters:
		f.front = true
		return nil
	}
	ws := backend.NewWatchSet()
	defer ws.Stop()
	var targets []backend.Target
	for _, w := range all[i-frontWaiters : i] {
		targets = append(targets, backend.Target{Path: f.q.waiters + "/" + w.name, Children: true, Watch: ws.New()})
	}
	// If a predecessor is gone already, its watch fires at once.
	if err := f.s.b.Arm(ctx, math.MaxInt64, targets...); err != nil {
		return err
	}
	if ok, err := f.s.sees(ctx, f.q.waiters, all[i-1].name); !ok {
		return err
	}
	return f.await(ctx, ws.Ready(), nil, nil)
}

// leave removes the waiter. If the client is closing, the waiter goes with the
// session.
func (f *feeder) leave() {
	if f.place != "" && f.s.b.Err() == nil && !f.q.c.isClosing() {
		f.s.removeLater(f.place)
	}
	f.place, f.front = "", false
}

package coord

import (
	"context"
	"slices"
	"time"
)

// itemSlots is the number of consumers that watch the items while they wait, see slotLine. Up to
// itemSlots-1 of them can be dead, cut off or paused without delaying any other consumer.
const itemSlots = 6

// wait waits for a reason to look again after the feeder found nothing. It gets a place first. A
// consumer that has just taken a slot looks once more, with watches, before it waits.
func (f *feeder) wait(ctx context.Context, v sight) error {
	if f.place.path == "" {
		return f.place.enter(ctx)
	}
	if !f.place.slot || f.ws == nil {
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
	if !v.retry.IsZero() {
		retry := time.Until(v.retry)
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
			return f.s.contextError(ctx)
		}
	}
}

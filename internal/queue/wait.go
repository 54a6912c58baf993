package queue

import (
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/errs"

	"github.com/go-coord/coord/backend"
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
	for {
		if err := f.awaitOnce(ctx, &v); err != nil || !v.later {
			return err
		}
		if len(f.ws.Take()) == 0 || slices.ContainsFunc(f.q.present(), func(a *itemRequest) bool { return a.try }) {
			return nil // its time has come, or a caller asks
		}
		if same, err := f.onlyLater(ctx, &v); !same {
			return err
		}
	}
}

// awaitOnce returns when there is a reason to look again.
func (f *feeder) awaitOnce(ctx context.Context, v *sight) error {
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
		moved = v.now.Moved // the timer may be wrong then
	}
	return f.await(ctx, f.ws.Ready(), due, moved)
}

// onlyLater reports whether the change of the directory of items that a watch has reported is of
// no interest, and watches the directory again then: see W9.
func (f *feeder) onlyLater(ctx context.Context, v *sight) (bool, error) {
	data, stat, err := f.s.Backend().Get(ctx, f.q.items, nil)
	switch {
	case errs.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, err
	}
	switch now := (itemsState{stat.Czxid, stat.Version}); {
	case now.made != v.items.made, !now.counts():
		return false, nil
	case now.version == v.items.version:
	default:
		key, err := strconv.ParseInt(string(data), 10, 64)
		if err != nil || key < v.next || now.version != v.items.version+1 {
			return false, nil
		}
	}
	v.items.version = stat.Version
	f.unwatch()
	f.ws = backend.NewWatchSet()
	return true, f.s.Backend().Arm(ctx, stat.AsOf, backend.Target{Path: f.q.items, Children: true, Watch: f.ws.New()})
}

// rest returns how long to wait before the next look if nothing changes. It reports false if
// only a change can make an item available.
func (v *sight) rest(s *core.Session) (d time.Duration, ok bool) {
	if v.next > 0 {
		d, ok = s.Clock().UntilDue(v.next), true
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
// not wait. Other new requests change nothing: the same watches serve them.
func (f *feeder) await(ctx context.Context, changed <-chan struct{}, due <-chan time.Time, moved <-chan struct{}) error {
	var passed <-chan struct{}
	if f.ws != nil { // the holder of a slot, see T12
		passed = f.passed.ws.Ready()
	}
	for {
		f.q.tellWaits()
		select {
		case <-changed:
			return nil
		case <-passed:
			return nil
		case <-due:
			return nil
		case <-moved:
			return nil
		case <-f.q.more:
			if slices.ContainsFunc(f.q.present(), func(a *itemRequest) bool { return a.try }) {
				return nil
			}
		case <-f.s.Backend().Done():
			return f.s.Backend().Err()
		case <-ctx.Done():
			return f.s.ContextError(ctx)
		}
	}
}

package coord

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/go-coord/coord/backend"
)

// waiterLanes is how many waiters watch the items themselves. With one, a waiter
// that is cut off would hold up all others until its session ends.
const waiterLanes = 2

// wait waits for a reason to look again, after nothing was found. It enters a
// lane first; and who has become the first of his lane must look once more, with
// watches, before he waits.
func (f *feeder) wait(ctx context.Context, next int64) error {
	switch {
	case f.place == "":
		sp := newSpec(f.q.c, f.q.waiters, waiterKind, nil)
		n, err := f.s.create(ctx, &sp)
		if err != nil {
			return err
		}
		f.place, f.seq = n.path, n.seq
		f.first = n.siblings == 1
		return nil
	case !f.first || f.ws == nil:
		return nil
	}
	var due <-chan time.Time
	if next > 0 {
		// At least a moment, or a clock that is read in milliseconds could make
		// this a loop.
		t := time.NewTimer(max(time.Until(time.UnixMilli(next)), time.Millisecond))
		defer t.Stop()
		due = t.C
	}
	return f.await(ctx, f.ws.Ready(), due)
}

// await returns when one of the channels can be received from, or when somebody
// asks who does not wait. Others who ask need nothing: what is watched brings them
// their items too.
func (f *feeder) await(ctx context.Context, changed <-chan struct{}, due <-chan time.Time) error {
	for {
		f.q.tellWaits()
		select {
		case <-changed:
			return nil
		case <-due:
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

// stand waits in the lane until something changes, or finds that the own waiter
// is the first.
func (f *feeder) stand(ctx context.Context) error {
	names, _, err := f.s.b.Children(ctx, f.q.waiters, nil)
	if err != nil && !isNotFound(err) {
		return err
	}
	type waiter struct {
		name string
		seq  int32
	}
	var lane []waiter
	for _, name := range names {
		if seq, ok := parseSeq(name, "-"+waiterKind); ok && isOurs(name) && uint32(seq)%waiterLanes == uint32(f.seq)%waiterLanes {
			lane = append(lane, waiter{name, seq})
		}
	}
	slices.SortFunc(lane, func(a, b waiter) int {
		switch {
		case a.seq == b.seq:
			return cmp.Compare(a.name, b.name)
		case before(a.seq, b.seq):
			return -1
		}
		return 1
	})
	i := slices.IndexFunc(lane, func(w waiter) bool { return w.name == base(f.place) })
	switch {
	case i < 0:
		// An outsider deleted it, or the server lags behind: a new one.
		f.leave()
		return f.s.b.Sync(ctx, f.q.waiters)
	case i == 0:
		f.first = true
		return nil
	}
	w := backend.NewWatch()
	_, _, err = f.s.b.Children(ctx, f.q.waiters+"/"+lane[i-1].name, w)
	if isNotFound(err) {
		w.Stop()
		return nil
	}
	if err != nil {
		w.Stop()
		return err
	}
	defer w.Stop()
	return f.await(ctx, w.Fired(), nil)
}

// leave removes the waiter.
func (f *feeder) leave() {
	if f.place != "" && f.s.b.Err() == nil {
		f.s.removeLater(f.place)
	}
	f.place, f.first = "", false
}

package coord

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-coord/coord/backend"
)

// putLimited puts as many of the batch as there is room for, and waits for some
// room if there is none, or fails with ErrFull.
//
// The number of items is counted under the version of the directory of items,
// which each limited put counts up: nobody else has put anything between the
// count and the put, so the limit is never passed, not even for a moment, and
// nothing has to be taken back.
func (q *queue) putLimited(ctx context.Context, s *session, trail *trail, key, due int64, batch []parcel) (int, error) {
	for watch := false; ; {
		n, err := q.putSome(ctx, s, trail, key, due, batch, watch)
		switch {
		case isNotFound(err):
			if err := q.makeItems(ctx, s); err != nil {
				return 0, err
			}
		case !errors.Is(err, errAgain):
			return n, err
		case n < 0: // it was full
			watch = true
		}
	}
}

// putSome tries once. It returns errAgain if it has to be tried again, together
// with -1 if there was no room. With watch it waits for a change first then.
func (q *queue) putSome(ctx context.Context, s *session, trail *trail, key, due int64, batch []parcel, watch bool) (int, error) {
	if err := s.b.Sync(ctx, q.items); err != nil {
		return 0, err
	}
	var ws *backend.WatchSet
	if watch {
		ws = backend.NewWatchSet()
		defer ws.Stop()
	}
	n, t, err := q.countItems(ctx, s, ws)
	if err != nil {
		return 0, err
	}
	if room := q.maxLen - n; room > 0 {
		batch = batch[:min(room, len(batch))]
		if err := q.putItems(ctx, s, key, due, batch, nil, t); err != nil {
			return 0, err
		}
		return len(batch), nil
	}
	if q.reject {
		return 0, fmt.Errorf("%w: %d items", ErrFull, n)
	}
	if !watch {
		return -1, errAgain
	}
	trail.waiting(ctx, "", -1)
	select {
	case <-ws.Ready():
		return -1, errAgain
	case <-s.b.Done():
		return 0, s.b.Err()
	case <-ctx.Done():
		return 0, backend.ContextError(ctx)
	}
}

package coord

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-coord/coord/backend"
)

// putLimited puts as much of the batch as there is room for. If there is no room,
// it waits for some, or fails with ErrFull.
//
// It counts the items under the version of the directory of items, which each
// limited put increments. So no other limited put can come between the count and
// the put: the limit is never exceeded, not even for a moment, and nothing has to
// be taken back.
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

// putSome makes one attempt. It returns errAgain if another attempt is needed,
// together with -1 if there was no room. With watch, it waits for a change before
// it returns that.
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

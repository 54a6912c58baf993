package coord

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/go-coord/coord/backend"
)

// An Item is a value taken from a queue, together with the claim on it: a Hold. As
// long as the claim stands nobody else gets the item. The claim ends with Ack,
// Nack or Release, with the session, and when somebody deletes its node; work on
// the item should run under Context, and what it writes to the same service under
// Guard.
//
// Of Ack, Nack and Release the first one called counts. Each is one atomic commit
// that checks the claim, so that it never touches the item of a consumer who came
// later. They take no context, as Hold.Release. Called after a different one they
// return an error that matches ErrReleased; called again they return what they
// returned the first time. If the claim was lost before, they return Err, which
// matches ErrLost.
//
// Release gives the item back, at the place it had, as if it had not been taken:
// it does not count as an attempt. If its reply cannot be had any more because
// the session ends, the item goes back with the session, and the attempt counts.
type Item[T any] struct {
	*Hold
	ID      string // what Put returned
	Value   T
	Attempt int // 1 for the first time that the item is taken, and so on

	claim *itemClaim
}

// Ack says that the item is done with: it is deleted. Nil means that nobody gets
// the item any more. An error that matches ErrLost and not ErrUncertain means that
// somebody gets it, or has got it already. If the session was lost while the
// outcome was unknown, the error matches ErrUncertain as well.
func (it *Item[T]) Ack() error { return opError("ack", it.claim.e.path(), it.claim.finish(verbAck, 0)) }

// Nack gives the item back as a failed attempt. It keeps its place in the queue,
// but cannot be taken before delay has passed, by the clocks of the clients. An
// item that was taken as often as MaxAttempts allows is moved to the dead letters
// instead.
func (it *Item[T]) Nack(delay time.Duration) error {
	q := it.claim.q
	v := verbNack
	if q.maxAttempts > 0 && it.Attempt >= q.maxAttempts && q.dead != nil {
		v = verbBury
	}
	return opError("nack", it.claim.e.path(), it.claim.finish(v, max(delay, 0)))
}

// openClaims reads and decodes what was claimed. What cannot be decoded goes to the
// dead letters, and what has vanished is left out. If it fails, all is given back.
func openClaims[T any](ctx context.Context, k Codec[T], claims []*itemClaim) ([]*Item[T], error) {
	all := make([]*Item[T], len(claims))
	errs := make([]error, len(claims))
	var wg sync.WaitGroup
	for i, cl := range claims {
		if i == len(claims)-1 {
			all[i], errs[i] = openClaim(ctx, k, cl)
			break
		}
		wg.Go(func() { all[i], errs[i] = openClaim(ctx, k, cl) })
	}
	wg.Wait()
	var err error
	var items []*Item[T]
	for i, it := range all {
		switch {
		case errs[i] != nil:
			err = errs[i]
			claims[i].later(verbGiveBack)
		case it != nil:
			items = append(items, it)
		}
	}
	if err == nil {
		return items, nil
	}
	for _, it := range items {
		it.claim.later(verbGiveBack)
	}
	return nil, err
}

// openClaim returns nil if there is nothing to be handed out.
func openClaim[T any](ctx context.Context, k Codec[T], cl *itemClaim) (*Item[T], error) {
	data, _, err := cl.s.b.Get(ctx, cl.e.path(), nil)
	switch {
	case isNotFound(err):
		cl.finish(verbAck, 0) // an outsider has deleted it, or it went with its producer
		return nil, nil
	case errors.Is(err, backend.ErrSessionLost):
		return nil, nil // the claim is lost as well; the caller takes another
	case err != nil:
		return nil, err
	}
	cl.mu.Lock()
	cl.data = data
	cl.mu.Unlock()
	v, err := k.decode(data)
	if err != nil {
		cl.s.c.log.Warn("coord: cannot decode an item, moving it to the dead letters", "path", cl.e.path(), "error", err)
		if err := cl.finish(cl.undecodable(), 0); err != nil {
			cl.s.c.log.Warn("coord: cannot move an item to the dead letters", "path", cl.e.path(), "error", err)
		}
		return nil, nil
	}
	return &Item[T]{Hold: cl.hold, ID: cl.e.id, Value: v, Attempt: cl.attempt, claim: cl}, nil
}

// undecodable is what becomes of an item that cannot be decoded.
func (cl *itemClaim) undecodable() claimVerb {
	if cl.q.dead == nil {
		return verbAck
	}
	return verbBury
}

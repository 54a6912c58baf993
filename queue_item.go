package coord

import (
	"context"
	"errors"
	"time"

	"github.com/go-coord/coord/backend"
)

// An Item is a value taken from a queue, together with the claim on it: a Hold. As
// long as the claim stands nobody else gets the item. The claim ends with Ack,
// Nack or Release, with the session, and when somebody deletes its node; work on
// the item should run under Context, and what it writes to the same service under
// Guard. The Token of a claim is greater than those of all earlier claims of the
// same item.
//
// Of Ack, Nack and Release the first one called counts. Each is one atomic commit
// that checks the claim, so that it never touches the item of a consumer who came
// later. They take no context, as Hold.Release. Called again they return what they
// returned the first time. Release after an Ack or a Nack does nothing and returns
// what that returned, so it can be deferred. Ack and Nack after a different one do
// nothing and return the error of that, or if it had none one that matches
// ErrReleased. If the claim was lost before, all return Err, which matches ErrLost.
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
// outcome was unknown, the error matches ErrUncertain as well. If the service
// refuses (ErrDenied; backend.ErrNotEmpty, when somebody made a node below the
// item), Ack returns that, the item stays claimed, and the client goes on trying
// in the background for as long as its session lives.
//
// Acks of one queue value that are called while another is under way go together,
// in one commit, when that one is done; each has the outcome that it would have
// alone. A single Ack waits for nothing. See also AckAll.
func (it *Item[T]) Ack() error {
	cl := it.claim
	cl.decideAck(cl.ackInLine)
	return opError("ack", cl.e.path(), cl.carriedOut(verbAck))
}

// Nack gives the item back as a failed attempt. It keeps its place in the queue,
// but cannot be taken before delay has passed, by the clocks of the clients; at once
// if that is not positive. An item that was taken as often as MaxAttempts allows is
// moved to the dead letters instead.
func (it *Item[T]) Nack(delay time.Duration) error {
	cl := it.claim
	return opError("nack", cl.e.path(), cl.finish(context.Background(), cl.failure(), max(delay, 0)))
}

// openClaims reads and decodes what was claimed. What cannot be decoded goes to the
// dead letters, and what has vanished is left out. If it fails, all is given back. So
// it is if the codec panics, but for the item that made it: that was an attempt, or it
// would be the first of the queue for ever.
func openClaims[T any](ctx context.Context, k Codec[T], claims []*itemClaim) (items []*Item[T], err error) {
	var decoding *itemClaim
	defer func() {
		if decoding != nil || err != nil {
			for _, cl := range claims {
				// Nothing, for those that have ended.
				if cl == decoding {
					cl.later(cl.failure())
				} else {
					cl.later(verbGiveBack)
				}
			}
			items = nil
		}
	}()
	found := make([]bool, len(claims))
	errs := make([]error, len(claims))
	together(len(claims), func(i int) { found[i], errs[i] = claims[i].read(ctx) })
	for i, cl := range claims {
		switch {
		case errs[i] != nil:
			err = errs[i]
		case found[i] && err == nil:
			// The caller's code, in the caller's goroutine.
			decoding = cl
			if it := decodeClaim(ctx, k, cl); it != nil {
				items = append(items, it)
			}
			decoding = nil
		}
	}
	return items, err
}

// read reads the item. It returns false if there is nothing to be handed out.
func (cl *itemClaim) read(ctx context.Context) (bool, error) {
	data, _, err := cl.s.b.Get(ctx, cl.e.path(), nil)
	switch {
	case isNotFound(err):
		cl.finish(ctx, verbAck, 0) // an outsider has deleted it, or it went with its producer
		return false, nil
	case errors.Is(err, backend.ErrSessionLost):
		// The claim is lost as well, and the caller takes another. Or it is the
		// cause of a ctx that has ended.
		return false, backend.ContextError(ctx)
	case err != nil:
		return false, err
	}
	cl.mu.Lock()
	cl.data = data
	cl.mu.Unlock()
	return true, nil
}

// decodeClaim returns nil if there is nothing to be handed out.
func decodeClaim[T any](ctx context.Context, k Codec[T], cl *itemClaim) *Item[T] {
	v, err := k.decode(cl.data)
	if err != nil {
		cl.s.c.log.Warn("coord: cannot decode an item, moving it to the dead letters", "path", cl.e.path(), "error", err)
		if err := cl.finish(ctx, cl.undecodable(), 0); err != nil && ctx.Err() == nil {
			cl.s.c.log.Warn("coord: cannot move an item to the dead letters", "path", cl.e.path(), "error", err)
		}
		return nil
	}
	return &Item[T]{Hold: cl.hold, ID: cl.e.id, Value: v, Attempt: cl.attempt, claim: cl}
}

// undecodable is what becomes of an item that cannot be decoded.
func (cl *itemClaim) undecodable() claimVerb {
	if cl.q.dead == nil {
		return verbAck
	}
	return verbBury
}

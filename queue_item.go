package coord

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/go-coord/coord/backend"
)

// An Item is a value taken from a queue, together with the claim on it, which is a
// Hold. As long as the claim stands, no other consumer gets the item. The claim
// ends with Ack, Nack or Release, with the session, and when another program
// deletes its node. Work on the item should run under Context, and its writes to
// the same service under Guard. The Token of a claim is greater than those of all
// earlier claims of the same item.
//
// Of Ack, Nack and Release the first call counts. Each is one atomic commit that
// checks the claim, so it never touches the item of a later consumer. They take no
// context, like Hold.Release. A repeated call returns the result of the first.
// Release after Ack or Nack does nothing and returns the result of that call, so it
// can be deferred. Ack or Nack after a different one does nothing and returns the
// error of the first call, or if that had none, an error that matches ErrReleased.
// If the claim was lost before, or its ClaimTimeout has passed, all three return Err,
// which matches ErrLost.
//
// Release gives the item back, at its old place, as if it had not been taken: it
// does not count as an attempt. If the session ends before the reply arrives, the
// item goes back with the session, and the attempt counts.
type Item[T any] struct {
	*Hold
	ID      string // what Put returned
	Value   T
	Attempt int // 1 for the first time that the item is taken, and so on

	claim *itemClaim
}

// Ack acknowledges the item and deletes it. If Ack returns nil, the item is not
// delivered again. An error that matches ErrLost and not ErrUncertain means that
// the item goes, or has gone already, to another consumer. If the session was lost
// while the outcome was unknown, the error matches ErrUncertain as well. If the
// service refuses the commit (ErrDenied; backend.ErrNotEmpty, if another program
// made a node below the item), Ack returns that error, the item stays claimed, and
// the client retries in the background for as long as its session lives.
//
// Acks of one queue value that are called while another Ack is under way go
// together, in one commit, when that one is done. Each has the outcome that it
// would have alone. A single Ack waits for nothing. See also AckAll.
func (it *Item[T]) Ack() error {
	cl := it.claim
	if cl.decide(verbAck, 0) {
		cl.hold.complete(cl.end(context.Background(), cl.ackInLine()))
	}
	return opError("ack", cl.e.Path(), cl.outcome(verbAck))
}

// Nack gives the item back as a failed attempt. It keeps its place in the queue,
// but cannot be taken before delay has passed since the call, by the clock of the
// service; DelayQueue says how exact that is, what it costs, and what holds for a
// service that has no clock. If delay is not positive, it can be taken at once. An item
// that was taken as often as MaxAttempts allows is moved to the dead letters instead.
func (it *Item[T]) Nack(delay time.Duration) error {
	cl := it.claim
	return opError("nack", cl.e.Path(), cl.finish(context.Background(), cl.failure(), max(delay, 0)))
}

// openClaims reads and decodes the claimed items. It moves items that cannot be
// decoded to the dead letters, and leaves out items that have vanished. If it
// fails, it gives all of them back. If the codec panics, it gives all back but the
// item being decoded: that item counts as a failed attempt, or it would be the
// first of the queue for ever.
func openClaims[T any](ctx context.Context, k Codec[T], claims []*itemClaim) (items []*Item[T], err error) {
	var decoding *itemClaim
	defer func() {
		if decoding != nil || err != nil {
			for _, cl := range claims {
				// This does nothing for a claim that has ended.
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
	read := readClaims(ctx, claims)
	together(len(claims), func(i int) { found[i], errs[i] = claims[i].took(ctx, read[i].Data, read[i].Err) })
	for i, cl := range claims {
		switch {
		case errs[i] != nil:
			err = errs[i]
		case found[i] && err == nil:
			// This runs the caller's code, in the caller's goroutine.
			decoding = cl
			if it := decodeClaim(ctx, k, cl); it != nil {
				items = append(items, it)
			}
			decoding = nil
		}
	}
	return items, err
}

// readClaims reads the items of claims, which are of one session.
func readClaims(ctx context.Context, claims []*itemClaim) []backend.ReadResult {
	if len(claims) > 1 && claims[0].s.b.Features().Has(backend.Batches) {
		reads := make([]backend.Read, len(claims))
		for i, cl := range claims {
			reads[i].Path = cl.e.Path()
		}
		read, err := claims[0].s.b.ReadMany(ctx, reads...)
		switch {
		case err == nil:
			return read
		case !errors.Is(err, backend.ErrUnsupported):
			return slices.Repeat([]backend.ReadResult{{Err: err}}, len(claims))
		}
	}
	read := make([]backend.ReadResult, len(claims))
	together(len(claims), func(i int) {
		r := &read[i]
		r.Data, r.Stat, r.Err = claims[i].s.b.Get(ctx, claims[i].e.Path(), nil)
	})
	return read
}

// took handles the read of the item. It returns false if there is no item to hand out.
func (cl *itemClaim) took(ctx context.Context, data []byte, err error) (bool, error) {
	switch {
	case isNotFound(err):
		cl.finish(ctx, verbAck, 0) // an outsider has deleted it, or it went with its producer's session
		return false, nil
	case errors.Is(err, backend.ErrSessionLost):
		// The claim is lost as well, and the caller takes another item; or
		// ErrSessionLost is only the cause of a ctx that has ended.
		return false, backend.ContextError(ctx)
	case err != nil:
		return false, err
	}
	cl.data = data
	return true, nil
}

// decodeClaim returns nil if there is no item to hand out.
func decodeClaim[T any](ctx context.Context, k Codec[T], cl *itemClaim) *Item[T] {
	v, err := k.decode(cl.data)
	if err != nil {
		cl.s.c.log.Warn("coord: cannot decode an item, moving it to the dead letters", "path", cl.e.Path(), "error", err)
		if err := cl.finish(ctx, cl.undecodable(), 0); err != nil && ctx.Err() == nil {
			cl.s.c.log.Warn("coord: cannot move an item to the dead letters", "path", cl.e.Path(), "error", err)
		}
		return nil
	}
	if !cl.limitUnreceived(cl.q.claimTimeout) {
		return nil // lost, or given back because the codec took too long
	}
	return &Item[T]{Hold: cl.hold, ID: cl.e.ID, Value: v, Attempt: cl.attempt, claim: cl}
}

// undecodable is the verb for an item that cannot be decoded.
func (cl *itemClaim) undecodable() claimVerb {
	if cl.q.dead == nil {
		return verbAck
	}
	return verbBury
}

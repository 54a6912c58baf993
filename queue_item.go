package coord

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-coord/coord/internal/core"

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
// checks the claim, so it never changes the item of a later consumer. They take no
// context, like Hold.Release. A repeated call returns the result of the first call.
// Release after Ack or Nack does nothing and returns the result of that call, so it
// can be deferred. An Ack or Nack after a different call does nothing, and returns the
// error of the first call, or an error that matches ErrReleased if that was nil.
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
// Acks of one queue value that are called during another Ack form one commit when
// that Ack is done. Each Ack has the same outcome as alone. A single Ack does not wait
// for others. See also AckAll.
func (it *Item[T]) Ack() error {
	cl := it.claim
	if cl.decide(verbAck, 0) {
		cl.hold.EndRelease(cl.end(context.Background(), cl.ackInLine()))
	}
	return core.OpError("ack", cl.e.Path(), cl.outcome(verbAck))
}

// Nack gives the item back as a failed attempt. The item keeps its place in the queue,
// but cannot be taken before delay has passed since the call, by the clock of the
// service; DelayQueue describes the precision, and services without a clock. If delay is
// not positive, the item can be taken at once. An item that was taken as often as
// MaxAttempts allows is moved to the dead letters instead. NackCause also stores the
// reason.
func (it *Item[T]) Nack(delay time.Duration) error { return it.NackCause(delay, nil) }

// NackCause is Nack with the error for which the attempt failed. If the item is moved to
// the dead letters, the first kilobyte of the error's text is stored with it, and Dead shows
// the text. The text is as protected as the item's own bytes, so it may quote them. It
// appears in no log and no event. The causes of earlier attempts are not stored.
func (it *Item[T]) NackCause(delay time.Duration, cause error) error {
	cl := it.claim
	v, why := cl.failure(), deadReason{}
	if v == verbBury {
		why = failedFor(cause)
	}
	return core.OpError("nack", cl.e.Path(), cl.finishFor(context.Background(), v, max(delay, 0), why))
}

// openClaims reads and decodes the claimed items. It moves items that cannot be
// decoded to the dead letters, and leaves out items that have vanished. If it
// fails, it gives all of them back. If the codec panics, it gives all back but the
// item being decoded: that item counts as a failed attempt, or it would be the
// first of the queue for ever. If too many items in a row cannot be decoded, it gives back
// the one beyond and those behind it; it fails if it has no item then.
func openClaims[T any](ctx context.Context, k Codec[T], claims []*itemClaim) (items []*Item[T], err error) {
	var decoding *itemClaim
	defer func() {
		if decoding != nil || err != nil {
			for _, cl := range claims {
				// This does nothing for a claim that has ended.
				if cl == decoding {
					cl.laterFor(cl.failure(), decodingPanicked)
				} else {
					cl.later(verbGiveBack)
				}
			}
			items = nil
		}
	}()
	found := make([]bool, len(claims))
	errs := make([]error, len(claims))
	var again []*itemClaim
	for _, cl := range claims {
		if cl.read.Err != nil { // such as the end of a context that was not this one
			again = append(again, cl)
		}
	}
	for i, r := range readClaims(ctx, again) {
		again[i].read = r
	}
	core.Together(len(claims), func(i int) { found[i], errs[i] = claims[i].took(ctx, claims[i].read.Data, claims[i].read.Err) })
	for i, cl := range claims {
		switch {
		case errs[i] != nil:
			err = errs[i]
		case found[i] && err == nil:
			// This runs the caller's code, in the caller's goroutine.
			decoding = cl
			it, tooMany := decodeClaim(ctx, k, cl)
			decoding = nil
			switch {
			case tooMany != nil && len(items) > 0: // the next call meets the same item
				for _, cl := range claims[i:] {
					cl.later(verbGiveBack)
				}
				return items, nil
			case tooMany != nil:
				err = tooMany
			case it != nil:
				items = append(items, it)
			}
		}
	}
	return items, err
}

// readClaims reads the items of claims, which are of one session.
func readClaims(ctx context.Context, claims []*itemClaim) []backend.ReadResult {
	if len(claims) > 1 && claims[0].s.Backend().Features().Has(backend.Batches) {
		reads := make([]backend.Read, len(claims))
		for i, cl := range claims {
			reads[i].Path = cl.e.Path()
		}
		read, err := claims[0].s.Backend().ReadMany(ctx, reads...)
		switch {
		case err == nil:
			return read
		case !errors.Is(err, backend.ErrUnsupported):
			return slices.Repeat([]backend.ReadResult{{Err: err}}, len(claims))
		}
	}
	read := make([]backend.ReadResult, len(claims))
	core.Together(len(claims), func(i int) {
		r := &read[i]
		r.Data, r.Stat, r.Err = claims[i].s.Backend().Get(ctx, claims[i].e.Path(), nil)
	})
	return read
}

// took handles the read of the item. It returns false if there is no item to hand out.
func (cl *itemClaim) took(ctx context.Context, data []byte, err error) (bool, error) {
	switch {
	case core.IsNotFound(err):
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

// maxUndecodable is the number of items in a row that a queue value moves to the dead letters
// because its codec cannot decode them. A few of them are the producers' mistakes. More are
// as a rule the mistake of this consumer, which has the wrong codec or is older than its
// producers, and would move the whole queue.
const maxUndecodable = 5

// decoded counts the items in a row that could not be decoded, and reports whether they are
// too many.
func (q *queue) decoded(err error) (tooMany bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if err == nil {
		q.undecoded = 0
		return false
	}
	if q.undecoded == maxUndecodable {
		return true
	}
	q.undecoded++
	return false
}

// decodeClaim returns nil if there is no item to hand out. If too many items in a row cannot
// be decoded, it returns an error, and the claim stands.
func decodeClaim[T any](ctx context.Context, k Codec[T], cl *itemClaim) (it *Item[T], tooMany error) {
	v, err := k.decode(cl.data)
	if cl.q.decoded(err) {
		return nil, fmt.Errorf("%d items in a row are undecodable, the last is %s: %w", maxUndecodable+1, cl.e.Path(), err)
	}
	if err != nil {
		cl.s.Client().Log().Warn("coord: cannot decode an item, moving it to the dead letters", "path", cl.e.Path(), "error", err)
		if err := cl.finishFor(ctx, cl.undecodable(), 0, undecodable(err)); err != nil && ctx.Err() == nil {
			cl.s.Client().Log().Warn("coord: cannot move an item to the dead letters, skipping it for a minute", "path", cl.e.Path(), "error", err)
		}
		return nil, nil
	}
	if !cl.limitUnreceived(cl.q.claimTimeout) {
		cl.later(verbGiveBack) // the timer's goroutine may not have begun to
		return nil, nil        // lost, or given back because the codec took too long
	}
	it = &Item[T]{Hold: &Hold{cl.hold}, ID: cl.e.ID, Value: v, Attempt: cl.attempt, claim: cl}
	if show := cl.s.Client().Hooks().Item; show != nil {
		show(it, func() {
			cl.mu.Lock()
			defer cl.mu.Unlock()
			cl.timer.Stop()
		})
	}
	return it, nil
}

// undecodable is the verb for an item that cannot be decoded.
func (cl *itemClaim) undecodable() claimVerb {
	if cl.q.dead == nil {
		return verbAck
	}
	return verbBury
}

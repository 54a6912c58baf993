package queue

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/parallel"
)

// claimRead is what a claim has read.
type claimRead struct {
	item    backend.ReadResult
	options backend.ReadResult // if the list has shown some, and they were not read before
}

// readClaims reads the items of claims, which are of one session and not read ahead, and their options beside them.
func readClaims(ctx context.Context, claims []*Claim) []claimRead {
	read := make([]claimRead, len(claims))
	var paths []backend.Read
	var results []*backend.ReadResult
	for i, cl := range claims {
		if data, ok := cl.ahead.get(ctx); ok {
			read[i].item.Data = data
			continue
		}
		paths, results = append(paths, backend.Read{Path: cl.e.Path()}), append(results, &read[i].item)
		if cl.readsOptions() {
			paths, results = append(paths, backend.Read{Path: cl.e.OptionsAt()}), append(results, &read[i].options)
		}
	}
	if len(paths) == 0 {
		return read
	}
	s := claims[0].s.Backend()
	if len(paths) > 1 && s.Features().Has(backend.Batches) {
		got, err := s.ReadMany(ctx, paths...)
		if !errors.Is(err, backend.ErrUnsupported) {
			for i, r := range results {
				if r.Err = err; err == nil {
					*r = got[i]
				}
			}
			return read
		}
	}
	parallel.Do(len(paths), func(i int) {
		r := results[i]
		r.Data, r.Stat, r.Err = s.Get(ctx, paths[i].Path, nil)
	})
	return read
}

// readsOptions reports whether the options of the item are read beside it.
func (cl *Claim) readsOptions() bool { return cl.e.Options && !cl.optionsKnown }

// took handles the read of the item. It returns false if there is no item to hand out.
func (cl *Claim) took(ctx context.Context, r claimRead) (bool, error) {
	err := r.item.Err
	if err == nil && cl.readsOptions() {
		cl.options, err = optionsOf(r.options)
	}
	switch {
	case errs.IsNotFound(err):
		cl.finish(ctx, verbAck, 0) // an outsider has deleted it, or it went with its producer's session
		return false, nil
	case errors.Is(err, backend.ErrSessionLost):
		// The claim is lost as well, and the caller takes another item; or
		// ErrSessionLost is only the cause of a ctx that has ended.
		return false, backend.ContextError(ctx)
	case err != nil:
		return false, err
	}
	cl.data = r.item.Data
	cl.q.largest.Store(int64(max(len(cl.data), 1)))
	return true, nil
}

// maxUndecodable is the number of items in a row that a queue value moves to the dead letters
// because its codec cannot decode them. A few such items are mistakes of producers. If there are
// more, the consumer is as a rule at fault: it has the wrong codec or is older than its producers, and
// would move the whole queue.
const maxUndecodable = 5

// decoded counts the items in a row that could not be decoded, and reports whether they are
// too many.
func (q *Queue) decoded(err error) (tooMany bool) {
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

// undecodable is the verb for an item that cannot be decoded.
func (cl *Claim) undecodable() claimVerb {
	if cl.q.dead == nil {
		return verbAck
	}
	return verbBury
}

// openClaims reads claimed items, calls decode with each, and calls accept with each item to hand out. It
// moves items that cannot be decoded to the dead letters, and leaves out items that have vanished. If it
// fails, it gives all items back. If the codec panics, it gives all back but the item being decoded: that
// item counts as a failed attempt, or it would stay the first of the queue for ever. After too many
// undecodable items in a row, it gives back the next undecodable item and the items behind it, and fails
// if it then has no item to hand out.
func (q *Queue) openClaims(ctx context.Context, claims []*Claim, decode func(cl *Claim, data []byte) error, accept func(*Claim)) (err error) {
	opened := 0
	var decoding *Claim
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
		}
	}()
	found := make([]bool, len(claims))
	failed := make([]error, len(claims))
	var again []*Claim
	for _, cl := range claims {
		if cl.read.item.Err != nil || cl.read.options.Err != nil && !errs.IsNotFound(cl.read.options.Err) { // for example since the context of the feeder has ended, not that of the caller
			again = append(again, cl)
		}
	}
	for i, r := range readClaims(ctx, again) {
		again[i].read = r
	}
	parallel.Do(len(claims), func(i int) { found[i], failed[i] = claims[i].took(ctx, claims[i].read) })
	for i, cl := range claims {
		switch {
		case failed[i] != nil:
			err = failed[i]
		case found[i] && err == nil:
			// This runs the caller's code, in the caller's goroutine.
			decoding = cl
			ok, tooMany := cl.decode(ctx, decode)
			decoding = nil
			switch {
			case tooMany != nil && opened > 0: // the next call gets the same item
				for _, cl := range claims[i:] {
					cl.later(verbGiveBack)
				}
				return nil
			case tooMany != nil:
				err = tooMany
			case ok:
				opened++
				accept(cl)
			}
		}
	}
	return err
}

// decode reports false if there is no item to hand out. If too many items in a row cannot
// be decoded, it returns an error, and the claim stands.
func (cl *Claim) decode(ctx context.Context, decode func(cl *Claim, data []byte) error) (ok bool, tooMany error) {
	err := decode(cl, cl.data)
	if cl.q.decoded(err) {
		return false, fmt.Errorf("%d items in a row are undecodable, the last is %s: %w", maxUndecodable+1, cl.e.Path(), err)
	}
	if err != nil {
		cl.s.Client().Log().Warn("coord: cannot decode an item, moving it to the dead letters", "path", cl.e.Path(), "error", err)
		if err := cl.finishFor(ctx, cl.undecodable(), 0, undecodable(err)); err != nil && ctx.Err() == nil {
			cl.s.Client().Log().Warn("coord: cannot move an item to the dead letters yet, trying again", "path", cl.e.Path(), "error", err)
		}
		return false, nil
	}
	if !cl.limitUnreceived(cl.q.claimTimeout) {
		cl.later(verbGiveBack) // the timer's goroutine may not have begun to
		return false, nil      // lost, or given back because the codec took too long
	}
	return true, nil
}

// Item returns the hold of the claim, the id of the item, how often it was taken, and the trace context of its producer.
func (cl *Claim) Item() (h *core.Hold, id string, attempt int, traceparent string) {
	return cl.hold, cl.e.ID, cl.attempt, cl.e.Trace
}

// stopTimer stops the timer of the ClaimTimeout, for tests.
func (cl *Claim) stopTimer() {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	cl.timer.Stop()
}

// Nack is Item.NackCause of package coord.
func (cl *Claim) Nack(delay time.Duration, cause error) error {
	v, why := cl.failure(), deadReason{}
	if v == verbBury || delay > 0 {
		why = failedFor(cause)
	}
	return errs.Op("nack", cl.e.Path(), cl.finishFor(context.Background(), v, max(delay, 0), why))
}

// bury moves the item to the dead letters, whatever MaxAttempts is.
func (cl *Claim) bury(cause error) error {
	return errs.Op("bury", cl.e.Path(), cl.finishFor(context.Background(), verbBury, 0, failedFor(cause)))
}

// some takes at least one item and at most want. It calls decode with the bytes of each, and accept
// with the claim if decode has returned nil; if some fails, no claim that was accepted stands. in is the
// intake of Work, or nil.
func (q *Queue) some(ctx context.Context, op string, want int, try bool, in *intake, decode func(*Claim, []byte) error, accept func(*Claim)) error {
	if err := q.path.Check(op); err != nil {
		return err
	}
	u := q.c.BeginCleanUp()
	defer u.End()
	for {
		claims, err := q.request(ctx, op, want, try, in)
		if err != nil {
			return errs.Op(op, q.path.Full(), err)
		}
		var opened []*Claim
		err = q.openClaims(ctx, claims, decode, func(cl *Claim) {
			opened = append(opened, cl)
			accept(cl)
		})
		if err == nil && len(opened) > 0 && q.c.IsClosing() {
			for _, cl := range opened {
				cl.later(verbGiveBack)
			}
			err = backend.ErrClosed
		}
		if errs.IsDecode(err) {
			q.awaitGivenBack() // a consumer with the right codec can take them now
		}
		if err != nil {
			return errs.Op(op, q.path.Full(), err)
		}
		if len(opened) > 0 {
			return nil
		}
	}
}

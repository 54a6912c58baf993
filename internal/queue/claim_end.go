package queue

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/errs"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/layout"
	"github.com/go-coord/coord/trace"
)

// finish ends the claim with a verb. The first verb counts; a later call with
// another verb gets an error that matches ErrReleased. If ctx ends first, the work
// continues in the background.
func (cl *Claim) finish(ctx context.Context, v claimVerb, delay time.Duration) error {
	return cl.finishFor(ctx, v, delay, deadReason{})
}

// finishFor is finish with the reason for verbBury or verbNack.
func (cl *Claim) finishFor(ctx context.Context, v claimVerb, delay time.Duration, why deadReason) error {
	if cl.decide(v, delay) {
		cl.why = why
		cl.hold.EndRelease(cl.end(ctx, cl.commit(ctx, v)))
	}
	return cl.outcome(v)
}

// decide ends the hold and makes v the verb of the claim. It reports false if the hold
// has ended before. If it reports true, the caller commits v and completes the release
// of the hold with what end returns.
func (cl *Claim) decide(v claimVerb, delay time.Duration) bool {
	if !cl.hold.BeginRelease("") {
		return false
	}
	cl.decided(v, delay)
	return true
}

// decided records the verb for which the release of the hold has begun.
func (cl *Claim) decided(v claimVerb, delay time.Duration) {
	cl.move(claimRelease)
	cl.verb, cl.delay = v, delay
}

// outcome waits for the end of the claim, if it is under way, and returns the result of
// a call that wanted the verb v.
func (cl *Claim) outcome(v claimVerb) error {
	err := cl.hold.Release()
	if v == verbAck && cl.ackedInTxn() {
		return nil
	}
	if err == nil && cl.verb != v {
		err = cl.hold.Err()
	}
	if v == verbAck && errors.Is(err, backend.ErrSessionLost) && cl.inTxn() {
		return backend.Uncertain(err) // a transaction may have acknowledged the item before the session ended
	}
	return err
}

// commit commits v, exactly once: the verb of the claim, or what insist makes of it. If
// the mark is gone, the error matches ErrLost. If another node is gone, removed by an
// outsider or with its producer's session, it commits the rest without that node.
func (cl *Claim) commit(ctx context.Context, v claimVerb) error {
	e := &cl.e
	if v == verbGiveBack || v == verbNack {
		// The item precedes others of a list.
		cl.q.forget()
		defer cl.q.forget()
	}
	ack := cl.endOps(nil, v == verbBury)
	ops, state := ack[:1:1], ack[1]
	var letter newItem
	switch v {
	case verbAck, verbPop, verbBury:
		ops = append(ack, cl.q.counting(1)...)
		if v == verbBury {
			letter = newItem{id: e.ID, data: cl.data, reason: cl.q.reasonOf(e, cl.options, cl.attempt, cl.s, cl.why)}
		}
	case verbGiveBack:
		if cl.attempt > 1 {
			state = backend.SetData(e.StateAt(), layout.Attempts(cl.before.n, cl.before.nacked), backend.AnyVersion)
		}
		ops = append(ops, state)
		if cl.early && e.PutOff != "" {
			ops = append(ops, backend.Create(e.PutOffAt(), nil, backend.Persistent)) // the claim has deleted it, and not read it
		}
	case verbNack:
		if cl.delay > 0 && cl.due == 0 {
			now, err := cl.s.Learn(ctx)
			if err != nil {
				return err
			}
			cl.due = now.After(cl.delay)
		}
		switch {
		case cl.due != 0: // shows that the claim was not lost
			ops = append(ops, putOff(cl.s, e, cl.due, cl.why, ops))
		case cl.why.reason != trace.ReasonTimeout:
			ops = append(ops, backend.SetData(e.StateAt(), layout.Attempts(cl.attempt, true), backend.AnyVersion))
		}
	}
	for {
		var err error
		if v == verbBury {
			_, err = cl.q.dead.putItems(ctx, cl.s, 0, 0, []newItem{letter}, ops)
		} else {
			_, err = cl.q.commitOnce(ctx, cl.s, ops...)
		}
		i := errs.Blamed(err)
		switch {
		case err == nil:
			if v == verbBury {
				cl.q.logBuried(e, cl.attempt, cl.why)
			}
			return nil
		case i < 0 || i >= len(ops), errors.Is(err, backend.ErrNotEmpty) && !layout.IsNote(ops[i].Path):
			return err
		case i == 0:
			return &errs.Loss{Path: cl.mark, Cause: errs.ErrDeleted}
		}
		gone := ops[i].Path
		if rest, ok := withoutNote(ops, gone); ok {
			ops, letter.reason = rest, withoutKey(letter.reason, gone)
			continue
		}
		ops = slices.Delete(slices.Clone(ops), i, i+1)
		switch gone {
		case cl.q.out:
			cl.q.counted.Store(false)
		case e.Path():
			// There is no item to bury, or to count.
			ops = slices.DeleteFunc(ops, func(op backend.Op) bool { return op.Path == cl.q.out })
			if v == verbBury {
				v = verbAck
			}
		}
	}
}

// end ends the claim after the commit of its verb has returned err, and returns the
// error for the caller.
func (cl *Claim) end(ctx context.Context, err error) error {
	mine := ctx.Err() != nil && cl.s.Backend().Err() == nil // the error of an ended ctx matches its cause, which can be any error
	switch {
	case err == nil:
	case errs.IsOver(err) && !mine:
		err = &errs.Loss{Path: cl.mark, Cause: errs.Why(err)} // the item goes back with the session
	case errors.Is(err, errs.ErrLost) && !mine:
		err = cl.explain(err)
	default:
		cl.insist()
		return err
	}
	cl.move(claimSettle)
	return err
}

// insist repeats the commit in the background. No other consumer can get the item in the
// meantime. If the commit that returned an error was applied after all, the mark is gone,
// and nothing is done twice. The feeder waits for the first attempt.
func (cl *Claim) insist() {
	cl.move(claimInsist)
	v := cl.verb
	if v == verbPop {
		v = verbGiveBack // no caller receives the value
	}
	tried := cl.q.begin()
	if cl.s.CleanUp("end the claim of an item", cl.e.Path(), func(ctx context.Context) error {
		defer tried()
		if err := cl.commit(ctx, v); err != nil && !errors.Is(err, errs.ErrLost) {
			return err
		}
		cl.move(claimSettle)
		return nil
	}) == nil {
		tried()
	}
}

// failure is the verb for an item whose processing failed: it counts as an attempt.
func (cl *Claim) failure() claimVerb {
	if cl.q.isUsedUp(cl.options, cl.attempt) {
		return verbBury
	}
	return verbNack
}

// RemoveNode is for a caller that released the hold itself: it gives the item back, which deletes the mark,
// the node of the hold.
func (cl *Claim) RemoveNode(*core.Hold) error {
	ctx := context.Background()
	cl.decided(verbGiveBack, 0)
	return cl.end(ctx, cl.commit(ctx, verbGiveBack))
}

// Lost ends the claim. The mark is gone, or goes with its session; that makes the item available to other
// consumers.
func (cl *Claim) Lost(*core.Hold) { cl.move(claimLose) }

// Leftovers returns the mark if the claim has timed out, or if Work has ended it since the client closes.
// (When the session is being closed, no removal begins any more, and the mark goes with it.)
func (cl *Claim) Leftovers(_ *core.Hold, cause error) (dir string, paths []string, remove func(ctx context.Context, path string) error) {
	cl.q.forget() // before Done is closed, since the item precedes others of a list
	switch {
	case errors.Is(cause, errs.ErrClaimTimeout):
		remove = cl.fail
	case errors.Is(cause, backend.ErrClosed):
		remove = cl.restore
	default:
		return
	}
	return cl.q.items, []string{cl.mark}, remove
}

// restore gives the item of a lost claim back, which counts no attempt, unless its mark is gone.
func (cl *Claim) restore(ctx context.Context, _ string) error {
	err := cl.commit(ctx, verbGiveBack)
	if errors.Is(err, errs.ErrLost) {
		return nil
	}
	return err
}

// fail gives the item of a lost claim back as a failed attempt, unless its mark is gone.
func (cl *Claim) fail(ctx context.Context, _ string) error {
	v := cl.failure()
	cl.why = timedOut // this claim is lost, so no call has decided its end
	err := cl.commit(ctx, v)
	cl.q.forget() // a list from before shows the item as claimed
	switch {
	case errors.Is(err, errs.ErrLost):
		return nil
	case err == nil && v == verbBury:
		cl.q.tellBuried(&cl.e, cl.attempt, cl.why)
	}
	return err
}

// buryUnclaimed moves an item to the dead letters if consumers that died have claimed it as often as
// MaxAttempts allows. If the item has vanished, it does nothing. If another client has claimed the item
// since the list, it returns errs.ErrAgain: the item is still in the queue, and can be free again. ctx
// does not cancel the commit.
func (q *Queue) buryUnclaimed(ctx context.Context, s *core.Session, e *layout.QueueEntry, o itemOptions, r record) error {
	data, _, err := s.Backend().Get(ctx, e.Path(), nil)
	if errs.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	ops := []backend.Op{backend.Delete(e.StateAt(), r.version), backend.Delete(e.Path(), backend.AnyVersion)}
	if e.PutOff != "" {
		ops = append(ops, backend.Delete(e.PutOffAt(), backend.AnyVersion))
	}
	ops = append(ops, deleteNotes(e, true)...)
	letter := newItem{id: e.ID, data: data, reason: q.reasonOf(e, o, r.n, nil, abandoned)}
	own := 0
	for {
		own = len(ops)
		_, err = q.dead.putItems(context.WithoutCancel(ctx), s, 0, 0, []newItem{letter}, append(ops[:own:own], q.counting(1)...))
		i := errs.Blamed(err)
		if i < 0 || i >= own || !layout.IsNote(ops[i].Path) {
			break
		}
		letter.reason = withoutKey(letter.reason, ops[i].Path)
		ops, _ = withoutNote(ops, ops[i].Path)
	}
	switch i := errs.Blamed(err); {
	case i == 0 && errors.Is(err, backend.ErrBadVersion):
		return errs.ErrAgain // each claim changes the state
	case i >= own:
		q.counted.Store(false)
		return errs.ErrAgain
	case i >= 0 && !errors.Is(err, backend.ErrNotEmpty):
		return nil
	}
	if err == nil {
		q.logBuried(e, r.n, abandoned)
		q.tellBuried(e, r.n, abandoned)
	}
	return err
}

// logBuried logs that an item was moved to the dead letters, without the text of the error, which can
// quote the item.
func (q *Queue) logBuried(e *layout.QueueEntry, attempts int, why deadReason) {
	if why.reason == trace.ReasonUndecodable {
		return // Claim.decode logs it, with the error of the codec
	}
	q.c.Log().Warn("coord: an item was moved to the dead letters", "path", e.Path(), "attempts", attempts, "reason", string(why.word()), "to", q.dead.path.Full())
}

// tellBuried traces that an item was moved to the dead letters without a claim.
func (q *Queue) tellBuried(e *layout.QueueEntry, attempts int, why deadReason) {
	if t := q.newSpan("take"); t != nil {
		w := t.At(e.Path())
		w.ID = 0 // there was no claim
		core.Emit(context.Background(), q.c, trace.ItemSettled{Subject: w, Item: e.ID, Attempt: attempts, Outcome: trace.ItemDead, Reason: why.word()})
	}
}

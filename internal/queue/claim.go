package queue

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/parallel"
	"github.com/go-coord/coord/internal/tracing"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/layout"
	"github.com/go-coord/coord/trace"
)

// Claim is the claim on an item that this client holds. Its hold stands on the
// mark.
type Claim struct {
	q            *Queue
	s            *core.Session
	e            layout.QueueEntry
	attempt      int
	before       record      // if e has a state
	mark         string      // path
	early        bool        // the item was not due when it was claimed, see W7
	ahead        *readAhead  // of the item, before the claim; nil: none
	read         claimRead   // beside the claim
	data         []byte      // for the dead letters; set before the item is handed out
	options      itemOptions // set before the item is handed out
	optionsKnown bool        // before the claim was committed
	hold         *core.Hold

	// Set by the call that ends the claim, before it completes the release of the hold.
	verb  claimVerb
	delay time.Duration // of verbNack
	why   deadReason    // of verbBury and verbNack
	due   int64         // the time at which that delay ends, or 0; set by the first attempt to commit

	mu    sync.Mutex
	state claimState
	timer *time.Timer // of ClaimTimeout; nil without, and while the item is offered
	txns  int         // transactions with an AckOp that may be applied, or may be later
	acked bool        // a transaction has acknowledged the item
	gone  []string    // nodes that a transaction with an AckOp has not found
}

// claimVerb is how a claim ends.
type claimVerb int8

const (
	verbGiveBack claimVerb = iota + 1
	verbAck
	verbNack
	verbBury // move to the dead letters
	verbPop  // as verbAck, but if it fails the item is given back
)

// claimState is the state of a Claim.
//
//	held:      a call releases the hold, for a verb         -> ending
//	           the hold is lost                             -> lost
//	ending:    the verb is committed                        -> ended
//	           the mark is gone, or its session is over     -> ended, with that error
//	           the service refuses, or ctx ends             -> insisting, with that error
//	insisting: the verb is committed, or the mark is gone   -> ended
//	           the session ends before that                 -> insisting, for good
//	lost, ended: final
//
// The hold decides which call or loss ends a held claim: exactly one Release of a hold
// begins, and none after its loss. The call that begins it commits the verb, and end derives
// the next state from the result. A later call waits, and returns outcome. If a
// claim is lost, or ends without its commit, the item is delivered again, since its mark
// is gone or goes with the session. Until then no other consumer gets it.
type claimState int8

const (
	claimHeld claimState = iota
	claimEnding
	claimInsisting
	claimEnded
	claimLost
)

// claimEvent is an event in the life of a Claim.
type claimEvent int8

const (
	claimRelease claimEvent = iota
	claimLose
	claimSettle // nothing is left to commit
	claimInsist
)

// move moves the claim to the state that e leads to. It panics if the table has no such
// transition: a verb would be committed twice, or after a loss.
func (cl *Claim) move(e claimEvent) {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	if cl.timer != nil {
		cl.timer.Stop()
	}
	switch {
	case cl.state == claimHeld && e == claimRelease:
		cl.state = claimEnding
	case cl.state == claimHeld && e == claimLose:
		cl.state = claimLost
	case (cl.state == claimEnding || cl.state == claimInsisting) && e == claimSettle:
		cl.state = claimEnded
	case cl.state == claimEnding && e == claimInsist:
		cl.state = claimInsisting
	default:
		panic(fmt.Sprintf("coord: event %d in state %d of the claim %s", e, cl.state, cl.mark))
	}
}

// errNotDue is the error of a claim whose commit was applied, and which has given all its items back.
var errNotDue = errors.New("coord: the items were not due when they were claimed")

// claim claims as many of the items as it can, in one commit, which also deletes
// the waiter, if there is one. reads are the reads of the items that have begun; nil: none. It returns no claims if every item was taken by
// another consumer or went to the dead letters. If none of the claimed items was due, it
// returns errNotDue. faster reports whether another
// consumer was faster with one of them. If the items were not read after a Sync
// (fresh is false), claim returns errs.ErrAgain instead of continuing without one of them:
// see W5 in rules.go. ctx bounds only the steps before the commit.
func (q *Queue) claim(ctx context.Context, s *core.Session, found []layout.QueueEntry, reads []*readAhead, waiter string, fresh bool) (claims []*Claim, faster bool, err error) {
	for i, e := range found {
		cl, changed, err := q.prepare(ctx, s, e, fresh)
		if err != nil {
			return nil, false, err
		}
		faster = faster || changed
		if cl != nil {
			if reads != nil {
				cl.ahead = reads[i]
			}
			claims = append(claims, cl)
		}
	}
	if len(claims) == 0 {
		return nil, faster, nil
	}
	var made []*Claim
	var lost bool
	parallel.Do(2, func(i int) {
		if i == 0 {
			made, lost, err = q.commitClaims(ctx, s, slices.Clone(claims), waiter, fresh)
			return
		}
		for j, r := range readClaims(ctx, claims) {
			claims[j].read = r
		}
	})
	if err == nil {
		made, err = q.returnEarly(made)
	}
	return made, faster || lost, err
}

// returnEarly gives back the items that were not due when they were claimed, and returns the claims
// on the others. If it has given all back, it returns errNotDue.
func (q *Queue) returnEarly(claims []*Claim) ([]*Claim, error) {
	var due, early []*Claim
	for _, cl := range claims {
		if cl.early {
			early = append(early, cl)
		} else {
			due = append(due, cl)
		}
	}
	if len(early) == 0 {
		return claims, nil
	}
	q.c.Log().Info("coord: items were not due by the service's clock when they were claimed, giving them back", "path", q.path.Full(), "items", len(early))
	q.forget() // the items behind them are not due either
	q.tellClaims(context.Background(), early, nil)
	for _, cl := range early {
		cl.later(verbGiveBack)
	}
	if len(due) == 0 {
		return nil, errNotDue
	}
	return due, nil
}

// prepare returns a claim on the item that is ready to be committed. It returns nil if
// the item has vanished, if it has changed since the list, or if it was claimed as often
// as MaxAttempts allows.
func (q *Queue) prepare(ctx context.Context, s *core.Session, e layout.QueueEntry, fresh bool) (cl *Claim, changed bool, err error) {
	cl = &Claim{q: q, s: s, e: e, attempt: 1}
	if e.State {
		r, o, err := readRecord(ctx, s, &e)
		switch {
		case !fresh && (errs.IsNotFound(err) || errors.Is(err, errs.ErrAgain)):
			return nil, false, errs.ErrAgain
		case errs.IsNotFound(err):
			return nil, false, nil // it has vanished
		case errors.Is(err, errs.ErrAgain):
			return nil, true, nil // it has changed since the list
		case err != nil:
			return nil, false, err
		}
		if q.isUsedUp(o, r.n) {
			err := q.buryUnclaimed(ctx, s, &e, o, r)
			switch {
			case err == nil:
			case errors.Is(err, errs.ErrAgain) && !fresh:
				return nil, false, errs.ErrAgain
			case errors.Is(err, errs.ErrAgain):
				return nil, true, nil // it has changed since the list
			case errs.IsOver(err) || ctx.Err() != nil:
				return nil, false, err
			default:
				// The item must not delay the others.
				q.ignore(e.Path())
				s.Client().Log().Warn("coord: cannot move an item to the dead letters, skipping it for a minute", "path", e.Path(), "error", err)
			}
			return nil, false, nil
		}
		cl.attempt, cl.before = r.n+1, r
		cl.options, cl.optionsKnown = o, true
	}
	cl.mark = newMark(s, &e)
	return cl, false, nil
}

// newMark returns the path of a new mark on an item.
func newMark(s *core.Session, e *layout.QueueEntry) string {
	return e.Bucket + "/" + layout.MarkPrefix + e.ID + "-" + s.Client().NewGUID(e.ID)
}

// commitClaims commits the claims. If some cannot be committed, it commits the others.
// faster reports whether another consumer was faster with one of them.
func (q *Queue) commitClaims(ctx context.Context, s *core.Session, claims []*Claim, waiter string, fresh bool) (made []*Claim, faster bool, err error) {
	for len(claims) > 0 {
		var ops []backend.Op
		var owner []int             // for each operation, the index of its claim; -1: none
		for i, cl := range claims { // together, for services that check many nodes at once
			ops, owner = append(ops, backend.Check(cl.e.Path(), backend.AnyVersion)), append(owner, i)
		}
		for i, cl := range claims {
			before := len(ops)
			ops = cl.ops(ops)
			for range len(ops) - before {
				owner = append(owner, i)
			}
		}
		if waiter != "" {
			ops, owner = append(ops, backend.Delete(waiter, backend.AnyVersion)), append(owner, -1)
		}
		// Not cancellable, so that the client always learns which items it claimed.
		_, proof, err := s.CommitProof(context.WithoutCancel(ctx), ops...)
		if err == nil {
			claims, err = grantClaims(s, claims, &proof)
			return claims, faster, err
		}
		i := errs.Blamed(err)
		switch {
		case i < 0:
			if backend.IsUncertain(err) && !errs.IsOver(err) {
				q.removeMarks(s, claims)
			}
			return nil, false, err
		case owner[i] < 0:
			waiter = "" // an outsider deleted it
		case !fresh:
			return nil, false, errs.ErrAgain
		default:
			if errors.Is(err, backend.ErrNotEmpty) {
				q.ignore(claims[owner[i]].e.Path()) // an outsider's node, below the node that puts the item off
			}
			faster = faster || ops[i].Kind != backend.OpCheck // a failed check means that the item has vanished
			claims = append(claims[:owner[i]], claims[owner[i]+1:]...)
		}
	}
	return nil, faster, nil
}

// removeMarks removes the marks of claims whose commit has an unknown outcome, since an outsider deleted the node
// that proves it. No item may stay claimed.
func (q *Queue) removeMarks(s *core.Session, claims []*Claim) {
	for _, cl := range claims {
		tried := q.begin()
		u := s.CleanUp("remove", cl.mark, func(ctx context.Context) error {
			defer tried()
			defer q.forget() // a list from before shows the item as claimed
			return s.Remove(ctx, cl.mark)
		})
		if u == nil {
			tried()
		}
		u.Note(q.items)
	}
}

// ops appends the operations that make the claim, beside the check of the item.
func (cl *Claim) ops(ops []backend.Op) []backend.Op {
	e := &cl.e
	count := layout.Attempts(cl.attempt, false)
	if e.State {
		ops = append(ops, backend.SetData(e.StateAt(), count, cl.before.version))
	} else {
		ops = append(ops, backend.Create(e.StateAt(), count, backend.Persistent))
	}
	if e.PutOff != "" {
		ops = append(ops, backend.Delete(e.PutOffAt(), backend.AnyVersion))
	}
	return append(ops, backend.Create(cl.mark, nil, backend.Ephemeral))
}

// grantClaims turns the claims into holds. proof is that of their commit.
func grantClaims(s *core.Session, claims []*Claim, proof *backend.Stat) ([]*Claim, error) {
	for _, cl := range claims {
		cl.early = s.Clock().Precedes(proof, cl.e.Ready())
		cl.hold = core.NewHold(s, cl.mark, proof.Mzxid, cl.q.newSpan("take"), cl)
		cl.hold.SetClaim()
		if err := cl.hold.Stand(nil); err != nil {
			return nil, err // the session is over, and all the marks are deleted with it
		}
		// As long as the session may last without contact, so that an item can be read
		// in time whatever ClaimTimeout is.
		cl.limitUnreceived(max(cl.q.claimTimeout, s.Backend().Timeout()))
	}
	return claims, nil
}

// limit replaces the limit of the claim: it calls end after d, unless the claim has ended by then. It
// reports false if the claim has ended, or if the earlier limit is about to end it. Without ClaimTimeout
// it does nothing. The timer only starts a goroutine, which Close waits for.
func (cl *Claim) limit(d time.Duration, end func()) bool {
	if cl.q.claimTimeout == 0 {
		return true
	}
	cl.mu.Lock()
	defer cl.mu.Unlock()
	if cl.state != claimHeld || cl.timer != nil && !cl.timer.Stop() {
		return false
	}
	cl.timer = time.AfterFunc(d, func() { cl.q.c.GoWork(end) })
	return true
}

// limitUnreceived gives the item back after d, unless a caller receives it before.
func (cl *Claim) limitUnreceived(d time.Duration) bool {
	return cl.limit(d, func() { cl.later(verbGiveBack) })
}

// receive is called when a caller gets the item: from now on the claim is lost when
// ClaimTimeout has passed. It reports false if the item was not received in time; then
// it must not be handed out.
func (cl *Claim) receive() bool {
	d := cl.q.claimTimeout
	if !cl.limit(d, func() { cl.hold.Lose(errs.ErrClaimTimeout) }) {
		cl.tooLate()
		return false
	}
	if d > 0 {
		cl.hold.EndAfter(d)
	}
	cl.noteDelivery()
	return true
}

// noteDelivery logs the delivery of an item whose previous claim was lost. It does so when a caller gets the
// item, and not when the claim is made, since the item may be given back in between.
func (cl *Claim) noteDelivery() {
	if cl.afterLoss() {
		cl.s.Client().Log().Info("coord: redelivering an item, since an earlier claim on it was lost", "path", cl.e.Path(), "attempt", cl.attempt)
	}
}

// tooLate gives an item back that was not received in time: the goroutine of the timer may not have
// begun to, and the next item must not come before this one.
func (cl *Claim) tooLate() {
	cl.mu.Lock()
	held := cl.state == claimHeld
	cl.mu.Unlock()
	if held {
		cl.later(verbGiveBack)
	}
}

// offer is called before the item is offered to a receiver on a channel. When late is ready, the caller
// ends the claim if the item was not received: only the caller knows that at this moment. offer
// reports false if the item must not be handed out, as receive does; then the caller calls tooLate.
func (cl *Claim) offer() (late <-chan time.Time, ok bool) {
	if cl.q.claimTimeout == 0 {
		return nil, true
	}
	cl.mu.Lock()
	defer cl.mu.Unlock()
	if cl.state != claimHeld || !cl.timer.Stop() {
		return nil, false
	}
	cl.timer = nil
	return time.After(cl.q.claimTimeout), true
}

// record is the content of the state of an item: its earlier claims.
type record struct {
	n       int // their number
	version int32
	nacked  bool // the last one ended with a Nack
}

// readAttempts returns the record of an item that a list showed unclaimed, with the version of
// its state in that list. It returns errs.ErrAgain if the item has been claimed or put off
// since.
//
// The version must be that of the snapshot: a claim that was made after the list
// has incremented it, and a claim with the new version would override that one.
// Each change of a state shares a commit with a change of the bucket's children, so
// a state that is not newer than the list is the state at the time of the list. (An
// outsider's write can be newer. A second list, made after the version was read,
// settles that case.)
func readAttempts(ctx context.Context, s *core.Session, e *layout.QueueEntry) (record, error) {
	data, stat, err := s.Backend().Get(ctx, e.StateAt(), nil)
	if err != nil {
		return record{}, err
	}
	if stat.Mzxid > e.Seen {
		names, _, err := s.Backend().Children(ctx, e.Bucket, nil)
		if err != nil {
			return record{}, err
		}
		again := errs.ErrAgain
		for _, now := range layout.ParseBucket(e.Bucket, names, 0).Items {
			if now.ID == e.ID && !now.Marked && now.PutOff == e.PutOff {
				again = nil
			}
		}
		if again != nil {
			return record{}, again
		}
	}
	n, nacked := layout.ParseAttempts(data)
	return record{n, stat.Version, nacked || e.PutOff != ""}, nil
}

// afterLoss reports whether the previous claim on the item was lost. (A claim that gave the item back does
// not count, since it has restored the state.)
func (cl *Claim) afterLoss() bool { return cl.e.State && cl.before.n > 0 && !cl.before.nacked }

// Granted is the trace event for the start of a claim.
func (cl *Claim) Granted(at trace.Subject, token int64, waited time.Duration) trace.Event {
	at.Node = cl.e.Path()
	return trace.ItemClaimed{
		Subject: at, Item: cl.e.ID, Attempt: cl.attempt,
		AfterLoss: cl.afterLoss(), Token: token, Waited: waited,
	}
}

// Settled is the trace event for the end of a claim.
func (cl *Claim) Settled(at trace.Subject, lost bool, held time.Duration, err error) trace.Event {
	at.Node = cl.e.Path()
	e := trace.ItemSettled{
		Subject: at, Item: cl.e.ID, Attempt: cl.attempt,
		Delay: cl.delay, Held: held, Err: err,
	}
	switch {
	case lost:
		e.Outcome, e.Reason = trace.ItemLost, tracing.ReasonOf(err)
	case cl.verb == verbAck, cl.verb == verbPop:
		e.Outcome = trace.ItemAcked
	case cl.verb == verbNack:
		e.Outcome = trace.ItemNacked
	case cl.verb == verbBury:
		e.Outcome, e.Delay, e.Reason = trace.ItemDead, 0, cl.why.word()
	default:
		e.Outcome = trace.ItemReturned
	}
	return e
}

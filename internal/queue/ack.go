package queue

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/parallel"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/layout"
)

// Acks that are called while another Ack is under way go together, in one commit,
// when that Ack is done. So goroutines that acknowledge concurrently send about
// two requests for all Acks, and the Ack of a single goroutine does not wait. There is
// no timer. The operations are those of single Acks (T4), so the commit is applied if
// and only if each single Ack would be. If the service refuses the commit, nothing of it
// was applied. Then the Acks that caused the refusal, or all Acks, are sent alone.

// maxRefused is the number of attempts at a combined commit. Each attempt leaves out
// the Ack that made the previous attempt fail. After the last attempt the remaining
// Acks are sent alone, concurrently.
const maxRefused = 3

// acking is an Ack under way.
type acking struct {
	cl   *Claim
	turn chan ackTurn // of capacity 1
	in   *intake      // takes a next item; nil: none. Guarded by Queue.mu while the Ack waits in line
	next *nextClaim   // the claim on that item, valid after turn was received; nil: none
}

// ackTurn is the message to a waiting Ack.
type ackTurn struct {
	lead  bool // it commits for the waiting Acks, itself included
	alone bool // it is sent alone
	err   error
}

// ackLine holds the Acks of one queue and session that wait for the Ack under way.
type ackLine struct{ waiting []*acking }

// ackInLine acknowledges the item of the Ack. If an Ack of the session is under way, it shares
// a commit with the others that wait for it.
func (a *acking) ackInLine() error {
	cl, q := a.cl, a.cl.q
	if cl.inTxn() {
		return cl.commit(context.Background(), verbAck)
	}
	q.mu.Lock()
	line := q.acks[cl.s]
	if line == nil {
		if q.acks == nil {
			q.acks = make(map[*core.Session]*ackLine)
		}
		line = new(ackLine)
		q.acks[cl.s] = line
		q.mu.Unlock()
		defer line.pass(cl)
		if q.ackAndClaim([]*acking{a}) {
			return a.outcome(<-a.turn)
		}
		return cl.commit(context.Background(), verbAck)
	}
	line.waiting = append(line.waiting, a)
	q.mu.Unlock()
	// This waits for the commit of another Ack, which ends with the same session at
	// the latest.
	turn := <-a.turn
	if turn.lead {
		defer line.pass(cl)
		q.mu.Lock()
		n := q.fitting(cl.s, len(line.waiting), func(i int) *layout.QueueEntry { return &line.waiting[i].cl.e })
		batch := line.waiting[:n:n] // the first is a
		line.waiting = line.waiting[n:]
		q.mu.Unlock()
		if !q.ackAndClaim(batch) {
			ackTogether(batch)
		}
		turn = <-a.turn
	}
	return a.outcome(turn)
}

// pass hands the turn to the next Ack, after that of cl.
func (line *ackLine) pass(cl *Claim) {
	cl.q.mu.Lock()
	defer cl.q.mu.Unlock()
	if len(line.waiting) == 0 {
		delete(cl.q.acks, cl.s)
		return
	}
	line.waiting[0].turn <- ackTurn{lead: true}
}

func newAcking(cl *Claim) *acking { return &acking{cl: cl, turn: make(chan ackTurn, 1)} }

// outcome carries out an Ack's turn and returns its result.
func (a *acking) outcome(turn ackTurn) error {
	if turn.alone {
		return a.cl.commit(context.Background(), verbAck)
	}
	return turn.err
}

// tell sends a turn to the Ack. It rewrites an error as the error of a commit of this Ack
// alone.
func (a *acking) tell(turn ackTurn) {
	if turn.err != nil {
		err := turn.err
		var e *backend.Error
		if errors.As(err, &e) {
			err = e.Err
		}
		turn.err = &backend.Error{Op: "commit", Path: a.cl.mark, Index: -1, Err: err}
	}
	a.turn <- turn
}

// ackTogether acknowledges items of one session in one commit, exactly once, and
// sends the result to each of the Acks. If the outcome is unknown, because the
// session ended or an outsider deleted the node that proves it, each Ack gets that
// error: a retry alone would find the mark gone and take the claim for lost. An item that
// a transaction may have acknowledged is sent alone, since its mark can be gone.
func ackTogether(all []*acking) {
	var batch []*acking
	for _, a := range all {
		if a.cl.inTxn() {
			a.tell(ackTurn{alone: true})
		} else {
			batch = append(batch, a)
		}
	}
	for range maxRefused {
		if len(batch) < 2 {
			break
		}
		var ops []backend.Op
		var owner []int // for each operation, the index of its Ack
		for i, a := range batch {
			for ops = a.cl.ackOps(ops); len(owner) < len(ops); {
				owner = append(owner, i)
			}
		}
		q, own := batch[0].cl.q, len(ops)
		_, err := q.commitOnce(context.Background(), batch[0].cl.s, append(ops, q.counting(len(batch))...)...)
		if err == nil || backend.IsUncertain(err) || errs.IsOver(err) {
			for _, a := range batch {
				a.tell(ackTurn{err: err})
			}
			return
		}
		i := errs.Blamed(err)
		if i < 0 {
			break
		}
		if i >= own {
			q.counted.Store(false)
			continue
		}
		i = owner[i]
		batch[i].tell(ackTurn{alone: true})
		rest := make([]*acking, 0, len(batch)-1)
		batch = append(append(rest, batch[:i]...), batch[i+1:]...)
	}
	for _, a := range batch {
		a.tell(ackTurn{alone: true})
	}
}

// ackOps appends the operations of an Ack: those on the mark, the state, the item and its notes.
func (cl *Claim) ackOps(ops []backend.Op) []backend.Op { return cl.endOps(ops, false) }

// endOps appends the operations that end the claim and delete the item. With free they free its key, whatever its time.
func (cl *Claim) endOps(ops []backend.Op, free bool) []backend.Op {
	ops = append(ops,
		backend.Delete(cl.mark, backend.AnyVersion),
		backend.Delete(cl.e.StateAt(), backend.AnyVersion),
		backend.Delete(cl.e.Path(), backend.AnyVersion))
	return append(ops, deleteNotes(&cl.e, free)...)
}

// deleteNotes returns the operations that delete the notes of an item, see layout.QueueEntry.Notes.
func deleteNotes(e *layout.QueueEntry, free bool) (ops []backend.Op) {
	for _, path := range e.Notes(free) {
		ops = append(ops, backend.Delete(path, backend.AnyVersion))
	}
	return ops
}

// ackAll carries out Acks that were decided on, in one commit for each session, and ends
// their claims. The sessions can differ: a claim of a lost session may not be marked as
// lost yet.
func ackAll(acks []*acking) {
	for rest := acks; len(rest) > 0; {
		var same, other []*acking
		for _, a := range rest {
			if a.cl.s == rest[0].cl.s {
				same = append(same, a)
			} else {
				other = append(other, a)
			}
		}
		ackTogether(same)
		rest = other
	}
	parallel.Do(len(acks), func(i int) {
		a := acks[i]
		a.cl.hold.EndRelease(a.cl.end(context.Background(), a.outcome(<-a.turn)))
	})
}

// Ack is Item.Ack of package coord.
func (cl *Claim) Ack() error {
	_, err := cl.ackFor(nil)
	return err
}

// ackFor is Ack for a handler that takes its next item from an intake, which may be nil. It returns the claim on that
// item if the commit of the Ack has made it.
func (cl *Claim) ackFor(in *intake) (next *nextClaim, err error) {
	if cl.decide(verbAck, 0) {
		a := newAcking(cl)
		a.in = in
		cl.hold.EndRelease(cl.end(context.Background(), a.ackInLine()))
		next = a.next
	}
	return next, errs.Op("ack", cl.e.Path(), cl.outcome(verbAck))
}

// AckClaims is Consumer.AckAll of package coord. A nil claim stands for a nil item, or an item of no queue.
func (q *Queue) AckClaims(claims []*Claim) error {
	for i, cl := range claims {
		if cl == nil || cl.q != q {
			return errs.Op("ackall", q.path.Full(), fmt.Errorf("%w: item %d of %d was not taken from this queue", backend.ErrInvalid, i+1, len(claims)))
		}
	}
	for rest := claims; len(rest) > 0; {
		n := q.fitting(rest[0].s, len(rest), func(i int) *layout.QueueEntry { return &rest[i].e })
		var acks []*acking
		for _, cl := range rest[:n] {
			if cl.decide(verbAck, 0) {
				acks = append(acks, newAcking(cl))
			}
		}
		ackAll(acks)
		rest = rest[n:]
	}
	// Only now may this wait for other calls, which may wait for these Acks.
	failed := make([]error, len(claims))
	for i, cl := range claims {
		failed[i] = errs.Op("ack", cl.e.Path(), cl.outcome(verbAck))
	}
	return errors.Join(failed...)
}

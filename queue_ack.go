package coord

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"

	"github.com/go-coord/coord/backend"
)

// Acks that come while one is under way go together, in one commit, as soon as
// that one is done: who acknowledges from many goroutines pays about two requests
// for all that do it at a time, and who does it from one pays and waits as if there
// were nobody else. There is no timer. The operations are those of single Acks (T4),
// so the commit is applied if and only if each of them would be. If it is refused,
// nothing of it was done, and those who are to blame, or all, go alone.

// maxRefused is how often a combined commit is tried again without the one that
// was to blame. Then each goes alone, all at a time.
const maxRefused = 3

// acking is an Ack under way, in its caller's goroutine.
type acking struct {
	cl   *itemClaim
	turn chan ackTurn // of capacity 1
}

// ackTurn is what a waiting Ack learns.
type ackTurn struct {
	lead  bool // it is to commit for those who wait, itself included
	alone bool // it is to go alone
	err   error
}

// ackLine is the Acks of one queue that wait for the one under way, on one session.
type ackLine struct{ waiting []*acking }

// decideAck makes Ack the verb of the claim, if there is none, and commit what
// carries it out. It reports whether it was the first.
func (cl *itemClaim) decideAck(commit func() error) bool {
	return cl.decide(verbAck, 0, func() error {
		return cl.concluded(context.Background(), verbAck, 0, commit())
	})
}

// ackInLine acknowledges, together with those who come meanwhile.
func (cl *itemClaim) ackInLine() error {
	q, a := cl.q, newAcking(cl)
	q.mu.Lock()
	line := q.acks[cl.s]
	if line == nil {
		if q.acks == nil {
			q.acks = make(map[*session]*ackLine)
		}
		line = new(ackLine)
		q.acks[cl.s] = line
		q.mu.Unlock()
		defer line.pass(cl)
		return cl.conclude(context.Background(), verbAck, 0)
	}
	line.waiting = append(line.waiting, a)
	q.mu.Unlock()
	// This waits for the commit of another Ack, which the same session bounds.
	turn := <-a.turn
	if turn.lead {
		defer line.pass(cl)
		// Those who were just told are on their way back with their next item.
		runtime.Gosched()
		q.mu.Lock()
		n := min(len(line.waiting), q.batch)
		batch := line.waiting[:n:n] // the first is a
		line.waiting = line.waiting[n:]
		q.mu.Unlock()
		ackTogether(batch)
		turn = <-a.turn
	}
	return a.outcome(turn)
}

// pass has the next Ack go, after that of cl.
func (line *ackLine) pass(cl *itemClaim) {
	cl.q.mu.Lock()
	defer cl.q.mu.Unlock()
	if len(line.waiting) == 0 {
		delete(cl.q.acks, cl.s)
		return
	}
	line.waiting[0].turn <- ackTurn{lead: true}
}

func newAcking(cl *itemClaim) *acking { return &acking{cl: cl, turn: make(chan ackTurn, 1)} }

// outcome is the result of an Ack that has got its turn.
func (a *acking) outcome(turn ackTurn) error {
	if turn.alone {
		return a.cl.conclude(context.Background(), verbAck, 0)
	}
	return turn.err
}

// tell says how it went. An error is told as one of the Ack's own.
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
// tells each of the Acks. When the outcome is not known, since the session ended or
// an outsider deleted what proves it, it is told to each: to try again alone would
// find the mark gone, and take that for the claim's loss.
func ackTogether(batch []*acking) {
	for range maxRefused {
		if len(batch) < 2 {
			break
		}
		ops := make([]backend.Op, 0, ackOps*len(batch))
		for _, a := range batch {
			ops = a.cl.ackOps(ops)
		}
		_, _, err := batch[0].cl.s.commitOnce(context.Background(), ops...)
		if err == nil || isUncertain(err) || isOver(err) {
			for _, a := range batch {
				a.tell(ackTurn{err: err})
			}
			return
		}
		i := blamed(err)
		if i < 0 || i >= len(ops) {
			break
		}
		i /= ackOps
		batch[i].tell(ackTurn{alone: true})
		rest := make([]*acking, 0, len(batch)-1)
		batch = append(append(rest, batch[:i]...), batch[i+1:]...)
	}
	for _, a := range batch {
		a.tell(ackTurn{alone: true})
	}
}

// ackOps is the number of operations of an Ack.
const ackOps = 3

// ackOps appends the operations of an Ack.
func (cl *itemClaim) ackOps(ops []backend.Op) []backend.Op {
	return append(ops,
		backend.Delete(cl.mark, backend.AnyVersion),
		backend.Delete(cl.e.stateAt(), backend.AnyVersion),
		backend.Delete(cl.e.path(), backend.AnyVersion))
}

// AckAll acknowledges items that were taken from this queue, up to 128 in one
// commit. Each of them ends as with its Ack, whatever becomes of the others: nil
// means that all are done with. Otherwise the errors of the items are joined; the
// Ack of an item, called again, returns its own. If an item is nil, or was not
// taken from this queue value, nothing is done, and the error matches ErrInvalid.
func (q *Consumer[T]) AckAll(items ...*Item[T]) error {
	for i, it := range items {
		if it == nil || it.claim == nil || it.claim.q != q.q {
			return opError("ackall", q.q.path.full, fmt.Errorf("%w: item %d of %d was not taken from this queue", ErrInvalid, i+1, len(items)))
		}
	}
	errs := make([]error, len(items))
	for done := 0; done < len(items); {
		n := min(len(items)-done, q.q.batch)
		b := &ackBatch{coming: n}
		together(n, func(i int) { errs[done+i] = items[done+i].ackIn(b) })
		done += n
	}
	return errors.Join(errs...)
}

// ackBatch gathers the Acks of an AckAll.
type ackBatch struct {
	mu     sync.Mutex
	coming int // those that have neither joined nor said that they will not
	joined []*acking
}

// arrive adds an Ack, or nil for one that will not join. The last one commits for
// all of them.
func (b *ackBatch) arrive(a *acking) {
	b.mu.Lock()
	if b.coming--; a != nil {
		b.joined = append(b.joined, a)
	}
	if b.coming > 0 {
		b.mu.Unlock()
		return
	}
	b.mu.Unlock()
	// Those of a session that is over may not know it yet.
	for all := b.joined; len(all) > 0; {
		var same, other []*acking
		for _, a := range all {
			if a.cl.s == all[0].cl.s {
				same = append(same, a)
			} else {
				other = append(other, a)
			}
		}
		ackTogether(same)
		all = other
	}
}

// ackIn is Ack as a part of a batch. What the batch waits for never waits for
// another: if a verb was first, that one may be a part of a batch that waits too.
func (it *Item[T]) ackIn(b *ackBatch) error {
	cl, a := it.claim, newAcking(it.claim)
	var arrived sync.Once
	leave := func() { arrived.Do(func() { b.arrive(nil) }) }
	if !cl.decideAck(func() error {
		arrived.Do(func() { b.arrive(a) })
		return a.outcome(<-a.turn)
	}) {
		leave()
	}
	defer leave() // if the claim was lost
	return opError("ack", cl.e.path(), cl.carriedOut(verbAck))
}

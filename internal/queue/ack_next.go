package queue

import (
	"context"
	"slices"

	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/errs"

	"github.com/go-coord/coord/backend"
)

// This file makes the commits that acknowledge items and claim the next ones. The rules are T10 in rules.go.

// nextClaim is a claim that the commit of an Ack makes for the Work of the acknowledged item.
type nextClaim struct {
	cl      *Claim
	read    chan claimRead // of capacity 1: the item, which is read beside the commit
	cleanUp *core.CleanUp  // Close waits until Work has the claim, or has given it back
	done    func()         // the feeder waits for it; nil for a claim of the feeder
}

// drop ends the clean-ups of claims that were refused or are not valid, so that the feeder continues.
func drop(next ...*nextClaim) {
	for _, n := range next {
		n.done()
		n.cleanUp.End()
	}
}

func claimsOf(next []*nextClaim) []*Claim {
	claims := make([]*Claim, len(next))
	for i, n := range next {
		claims[i] = n.cl
	}
	return claims
}

// ackAndClaim acknowledges the items of a batch, which is of one session, and claims an item for each Ack of one
// intake that wants one, as far as items are remembered: all in one commit. It sends the result to each Ack. It
// reports false if nothing was committed: the caller then acknowledges the items without claims. After a refusal
// the Acks that wait in line claim nothing either, so an Ack waits for one refusal at most.
func (q *Queue) ackAndClaim(batch []*acking) bool {
	s := batch[0].cl.s
	var wanting []*acking
	for _, a := range batch {
		if a.cl.inTxn() {
			return false // its mark can be gone, so it is sent alone
		}
		if (len(wanting) == 0 || a.in == wanting[0].in) && a.in.wants() {
			wanting = append(wanting, a)
		}
	}
	if len(wanting) == 0 {
		return false
	}
	var ops []backend.Op
	for _, a := range batch {
		ops = a.cl.ackOps(ops)
	}
	acks, counting := len(ops), q.counting(len(batch))
	next := q.claimBeside(s, wanting[0].in, min(len(wanting), roomBeside(q, s, acks+len(counting))))
	if len(next) == 0 {
		return false
	}
	for _, n := range next { // together, as in commitClaims
		ops = append(ops, backend.Check(n.cl.e.Path(), backend.AnyVersion))
	}
	for _, n := range next {
		ops = n.cl.ops(ops)
	}
	cancel := q.readBeside(next)
	// Not cancellable, so that the client always learns which items it acknowledged and claimed.
	_, proof, err := s.CommitProof(context.Background(), append(ops, counting...)...)
	switch i := errs.Blamed(err); {
	case err == nil:
		for k, n := range q.grantBeside(s, next, &proof) {
			wanting[k].next = n
		}
	case backend.IsUncertain(err) && !errs.IsOver(err):
		q.removeMarks(s, claimsOf(next)) // an outsider deleted the node that proves the commit
		cancel()
		drop(next...)
	case errs.IsOver(err):
		cancel()
		drop(next...) // the marks go with the session
	default:
		lost := i >= acks && i < len(ops)
		if lost {
			q.noteMissed(s) // another consumer has had the item
		}
		if !lost || len(next) > 1 {
			q.forget() // these items may still be free
		}
		cancel()
		drop(next...)
		q.claimNothing(s)
		return false
	}
	for _, a := range batch {
		a.tell(ackTurn{err: err})
	}
	return true
}

// claimNothing makes the Acks of a session that wait in line claim no next items.
func (q *Queue) claimNothing(s *core.Session) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, a := range q.acks[s].waiting {
		a.in = nil
	}
}

// claimBeside returns claims on up to want remembered items for an intake, for the commit of Acks on the session
// s. It returns none if the feeder has to find the next item:
//   - another call of this queue value waits for items, or gets some from the feeder, and comes first;
//   - claimed items are on the way to another intake: if it has ended, they are given back, and precede the
//     remembered items;
//   - an item is being given back, so it precedes the remembered items (T5, T8);
//   - the latest commit of this kind has lost a race, and no claim has been made by these names since.
//
// It returns no claim on an item that was claimed before: such an item can be due for the dead letters. Nor
// does it if MaxAttempts is 1: an item whose session is lost after the commit would become a dead letter that
// no handler has seen. The MaxAttempts of an item with options can be 1, too.
func (q *Queue) claimBeside(s *core.Session, in *intake, want int) (next []*nextClaim) {
	if want < 1 || q.maxAttempts == 1 || s.Backend().Err() != nil {
		return nil
	}
	u := q.c.BeginCleanUp()
	if u == nil {
		return nil // the session is being ended
	}
	defer u.End()
	q.mu.Lock()
	defer q.mu.Unlock()
	a := &q.ahead
	switch {
	case !onlyFor(in, q.requests), !onlyFor(in, q.taking), q.ending.n > 0, q.beside.n > 0 && q.intake != in:
		return nil
	case a.s != s, a.missed, q.c.HasLeftovers(q.items):
		return nil
	}
	n := fresh(a.items[:min(want, len(a.items))])
	if n == 0 {
		return nil
	}
	q.intake = in
	found, reads := q.nextLocked(s, n)
	for i, e := range found {
		next = append(next, &nextClaim{
			cl:      &Claim{q: q, s: s, e: e, attempt: 1, mark: newMark(s, &e), ahead: reads[i], read: claimRead{item: backend.ReadResult{Err: errs.ErrAgain}}},
			read:    make(chan claimRead, 1),
			cleanUp: q.c.BeginCleanUp(),
			done:    q.beginLocked(&q.beside),
		})
	}
	return next
}

// roomBeside returns how many claims fit into a commit with so many other operations. There are no more claims
// than Acks, so batch has limited the checks.
func roomBeside(q *Queue, s *core.Session, others int) int {
	const claim = 3 // operations
	l := s.Backend().Limits()
	most := l.Bytes / (len(q.items) + 300)
	if l.Ops > 0 {
		most = min(most, l.Ops)
	}
	return (most - others - 1) / claim // with the journal entry
}

// readBeside reads the items of the claims that are not read yet, beside their commit, until cancel is called.
func (q *Queue) readBeside(next []*nextClaim) (cancel func()) {
	var rest []*nextClaim
	for _, n := range next {
		if data, ok := n.cl.ahead.have(); ok {
			n.read <- claimRead{item: backend.ReadResult{Data: data}}
		} else {
			rest = append(rest, n)
		}
	}
	if len(rest) == 0 {
		return func() {}
	}
	ctx, cancel := context.WithCancel(context.Background())
	if !q.c.GoWork(func() {
		defer cancel()
		for i, r := range readClaims(ctx, claimsOf(rest)) {
			rest[i].read <- r
		}
	}) {
		cancel() // the client is closed, so the commit fails
	}
	return cancel
}

// grantBeside turns the claims into holds, after their commit. It returns the claims that are valid and were not
// early.
func (q *Queue) grantBeside(s *core.Session, next []*nextClaim, proof *backend.Stat) (made []*nextClaim) {
	claims, err := grantClaims(s, claimsOf(next), proof)
	if err == nil {
		claims, _ = q.returnEarly(claims) // none, if all were early
	}
	for _, n := range next {
		if slices.Contains(claims, n.cl) {
			made = append(made, n)
		} else {
			drop(n)
		}
	}
	return made
}

// An intake is the source of items of one call of Work: the feeder, and the Acks of its handlers. The loop of Work
// decodes the items of both, on the goroutine of its caller.
type intake struct {
	q    *Queue
	done <-chan struct{} // of the context of Work, whose methods run foreign code
	over chan struct{}   // closed, with q.mu held, when the loop of Work has ended
	came chan struct{}   // of capacity 1: signals a claim in ready

	// Guarded by q.mu.
	request *itemRequest // the latest request to the feeder
	ready   []*nextClaim // none while there is a request; those of several handlers come in any order
}

// isOver reports whether Work takes no more items.
func (in *intake) isOver() bool {
	select {
	case <-in.done:
		return true
	case <-in.over:
		return true
	default:
		return in.q.c.IsClosing()
	}
}

// wants reports whether a handler that acknowledges its item takes another one. With Prefetch, that item would
// come behind the items in stock, which the feeder claims many at a time.
func (in *intake) wants() bool { return in != nil && in.q.prefetch <= 1 && !in.isOver() }

// hand gives a claim to the loop of Work, even while the loop waits for the feeder. If Work takes no more items, hand
// gives the item back, before the feeder takes another one.
func (in *intake) hand(n *nextClaim) {
	q := in.q
	select {
	case n.cl.read = <-n.read:
	case <-n.cl.hold.Done():
	case <-in.done:
	case <-in.over:
	case <-q.c.Closing():
	}
	q.mu.Lock()
	waiting := slices.Index(q.requests, in.request)
	over := in.isOver()
	switch {
	case over:
	case waiting >= 0:
		q.requests = slices.Delete(q.requests, waiting, waiting+1)
		in.request.reply <- handOut{claims: []*Claim{n.cl}}
		if len(q.requests) == 0 && len(q.taking) == 0 && q.idle != nil {
			q.idle() // it waits for items
		}
		defer n.cleanUp.End()
	default:
		in.add(n)
	}
	q.mu.Unlock()
	if over {
		n.giveBack()
	}
	n.done()
}

// add keeps a claim for the loop of Work, and wakes it if it pauses since the service has no space. The caller holds
// q.mu.
func (in *intake) add(n *nextClaim) {
	in.ready = append(in.ready, n)
	select {
	case in.came <- struct{}{}:
	default:
	}
}

// takeReady returns up to want of the claims in ready. The caller holds q.mu, and has begun a
// clean-up.
func (in *intake) takeReady(want int) (claims []*Claim) {
	if in == nil {
		return nil
	}
	n := min(want, len(in.ready))
	for _, r := range in.ready[:n] {
		claims = append(claims, r.cl)
		r.cleanUp.End()
	}
	in.ready = in.ready[n:]
	select {
	case <-in.came:
	default:
	}
	return claims
}

// end is called when the loop of Work has ended. It gives the remaining items back.
func (in *intake) end() {
	if in == nil {
		return
	}
	in.q.mu.Lock()
	ready := in.ready
	in.ready = nil
	close(in.over)
	in.q.mu.Unlock()
	for _, n := range ready {
		n.giveBack()
	}
}

// giveBack gives back the item of a claim that Work has not taken.
func (n *nextClaim) giveBack() {
	n.cl.q.tellClaims(context.Background(), []*Claim{n.cl}, nil)
	n.cl.later(verbGiveBack)
	n.cleanUp.End()
}

package queue

import (
	"context"
	"errors"
	"math"
	"slices"
	"time"

	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/errs"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/layout"
	"github.com/go-coord/coord/trace"
)

// readNext begins to read the first of the items that are remembered, unless that has begun. A Pop calls it
// beside its deletion. If other callers wait for items, they get that item first, so it is not read.
func (q *Queue) readNext(s *core.Session) {
	q.mu.Lock()
	defer q.mu.Unlock()
	a := &q.ahead
	if a.s != s || a.left == 0 || len(q.requests) > 0 || !canPop(s, a.items) {
		return
	}
	q.readLocked(1, 1)
}

// canPop reports whether a Pop can delete the first of the items without a claim: it was never claimed and has
// no options, no reason, and no due time by the service's clock, see T9 in rules.go.
func canPop(s *core.Session, items []layout.QueueEntry) bool {
	return len(items) > 0 && fresh(items[:1]) > 0 && !items[0].Reason && (items[0].Due <= 0 || !s.Clock().Exists())
}

// nextRead returns the first of the items that are remembered, if its read has begun, and forgets
// its name. The caller calls popped at its end. nextRead returns nil if there is no such read, if other
// callers wait for items, or if an item is being claimed or given back, since that item can come first.
func (q *Queue) nextRead() (*core.Session, *readAhead) {
	q.mu.Lock()
	s := q.ahead.s
	q.mu.Unlock()
	if s == nil || s.Backend().Err() != nil {
		return nil, nil
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	a := &q.ahead
	if !canPop(s, a.items) || a.reads[0] == nil || q.feeding || q.ending.n+q.beside.n > 0 {
		return nil, nil
	}
	_, reads := q.nextLocked(s, 1)
	if len(reads) == 0 {
		return nil, nil // too old
	}
	r := reads[0]
	if q.popping == nil {
		q.popping = make(map[string]bool)
	}
	q.popping[r.e.Path()] = false
	return s, r
}

// popped ends the Pop that nextRead has begun. It reports whether this client has claimed or removed the
// item meanwhile, or has begun to.
func (q *Queue) popped(r *readAhead) (mine bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	mine = q.popping[r.e.Path()]
	delete(q.popping, r.e.Path())
	return mine
}

// commitRemoval makes the commit that removes items for a call of this client. It forgets a list that
// shows them, and a Pop that is about to delete one of them loses no race to others.
func (q *Queue) commitRemoval(ctx context.Context, s *core.Session, items []layout.QueueEntry, ops ...backend.Op) error {
	mine := func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		for i := range items {
			if _, ok := q.popping[items[i].Path()]; ok {
				q.popping[items[i].Path()] = true
			}
		}
	}
	mine()
	_, err := q.commitOnce(ctx, s, ops...)
	if err == nil {
		q.forget()
		mine() // Pops that have begun meanwhile
	}
	return err
}

// spare returns the items that no Pop of this client is about to delete. If there are no others, it
// returns the first item, and notes for its Pop that this client claims it.
func (q *Queue) spare(items []layout.QueueEntry) []layout.QueueEntry {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.popping) == 0 {
		return items
	}
	spare := slices.DeleteFunc(slices.Clone(items), func(e layout.QueueEntry) bool { _, ok := q.popping[e.Path()]; return ok })
	if len(spare) == 0 {
		spare = items[:1]
		q.popping[items[0].Path()] = true
	}
	return spare
}

// listNext begins to read the first remembered item. If no item is remembered, it lists the queue before.
// It does so only in a Queue, and only
//   - if the last list of this session found an item at once,
//   - if no other call of this client is taking an item, which the list could show,
//   - and if no other consumer takes from the head: beside such a consumer a claim is better, since it
//     needs no read before.
func (q *Queue) listNext(ctx context.Context) {
	q.mu.Lock()
	s, gen := q.prompt, q.gen
	a := &q.ahead
	known := s != nil && a.s == s && len(a.items) > 0 && a.left > 0 && !time.Now().After(a.until)
	calm := q.kind == layout.KindQueue && !q.feeding && q.ending.n+q.beside.n == 0 && len(q.popping) == 0 && q.rivals == 0
	q.mu.Unlock()
	if s == nil || !calm || s.Backend().Err() != nil {
		return
	}
	if !known {
		began := time.Now()
		v, err := q.walk(ctx, s, math.MaxInt, nil, nil, q.stuckItems(), learnsLater)
		if err != nil || len(v.found) == 0 || !q.keep(s, began, gen, &v, v.found) {
			q.setPrompt(nil)
			return
		}
	}
	q.readNext(s)
}

// setPrompt records on which session the last list found an item at once; nil: on none.
func (q *Queue) setPrompt(s *core.Session) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.prompt = s
}

// overtaken records that the item that a Pop had read ahead is gone. Once can be the work of a Purge or a
// Remove, which is no reason to change the order. Twice in a second counts as a lost race: consumers that
// pop have equal lists, and would compete for each item.
func (q *Queue) overtaken(err error) {
	if errs.Blamed(err) < 0 || errors.Is(err, backend.ErrNotEmpty) {
		return
	}
	now := time.Now()
	q.mu.Lock()
	again := now.Sub(q.missed) < aheadTime
	q.missed = now
	q.mu.Unlock()
	if again {
		q.noteRival(true)
	}
}

// deleteUnclaimed deletes an item that was never claimed, and counts it. It fails if a consumer has
// claimed the item since the list.
func (q *Queue) deleteUnclaimed(ctx context.Context, s *core.Session, e *layout.QueueEntry) (zxid int64, err error) {
	ops, err := takeOut(ctx, s, e, false)
	for err == nil {
		zxid, err = q.commitOnce(ctx, s, append(ops[:len(ops):len(ops)], q.counting(1)...)...)
		if errs.Blamed(err) < len(ops) {
			break
		}
		q.counted.Store(false)
		err = nil
	}
	return zxid, err
}

// tellPopped traces that an item was taken and acknowledged in one commit.
func (q *Queue) tellPopped(ctx context.Context, e *layout.QueueEntry, attempt int, zxid int64, began time.Time) {
	if t := q.newSpan("take"); t != nil {
		w := t.At(e.Path())
		core.Emit(ctx, q.c, trace.ItemClaimed{Subject: w, Item: e.ID, Attempt: attempt, Token: zxid, Waited: time.Since(began)})
		core.Emit(context.Background(), q.c, trace.ItemSettled{Subject: w, Item: e.ID, Attempt: attempt, Outcome: trace.ItemAcked})
	}
}

// Pop is Consumer.Pop of package coord. decode is called for one item after the other, until one is
// popped.
func (q *Queue) Pop(ctx context.Context, decode func([]byte) error) error {
	core.NeedContext(ctx)
	u := q.c.BeginCleanUp()
	defer u.End()
	for {
		popped, err := q.popAhead(ctx, decode)
		if err != nil {
			return errs.Op("pop", q.path.Full(), err)
		}
		if popped {
			return nil
		}
		var cl *Claim
		err = q.some(ctx, "pop", 1, false, nil, func(_ *Claim, data []byte) error { return decode(data) }, func(x *Claim) { cl = x })
		if errs.Answers(err, backend.ErrNoSpace) && !backend.IsUncertain(err) {
			if popped, err := q.popUnclaimed(ctx, decode); popped || err != nil {
				return errs.Op("pop", q.path.Full(), err)
			}
		}
		if err != nil {
			return err
		}
		q.readNext(cl.s)
		err = cl.finish(ctx, verbPop, 0)
		switch {
		case err == nil:
			cl.noteDelivery()
			return nil
		case !backend.IsUncertain(err) && (errors.Is(err, errs.ErrLost) || errors.Is(err, errs.ErrReleased)):
			continue // the item goes to another consumer; or ClaimTimeout has passed before
		}
		return errs.Op("pop", q.path.Full(), err)
	}
}

// popAhead pops the next item if it was read ahead, by a Pop before or by this one: it deletes the
// item without a claim, in one commit, see T9 in rules.go. If it reports false without an
// error, nothing was deleted, and the caller takes an item as others do.
func (q *Queue) popAhead(ctx context.Context, decode func([]byte) error) (popped bool, err error) {
	if ctx.Err() != nil || q.c.IsClosing() || q.c.HasLeftovers(q.items) {
		return false, nil // a claim that has timed out is being removed: its item comes first
	}
	s, r := q.nextRead()
	if r == nil {
		q.listNext(ctx)
		if s, r = q.nextRead(); r == nil {
			return false, nil
		}
	}
	began := time.Now()
	var failed error
	defer func() {
		mine := q.popped(r)
		if failed != nil && !mine {
			q.noteMissed(s)
		}
		if !popped {
			q.forget() // the item precedes the remembered items
		}
		if failed != nil && !mine {
			q.overtaken(failed)
		}
	}()
	select {
	case <-r.done:
	case <-ctx.Done():
		return false, nil
	case <-q.c.Closing():
		return false, nil
	}
	if r.err != nil {
		return false, nil
	}
	if !decodes(decode, r.data) {
		return false, nil
	}
	q.readNext(s)
	zxid, err := q.deleteUnclaimed(ctx, s, &r.e)
	switch {
	case err == nil:
		q.decoded(nil)
		q.tellPopped(ctx, &r.e, 1, zxid, began)
		return true, nil
	case backend.IsUncertain(err):
		return false, err
	}
	failed = err
	return false, nil
}

// popUnclaimed pops the next item on a service that has no space for a claim: it reads the item and deletes
// it in one commit, see T9 in rules.go. It cannot tell whether the item was due at the time of the commit
// (W7): no service that reports a lack of space has a clock that counts. If popUnclaimed reports false
// without an error, it has deleted nothing, and there is no item that it can pop.
func (q *Queue) popUnclaimed(ctx context.Context, decode func([]byte) error) (popped bool, err error) {
	s, err := q.c.Live(ctx)
	if err != nil {
		return false, nil
	}
	for range maxRefused {
		began := time.Now()
		e, data, err := q.first(ctx, s)
		if err != nil {
			return false, nil
		}
		attempt := 1
		if e.State {
			r, err := readAttempts(ctx, s, e)
			if err != nil {
				continue
			}
			attempt = r.n + 1
		}
		if !decodes(decode, data) {
			return false, nil
		}
		zxid, err := q.deleteUnclaimed(ctx, s, e)
		switch {
		case err == nil:
			q.decoded(nil)
			q.tellPopped(ctx, e, attempt, zxid, began)
			return true, nil
		case backend.IsUncertain(err):
			return false, err
		case !errors.Is(err, errs.ErrAgain) && !errs.Raced(err):
			return false, nil
		}
	}
	return false, nil
}

// decodes decodes an item that no consumer has claimed. It reports false if the codec fails
// or panics: then the item is claimed first, so that this counts as an attempt.
func decodes(decode func([]byte) error, data []byte) (ok bool) {
	defer func() {
		if !ok {
			recover()
		}
	}()
	return decode(data) == nil
}

package coord

import (
	"context"
	"errors"
	"iter"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-coord/coord/internal/core"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/layout"
)

// A Consumer is the taking side of a Queue, a PriorityQueue or a DelayQueue. It is part of
// them and cannot be made alone.
//
// When a consumer dies or loses its session, the service ends its claims. "Redelivered"
// means that another consumer gets the item at its old place, with the next Attempt, as far
// as MaxAttempts allows:
//
//	consumer        dies before its Ack, or Pop's deletion       dies after that
//	Take, TryTake   the item is redelivered                      nothing is lost
//	All             the same, and the prefetched items too       nothing is lost
//	Items           the same, and the item not yet received      nothing is lost
//	Work            the item of each handler is redelivered      nothing is lost
//	Pop             the item is redelivered                      the item is lost
//
// So only Pop can lose an item, and only Pop never delivers an item twice. A redelivery
// repeats work: make the work idempotent, or write its result in a [Txn] that also creates a
// node named after the item's ID, so that the second Txn fails. The Guard of the item refuses
// late writes of an earlier consumer. The Ack is a separate commit after these writes. A
// consumer that loses its session and lives learns of the loss, and its Ack fails.
//
// If a consumer dies, items that it has claimed but not received count an attempt. If its
// client closes or its ctx ends, it gives them back, which counts no attempt. ClaimTimeout is
// only for consumers that hang.
type Consumer[T any] struct {
	q        *queue
	codec    Codec[T]
	prefetch int
	drain    time.Duration // of Work; 0: no limit
}

// Take waits for the next item until ctx ends, and claims it. The caller must end the claim
// with Ack, Nack or Release. ctx bounds only the wait, which a lost session does not end.
// When the wait ends without an item, nothing stays claimed: an item that is being claimed
// at that moment is given back in the background.
//
// In every call that takes items, an item that the codec cannot decode is moved to the dead
// letters, but not more than five in a row. The sixth is given back, which counts no
// attempt, and the call fails with ErrDecode: probably this consumer has the wrong codec.
// The count of five includes all calls on this queue value; an item that can be decoded
// resets it. Redrive puts moved items back; Remove deletes bad items.
//
// Errors: the context's; ErrDecode; ErrExists, if another program has made persistent nodes
// with the names of all slots; ErrClosed; ErrDenied; ErrBadPath.
func (q *Consumer[T]) Take(ctx context.Context) (*Item[T], error) {
	return q.receive(ctx, "take", false)
}

// TryTake takes the next item, or returns ErrEmpty if no item can be taken. It does
// not wait for other clients, only for the service.
func (q *Consumer[T]) TryTake(ctx context.Context) (*Item[T], error) {
	return q.receive(ctx, "trytake", true)
}

// Pop takes the next item and deletes it before it returns the value: delivery is
// at most once, and if the caller fails before it has processed the value, the
// value is lost. If ctx or the session ends while the outcome of the deletion is
// unknown, the error matches ErrUncertain, and the item is either deleted or goes
// to another consumer. With any other error the item was not deleted, and is given
// back.
//
// Successive calls cost one round trip each: a Pop also reads the next item, and if no
// other consumer has taken that item, the next Pop deletes it at once. (Once in 32 calls,
// or in a second, a Pop costs two round trips more, for a list and a read, or for a claim
// if other consumers take items too; for a PriorityQueue it costs four.) So the queue
// value keeps the bytes of one item, and the last Pop reads one item in vain.
func (q *Consumer[T]) Pop(ctx context.Context) (T, error) {
	core.NeedContext(ctx)
	var zero T
	u := q.q.c.BeginCleanUp()
	defer u.End()
	for {
		v, popped, err := q.popAhead(ctx)
		if err != nil {
			return zero, core.OpError("pop", q.q.path.Full(), err)
		}
		if popped {
			return v, nil
		}
		it, err := q.one(ctx, "pop", false)
		if core.Answers(err, backend.ErrNoSpace) && !core.IsUncertain(err) {
			if v, popped, err := q.popUnclaimed(ctx); popped || err != nil {
				return v, core.OpError("pop", q.q.path.Full(), err)
			}
		}
		if err != nil {
			return zero, err
		}
		q.q.readNext(it.claim.s)
		err = it.claim.finish(ctx, verbPop, 0)
		switch {
		case err == nil:
			it.claim.noteDelivery()
			return it.Value, nil
		case !core.IsUncertain(err) && (errors.Is(err, ErrLost) || errors.Is(err, ErrReleased)):
			continue // the item goes to another consumer; or ClaimTimeout has passed before
		}
		return zero, core.OpError("pop", q.q.path.Full(), err)
	}
}

// All takes one item after the other until ctx ends or the body breaks off. An item
// belongs to the body, which must end its claim or have another goroutine end it
// later: the item is not given back when the body returns, so that it can be
// processed concurrently with the loop. Prefetched items that were not yet handed
// out are given back when the loop ends or the client closes. The end of the loop
// waits for that at most one second, while there is contact; the rest continues in
// the background.
//
// If ctx ends, the loop ends without another pair. While the service has no space
// (ErrNoSpace), the loop waits. On a permanent failure (ErrClosed, ErrDecode, ErrDenied,
// ErrBadPath) the last pair is nil and the error. ErrDecode: the codec has failed on six
// items in a row, see Take.
func (q *Consumer[T]) All(ctx context.Context) iter.Seq2[*Item[T], error] {
	core.NeedContext(ctx)
	return func(yield func(*Item[T], error) bool) {
		for it, err := range q.all(ctx) {
			if (err != nil || it.claim.receive()) && !yield(it, err) {
				return
			}
		}
	}
}

func (q *Consumer[T]) all(ctx context.Context) iter.Seq2[*Item[T], error] {
	return q.each(ctx, "all", func() int { return q.prefetch })
}

// each is the loop of All. It claims up to want items at a time. The body must call
// receive when its caller gets an item.
func (q *Consumer[T]) each(ctx context.Context, op string, want func() int) iter.Seq2[*Item[T], error] {
	return func(yield func(*Item[T], error) bool) {
		st := &stock[T]{}
		over := func() {} // joins the goroutine that gives the stock back when the client closes
		defer func() { over() }()
		defer func() { // before Close continues
			st.giveBack()
			q.q.awaitGivenBack()
		}()
		short := core.NewPauses(q.q.c)
		for alone := true; ctx.Err() == nil; {
			it := st.next()
			if it == nil {
				n := want()
				if n > 1 && alone {
					alone, over = false, st.giveBackAtClose(q.q.c)
				}
				items, err := q.some(ctx, op, n, false)
				if core.Answers(err, backend.ErrNoSpace) {
					if short.Count() == 0 {
						q.q.c.Log().Warn("coord: cannot claim items because the service has no space, retrying", "path", q.q.path.Full(), "error", err)
					}
					short.SkipFirst()
					short.Wait(ctx.Done(), q.q.c.Closing())
					continue
				}
				short.Reset()
				if err != nil {
					if ctx.Err() == nil {
						yield(nil, err)
					}
					return
				}
				it = st.fill(items)
			}
			if it == nil || it.Err() != nil {
				continue // lost while it was in stock
			}
			if ctx.Err() != nil {
				it.claim.later(verbGiveBack) // ctx has ended during the claim
				return
			}
			if !yield(it, nil) {
				return
			}
		}
	}
}

// stock holds the prefetched items that are not handed out yet.
type stock[T any] struct {
	mu    sync.Mutex
	ready []*Item[T]
	over  bool // no item is handed out any more
}

// fill adds items, and takes the first one out.
func (st *stock[T]) fill(items []*Item[T]) *Item[T] {
	st.mu.Lock()
	st.ready = append(st.ready, items...)
	over := st.over
	st.mu.Unlock()
	if over {
		st.giveBack()
	}
	return st.next()
}

// next takes an item out of the stock, or returns nil.
func (st *stock[T]) next() *Item[T] {
	st.mu.Lock()
	defer st.mu.Unlock()
	if len(st.ready) == 0 {
		return nil
	}
	it := st.ready[0]
	st.ready = st.ready[1:]
	return it
}

// giveBack gives the remaining items back.
func (st *stock[T]) giveBack() {
	st.mu.Lock()
	ready := st.ready
	st.ready, st.over = nil, true
	st.mu.Unlock()
	for _, it := range ready {
		it.claim.later(verbGiveBack)
	}
}

// giveBackAtClose gives the stock back when the client closes, before its session
// ends, unless the loop is over first, which calls the returned function. It needs a
// goroutine of its own because the body of the loop may be running at that time.
func (st *stock[T]) giveBackAtClose(c *core.Client) (over func()) {
	return c.Beside(func(over <-chan struct{}) {
		select {
		case <-c.Closing():
			st.giveBack()
		case <-over:
		}
	})
}

// Items is All as a channel. The channel is unbuffered: an item is handed over or,
// if ctx ends or the client closes, given back. The channel is closed in these
// cases, and on a failure for which All would return an error.
//
// While a receiver processes an item, the next item is claimed already: no other
// consumer gets it, and if the process dies, the death counts as an attempt of both
// items. If processing takes long, or can kill the process, use All, Work or Take, which
// claim an item only when the caller asks for it.
func (q *Consumer[T]) Items(ctx context.Context) <-chan *Item[T] {
	core.NeedContext(ctx)
	ch := make(chan *Item[T])
	u := q.q.c.BeginCleanUp()
	loop := func() error {
		for it, err := range q.all(ctx) {
			if err != nil {
				if !errors.Is(err, ErrClosed) {
					q.q.c.Log().Error("coord: taking items failed, this consumer stops", "path", q.q.path.Full(), "error", err)
				}
				return nil
			}
			late, ok := it.claim.offer()
			if !ok {
				it.claim.tooLate()
				continue
			}
			select {
			case ch <- it:
				it.claim.receive()
			case <-late:
				it.claim.later(verbGiveBack)
			case <-it.Done(): // lost before it was received
			case <-ctx.Done():
				it.claim.later(verbGiveBack)
			case <-q.q.c.Closing():
				it.claim.later(verbGiveBack)
				return nil
			}
		}
		return nil
	}
	work := func() {
		defer u.End()
		defer close(ch)
		// The loop runs the codec. If that does not return, its item has used an attempt.
		pause := core.NewPauses(q.q.c).UpTo(lastRetry)
		for q.q.c.Call("Decode", []any{"path", q.q.path.Full()}, loop) != nil {
			pause.Wait(ctx.Done(), q.q.c.Closing())
		}
	}
	if !q.q.c.GoWork(work) {
		u.End()
		close(ch)
	}
	return ch
}

// receive takes an item for a caller that ends the claim.
func (q *Consumer[T]) receive(ctx context.Context, op string, try bool) (*Item[T], error) {
	for {
		it, err := q.one(ctx, op, try)
		if err != nil || it.claim.receive() {
			return it, err
		}
	}
}

func (q *Consumer[T]) one(ctx context.Context, op string, try bool) (*Item[T], error) {
	items, err := q.some(ctx, op, 1, try)
	if err != nil {
		return nil, err
	}
	return items[0], nil
}

// some takes at least one item and at most want.
func (q *Consumer[T]) some(ctx context.Context, op string, want int, try bool) ([]*Item[T], error) {
	if err := q.q.path.Check(op); err != nil {
		return nil, err
	}
	u := q.q.c.BeginCleanUp()
	defer u.End()
	for {
		claims, err := q.q.request(ctx, op, want, try)
		if err != nil {
			return nil, core.OpError(op, q.q.path.Full(), err)
		}
		items, err := openClaims(ctx, q.codec, claims)
		if err == nil && len(items) > 0 && q.q.c.IsClosing() {
			for _, it := range items {
				it.claim.later(verbGiveBack)
			}
			err = ErrClosed
		}
		if core.IsDecode(err) {
			q.q.awaitGivenBack() // a consumer with the right codec can take them now
		}
		if err != nil {
			return nil, core.OpError(op, q.q.path.Full(), err)
		}
		if len(items) > 0 {
			return items, nil
		}
	}
}

// Peek returns the value of the item that the next Take would get, without taking
// it, or ErrEmpty. Another consumer may take the item at the same moment. Peek
// costs as much as a TryTake without its claim, and the next Take lists the items. It
// skips items that were taken too often, which a Take moves to the dead letters. If the
// item cannot be decoded, the error matches ErrDecode.
func (q *Consumer[T]) Peek(ctx context.Context) (T, error) {
	var zero T
	if err := q.q.path.Check("peek"); err != nil {
		return zero, err
	}
	data, err := core.OnSession(ctx, q.q.c, func(s *core.Session) ([]byte, error) { return q.q.peek(ctx, s) })
	if err != nil {
		return zero, core.OpError("peek", q.q.path.Full(), err)
	}
	v, err := q.codec.decode(data)
	return v, core.OpError("peek", q.q.path.Full(), err)
}

// peek reads the item that the next take would get.
func (q *queue) peek(ctx context.Context, s *core.Session) ([]byte, error) {
	_, data, err := q.first(ctx, s)
	return data, err
}

// first returns the item that the next take would get, and its data.
func (q *queue) first(ctx context.Context, s *core.Session) (*layout.QueueEntry, []byte, error) {
	stuck := q.stuckItems()
	if stuck == nil {
		stuck = make(map[string]time.Time)
	}
	for {
		if err := s.Backend().Sync(ctx, q.items); err != nil {
			return nil, nil, err
		}
		v, err := q.walk(ctx, s, 1, nil, stuck, learnsNow)
		if err != nil {
			return nil, nil, err
		}
		if len(v.found) == 0 {
			return nil, nil, ErrEmpty
		}
		e := &v.found[0]
		if e.State && q.maxAttempts > 0 {
			r, err := readAttempts(ctx, s, e)
			switch {
			case core.IsNotFound(err), errors.Is(err, core.ErrAgain):
				continue
			case err != nil:
				return nil, nil, err
			case r.n >= q.maxAttempts:
				stuck[e.Path()] = time.Now().Add(stickPause) // a take moves it to the dead letters
				continue
			}
		}
		data, _, err := s.Backend().Get(ctx, e.Path(), nil)
		if !core.IsNotFound(err) {
			q.forget() // an earlier list can show a later item as the first
			return e, data, err
		}
	}
}

// Len counts the items, including items that are claimed or not due. It lists the
// whole queue: one request for some hundred items. Items can come and go while it
// counts.
func (q *Consumer[T]) Len(ctx context.Context) (int, error) {
	if err := q.q.path.Check("len"); err != nil {
		return 0, err
	}
	n, err := core.OnSession(ctx, q.q.c, func(s *core.Session) (int, error) {
		if err := s.Backend().Sync(ctx, q.q.items); err != nil {
			return 0, err
		}
		n, err := q.q.countItems(ctx, s)
		if core.IsNotFound(err) {
			return 0, nil
		}
		return n, err
	})
	return n, core.OpError("len", q.q.path.Full(), err)
}

// Purge deletes every item that was in the queue when Purge began and is not
// claimed, and returns their number. It costs about three requests for some hundred
// items, and one or two more for each of them that was taken before. It also
// deletes the nodes that held the items, except the last. The error matches ErrKind
// if another recipe uses the path.
func (q *Consumer[T]) Purge(ctx context.Context) (int, error) {
	if err := q.q.path.Check("purge"); err != nil {
		return 0, err
	}
	total := 0
	_, err := core.OnSessionOnce(ctx, q.q.c, func(s *core.Session) (struct{}, error) {
		if err := s.CheckKind(ctx, q.q.recipeDir()); err != nil {
			return struct{}{}, err
		}
		return struct{}{}, q.q.purge(ctx, s, &total)
	})
	return total, core.OpError("purge", q.q.path.Full(), err)
}

// purge deletes the unclaimed items, bucket after bucket. An item that was never
// claimed is claimed and deleted in one commit, which fails if another consumer has
// claimed the item. For an item that was claimed before, the commit deletes the
// state at the version that was read.
func (q *queue) purge(ctx context.Context, s *core.Session, total *int) error {
	if err := s.Backend().Sync(ctx, q.items); err != nil {
		return err
	}
	err := q.eachBucket(ctx, s, func(b layout.Bucket, last bool, c layout.BucketContents) error {
		claimed := slices.ContainsFunc(c.Items, func(e layout.QueueEntry) bool { return e.Marked })
		for len(c.Items) > 0 {
			n := min(len(c.Items), q.batch(s))
			if err := q.purgeSome(ctx, s, c.Items[:n], total); err != nil {
				return err
			}
			c.Items = c.Items[n:]
		}
		q.sweep(ctx, s, b, c.Litter, !last && !claimed)
		return nil
	})
	if core.IsNotFound(err) {
		return nil
	}
	return err
}

func (q *queue) purgeSome(ctx context.Context, s *core.Session, items []layout.QueueEntry, total *int) error {
	var each [][]backend.Op
	for i := range items {
		e := &items[i]
		ops, err := takeOut(ctx, s, e)
		switch {
		case core.IsNotFound(err), errors.Is(err, core.ErrAgain):
			continue
		case err != nil:
			return err
		}
		each = append(each, ops)
	}
	for len(each) > 0 {
		var ops []backend.Op
		var owner []int
		for i, o := range each {
			ops = append(ops, o...)
			for range o {
				owner = append(owner, i)
			}
		}
		err := q.commitRemoval(ctx, s, items, append(ops, q.counting(len(each))...)...)
		if err == nil {
			*total += len(each)
			return nil
		}
		i := core.Blamed(err)
		if i < 0 {
			return err
		}
		if i >= len(owner) {
			q.counted.Store(false)
			continue
		}
		if rest, ok := withoutReason(each[owner[i]], ops[i].Path); ok {
			each[owner[i]] = rest
			continue
		}
		each = slices.Delete(each, owner[i], owner[i]+1)
	}
	return nil
}

// takeOut returns the operations that delete an item that no consumer has claimed, with its
// other nodes. If a consumer has claimed it since the list, they are refused. If that is
// known already, takeOut returns core.ErrAgain, or ErrNotFound.
func takeOut(ctx context.Context, s *core.Session, e *layout.QueueEntry) ([]backend.Op, error) {
	if e.Marked {
		return nil, core.ErrAgain
	}
	ops := []backend.Op{backend.Delete(e.Path(), backend.AnyVersion)}
	if e.State {
		r, err := readAttempts(ctx, s, e)
		if err != nil {
			return nil, err
		}
		ops = append(ops, backend.Delete(e.StateAt(), r.version))
	} else {
		ops = append(ops, backend.Create(e.StateAt(), nil, backend.Persistent), backend.Delete(e.StateAt(), 0))
	}
	if e.PutOff != "" {
		ops = append(ops, backend.Delete(e.Bucket+"/"+e.PutOff, backend.AnyVersion))
	}
	if e.Reason {
		ops = append(ops, backend.Delete(e.ReasonAt(), backend.AnyVersion))
	}
	return ops, nil
}

// withoutReason removes the operation on the path of a reason. It reports false if path is not
// one. A reason that an outsider has changed is no reason to leave its item.
func withoutReason(ops []backend.Op, path string) (rest []backend.Op, ok bool) {
	if !strings.HasPrefix(core.Base(path), layout.ReasonPrefix) {
		return ops, false
	}
	return slices.DeleteFunc(slices.Clone(ops), func(op backend.Op) bool { return op.Path == path }), true
}

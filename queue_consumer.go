package coord

import (
	"context"
	"errors"
	"iter"
	"sync"
	"time"

	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/queue"

	"github.com/go-coord/coord/internal/core"

	"github.com/go-coord/coord/backend"
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
	q        *queue.Queue
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
			if (err != nil || it.claim.Receive()) && !yield(it, err) {
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
			q.q.AwaitGivenBack()
		}()
		short := core.NewPauses(q.q.Client())
		for alone := true; ctx.Err() == nil; {
			it := st.next()
			if it == nil {
				n := want()
				if n > 1 && alone {
					alone, over = false, st.giveBackAtClose(q.q.Client())
				}
				items, err := q.some(ctx, op, n, false)
				if errs.Answers(err, backend.ErrNoSpace) {
					if short.Count() == 0 {
						q.q.Client().Log().Warn("coord: cannot claim items because the service has no space, retrying", "path", q.q.FullPath(), "error", err)
					}
					short.SkipFirst()
					short.Wait(ctx.Done(), q.q.Client().Closing())
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
				it.claim.GiveBackLater() // ctx has ended during the claim
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
		it.claim.GiveBackLater()
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
	u := q.q.Client().BeginCleanUp()
	loop := func() error {
		for it, err := range q.all(ctx) {
			if err != nil {
				if !errors.Is(err, ErrClosed) {
					q.q.Client().Log().Error("coord: taking items failed, this consumer stops", "path", q.q.FullPath(), "error", err)
				}
				return nil
			}
			late, ok := it.claim.Offer()
			if !ok {
				it.claim.TooLate()
				continue
			}
			select {
			case ch <- it:
				it.claim.Receive()
			case <-late:
				it.claim.GiveBackLater()
			case <-it.Done(): // lost before it was received
			case <-ctx.Done():
				it.claim.GiveBackLater()
			case <-q.q.Client().Closing():
				it.claim.GiveBackLater()
				return nil
			}
		}
		return nil
	}
	work := func() {
		defer u.End()
		defer close(ch)
		// The loop runs the codec. If that does not return, its item has used an attempt.
		pause := core.NewPauses(q.q.Client()).UpTo(lastRetry)
		for q.q.Client().Call("Decode", []any{"path", q.q.FullPath()}, loop) != nil {
			pause.Wait(ctx.Done(), q.q.Client().Closing())
		}
	}
	if !q.q.Client().GoWork(work) {
		u.End()
		close(ch)
	}
	return ch
}

// receive takes an item for a caller that ends the claim.
func (q *Consumer[T]) receive(ctx context.Context, op string, try bool) (*Item[T], error) {
	for {
		it, err := q.one(ctx, op, try)
		if err != nil || it.claim.Receive() {
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
func (q *Consumer[T]) some(ctx context.Context, op string, want int, try bool) (items []*Item[T], err error) {
	var v T
	err = q.q.Some(ctx, op, want, try,
		func(data []byte) (err error) {
			v, err = q.codec.decode(data)
			return err
		},
		func(cl *queue.Claim) {
			it := &Item[T]{Hold: &Hold{cl.Held()}, ID: cl.Id(), Value: v, Attempt: cl.Attempts(), claim: cl}
			if show := q.q.Client().Hooks().Item; show != nil {
				show(it, cl.StopTimer)
			}
			items = append(items, it)
		})
	if err != nil {
		return nil, err
	}
	return items, nil
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
	var v, zero T
	err := q.q.Pop(ctx, func(data []byte) (err error) {
		v, err = q.codec.decode(data)
		return err
	})
	if err != nil {
		return zero, err
	}
	return v, nil
}

// Peek returns the value of the item that the next Take would get, without taking
// it, or ErrEmpty. Another consumer may take the item at the same moment. Peek
// costs as much as a TryTake without its claim, and the next Take lists the items. It
// skips items that were taken too often, which a Take moves to the dead letters. If the
// item cannot be decoded, the error matches ErrDecode.
func (q *Consumer[T]) Peek(ctx context.Context) (T, error) {
	data, err := q.q.Peek(ctx)
	if err != nil {
		var zero T
		return zero, err
	}
	v, err := q.codec.decode(data)
	return v, errs.Op("peek", q.q.FullPath(), err)
}

// Len counts the items, including items that are claimed or not due. It lists the
// whole queue: one request for some hundred items. Items can come and go while it
// counts.
func (q *Consumer[T]) Len(ctx context.Context) (int, error) { return q.q.Length(ctx) }

// Purge deletes every item that was in the queue when Purge began and is not
// claimed, and returns their number. It costs about three requests for some hundred
// items, and one or two more for each of them that was taken before. It also
// deletes the nodes that held the items, except the last. The error matches ErrKind
// if another recipe uses the path.
func (q *Consumer[T]) Purge(ctx context.Context) (int, error) { return q.q.PurgeAll(ctx) }

// QueueStats are the figures of a queue at a moment, for operators. Their nodes are read
// in a few requests, one after the other, so the figures are not a snapshot: an item that
// is claimed, acknowledged or moved meanwhile is counted as it was when its node was read.
// An item that moves to the dead letters at that moment can be counted twice, or not at
// all.
//
// If Ready is positive while Claimed and Waiting are zero, no consumer takes items.
type QueueStats struct {
	Ready   int // items that a consumer can take now
	Claimed int // items that a consumer has claimed, including prefetched items
	Delayed int // items that are not due, or put off by Nack

	// Dead is the number of items in the queue at DeadLetterPath, whatever their state
	// and whichever queue they come from.
	Dead int

	// Oldest is the age of the oldest ready item, by the clock of the service. The age counts
	// from the Put, and in a DelayQueue from the due time if that is later. A failed delivery
	// does not reset it. Oldest is zero if no item is ready, or if the ready items were taken
	// during the call.
	//
	// In a PriorityQueue with ready items of more than 16 priorities, only the 16 priorities
	// that are taken last count, or fewer if a Redrive has put items back. In a DelayQueue into
	// which more than 16 items were put after their due times, Oldest can be too low.
	Oldest time.Duration

	// Waiting is the number of clients that wait for an item because they found none. It
	// counts a queue value of a client once, however many of its calls wait, and a dead
	// client until its session ends. It does not count consumers that work on an item.
	Waiting int

	// Buckets is the number of nodes that hold the items, 256 each in a long Queue. It is
	// zero if nothing was ever put. One remains when the queue is empty.
	Buckets int

	// Unread is the number of such nodes, of the queue and of its dead letters, that Stats
	// did not read: it reads the first 256 nodes of each, in the order in which items are
	// taken. If Unread is not zero, then Ready, Claimed, Delayed, Dead and Oldest are lower
	// bounds. Len counts the items of a queue of any length.
	Unread int
}

// Stats returns the figures of the queue. It works for a queue of any kind and on a path
// without a queue, where all figures are zero. It changes nothing in the queue, and
// needs only the permission to read the queue and its dead letters.
//
// The number of requests is bounded, whatever the length of the queue: a Sync, one for the
// directories, one for some 16 to 64 nodes that hold items (each of some hundred items, and
// at most 512 of them are read), and one for Oldest; in a PriorityQueue one for each
// priority with ready items, at most 16. That is some 8 requests for a queue of 50,000
// items. A service without batches takes one request for each node. If there are
// unclaimed items and the client does not know the time of the service, which it learns
// from its writes, a small write is added; see DelayQueue. The replies amount to about
// 70 bytes for each item that is read.
//
// Errors: the context's; ErrClosed; ErrDenied; ErrBadPath.
func (q *Consumer[T]) Stats(ctx context.Context) (QueueStats, error) {
	st, err := q.q.ReadStats(ctx)
	return QueueStats(st), err
}

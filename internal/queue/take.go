package queue

import (
	"context"
	"errors"
	"iter"
	"sync"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/core"
)

// Taker is the taking side of a queue. Its methods are those of Consumer of package coord. I is the form of
// an item for callers.
type Taker[I any] struct {
	q    *Queue
	open func(cl *Claim, data []byte) (I, error)
}

// NewTaker returns the taking side of q. open decodes the bytes of an item, and returns its form for
// callers.
func NewTaker[I any](q *Queue, open func(cl *Claim, data []byte) (I, error)) *Taker[I] {
	return &Taker[I]{q, open}
}

// taken is a claimed item, and its form for callers.
type taken[I any] struct {
	*Claim
	item I
}

// Take takes an item for a caller that ends the claim. With try it returns ErrEmpty instead of
// waiting.
func (t *Taker[I]) Take(ctx context.Context, op string, try bool) (I, error) {
	for {
		items, err := t.some(ctx, op, 1, try, nil)
		if err != nil {
			var none I
			return none, err
		}
		if items[0].receive() {
			return items[0].item, nil
		}
	}
}

// some takes at least one item and at most want. in is the intake of Work, or nil.
func (t *Taker[I]) some(ctx context.Context, op string, want int, try bool, in *intake) (items []*taken[I], err error) {
	var item I
	err = t.q.some(ctx, op, want, try, in,
		func(cl *Claim, data []byte) (err error) {
			item, err = t.open(cl, data)
			return err
		},
		func(cl *Claim) {
			if show := t.q.c.Hooks().Item; show != nil {
				show(item, cl.stopTimer)
			}
			items = append(items, &taken[I]{cl, item})
		})
	if err != nil {
		return nil, err
	}
	return items, nil
}

// All is Consumer.All of package coord.
func (t *Taker[I]) All(ctx context.Context) iter.Seq2[I, error] {
	core.NeedContext(ctx)
	return func(yield func(I, error) bool) {
		for it, err := range t.all(ctx) {
			if err != nil {
				var none I
				yield(none, err)
				return
			}
			if it.receive() && !yield(it.item, nil) {
				return
			}
		}
	}
}

func (t *Taker[I]) all(ctx context.Context) iter.Seq2[*taken[I], error] {
	return t.each(ctx, "all", func() int { return t.q.prefetch }, nil)
}

// each is the loop of All and Work. It claims up to want items at a time; in is the intake of Work, or nil. The
// body must call receive when its caller gets an item.
func (t *Taker[I]) each(ctx context.Context, op string, want func() int, in *intake) iter.Seq2[*taken[I], error] {
	c := t.q.c
	return func(yield func(*taken[I], error) bool) {
		st := &stock[I]{}
		over := func() {} // joins the goroutine that gives the stock back when the client closes
		defer func() { over() }()
		defer func() { // before Close continues
			st.giveBack()
			in.end()
			t.q.awaitGivenBack()
		}()
		short := core.NewShortage(c, "claim items", t.q.path.Full())
		if in != nil {
			short.Early = in.came
		}
		for alone := true; ctx.Err() == nil; {
			it := st.next()
			if it == nil {
				n := want()
				if n > 1 && alone {
					alone, over = false, st.giveBackAtClose(c)
				}
				items, err := t.some(ctx, op, n, false, in)
				if short.Waited(ctx, err) {
					continue
				}
				if err != nil {
					if ctx.Err() == nil {
						yield(nil, err)
					}
					return
				}
				it = st.fill(items)
			}
			if it == nil || it.hold.Err() != nil {
				continue // lost while it was in stock
			}
			if ctx.Err() != nil {
				it.later(verbGiveBack) // ctx has ended during the claim
				return
			}
			if !yield(it, nil) {
				return
			}
		}
	}
}

// stock holds the prefetched items that are not handed out yet.
type stock[I any] struct {
	mu    sync.Mutex
	ready []*taken[I]
	over  bool // no item is handed out any more
}

// fill adds items, and takes the first one out.
func (st *stock[I]) fill(items []*taken[I]) *taken[I] {
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
func (st *stock[I]) next() *taken[I] {
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
func (st *stock[I]) giveBack() {
	st.mu.Lock()
	ready := st.ready
	st.ready, st.over = nil, true
	st.mu.Unlock()
	for _, it := range ready {
		it.later(verbGiveBack)
	}
}

// giveBackAtClose gives the stock back when the client closes, before its session
// ends, unless the loop is over first, which calls the returned function. It needs a
// goroutine of its own because the body of the loop may be running at that time.
func (st *stock[I]) giveBackAtClose(c *core.Client) (over func()) {
	return c.Beside(func(over <-chan struct{}) {
		select {
		case <-c.Closing():
			st.giveBack()
		case <-over:
		}
	})
}

// Items is Consumer.Items of package coord. One goroutine sends the items, and closes the channel.
func (t *Taker[I]) Items(ctx context.Context) <-chan I {
	core.NeedContext(ctx)
	c := t.q.c
	ch := make(chan I)
	u := c.BeginCleanUp()
	loop := func() error {
		for it, err := range t.all(ctx) {
			if err != nil {
				if !errors.Is(err, backend.ErrClosed) {
					c.Log().Error("coord: taking items failed, this consumer stops", "path", t.q.path.Full(), "error", err)
				}
				return nil
			}
			late, ok := it.offer()
			if !ok {
				it.tooLate()
				continue
			}
			select {
			case ch <- it.item:
				it.receive()
			case <-late:
				it.later(verbGiveBack)
			case <-it.hold.Done(): // lost before it was received
			case <-ctx.Done():
				it.later(verbGiveBack)
			case <-c.Closing():
				it.later(verbGiveBack)
				return nil
			}
		}
		return nil
	}
	work := func() {
		defer u.End()
		defer close(ch)
		// The loop runs the codec. If that does not return, its item has used an attempt.
		pause := core.NewPauses(c).UpTo(lastRetry)
		for c.Call("Decode", []any{"path", t.q.path.Full()}, loop) != nil {
			pause.Wait(ctx.Done(), c.Closing())
		}
	}
	if !c.GoWork(work) {
		u.End()
		close(ch)
	}
	return ch
}

package sweep

import (
	"context"
	"errors"
	"sync"

	"github.com/go-coord/coord"
)

// ledger records the calls on the values of a queue.
type ledger struct {
	x       *cell
	mu      sync.Mutex
	sure    map[string]string              // by value: the id of a certain put
	maybe   map[string]bool                // values of puts of unknown outcome
	got     map[string]int                 // deliveries by value
	excused map[string]int                 // deliveries after which another one is allowed
	gone    map[string]bool                // acknowledged for certain, or popped
	id      map[string]string              // by value: the id of the first delivery
	owner   map[string]*coord.Item[string] // by value: the latest delivery
	holder  map[string]*player             // by value: the player of that delivery
	order   []string                       // values in the order of their first deliveries
	pops    int                            // pops of unknown outcome
}

func (x *cell) ledger() *ledger {
	return on(x, "ledger", func() *ledger {
		return &ledger{x: x, sure: make(map[string]string), maybe: make(map[string]bool), got: make(map[string]int),
			excused: make(map[string]int), gone: make(map[string]bool), id: make(map[string]string),
			owner: make(map[string]*coord.Item[string]), holder: make(map[string]*player)}
	})
}

// put records the result of putting values.
func (l *ledger) put(p *player, ids []string, err error, values ...string) {
	ok := p.ok("put", err, coord.ErrUncertain)
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, v := range values {
		switch {
		case ok || i < len(ids) && len(values) > 1:
			l.sure[v] = ids[i]
		default:
			l.maybe[v] = true
		}
	}
}

// deliver records the delivery of an item.
func (l *ledger) deliver(p *player, it *coord.Item[string]) {
	l.mu.Lock()
	defer l.mu.Unlock()
	v := it.Value
	switch id, sure := l.sure[v]; {
	case sure && id != it.ID:
		l.x.violation("%q was put as %s, is %s", v, id, it.ID)
	case l.id[v] != "" && l.id[v] != it.ID:
		l.x.violation("%q is in the queue twice, as %s and %s", v, l.id[v], it.ID)
	}
	l.id[v] = it.ID
	if l.got[v] == 0 {
		l.order = append(l.order, v)
	}
	l.got[v]++
	if l.gone[v] {
		l.x.violation("%q is delivered after it was acknowledged", v)
	}
	before := l.holder[v]
	l.owner[v], l.holder[v] = it, p
	// The service gives an item to the next consumer before it notifies the one that has lost
	// it.
	if l.got[v] > l.excused[v]+1 && !before.lost() {
		l.x.violation("%q is delivered again, to %s as attempt %d, without a reason", v, p.name, it.Attempt)
	}
	if it.Attempt > l.got[v] && !l.x.lossy() {
		l.x.violation("%q: attempt %d, delivery %d", v, it.Attempt, l.got[v])
	}
}

// acked records the result of an Ack.
func (l *ledger) acked(p *player, it *coord.Item[string], err error) {
	ok := p.ok("ack", err, coord.ErrLost)
	l.mu.Lock()
	defer l.mu.Unlock()
	v := it.Value
	if !ok {
		l.excused[v]++
		return
	}
	l.gone[v] = true
	if l.owner[v] != it {
		l.x.violation("%s has acknowledged %q, which %s had by then", p.name, v, l.holder[v].name)
	}
}

// consume takes and acknowledges until ctx ends.
func (l *ledger) consume(ctx context.Context, p *player, q *coord.Consumer[string], work func(it *coord.Item[string]) (nack bool)) {
	for l.x.going() && ctx.Err() == nil {
		it, err := q.Take(ctx)
		if err != nil && ctx.Err() != nil && errors.Is(err, context.Canceled) {
			return
		}
		if !p.ok("take", err) {
			return
		}
		l.deliver(p, it)
		if work != nil && work(it) {
			l.mu.Lock()
			l.excused[it.Value]++
			l.mu.Unlock()
			p.ok("nack", it.Nack(0), coord.ErrLost)
			continue
		}
		l.acked(p, it, it.Ack())
	}
}

// work handles items by Work until ctx ends. It calls each, which may be nil, with the number of each delivery; its
// error is that of the handler.
func (l *ledger) work(ctx context.Context, p *player, q *coord.Consumer[string], n int, each func(nth int, it *coord.Item[string]) error) {
	var mu sync.Mutex
	var done []*coord.Item[string]
	nth := 0
	err := q.Work(ctx, n, func(_ context.Context, it *coord.Item[string]) error {
		l.deliver(p, it)
		mu.Lock()
		defer mu.Unlock()
		nth++
		if each != nil {
			if err := each(nth, it); err != nil {
				l.mu.Lock()
				l.excused[it.Value]++
				l.mu.Unlock()
				return err
			}
		}
		done = append(done, it)
		return nil
	})
	for _, it := range done {
		l.acked(p, it, it.Ack()) // the result of the Ack of Work
	}
	p.ok("work", err)
}

// drained waits until the producers are done and no item is left, and then ends ctx.
func (l *ledger) drained(parts []func(), stop context.CancelFunc) {
	l.x.together(parts...)
	l.x.until("the queue is empty", func() bool { return l.x.count("/q/items/", "/i-") == 0 })
	stop()
}

// check verifies that every value put was delivered.
func (l *ledger) check() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for v := range l.sure {
		if l.got[v] == 0 && l.x.going() {
			l.x.violation("%q was put and never delivered", v)
		}
	}
	for v := range l.got {
		if _, ok := l.sure[v]; !ok && !l.maybe[v] {
			l.x.violation("%q was never put", v)
		}
	}
}

package coord_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-coord/coord"
)

// queueScenario is a queue of one kind.
func queueScenario(kind string, share int) *scenario {
	const at = "/sim/q"
	must := []string{"put", "uncertain put", "delivered", "again", "ack", "uncertain ack", "nack", "release", "loss", "gave up", "empty", "cancel", "outsider's delete"}
	if kind == "dead letters" {
		must = append(must, "dead letter")
	}
	return &scenario{
		name: "queue, " + kind, share: share, clients: 4, dir: at + "/waiters", must: must,
		play: func(x *sim) {
			q := &queuePlay{simulation: simulation{t: x.simulation.t, seed: x.arbiter.seed, count: make(map[string]int)}, l: newLedger(), kind: kind}
			x.queue = q
			x.producing = 2
			ctx, cancel := context.WithCancel(context.Background())
			x.stop = cancel
			for i := range 2 {
				x.act("producer", i, func(a *actor) {
					x.produce(a, q, i)
					x.mu().Lock()
					x.producing--
					x.mu().Unlock()
				})
				x.act("consumer", 2+i, func(a *actor) { x.consume(ctx, a, q) })
			}
			x.act("looker", 0, func(a *actor) {
				for {
					a.linger(40)
					x.mu().Lock()
					busy := x.producing > 0
					x.mu().Unlock()
					if busy {
						continue
					}
					n, err := newSimQueue(a.client(), at, kind, coord.QueueOptions[int]{}).Len(context.Background())
					switch {
					case err != nil:
						if !a.excused(err) {
							a.errorf("len: %v", err)
							cancel()
							return
						}
					case n == 0:
						cancel()
						return
					}
				}
			})
		},
		finish: func(x *sim, a *actor) {
			dead := coord.NewQueue[int](a.client(), at+"/dead", nil)
			for {
				it, err := dead.TryTake(context.Background())
				if errors.Is(err, coord.ErrEmpty) {
					break
				}
				if err != nil {
					a.errorf("dead letters: %v", err)
					break
				}
				if kind != "dead letters" {
					a.errorf("a dead letter: %d", it.Value)
				}
				a.note("dead letter")
				x.queue.l.ended(it, it.Ack())
			}
			if _, err := newSimQueue(a.client(), at, kind, coord.QueueOptions[int]{}).TryTake(context.Background()); !errors.Is(err, coord.ErrEmpty) {
				a.errorf("in the end: %v", err)
			}
		},
		end: func(x *sim) {
			for _, wrong := range x.queue.l.check() {
				x.errorf("%s", wrong)
			}
			x.empty(at + "/waiters")
			buckets, _, _ := x.truth.Children(context.Background(), at+"/items", nil)
			for _, b := range buckets {
				x.empty(at + "/items/" + b)
			}
		},
	}
}

// produce puts some values of its own.
func (x *sim) produce(a *actor, q *queuePlay, who int) {
	for n := 0; n < 6; {
		vs := []int{who*1000 + n}
		for len(vs) < 3 && n+len(vs) < 6 && a.r.IntN(3) == 0 {
			vs = append(vs, vs[0]+len(vs))
		}
		n += len(vs)
		var ids []string
		a.say("put")
		ids, err := newSimQueue(a.client(), "/sim/q", q.kind, coord.QueueOptions[int]{}).putAll(context.Background(), a.r, vs...)
		for i, v := range vs {
			if i < len(ids) {
				q.l.did(v, nil)
			} else {
				q.l.did(v, err)
			}
		}
		switch {
		case err == nil:
			a.note("put")
		case errors.Is(err, coord.ErrUncertain):
			a.note("uncertain put")
		case errors.Is(err, coord.ErrClosed):
			a.note("closed")
		default:
			a.errorf("put: %v", err)
		}
		a.linger(3)
	}
}

// consume takes until ctx ends.
func (x *sim) consume(ctx context.Context, a *actor, q *queuePlay) {
	for ctx.Err() == nil {
		c := newSimQueue(a.client(), "/sim/q", q.kind, coord.QueueOptions[int]{Prefetch: 1 + a.r.IntN(3)})
		var items []*coord.Item[int]
		how := a.r.IntN(5)
		a.try("take", func(own context.Context) error {
			own, cancel := context.WithCancel(own)
			defer cancel()
			if ctx.Err() != nil {
				cancel()
			}
			defer context.AfterFunc(ctx, cancel)()
			switch how {
			case 0:
				it, err := c.TryTake(own)
				if errors.Is(err, coord.ErrEmpty) {
					a.note("empty")
					return nil
				}
				items = append(items, it)
				return err
			case 1:
				for it, err := range c.All(own) {
					if err != nil {
						return err
					}
					if x.consumed(a, q, it); a.r.IntN(2) == 0 {
						break
					}
				}
				return nil
			default:
				it, err := c.Take(own)
				items = append(items, it)
				return err
			}
		})
		for _, it := range items {
			if it != nil {
				x.consumed(a, q, it)
			}
		}
		a.pause()
	}
}

// consumed does something with an item.
func (x *sim) consumed(a *actor, q *queuePlay, it *coord.Item[int]) {
	q.l.took(it)
	a.note("delivered")
	a.say(fmt.Sprint(it.Value, " attempt ", it.Attempt))
	if it.Attempt > 1 {
		x.note("again")
	}
	a.linger(3)
	switch a.r.IntN(6) {
	case 0:
		if it.Nack(0) == nil {
			a.note("nack")
		}
		return
	case 1:
		if it.Release() == nil {
			a.note("release")
		}
		return
	}
	err := it.Ack()
	q.l.ended(it, err)
	if errors.Is(it.Err(), coord.ErrLost) {
		x.note("loss")
	}
	switch {
	case err == nil:
		a.note("ack")
	case !errors.Is(err, coord.ErrLost):
		a.errorf("ack: %v", err)
	case errors.Is(err, coord.ErrUncertain):
		a.note("uncertain ack")
	}
}

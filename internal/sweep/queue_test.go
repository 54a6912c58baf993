package sweep

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
)

// emptied: a queue at rest has no item, no claim, no count and no waiter.
func emptied(paths []string) string {
	for _, p := range paths {
		for _, kind := range []string{"/i-", "/s-", "/m-", "/d-", "/r-", "/o-", "/take-"} {
			if strings.HasPrefix(p, "/q/") && !strings.HasPrefix(p, "/q/dead/") && strings.Contains(p, kind) {
				return "left in the queue: " + p
			}
		}
	}
	return ""
}

// noLetters is emptied, with the dead letters.
func noLetters(paths []string) string {
	for _, p := range paths {
		if strings.HasPrefix(p, "/q/dead/") && (strings.Contains(p, "/i-") || strings.Contains(p, "/r-")) {
			return "left in the dead letters: " + p
		}
	}
	return emptied(paths)
}

func freshQueue(o *coord.QueueOptions[string]) func(x *cell, p *player) {
	return func(x *cell, p *player) {
		q := coord.NewQueue(p.c, "/q", o)
		id, err := q.Put(x.ctx, "fresh")
		if !p.ok("put", err) {
			return
		}
		it, err := q.Take(x.ctx)
		if !p.ok("take", err) {
			return
		}
		if it.ID != id || it.Value != "fresh" || it.Attempt != 1 {
			x.violation("a fresh client put %s and took %+v", id, it)
		}
		p.ok("ack", it.Ack())
	}
}

func queue() *recipe {
	opts := &coord.QueueOptions[string]{MaxAttempts: 2}
	return &recipe{
		name: "queue", players: []string{"a", "b", "c"},
		play: func(x *cell) {
			a, b, c := x.by["a"], x.by["b"], x.by["c"]
			l := x.ledger()
			ctx, stop := context.WithCancel(x.ctx)
			defer stop()
			work := func(it *coord.Item[string]) bool { return it.Value == "bad" || it.Value == "again" && it.Attempt == 1 }
			var all []chan struct{}
			for _, p := range []*player{b, c} {
				q := coord.NewQueue(p.c, "/q", opts)
				all = append(all, x.asked(p, 2, func() { l.consume(ctx, p, &q.Consumer, work) }))
			}
			q := coord.NewQueue(a.c, "/q", opts)
			l.drained([]func(){func() {
				for i, v := range []string{"one", "again", "bad", "two"} {
					id, err := q.Put(x.ctx, v)
					l.put(a, []string{id}, err, v)
					if i == 1 {
						x.rest()
					}
				}
			}}, stop)
			for _, done := range all {
				<-done
			}
			// "bad" is in the dead letters once.
			dead := coord.NewQueue(a.c, "/q/dead", &coord.QueueOptions[string]{})
			n := 0
			for x.going() {
				it, err := dead.TryTake(x.ctx)
				if errors.Is(err, coord.ErrEmpty) {
					break
				}
				if !a.ok("take a dead letter", err) {
					break
				}
				if work(it) || x.lossy() { // attempts of lost sessions count as well
					if it.ID != l.id[it.Value] {
						x.violation("a dead letter has another id: %+v", it)
					}
				} else {
					x.violation("%q is a dead letter", it.Value)
				}
				if a.ok("ack a dead letter", it.Ack(), coord.ErrLost) {
					n++
				}
			}
			if n != 1 && !x.lossy() && x.going() {
				x.violation("%d dead letters, want 1", n)
			}
			l.check()
		},
		fresh: freshQueue(opts),
		rests: emptied,
	}
}

// work: items of a backlog are handled by Work, whose Acks claim the next items. The first Work ends while such an
// item comes. Then two clients compete for the rest.
func work() *recipe {
	opts := &coord.QueueOptions[string]{MaxAttempts: 3, MaxLen: 100}
	return &recipe{
		name: "work", players: []string{"a", "b"},
		answered: func(p *player, c backendtest.Call, err error) {
			acks, claims := false, false
			for _, op := range c.Ops {
				acks = acks || op.Kind == backend.OpDelete && strings.Contains(op.Path, "/i-")
				claims = claims || op.Kind == backend.OpCreate && strings.Contains(op.Path, "/m-")
			}
			if !acks || !claims {
				return
			}
			if err == nil {
				p.nexts.Add(1)
			}
			on(p.x, "second", func() *second { return new(second) }).came()
		},
		play: func(x *cell) {
			a, b := x.by["a"], x.by["b"]
			l := x.ledger()
			values := []string{"one", "two", "three", "four", "five", "six", "seven", "eight"}
			ids, err := coord.NewQueue(a.c, "/q", opts).PutAll(x.ctx, values...)
			l.put(a, ids, err, values...)
			x.rest()
			if err != nil && x.count("/q/items/", "/i-") == 0 {
				return // there is nothing to handle
			}
			ctx, stop := context.WithCancel(x.ctx)
			on(x, "second", func() *second { return new(second) }).then(stop)
			l.work(ctx, a, &coord.NewQueue(a.c, "/q", opts).Consumer, 1, func(nth int, _ *coord.Item[string]) error {
				if nth == 4 {
					stop() // the fault has delayed or refused these commits
				}
				return nil
			})
			stop()
			x.until("the item that no handler has got is back", func() bool { return x.count("/q/items/", "/m-") == 0 })
			ctx, stop = context.WithCancel(x.ctx)
			defer stop()
			x.together(
				func() { l.work(ctx, a, &coord.NewQueue(a.c, "/q", opts).Consumer, 1, nil) },
				func() { l.work(ctx, b, &coord.NewQueue(b.c, "/q", opts).Consumer, 2, nil) },
				func() { l.drained(nil, stop) },
			)
			l.check()
			if x.spot.fault == noFault && a.nexts.Load() < 2 {
				x.violation("%d commits have acknowledged an item and claimed the next one", a.nexts.Load())
			}
		},
		fresh: freshQueue(opts),
		rests: emptied,
	}
}

// second calls a function at its second event.
type second struct {
	mu sync.Mutex
	n  int
	f  func()
}

func (s *second) then(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.f = f
}

func (s *second) came() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.n++; s.n == 2 {
		s.f()
	}
}

// redrive: items become dead letters, one of them is removed, and the others go back.
func redrive() *recipe {
	opts := &coord.QueueOptions[string]{MaxAttempts: 1}
	return &recipe{
		name: "redrive", players: []string{"a", "b"},
		play: func(x *cell) {
			a, b := x.by["a"], x.by["b"]
			l := x.ledger()
			q := coord.NewQueue(a.c, "/q", opts)
			for _, v := range []string{"one", "two", "three"} {
				id, err := q.Put(x.ctx, v)
				l.put(a, []string{id}, err, v)
			}
			x.until("all are dead letters", func() bool {
				for x.going() {
					it, err := q.TryTake(x.ctx)
					if errors.Is(err, coord.ErrEmpty) || !a.ok("take", err) {
						break
					}
					a.ok("nack", it.NackCause(0, errors.New("bad")), coord.ErrLost)
				}
				return x.count("/q/items/", "/i-") == 0
			})
			x.rest()
			mine := coord.NewQueue(b.c, "/q", opts)
			ids := make(map[string]string)
			for d, err := range mine.Dead(x.ctx) {
				if !b.ok("list the dead letters", err) {
					return
				}
				if ids[d.Value] != "" || l.sure[d.Value] != "" && l.sure[d.Value] != d.ID || d.Reason == "" || d.Attempts != 1 {
					x.violation("dead letter %+v", d)
				}
				ids[d.Value] = d.ID
			}
			for v := range l.sure {
				if ids[v] == "" && x.going() {
					x.violation("%q is no dead letter", v)
				}
			}
			if ids["two"] != "" {
				if !b.ok("remove", mine.Remove(x.ctx, ids["two"]), coord.ErrUncertain) && x.going() {
					if err := mine.Remove(x.ctx, ids["two"]); !errors.Is(err, coord.ErrNotFound) {
						b.ok("remove again", err)
					}
				}
				delete(ids, "two")
				delete(l.sure, "two")
			}
			moved := 0
			for x.going() {
				n, err := mine.Redrive(x.ctx)
				if moved += n; b.ok("redrive", err, coord.ErrUncertain) {
					break
				}
			}
			if x.going() && (moved > len(ids) || moved < len(ids) && !b.lost()) {
				x.violation("%d of %d dead letters were put back", moved, len(ids))
			}
			if n := x.count("/q/items/", "/i-"); n != len(ids) && x.going() {
				x.violation("%d items are in the queue, want %d", n, len(ids))
			}
			x.rest()
			ctx, stop := context.WithCancel(x.ctx)
			defer stop()
			taker := coord.NewQueue(a.c, "/q", &coord.QueueOptions[string]{})
			x.together(
				func() { l.consume(ctx, a, &taker.Consumer, nil) },
				func() { l.drained(nil, stop) },
			)
			l.check()
			if l.got["two"] > 0 {
				x.violation("an item came back that was removed")
			}
		},
		fresh: freshQueue(nil),
		rests: noLetters,
	}
}

// outcomes: items have options, and handlers bury them or choose the delay. Redrives put the dead letters back, with
// their options, until all items are acknowledged.
func outcomes() *recipe {
	const (
		attempts = 2 // MaxAttempts of the queue
		delay    = 20 * time.Millisecond
	)
	opts := &coord.QueueOptions[string]{MaxAttempts: attempts}
	most := map[string]int{"once": 1, "often": 3, "bad": attempts}
	return &recipe{
		name: "outcomes", players: []string{"a", "b"},
		play: func(x *cell) {
			a, b := x.by["a"], x.by["b"]
			l := x.ledger()
			q, taker := coord.NewQueue(a.c, "/q", opts), coord.NewQueue(b.c, "/q", opts)
			for _, v := range []string{"once", "often", "bad"} {
				var o *coord.PutOptions
				if most[v] != attempts {
					o = &coord.PutOptions{MaxAttempts: most[v]}
				}
				id, err := q.PutWith(x.ctx, v, o)
				l.put(a, []string{id}, err, v)
			}
			x.rest()
			var due time.Time // of the item that the handler has put off
			for round := 0; x.going(); round++ {
				got := make(map[string]int) // deliveries in this round
				ctx, stop := context.WithCancel(x.ctx)
				x.together(
					func() {
						l.work(ctx, b, &taker.Consumer, 1, func(_ int, it *coord.Item[string]) error {
							v := it.Value
							if it.Attempt > most[v] {
								x.violation("attempt %d of %q, which has %d", it.Attempt, v, most[v])
							}
							if early := time.Until(due); v == "often" && early > time.Millisecond && !x.lossy() {
								x.violation("%q was taken %v too early", v, early)
							}
							got[v]++
							switch {
							case v == "bad" && round == 0:
								return coord.Bury(errors.New("bad"))
							case v == "once" && round < 2:
								return errors.New("failed")
							case v == "often" && round == 0 && got[v] < most[v]:
								due = time.Now().Add(delay)
								return coord.RetryAfter(delay, nil)
							}
							return nil
						})
					},
					func() { l.drained(nil, stop) },
				)
				var dead []string
				for d, err := range q.Dead(x.ctx) {
					if !a.ok("list the dead letters", err) {
						return
					}
					if d.Attempts > most[d.Value] || d.Attempts < most[d.Value] && d.Error != "bad" {
						x.violation("a dead letter after %d attempts of %d: %+v", d.Attempts, most[d.Value], d)
					}
					dead = append(dead, fmt.Sprintf("%s %d", d.Value, got[d.Value]))
				}
				// The deliveries of the dead letters, and of the item that a handler has put off.
				want := []string{"[bad 1 once 1] 3", "[once 1] 0", "[] 0"}
				slices.Sort(dead)
				if is := fmt.Sprint(dead, got["often"]); x.going() && !x.lossy() && len(l.sure) == len(most) && (round >= len(want) || is != want[round]) {
					x.violation("dead letters and deliveries in round %d: %s", round, is)
				}
				if len(dead) == 0 {
					break
				}
				for x.going() {
					if _, err := q.Redrive(x.ctx); a.ok("redrive", err, coord.ErrUncertain) {
						break
					}
				}
			}
			l.check()
		},
		fresh: freshQueue(opts),
		rests: noLetters,
	}
}

func putAll() *recipe {
	return &recipe{
		name: "putall", players: []string{"a", "b"},
		play: func(x *cell) {
			a, b := x.by["a"], x.by["b"]
			l := x.ledger()
			ctx, stop := context.WithCancel(x.ctx)
			defer stop()
			taker := coord.NewQueue(b.c, "/q", &coord.QueueOptions[string]{})
			done := x.asked(b, 2, func() { l.consume(ctx, b, &taker.Consumer, nil) })
			q := coord.NewQueue(a.c, "/q", &coord.QueueOptions[string]{})
			var want []string
			l.drained([]func(){func() {
				for i := range 3 {
					values := []string{fmt.Sprint(i, "x"), fmt.Sprint(i, "y"), fmt.Sprint(i, "z")}
					ids, err := q.PutAll(x.ctx, values...)
					l.put(a, ids, err, values...)
					want = append(want, values...)
					if i == 0 {
						x.rest()
					}
				}
			}}, stop)
			<-done
			l.check()
			if !x.lossy() && x.going() && strings.Join(l.order, " ") != strings.Join(want, " ") {
				x.violation("taken in the order %v, put as %v", l.order, want)
			}
			// A commit puts all of its values or none.
			for i := range 3 {
				if n := l.got[fmt.Sprint(i, "x")]; x.going() && (n == 0) != (l.got[fmt.Sprint(i, "z")] == 0) {
					x.violation("a part of a batch was put: %v", l.order)
				}
			}
		},
		fresh: freshQueue(nil), rests: emptied,
	}
}

func priorityQueue() *recipe {
	return &recipe{
		name: "priorityqueue", players: []string{"a", "b"},
		play: func(x *cell) {
			a, b := x.by["a"], x.by["b"]
			l := x.ledger()
			q := coord.NewPriorityQueue(a.c, "/q", &coord.QueueOptions[string]{})
			for _, n := range []int64{3, 1, 2, 1} {
				v := fmt.Sprint(n, "-", len(l.sure)+len(l.maybe))
				id, err := q.Put(x.ctx, n, v)
				l.put(a, []string{id}, err, v)
			}
			x.rest()
			ctx, stop := context.WithCancel(x.ctx)
			defer stop()
			taker := coord.NewPriorityQueue(b.c, "/q", &coord.QueueOptions[string]{})
			x.together(
				func() { l.consume(ctx, b, &taker.Consumer, nil) },
				func() { l.drained(nil, stop) },
			)
			l.check()
			if got := strings.Join(l.order, " "); !x.lossy() && x.going() && got != "1-1 1-3 2-2 3-0" {
				x.violation("taken in the order %s", got)
			}
		},
		fresh: func(x *cell, p *player) {
			q := coord.NewPriorityQueue(p.c, "/q", &coord.QueueOptions[string]{})
			for _, n := range []int64{2, 1} {
				_, err := q.Put(x.ctx, n, fmt.Sprint(n))
				p.ok("put", err)
			}
			for _, want := range []string{"1", "2"} {
				v, err := q.Pop(x.ctx)
				if p.ok("pop", err) && v != want {
					x.violation("popped %s, want %s", v, want)
				}
			}
		},
		rests: emptied,
	}
}

func delayQueue() *recipe {
	return &recipe{
		name: "delayqueue", players: []string{"a", "b"},
		play: func(x *cell) {
			a, b := x.by["a"], x.by["b"]
			l := x.ledger()
			ctx, stop := context.WithCancel(x.ctx)
			defer stop()
			due := make(map[string]time.Time)
			var mu sync.Mutex
			taker := coord.NewDelayQueue(b.c, "/q", &coord.QueueOptions[string]{})
			done := x.asked(b, 2, func() {
				l.consume(ctx, b, &taker.Consumer, func(it *coord.Item[string]) bool {
					mu.Lock()
					defer mu.Unlock()
					if early := time.Until(due[it.Value]); early > time.Millisecond {
						x.violation("%q was taken %v too early", it.Value, early)
					}
					return false
				})
			})
			q := coord.NewDelayQueue(a.c, "/q", &coord.QueueOptions[string]{})
			l.drained([]func(){func() {
				for i, d := range []time.Duration{60 * time.Millisecond, 0, 30 * time.Millisecond} {
					v := d.String()
					at := time.Now().Add(d)
					mu.Lock()
					due[v] = at
					mu.Unlock()
					id, err := q.Put(x.ctx, at, v)
					l.put(a, []string{id}, err, v)
					if i == 1 {
						x.rest()
					}
				}
			}}, stop)
			<-done
			l.check()
		},
		fresh: func(x *cell, p *player) {
			q := coord.NewDelayQueue(p.c, "/q", &coord.QueueOptions[string]{})
			_, err := q.Put(x.ctx, time.Now(), "fresh")
			p.ok("put", err)
			v, err := q.Pop(x.ctx)
			if p.ok("pop", err) && v != "fresh" {
				x.violation("popped %q", v)
			}
		},
		rests: emptied,
	}
}

func maxLen() *recipe {
	const most = 2
	opts := &coord.QueueOptions[string]{MaxLen: most}
	return &recipe{
		name: "maxlen", players: []string{"a", "b", "c"},
		play: func(x *cell) {
			a, b, c := x.by["a"], x.by["b"], x.by["c"]
			l := x.ledger()
			put := func(p *player, values ...string) {
				q := coord.NewQueue(p.c, "/q", opts)
				for _, v := range values {
					id, err := q.Put(x.ctx, v)
					l.put(p, []string{id}, err, v)
				}
				x.step(p.name + " has put all")
			}
			put(a, "a0", "a1")
			full := x.count("/q/items/", "/i-") == most
			refuse := coord.NewQueue(b.c, "/q", &coord.QueueOptions[string]{MaxLen: most, FailWhenFull: true})
			if _, err := refuse.Put(x.ctx, "refused"); full && !errors.Is(err, coord.ErrFull) && x.going() {
				x.violation("a full queue takes another item: %v", err)
			} else if err == nil || errors.Is(err, coord.ErrUncertain) {
				l.mu.Lock()
				l.maybe["refused"] = true
				l.mu.Unlock()
			}
			x.rest()
			ctx, stop := context.WithCancel(x.ctx)
			defer stop()
			var too sync.WaitGroup
			watching, blind := context.WithCancel(x.ctx)
			too.Go(func() {
				for watching.Err() == nil {
					if n := x.count("/q/items/", "/i-"); n > most {
						x.violation("%d items in a queue for %d", n, most)
					}
				}
			})
			taker := coord.NewQueue(c.c, "/q", opts)
			x.together(
				func() { l.drained([]func(){func() { put(a, "a2", "a3") }, func() { put(b, "b0", "b1") }}, stop) },
				func() { l.consume(ctx, c, &taker.Consumer, nil) },
			)
			blind()
			too.Wait()
			l.check()
		},
		fresh: freshQueue(opts), rests: emptied,
	}
}

func pop() *recipe {
	return &recipe{
		name: "pop", players: []string{"a", "b", "c"},
		play: func(x *cell) {
			a := x.by["a"]
			l := x.ledger()
			ctx, stop := context.WithCancel(x.ctx)
			defer stop()
			var all []chan struct{}
			for _, name := range []string{"b", "c"} {
				p := x.by[name]
				q := coord.NewQueue(p.c, "/q", &coord.QueueOptions[string]{})
				all = append(all, x.asked(p, 2, func() {
					for x.going() && ctx.Err() == nil {
						v, err := q.Pop(ctx)
						if err != nil && ctx.Err() != nil && errors.Is(err, context.Canceled) {
							if errors.Is(err, coord.ErrUncertain) {
								l.mu.Lock()
								l.pops++ // the queue was seen empty before this call had its reply
								l.mu.Unlock()
							}
							return
						}
						ok := p.ok("pop", err, coord.ErrUncertain)
						l.mu.Lock()
						switch {
						case !ok:
							l.pops++
						default:
							if l.got[v]++; l.got[v] > 1 {
								x.violation("%q was popped twice", v)
							}
						}
						l.mu.Unlock()
					}
				}))
			}
			q := coord.NewQueue(a.c, "/q", &coord.QueueOptions[string]{})
			l.drained([]func(){func() {
				for i, v := range []string{"one", "two", "three"} {
					id, err := q.Put(x.ctx, v)
					l.put(a, []string{id}, err, v)
					if i == 1 {
						x.rest()
					}
				}
			}}, stop)
			for _, done := range all {
				<-done
			}
			missing := 0
			for v := range l.sure {
				if l.got[v] == 0 {
					missing++
				}
			}
			if missing > l.pops && x.going() {
				x.violation("%d values are lost, and %d pops of unknown outcome", missing, l.pops)
			}
		},
		fresh: freshQueue(nil), rests: emptied,
	}
}

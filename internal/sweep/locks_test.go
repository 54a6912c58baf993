package sweep

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-coord/coord"
)

func mutexAlone() *recipe {
	return &recipe{
		name: "mutex, uncontended", players: []string{"a", "b"},
		play: func(x *cell) {
			r := x.resource("m", 1)
			for i, name := range []string{"a", "b", "a"} {
				p := x.by[name]
				m := coord.NewMutex(p.c, "/locks/m", nil)
				if !x.going() {
					return
				}
				r.cycle(p, "lock", m, 1, func(h *coord.Hold) {
					p.ok("verify", h.Verify(x.ctx), coord.ErrLost)
					if i == 0 {
						b := x.by["b"]
						other, err := coord.NewMutex(b.c, "/locks/m", nil).TryLock(x.ctx)
						switch {
						case err == nil && p.lost():
							r.release(b, other) // it does not know of its loss yet
						case errors.Is(err, coord.ErrLocked):
							x.step("b finds it locked")
						case err == nil:
							x.violation("trylock beside a holder succeeds")
						default:
							b.ok("trylock", err)
						}
						x.rest()
					}
				})
			}
		},
		fresh: freshMutex("/locks/m"),
	}
}

func freshMutex(path string) func(x *cell, p *player) {
	return func(x *cell, p *player) {
		x.resource("m", 1).cycle(p, "lock", coord.NewMutex(p.c, path, nil), 1, nil)
	}
}

// inLine starts a call and returns when the call waits, or has returned.
func (x *cell) inLine(p *player, lock func()) (done chan struct{}) {
	waits, grants := p.waits.Load(), p.grants.Load()
	return x.begin(p, lock, func() bool { return p.waits.Load() > waits || p.grants.Load() > grants })
}

// asked starts a call and returns when it has sent n requests, or has returned.
func (x *cell) asked(p *player, n int64, call func()) (done chan struct{}) {
	before := p.seen[request].Load()
	return x.begin(p, call, func() bool { return p.seen[request].Load() >= before+n })
}

// begin starts a call and returns when cond holds, or the call has returned.
func (x *cell) begin(p *player, call func(), cond func() bool) (done chan struct{}) {
	done = make(chan struct{})
	go func() {
		defer close(done)
		call()
	}()
	x.until(p.name+" waits", func() bool {
		select {
		case <-done:
			return true
		default:
			return cond()
		}
	})
	return done
}

func mutexHandOver() *recipe {
	return &recipe{
		name: "mutex, hand-over", players: []string{"a", "b", "c"},
		play: func(x *cell) {
			r := x.resource("m", 1)
			a, b, c := x.by["a"], x.by["b"], x.by["c"]
			h, err := coord.NewMutex(a.c, "/locks/m", nil).Lock(x.ctx)
			if !a.ok("lock", err) {
				return
			}
			r.enter(a, h, 1)
			var all []chan struct{}
			for _, p := range []*player{b, c} {
				all = append(all, x.inLine(p, func() {
					r.cycle(p, "lock", coord.NewMutex(p.c, "/locks/m", nil), 1, nil)
				}))
			}
			x.rest()
			r.release(a, h)
			r.cycle(a, "lock again", coord.NewMutex(a.c, "/locks/m", nil), 1, nil)
			for _, done := range all {
				<-done
			}
		},
		fresh: freshMutex("/locks/m"),
	}
}

// mutexGivenUp: a waiter that gives up leaves nothing that blocks the waiters behind it.
func mutexGivenUp() *recipe {
	return &recipe{
		name: "mutex, given up", players: []string{"a", "b", "c"},
		play: func(x *cell) {
			r := x.resource("m", 1)
			a, b, c := x.by["a"], x.by["b"], x.by["c"]
			var third chan struct{}
			r.cycle(a, "lock", coord.NewMutex(a.c, "/locks/m", nil), 1, func(*coord.Hold) {
				m := coord.NewMutex(b.c, "/locks/m", nil)
				lock := func(ctx context.Context) func() {
					return func() {
						h, err := m.Lock(ctx)
						if err == nil && a.lost() {
							r.enter(b, h, 1)
							r.release(b, h)
						} else if !errors.Is(err, context.Canceled) {
							x.violation("a lock was given up with %v", err)
						}
						x.step("b has given up")
					}
				}
				// The call gives up as soon as it has asked for its place.
				early, stop := context.WithCancel(x.ctx)
				first := x.asked(b, 2, lock(early))
				stop()
				<-first
				// Two waiters: one at the server, and one behind it in the process.
				ctx, giveUp := context.WithCancel(x.ctx)
				defer giveUp()
				b1, b2 := x.inLine(b, lock(ctx)), x.inLine(b, lock(ctx))
				x.rest()
				giveUp()
				<-b1
				<-b2
				third = x.inLine(c, func() { r.cycle(c, "lock", coord.NewMutex(c.c, "/locks/m", nil), 1, nil) })
			})
			if third != nil {
				<-third
			}
		},
		fresh: freshMutex("/locks/m"),
	}
}

func mutexLocal() *recipe {
	return &recipe{
		name: "mutex, local hand-over", players: []string{"a", "b"},
		play: func(x *cell) {
			r := x.resource("m", 1)
			a, b := x.by["a"], x.by["b"]
			m := coord.NewMutex(a.c, "/locks/m", nil)
			h, err := m.Lock(x.ctx)
			if !a.ok("lock", err) {
				return
			}
			r.enter(a, h, 1)
			var all []chan struct{}
			for range 2 {
				all = append(all, x.inLine(a, func() { r.cycle(a, "lock locally", m, 1, nil) }))
			}
			all = append(all, x.inLine(b, func() {
				r.cycle(b, "lock", coord.NewMutex(b.c, "/locks/m", nil), 1, nil)
			}))
			x.rest()
			r.release(a, h)
			for _, done := range all {
				<-done
			}
		},
		fresh: freshMutex("/locks/m"),
	}
}

// mutexKept: a client keeps the lock between holds, and gives it up for another.
func mutexKept() *recipe {
	return &recipe{
		name: "mutex, kept", players: []string{"a", "b"},
		play: func(x *cell) {
			r := x.resource("m", 1)
			a, b := x.by["a"], x.by["b"]
			o := &coord.MutexOptions{Keep: 200 * time.Millisecond}
			m, other := coord.NewMutex(a.c, "/locks/m", o), coord.NewMutex(b.c, "/locks/m", o)
			r.cycle(a, "lock", m, 1, nil)
			r.cycle(a, "lock the kept lock", m, 1, nil)
			x.rest()
			r.cycle(b, "lock", other, 1, nil)
			h, err := m.Lock(x.ctx)
			if !a.ok("lock", err) {
				return
			}
			r.enter(a, h, 1)
			all := []chan struct{}{
				x.inLine(a, func() { r.cycle(a, "lock locally", m, 1, nil) }),
				x.inLine(b, func() { r.cycle(b, "lock behind", other, 1, nil) }),
			}
			x.rest()
			r.release(a, h)
			for _, done := range all {
				<-done
			}
		},
		fresh: freshMutex("/locks/m"),
	}
}

// Readers weigh 1, and a writer the whole limit.
func readersWriters() *recipe {
	return &recipe{
		name: "rwmutex", players: []string{"a", "b", "c"},
		play: func(x *cell) {
			const all = 10
			r := x.resource("rw", all)
			a, b, c := x.by["a"], x.by["b"], x.by["c"]
			rw := coord.NewRWMutex(a.c, "/locks/rw", nil)
			h, err := rw.Lock(x.ctx)
			if !a.ok("lock", err) {
				return
			}
			r.enter(a, h, all)
			read := func(p *player, inside func(*coord.Hold)) chan struct{} {
				return x.inLine(p, func() {
					r.cycle(p, "rlock", coord.NewRWMutex(p.c, "/locks/rw", nil).RLocker(), 1, inside)
				})
			}
			second := make(chan struct{})
			b1 := read(b, func(*coord.Hold) { <-second })
			c1 := read(c, nil)
			// Readers may enter before Downgrade returns.
			r.become(h, 1)
			a.ok("downgrade", rw.Downgrade(x.ctx, h), coord.ErrLost)
			<-c1
			w := x.inLine(c, func() {
				r.cycle(c, "lock", coord.NewRWMutex(c.c, "/locks/rw", nil), all, nil)
			})
			x.rest()
			r.release(a, h)
			close(second)
			<-b1
			<-w
			r.cycle(a, "rlock", rw.RLocker(), 1, nil)
		},
		fresh: func(x *cell, p *player) {
			rw := coord.NewRWMutex(p.c, "/locks/rw", nil)
			r := x.resource("rw", 10)
			r.cycle(p, "lock", rw, 10, func(h *coord.Hold) {
				r.become(h, 1)
				p.ok("downgrade", rw.Downgrade(x.ctx, h))
			})
			r.cycle(p, "rlock", rw.RLocker(), 1, nil)
		},
	}
}

func semaphore() *recipe {
	acquire := func(x *cell, p *player, n int, inside func(*coord.Hold)) {
		r := x.resource("s", 2)
		h, err := coord.NewSemaphore(p.c, "/locks/s", 2, nil).Acquire(x.ctx, n)
		if !p.ok("acquire", err) {
			return
		}
		r.enter(p, h, n)
		if inside != nil {
			inside(h)
		}
		r.release(p, h)
	}
	return &recipe{
		name: "semaphore", players: []string{"a", "b", "c"},
		play: func(x *cell) {
			a, b, c := x.by["a"], x.by["b"], x.by["c"]
			var all []chan struct{}
			acquire(x, a, 2, func(*coord.Hold) {
				for _, p := range []*player{b, c} {
					all = append(all, x.inLine(p, func() { acquire(x, p, 1, nil) }))
				}
				x.rest()
			})
			acquire(x, a, 2, nil)
			for _, done := range all {
				<-done
			}
		},
		fresh: func(x *cell, p *player) { acquire(x, p, 2, nil) },
	}
}

func lockAll() *recipe {
	lock := func(x *cell, p *player, inside func()) bool {
		for x.going() {
			set, err := coord.LockAll(x.ctx, coord.NewMutex(p.c, "/locks/1", nil),
				coord.NewRWMutex(p.c, "/locks/2", nil).RLocker(), coord.NewMutex(p.c, "/locks/3", nil))
			if !p.ok("lockall", err, coord.ErrLost) {
				continue // a lock was lost while it waited for others
			}
			one, three := x.resource("1", 1), x.resource("3", 1)
			one.enter(p, set.Holds()[0], 1)
			three.enter(p, set.Holds()[2], 1)
			if inside != nil {
				inside()
			}
			three.leave(set.Holds()[2])
			one.leave(set.Holds()[0])
			return p.gave("release all", set.Release())
		}
		return false
	}
	return &recipe{
		name: "lockall", players: []string{"a", "b"},
		play: func(x *cell) {
			a, b := x.by["a"], x.by["b"]
			var done chan struct{}
			lock(x, a, func() {
				done = x.inLine(b, func() { lock(x, b, nil) })
				x.rest()
			})
			if done != nil {
				<-done
			}
		},
		fresh: func(x *cell, p *player) { lock(x, p, nil) },
	}
}

// lockAllNested: one player acquires three locks together, of which it keeps one, and another
// acquires the same locks one by one.
func lockAllNested() *recipe {
	paths := []string{"/locks/1", "/locks/2", "/locks/3"}
	locks := func(p *player) (list []coord.Locker) {
		for i, path := range paths {
			var o coord.MutexOptions
			if i == 2 {
				o.Keep = 200 * time.Millisecond
			}
			list = append(list, coord.NewMutex(p.c, path, &o))
		}
		return list
	}
	leave := func(x *cell, holds []*coord.Hold) {
		for i, h := range holds {
			x.resource(fmt.Sprint(i+1), 1).leave(h)
		}
	}
	together := func(x *cell, p *player, inside func()) {
		for x.going() {
			set, err := coord.LockAll(x.ctx, locks(p)...)
			if !p.ok("lockall", err, coord.ErrLost) {
				continue // a lock was lost while it waited for others
			}
			for i, h := range set.Holds() {
				x.resource(fmt.Sprint(i+1), 1).enter(p, h, 1)
			}
			if inside != nil {
				inside()
			}
			leave(x, set.Holds())
			p.gave("release all", set.Release())
			return
		}
	}
	nested := func(x *cell, p *player, inside func(n int)) {
		var holds []*coord.Hold
		for i, m := range locks(p) {
			h, err := m.Lock(x.ctx)
			if !p.ok("lock", err) {
				break
			}
			x.resource(fmt.Sprint(i+1), 1).enter(p, h, 1)
			holds = append(holds, h)
			inside(len(holds))
		}
		leave(x, holds)
		for _, h := range holds {
			p.gave("release", h.Release())
		}
	}
	return &recipe{
		name: "lockall, beside nested locks", players: []string{"a", "b"},
		play: func(x *cell) {
			a, b := x.by["a"], x.by["b"]
			together(x, a, nil) // the third lock is kept
			var all []chan struct{}
			nested(x, b, func(n int) {
				if n == 2 {
					all = append(all, x.inLine(a, func() { together(x, a, nil) }))
					x.rest()
				}
			})
			for _, done := range all {
				<-done
			}
			together(x, a, func() {
				all = append(all, x.inLine(b, func() { nested(x, b, func(int) {}) }))
				x.rest()
			})
			for _, done := range all {
				<-done
			}
		},
		fresh: func(x *cell, p *player) { together(x, p, nil) },
	}
}

func revocation() *recipe {
	return &recipe{
		name: "revocation", players: []string{"a", "b"},
		play: func(x *cell) {
			a, b := x.by["a"], x.by["b"]
			m, other := coord.NewMutex(a.c, "/locks/m", nil), coord.NewMutex(b.c, "/locks/m", nil)
			r := x.resource("m", 1)
			// The holder consents.
			h, err := m.Lock(x.ctx)
			if !a.ok("lock", err) {
				return
			}
			r.enter(a, h, 1)
			x.together(func() {
				select {
				case <-h.Revoked():
					x.step("a is asked")
					if by, _ := h.Revocation(); by.By != "b" && !a.lost() {
						x.violation("asked by %q", by.By)
					}
				case <-h.Done():
					if !a.lost() {
						x.violation("a hold that was only asked for ended: %v", h.Err())
					}
				case <-x.ctx.Done():
					x.violation("a was never asked")
				}
				r.release(a, h)
			}, func() {
				b.ok("revoke", other.Revoke(x.ctx, &coord.RevokeOptions{By: "b"}))
			})
			// The holder does not consent.
			if h, err = m.Lock(x.ctx); !a.ok("lock", err) {
				return
			}
			r.enter(a, h, 1)
			x.rest()
			b.ok("force", other.Revoke(x.ctx, &coord.RevokeOptions{By: "b", ForceAfter: 30 * time.Millisecond}))
			r.leave(h) // the next may be granted before the holder is notified
			r.cycle(b, "lock", other, 1, nil)
			if _, ok := await(x, "a is notified", h.Done()); !ok && x.going() {
				if err := h.Err(); !errors.Is(err, coord.ErrLost) || !errors.Is(err, coord.ErrDeleted) && !a.lost() {
					x.violation("a hold that was taken by force ended with %v", err)
				}
			}
			if err := h.Release(); !errors.Is(err, coord.ErrLost) {
				x.violation("release of a revoked hold: %v", err)
			}
		},
		fresh: freshMutex("/locks/m"),
	}
}

package sweep

import (
	"context"
	"strings"
	"sync"

	"github.com/go-coord/coord"
)

func barrier() *recipe {
	return &recipe{
		name: "barrier", players: []string{"a", "b", "c"},
		play: func(x *cell) {
			a, b, c := x.by["a"], x.by["b"], x.by["c"]
			// surely repeats a call of unknown outcome: no other player sets or removes the
			// barrier.
			surely := func(what string, f func(context.Context) error) {
				for x.going() && !a.ok(what, f(x.ctx), coord.ErrUncertain) {
				}
			}
			bar := coord.NewBarrier(a.c, "/b", nil)
			surely("set", bar.Set)
			var mu sync.Mutex
			removing := false
			var all []chan struct{}
			for _, p := range []*player{b, c} {
				all = append(all, x.asked(p, 2, func() {
					p.ok("wait", coord.NewBarrier(p.c, "/b", nil).Wait(x.ctx))
					mu.Lock()
					defer mu.Unlock()
					if !removing {
						x.violation("%s has passed a barrier that is set", p.name)
					}
				}))
			}
			x.rest()
			mu.Lock()
			removing = true
			mu.Unlock()
			surely("remove", bar.Remove)
			for _, done := range all {
				<-done
			}
			b.ok("wait without a barrier", coord.NewBarrier(b.c, "/b", nil).Wait(x.ctx))
		},
		fresh: func(x *cell, p *player) {
			bar := coord.NewBarrier(p.c, "/b", nil)
			p.ok("wait", bar.Wait(x.ctx))
			p.ok("set", bar.Set(x.ctx))
			done := x.asked(p, 2, func() { p.ok("wait", bar.Wait(x.ctx)) })
			p.ok("remove", bar.Remove(x.ctx))
			<-done
		},
		rests: func(paths []string) string {
			for _, p := range paths {
				if p == "/b" {
					return "the barrier is still set"
				}
			}
			return ""
		},
	}
}

// rounds records the calls and returns of the members of a double barrier.
type rounds struct {
	x  *cell
	mu sync.Mutex
	// By member: calls of Enter and of Leave.
	enters, leaves map[*player]int
}

func (r *rounds) note(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
}

// member plays two rounds, or more if a loss has brought the others out of step, until all
// members have completed theirs.
func (r *rounds) member(p *player, others []*player, n int, done *sync.WaitGroup, over context.Context) {
	x := r.x
	d := coord.NewDoubleBarrier(p.c, "/d", n, nil)
	for i := 1; x.going() && (i <= 2 || over.Err() == nil); i++ {
		r.note(func() { r.enters[p]++ })
		e, err := d.Enter(over)
		if over.Err() != nil && err != nil && r.x.lossy() {
			x.step(p.name + " is out of step")
			break
		}
		if !p.ok("enter", err) {
			break
		}
		r.check(p, others, r.enters, "entered", e.Extra())
		if i == 1 && p.name == "a" {
			x.rest()
		}
		r.note(func() { r.leaves[p]++ })
		if p.ok("leave", e.Leave(x.ctx), coord.ErrLost) {
			r.check(p, others, r.leaves, "left", e.Extra())
		}
		if i == 2 {
			done.Done()
			if !x.lossy() {
				return
			}
		}
	}
	r.note(func() {
		if r.enters[p] < 2 || r.leaves[p] < 2 {
			done.Done() // the cell has failed, or this member is out of step
		}
	})
}

// check verifies at the return of a call that the others had arrived.
func (r *rounds) check(p *player, others []*player, calls map[*player]int, what string, extra bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if extra || r.x.lossy() {
		if extra && !r.x.lossy() {
			r.x.violation("%s is an extra", p.name)
		}
		return
	}
	for _, o := range others {
		if calls[o] < calls[p] {
			r.x.violation("%s has %s round %d before %s has arrived", p.name, what, calls[p], o.name)
		}
	}
}

func doubleBarrier() *recipe {
	return &recipe{
		name: "doublebarrier", players: []string{"a", "b", "c"},
		play: func(x *cell) {
			r := &rounds{x: x, enters: make(map[*player]int), leaves: make(map[*player]int)}
			over, stop := context.WithCancel(x.ctx)
			defer stop()
			var done sync.WaitGroup
			done.Add(len(x.players))
			var parts []func()
			for _, name := range x.players {
				p := x.by[name]
				var others []*player
				for _, o := range x.players {
					if o != name {
						others = append(others, x.by[o])
					}
				}
				parts = append(parts, func() { r.member(p, others, len(x.players), &done, over) })
			}
			parts = append(parts, func() { done.Wait(); stop() })
			x.together(parts...)
		},
		fresh: func(x *cell, p *player) {
			d := coord.NewDoubleBarrier(p.c, "/d", 3, nil)
			one := func() {
				e, err := d.Enter(x.ctx)
				if !p.ok("enter", err) {
					return
				}
				if e.Extra() {
					x.violation("a fresh member is an extra of a round that is over")
				}
				p.ok("leave", e.Leave(x.ctx))
			}
			x.together(one, one, one)
		},
		rests: func(paths []string) string {
			for _, p := range paths {
				if strings.HasSuffix(p, "/ready") {
					return "the round is open"
				}
			}
			return ""
		},
	}
}

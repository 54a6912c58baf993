package backendtest

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/go-coord/coord/backend"
)

func orderLeaves() []leaf {
	return []leaf{
		{"lets a session read its own writes", func(s *scene) {
			c := s.open("a")
			n := c.create("n", "", backend.Persistent)
			for i := range 50 {
				v := fmt.Sprint(i)
				c.set(n, v)
				if data, _ := c.get(n, nil); data != v {
					s.Fatalf("read %q after writing %q", data, v)
				}
				p := c.create("child-", "", backend.PersistentSequential)
				if !c.there(p, nil) {
					s.Fatal("a created node is not there")
				}
				if names, _ := c.children(s.svc.Root(), nil); len(names) != 2 {
					s.Fatalf("children %v, want 2", names)
				}
				c.remove(p)
				if c.there(p, nil) {
					s.Fatal("a deleted node is there")
				}
			}
		}},
		{"lets a session see after Sync what others had committed before", func(s *scene) {
			a, b := s.open("a"), s.open("b")
			n := a.create("n", "", backend.Persistent)
			for i := range 50 {
				v := fmt.Sprint(i)
				a.set(n, v)
				b.sync()
				if data, _ := b.get(n, nil); data != v {
					s.Fatalf("read %q after a sync, %q was committed", data, v)
				}
				a, b = b, a
			}
		}},
		{"keeps a commit that was given up ahead of a later one", func(s *scene) {
			s.abandon(func(c *client, n string, first error) {
				c.commit(backend.SetData(n, []byte("later"), backend.AnyVersion))
				data, stat := c.get(n, nil)
				if data != "later" {
					s.Fatalf("a commit that was given up (%v) came after a later one: %q with %+v", first, data, stat)
				}
				s.settle(c)
				if again, now := c.get(n, nil); again != "later" || now != stat {
					s.Fatalf("a commit that was given up (%v) came after a later one: %q with %+v", first, again, now)
				}
			})
		}},
		{"keeps calls in their order when contexts end", func(s *scene) {
			// Whatever a call looks at its context for, it is the moment at which the
			// context ends: the moment before the request is handed over among them.
			c := s.open("a")
			n := c.create("n", "", backend.Persistent)
			const moments, times = 10, 20
			ended := 0
			for i := range moments * times {
				cause := fmt.Errorf("given up in round %d", i)
				ctx := newEnding(s.ctx, i%moments+1, cause)
				_, before := c.get(n, nil)
				_, err := c.Commit(ctx, backend.SetData(n, []byte("given up"), backend.AnyVersion))
				ctx.end()
				if err != nil {
					ended++
					if !errors.Is(err, cause) || !errors.Is(err, context.Canceled) {
						s.Fatalf("error %v, want one that matches the cause and %v", err, context.Canceled)
					}
				}
				c.commit(backend.SetData(n, []byte("later"), backend.AnyVersion))
				c.sync()
				data, stat := c.get(n, nil)
				if data != "later" {
					s.Fatalf("round %d: a commit that was given up (%v) came after a later one", i, err)
				}
				if definite := err != nil && !errors.Is(err, backend.ErrUncertain); definite && stat.Version != before.Version+1 {
					s.Fatalf("round %d: a commit that was definitely not applied (%v) was", i, err)
				}
			}
			s.settle(c)
			if data, _ := c.get(n, nil); data != "later" {
				s.Fatal("a commit that was given up came after all others")
			}
			if ended == 0 {
				s.Fatal("no context ended in time")
			}
		}},
		{"has every commit that was given up done or dead when Sync returns", func(s *scene) {
			s.abandon(func(c *client, n string, first error) {
				c.sync()
				data, stat := c.get(n, nil)
				s.settle(c)
				if again, now := c.get(n, nil); again != data || now != stat {
					s.Fatalf("%q with %+v after a sync, later %q with %+v, of a commit that was given up (%v)", data, stat, again, now, first)
				}
			})
		}},
		{"holds for a commit that was given up in suspension", func(s *scene) {
			c, o := s.open("a"), s.open("b")
			n := c.create("n", "before", backend.Persistent)
			c.link.Partition()
			c.phase(backend.Suspended)
			ctx, cancel := context.WithCancel(s.ctx)
			given := make(chan error, 1)
			go func() {
				_, err := c.Commit(ctx, backend.SetData(n, []byte("given up"), backend.AnyVersion))
				given <- err
			}()
			cancel()
			err := <-given
			if !errors.Is(err, context.Canceled) {
				s.Fatalf("error %v, want one that matches %v", err, context.Canceled)
			}
			c.link.Heal()
			c.phase(backend.Connected)
			c.sync()
			data, _ := c.get(n, nil)
			if data != "before" && !errors.Is(err, backend.ErrUncertain) {
				s.Fatalf("a commit that was definitely not applied (%v) was", err)
			}
			o.sync()
			s.settle(o)
			if again, _ := o.get(n, nil); again != data {
				s.Fatalf("%q after a sync, later %q", data, again)
			}
		}},
	}
}

// ending is a context that ends at one of the moments at which it is looked at.
type ending struct {
	context.Context
	looks atomic.Int32 // that are left
	end   func()
}

func newEnding(parent context.Context, looks int, cause error) *ending {
	ctx, cancel := context.WithCancelCause(parent)
	e := &ending{Context: ctx, end: func() { cancel(cause) }}
	e.looks.Store(int32(looks))
	return e
}

func (e *ending) look() {
	if e.looks.Add(-1) == 0 {
		e.end()
	}
}

func (e *ending) Done() <-chan struct{} {
	e.look()
	return e.Context.Done()
}

func (e *ending) Err() error {
	e.look()
	return e.Context.Err()
}

// A slow link can delay what passes it, each way. Links need not have it; the
// leaves about calls under way hit more with it.
type slow interface{ SetLatency(d time.Duration) }

// delay makes the link slow, if it can be, and returns by how much.
func (s *scene) delay(link Link) time.Duration {
	l, ok := link.(slow)
	if !ok {
		return 0
	}
	d := min(s.timeout/50, 3*time.Millisecond)
	l.SetLatency(d)
	return d
}

// settle lets everything that may still be on its way over a link arrive.
func (s *scene) settle(c *client) {
	s.Helper()
	timer := time.NewTimer(min(s.timeout/15, 20*time.Millisecond))
	defer timer.Stop()
	<-timer.C
	c.sync()
}

// abandon has a session give up commits at various moments and checks what
// their errors say of them; then does the rest.
func (s *scene) abandon(then func(c *client, n string, first error)) {
	s.Helper()
	c := s.open("a")
	latency := s.delay(c.link)
	// A busy machine delays timers and replies, so it can take more rounds until a
	// commit was given up at each of the moments that matter. Every eighth is not
	// given up at all.
	const rounds, mostRounds = 16, 256
	var kinds [3]int // applied, not applied, uncertain
	for i := 0; i < rounds || i < mostRounds && latency > 0 && (kinds[0] == 0 || kinds[2] == 0); i++ {
		n := c.create(fmt.Sprint("n", i), "before", backend.Persistent)
		cause := fmt.Errorf("given up in round %d", i)
		ctx, cancel := context.WithCancelCause(s.ctx)
		buf := []byte("given up")
		given := make(chan error, 1)
		go func() {
			_, err := c.Commit(ctx, backend.SetData(n, buf, backend.AnyVersion))
			copy(buf, "REUSED!!") // the buffer is the caller's again
			given <- err
		}()
		moment := latency * time.Duration(i%8) / 2
		if i%8 == 7 {
			moment = s.timeout
		}
		timer := time.NewTimer(moment)
		var err error
		select {
		case err = <-given:
			cancel(cause)
		case <-timer.C:
			cancel(cause)
			start := time.Now()
			err = <-given
			s.prompt(start, "a commit after its ctx ended")
		}
		timer.Stop()
		switch {
		case err == nil:
			kinds[0]++
			if data, _ := c.get(n, nil); data != "given up" {
				s.Fatalf("a successful commit left %q", data)
			}
		case !errors.Is(err, cause) || !errors.Is(err, context.Canceled):
			s.Fatalf("error %v, want one that matches the cause and %v", err, context.Canceled)
		case errors.Is(err, backend.ErrUncertain):
			kinds[2]++
		default:
			kinds[1]++
		}
		then(c, n, err)
		c.sync()
		data, stat := c.get(n, nil)
		applied := data == "given up" || data == "later" && stat.Version == 2
		if data != "before" && data != "given up" && data != "later" {
			s.Fatalf("the node holds %q, which was written into the buffer after Commit had returned", data)
		}
		if err != nil && applied && !errors.Is(err, backend.ErrUncertain) {
			s.Fatalf("a commit was applied and returned %v, which does not match ErrUncertain", err)
		}
	}
	if latency > 0 && (kinds[0] == 0 || kinds[2] == 0) {
		s.Fatalf("%d commits applied, %d not, %d uncertain: the test hit nothing", kinds[0], kinds[1], kinds[2])
	}
}

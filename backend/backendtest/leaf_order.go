package backendtest

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/pace"
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
					s.Fatal("a created node is missing")
				}
				if names, _ := c.children(s.svc.Root(), nil); len(names) != 2 {
					s.Fatalf("children %v, want 2", names)
				}
				c.remove(p)
				if c.there(p, nil) {
					s.Fatal("a deleted node still exists")
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
		{"keeps an abandoned commit ahead of a later one", func(s *scene) {
			s.abandon(func(c *client, n string, first error) {
				c.commit(backend.SetData(n, []byte("later"), backend.AnyVersion))
				data, stat := c.get(n, nil)
				if data != "later" {
					s.Fatalf("an abandoned commit (%v) was applied after a later one: %q with %+v", first, data, stat)
				}
				s.settle(c)
				if again, now := c.get(n, nil); again != "later" || state(now) != state(stat) {
					s.Fatalf("an abandoned commit (%v) was applied after a later one: %q with %+v", first, again, now)
				}
			})
		}},
		{"keeps calls in their order when contexts end", func(s *scene) {
			// The context ends at each moment at which a call checks it, including the moment
			// before the request is handed over.
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
					s.Fatalf("round %d: an abandoned commit (%v) was applied after a later one", i, err)
				}
				if definite := err != nil && !errors.Is(err, backend.ErrUncertain); definite && stat.Version != before.Version+1 {
					s.Fatalf("round %d: a commit reported as not applied (%v) was applied", i, err)
				}
			}
			s.settle(c)
			if data, _ := c.get(n, nil); data != "later" {
				s.Fatal("an abandoned commit was applied after all others")
			}
			if ended == 0 {
				s.Fatal("no context ended in time")
			}
		}},
		{"has every abandoned commit applied or dropped when Sync returns", func(s *scene) {
			s.abandon(func(c *client, n string, first error) {
				c.sync()
				data, stat := c.get(n, nil)
				s.settle(c)
				if again, now := c.get(n, nil); again != data || state(now) != state(stat) {
					s.Fatalf("%q with %+v after a sync, later %q with %+v, of an abandoned commit (%v)", data, stat, again, now, first)
				}
			})
		}},
		{"holds for a commit that was abandoned in suspension", func(s *scene) {
			c, o := s.open("a"), s.open("b")
			n := c.create("n", "before", backend.Persistent)
			c.link.Partition()
			c.phase(backend.PhaseSuspended)
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
			c.phase(backend.PhaseConnected)
			c.sync()
			data, _ := c.get(n, nil)
			if data != "before" && !errors.Is(err, backend.ErrUncertain) {
				s.Fatalf("a commit reported as not applied (%v) was applied", err)
			}
			o.sync()
			s.settle(o)
			if again, _ := o.get(n, nil); again != data {
				s.Fatalf("%q after a sync, later %q", data, again)
			}
		}},
	}
}

// ending is a context that ends at one of the moments at which it is checked.
type ending struct {
	context.Context
	looks atomic.Int32 // checks left before it ends
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

// A slow link can delay requests and replies. Links need not support it; with it the leaves
// about calls under way hit more of them.
type slow interface{ SetLatency(d time.Duration) }

// delay makes the link slow if it can, and returns the delay.
func (s *scene) delay(link Link) time.Duration {
	l, ok := link.(slow)
	if !ok {
		return 0
	}
	d := min(s.timeout/50, 3*time.Millisecond)
	l.SetLatency(d)
	return d
}

// settle waits until every request that may still be under way on a link has arrived.
func (s *scene) settle(c *client) {
	s.Helper()
	timer := time.NewTimer(min(s.timeout/15, 20*time.Millisecond))
	defer timer.Stop()
	<-timer.C
	c.sync()
}

// abandon makes a session give up commits at various moments and checks their errors; then it
// runs the rest.
func (s *scene) abandon(then func(c *client, n string, first error)) {
	s.Helper()
	c := s.open("a")
	latency := s.delay(c.link)
	// A busy machine delays timers and replies, so it can take more rounds until a commit was
	// given up at each of the moments that matter. Every eighth commit is not given up.
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
			copy(buf, "REUSED!!") // the caller owns the buffer again
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
			m := pace.Start(s, nil)
			err = <-given
			s.prompt(m, 0, "a commit after its ctx ended")
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

package recipetest

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-coord/coord"
)

// Loops end as the manual says: a channel and an iterator without a further element, a call that
// hands out work with nil, and any other call with the error of its ctx.
func TestLoops_EndWithTheirContext(t *testing.T) {
	type loop struct {
		name   string
		silent bool // no error is returned
		run    func(ctx context.Context, c *coord.Client) error
	}
	extra := errors.New("an element after the end")
	drain := func(next func() (ok bool, err error)) error {
		for {
			ok, err := next()
			switch {
			case !ok:
				return nil
			case err != nil && !errors.Is(err, coord.ErrNotFound): // there is no value yet
				return errors.Join(extra, err)
			}
		}
	}
	for _, l := range []loop{
		{"Client.WatchState", true, func(ctx context.Context, c *coord.Client) error {
			ch := c.WatchState(ctx)
			return drain(func() (bool, error) { st, ok := <-ch; return ok, st.Err })
		}},
		{"Value.Watch", true, func(ctx context.Context, c *coord.Client) error {
			ch := coord.NewValue[int](c, "/value", nil).Watch(ctx)
			return drain(func() (bool, error) { v, ok := <-ch; return ok, v.Err })
		}},
		{"Election.WatchLeader", true, func(ctx context.Context, c *coord.Client) error {
			ch := coord.NewElection(c, "/election", nil).WatchLeader(ctx)
			return drain(func() (bool, error) { v, ok := <-ch; return ok, v.Err })
		}},
		{"Group.Watch", true, func(ctx context.Context, c *coord.Client) error {
			ch := coord.NewGroup[int](c, "/group", nil).Watch(ctx)
			return drain(func() (bool, error) { v, ok := <-ch; return ok, v.Err })
		}},
		{"Client.States", true, func(ctx context.Context, c *coord.Client) error {
			for st := range c.States(ctx) {
				if st.Err != nil {
					return errors.Join(extra, st.Err)
				}
			}
			return nil
		}},
		{"Value.Changes", true, func(ctx context.Context, c *coord.Client) error {
			for v := range coord.NewValue[int](c, "/value", nil).Changes(ctx) {
				if !errors.Is(v.Err, coord.ErrNotFound) {
					return errors.Join(extra, v.Err)
				}
			}
			return nil
		}},
		{"Election.Leaders", true, func(ctx context.Context, c *coord.Client) error {
			for l := range coord.NewElection(c, "/election", nil).Leaders(ctx) {
				if l.Err != nil {
					return errors.Join(extra, l.Err)
				}
			}
			return nil
		}},
		{"Group.Changes", true, func(ctx context.Context, c *coord.Client) error {
			for u := range coord.NewGroup[int](c, "/group", nil).Changes(ctx) {
				if u.Err != nil {
					return errors.Join(extra, u.Err)
				}
			}
			return nil
		}},
		{"Consumer.Items", true, func(ctx context.Context, c *coord.Client) error {
			ch := coord.NewQueue[int](c, "/queue", nil).Items(ctx)
			return drain(func() (bool, error) { _, ok := <-ch; return ok, nil })
		}},
		{"Consumer.All", true, func(ctx context.Context, c *coord.Client) error {
			for _, err := range coord.NewQueue[int](c, "/queue", nil).All(ctx) {
				return errors.Join(extra, err)
			}
			return nil
		}},
		{"Shards.All", true, func(ctx context.Context, c *coord.Client) error {
			for sh, err := range coord.NewShards(c, "/shards", 1, nil).All(ctx) {
				if err != nil {
					return errors.Join(extra, err)
				}
				<-ctx.Done()
				sh.Release()
			}
			return nil
		}},
		{"Consumer.Work", true, func(ctx context.Context, c *coord.Client) error {
			return coord.NewQueue[int](c, "/queue", nil).Work(ctx, 2, func(context.Context, *coord.Item[int]) error { return nil })
		}},
		{"Schedule.Run", true, func(ctx context.Context, c *coord.Client) error {
			return coord.NewSchedule(c, "/schedule", coord.Every(time.Second), nil).Run(ctx, func(ctx context.Context, _ *coord.Run) error { <-ctx.Done(); return ctx.Err() })
		}},
		{"Shards.Run", true, func(ctx context.Context, c *coord.Client) error {
			return coord.NewShards(c, "/shards", 1, nil).Run(ctx, func(ctx context.Context, _ *coord.Shard) error { <-ctx.Done(); return nil })
		}},
		{"Election.Run, as a leader", false, func(ctx context.Context, c *coord.Client) error {
			return coord.NewElection(c, "/election", nil).Run(ctx, func(ctx context.Context, _ *coord.Term) error { <-ctx.Done(); return ctx.Err() })
		}},
		{"Election.Run, as a candidate", false, func(ctx context.Context, c *coord.Client) error {
			term, err := coord.NewElection(c, "/contested", nil).Campaign(context.WithoutCancel(ctx))
			if err != nil {
				return errors.Join(extra, err)
			}
			defer term.Release()
			return coord.NewElection(c, "/contested", nil).Run(ctx, func(context.Context, *coord.Term) error { return extra })
		}},
		{"Cache.Run", false, func(ctx context.Context, c *coord.Client) error { return coord.NewCache(c, "/cache", nil).Run(ctx) }},
		{"Consumer.Dead", false, func(ctx context.Context, c *coord.Client) error {
			<-ctx.Done()
			for _, err := range coord.NewQueue[int](c, "/queue", nil).Dead(ctx) {
				return err
			}
			return nil
		}},
		{"Consumer.Take", false, func(ctx context.Context, c *coord.Client) error {
			_, err := coord.NewQueue[int](c, "/queue", nil).Take(ctx)
			return err
		}},
	} {
		t.Run(l.name, func(t *testing.T) {
			onMemory(t, func(w *world) {
				c := w.Open("a", nil)
				cause := errors.New("the end")
				ctx, cancel := context.WithCancelCause(context.Background())
				done := make(chan error, 1)
				go func() { done <- l.run(ctx, c) }()
				w.Settle()
				time.Sleep(time.Minute)
				select {
				case err := <-done:
					w.T.Fatalf("it has ended before its context: %v", err)
				default:
				}
				cancel(cause)
				switch err := receive(w, "it ends", done); {
				case l.silent && err != nil:
					w.T.Errorf("%v, want no error", err)
				case !l.silent && (!errors.Is(err, context.Canceled) || errors.Is(err, extra)):
					w.T.Errorf("%v, want the error of its context", err)
				}
			})
		})
	}
}

// countedContext never ends. It counts the contexts that were derived from it and have not ended.
type countedContext struct {
	context.Context
	done chan struct{}
	live atomic.Int32
}

func (c *countedContext) Done() <-chan struct{} { return c.done }

func (c *countedContext) AfterFunc(func()) (stop func() bool) {
	c.live.Add(1)
	return func() bool { c.live.Add(-1); return true }
}

// However the body ends, the watch has ended when the loop has.
func TestWatchLoop_EndOfTheBodyEndsTheWatch(t *testing.T) {
	loops := map[string]func(ctx context.Context, c *coord.Client, body func() bool){
		"Client.States": func(ctx context.Context, c *coord.Client, body func() bool) {
			for range c.States(ctx) {
				if !body() {
					break
				}
			}
		},
		"Value.Changes": func(ctx context.Context, c *coord.Client, body func() bool) {
			for range coord.NewValue[int](c, "/value", nil).Changes(ctx) {
				if !body() {
					break
				}
			}
		},
		"Election.Leaders": func(ctx context.Context, c *coord.Client, body func() bool) {
			for range coord.NewElection(c, "/election", nil).Leaders(ctx) {
				if !body() {
					break
				}
			}
		},
		"Group.Changes": func(ctx context.Context, c *coord.Client, body func() bool) {
			for range coord.NewGroup[int](c, "/group", nil).Changes(ctx) {
				if !body() {
					break
				}
			}
		},
	}
	bodies := map[string]func() bool{
		"break":  func() bool { return false },
		"panic":  func() bool { panic("the body") },
		"Goexit": func() bool { runtime.Goexit(); return true },
	}
	for name, loop := range loops {
		for how, body := range bodies {
			t.Run(name+"/"+how, func(t *testing.T) {
				onMemory(t, func(w *world) {
					c := w.Open("a", nil)
					ctx := &countedContext{Context: context.Background(), done: make(chan struct{})}
					var before int
					done := make(chan int, 1)
					go func() {
						defer func() { done <- before }()
						defer func() { recover() }()
						loop(ctx, c, func() bool {
							if before = int(ctx.live.Load()); before == 0 {
								w.T.Error("the watch is not of the loop's context")
							}
							return body()
						})
					}()
					receive(w, "the loop ends", done)
					if n := ctx.live.Load(); n != 0 {
						w.T.Errorf("%d of %d contexts of the watch are left", n, before)
					}
				})
			})
		}
	}
}

package hostile_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/internal/coordtest"
	"github.com/go-coord/coord/trace"
)

// A fullUse is one complete use of a recipe by two clients; the second client has to wait for the
// first. All data of users is the payload. It leaves nothing behind but directories.
type fullUse struct {
	recipe string
	// dirs are the directories that it lists, below its own.
	dirs []string
	// forms are the names of its nodes there; %[1]s stands for the ten digits, and %[2]s for an
	// ID.
	forms []string
	run   func(ctx context.Context, x *useRun) error
}

// useRun is one run of a fullUse.
type useRun struct {
	w       *coordtest.World
	a, b    *coord.Client
	path    string
	payload string
}

// until waits for a condition that nothing signals.
func (x *useRun) until(ctx context.Context, what string, cond func() (bool, error)) error {
	for {
		ok, err := cond()
		if ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("never happened: %s: %w", what, ctx.Err())
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// A taker acquires what two clients acquire in turn.
type taker func(ctx context.Context) (*coord.Hold, error)

// turns lets one acquire and the other wait for it, and releases both. waiting returns the
// number of contenders.
func (x *useRun) turns(ctx context.Context, first, second taker, waiting func() (int, error)) error {
	h, err := first(ctx)
	if err != nil {
		return fmt.Errorf("first: %w", err)
	}
	type result struct {
		h   *coord.Hold
		err error
	}
	ctx, cancel := context.WithCancel(ctx)
	got := make(chan result, 1)
	go func() {
		h, err := second(ctx)
		got <- result{h, err}
	}()
	defer func() {
		cancel()
		if r := <-got; r.h != nil && r.err == nil {
			r.h.Release()
		}
	}()
	if err := x.until(ctx, "the second one waits", func() (bool, error) {
		select {
		case r := <-got:
			got <- r
			if r.err == nil {
				return false, errors.New("two have it")
			}
			return false, fmt.Errorf("second: %w", r.err)
		default:
		}
		n, err := waiting()
		return n == 2, err
	}); err != nil {
		h.Release()
		return err
	}
	if err := h.Release(); err != nil {
		return fmt.Errorf("release: %w", err)
	}
	r := <-got
	got <- result{}
	if r.err != nil {
		return fmt.Errorf("second: %w", r.err)
	}
	if err := r.h.Release(); err != nil {
		return fmt.Errorf("release: %w", err)
	}
	return nil
}

func fullUses() []fullUse {
	items := []string{"", "/items", "/items/b-0-0", "/waiters"}
	itemForms := []string{
		"i-%[2]s-0-%[1]s", "m-%[2]s-%[2]s", "s-%[2]s", "d-%[2]s-1", "b-0-%[1]s", "_c_%[2]s-take-%[1]s", "b-1-1",
	}
	return []fullUse{
		{"mutex", []string{""}, []string{"_c_%[2]s-lock-%[1]s", "x__lock__%[1]s"}, func(ctx context.Context, x *useRun) error {
			o := &coord.MutexOptions{Data: []byte(x.payload)}
			m, n := coord.NewMutex(x.a, x.path, o), coord.NewMutex(x.b, x.path, o)
			return x.turns(ctx, m.Lock, n.Lock, func() (int, error) {
				list, err := m.Contenders(ctx)
				if err != nil {
					return 0, err
				}
				h, busy := n.TryLock(ctx)
				if busy == nil {
					h.Release()
					return 0, errors.New("two have it: TryLock")
				}
				if !errors.Is(busy, coord.ErrLocked) {
					err = fmt.Errorf("TryLock: %w", busy)
				}
				return len(list), err
			})
		}},
		{"readers and writers", []string{""}, []string{"_c_%[2]s-__READ__%[1]s", "_c_%[2]s-__WRIT__%[1]s"}, func(ctx context.Context, x *useRun) error {
			o := &coord.RWMutexOptions{Data: []byte(x.payload)}
			m, n := coord.NewRWMutex(x.a, x.path, o), coord.NewRWMutex(x.b, x.path, o)
			waiting := func() (int, error) {
				list, err := m.Contenders(ctx)
				return len(list), err
			}
			if err := x.turns(ctx, m.RLock, n.Lock, waiting); err != nil {
				return err
			}
			return x.turns(ctx, m.Lock, n.RLock, waiting)
		}},
		{"revocation", []string{""}, []string{"_c_%[2]s-lock-%[1]s"}, func(ctx context.Context, x *useRun) error {
			m := coord.NewMutex(x.a, x.path, &coord.MutexOptions{Data: []byte(x.payload)})
			h, err := m.Lock(ctx)
			if err != nil {
				return err
			}
			go func() {
				select {
				case <-h.Revoked():
				case <-ctx.Done():
				}
				h.Release()
			}()
			return coord.NewMutex(x.b, x.path, nil).Revoke(ctx, &coord.RevokeOptions{By: "b", Reason: "its turn"})
		}},
		{"semaphore", []string{"", "/requests"}, []string{"_c_%[2]s-permit-1-%[1]s"}, func(ctx context.Context, x *useRun) error {
			o := &coord.SemaphoreOptions{Data: []byte(x.payload)}
			m, n := coord.NewSemaphore(x.a, x.path, 2, o), coord.NewSemaphore(x.b, x.path, 2, o)
			return x.turns(ctx,
				func(ctx context.Context) (*coord.Hold, error) { return m.Acquire(ctx, 2) },
				func(ctx context.Context) (*coord.Hold, error) { return n.Acquire(ctx, 1) },
				func() (int, error) {
					list, err := m.Contenders(ctx)
					return len(list), err
				})
		}},
		{"election", []string{""}, []string{"_c_%[2]s-latch-%[1]s", "_c_%[2]s-ready-%[1]s"}, func(ctx context.Context, x *useRun) error {
			of := func(c *coord.Client, id string) *coord.Election {
				return coord.NewElection(c, x.path, &coord.ElectionOptions{ID: id, Data: []byte(x.payload)})
			}
			e, f := of(x.a, "a"), of(x.b, "b")
			octx, stop := context.WithCancel(ctx)
			defer stop()
			seen := e.WatchLeader(octx)
			err := x.turns(ctx, func(ctx context.Context) (*coord.Hold, error) {
				term, err := e.Campaign(ctx)
				if err != nil {
					return nil, err
				}
				if err := term.Announce(ctx, []byte(x.payload)); err != nil {
					term.Release()
					return nil, err
				}
				l, err := f.Leader(ctx)
				if err == nil && (l.ID != "a" || !l.Ready || string(l.Announcement) != x.payload || string(l.Data) != x.payload) {
					err = fmt.Errorf("leader of another kind, of ID %.20q", l.ID)
				}
				if err != nil {
					term.Release()
				}
				return term.Hold, err
			}, func(ctx context.Context) (*coord.Hold, error) {
				term, err := f.Campaign(ctx)
				if err != nil {
					return nil, err
				}
				return term.Hold, nil
			}, func() (int, error) {
				list, err := e.Contenders(ctx)
				return len(list), err
			})
			if err != nil {
				return err
			}
			for l := range seen {
				if l.Err != nil {
					return fmt.Errorf("observe: %w", l.Err)
				}
				if l.Vacant() {
					break
				}
			}
			stop()
			for range seen { // closed
			}
			return nil
		}},
		{"barrier", nil, nil, func(ctx context.Context, x *useRun) error {
			b := coord.NewBarrier(x.a, x.path, nil)
			if err := b.Set(ctx); err != nil {
				return err
			}
			passed := make(chan error, 1)
			go func() { passed <- coord.NewBarrier(x.b, x.path, nil).Wait(ctx) }()
			if err := b.Remove(ctx); err != nil {
				return errors.Join(err, <-passed)
			}
			return <-passed
		}},
		{"double barrier", []string{"", "/members"}, []string{"_c_%[2]s-member-%[1]s", "_c_%[2]s-guest-%[1]s"}, func(ctx context.Context, x *useRun) error {
			errs := make(chan error, 2)
			for _, c := range []*coord.Client{x.a, x.b} {
				go func() {
					e, err := coord.NewDoubleBarrier(c, x.path, 2, nil).Enter(ctx)
					if err == nil {
						err = e.Leave(ctx)
					}
					errs <- err
				}()
			}
			return errors.Join(<-errs, <-errs)
		}},
		{"schedule", []string{"", "/leader"}, []string{"run-1%[1]s00-1-%[2]s", "_c_%[2]s-latch-%[1]s"}, func(ctx context.Context, x *useRun) error {
			running, stop := context.WithCancel(ctx)
			ended, called := make(chan error, 2), make(chan time.Time, 1)
			for _, c := range []*coord.Client{x.a, x.b} {
				go func() {
					ended <- coord.NewSchedule(c, x.path, coord.Every(24*365*time.Hour), nil).Run(running, func(_ context.Context, r *coord.Run) error {
						called <- r.Planned
						return errors.New(x.payload)
					})
				}()
			}
			s := coord.NewSchedule(x.b, x.path, nil, nil)
			at, err := s.RunNow(ctx)
			if err == nil {
				select {
				case ran := <-called:
					if !ran.Equal(at) {
						err = fmt.Errorf("%v ran, and %v was asked for", ran, at)
					}
				case err = <-ended:
					ended <- err
				}
			}
			if err == nil {
				err = x.until(ctx, "the run has failed", func() (bool, error) {
					st, err := s.State(ctx)
					return err == nil && len(st.Runs) > 0 && st.Runs[len(st.Runs)-1].Outcome == trace.RunFailed, err
				})
			}
			stop()
			return errors.Join(err, <-ended, <-ended)
		}},
		{"queue", items, itemForms, func(ctx context.Context, x *useRun) error {
			o := &coord.QueueOptions[string]{MaxAttempts: 2}
			q, p := coord.NewQueue(x.a, x.path, o), coord.NewQueue(x.b, x.path, o)
			if _, err := q.PutAll(ctx, x.payload, x.payload); err != nil {
				return err
			}
			if v, err := p.Peek(ctx); err != nil || v != x.payload {
				return fmt.Errorf("peek: %.20q, %w", v, err)
			}
			it, err := p.Take(ctx)
			if err != nil {
				return err
			}
			if err := it.Nack(0); err != nil {
				return err
			}
			for range 2 {
				it, err := p.Take(ctx)
				if err != nil {
					return err
				}
				if it.Value != x.payload {
					return fmt.Errorf("took %.20q", it.Value)
				}
				if err := it.Ack(); err != nil {
					return err
				}
			}
			if n, err := q.Len(ctx); n != 0 || err != nil {
				return fmt.Errorf("%d items left, %w", n, err)
			}
			// A consumer that waits.
			got := make(chan error, 1)
			go func() {
				it, err := p.Take(ctx)
				if err == nil {
					err = it.Ack()
				}
				got <- err
			}()
			if _, err := q.Put(ctx, x.payload); err != nil {
				return errors.Join(err, <-got)
			}
			return <-got
		}},
		{"priority queue", items, itemForms, func(ctx context.Context, x *useRun) error {
			q := coord.NewPriorityQueue[string](x.a, x.path, nil)
			for _, n := range []int64{0, -1} {
				if _, err := q.Put(ctx, n, x.payload); err != nil {
					return err
				}
			}
			p := coord.NewPriorityQueue[string](x.b, x.path, nil)
			for range 2 {
				if v, err := p.Pop(ctx); err != nil || v != x.payload {
					return fmt.Errorf("%.20q, %w", v, err)
				}
			}
			return nil
		}},
		{"delay queue", items, itemForms, func(ctx context.Context, x *useRun) error {
			q := coord.NewDelayQueue[string](x.a, x.path, nil)
			if _, err := q.Put(ctx, time.Now().Add(50*time.Millisecond), x.payload); err != nil {
				return err
			}
			it, err := coord.NewDelayQueue[string](x.b, x.path, nil).Take(ctx)
			if err != nil {
				return err
			}
			return it.Ack()
		}},
		{"group", []string{""}, []string{"_c_%[2]s-member-z-%[1]s"}, func(ctx context.Context, x *useRun) error {
			g := coord.NewGroup[string](x.a, x.path, nil)
			wctx, stop := context.WithCancel(ctx)
			defer stop()
			seen := coord.NewGroup[string](x.b, x.path, nil).Watch(wctx)
			m, err := g.Join(ctx, "a", x.payload)
			if err != nil {
				return err
			}
			defer m.Leave()
			for list := range seen {
				if list.Err != nil {
					return fmt.Errorf("watch: %w", list.Err)
				}
				if len(list.Members) > 0 {
					break
				}
			}
			if err := m.SetValue(ctx, x.payload+"!"); err != nil {
				return err
			}
			if list, err := g.Members(ctx); err != nil || len(list) != 1 || list[0].ID != "a" {
				return fmt.Errorf("%d members, %w", len(list), err)
			}
			return m.Leave()
		}},
		{"value", nil, nil, func(ctx context.Context, x *useRun) error {
			v := coord.NewValue[string](x.a, x.path, nil)
			if _, err := v.Set(ctx, x.payload); err != nil {
				return err
			}
			got, err := coord.NewValue[string](x.b, x.path, nil).Update(ctx, func(old string) (string, error) { return old + "!", nil })
			if err != nil {
				return err
			}
			return v.Delete(ctx, got)
		}},
		{"counter", nil, nil, func(ctx context.Context, x *useRun) error {
			n := coord.NewCounter(x.a, x.path)
			if _, err := n.Add(ctx, 2); err != nil {
				return err
			}
			_, err := coord.NewCounter(x.b, x.path).Reserve(ctx, 3)
			return err
		}},
		{"two-phase commit", []string{"/tx", "/sites", "/sites/s", "/serving/s", "/present"},
			[]string{"t-%[1]s", "t~%[2]s", "_c_%[2]s-lock-%[1]s"}, func(ctx context.Context, x *useRun) error {
				sctx, stop := context.WithCancel(ctx)
				defer stop()
				served := make(chan error, 1)
				go func() {
					yes := func(_ context.Context, tx coord.Branch[string]) error { return nil }
					served <- coord.NewParticipant(x.b, x.path, "s", coord.Handler[string]{Prepare: yes, Commit: yes, Abort: yes}).Serve(sctx)
				}()
				co := coord.NewCoordinator[string](x.a, x.path, nil)
				p := coord.Proposal[string]{ID: "t1", Sites: []string{"s"}, Payload: x.payload}
				err := x.until(ctx, "the transaction is committed", func() (bool, error) {
					d, err := co.Propose(ctx, p)
					if errors.Is(err, coord.ErrNotFound) || errors.Is(err, coord.ErrInvalid) { // the site is not there yet
						return false, nil
					}
					if err == nil && !d.Commit {
						err = fmt.Errorf("aborted by %s", d.By)
					}
					return err == nil, err
				})
				if err == nil {
					err = x.until(ctx, "the site has acknowledged", func() (bool, error) {
						list, err := co.List(ctx)
						return len(list) == 0, err
					})
				}
				if err == nil {
					_, err = co.Recover(ctx)
				}
				stop()
				if e := <-served; !errors.Is(e, context.Canceled) {
					err = errors.Join(err, fmt.Errorf("serve: %w", e))
				}
				return err
			}},
		{"cache", []string{""}, []string{"x-%[1]s"}, func(ctx context.Context, x *useRun) error {
			k := coord.NewCache(x.a, x.path, nil)
			kctx, stop := context.WithCancel(ctx)
			ran := make(chan error, 1)
			go func() { ran <- k.Run(kctx) }()
			v := coord.NewValue[string](x.b, x.path+"/v", nil)
			set, err := v.Set(ctx, x.payload)
			if err == nil {
				select {
				case <-k.Synced():
				case <-ctx.Done():
					err = ctx.Err()
				case e := <-ran:
					err = fmt.Errorf("run: %w", e)
					ran <- e
				}
			}
			if err == nil {
				err = x.until(ctx, "the value is in the copy", func() (bool, error) {
					_, ok := k.Get(x.path + "/v")
					return ok, nil
				})
			}
			stop()
			if e := <-ran; !errors.Is(e, context.Canceled) {
				err = errors.Join(err, fmt.Errorf("run: %w", e))
			}
			return errors.Join(err, v.Delete(ctx, set))
		}},
	}
}

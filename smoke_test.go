package coord_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/memory"
)

// smoke runs f with two clients of one service in memory, in fake time. Package
// internal/recipetest has the tests of the recipes.
func smoke(t *testing.T, f func(ctx context.Context, t *testing.T, a, b *coord.Client)) {
	synctest.Test(t, func(t *testing.T) {
		st := memory.New(nil)
		open := func(name string) *coord.Client {
			c, err := coord.Open(t.Context(), st.Link(name), nil)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.Close() })
			return c
		}
		f(t.Context(), t, open("a"), open("b"))
	})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantErr(t *testing.T, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("error %v, want one that matches %v", err, want)
	}
}

func TestMutex(t *testing.T) {
	smoke(t, func(ctx context.Context, t *testing.T, a, b *coord.Client) {
		first, err := coord.NewMutex(a, "/l", nil).Lock(ctx)
		must(t, err)
		_, err = coord.NewMutex(b, "/l", nil).TryLock(ctx)
		wantErr(t, err, coord.ErrLocked)
		must(t, first.Release())
		second, err := coord.NewMutex(b, "/l", nil).Lock(ctx)
		must(t, err)
		if second.Token() <= first.Token() {
			t.Errorf("token %d after %d", second.Token(), first.Token())
		}
		must(t, second.Release())
	})
}

func TestRWMutex(t *testing.T) {
	smoke(t, func(ctx context.Context, t *testing.T, a, b *coord.Client) {
		ra, err := coord.NewRWMutex(a, "/l", nil).RLock(ctx)
		must(t, err)
		rb, err := coord.NewRWMutex(b, "/l", nil).RLock(ctx)
		must(t, err)
		must(t, ra.Release())
		_, err = coord.NewRWMutex(a, "/l", nil).TryLock(ctx)
		wantErr(t, err, coord.ErrLocked)
		must(t, rb.Release())
		w, err := coord.NewRWMutex(a, "/l", nil).Lock(ctx)
		must(t, err)
		must(t, w.Release())
	})
}

func TestSemaphore(t *testing.T) {
	smoke(t, func(ctx context.Context, t *testing.T, a, b *coord.Client) {
		two, err := coord.NewSemaphore(a, "/s", 2, nil).Acquire(ctx, 2)
		must(t, err)
		_, err = coord.NewSemaphore(b, "/s", 2, nil).TryAcquire(ctx, 1)
		wantErr(t, err, coord.ErrLocked)
		must(t, two.Release())
		one, err := coord.NewSemaphore(b, "/s", 2, nil).Acquire(ctx, 1)
		must(t, err)
		must(t, one.Release())
	})
}

func TestLockAll(t *testing.T) {
	smoke(t, func(ctx context.Context, t *testing.T, a, b *coord.Client) {
		set, err := coord.LockAll(ctx, coord.NewMutex(a, "/x", nil), coord.NewMutex(a, "/y", nil))
		must(t, err)
		_, err = coord.NewMutex(b, "/y", nil).TryLock(ctx)
		wantErr(t, err, coord.ErrLocked)
		must(t, set.Release())
		h, err := coord.NewMutex(b, "/y", nil).TryLock(ctx)
		must(t, err)
		must(t, h.Release())
	})
}

func TestElection(t *testing.T) {
	smoke(t, func(ctx context.Context, t *testing.T, a, b *coord.Client) {
		term, err := coord.NewElection(a, "/e", nil).Campaign(ctx)
		must(t, err)
		next := make(chan *coord.Term)
		go func() {
			term, err := coord.NewElection(b, "/e", nil).Campaign(ctx)
			if err != nil {
				t.Error(err)
			}
			next <- term
		}()
		synctest.Wait()
		select {
		case <-next:
			t.Fatal("two leaders")
		default:
		}
		must(t, term.Release())
		must(t, (<-next).Release())
	})
}

func TestBarrier(t *testing.T) {
	smoke(t, func(ctx context.Context, t *testing.T, a, b *coord.Client) {
		must(t, coord.NewBarrier(a, "/b", nil).Set(ctx))
		passed := make(chan error, 1)
		go func() { passed <- coord.NewBarrier(b, "/b", nil).Wait(ctx) }()
		synctest.Wait()
		if len(passed) > 0 {
			t.Fatal("Wait has returned")
		}
		must(t, coord.NewBarrier(a, "/b", nil).Remove(ctx))
		must(t, <-passed)
	})
}

func TestDoubleBarrier(t *testing.T) {
	smoke(t, func(ctx context.Context, t *testing.T, a, b *coord.Client) {
		left := make(chan error, 2)
		for _, c := range []*coord.Client{a, b} {
			go func() {
				e, err := coord.NewDoubleBarrier(c, "/d", 2, nil).Enter(ctx)
				if err == nil {
					err = e.Leave(ctx)
				}
				left <- err
			}()
		}
		must(t, <-left)
		must(t, <-left)
	})
}

func TestGroup(t *testing.T) {
	smoke(t, func(ctx context.Context, t *testing.T, a, b *coord.Client) {
		m, err := coord.NewGroup[string](a, "/g", nil).Join(ctx, "one", "10.0.0.1")
		must(t, err)
		members, err := coord.NewGroup[string](b, "/g", nil).Members(ctx)
		must(t, err)
		if len(members) != 1 || members[0].ID != "one" || members[0].Value != "10.0.0.1" {
			t.Errorf("%+v", members)
		}
		must(t, m.Leave())
	})
}

func TestShards(t *testing.T) {
	smoke(t, func(ctx context.Context, t *testing.T, a, b *coord.Client) {
		ctx, stop := context.WithCancel(ctx)
		owned := make(chan int)
		ended := make(chan error, 2)
		for _, c := range []*coord.Client{a, b} {
			go func() {
				ended <- coord.NewShards(c, "/s", 4, nil).Run(ctx, func(ctx context.Context, sh *coord.Shard) error {
					select {
					case owned <- sh.Index:
					case <-ctx.Done():
					}
					<-ctx.Done()
					return ctx.Err()
				})
			}()
		}
		all := make(map[int]bool)
		for len(all) < 4 {
			all[<-owned] = true
		}
		stop()
		must(t, <-ended)
		must(t, <-ended)
	})
}

func TestSchedule(t *testing.T) {
	smoke(t, func(ctx context.Context, t *testing.T, a, b *coord.Client) {
		ctx, stop := context.WithCancel(ctx)
		planned := make(chan time.Time)
		ended := make(chan error, 2)
		for _, c := range []*coord.Client{a, b} {
			go func() {
				ended <- coord.NewSchedule(c, "/s", coord.Every(time.Hour), nil).Run(ctx, func(ctx context.Context, r *coord.Run) error {
					planned <- r.Planned
					return nil
				})
			}()
		}
		first, second := <-planned, <-planned
		if d := second.Sub(first); d != time.Hour {
			t.Errorf("%v after %v", second, first)
		}
		stop()
		must(t, <-ended)
		must(t, <-ended)
	})
}

func TestValue(t *testing.T) {
	smoke(t, func(ctx context.Context, t *testing.T, a, b *coord.Client) {
		was, err := coord.NewValue[int](a, "/v", nil).Set(ctx, 1)
		must(t, err)
		_, err = coord.NewValue[int](b, "/v", nil).Set(ctx, 2)
		must(t, err)
		_, err = coord.NewValue[int](a, "/v", nil).CompareAndSet(ctx, was, 3)
		wantErr(t, err, coord.ErrConflict)
		now, err := coord.NewValue[int](a, "/v", nil).Get(ctx)
		must(t, err)
		if now.Value != 2 {
			t.Errorf("%+v", now)
		}
	})
}

func TestCounter(t *testing.T) {
	smoke(t, func(ctx context.Context, t *testing.T, a, b *coord.Client) {
		for i, c := range []*coord.Client{a, b, a} {
			n, err := coord.NewCounter(c, "/n").Add(ctx, 5)
			must(t, err)
			if n != int64(5*(i+1)) {
				t.Errorf("%d", n)
			}
		}
	})
}

func TestCache(t *testing.T) {
	smoke(t, func(ctx context.Context, t *testing.T, a, b *coord.Client) {
		ctx, stop := context.WithCancel(ctx)
		k := coord.NewCache(a, "/config", nil)
		done := make(chan error, 1)
		go func() { done <- k.Run(ctx) }()
		_, err := coord.NewTxn(b).CreateAll("/config/x", []byte("1"), backend.Persistent).Commit(ctx)
		must(t, err)
		synctest.Wait()
		if n, ok := k.Get("/config/x"); !ok || string(n.Data) != "1" {
			t.Errorf("%+v, %t", n, ok)
		}
		stop()
		<-done
	})
}

func TestQueue(t *testing.T) {
	smoke(t, func(ctx context.Context, t *testing.T, a, b *coord.Client) {
		_, err := coord.NewQueue[int](a, "/q", nil).PutAll(ctx, 1, 2, 3)
		must(t, err)
		q := coord.NewQueue[int](b, "/q", nil)
		var got []int
		for range 3 {
			it, err := q.Take(ctx)
			must(t, err)
			got = append(got, it.Value)
			must(t, it.Ack())
		}
		if !slices.Equal(got, []int{1, 2, 3}) {
			t.Errorf("%v", got)
		}
		_, err = q.TryTake(ctx)
		wantErr(t, err, coord.ErrEmpty)
	})
}

func TestPriorityQueue(t *testing.T) {
	smoke(t, func(ctx context.Context, t *testing.T, a, b *coord.Client) {
		q := coord.NewPriorityQueue[string](a, "/q", nil)
		_, err := q.Put(ctx, 2, "later")
		must(t, err)
		_, err = q.Put(ctx, 1, "first")
		must(t, err)
		v, err := coord.NewPriorityQueue[string](b, "/q", nil).Pop(ctx)
		must(t, err)
		if v != "first" {
			t.Errorf("%q", v)
		}
	})
}

func TestDelayQueue(t *testing.T) {
	smoke(t, func(ctx context.Context, t *testing.T, a, b *coord.Client) {
		due := time.Now().Add(time.Minute)
		_, err := coord.NewDelayQueue[int](a, "/q", nil).Put(ctx, due, 1)
		must(t, err)
		q := coord.NewDelayQueue[int](b, "/q", nil)
		_, err = q.TryTake(ctx)
		wantErr(t, err, coord.ErrEmpty)
		it, err := q.Take(ctx)
		must(t, err)
		if time.Now().Before(due) {
			t.Error("early")
		}
		must(t, it.Ack())
	})
}

func TestTxn(t *testing.T) {
	smoke(t, func(ctx context.Context, t *testing.T, a, b *coord.Client) {
		h, err := coord.NewMutex(a, "/l", nil).Lock(ctx)
		must(t, err)
		write := coord.NewTxn(b).Under(h.Guard()).Create("/x", nil, backend.Persistent)
		must(t, h.Release())
		_, err = write.Commit(ctx)
		wantErr(t, err, coord.ErrFenced)
	})
}

func TestTwoPhase(t *testing.T) {
	smoke(t, func(ctx context.Context, t *testing.T, a, b *coord.Client) {
		ctx, stop := context.WithCancel(ctx)
		committed := make(chan string, 1)
		yes := func(context.Context, coord.Branch[string]) error { return nil }
		stock := coord.NewParticipant(b, "/tx", "stock", coord.Handler[string]{
			Prepare: yes,
			Commit: func(_ context.Context, tx coord.Branch[string]) error {
				committed <- tx.Payload
				return nil
			},
			Abort: yes,
		})
		served := make(chan error, 1)
		go func() { served <- stock.Serve(ctx) }()
		synctest.Wait()
		d, err := coord.NewCoordinator[string](a, "/tx", nil).Propose(ctx, coord.Proposal[string]{ID: "t", Sites: []string{"stock"}, Payload: "one"})
		must(t, err)
		if got := <-committed; got != "one" || !d.Commit {
			t.Errorf("%q, %+v", got, d)
		}
		stop()
		<-served
	})
}

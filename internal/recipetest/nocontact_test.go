package recipetest

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/memory"
	"github.com/go-coord/coord/internal/coordtest"
)

// callsOf returns calls that wait for contact. Each returns the error of one call.
func callsOf(c *coord.Client, queue *coord.Queue[int]) map[string]func(ctx context.Context) error {
	value := coord.NewValue[int](c, "/v", nil)
	return map[string]func(ctx context.Context) error{
		"Get": func(ctx context.Context) error { _, err := value.Get(ctx); return err },
		"Set": func(ctx context.Context) error { _, err := value.Set(ctx, 1); return err },
		"Update": func(ctx context.Context) error {
			_, err := value.Update(ctx, func(int) (int, error) { return 1, nil })
			return err
		},
		"Lock":    func(ctx context.Context) error { _, err := coord.NewMutex(c, "/m", nil).Lock(ctx); return err },
		"TryLock": func(ctx context.Context) error { _, err := coord.NewMutex(c, "/t", nil).TryLock(ctx); return err },
		"RLock":   func(ctx context.Context) error { _, err := coord.NewRWMutex(c, "/rw", nil).RLock(ctx); return err },
		"Acquire": func(ctx context.Context) error {
			_, err := coord.NewSemaphore(c, "/s", 1, nil).Acquire(ctx, 1)
			return err
		},
		"Put":      func(ctx context.Context) error { _, err := queue.Put(ctx, 1); return err },
		"Take":     func(ctx context.Context) error { _, err := queue.Take(ctx); return err },
		"Add":      func(ctx context.Context) error { _, err := coord.NewCounter(c, "/n").Add(ctx, 1); return err },
		"Campaign": func(ctx context.Context) error { _, err := coord.NewElection(c, "/e", nil).Campaign(ctx); return err },
		"Txn": func(ctx context.Context) error {
			_, err := coord.NewTxn(c).Create("/x", nil, backend.Persistent).Commit(ctx)
			return err
		},
		"Barrier": func(ctx context.Context) error { return coord.NewBarrier(c, "/b", nil).Wait(ctx) },
		"RunNow": func(ctx context.Context) error {
			_, err := coord.NewSchedule(c, "/jobs", nil, nil).RunNow(ctx)
			return err
		},
		"State": func(ctx context.Context) error {
			_, err := coord.NewSchedule(c, "/jobs", nil, nil).State(ctx)
			return err
		},
		"LockAll": func(ctx context.Context) error {
			_, err := coord.LockAll(ctx, coord.NewMutex(c, "/a1", nil), coord.NewMutex(c, "/a2", nil))
			return err
		},
	}
}

// In an outage the error of each call matches ErrNoContact beside that of its ctx, and says since when
// and why: while the session is suspended, and when it is lost.
func TestNoContact_IsInTheErrorOfEachCall(t *testing.T) {
	names := []string{"Get", "Set", "Update", "Lock", "TryLock", "RLock", "Acquire", "Put", "Take", "Add", "Campaign", "Txn", "Barrier", "RunNow", "State", "LockAll"}
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				st := memory.New(&memory.Options{SessionTimeout: 10 * time.Second})
				link := st.Link("one")
				c := coordtest.Open(t, link, nil)
				calls := callsOf(c, coord.NewQueue[int](c, "/q", nil))
				call := calls[name]
				if len(calls) != len(names) {
					t.Fatalf("%d calls, %d names", len(calls), len(names))
				}
				link.Partition()
				defer link.Heal()
				for _, after := range []time.Duration{0, time.Second, 20 * time.Second} {
					time.Sleep(after)
					ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
					err := call(ctx)
					cancel()
					var cut *backend.NoContactError
					if !errors.Is(err, coord.ErrNoContact) || !errors.Is(err, context.DeadlineExceeded) || !errors.As(err, &cut) {
						t.Fatalf("%v after the last call: %v", after, err)
					}
					if cut.For < 2*time.Second || !strings.Contains(err.Error(), "no contact with the service for "+cut.For.Round(time.Millisecond).String()+": ") {
						t.Errorf("%v after the last call: for %v: %v", after, cut.For, err)
					}
					if after > 0 && cut.For < after+4*time.Second-time.Millisecond {
						t.Errorf("%v after the last call there was no contact for %v", after, cut.For)
					}
				}
			})
		})
	}
}

// A call that waits for another client, and not for contact, does not match. It does if contact breaks
// during the wait.
func TestNoContact_IsNotInTheErrorOfAWaitForAnotherClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memory.New(&memory.Options{SessionTimeout: 10 * time.Second})
		holder := coordtest.Open(t, st.Link("holder"), nil)
		for _, path := range []string{"/m", "/e"} {
			coordtest.MustLock(t, coord.NewMutex(holder, path, nil))
		}
		if _, err := coord.NewSemaphore(holder, "/s", 1, nil).Acquire(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		if err := coord.NewBarrier(holder, "/b", nil).Set(t.Context()); err != nil {
			t.Fatal(err)
		}
		link := st.Link("waiter")
		c := coordtest.Open(t, link, nil)
		queue := coord.NewQueue[int](c, "/q", nil)
		for _, name := range []string{"Lock", "Acquire", "Barrier", "Take"} {
			call := callsOf(c, queue)[name]
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			err := call(ctx)
			cancel()
			if errors.Is(err, coord.ErrNoContact) || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s waits for another client: %v", name, err)
			}
			ctx, cancel = context.WithTimeout(t.Context(), 2*time.Second)
			done := make(chan error, 1)
			go func() { done <- call(ctx) }()
			time.Sleep(time.Second)
			link.Partition()
			err = <-done
			cancel()
			link.Heal()
			if !errors.Is(err, coord.ErrNoContact) || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s, and contact breaks: %v", name, err)
			}
			time.Sleep(time.Second)
		}
	})
}

func TestNoContact_OpenTimeoutBoundsOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memory.New(nil)
		link := st.Link("one")
		link.Partition()
		start := time.Now()
		_, err := coord.Open(t.Context(), link, &coord.Options{OpenTimeout: 3 * time.Second})
		if took := time.Since(start); took != 3*time.Second || !errors.Is(err, coord.ErrNoContact) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("after %v: %v", took, err)
		}
		for _, want := range []string{"OpenTimeout 3s has passed", "partitioned"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%q does not contain %q", err, want)
			}
		}
		if _, err := coord.Open(t.Context(), link, &coord.Options{OpenTimeout: -1}); !errors.Is(err, coord.ErrInvalid) {
			t.Errorf("a negative OpenTimeout: %v", err)
		}
		// It does not bound the session.
		link.Heal()
		c, err := coord.Open(t.Context(), link, &coord.Options{OpenTimeout: 3 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		time.Sleep(time.Minute)
		coordtest.MustLock(t, coord.NewMutex(c, "/m", nil))
	})
}

// A Txn under the guard of a hold that has ended matches ErrFenced; a condition that does not hold does not.
func TestFenced_IsTheErrorOfAGuardOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memory.New(nil)
		c := coordtest.Open(t, st.Link("one"), nil)
		ctx := t.Context()
		v := coord.NewValue[int](c, "/v", nil)
		for _, keep := range []time.Duration{0, time.Minute} {
			h := coordtest.MustLock(t, coord.NewMutex(c, "/m", &coord.MutexOptions{Keep: keep}))
			if _, err := coord.NewTxn(c).Under(h.Guard()).Add(v.SetOp(1)).Commit(ctx); err != nil {
				t.Fatal(err)
			}
			_, err := coord.NewTxn(c).Under(h.Guard()).Create("/v", nil, backend.Persistent).Commit(ctx)
			if errors.Is(err, coord.ErrFenced) || !errors.Is(err, coord.ErrConflict) || !errors.Is(err, coord.ErrExists) {
				t.Errorf("the node exists: %v", err)
			}
			coordtest.MustRelease(t, h)
			_, err = coord.NewTxn(c).Under(h.Guard()).Add(v.SetOp(2)).Commit(ctx)
			if !errors.Is(err, coord.ErrFenced) || !errors.Is(err, coord.ErrConflict) || !errors.Is(err, coord.ErrNotFound) {
				t.Errorf("the hold has ended (Keep %v): %v", keep, err)
			}
		}
	})
}

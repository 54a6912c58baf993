package coord_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
)

// slowDelete holds the next deletion before it is sent, for d or until ctx ends, and
// keeps what became of it.
type slowDelete struct {
	before, after nth
	sent          chan struct{} // closed when the deletion was asked for
	result        chan error
}

func holdDelete(d time.Duration) *slowDelete {
	x := &slowDelete{sent: make(chan struct{}), result: make(chan error, 1)}
	x.before.arm(1, deletes, func(ctx context.Context, c backendtest.Call, _ error) error {
		close(x.sent)
		select {
		case <-time.After(d):
		case <-c.Session.Done():
		}
		return nil
	})
	x.after.arm(1, deletes, func(_ context.Context, _ backendtest.Call, err error) error {
		x.result <- err
		return err
	})
	return x
}

func (x *slowDelete) hooks() *backendtest.Hooks {
	return &backendtest.Hooks{Before: x.before.before, After: x.after.after}
}

// giveUpAtBarrier has an Enter of c given up, which leaves a deletion behind.
func giveUpAtBarrier(t *testing.T, c *coord.Client) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	_, err := coord.NewDoubleBarrier(c, "/b", 2, nil).Enter(ctx)
	wantErr(t, err, context.DeadlineExceeded)
}

// What a call has left behind is cleared away before the session ends.
func TestCloseWaitsForWhatIsClearedAway(t *testing.T) {
	onEach(t, func(w *world) {
		x := holdDelete(1500 * time.Millisecond)
		c := w.open("a", x.hooks())
		giveUpAtBarrier(w.t, c)
		c.Close()
		if err := <-x.result; err != nil {
			w.t.Error("the deletion did not come before the end of the session:", err)
		}
	})
}

// Close waits for an answer for a bounded time, and not at all without contact.
func TestCloseDoesNotWaitForEver(t *testing.T) {
	onMemory(t, func(w *world) {
		x := holdDelete(time.Hour)
		c := w.open("a", x.hooks())
		giveUpAtBarrier(w.t, c)
		start := time.Now()
		c.Close()
		if d := time.Since(start); d != 2*time.Second {
			w.t.Errorf("Close took %v, want two seconds", d)
		}
		wantErr(w.t, <-x.result, coord.ErrClosed)
	})
	t.Run("without contact", func(t *testing.T) {
		onMemory(t, func(w *world) {
			x := holdDelete(time.Hour)
			c := w.open("a", x.hooks())
			giveUpAtBarrier(w.t, c)
			w.Link("a").Partition()
			start := time.Now()
			c.Close()
			if d := time.Since(start); d != 0 {
				w.t.Errorf("Close waited for %v", d)
			}
			w.Link("a").Heal()
		})
	})
	t.Run("contact is lost meanwhile", func(t *testing.T) {
		onMemory(t, func(w *world) {
			x := holdDelete(time.Hour)
			c := w.open("a", x.hooks())
			giveUpAtBarrier(w.t, c)
			start := time.Now()
			time.AfterFunc(time.Second, w.Link("a").Partition)
			c.Close()
			if d := time.Since(start); d != time.Second {
				w.t.Errorf("Close took %v, want one second", d)
			}
			w.Link("a").Heal()
		})
	})
	t.Run("refused", func(t *testing.T) {
		onMemory(t, func(w *world) {
			c := w.open("a", &backendtest.Hooks{Before: func(_ context.Context, c backendtest.Call) error {
				if deletes(c) {
					return backend.ErrDenied
				}
				return nil
			}})
			giveUpAtBarrier(w.t, c)
			time.Sleep(10 * time.Second) // in the middle of a long pause between attempts
			start := time.Now()
			c.Close()
			if d := time.Since(start); d != 0 {
				w.t.Errorf("Close waited for %v for what was refused", d)
			}
		})
	})
}

// While Close waits, calls fail, and those who wait for their turn learn of it in the
// end.
func TestCallsFailWhileCloseWaits(t *testing.T) {
	onMemory(t, func(w *world) {
		x := holdDelete(1500 * time.Millisecond)
		c := w.open("a", x.hooks())
		mustLock(w.t, coord.NewMutex(w.open("b", nil), "/l", nil))
		waiter := w.waiting(context.Background(), coord.NewMutex(c, "/l", nil))
		h := mustLock(w.t, coord.NewMutex(c, "/m", nil))
		giveUpAtBarrier(w.t, c)
		closed := make(chan struct{})
		go func() {
			defer close(closed)
			c.Close()
		}()
		w.settle()
		_, err := coord.NewMutex(c, "/l2", nil).TryLock(context.Background())
		wantErr(w.t, err, coord.ErrClosed)
		_, err = coord.NewSemaphore(c, "/s", 1, nil).TryAcquire(context.Background(), 1)
		wantErr(w.t, err, coord.ErrClosed)
		if err := h.Err(); err != nil {
			w.t.Error("a hold ended before its session:", err)
		}
		select {
		case <-closed:
			w.t.Error("Close did not wait")
		default:
		}
		<-closed
		<-waiter.done
		wantErr(w.t, waiter.err, coord.ErrClosed)
		if err := h.Err(); !errors.Is(err, coord.ErrLost) || !errors.Is(err, coord.ErrClosed) {
			w.t.Error("the hold ended with", err)
		}
	})
}

package coord_test

import (
	"context"
	"errors"
	"testing"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
)

// releasing are the ways to get a hold, by the recipe.
var releasing = map[string]func(ctx context.Context, c *coord.Client) (*coord.Hold, error){
	"a mutex": func(ctx context.Context, c *coord.Client) (*coord.Hold, error) {
		return coord.NewMutex(c, "/mutex", nil).Lock(ctx)
	},
	"a writer": func(ctx context.Context, c *coord.Client) (*coord.Hold, error) {
		return coord.NewRWMutex(c, "/rw", nil).Lock(ctx)
	},
	"a reader": func(ctx context.Context, c *coord.Client) (*coord.Hold, error) {
		return coord.NewRWMutex(c, "/rw", nil).RLock(ctx)
	},
	"a writer that became a reader": func(ctx context.Context, c *coord.Client) (*coord.Hold, error) {
		rw := coord.NewRWMutex(c, "/rw", nil)
		h, err := rw.Lock(ctx)
		if err == nil {
			err = rw.Downgrade(ctx, h)
		}
		return h, err
	},
	"permits": func(ctx context.Context, c *coord.Client) (*coord.Hold, error) {
		return coord.NewSemaphore(c, "/sem", 3, nil).Acquire(ctx, 2)
	},
	"a term": func(ctx context.Context, c *coord.Client) (*coord.Hold, error) {
		t, err := coord.NewElection(c, "/election", nil).Campaign(ctx)
		if err != nil {
			return nil, err
		}
		return t.Hold, nil
	},
	"a term that was announced": func(ctx context.Context, c *coord.Client) (*coord.Hold, error) {
		t, err := coord.NewElection(c, "/election", nil).Campaign(ctx)
		if err != nil {
			return nil, err
		}
		return t.Hold, t.Announce(ctx, nil)
	},
	"an entry": func(ctx context.Context, c *coord.Client) (*coord.Hold, error) {
		e, err := coord.NewDoubleBarrier(c, "/double", 1, nil).Enter(ctx)
		if err != nil {
			return nil, err
		}
		return e.Hold, nil
	},
	"an item": func(ctx context.Context, c *coord.Client) (*coord.Hold, error) {
		q := coord.NewQueue[string](c, "/queue", nil)
		if _, err := q.Put(ctx, "x"); err != nil {
			return nil, err
		}
		it, err := q.Take(ctx)
		if err != nil {
			return nil, err
		}
		return it.Hold, nil
	},
}

func onEachHold(t *testing.T, f func(w *world, hold func(*coord.Client) *coord.Hold)) {
	for name, get := range releasing {
		t.Run(name, func(t *testing.T) {
			onEach(t, func(w *world) {
				f(w, func(c *coord.Client) *coord.Hold {
					w.t.Helper()
					h, err := get(context.Background(), c)
					if err != nil {
						w.t.Fatal(err)
					}
					return h
				})
			})
		})
	}
}

// The holder is not told yet when it releases.
func TestReleaseLearnsThatTheNodeWasDeleted(t *testing.T) {
	t.Parallel()
	onEachHold(t, func(w *world, hold func(*coord.Client) *coord.Hold) {
		outsider := w.session("outsider")
		h := hold(w.open("a", nil))
		if _, err := outsider.Commit(context.Background(), backend.Delete(h.Path(), backend.AnyVersion)); err != nil {
			w.t.Fatal(err)
		}
		err := h.Release()
		wantErr(w.t, err, coord.ErrLost, coord.ErrDeleted)
		if again := h.Release(); !errors.Is(again, coord.ErrLost) {
			w.t.Errorf("a second Release: %v, the first one: %v", again, err)
		}
	})
}

func TestReleaseLearnsThatTheSessionIsOver(t *testing.T) {
	t.Parallel()
	onEachHold(t, func(w *world, hold func(*coord.Client) *coord.Hold) {
		h := hold(w.open("a", nil))
		w.Link("a").Expire(h.Session())
		wantErr(w.t, h.Release(), coord.ErrLost)
	})
}

// Nobody confirms the release before the session is over.
func TestReleaseInAPartitionAsLongAsTheSessionIsNoSuccess(t *testing.T) {
	t.Parallel()
	onEachHold(t, func(w *world, hold func(*coord.Client) *coord.Hold) {
		h := hold(w.open("a", nil))
		w.Link("a").Partition()
		defer w.Link("a").Heal()
		wantErr(w.t, h.Release(), coord.ErrLost, coord.ErrSessionLost)
	})
}

// Which of the two removed the node cannot be known: an attempt of the holder's whose
// reply was lost, or an outsider.
func TestReleaseWithALostReplyIsUncertainWhenTheNodeIsGone(t *testing.T) {
	for name, outside := range map[string]bool{"the attempt": false, "an outsider": true} {
		t.Run(name, func(t *testing.T) {
			onEach(t, func(w *world) {
				outsider := w.session("outsider")
				var x nth
				hooks := &backendtest.Hooks{After: x.after}
				if outside {
					hooks = &backendtest.Hooks{Before: x.before}
				}
				m := coord.NewMutex(w.open("a", hooks), "/l", nil)
				h := mustLock(w.t, m)
				remove := func() {
					if _, err := outsider.Commit(context.Background(), backend.Delete(h.Path(), backend.AnyVersion)); err != nil {
						w.t.Error(err)
					}
				}
				x.arm(1, deletes, func(_ context.Context, _ backendtest.Call, err error) error {
					if outside {
						remove() // and the attempt is lost on its way there
					}
					return backend.ErrUncertain
				})
				err := h.Release()
				wantErr(w.t, err, coord.ErrUncertain)
				if errors.Is(err, coord.ErrLost) {
					w.t.Errorf("claims to know: %v", err)
				}
				w.empty("/l")
			})
		})
	}
}

// The attempt whose reply was lost was not applied, and the next one removes the node.
func TestReleaseIsTriedAgainAfterALostRequest(t *testing.T) {
	t.Parallel()
	onEachHold(t, func(w *world, hold func(*coord.Client) *coord.Hold) {
		h := hold(w.open("a", nil))
		w.Link("a").DropNextRequest()
		if err := h.Release(); err != nil {
			w.t.Error(err)
		}
	})
}

// The next caller of the same client is served all the same.
func TestAHandOverLearnsThatTheNodeWasDeleted(t *testing.T) {
	onEach(t, func(w *world) {
		outsider := w.session("outsider")
		m := coord.NewMutex(w.open("a", nil), "/l", nil)
		h := mustLock(w.t, m)
		next := w.waiting(context.Background(), m)
		if _, err := outsider.Commit(context.Background(), backend.Delete(h.Path(), backend.AnyVersion)); err != nil {
			w.t.Fatal(err)
		}
		wantErr(w.t, h.Release(), coord.ErrLost, coord.ErrDeleted)
		mustRelease(w.t, next.hold())
		w.empty("/l")
	})
}

func TestDoLearnsThatTheNodeWasDeleted(t *testing.T) {
	onEach(t, func(w *world) {
		outsider := w.session("outsider")
		m := coord.NewMutex(w.open("a", nil), "/l", nil)
		prime(w.t, m)
		other := coord.NewMutex(w.open("b", nil), "/l", nil)
		var second *coord.Hold
		err := m.Do(context.Background(), func(_ context.Context, h *coord.Hold) error {
			if _, err := outsider.Commit(context.Background(), backend.Delete(h.Path(), backend.AnyVersion)); err != nil {
				return err
			}
			second = mustLock(w.t, other)
			return nil
		})
		wantErr(w.t, err, coord.ErrLost, coord.ErrDeleted)
		mustRelease(w.t, second)
	})
}

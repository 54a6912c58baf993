package coord_test

import (
	"context"
	"testing"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
)

// Who is alone and wants one permit does not read the limit: the creation of his
// request is under the condition that it has not changed.
func TestWhoIsAloneMeetsALimitThatChanged(t *testing.T) {
	onEach(t, func(w *world) {
		ctx := context.Background()
		a, b := w.semaphore("a", 3), w.semaphore("b", 3)
		adopting := coord.NewSemaphore(w.open("c", nil), "/s", 3, &coord.SemaphoreOptions{AdoptLimit: true})
		for _, s := range []*coord.Semaphore{a, adopting} {
			mustRelease(w.t, acquire(w.t, s, 1))
		}
		if err := b.SetLimit(ctx, 2); err != nil {
			w.t.Fatal(err)
		}
		for range 2 {
			_, err := a.Acquire(ctx, 1)
			wantErr(w.t, err, coord.ErrLimit)
			_, err = a.TryAcquire(ctx, 1)
			wantErr(w.t, err, coord.ErrLimit)
		}
		w.empty("/s/requests")
		for range 2 {
			mustRelease(w.t, acquire(w.t, adopting, 1))
		}
		if err := b.SetLimit(ctx, 3); err != nil {
			w.t.Fatal(err)
		}
		mustRelease(w.t, acquire(w.t, a, 1))
		// Deleted, it is made again.
		if _, err := w.session("x").Commit(ctx, backend.Delete(w.path("/s/limit"), backend.AnyVersion)); err != nil {
			w.t.Fatal(err)
		}
		mustRelease(w.t, acquire(w.t, a, 1))
		if n, err := b.Limit(ctx); err != nil || n != 3 {
			w.t.Errorf("limit %d, %v", n, err)
		}
		w.empty("/s/requests")
	})
}

// What changes between the decision to ask for one permit and the request.
func TestWhoIsAloneNoMoreWaits(t *testing.T) {
	for name, meanwhile := range map[string]func(w *world){
		"others came":                        func(*world) {},
		"others came, and the limit changed": func(w *world) { w.setLimit(1) },
	} {
		t.Run(name, func(t *testing.T) {
			onEach(t, func(w *world) {
				var before nth
				a, b := w.hooked("a", &before), w.hooked("b", new(nth))
				mustRelease(w.t, acquire(w.t, a, 1))
				var others []*coord.Hold
				before.arm(1, creates, func(context.Context, backendtest.Call, error) error {
					others = append(others, acquire(w.t, b, 1), acquire(w.t, b, 1))
					meanwhile(w)
					return nil
				})
				waiter := w.awaiting(a, 1)
				w.settle()
				waiter.pending()
				for _, h := range others {
					mustRelease(w.t, h)
				}
				mustRelease(w.t, waiter.hold())
				w.empty("/s/requests")
			})
		})
	}
}

func TestALostReplyToWhoIsAloneLeavesOneRequest(t *testing.T) {
	for name, fault := range map[string]func(backendtest.Link){
		"request lost": backendtest.Link.DropNextRequest,
		"reply lost":   backendtest.Link.DropNextReply,
	} {
		t.Run(name, func(t *testing.T) {
			onEach(t, func(w *world) {
				s := w.semaphore("a", 2)
				mustRelease(w.t, acquire(w.t, s, 1))
				fault(w.Link("a"))
				h := acquire(w.t, s, 1)
				if n := requests(w); n != 1 {
					w.t.Errorf("%d requests, want one", n)
				}
				if err := h.Verify(context.Background()); err != nil {
					w.t.Error(err)
				}
				mustRelease(w.t, h)
				w.empty("/s/requests")
			})
		})
	}
}

// A semaphore's holders cannot be asked to give up, so nothing may look as if
// they were.
func TestDataOfASemaphoreThatReadsAsARequestIsRefused(t *testing.T) {
	onMemory(t, func(w *world) {
		c := w.open("a", nil)
		for _, data := range []string{"unlock", "__REVOKE__", `{"coord-revoke":{"at":1}}`} {
			s := coord.NewSemaphore(c, "/s", 2, &coord.SemaphoreOptions{Data: []byte(data)})
			for _, take := range []func(context.Context, int) (*coord.Hold, error){s.Acquire, s.TryAcquire} {
				h, err := take(context.Background(), 1)
				wantErr(w.t, err, coord.ErrInvalid)
				if err == nil {
					mustRelease(w.t, h)
				}
			}
		}
	})
}

// The limit that is set first makes its node; that is done once as well.
func TestTheFirstLimitIsSetOnce(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		var after nth
		a := coord.NewSemaphore(w.open("a", &backendtest.Hooks{After: after.after}), "/s", 2, nil)
		b := coord.NewSemaphore(w.open("b", nil), "/s", 2, nil)
		if _, err := w.session("x").Commit(ctx, backend.Create(w.path("/s"), nil, backend.Persistent)); err != nil {
			w.t.Fatal(err)
		}
		makes := func(c backendtest.Call) bool { return c.Path == w.path("/s/limit") && commits(c, backend.OpCreate) }
		// Its reply is lost, and another's change comes before anybody knows.
		lost := false
		after.arm(1, makes, func(_ context.Context, _ backendtest.Call, err error) error {
			if err != nil {
				return err
			}
			lost = true
			if err := b.SetLimit(ctx, 7); err != nil {
				w.t.Error(err)
			}
			return backend.ErrUncertain
		})
		if err := a.SetLimit(ctx, 5); err != nil {
			w.t.Fatal(err)
		}
		if n, err := a.Limit(ctx); err != nil || n != 7 || !lost {
			w.t.Errorf("limit %d, %v, reply lost: %v; want the later limit", n, err, lost)
		}
	})
}

// The replies of two calls come in the other order than their changes.
func TestASemaphoreExpectsTheLaterOfTwoLimitsThatItSet(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		var after nth
		s := coord.NewSemaphore(w.open("a", &backendtest.Hooks{After: after.after}), "/s", 2, nil)
		mustRelease(w.t, acquire(w.t, s, 1))
		after.arm(1, func(c backendtest.Call) bool { return commits(c, backend.OpSetData) && c.Path == w.path("/s/limit") },
			func(_ context.Context, _ backendtest.Call, err error) error {
				if err := s.SetLimit(ctx, 7); err != nil {
					w.t.Error(err)
				}
				return err
			})
		if err := s.SetLimit(ctx, 5); err != nil {
			w.t.Fatal(err)
		}
		if n, err := s.Limit(ctx); err != nil || n != 7 {
			w.t.Errorf("limit %d, %v", n, err)
		}
		mustRelease(w.t, acquire(w.t, s, 7))
	})
}

// Who waited through a change of the limit was granted under the new one, and does
// not expect it for that.
func TestWhoWasGrantedUnderAnotherLimitIsRefusedTheNextTime(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		a, b := w.semaphore("a", 3), w.semaphore("b", 3)
		h := acquire(w.t, b, 3)
		waiter := w.awaiting(a, 1)
		if err := b.SetLimit(ctx, 4); err != nil {
			w.t.Fatal(err)
		}
		mustRelease(w.t, waiter.hold())
		mustRelease(w.t, h)
		for range 2 {
			_, err := a.Acquire(ctx, 1)
			wantErr(w.t, err, coord.ErrLimit)
		}
	})
}

package recipetest

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/internal/coordtest"
)

// A waiter that lists again is not refused because a contender of another kind is behind it.
func TestKind_AWaiterIsNotDisturbedByAnotherKind(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		rw := coord.NewRWMutex(w.Open("a", nil), "/l", nil)
		first, err := rw.RLock(ctx)
		if err != nil {
			w.T.Fatal(err)
		}
		second := make(chan error, 1)
		n := w.Waits.Load()
		go func() { second <- rw.Do(ctx, func(context.Context, *coord.Hold) error { return nil }) }()
		w.Eventually("the writer waits", func() bool { return w.Waits.Load() > n })
		// A node of an earlier version, which does not look at the kind and stays.
		other := w.Path("/l/_c_01234567-89ab-8def-8123-456789abcdef-lock-")
		if _, err := w.Session("x").Commit(ctx, backend.Create(other, nil, backend.EphemeralSequential)); err != nil {
			w.T.Fatal(err)
		}
		coordtest.MustRelease(w.T, first) // a writer lists again
		if err := <-second; err != nil {
			w.T.Error(err)
		}
	})
}

// A value that reads as a mark is refused, so that it keeps no recipe from its path.
func TestKind_AValueCannotLookLikeAMark(t *testing.T) {
	onMemory(t, func(w *world) {
		text := coord.Codec[string]{
			Encode: func(s string) ([]byte, error) { return []byte(s), nil },
			Decode: func(b []byte) (string, error) { return string(b), nil },
		}
		v := coord.NewValue(w.Open("a", nil), "/v", &coord.ValueOptions[string]{Codec: text})
		_, err := v.Set(context.Background(), "coord recipe: mutex")
		coordtest.WantErr(w.T, err, coord.ErrInvalid)
		if _, err := v.Set(context.Background(), "coord recipe"); err != nil {
			w.T.Error(err)
		}
	})
}

// A node is created in a directory, and the reply is late. Meanwhile the directory is deleted,
// and another call of the client makes it anew. The late reply does not make the client forget
// that the new directory carries its mark.
func TestKind_ALateReplyFromADeletedDirectoryLeavesTheMarkOfTheNextOneKnown(t *testing.T) {
	onMemory(t, func(w *world) {
		var before, after coordtest.Nth
		var bare atomic.Int64
		joins := func(c backendtest.Call) bool {
			return coordtest.Creates(c) && c.Ops[0].Mode == backend.EphemeralSequential
		}
		g := w.group("a", &backendtest.Hooks{
			Before: func(ctx context.Context, c backendtest.Call) error {
				if joins(c) && !coordtest.Commits(c, backend.OpCarry) {
					bare.Add(1)
				}
				return before.Before(ctx, c)
			},
			After: after.After,
		})
		join := func(id string) <-chan struct{} {
			done := make(chan struct{})
			go func() {
				defer close(done)
				mustJoin(w.T, g, id, "")
			}()
			return done
		}
		// The client knows the directory from here on. The member leaves: it would make
		// the directory anew itself when it is deleted, now and then before y.
		mustLeave(w.T, mustJoin(w.T, g, "first", ""))
		reply := w.stop(&after, joins)
		x := join("x")
		<-reply.reached
		w.raze("/g")
		made := w.stop(&before, func(c backendtest.Call) bool { return coordtest.Creates(c) && c.Ops[0].Path == "/g" })
		y := join("y")
		<-made.reached // y has found that the directory is gone
		look := w.stop(&before, func(c backendtest.Call) bool { return c.Op == "children" && c.Path == "/g" })
		close(reply.open)
		<-look.reached // x examines the directory
		put := w.stop(&before, joins)
		close(made.open)
		<-put.reached // y has made the directory
		close(look.open)
		<-x
		close(put.open)
		<-y
		mustJoin(w.T, g, "z", "")
		if n := bare.Load(); n != 0 {
			w.T.Errorf("%d nodes were created without the mark, which costs a read more for each", n)
		}
	})
}

// Whatever happens between the write of a mark over another kind's and the removal of that
// mark, no call is granted beside the other kind, and the mark does not stay.
func TestKind_AMarkOverThatOfAnotherKindDoesNotStay(t *testing.T) {
	lists := func(c backendtest.Call) bool { return c.Op == "children" }
	takesBack := func(c backendtest.Call) bool {
		return len(c.Ops) == 2 && c.Ops[0].Kind == backend.OpDelete && c.Ops[1].Kind == backend.OpSetData
	}
	makes := func(c backendtest.Call) bool { return coordtest.Creates(c) && c.Ops[0].Mode.Sequential() }
	expire := func(w *world) func(context.Context, backendtest.Call, error) error {
		return func(_ context.Context, c backendtest.Call, _ error) error {
			w.Link("a").Expire(c.Session.ID())
			<-c.Session.Done()
			return nil
		}
	}
	for name, x := range map[string]struct {
		prepare func(w *world, after *coordtest.Nth)                             // before the client knows the path
		arm     func(w *world, before, after *coordtest.Nth, cancel func(error)) // after that
		want    error
	}{
		"nothing happens": {want: coord.ErrKind},
		"ctx ends before the list": {arm: func(w *world, before, _ *coordtest.Nth, cancel func(error)) {
			before.Arm(1, lists, func(context.Context, backendtest.Call, error) error { cancel(nil); return nil })
		}, want: context.Canceled},
		"ctx ends before the list, with an error that is no answer": {arm: func(w *world, before, _ *coordtest.Nth, cancel func(error)) {
			before.Arm(1, lists, func(context.Context, backendtest.Call, error) error { cancel(coord.ErrDenied); return nil })
		}, want: context.Canceled},
		"ctx ends before the removal": {arm: func(w *world, before, _ *coordtest.Nth, cancel func(error)) {
			before.Arm(1, takesBack, func(context.Context, backendtest.Call, error) error { cancel(nil); return nil })
		}, want: context.Canceled},
		"the session is lost before the list": {arm: func(w *world, before, _ *coordtest.Nth, _ func(error)) {
			before.Arm(1, lists, expire(w))
		}, want: coord.ErrKind},
		"the session is lost before the removal": {arm: func(w *world, before, _ *coordtest.Nth, _ func(error)) {
			before.Arm(1, takesBack, expire(w))
		}, want: coord.ErrKind},
		"the removal is lost": {arm: func(w *world, before, _ *coordtest.Nth, _ func(error)) {
			before.Arm(1, takesBack, coordtest.Lose)
		}, want: coord.ErrKind},
		"the reply to the removal is lost": {arm: func(w *world, _, after *coordtest.Nth, _ func(error)) {
			after.Arm(1, takesBack, coordtest.Lose)
		}, want: coord.ErrKind},
		"the reply to the creation is lost": {arm: func(w *world, _, after *coordtest.Nth, _ func(error)) {
			after.Arm(1, makes, coordtest.Lose)
		}, want: coord.ErrKind},
		"another client reads the mark, and writes it": {arm: func(w *world, before, _ *coordtest.Nth, _ func(error)) {
			before.Arm(1, takesBack, func(context.Context, backendtest.Call, error) error {
				ctx, cancel := context.WithTimeout(context.Background(), w.Timeout/3)
				defer cancel()
				_, err := coord.NewMutex(w.Open("d", nil), "/p", nil).Lock(ctx) // waits behind the other node
				coordtest.WantErr(w.T, err, context.DeadlineExceeded)
				return nil
			})
		}, want: coord.ErrKind},
		"the client knows only that it created the directory": {prepare: func(w *world, after *coordtest.Nth) {
			after.Arm(1, makes, coordtest.Lose)
		}, want: coord.ErrKind},
	} {
		t.Run(name, func(t *testing.T) {
			onMemory(t, func(w *world) {
				if w.Spares {
					return // no mark is written over another one
				}
				var before, after coordtest.Nth
				c := w.aMutexBefore(func() {
					if x.prepare != nil {
						x.prepare(w, &after)
					}
				}, &backendtest.Hooks{Before: before.Before, After: after.After})
				ctx, cancel := context.WithCancelCause(context.Background())
				defer cancel(nil)
				if x.arm != nil {
					x.arm(w, &before, &after, cancel)
				}
				h, err := coord.NewMutex(c, "/p", nil).Lock(ctx)
				if err == nil {
					h.Release()
				}
				coordtest.WantErr(w.T, err, x.want)
				if !before.Idle() || !after.Idle() {
					w.T.Error("what was to happen has not happened")
				}
				// No further call of that client is needed.
				var data []byte
				w.Eventually("the mark is gone", func() bool {
					s := w.Session("x")
					defer s.Close()
					data, _, err = s.Get(context.Background(), w.Path("/p"), nil)
					return err != nil || string(data) != "coord recipe: mutex"
				})
				acquired, err := coord.NewSemaphore(w.Open("c", nil), "/p", 2, nil).Acquire(context.Background(), 1)
				if err != nil {
					w.T.Fatalf("a new client of the semaphore: %v", err)
				}
				wantKind(w.T, func() error {
					h, err := coord.NewMutex(c, "/p", nil).Lock(context.Background())
					if err == nil {
						h.Release()
					}
					return err
				}(), w.Path("/p"), "mutex", "semaphore")
				coordtest.MustRelease(w.T, acquired)
			})
		})
	}
}

// A client reads the mark that another one has written over that of another kind, before that
// client removes it, or dies: it is refused too, and removes the mark.
func TestKind_AMarkOverThatOfAnotherKindMisleadsNoClient(t *testing.T) {
	takesBack := func(c backendtest.Call) bool {
		return len(c.Ops) == 2 && c.Ops[0].Kind == backend.OpDelete && c.Ops[1].Kind == backend.OpSetData
	}
	for _, first := range kindUses() {
		if first.kind != "mutex" && first.kind != "rwmutex" && first.kind != "election" && first.kind != "group" {
			continue
		}
		for _, dies := range []bool{false, true} {
			t.Run(fmt.Sprint(first.kind, " dies ", dies), func(t *testing.T) {
				onMemory(t, func(w *world) {
					if w.Spares {
						return // no mark is written over another one
					}
					ctx := context.Background()
					var before coordtest.Nth
					a := w.Open("a", &backendtest.Hooks{Before: before.Before})
					if err := first.use(ctx, a, "/p"); err != nil {
						w.T.Fatal(err)
					}
					w.raze("/p")
					h := acquire(w.T, coord.NewSemaphore(w.Open("b", nil), "/p", 2, nil), 1)
					misled := make(chan error, 1)
					before.Arm(1, takesBack, func(ctx context.Context, c backendtest.Call, _ error) error {
						go func() { misled <- first.use(context.Background(), w.Open("d", nil), "/p") }()
						w.Settle()
						if !dies {
							return nil
						}
						w.Link("a").Partition()
						return coordtest.Silence(ctx, c)
					})
					if dies {
						ctx, cancel := context.WithTimeout(ctx, w.Timeout/3)
						defer cancel()
						coordtest.WantErr(w.T, first.use(ctx, a, "/p"), context.DeadlineExceeded)
					} else {
						wantKind(w.T, first.use(ctx, a, "/p"), w.Path("/p"), first.kind, "semaphore")
					}
					wantKind(w.T, <-misled, w.Path("/p"), first.kind, "semaphore")
					w.Eventually("the service has ended the session of the first client", func() bool { return len(w.Children("/p")) == 2 })
					coordtest.MustRelease(w.T, acquire(w.T, coord.NewSemaphore(w.Open("e", nil), "/p", 2, nil), 1))
					coordtest.MustRelease(w.T, h)
				})
			})
		}
	}
}

// Two calls write their marks over that of another kind: that one of them examines the
// directory does not spare the other the examination.
func TestKind_EachCallExaminesADirectoryThatIsNotTheKnownOne(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		var before coordtest.Nth
		g := textGroup(w.Open("a", &backendtest.Hooks{Before: before.Before}), false)
		if err := mustJoin(w.T, g, "x", "1").Leave(); err != nil {
			w.T.Fatal(err)
		}
		w.raze("/g")
		s := coord.NewSemaphore(w.Open("b", nil), "/g", 2, nil)
		coordtest.MustRelease(w.T, acquire(w.T, s, 1))
		before.Arm(1, func(c backendtest.Call) bool { return c.Op == "children" }, func(context.Context, backendtest.Call, error) error {
			_, err := g.Join(ctx, "y", "1")
			wantKind(w.T, err, w.Path("/g"), "group", "semaphore")
			return nil
		})
		_, err := g.Join(ctx, "x", "1")
		wantKind(w.T, err, w.Path("/g"), "group", "semaphore")
		coordtest.MustRelease(w.T, acquire(w.T, coord.NewSemaphore(w.Open("c", nil), "/g", 2, nil), 1))
	})
}

// A directory that its own client has just created is not examined, and one that was created
// again for the same kind is examined once.
func TestKind_ADirectoryIsExaminedOnceWhenItIsAnotherOne(t *testing.T) {
	onMemory(t, func(w *world) {
		lists := 0
		m := coord.NewMutex(w.Open("a", &backendtest.Hooks{Before: func(_ context.Context, c backendtest.Call) error {
			if c.Op == "children" {
				lists++
			}
			return nil
		}}), "/p", nil)
		for _, want := range []int{0, 1} {
			for range 3 {
				coordtest.MustRelease(w.T, coordtest.MustLock(w.T, m))
			}
			if lists != want {
				w.T.Errorf("%d lists, want %d", lists, want)
			}
			w.raze("/p")
			coordtest.MustRelease(w.T, coordtest.MustLock(w.T, coord.NewMutex(w.Open("b", nil), "/p", nil)))
			w.Settle()
		}
	})
}

// A contender that was alone when it created its node is at the head of the queue. But when
// it has to examine the directory first, its node can be deleted before that, and the next
// contender is at the head.
func TestKind_AContenderWhoseNodeGoesWhileItExaminesTheDirectoryIsNotTheHead(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		var before coordtest.Nth
		m := coord.NewMutex(w.Open("a", &backendtest.Hooks{Before: before.Before}), "/p", nil)
		coordtest.MustRelease(w.T, coordtest.MustLock(w.T, m))
		w.raze("/p")
		other := coord.NewMutex(w.Open("b", nil), "/p", nil)
		coordtest.MustRelease(w.T, coordtest.MustLock(w.T, other))
		var theirs *coord.Hold
		before.Arm(1, func(c backendtest.Call) bool { return c.Op == "children" }, func(context.Context, backendtest.Call, error) error {
			x := w.Session("x")
			for _, name := range w.Children("/p") {
				if _, err := x.Commit(ctx, backend.Delete(w.Path("/p/"+name), backend.AnyVersion)); err != nil {
					w.T.Fatal(err)
				}
			}
			theirs = coordtest.MustLock(w.T, other)
			return nil
		})
		l := w.Waiting(ctx, m)
		l.Pending()
		coordtest.MustRelease(w.T, theirs)
		coordtest.MustRelease(w.T, l.Hold())
		w.Empty("/p")
	})
}

package coord_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
)

// What errors say to the reader of a log: what was refused, where, and why, once.
func TestWhatErrorsSay(t *testing.T) {
	ctx := context.Background()
	type call = func(w *world, c *coord.Client) error
	open := func(o coord.QueueOptions[int]) call {
		return func(_ *world, c *coord.Client) error {
			_, err := coord.NewQueue(c, "/q", &o).Put(ctx, 1)
			return err
		}
	}
	commit := func(build func(*coord.Txn) *coord.Txn) call {
		return func(w *world, c *coord.Client) error {
			if _, err := coord.NewValue[int](c, "/n/v", nil).Set(ctx, 1); err != nil {
				w.t.Fatal(err)
			}
			_, err := build(coord.NewTxn(c)).Commit(ctx)
			return err
		}
	}
	for _, x := range []struct {
		call call
		want string // %s is the path of the hold
	}{
		{func(_ *world, c *coord.Client) error {
			_, err := coord.LockAll(ctx, coord.NewMutex(c, "/a", nil), nil, coord.NewMutex(c, "/b", nil))
			return err
		}, "coord: lockall: invalid argument: locker 2 of 3 is nil"},
		{func(_ *world, c *coord.Client) error {
			_, err := coord.LockAll(ctx, coord.NewMutex(c, "/a", nil), (*coord.Semaphore)(nil).Locker(1))
			return err
		}, "coord: lockall: invalid argument: locker 2 of 2 is nil"},
		{commit(func(t *coord.Txn) *coord.Txn { return t.If(coord.Exists("/n"), coord.Missing("/n/v")) }),
			"coord: transaction refused: condition 1 (missing /n/v): node exists"},
		{commit(func(t *coord.Txn) *coord.Txn { return t.If(coord.VersionIs("/n/v", 7)) }),
			"coord: transaction refused: condition 0 (version /n/v): version does not match"},
		{commit(func(t *coord.Txn) *coord.Txn { return t.Set("/n/v", nil).Delete("/n") }),
			"coord: transaction refused: operation 1 (delete /n): node has children"},
		{func(w *world, c *coord.Client) error {
			h := mustLock(w.t, coord.NewMutex(c, "/l", nil))
			if err := h.Release(); err != nil {
				w.t.Fatal(err)
			}
			_, err := coord.NewTxn(c).Under(h.Guard()).Delete("/x").Commit(ctx)
			return &holdError{err, h.Path()}
		}, "coord: transaction refused: guard 0 (node %s): node not found"},
		{open(coord.QueueOptions[int]{MaxLen: -1}), "coord: put /q: invalid argument: MaxLen -1"},
		{open(coord.QueueOptions[int]{MaxAttempts: -2}), "coord: put /q: invalid argument: MaxAttempts -2"},
		{open(coord.QueueOptions[int]{Prefetch: math.MinInt}), fmt.Sprint("coord: put /q: invalid argument: Prefetch ", math.MinInt)},
		{open(coord.QueueOptions[int]{DeadLetters: "/q"}), "coord: put /q: invalid argument: DeadLetters is the path of the queue itself"},
		{open(coord.QueueOptions[int]{DeadLetters: "/q/items"}), `coord: put /q: invalid argument: DeadLetters "/q/items" stands in the items or waiters of the queue`},
		{func(_ *world, c *coord.Client) error {
			_, err := coord.NewQueue(c, "/d/waiters/q", &coord.QueueOptions[int]{DeadLetters: "/d"}).Put(ctx, 1)
			return err
		}, `coord: put /d/waiters/q: invalid argument: the queue stands in the items or waiters of its DeadLetters "/d"`},
		{func(_ *world, c *coord.Client) error {
			half := coord.Codec[int]{Decode: coord.JSON[int]().Decode}
			_, err := coord.NewValue(c, "/v", &coord.ValueOptions[int]{Codec: half}).Set(ctx, 1)
			return err
		}, "coord: set /v: cannot encode: invalid argument: a Codec needs both Encode and Decode"},
		{func(_ *world, c *coord.Client) error {
			_, err := coord.NewValue[chan int](c, "/v", nil).Set(ctx, nil)
			return err
		}, "coord: set /v: invalid argument: cannot encode: json: unsupported type: chan int"},
		{func(_ *world, c *coord.Client) error {
			_, err := coord.NewDelayQueue[int](c, "/q", nil).Put(ctx, time.Date(12000, 1, 1, 0, 0, 0, 0, time.UTC), 1)
			return err
		}, "coord: put /q: invalid argument: due in the year 12000, after 9999"},
		{func(w *world, c *coord.Client) error {
			_, err := coord.NewCoordinator[string](c, "/tx", nil).Propose(ctx, w.proposal("t", "ghost"))
			return err
		}, `coord: propose /tx: site "ghost" was never served: node not found`},
		{func(w *world, c *coord.Client) error {
			w.accounts("two")
			_, err := coord.NewCoordinator[string](c, "/tx", nil).RemoveSite(ctx, "two")
			return err
		}, `coord: removesite /tx/sites/two: site "two" is served: locked`},
	} {
		onMemory(t, func(w *world) {
			err := x.call(w, w.open("c", nil))
			want := x.want
			if h := (*holdError)(nil); errors.As(err, &h) {
				err, want = h.error, fmt.Sprintf(want, h.path)
			}
			if err == nil || err.Error() != want {
				w.t.Errorf("got  %v\nwant %s", err, want)
			}
		})
	}
}

// holdError is an error whose text names a node.
type holdError struct {
	error
	path string
}

// The wait of LockAll ends with the loss of a hold, and so does the release of that hold.
func TestLockAllTellsALossOnce(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		c := w.open("c", nil)
		held := mustLock(w.t, coord.NewMutex(w.open("other", nil), "/b", nil))
		ended := make(chan error)
		go func() {
			_, err := coord.LockAll(ctx, coord.NewMutex(c, "/a", nil), coord.NewMutex(c, "/b", nil))
			ended <- err
		}()
		w.settle()
		name := w.children("/a")[0]
		if _, err := w.session("x").Commit(ctx, backend.Delete(w.path("/a/"+name), backend.AnyVersion)); err != nil {
			w.t.Fatal(err)
		}
		err := <-ended
		wantErr(w.t, err, coord.ErrLost, coord.ErrDeleted)
		if want := "coord: hold /a/" + name + ": lost: node deleted by somebody else"; err.Error() != want {
			w.t.Errorf("got  %v\nwant %s", err, want)
		}
		if err := held.Release(); err != nil {
			w.t.Error(err)
		}
	})
}

// The reply to the removal is lost, and then the session.
func TestAnUncertainReleaseNamesItsNodeOnce(t *testing.T) {
	onMemory(t, func(w *world) {
		var x nth
		c := w.open("c", &backendtest.Hooks{After: x.after})
		h := mustLock(w.t, coord.NewMutex(c, "/l", nil))
		x.arm(1, deletes, func(_ context.Context, call backendtest.Call, _ error) error {
			w.Link("c").Partition()
			<-call.Session.Done()
			return &backend.Error{Op: "delete", Path: h.Path(), Err: backend.Uncertain(backend.ErrSessionLost)}
		})
		err := h.Release()
		wantErr(w.t, err, coord.ErrLost, coord.ErrUncertain)
		if text := err.Error(); strings.Count(text, "coord:") != 1 || strings.Count(text, h.Path()) != 1 {
			w.t.Errorf("%v repeats itself", err)
		}
		w.Link("c").Heal()
	})
}

func TestPoliciesHaveNames(t *testing.T) {
	for want, x := range map[string]fmt.Stringer{
		"fail": coord.FailUnserved, "abort": coord.AbortUnserved, "await": coord.AwaitUnserved, "unknown": coord.Unserved(7),
		"round robin": coord.RoundRobin, "random": coord.Random,
	} {
		if got := x.String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	if got := coord.PickPolicy(7).String(); got != "unknown" {
		t.Errorf("got %q", got)
	}
}

package coord_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/internal/coordtest"
)

// Found during the design: the fast create rewrites the data of the directory, and would erase
// what others stored there.
func TestADirectoryWithDataKeepsIt(t *testing.T) {
	onEach(t, func(w *world) {
		s := w.Session("x")
		w.Used("/l")
		if _, err := s.Commit(context.Background(), backend.SetData(w.Path("/l"), []byte("foreign"), backend.AnyVersion)); err != nil {
			w.T.Fatal(err)
		}
		m := coord.NewMutex(w.Open("a", nil), "/l", nil)
		first := coordtest.MustLock(w.T, m)
		local := w.Waiting(context.Background(), m)
		outside := w.Waiting(context.Background(), coord.NewMutex(w.Open("b", nil), "/l", nil))
		coordtest.MustRelease(w.T, first)
		second := outside.Hold()
		coordtest.MustRelease(w.T, second)
		third := local.Hold()
		if !(first.Token() > 0 && first.Token() < second.Token() && second.Token() < third.Token()) {
			w.T.Errorf("tokens %d, %d, %d", first.Token(), second.Token(), third.Token())
		}
		coordtest.MustRelease(w.T, third)
		data, _, err := s.Get(context.Background(), w.Path("/l"), nil)
		if err != nil || string(data) != "foreign" {
			w.T.Errorf("the directory's data is %q, %v", data, err)
		}
	})
}

// A client that may create children but not write the directory's data uses the longer way,
// after one refusal.
func TestADirectoryThatMayNotBeWrittenIsUsedTheLongWay(t *testing.T) {
	onMemory(t, func(w *world) {
		var refused atomic.Int32
		c := w.Open("a", &backendtest.Hooks{Before: func(_ context.Context, c backendtest.Call) error {
			for i, op := range c.Ops {
				if op.Kind == backend.OpSetData && op.Path == "/l" {
					refused.Add(1)
					return &backend.Error{Op: "set", Path: op.Path, Index: i, Err: backend.ErrDenied}
				}
			}
			return nil
		}})
		m := coord.NewMutex(c, "/l", nil)
		var last int64
		for range 3 {
			h := coordtest.MustLock(w.T, m)
			local := w.Waiting(context.Background(), m)
			if h.Token() <= last {
				w.T.Errorf("token %d after %d", h.Token(), last)
			}
			coordtest.MustRelease(w.T, h)
			next := local.Hold()
			if next.Token() <= h.Token() {
				w.T.Errorf("token %d after %d", next.Token(), h.Token())
			}
			last = next.Token()
			coordtest.MustRelease(w.T, next)
		}
		w.Empty("/l")
		if n := refused.Load(); n != 1 {
			w.T.Errorf("refused %d times, want once: it is remembered", n)
		}
	})
}

// The directory is reaped, and an outsider creates a value in its place.
func TestADirectoryThatWasCreatedAgainWithDataKeepsIt(t *testing.T) {
	onEach(t, func(w *world) {
		var before coordtest.Nth
		s := w.Session("x")
		ctx := context.Background()
		m := coord.NewMutex(w.Open("a", &backendtest.Hooks{Before: before.Before}), "/l", nil)
		coordtest.Prime(w.T, m)
		if _, err := s.Commit(ctx, backend.Delete(w.Path("/l"), backend.AnyVersion)); err != nil {
			w.T.Fatal(err)
		}
		container := func(c backendtest.Call) bool { return coordtest.Creates(c) && c.Ops[0].Mode == backend.Container }
		before.Arm(1, container, func(context.Context, backendtest.Call, error) error {
			_, err := s.Commit(ctx, backend.Create(w.Path("/l"), []byte("foreign"), backend.Persistent))
			return err
		})
		_, err := m.Lock(ctx)
		wantKind(w.T, err, w.Path("/l"), "mutex", "value")
		data, _, err := s.Get(ctx, w.Path("/l"), nil)
		if err != nil || string(data) != "foreign" {
			w.T.Errorf("the directory's data is %q, %v", data, err)
		}
	})
}

// A client without any permission gets the error, and leaves nothing.
func TestADeniedCallFailsAtOnce(t *testing.T) {
	onMemory(t, func(w *world) {
		c := w.Open("a", &backendtest.Hooks{Before: func(_ context.Context, c backendtest.Call) error {
			if c.Op == "commit" {
				return &backend.Error{Op: c.Ops[0].Kind.String(), Path: c.Path, Err: backend.ErrDenied}
			}
			return nil
		}})
		_, err := coord.NewMutex(c, "/l", nil).Lock(context.Background())
		coordtest.WantErr(w.T, err, coord.ErrDenied)
		_, err = coord.NewMutex(c, "/l", nil).TryLock(context.Background())
		coordtest.WantErr(w.T, err, coord.ErrDenied)
	})
}

// A release that the service refuses returns the error, and is retried.
func TestARefusedReleaseIsReportedAndTriedAgain(t *testing.T) {
	onMemory(t, func(w *world) {
		var before coordtest.Nth
		m := coord.NewMutex(w.Open("a", &backendtest.Hooks{Before: before.Before}), "/l", nil)
		h := coordtest.MustLock(w.T, m)
		before.Arm(1, coordtest.Deletes, func(context.Context, backendtest.Call, error) error { return backend.ErrDenied })
		err := h.Release()
		coordtest.WantErr(w.T, err, coord.ErrDenied)
		coordtest.WantErr(w.T, h.Err(), coord.ErrReleased)
		w.Empty("/l")
		coordtest.MustRelease(w.T, coordtest.MustLock(w.T, m))
	})
}

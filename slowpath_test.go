package coord_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
)

// Found while this was designed: the fast create rewrites the data of the
// directory, and would erase what others stored there.
func TestADirectoryWithDataKeepsIt(t *testing.T) {
	onEach(t, func(w *world) {
		s := w.session("x")
		w.used("/l")
		if _, err := s.Commit(context.Background(), backend.SetData(w.path("/l"), []byte("foreign"), backend.AnyVersion)); err != nil {
			w.t.Fatal(err)
		}
		m := coord.NewMutex(w.open("a", nil), "/l", nil)
		first := mustLock(w.t, m)
		local := w.waiting(context.Background(), m)
		outside := w.waiting(context.Background(), coord.NewMutex(w.open("b", nil), "/l", nil))
		mustRelease(w.t, first)
		second := outside.hold()
		mustRelease(w.t, second)
		third := local.hold()
		if !(first.Token() > 0 && first.Token() < second.Token() && second.Token() < third.Token()) {
			w.t.Errorf("tokens %d, %d, %d", first.Token(), second.Token(), third.Token())
		}
		mustRelease(w.t, third)
		data, _, err := s.Get(context.Background(), w.path("/l"), nil)
		if err != nil || string(data) != "foreign" {
			w.t.Errorf("the directory's data is %q, %v", data, err)
		}
	})
}

// A client that may create children and not write the directory's data uses the
// longer way, after one refusal.
func TestADirectoryThatMayNotBeWrittenIsUsedTheLongWay(t *testing.T) {
	onMemory(t, func(w *world) {
		var refused atomic.Int32
		c := w.open("a", &backendtest.Hooks{Before: func(_ context.Context, c backendtest.Call) error {
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
			h := mustLock(w.t, m)
			local := w.waiting(context.Background(), m)
			if h.Token() <= last {
				w.t.Errorf("token %d after %d", h.Token(), last)
			}
			mustRelease(w.t, h)
			next := local.hold()
			if next.Token() <= h.Token() {
				w.t.Errorf("token %d after %d", next.Token(), h.Token())
			}
			last = next.Token()
			mustRelease(w.t, next)
		}
		w.empty("/l")
		if n := refused.Load(); n != 1 {
			w.t.Errorf("refused %d times, want once: it is remembered", n)
		}
	})
}

// The directory is reaped, and an outsider makes a value in its place.
func TestADirectoryThatWasMadeAnewWithDataKeepsIt(t *testing.T) {
	onEach(t, func(w *world) {
		var before nth
		s := w.session("x")
		ctx := context.Background()
		m := coord.NewMutex(w.open("a", &backendtest.Hooks{Before: before.before}), "/l", nil)
		prime(w.t, m)
		if _, err := s.Commit(ctx, backend.Delete(w.path("/l"), backend.AnyVersion)); err != nil {
			w.t.Fatal(err)
		}
		container := func(c backendtest.Call) bool { return creates(c) && c.Ops[0].Mode == backend.Container }
		before.arm(1, container, func(context.Context, backendtest.Call, error) error {
			_, err := s.Commit(ctx, backend.Create(w.path("/l"), []byte("foreign"), backend.Persistent))
			return err
		})
		_, err := m.Lock(ctx)
		wantKind(w.t, err, w.path("/l"), "mutex", "value")
		data, _, err := s.Get(ctx, w.path("/l"), nil)
		if err != nil || string(data) != "foreign" {
			w.t.Errorf("the directory's data is %q, %v", data, err)
		}
	})
}

// A client without any permission is told so, and leaves nothing.
func TestADeniedCallerIsToldAtOnce(t *testing.T) {
	onMemory(t, func(w *world) {
		c := w.open("a", &backendtest.Hooks{Before: func(_ context.Context, c backendtest.Call) error {
			if c.Op == "commit" {
				return &backend.Error{Op: c.Ops[0].Kind.String(), Path: c.Path, Err: backend.ErrDenied}
			}
			return nil
		}})
		_, err := coord.NewMutex(c, "/l", nil).Lock(context.Background())
		wantErr(w.t, err, coord.ErrDenied)
		_, err = coord.NewMutex(c, "/l", nil).TryLock(context.Background())
		wantErr(w.t, err, coord.ErrDenied)
	})
}

// A release that the service refuses says so, and is tried again.
func TestARefusedReleaseIsReportedAndTriedAgain(t *testing.T) {
	onMemory(t, func(w *world) {
		var before nth
		m := coord.NewMutex(w.open("a", &backendtest.Hooks{Before: before.before}), "/l", nil)
		h := mustLock(w.t, m)
		before.arm(1, deletes, func(context.Context, backendtest.Call, error) error { return backend.ErrDenied })
		err := h.Release()
		wantErr(w.t, err, coord.ErrDenied)
		wantErr(w.t, h.Err(), coord.ErrReleased)
		w.empty("/l")
		mustRelease(w.t, mustLock(w.t, m))
	})
}

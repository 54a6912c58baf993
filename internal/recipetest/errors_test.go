package recipetest

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/backend/memory"
	"github.com/go-coord/coord/internal/coordtest"
)

// documented reads the first column of the table of errors in doc.go.
func documented(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile("../../doc.go")
	if err != nil {
		t.Fatal(err)
	}
	_, table, ok := strings.Cut(string(text), "what the caller does\n")
	if !ok {
		t.Fatal("doc.go has no table of errors")
	}
	var names []string
	for line := range strings.Lines(table) {
		row, ok := strings.CutPrefix(line, "//\t")
		if !ok {
			break
		}
		name, _, _ := strings.Cut(row, "  ")
		names = append(names, name)
	}
	return names
}

// A caller can get the error of each row of the table in the manual, and the error matches the
// name in that row.
func TestErrors_TheManualsErrorsAreReached(t *testing.T) {
	type scene struct {
		t    *testing.T
		st   *memory.Store
		link *memory.Link
		c    *coord.Client
		m    *coord.Mutex
	}
	ctx := context.Background()
	deny := func(x *scene) *coord.Client {
		return coordtest.Open(x.t, backendtest.Intercept(x.st, backendtest.Hooks{
			Before: func(_ context.Context, c backendtest.Call) error {
				if c.Op == "commit" {
					return backend.ErrDenied
				}
				return nil
			},
		}), nil)
	}
	raw := func(x *scene, ops ...backend.Op) error {
		s, err := x.c.Session(ctx)
		if err != nil {
			return err
		}
		_, err = s.Commit(ctx, ops...)
		return err
	}
	rows := map[string]struct {
		err   error
		reach func(x *scene) error
	}{
		"ctx's own": {context.Canceled, func(x *scene) error {
			ended, cancel := context.WithCancel(ctx)
			cancel()
			_, err := x.m.Lock(ended)
			return err
		}},
		"ErrNoContact": {coord.ErrNoContact, func(x *scene) error {
			short, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			x.link.Partition()
			defer x.link.Heal()
			_, err := x.m.Lock(short)
			return err
		}},
		"ErrFenced": {coord.ErrFenced, func(x *scene) error {
			h := coordtest.MustLock(x.t, x.m)
			coordtest.MustRelease(x.t, h)
			_, err := coord.NewTxn(x.c).Under(h.Guard()).Create("/fenced", nil, backend.Persistent).Commit(ctx)
			return err
		}},
		"ErrLocked": {coord.ErrLocked, func(x *scene) error {
			coordtest.MustLock(x.t, x.m)
			_, err := x.m.TryLock(ctx)
			return err
		}},
		"ErrLost": {coord.ErrLost, func(x *scene) error {
			h := coordtest.MustLock(x.t, x.m)
			x.link.Expire(h.Session())
			<-h.Done()
			return h.Err()
		}},
		"ErrReleased": {coord.ErrReleased, func(x *scene) error {
			h := coordtest.MustLock(x.t, x.m)
			coordtest.MustRelease(x.t, h)
			return h.Err()
		}},
		"ErrSessionLost": {coord.ErrSessionLost, func(x *scene) error {
			h := coordtest.MustLock(x.t, x.m)
			x.link.Partition()
			<-h.Done()
			return h.Release()
		}},
		"ErrDeleted": {coord.ErrDeleted, func(x *scene) error {
			h := coordtest.MustLock(x.t, x.m)
			if err := raw(x, backend.Delete(h.Path(), backend.AnyVersion)); err != nil {
				x.t.Fatal(err)
			}
			<-h.Done()
			return h.Err()
		}},
		"ErrRevoked": {coord.ErrRevoked, func(x *scene) error {
			h := coordtest.MustLock(x.t, x.m)
			if err := x.m.Revoke(ctx, &coord.RevokeOptions{ForceAfter: time.Second}); err != nil {
				x.t.Fatal(err)
			}
			<-h.Done()
			return h.Err()
		}},
		"ErrSuspended": {coord.ErrSuspended, func(x *scene) error {
			term, err := coord.NewElection(x.c, "/e", &coord.ElectionOptions{StepDownOnSuspend: true}).Campaign(ctx)
			if err != nil {
				x.t.Fatal(err)
			}
			x.link.Partition()
			<-term.Done()
			return term.Err()
		}},
		"ErrClaimTimeout": {coord.ErrClaimTimeout, func(x *scene) error {
			q := coord.NewQueue(x.c, "/q", &coord.QueueOptions[int]{ClaimTimeout: time.Second})
			if _, err := q.Put(ctx, 1); err != nil {
				x.t.Fatal(err)
			}
			it, err := q.Take(ctx)
			if err != nil {
				x.t.Fatal(err)
			}
			<-it.Done()
			return it.Ack()
		}},
		"ErrEmpty": {coord.ErrEmpty, func(x *scene) error {
			_, err := coord.NewQueue[int](x.c, "/q", nil).TryTake(ctx)
			return err
		}},
		"ErrFull": {coord.ErrFull, func(x *scene) error {
			q := coord.NewQueue[int](x.c, "/q", &coord.QueueOptions[int]{MaxLen: 1, FailWhenFull: true})
			if _, err := q.Put(ctx, 1); err != nil {
				x.t.Fatal(err)
			}
			_, err := q.Put(ctx, 2)
			return err
		}},
		"ErrDuplicate": {coord.ErrDuplicate, func(x *scene) error {
			g := coord.NewGroup[string](x.c, "/g", nil)
			if _, err := g.Join(ctx, "a", "here"); err != nil {
				x.t.Fatal(err)
			}
			_, err := g.Join(ctx, "a", "there")
			return err
		}},
		"ErrConflict": {coord.ErrConflict, func(x *scene) error {
			v := coord.NewValue[int](x.c, "/v", nil)
			old, err := v.Set(ctx, 1)
			if err != nil {
				x.t.Fatal(err)
			}
			if _, err := v.Set(ctx, 2); err != nil {
				x.t.Fatal(err)
			}
			_, err = v.CompareAndSet(ctx, old, 3)
			return err
		}},
		"ErrDecode": {coord.ErrDecode, func(x *scene) error {
			if err := raw(x, backend.Create("/v", []byte("{"), backend.Persistent)); err != nil {
				x.t.Fatal(err)
			}
			_, err := coord.NewValue[int](x.c, "/v", nil).Get(ctx)
			return err
		}},
		"ErrKind": {coord.ErrKind, func(x *scene) error {
			coordtest.MustRelease(x.t, coordtest.MustLock(x.t, x.m))
			_, err := coord.NewRWMutex(x.c, "/l", nil).RLock(ctx)
			return err
		}},
		"ErrInDoubt": {coord.ErrInDoubt, func(x *scene) error {
			serving, stop := context.WithCancel(ctx)
			var wg sync.WaitGroup
			defer wg.Wait()
			defer stop()
			for site, prepare := range map[string]func(context.Context, coord.Branch[string]) error{
				"votes": func(context.Context, coord.Branch[string]) error { return nil },
				"waits": func(ctx context.Context, _ coord.Branch[string]) error { <-ctx.Done(); return ctx.Err() },
			} {
				told := func(context.Context, coord.Branch[string]) error { return nil }
				h := coord.Handler[string]{Prepare: prepare, Commit: told, Abort: told, InDoubt: func(context.Context, coord.Branch[string], error) {}}
				wg.Go(func() { coord.NewParticipant(x.c, "/tx", site, h).Serve(serving) })
			}
			synctest.Wait()
			result := make(chan error, 1)
			wg.Go(func() {
				_, err := coord.NewCoordinator[string](x.c, "/tx", nil).Propose(ctx, coord.Proposal[string]{ID: "t", Sites: []string{"votes", "waits"}})
				result <- err
			})
			synctest.Wait()
			var ops []backend.Op
			for _, name := range coordtest.Children(x.t, x.st, "/tx/tx/t") {
				ops = append(ops, backend.Delete("/tx/tx/t/"+name, backend.AnyVersion))
			}
			if err := raw(x, append(ops, backend.Delete("/tx/tx/t", backend.AnyVersion))...); err != nil {
				x.t.Fatal(err)
			}
			return <-result
		}},
		"ErrHeld": {coord.ErrHeld, func(x *scene) error {
			return x.m.Do(ctx, func(ctx context.Context, _ *coord.Hold) error {
				_, err := x.m.Lock(ctx)
				return err
			})
		}},
		"ErrUpgrade": {coord.ErrUpgrade, func(x *scene) error {
			rw := coord.NewRWMutex(x.c, "/rw", nil)
			return rw.RLocker().Do(ctx, func(ctx context.Context, _ *coord.Hold) error {
				_, err := rw.Lock(ctx)
				return err
			})
		}},
		"ErrClosed": {coord.ErrClosed, func(x *scene) error {
			x.c.Close()
			_, err := x.m.Lock(ctx)
			return err
		}},
		"ErrUncertain": {coord.ErrUncertain, func(x *scene) error {
			x.link.DropNextReply()
			return raw(x, backend.Create("/r", nil, backend.Persistent))
		}},
		"ErrNotFound": {coord.ErrNotFound, func(x *scene) error {
			if err := raw(x, backend.Create("/r", nil, backend.Persistent)); err != nil {
				x.t.Fatal(err)
			}
			h := coordtest.MustLock(x.t, x.m)
			coordtest.MustRelease(x.t, h)
			return raw(x, append(h.Guard().Ops(), backend.SetData("/r", nil, backend.AnyVersion))...)
		}},
		"ErrExists": {coord.ErrExists, func(x *scene) error {
			if err := coord.NewBarrier(x.c, "/b", nil).Set(ctx); err != nil {
				x.t.Fatal(err)
			}
			return coord.NewBarrier(x.c, "/b", &coord.BarrierOptions{Ephemeral: true}).Set(ctx)
		}},
		"ErrBadVersion": {coord.ErrBadVersion, func(x *scene) error {
			if err := raw(x, backend.Create("/r", nil, backend.Persistent)); err != nil {
				x.t.Fatal(err)
			}
			_, err := coord.NewTxn(x.c).If(coord.IfVersion("/r", 1)).Set("/r", nil).Commit(ctx)
			return err
		}},
		"ErrNoChildren": {coord.ErrNoChildren, func(x *scene) error {
			if err := raw(x, backend.Create("/r", nil, backend.Ephemeral)); err != nil {
				x.t.Fatal(err)
			}
			_, err := coord.NewMutex(x.c, "/r/lock", nil).Lock(ctx)
			return err
		}},
		"ErrNotEmpty": {coord.ErrNotEmpty, func(x *scene) error {
			if err := raw(x, backend.Create("/r", nil, backend.Persistent)); err != nil {
				x.t.Fatal(err)
			}
			if err := raw(x, backend.Create("/r/x", nil, backend.Persistent)); err != nil {
				x.t.Fatal(err)
			}
			_, err := coord.NewTxn(x.c).Delete("/r").Commit(ctx)
			return err
		}},
		"ErrDenied": {coord.ErrDenied, func(x *scene) error {
			_, err := coord.NewMutex(deny(x), "/l", nil).Lock(ctx)
			return err
		}},
		"ErrTooLarge": {coord.ErrTooLarge, func(x *scene) error {
			_, err := coord.NewMutex(x.c, "/l", &coord.MutexOptions{Data: make([]byte, 1<<20)}).Lock(ctx)
			return err
		}},
		"ErrNoSpace": {coord.ErrNoSpace, func(x *scene) error {
			x.st.SetFull(true)
			_, err := coord.NewMutex(x.c, "/l", nil).Lock(ctx)
			return err
		}},
		"ErrBadPath": {coord.ErrBadPath, func(x *scene) error {
			_, err := coord.NewMutex(x.c, "l", nil).Lock(ctx)
			return err
		}},
		"ErrInvalid": {coord.ErrInvalid, func(x *scene) error {
			_, err := coord.Open(ctx, memory.New(&memory.Options{SessionTimeout: -1}), nil)
			return err
		}},
		"ErrUnsupported": {coord.ErrUnsupported, func(x *scene) error {
			return raw(x, backend.Check("/", backend.AnyVersion), backend.Create("/c", nil, backend.Container))
		}},
		"ErrLimit": {coord.ErrLimit, func(x *scene) error {
			coordtest.MustRelease(x.t, coordtest.MustLock(x.t, x.m))
			if err := x.st.SetSequence("/l", 2_147_000_000); err != nil {
				x.t.Fatal(err)
			}
			_, err := x.m.Lock(ctx)
			return err
		}},
	}
	seen := 0
	for _, name := range documented(t) {
		row, ok := rows[name]
		if !ok {
			t.Errorf("%s is in the manual and has no test", name)
			continue
		}
		seen++
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				x := &scene{t: t, st: memory.New(nil)}
				x.link = x.st.Link("a")
				x.c = coordtest.Open(t, x.link, nil)
				x.m = coord.NewMutex(x.c, "/l", nil)
				err := row.reach(x)
				coordtest.WantErr(t, err, row.err)
				var e *backend.Error
				if name != "ErrReleased" && !errors.Is(err, coord.ErrLost) && (!errors.As(err, &e) || e.Op == "") {
					t.Errorf("%v names no operation", err)
				}
			})
		})
	}
	if seen != len(rows) {
		t.Errorf("%d rows in the manual, %d in the test", seen, len(rows))
	}
}

// A call can fail at another node than its own: the error names both.
func TestErrors_AnErrorOfTheSameOperationElsewhereIsWrapped(t *testing.T) {
	onMemory(t, func(w *world) {
		var elsewhere error
		c := w.Open("a", &backendtest.Hooks{Before: func(context.Context, backendtest.Call) error { return elsewhere }})
		for path, want := range map[string]string{
			"/v":     "coord: get /v: permission denied",
			"/other": "coord: get /v: get /other: permission denied",
		} {
			elsewhere = &backend.Error{Op: "get", Path: path, Err: backend.ErrDenied}
			_, err := coord.NewValue[int](c, "/v", nil).Get(context.Background())
			var e *backend.Error
			if !errors.As(err, &e) || e.Op != "get" || e.Path != "/v" || err.Error() != want {
				w.T.Errorf("%v, want %s", err, want)
			}
		}
	})
}

// The cause of a context can be the error of the same operation on the same path: that of
// another client's call in an errgroup. The error of a call names its operation and path all
// the same, and does not become that of the other call.
func TestErrors_TheErrorOfACallIsNotThatOfTheCallThatEndedIt(t *testing.T) {
	onMemory(t, func(w *world) {
		bg := context.Background()
		closed := w.Open("closed", nil)
		closed.Close()
		check := func(err error, op, path string, targets ...error) {
			w.T.Helper()
			coordtest.WantErr(w.T, err, targets...)
			if e, ok := err.(*backend.Error); !ok || e.Op != op || e.Path != w.Path(path) {
				w.T.Errorf("%v: %#v, want that of %s %s", err, err, op, path)
			}
		}

		ctx, cancel := context.WithCancelCause(bg)
		h := coordtest.MustLock(w.T, coord.NewMutex(w.Open("a", nil), "/l", nil))
		l := w.Waiting(ctx, coord.NewMutex(w.Open("b", nil), "/l", nil))
		_, err := coord.NewMutex(closed, "/l", nil).Lock(bg)
		cancel(err)
		<-l.Done
		check(l.Err, "lock", "/l", context.Canceled)
		coordtest.MustRelease(w.T, h)

		// A Set of unknown outcome waits for the next session.
		ctx, cancel = context.WithCancelCause(bg)
		var after coordtest.Nth
		b := coord.NewBarrier(w.Open("c", &backendtest.Hooks{After: after.After}), "/barrier", &coord.BarrierOptions{Ephemeral: true})
		after.Arm(1, does(backend.OpCreate, "/barrier"), func(_ context.Context, c backendtest.Call, _ error) error {
			w.Link("c").Partition()
			<-c.Session.Done()
			return backend.Uncertain(c.Session.Err())
		})
		set := w.call(func() error { return b.Set(ctx) })
		w.Eventually("the session is lost", after.Idle)
		time.Sleep(w.Timeout)
		w.Settle()
		cancel(coord.NewBarrier(closed, "/barrier", nil).Set(bg))
		check(set.end(), "set", "/barrier", coord.ErrUncertain, context.Canceled)
		w.Link("c").Heal()

		// A transaction ends before it is sent.
		ctx, cancel = context.WithCancelCause(bg)
		_, err = coord.NewTxn(closed).Set("/n", nil).Commit(bg)
		var before coordtest.Nth
		d := w.Open("d", &backendtest.Hooks{Before: before.Before})
		before.Arm(1, coordtest.Creates, func(context.Context, backendtest.Call, error) error { // of a receipt
			cancel(err)
			return backend.ErrUncertain
		})
		_, err = coord.NewTxn(d).Set("/n", nil).Commit(ctx)
		if e, ok := err.(*backend.Error); !ok || e.Op != "commit" {
			w.T.Errorf("%#v: %v", err, err)
		}
		coordtest.WantErr(w.T, err, context.Canceled)
	})
}

// The text of an error states a reason once, without the prefix of each layer that it went
// through.
func TestErrors_TheErrorsOfThePackageReadAsOneSentence(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx, c := context.Background(), w.Open("a", nil)
		_, err := coord.NewTxn(c).If(coord.IfExists("/x")).Commit(ctx)
		if want := "coord: transaction refused: condition 0 (exists /x): node not found"; err == nil || err.Error() != want {
			w.T.Errorf("%v, want %s", err, want)
		}
		var refuses atomic.Bool
		c = w.Open("b", &backendtest.Hooks{Before: func(_ context.Context, call backendtest.Call) error {
			if !refuses.Load() {
				return nil
			}
			return &backend.Error{Op: "delete", Path: call.Path, Err: backend.ErrDenied}
		}})
		h := coordtest.MustLock(w.T, coord.NewMutex(c, "/l", nil))
		refuses.Store(true)
		if err := h.Release(); err == nil || strings.Count(err.Error(), "coord: ") != 1 || strings.Count(err.Error(), h.Path()) != 1 {
			w.T.Errorf("%v repeats itself", err)
		}
		refuses.Store(false)
	})
}

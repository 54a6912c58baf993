package hostile_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/backend/zookeeper"
	"github.com/go-coord/coord/internal/coordtest"
)

// raze deletes the node at path and all below it, and ignores failures.
func raze(ctx context.Context, s backend.Session, path string) {
	names, _, err := s.Children(ctx, path, nil)
	if err != nil {
		return
	}
	for _, name := range names {
		raze(ctx, s, path+"/"+name)
	}
	s.Commit(ctx, backend.Delete(path, backend.AnyVersion))
}

// razed repeats raze until the node at path is gone.
func razed(w *coordtest.World, path string) {
	w.T.Helper()
	s := w.Session("razer")
	w.Eventually(path+" is gone", func() bool {
		raze(context.Background(), s, w.Path(path))
		_, err := s.Exists(context.Background(), w.Path(path), nil)
		return errors.Is(err, backend.ErrNotFound)
	})
}

// ephemerals returns the paths of the nodes below path that belong to a session.
func ephemerals(w *coordtest.World, s backend.Session, path string) (found []string) {
	names, _, err := s.Children(context.Background(), path, nil)
	if err != nil {
		return nil
	}
	for _, name := range names {
		at := path + "/" + name
		if stat, err := s.Exists(context.Background(), at, nil); err == nil && stat.EphemeralOwner > 0 {
			found = append(found, at)
		}
		found = append(found, ephemerals(w, s, at)...)
	}
	return found
}

// typed reports whether an error matches one of the manual.
func typed(err error) bool {
	return slices.ContainsFunc([]error{
		coord.ErrLost, coord.ErrReleased, coord.ErrDeleted, coord.ErrRevoked, coord.ErrLocked, coord.ErrEmpty, coord.ErrConflict, coord.ErrInDoubt,
		coord.ErrNotFound, coord.ErrUncertain, coord.ErrDenied, coord.ErrLimit, coord.ErrDuplicate, coord.ErrInvalid, coord.ErrDecode,
		coord.ErrSessionLost, backend.ErrNotEmpty, context.DeadlineExceeded,
	}, func(target error) bool { return errors.Is(err, target) })
}

// An outsider deletes the directories, and all nodes in them, again and again while they are
// used. No call hangs, spins or panics, and afterwards everything works.
func TestDirectoriesThatAreDeletedInUse(t *testing.T) {
	t.Parallel()
	for _, y := range fullUses() {
		t.Run(y.recipe, func(t *testing.T) {
			coordtest.OnEach(t, func(w *coordtest.World) {
				var calls atomic.Int64
				x := &useRun{w: w, a: w.Counting("a", &calls), b: w.Counting("b", &calls), path: "/r", payload: "v"}
				stop, stopped := make(chan struct{}), make(chan struct{})
				vandal := w.Session("vandal")
				if w.Fake {
					for _, name := range []string{"a", "b", "vandal"} { // else nothing comes between two steps
						w.Link(name).(interface{ SetLatency(time.Duration) }).SetLatency(time.Millisecond)
					}
				}
				go func() {
					defer close(stopped)
					for pause := 1; ; pause = pause%7 + 1 {
						raze(context.Background(), vandal, w.Path("/r"))
						select {
						case <-stop:
							return
						case <-time.After(time.Duration(pause) * 3 * time.Millisecond):
						}
					}
				}()
				runs, failed := 0, 0
				for start := time.Now(); time.Since(start) < time.Second; runs++ {
					time.Sleep(2 * time.Millisecond) // fake time passes only in a sleep
					ctx, cancel := context.WithTimeout(context.Background(), time.Second)
					calls.Store(0)
					err := y.run(ctx, x)
					cancel()
					if err != nil {
						failed++
						if !typed(err) && !strings.Contains(err.Error(), "waits") && !untyped(err) {
							w.T.Errorf("%v", err)
						}
					}
					if n := calls.Load(); n > 4000 {
						w.T.Errorf("%d requests in a run of at most a second", n)
					}
				}
				close(stop)
				<-stopped
				razed(w, "/r")
				ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
				defer cancel()
				if err := y.run(ctx, x); err != nil {
					w.T.Errorf("afterwards: %v", err)
				}
				s := w.Session("observer2")
				w.Eventually("nothing is left of a session", func() bool {
					s.Sync(context.Background(), "/")
					return len(ephemerals(w, s, w.Path("/r"))) == 0
				})
				w.T.Logf("figure: %s: %d runs against a vandal, %d failed with an error of the manual", y.recipe, runs, failed)
			})
		})
	}
}

// untyped reports whether an error is that of a full use itself, about what it did not find.
func untyped(err error) bool {
	return slices.ContainsFunc([]string{"members, ", "items left", "leader of another kind", "peek: ", "took ", "aborted by", "two have it"}, func(s string) bool {
		return strings.Contains(err.Error(), s)
	})
}

// The permissions are removed at each step of each recipe, and restored later. A call that is
// refused returns the error, retries only now and then, and leaves nothing behind.
func TestPermissionsThatAreTakenAwayAtEachStep(t *testing.T) {
	t.Parallel()
	for _, y := range fullUses() {
		t.Run(y.recipe, func(t *testing.T) {
			coordtest.OnMemory(t, func(w *coordtest.World) {
				var at, seen atomic.Int64 // refused from this call on, 0: never
				hooks := &backendtest.Hooks{Before: func(_ context.Context, c backendtest.Call) error {
					n := seen.Add(1)
					if from := at.Load(); from == 0 || n < from || !strings.HasPrefix(c.Path, "/r") {
						return nil
					}
					return &backend.Error{Op: c.Op, Path: c.Path, Index: 0, Err: backend.ErrDenied}
				}}
				x := &useRun{w: w, a: w.Open("a", hooks), b: w.Open("b", hooks), path: "/r", payload: "v"}
				s := w.Session("observer2")
				steps, told := 0, 0
				for n := int64(1); ; n++ {
					at.Store(0)
					razed(w, "/r")
					ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
					seen.Store(0)
					at.Store(n)
					err := y.run(ctx, x)
					during := seen.Load()
					cancel()
					if during < n {
						break // the run is shorter
					}
					steps++
					switch {
					case errors.Is(err, coord.ErrDenied):
						told++
					case err == nil, errors.Is(err, context.DeadlineExceeded), errors.Is(err, coord.ErrUncertain), errors.Is(err, coord.ErrLocked):
					default:
						w.T.Errorf("step %d: %v", n, err)
					}
					if during > n+400 {
						w.T.Errorf("step %d: %d requests that were refused", n, during-n)
					}
					seen.Store(n)
					time.Sleep(time.Minute) // of fake time
					if after := seen.Load() - n; after > 1000 {
						w.T.Errorf("step %d: %d requests within the minute after the call had failed", n, after)
					}
					at.Store(0)
					time.Sleep(30 * time.Second) // the pauses have grown
					if left := ephemerals(w, s, "/r"); len(left) > 0 {
						w.T.Fatalf("step %d: left behind: %v; the run said %v", n, left, err)
					}
					if n > 300 {
						w.T.Fatal("the run does not end")
					}
				}
				at.Store(0)
				razed(w, "/r")
				ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
				defer cancel()
				if err := y.run(ctx, x); err != nil {
					w.T.Errorf("afterwards: %v", err)
				}
				w.T.Logf("figure: %s: refused from each of %d steps on, %d reported it", y.recipe, steps, told)
				if told == 0 {
					w.T.Error("no run reported the refusal")
				}
			})
		})
	}
}

// The permissions on a directory are removed while it is in use, and restored. A waiter fails
// with ErrDenied at its next wake-up, and leaves nothing. A holder keeps its hold, and can
// release it later. No client retries without end.
func TestPermissionsThatAreRevokedInUseOnARealServer(t *testing.T) {
	t.Parallel()
	w := coordtest.OnServer(t, zookeeper.Options{})
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	conn := w.Raw()
	allow := func(path string, perms int32) {
		t.Helper()
		if _, err := conn.SetACL(w.Path(path), zk.WorldACL(perms), -1); err != nil {
			t.Fatal(err)
		}
	}
	var calls atomic.Int64
	a, b := w.Open("a", nil), w.Counting("b", &calls)

	t.Run("a lock", func(t *testing.T) {
		m, n := coord.NewMutex(a, "/l", nil), coord.NewMutex(b, "/l", nil)
		h := coordtest.MustLock(t, m)
		other := coordtest.MustLock(t, coord.NewMutex(w.Open("c", nil), "/kept", nil))
		l := w.Waiting(ctx, n)
		behind := w.Waiting(ctx, coord.NewMutex(w.Open("d", nil), "/l", nil))
		allow("/l", zk.PermAdmin)
		// The holder checks its node, and releases it. The removal is denied.
		if err := h.Verify(ctx); err != nil && !errors.Is(err, coord.ErrDenied) {
			t.Errorf("verify: %v", err)
		}
		err := h.Release()
		coordtest.WantErr(t, err, coord.ErrDenied)
		if l.Pending(); l.W == nil {
			t.Fatal()
		}
		calls.Store(0)
		time.Sleep(500 * time.Millisecond)
		if n := calls.Load(); n > 40 {
			t.Errorf("%d requests of a waiter", n)
		}
		_, err = coord.NewMutex(b, "/l", nil).TryLock(ctx)
		if !errors.Is(err, coord.ErrDenied) && !errors.Is(err, coord.ErrLocked) {
			t.Errorf("TryLock: %v", err)
		}
		_, err = m.Contenders(ctx)
		coordtest.WantErr(t, err, coord.ErrDenied)
		allow("/l", zk.PermAll)
		// The refused removal is repeated in the background, and the queue continues.
		coordtest.MustRelease(t, l.Hold())
		coordtest.MustRelease(t, behind.Hold())
		w.Empty("/l")
		coordtest.MustRelease(t, other)
	})

	t.Run("watches and consumers", func(t *testing.T) {
		w.Ensured("/g")
		w.Ensured("/v")
		g := coord.NewGroup[string](b, "/g", nil)
		wctx, stop := context.WithCancel(ctx)
		defer stop()
		members := g.Watch(wctx)
		<-members
		values := coord.NewValue[string](b, "/v", nil).Watch(wctx)
		<-values
		e := coord.NewElection(b, "/g", nil)
		leaders := e.WatchLeader(wctx)
		<-leaders
		q := coord.NewQueue[string](b, "/q", nil)
		if _, err := q.Put(ctx, "x"); err != nil {
			t.Fatal(err)
		}
		if _, err := q.Pop(ctx); err != nil {
			t.Fatal(err)
		}
		taken := make(chan error, 1)
		go func() {
			_, err := q.Take(ctx)
			taken <- err
		}()
		w.Eventually("the consumer waits", func() bool { return len(w.Children("/q/waiters")) == 1 })
		for _, path := range []string{"/g", "/v", "/q/items"} {
			allow(path, zk.PermAdmin|zk.PermWrite|zk.PermCreate)
		}
		s := w.Session("x")
		for _, op := range []backend.Op{
			backend.SetData(w.Path("/v"), []byte(`"y"`), backend.AnyVersion),
			backend.Create(w.Path("/g/wake"), nil, backend.Ephemeral),
			backend.Create(w.Path("/q/items/b-5-5"), nil, backend.Persistent),
		} {
			if _, err := s.Commit(ctx, op); err != nil {
				t.Fatal(err)
			}
		}
		// Servers with the fix of CVE-2024-23944 do not report changes of a node to a client
		// that may not read it any more. A reconnection shows the refusal at the latest.
		w.Link("b").Partition()
		w.Link("b").Heal()
		var last coord.GroupUpdate[string]
		for last = range members {
		}
		coordtest.WantErr(t, last.Err, coord.ErrDenied)
		var value coord.Versioned[string]
		for value = range values {
		}
		coordtest.WantErr(t, value.Err, coord.ErrDenied)
		var leader coord.Leader
		for leader = range leaders {
		}
		coordtest.WantErr(t, leader.Err, coord.ErrDenied)
		coordtest.WantErr(t, <-taken, coord.ErrDenied)
		w.Empty("/q/waiters")
		for _, path := range []string{"/g", "/v", "/q/items"} {
			allow(path, zk.PermAll)
		}
		if list, err := g.Members(ctx); err != nil || len(list) != 0 {
			t.Errorf("%v, %v", list, err)
		}
	})
}

// A list that is longer than a client of ZooKeeper accepts by default: 1,200 names of 1,000
// bytes. coord reads it, and the recipes work among such nodes.
func TestAListOverTheLimitOfOtherClients(t *testing.T) {
	t.Parallel()
	for _, y := range fullUses() {
		switch y.recipe {
		case "mutex", "queue", "group", "semaphore":
		default:
			if !coordtest.Long() {
				continue
			}
		}
		if y.dirs == nil {
			continue
		}
		t.Run(y.recipe, func(t *testing.T) {
			coordtest.OnEach(t, func(w *coordtest.World) {
				ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
				defer cancel()
				s := w.Session("x")
				n := 0
				for _, dir := range y.dirs {
					w.Ensured("/r" + dir)
					for at := 0; at < 1200; {
						var ops []backend.Op
						for range 400 {
							ops = append(ops, backend.Create(w.Path("/r"+dir)+"/"+fmt.Sprintf("n%06d", at)+strings.Repeat("n", 993), nil, backend.Persistent))
							at++
						}
						if _, err := s.Commit(ctx, ops...); err != nil {
							w.T.Fatal(err)
						}
						n += len(ops)
					}
				}
				x := &useRun{w: w, a: w.Open("a", nil), b: w.Open("b", nil), path: "/r", payload: "v"}
				start := time.Now()
				if err := y.run(ctx, x); err != nil {
					w.T.Fatal(err)
				}
				w.T.Logf("figure: %s among %d names of 1,000 bytes: %v", y.recipe, n, time.Since(start).Round(time.Millisecond))
			})
		})
	}
}

package coord_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/zookeeper"
	"github.com/go-coord/coord/internal/zkservice"
)

// The permissions on a directory are taken away while it is in use, and given back. Who
// waits is told with ErrDenied at the next wake-up and leaves nothing; who holds keeps
// what he has, can give it up later, and nobody asks without end.
func TestPermissionsThatAreRevokedInUseOnARealServer(t *testing.T) {
	t.Parallel()
	svc := zkservice.New(t, server.Get(t), zookeeper.Options{SessionTimeout: realTimeout})
	w := &world{Service: svc, t: t, timeout: realTimeout}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	conn := raw(t, svc)
	allow := func(path string, perms int32) {
		t.Helper()
		if _, err := conn.SetACL(w.path(path), zk.WorldACL(perms), -1); err != nil {
			t.Fatal(err)
		}
	}
	var calls atomic.Int64
	a, b := w.open("a", nil), w.counting("b", &calls)

	t.Run("a lock", func(t *testing.T) {
		m, n := coord.NewMutex(a, "/l", nil), coord.NewMutex(b, "/l", nil)
		h := mustLock(t, m)
		other := mustLock(t, coord.NewMutex(w.open("c", nil), "/kept", nil))
		l := w.waiting(ctx, n)
		behind := w.waiting(ctx, coord.NewMutex(w.open("d", nil), "/l", nil))
		allow("/l", zk.PermAdmin)
		// Something happens: the second in line goes, and who was behind looks again.
		if err := h.Verify(ctx); err != nil && !errors.Is(err, coord.ErrDenied) {
			t.Errorf("verify: %v", err)
		}
		err := h.Release()
		wantErr(t, err, coord.ErrDenied)
		if l.pending(); l.w == nil {
			t.Fatal()
		}
		calls.Store(0)
		time.Sleep(500 * time.Millisecond)
		if n := calls.Load(); n > 40 {
			t.Errorf("%d requests of one that waits", n)
		}
		_, err = coord.NewMutex(b, "/l", nil).TryLock(ctx)
		if !errors.Is(err, coord.ErrDenied) && !errors.Is(err, coord.ErrLocked) {
			t.Errorf("TryLock: %v", err)
		}
		_, err = m.Contenders(ctx)
		wantErr(t, err, coord.ErrDenied)
		allow("/l", zk.PermAll)
		// What was refused is done in the background, and the line goes on.
		mustRelease(t, l.hold())
		mustRelease(t, behind.hold())
		w.empty("/l")
		mustRelease(t, other)
	})

	t.Run("what follows", func(t *testing.T) {
		w.ensured("/g")
		w.ensured("/v")
		g := coord.NewGroup[string](b, "/g", nil)
		wctx, stop := context.WithCancel(ctx)
		defer stop()
		members := g.Watch(wctx)
		<-members
		values := coord.NewValue[string](b, "/v", nil).Watch(wctx)
		<-values
		e := coord.NewElection(b, "/g", nil)
		leaders := e.Observe(wctx)
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
		w.eventually("the consumer waits", func() bool { return len(w.children("/q/waiters")) == 1 })
		for _, path := range []string{"/g", "/v", "/q/items"} {
			allow(path, zk.PermAdmin|zk.PermWrite|zk.PermCreate)
		}
		s := w.session("x")
		for _, op := range []backend.Op{
			backend.SetData(w.path("/v"), []byte(`"y"`), backend.AnyVersion),
			backend.Create(w.path("/g/wake"), nil, backend.Ephemeral),
			backend.Create(w.path("/q/items/b-5-5"), nil, backend.Persistent),
		} {
			if _, err := s.Commit(ctx, op); err != nil {
				t.Fatal(err)
			}
		}
		// Servers with the fix of CVE-2024-23944 do not tell of changes of a node that
		// one may not read any more; at the latest a reconnect shows it.
		svc.Link("b").Partition()
		svc.Link("b").Heal()
		var last coord.Members[string]
		for last = range members {
		}
		wantErr(t, last.Err, coord.ErrDenied)
		var value coord.Versioned[string]
		for value = range values {
		}
		wantErr(t, value.Err, coord.ErrDenied)
		var leader coord.Leader
		for leader = range leaders {
		}
		wantErr(t, leader.Err, coord.ErrDenied)
		wantErr(t, <-taken, coord.ErrDenied)
		w.empty("/q/waiters")
		for _, path := range []string{"/g", "/v", "/q/items"} {
			allow(path, zk.PermAll)
		}
		if list, err := g.Members(ctx); err != nil || len(list) != 0 {
			t.Errorf("%v, %v", list, err)
		}
	})
}

// A list that is longer than what a client of ZooKeeper takes by default: 6,000 names of
// 200 bytes. Ours reads it; the recipes work on among such strangers.
func TestAListOverTheLimitOfOthers(t *testing.T) {
	t.Parallel()
	for _, y := range fullUses() {
		switch y.recipe {
		case "mutex", "queue", "group", "semaphore":
		default:
			if !long() {
				continue
			}
		}
		if y.dirs == nil {
			continue
		}
		t.Run(y.recipe, func(t *testing.T) {
			onEach(t, func(w *world) {
				ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
				defer cancel()
				s := w.session("x")
				n := 0
				for _, dir := range y.dirs {
					w.ensured("/r" + dir)
					for at := 0; at < 6000; {
						var ops []backend.Op
						for range 1000 {
							ops = append(ops, backend.Create(w.path("/r"+dir)+"/"+fmt.Sprintf("n%06d", at)+strings.Repeat("n", 193), nil, backend.Persistent))
							at++
						}
						if _, err := s.Commit(ctx, ops...); err != nil {
							w.t.Fatal(err)
						}
						n += len(ops)
					}
				}
				x := &useRun{w: w, a: w.open("a", nil), b: w.open("b", nil), path: "/r", payload: "v"}
				start := time.Now()
				if err := y.run(ctx, x); err != nil {
					w.t.Fatal(err)
				}
				w.t.Logf("figure: %s among %d names of 200 bytes: %v", y.recipe, n, time.Since(start).Round(time.Millisecond))
			})
		})
	}
}

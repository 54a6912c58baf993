package line

import (
	"context"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/memory"
	"github.com/go-coord/coord/internal/core"
)

// A caller that was passed the turn with the node of a kept lock is not granted if the session is
// lost, or the node deleted, before it continues.
func TestKeep_AGrantInMemoryTestsSessionAndNode(t *testing.T) {
	for name, strike := range map[string]func(st *memory.Store, link *memory.Link, k *keptLock){
		"session": func(_ *memory.Store, link *memory.Link, k *keptLock) { link.Expire(k.s.Backend().ID()) },
		"node": func(st *memory.Store, _ *memory.Link, k *keptLock) {
			other, _ := st.Open(context.Background())
			defer other.Close()
			if _, err := other.Commit(context.Background(), backend.Delete(k.Path, backend.AnyVersion)); err != nil {
				t.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, st := context.Background(), memory.New(nil)
				link := st.Link("a")
				c, err := core.Open(ctx, link, core.Config{}, nil)
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				m := NewLock(c, "/l", "", nil, time.Hour)
				h, err := m.Lock(ctx)
				if err != nil || h.Release() != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				r := &request{op: "lock", data: m.joiner.(*mutex).data, keep: time.Hour}
				q, w, err := linesOf(c).join(*m.line(), r)
				if err != nil || w != nil || r.reserved.state != reservedKept {
					t.Fatal(err, w, r.reserved)
				}
				strike(st, link, r.reserved.kept)
				synctest.Wait()
				if h := q.resume(ctx, r, r.reserved.kept); h != nil {
					t.Errorf("granted: %v", h.Err())
				}
				q.advance()
				if h, err = m.Lock(ctx); err != nil || h.Release() != nil {
					t.Error(err)
				}
			})
		})
	}
}

// awaitMutex returns when a goroutine that is in the function waits for a mutex.
func awaitMutex(function string) {
	for text := make([]byte, 1<<20); ; runtime.Gosched() {
		for g := range strings.SplitSeq(string(text[:runtime.Stack(text, true)]), "\n\n") {
			if strings.Contains(g, function) && strings.Contains(g, "sync.(*Mutex).Lock") {
				return
			}
		}
	}
}

// The deletion of the node has arrived, and the goroutine of the kept lock has not handled it yet: the
// grant tests the watch itself.
func TestKeep_AGrantInMemoryTestsTheWatch(t *testing.T) {
	ctx, st := context.Background(), memory.New(nil)
	c, err := core.Open(ctx, st, core.Config{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	m := NewLock(c, "/l", "", nil, time.Hour)
	h, err := m.Lock(ctx)
	if err != nil || h.Release() != nil {
		t.Fatal(err)
	}
	r := &request{op: "lock", data: m.joiner.(*mutex).data, keep: time.Hour}
	q, _, err := linesOf(c).join(*m.line(), r)
	if err != nil || r.reserved.state != reservedKept {
		t.Fatal(err, r.reserved)
	}
	k := r.reserved.kept
	<-k.armed
	q.mu.Lock()
	other, err := st.Open(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if _, err := other.Commit(ctx, backend.Delete(k.Path, backend.AnyVersion)); err != nil {
		t.Fatal(err)
	}
	<-k.own.Fired()
	granted := make(chan *core.Hold)
	go func() { granted <- q.resume(ctx, r, k) }()
	awaitMutex("(*localQueue).resume")
	q.mu.Unlock()
	if h := <-granted; h != nil {
		t.Errorf("granted on a node that is known to be deleted: %v", h.Err())
	}
	q.advance()
	if h, err = m.Lock(ctx); err != nil || h.Release() != nil {
		t.Error(err)
	}
}

// Contention that arrives when a Release has tested for it, and has not marked the kept lock as idle yet,
// is not missed: the tests and the mark are under the mutex under which contention ends the kept lock.
func TestKeep_ContentionDuringAReleaseIsNotMissed(t *testing.T) {
	ctx, st := context.Background(), memory.New(nil)
	open := func(name string) *core.Client {
		c, err := core.Open(ctx, st.Link(name), core.Config{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	a, b := NewLock(open("a"), "/l", "", nil, time.Hour), NewLock(open("b"), "/l", "", nil, 0)
	h, err := a.Lock(ctx)
	if err != nil {
		t.Fatal(err)
	}
	k := h.Keeper().(*keptLock)
	k.Watch()
	<-k.armed
	k.q.mu.Lock()
	released := make(chan error)
	go func() { released <- h.Release() }()
	awaitMutex("(*keptLock).keepAt")
	granted := make(chan error)
	go func() {
		h, err := b.Lock(ctx)
		if err == nil {
			err = h.Release()
		}
		granted <- err
	}()
	<-k.dir.Fired()
	k.q.mu.Unlock()
	if err := <-released; err != nil {
		t.Error(err)
	}
	if err := <-granted; err != nil {
		t.Error(err)
	}
	if h, err = a.Lock(ctx); err != nil || h.Release() != nil {
		t.Error(err)
	}
}

package etcd_test

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/etcd"
	"github.com/go-coord/coord/internal/zkproxy"
)

func openClient(t *testing.T, addr string, o *etcd.Options) *coord.Client {
	t.Helper()
	c, err := coord.Open(t.Context(), etcd.New([]string{addr}, o), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// A lock that is held when the service goes back is lost, and its next holder is alone.
func TestEtcd_RestoredServiceHasOneHolder(t *testing.T) {
	t.Parallel()
	r := newRestorable(t)
	o := &etcd.Options{SessionTimeout: 30 * time.Second}
	old := openClient(t, r.addr, o)
	restore := r.backUp()
	h, err := coord.NewMutex(old, "/lock", nil).Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	restore()
	await(t, h.Done(), "the loss of the lock")
	if !errors.Is(h.Err(), coord.ErrSessionLost) {
		t.Errorf("the hold ended with %v", h.Err())
	}
	again, err := coord.NewMutex(old, "/lock", nil).Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Release(); err != nil {
		t.Fatal(err)
	}
}

// A lock that was released after the backup exists again with it. Its session is lost, so the next client
// acquires it.
func TestEtcd_LockThatWasReleasedBeforeARestoreIsFree(t *testing.T) {
	t.Parallel()
	r := newRestorable(t)
	o := &etcd.Options{SessionTimeout: 12 * time.Second} // longer than a busy machine takes to start the server
	old := openClient(t, r.addr, o)
	h, err := coord.NewMutex(old, "/lock", nil).Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	restore := r.backUp()
	if err := h.Release(); err != nil {
		t.Fatal(err)
	}
	restore()
	h, err = coord.NewMutex(openClient(t, r.addr, o), "/lock", nil).Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	h.Release()
}

// SetLimit after the service was replaced by an empty one, whose numbers are smaller.
func TestEtcd_SetLimitAfterTheServiceWasReplaced(t *testing.T) {
	t.Parallel()
	r := newRestorable(t)
	c := openClient(t, r.addr, &etcd.Options{SessionTimeout: 4 * time.Second})
	sem := coord.NewSemaphore(c, "/sem", 5, nil)
	for n := 9; n >= 5; n-- {
		if err := sem.SetLimit(t.Context(), n); err != nil {
			t.Fatal(err)
		}
	}
	r.stop()
	os.RemoveAll(r.dir)
	r.start()
	if err := sem.SetLimit(t.Context(), 3); err != nil {
		t.Fatal(err)
	}
	h, err := sem.Acquire(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	h.Release()
}

// A node gets the same numbers with other data after the service went back. Caches and watches show it.
func TestEtcd_SameRevisionWithOtherDataIsAnotherState(t *testing.T) {
	t.Parallel()
	r := newRestorable(t)
	proxy, err := zkproxy.NewRaw(r.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer proxy.Close()
	o := &etcd.Options{SessionTimeout: 20 * time.Second}
	admin := newService(t, r.addr, *o)
	raise := func(to int64) {
		for {
			reply, err := pb.NewKVClient(admin.admin).Put(t.Context(), &pb.PutRequest{Key: []byte("x")})
			if err != nil {
				t.Fatal(err)
			}
			if reply.Header.Revision >= to {
				return
			}
		}
	}
	c := openClient(t, proxy.Addr(), o)
	v := coord.NewValue[string](c, "/dir/v", nil)
	if _, err := v.Set(t.Context(), "first"); err != nil {
		t.Fatal(err)
	}
	cache := coord.NewCache(c, "/dir", nil)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go cache.Run(ctx)
	<-cache.Synced()
	view := coord.NewCacheView[string](cache, coord.Codec[string]{})
	changes := v.Watch(ctx)
	restore := r.backUp()
	raise(200)
	now, err := v.Set(t.Context(), "old")
	if err != nil {
		t.Fatal(err)
	}
	sees := func(want string) {
		t.Helper()
		end := time.Now().Add(time.Minute)
		for e := range changes {
			if e.Value == want {
				break
			}
		}
		for {
			n, _ := cache.Get("/dir/v")
			e, _ := view.Get("/dir/v")
			if string(n.Data) == `"`+want+`"` && e.Value == want {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("the cache has %q, the view %q", n.Data, e.Value)
			}
			time.Sleep(5 * time.Millisecond)
		}
	}
	sees("old")
	proxy.Refuse(true)
	proxy.Cut()
	restore()
	fresh := open(t, etcd.New([]string{r.addr}, o))
	raise(now.Mzxid - 2)
	for {
		_, stat, err := fresh.Get(t.Context(), "/dir/v", nil)
		if err != nil {
			t.Fatal(err)
		}
		if stat.AsOf == now.Mzxid-1 {
			break
		}
		if stat.AsOf >= now.Mzxid {
			t.Fatalf("the scene: as of %d, want %d", stat.AsOf, now.Mzxid-1)
		}
		raise(stat.AsOf + 1)
	}
	if got := commit(t, fresh, backend.SetData("/dir/v", []byte(`"new"`), backend.AnyVersion)); got[0].Stat.Mzxid != now.Mzxid || got[0].Stat.Czxid != now.Czxid {
		t.Fatalf("the scene: %+v, want the numbers of %+v", got[0].Stat, now)
	}
	proxy.Refuse(false)
	sees("new")
}

package etcd_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/etcd"
)

// epochOf returns the number of times that a session has put its key.
func epochOf(t *testing.T, s *service, session backend.Session) int64 {
	t.Helper()
	reply, err := pb.NewKVClient(s.admin).Range(t.Context(), &pb.RangeRequest{Key: fmt.Appendf(nil, "%s:session/%016x", s.opts.Prefix, session.ID())})
	if err != nil || len(reply.Kvs) != 1 {
		t.Fatalf("the session key: %v, %v", reply, err)
	}
	return reply.Kvs[0].Version
}

// A commit is given up while it is under way. The next calls wait for its reply, and cost no request more.
func TestEtcd_CommitThatIsGivenUpCostsNoRequest(t *testing.T) {
	t.Parallel()
	for name, next := range map[string]func(t *testing.T, s backend.Session){
		"read": func(t *testing.T, s backend.Session) {
			if data, _, err := s.Get(t.Context(), "/n", nil); err != nil || string(data) != "2" {
				t.Errorf("the read shows %q, %v", data, err)
			}
		},
		"sync": func(t *testing.T, s backend.Session) {
			if err := s.Sync(t.Context(), "/"); err != nil {
				t.Error(err)
			}
		},
		"commit": func(t *testing.T, s backend.Session) {
			commit(t, s, backend.SetData("/other", nil, backend.AnyVersion))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			svc := newService(t, shared.get(t), etcd.Options{SessionTimeout: 20 * time.Second})
			l := svc.link("a")
			s := open(t, l)
			commit(t, s, backend.Create("/n", nil, backend.Persistent), backend.Create("/other", nil, backend.Persistent))
			for i := range 3 {
				commit(t, s, backend.SetData("/n", []byte("1"), backend.AnyVersion))
				h := l.holdReply(func(method string, _ []byte) bool { return method == "/etcdserverpb.KV/Txn" })
				ctx, cancel := context.WithCancel(t.Context())
				go func() { <-h.hit; cancel() }()
				if _, err := s.Commit(ctx, backend.SetData("/n", []byte("2"), backend.AnyVersion)); !errors.Is(err, backend.ErrUncertain) || !errors.Is(err, context.Canceled) {
					t.Fatalf("round %d: a commit that is given up: %v", i, err)
				}
				const txn, read = "/etcdserverpb.KV/Txn", "/etcdserverpb.KV/Range"
				before := l.requested(txn) + l.requested(read)
				done := make(chan struct{})
				go func() { defer close(done); next(t, s) }()
				close(h.release)
				<-done
				if n := l.requested(txn) + l.requested(read) - before; n != 1 {
					t.Errorf("round %d: %d requests for one call", i, n)
				}
			}
			if n := epochOf(t, svc, s); n != 1 {
				t.Errorf("%d epochs", n)
			}
		})
	}
}

// The reply to a commit that was given up is late or lost: the session begins one epoch for all of them.
func TestEtcd_LateRepliesShareAnEpoch(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]bool{"late": false, "lost": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			svc := newService(t, shared.get(t), etcd.Options{SessionTimeout: 20 * time.Second})
			l := svc.link("a")
			s := open(t, l)
			commit(t, s, backend.Create("/n", nil, backend.Persistent))
			ctx, cancel := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			held, release := make(chan struct{}, 10), make(chan struct{})
			l.always(puts, func() { held <- struct{}{}; <-release })
			for range 5 {
				wg.Go(func() {
					if _, err := s.Commit(ctx, backend.SetData("/n", []byte("x"), backend.AnyVersion)); !errors.Is(err, backend.ErrUncertain) {
						t.Errorf("a commit that is given up: %v", err)
					}
				})
			}
			for range 5 {
				<-held
			}
			cancel()
			wg.Wait()
			l.always(func(string, []byte) bool { return false }, nil)
			if lose {
				l.bytes.Cut()
			}
			if _, _, err := s.Get(t.Context(), "/n", nil); err != nil {
				t.Fatal(err)
			}
			close(release)
			if n := epochOf(t, svc, s); n != 2 {
				t.Errorf("%d epochs", n)
			}
			_, was, err := s.Get(t.Context(), "/n", nil)
			if err != nil {
				t.Fatal(err)
			}
			if got := commit(t, s, backend.SetData("/n", []byte("y"), backend.AnyVersion)); got[0].Stat.Version != was.Version+1 {
				t.Errorf("version %d after %d: a commit of an earlier epoch was applied", got[0].Stat.Version, was.Version)
			}
		})
	}
}

// Many calls with short contexts: they begin no epochs, and their order is kept.
func TestEtcd_ShortContextsBeginNoEpoch(t *testing.T) {
	t.Parallel()
	svc := newService(t, shared.get(t), etcd.Options{SessionTimeout: 20 * time.Second})
	s := open(t, etcd.New([]string{shared.get(t)}, &svc.opts))
	commit(t, s, backend.Create("/d", nil, backend.Persistent))
	var wg sync.WaitGroup
	uncertain := make([]int, 8)
	for i := range uncertain {
		wg.Go(func() {
			own := fmt.Sprint("/d/", i)
			commit(t, s, backend.Create(own, nil, backend.Persistent))
			last := -1
			for n := range 60 {
				ctx, cancel := context.WithTimeout(t.Context(), rand.N(4*time.Millisecond))
				_, err := s.Commit(ctx, backend.SetData(own, []byte{byte(n)}, backend.AnyVersion))
				cancel()
				if errors.Is(err, backend.ErrUncertain) {
					uncertain[i]++
				}
				data, _, err2 := s.Get(t.Context(), own, nil)
				if err2 != nil {
					t.Error(err2)
					return
				}
				now := -1
				if len(data) > 0 {
					now = int(data[0])
				}
				if now < last || err == nil && now != n || err != nil && !errors.Is(err, backend.ErrUncertain) && now == n {
					t.Errorf("write %d (%v): the node holds %d after %d", n, err, now, last)
				}
				last = now
				// What the commit did is settled: a later read shows the same.
				again, _, err2 := s.Get(t.Context(), own, nil)
				if err2 != nil || !bytes.Equal(again, data) {
					t.Errorf("write %d (%v): the node holds %v, and then %v, %v", n, err, data, again, err2)
				}
			}
		})
	}
	wg.Wait()
	given := 0
	for _, n := range uncertain {
		given += n
	}
	// A reply that a busy machine delays by half a second begins one.
	if n := epochOf(t, svc, s) - 1; given == 0 || n*10 > int64(given) {
		t.Errorf("%d epochs after %d commits that were given up", n, given)
	}
}

package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/etcd"
)

// A member answers keep-alives and leaves requests without an answer. The session continues at the other one.
func TestEtcd_MemberThatAnswersOnlyKeepAlivesIsLeft(t *testing.T) {
	t.Parallel()
	for name, hangs := range map[string]func(string, []byte) bool{"all": isRequest, "reads": isReadOnly, "writes": isAWrite} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, used, other := openAtFronts(t, etcd.Options{SessionTimeout: 6 * time.Second, Prefix: fresh("sick-" + name)}, nil)
			commit(t, s, backend.Create("/e", nil, backend.Ephemeral))
			used.sick(hangs, nil)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if _, err := s.Commit(ctx, backend.SetData("/e", []byte("1"), 0)); name != "reads" && !errors.Is(err, backend.ErrUncertain) {
				t.Errorf("a commit without an answer: %v", err)
			}
			if _, stat, err := s.Get(ctx, "/e", nil); err != nil || stat.EphemeralOwner != s.ID() {
				t.Fatalf("a read: %+v, %v", stat, err)
			}
			if err := s.Err(); err != nil {
				t.Fatal(err)
			}
			for i := range 20 { // it does not come back to the member that hangs
				if _, err := s.Commit(ctx, backend.Create(fmt.Sprint("/n", i), nil, backend.Persistent)); err != nil {
					t.Fatal(err)
				}
			}
			if hung := used.sick(nil, nil); hung > 1 || other.count("/etcdserverpb.KV/Txn") == 0 {
				t.Errorf("%d requests hung, %d were made at the other member", hung, other.count("/etcdserverpb.KV/Txn"))
			}
		})
	}
}

// No server answers requests of a kind. The session is lost, with all calls that have no context.
func TestEtcd_SessionEndsIfNoServerAnswersRequests(t *testing.T) {
	t.Parallel()
	for name, hangs := range map[string]func(string, []byte) bool{"reads": isReadOnly, "writes": isAWrite} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, used, other := openAtFronts(t, etcd.Options{SessionTimeout: 4 * time.Second, Prefix: fresh("mute-" + name)}, nil)
			commit(t, s, backend.Create("/dir", nil, backend.Persistent))
			path := commit(t, s, backend.Create("/dir/n-", nil, backend.EphemeralSequential))[0].Path
			used.sick(hangs, nil)
			other.sick(hangs, nil)
			// The deletion of such a node is repeated until it is answered.
			_, err := s.Commit(context.Background(), backend.Delete(path, backend.AnyVersion))
			if name == "reads" {
				if err == nil {
					_, err = s.Exists(context.Background(), path, nil)
				}
			}
			if !errors.Is(err, backend.ErrSessionLost) {
				t.Fatalf("the call returned %v", err)
			}
			if name == "writes" && !strings.Contains(s.Err().Error(), "although keep-alives are answered") {
				t.Errorf("the session ended with: %v", s.Err())
			}
		})
	}
}

// A member answers requests and keep-alives, and sends nothing on watch streams. The session leaves it, and
// its watches fire.
func TestEtcd_MemberThatSendsNoEventsIsLeft(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*front){"ordered": nil, "unordered": func(f *front) { f.rewrite = oldVersion }} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := etcd.Options{SessionTimeout: 6 * time.Second, Prefix: fresh("deaf-" + name)}
			s, used, other := openAtFronts(t, o, change)
			writer := open(t, etcd.New([]string{shared.get(t)}, &o))
			w := backend.NewWatch()
			if _, err := s.Exists(t.Context(), "/a", w); !errors.Is(err, backend.ErrNotFound) {
				t.Fatal(err)
			}
			used.sick(nil, isOfWatches)
			commit(t, writer, backend.Create("/a", nil, backend.Persistent))
			await(t, w.Fired(), "the watch")
			if other.count("/etcdserverpb.Watch/Watch") == 0 {
				t.Error("the session has not left the member")
			}
			// A call that waits for the making of a watch is not kept either.
			other.sick(nil, isOfWatches)
			used.sick(nil, nil)
			w = backend.NewWatch()
			if _, err := s.Exists(t.Context(), "/b", w); !errors.Is(err, backend.ErrNotFound) {
				t.Fatal(err)
			}
			if err := s.Err(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// A watch stream without events is proved again and again, and its watches do not fire.
func TestEtcd_QuietWatchStreamIsProved(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*front){"ordered": nil, "unordered": func(f *front) { f.rewrite = oldVersion }} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, used, other := openAtFronts(t, etcd.Options{SessionTimeout: 6 * time.Second, Prefix: fresh("quiet-" + name)}, change)
			const stream, alive = "/etcdserverpb.Watch/Watch", "/etcdserverpb.Lease/LeaseKeepAlive"
			renewals := func(n int) {
				for end := used.count(alive) + n; used.count(alive) < end && s.Err() == nil; {
					time.Sleep(10 * time.Millisecond)
				}
			}
			before := used.count(stream)
			renewals(4)
			if n := used.count(stream) - before; n != 0 {
				t.Errorf("%d messages on a stream that nothing uses", n)
			}
			w := backend.NewWatch()
			if _, err := s.Exists(t.Context(), "/a", w); !errors.Is(err, backend.ErrNotFound) {
				t.Fatal(err)
			}
			renewals(10)
			if w.Kind() != 0 || s.Err() != nil || other.count(alive) != 0 {
				t.Errorf("the watch has kind %q; %v; %d renewals at the other member", w.Kind(), s.Err(), other.count(alive))
			}
		})
	}
}

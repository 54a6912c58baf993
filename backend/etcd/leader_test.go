//go:build linux

package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/etcd"
	"github.com/go-coord/coord/internal/ensemble"
)

// The leader is paused for longer than the timeout of some sessions, and later killed. The commits
// that are under way then are uncertain, also at the other members, which have passed them on to the
// leader. Later ones are not.
//
// When it resumes, the paused leader has leases that it has not renewed for longer than their
// timeout, and can end them before it knows that it does not lead any more (etcd #15247). Such a
// session is lost, and its node is gone. A session whose timeout is longer than the pause is not.
func TestTheLeaderIsPausedAndKilled(t *testing.T) {
	t.Parallel()
	const long, short, pause = 40 * time.Second, 10 * time.Second, 13 * time.Second
	c := startCluster(t, nil)
	leader := func() ensemble.Server {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		s, err := c.Leader(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	first := leader()
	type client struct {
		backend.Session
		path  string
		short bool
	}
	var all []*client
	for i := range 6 {
		x := &client{path: fmt.Sprint("/e", i), short: i >= 3}
		timeout := long
		if x.short {
			timeout = short
		}
		x.Session = open(t, etcd.New(c.Addrs(), &etcd.Options{SessionTimeout: timeout}))
		commit(t, x, backend.Create(x.path, nil, backend.Ephemeral))
		all = append(all, x)
	}
	var uncertain, early atomic.Int32
	write := func(round string, mayEnd bool) (ofShort, ofLong time.Duration) {
		t.Helper()
		began, before := time.Now(), early.Load()
		var mu sync.Mutex
		var wg sync.WaitGroup
		for _, x := range all {
			wg.Go(func() {
				if x.Err() != nil {
					return // counted already
				}
				for {
					_, err := x.Commit(t.Context(), backend.SetData(x.path, []byte(round), backend.AnyVersion))
					if err != nil && x.Err() != nil && x.short {
						early.Add(1)
						return
					}
					if err == nil {
						break
					}
					if !errors.Is(err, backend.ErrUncertain) {
						t.Errorf("%s: %s: %v", round, x.path, err)
						return
					}
					uncertain.Add(1)
					if err := x.Sync(t.Context(), "/"); err != nil && x.short && x.Err() != nil {
						early.Add(1)
						return
					} else if err != nil {
						t.Errorf("%s: %s: %v", round, x.path, err)
						return
					}
				}
				mu.Lock()
				if took := time.Since(began); x.short {
					ofShort = max(ofShort, took)
				} else {
					ofLong = max(ofLong, took)
				}
				mu.Unlock()
				data, stat, err := x.Get(t.Context(), x.path, nil)
				if x.short && x.Err() != nil {
					early.Add(1)
					return
				}
				if err != nil || string(data) != round || stat.EphemeralOwner != x.ID() {
					t.Errorf("%s: %s holds %q, %+v, %v", round, x.path, data, stat, err)
				}
			})
		}
		wg.Wait()
		if n := early.Load() - before; n > 0 && !mayEnd {
			if ofLong <= short/2 {
				t.Errorf("%s: %d sessions of %v were lost, and those of %v had written after %v", round, n, short, long, ofLong)
			} else {
				t.Logf("%s: the %d lost sessions of %v are not judged: those of %v had written only after %v", round, n, short, long, ofLong)
			}
		}
		return ofShort.Round(time.Millisecond), ofLong.Round(time.Millisecond)
	}
	write("before", false)
	if err := first.Pause(); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	ofShort, ofLong := write("while the leader is paused", false)
	time.Sleep(time.Until(began.Add(pause))) // the length of the pause
	write("at the end of the pause", false)
	paused := time.Since(began)
	if err := first.Resume(); err != nil {
		t.Fatal(err)
	}
	write("after the pause", true)
	time.Sleep(election) // a leader that resumed has ended leases by now
	write("some time after the pause", true)
	for _, x := range all {
		if x.Err() == nil {
			continue
		}
		if !errors.Is(x.Err(), backend.ErrSessionLost) {
			t.Errorf("%s: %v", x.path, x.Err())
		}
		if _, err := all[0].Exists(t.Context(), x.path, nil); !errors.Is(err, backend.ErrNotFound) {
			t.Errorf("the node of a session that is lost: %v", err)
		}
	}
	t.Logf("figure: a leader paused for %v: sessions of %v had written after %v, those of %v after %v, %d of 6 commits were uncertain; when it resumed, %d of 3 sessions of %v ended, and none of %v",
		paused.Round(time.Millisecond), short, ofShort, long, ofLong, uncertain.Load(), early.Load(), short, long)
	leader().Kill()
	write("after a leader was killed", false)
}

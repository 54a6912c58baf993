package zookeeper_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/zookeeper"
	"github.com/go-coord/coord/internal/zkproxy"
	"github.com/go-coord/coord/internal/zktest"
)

// restoration is a service that is put back to an earlier state.
type restoration struct {
	*scene
	e   *zktest.Ensemble
	dir string
}

func newRestoration(t *testing.T, servers int) *restoration {
	t.Helper()
	e := zktest.Run(t, &zktest.Options{Servers: servers, MaxSessionTimeout: time.Hour})
	// A session that asks servers which refuse it during a restart asks again after a tenth of this time.
	return &restoration{sceneOn(t, e, zookeeper.Options{SessionTimeout: time.Minute}), e, t.TempDir()}
}

// restart stops all servers and starts them again.
func (r *restoration) restart(between func(data, backup string) error) {
	r.Helper()
	for _, s := range r.e.Servers() {
		s.Kill()
	}
	for i, s := range r.e.Servers() {
		if err := between(s.DataDir(), filepath.Join(r.dir, fmt.Sprint(i))); err != nil {
			r.Fatal(err)
		}
	}
	for _, s := range r.e.Servers() {
		if err := s.Launch(); err != nil {
			r.Fatal(err)
		}
	}
	if err := r.e.Await(r.ctx); err != nil {
		r.Fatal(err)
	}
}

func (r *restoration) backup() {
	r.Helper()
	r.restart(func(data, backup string) error { return os.CopyFS(backup, os.DirFS(data)) })
}

func (r *restoration) restore() {
	r.Helper()
	r.restart(func(data, backup string) error {
		if err := os.RemoveAll(data); err != nil {
			return err
		}
		return os.CopyFS(data, os.DirFS(backup))
	})
}

// pass makes commits until the zxids of the service are larger than zxid.
func (r *restoration) pass(s backend.Session, zxid int64) {
	r.Helper()
	for at := int64(0); at <= zxid; {
		at = r.commit(s, backend.SetData(r.path("clock"), nil, backend.AnyVersion))[0].Stat.Mzxid
	}
}

// The backup contains all four sessions. Each session has seen one change that the backup does not contain.
func TestZooKeeper_RestoredServiceEndsSessions(t *testing.T) {
	for _, servers := range []int{1, 3} {
		for name, passed := range map[string]bool{
			"servers refuse the sessions": false,
			"servers take the sessions":   true, // their zxids have passed those that the sessions have seen
		} {
			t.Run(fmt.Sprintf("%d %s", servers, name), func(t *testing.T) {
				if servers > 1 && os.Getenv("COORD_LONG") == "" {
					t.Skip("set COORD_LONG=1")
				}
				t.Parallel()
				r := newRestoration(t, servers)
				ghost, held, value, reader := r.open(r.link), r.open(r.link), r.open(r.link), r.open(r.link)
				all := map[string]backend.Session{"deleted a node": ghost, "created a node": held, "changed a node": value, "read a change": reader}
				r.commit(ghost, backend.Create(r.path("ghost"), nil, backend.Ephemeral))
				for _, name := range []string{"clock", "value", "dir"} {
					r.commit(value, backend.Create(r.path(name), nil, backend.Persistent))
				}
				r.backup()
				for name, s := range all { // a restart ends no session
					if err := s.Sync(r.ctx, "/"); err != nil {
						t.Fatalf("%s: %v", name, err)
					}
				}
				r.commit(ghost, backend.Delete(r.path("ghost"), backend.AnyVersion))
				r.commit(held, backend.Create(r.path("dir/n-"), nil, backend.EphemeralSequential))
				latest := int64(0)
				for range 50 {
					latest = r.commit(value, backend.SetData(r.path("value"), []byte("x"), backend.AnyVersion))[0].Stat.Mzxid
				}
				for _, s := range all { // they have seen the latest zxid
					if err := s.Sync(r.ctx, "/"); err != nil {
						t.Fatal(err)
					}
				}
				if _, _, err := reader.Get(r.ctx, r.path("value"), nil); err != nil {
					t.Fatal(err)
				}
				if passed {
					r.link.Partition()
				}
				r.restore()
				if passed {
					r.pass(r.other(), latest)
					r.link.Heal()
				}
				for name, s := range all {
					r.await(s.Done(), "the end of a session")
					if err := s.Err(); !errors.Is(err, backend.ErrSessionLost) || !strings.Contains(err.Error(), "the service has returned to an earlier state") {
						t.Errorf("a session that %s: %v", name, err)
					} else {
						t.Logf("a session that %s: %v", name, err)
					}
				}
			})
		}
	}
}

// Neither restarts nor elections nor what other clients write and delete meanwhile end a session, as often as it
// looks for what it has seen.
func TestZooKeeper_RestartsAndElectionsKeepSessions(t *testing.T) {
	rounds, services := 3, []int{3}
	if os.Getenv("COORD_LONG") != "" {
		rounds, services = 20, []int{1, 3}
	}
	for _, servers := range services {
		t.Run(fmt.Sprint(servers, " servers"), func(t *testing.T) {
			t.Parallel()
			r := newRestoration(t, servers)
			var looks atomic.Int64
			for _, p := range r.link.Proxies {
				p.OnFrame(func(f zkproxy.Frame) {
					if f.Dir == zkproxy.Up && f.Xid == zkproxy.XidLook {
						looks.Add(1)
					}
				})
			}
			creator, setter, deleter, reader, other := r.open(r.link), r.open(r.link), r.open(r.link), r.open(r.link), r.other()
			all := []backend.Session{creator, setter, deleter, reader}
			r.commit(other, backend.Create(r.path("value"), nil, backend.Persistent))
			ctx, cancel := context.WithCancel(r.ctx)
			var busy sync.WaitGroup
			defer busy.Wait()
			defer cancel()
			churner := r.other()
			for i := range 4 {
				busy.Go(func() {
					for ctx.Err() == nil {
						name := r.path(fmt.Sprint("churn", i))
						churner.Commit(ctx, backend.Create(name, nil, backend.Ephemeral))
						churner.Commit(ctx, backend.SetData(r.path("value"), nil, backend.AnyVersion))
						churner.Commit(ctx, backend.Delete(name, backend.AnyVersion))
					}
				})
			}
			// commit makes a commit, which can meet the end of a connection.
			commit := func(s backend.Session, ops ...backend.Op) {
				t.Helper()
				for {
					if err := s.Sync(r.ctx, "/"); err != nil {
						t.Fatal(err)
					}
					_, err := s.Commit(r.ctx, ops...)
					if errors.Is(err, backend.ErrUncertain) && r.ctx.Err() == nil {
						continue
					}
					if err != nil && !errors.Is(err, backend.ErrExists) && !errors.Is(err, backend.ErrNotFound) && !errors.Is(err, backend.ErrNotEmpty) {
						t.Fatal(err)
					}
					return
				}
			}
			for round := range rounds {
				dir := r.path(fmt.Sprint("d", round))
				commit(creator, backend.Create(dir, nil, backend.Persistent))
				commit(creator, backend.Create(dir+"/n-", nil, backend.EphemeralSequential), backend.Check(dir, backend.AnyVersion))
				commit(setter, backend.SetData(r.path("value"), nil, backend.AnyVersion))
				commit(deleter, backend.Create(dir+"x", nil, backend.Ephemeral))
				commit(deleter, backend.Delete(dir+"x", backend.AnyVersion))
				if _, _, err := reader.Get(r.ctx, r.path("value"), nil); err != nil {
					t.Fatal(err)
				}
				path, zxid := zookeeper.LatestWrite(creator)
				if st, err := creator.Exists(r.ctx, path, nil); err != nil || st.Czxid != zxid || filepath.Dir(path) != dir {
					t.Fatalf("%s was created with zxid 0x%x: %+v, %v", path, zxid, st, err)
				}
				r.link.Partition()
				commit(other, backend.Create(dir+"x", nil, backend.Persistent))
				commit(other, backend.SetData(r.path("value"), nil, backend.AnyVersion))
				switch round % 3 { // it deletes the node, and its directory, or makes both again
				case 0:
					commit(other, backend.Delete(path, backend.AnyVersion))
				case 1:
					commit(other, backend.Delete(path, backend.AnyVersion), backend.Delete(dir, backend.AnyVersion))
				case 2:
					commit(other, backend.Delete(path, backend.AnyVersion), backend.Delete(dir, backend.AnyVersion))
					commit(other, backend.Create(dir, nil, backend.Persistent), backend.Create(path, nil, backend.Persistent))
				}
				leader, err := r.e.Leader(r.ctx)
				if err != nil {
					t.Fatal(err)
				}
				before := looks.Load()
				leader.Kill()
				r.link.Heal()
				if err := leader.Restart(r.ctx); err != nil {
					t.Fatal(err)
				}
				for i, s := range all {
					if err := s.Sync(r.ctx, "/"); err != nil {
						t.Fatalf("session %d: %v", i, err)
					}
				}
				if n := looks.Load() - before; n < int64(len(all)) {
					t.Errorf("%d looks of %d sessions", n, len(all))
				}
			}
			t.Logf("%d reads of looks", looks.Load())
		})
	}
}

// After the restoration the client opens its next session. Its holds are lost. A lock that it released is held only by
// its lost session, until that session ends. Its recipes compare no numbers of the two histories.
func TestZooKeeper_RestoredServiceHasOneHolder(t *testing.T) {
	t.Parallel()
	r := newRestoration(t, 1)
	open := func(b backend.Backend) *coord.Client {
		c, err := coord.Open(r.ctx, b, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	lock := func(c *coord.Client, path string) *coord.Hold {
		t.Helper()
		h, err := coord.NewMutex(c, path, nil).Lock(r.ctx)
		must(err)
		return h
	}
	old := open(r.link)
	watch, stop := context.WithCancel(r.ctx)
	ghost := (<-old.WatchState(watch)).Session
	stop()
	released := lock(old, r.path("released"))
	value, sem := coord.NewValue[string](old, r.path("value"), nil), coord.NewSemaphore(old, r.path("sem"), 5, nil)
	_, err := value.Set(r.ctx, "backup")
	must(err)
	r.backup()
	must(released.Release())
	held := lock(old, r.path("held"))
	_, err = value.Set(r.ctx, "later")
	must(err)
	for n := 9; n >= 5; n-- {
		must(sem.SetLimit(r.ctx, n))
	}
	r.restore()
	r.await(held.Done(), "the loss of the lock")
	if !errors.Is(held.Err(), coord.ErrSessionLost) || !strings.Contains(held.Err().Error(), "the service has returned to an earlier state") {
		t.Errorf("the hold ended with %v", held.Err())
	}
	fresh := open(r.service.ZooKeeper("fresh"))
	must(lock(fresh, r.path("held")).Release())
	r.link.Expire(ghost) // no client renews it, so it would end after its timeout
	must(lock(fresh, r.path("released")).Release())
	must(lock(old, r.path("released")).Release())
	if got, err := value.Get(r.ctx); err != nil || got.Value != "backup" {
		t.Errorf("the value is %q, %v", got.Value, err)
	}
	must(sem.SetLimit(r.ctx, 3))
	h, err := sem.Acquire(r.ctx, 3)
	must(err)
	must(h.Release())
}

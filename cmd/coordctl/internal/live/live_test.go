package live_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/backend/etcd"
	"github.com/go-coord/coord/backend/etcd/etcdtest"
	"github.com/go-coord/coord/backend/postgres"
	"github.com/go-coord/coord/backend/postgres/pgtest"
	"github.com/go-coord/coord/cmd/coordctl/internal/live"
	"github.com/go-coord/coord/inspect"
	"github.com/go-coord/coord/internal/coordtest"
)

func TestMain(m *testing.M) { coordtest.Main(m) }

// follow runs a model until the test ends.
func follow(t *testing.T, c *coord.Client, path string, o *live.Options) *live.Model {
	t.Helper()
	m, err := live.New(c, path, o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- m.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Run: %v", err)
		}
	})
	return m
}

// until waits for a snapshot that fits, and returns it.
func until(t *testing.T, m *live.Model, what string, fits func(v *live.Snapshot) bool) *live.Snapshot {
	t.Helper()
	limit := time.After(60 * time.Second)
	for {
		v, changed := m.Snapshot()
		if fits(v) {
			return v
		}
		select {
		case <-changed:
		case <-limit:
			t.Fatalf("never seen: %s; the view is %s", what, show(v))
		}
	}
}

func show(v *live.Snapshot) string {
	text := fmt.Sprintf("%s, %d passes, error %q", v.Session.Phase, v.Passes, v.Err)
	for _, r := range v.Rows {
		text += fmt.Sprintf("\n%s %s %s %d/%d", r.Path, r.Recipe, r.State, r.Holding, r.Waiting)
	}
	return text
}

// onAll runs a test on memory, with and without trees, and on ZooKeeper.
func onAll(t *testing.T, f func(w *coordtest.World)) {
	coordtest.OnEach(t, f)
	coordtest.OnMemoryWithoutTrees(t, f)
}

func TestTheViewFollowsALockFromHolderToHolder(t *testing.T) {
	onAll(t, func(w *coordtest.World) {
		m := follow(w.T, w.Open("viewer", nil), "/", nil)
		until(w.T, m, "an empty tree", func(v *live.Snapshot) bool { return v.Ready })
		lock := func(id string) *coord.Mutex {
			return coord.NewMutex(w.Open(id, nil), "/locks/x", &coord.MutexOptions{ID: id})
		}
		first := coordtest.MustLock(w.T, lock("host-a:1"))
		second := w.Waiting(context.Background(), lock("host-b:2"))
		path := w.Path("/locks/x")
		v := until(w.T, m, "a holder and a waiter", func(v *live.Snapshot) bool {
			r := v.Find(path)
			return r != nil && r.Holding == 1 && r.Waiting == 1
		})
		r := v.Find(path)
		if r.State != "held" || r.Holders[0].Label != "host-a:1" || r.Waiters[0].Label != "host-b:2" || !slices.Equal(r.Waiters[0].WaitsFor, []string{"host-a:1"}) {
			w.T.Errorf("the row is %+v", r)
		}
		if r.Class() != "locks" || r.Since().IsZero() || r.Oldest().Before(r.Since()) {
			w.T.Errorf("class %s, since %v, oldest %v", r.Class(), r.Since(), r.Oldest())
		}
		coordtest.MustRelease(w.T, first)
		h := second.Hold()
		v = until(w.T, m, "the next holder", func(v *live.Snapshot) bool {
			r := v.Find(path)
			return r != nil && len(r.Holders) == 1 && r.Holders[0].Label == "host-b:2"
		})
		turns := v.Find(path).Turns
		if len(turns) != 2 || turns[0].Label != "host-a:1" || turns[0].Until.IsZero() || turns[1].Token != h.Token() || !turns[1].Until.IsZero() {
			w.T.Errorf("the turns are %+v", turns)
		}
		coordtest.MustRelease(w.T, h)
		until(w.T, m, "a free lock", func(v *live.Snapshot) bool {
			r := v.Find(path)
			return r == nil || r.Holding == 0
		})
	})
}

// TestTheRatesOfAQueueCountEachItem: also those that come and go between two reads.
func TestTheRatesOfAQueueCountEachItem(t *testing.T) {
	coordtest.OnMemory(t, func(w *coordtest.World) {
		ctx := context.Background()
		q := coord.NewQueue[int](w.Open("a", nil), "/q", nil)
		mustPut := func(n int) {
			for i := range n {
				if _, err := q.Put(ctx, i); err != nil {
					w.T.Fatal(err)
				}
			}
		}
		mustPut(3)
		m := follow(w.T, w.Open("viewer", nil), "/q", nil)
		until(w.T, m, "the queue", func(v *live.Snapshot) bool { return len(v.Rows) == 1 })
		time.Sleep(10 * time.Second)
		mustPut(60)
		for range 40 {
			item, err := q.Take(ctx)
			if err == nil {
				err = item.Ack()
			}
			if err != nil {
				w.T.Fatal(err)
			}
		}
		time.Sleep(10 * time.Second)
		v, _ := m.Snapshot()
		r := v.Rows[0].Queue
		if r.Items != 23 || r.In == nil || r.Out == nil {
			w.T.Fatalf("the queue is %+v", r)
		}
		// The latest snapshot is of 18 to 22 s after the first read.
		if in, out := *r.In, *r.Out; in < 60/22. || in > 60/18. || out < 40/22. || out > 40/18. {
			w.T.Errorf("rates %v and %v, want 60 and 40 items in 20 s", in, out)
		}
		if v.Rows[0].State != "stuck" || r.Oldest.IsZero() {
			w.T.Errorf("state %s, oldest %v", v.Rows[0].State, r.Oldest)
		}
		if n := len(v.Rows[0].History); n < 5 || v.Rows[0].History[0].Value != 3 || v.Rows[0].History[n-1].Value != 23 {
			w.T.Errorf("history %v", v.Rows[0].History)
		}
		time.Sleep(60 * time.Second)
		v, _ = m.Snapshot()
		if r := v.Rows[0].Queue; *r.In != 0 || *r.Out != 0 {
			w.T.Errorf("after a minute without items the rates are %v and %v", *r.In, *r.Out)
		}
	})
}

// TestWhatAViewCosts: nothing while nothing changes, and then the recipe that has changed.
func TestWhatAViewCosts(t *testing.T) {
	coordtest.OnMemory(t, func(w *coordtest.World) {
		a := w.Open("a", nil)
		for i := range 100 {
			coordtest.MustLock(w.T, coord.NewMutex(a, fmt.Sprintf("/locks/%d", i), nil))
		}
		var calls atomic.Int32
		c := w.Open("viewer", &backendtest.Hooks{Before: func(_ context.Context, call backendtest.Call) error {
			calls.Add(1)
			return nil
		}})
		m := follow(w.T, c, "/", nil)
		until(w.T, m, "the locks", func(v *live.Snapshot) bool { return len(v.Rows) == 100 })
		whole := calls.Swap(0)
		time.Sleep(50 * time.Second)
		idle := calls.Swap(0)
		coordtest.MustLock(w.T, coord.NewMutex(a, "/locks/one-more", nil))
		until(w.T, m, "the new lock", func(v *live.Snapshot) bool {
			r := v.Find("/locks/one-more")
			return r != nil && r.Holding == 1
		})
		time.Sleep(2 * time.Second)
		one := calls.Swap(0)
		if whole > 12 || idle != 0 || one == 0 || one > 10 {
			w.T.Errorf("%d calls at the start, %d while nothing changed, %d for one change", whole, idle, one)
		}
		w.T.Logf("figure: a view of 100 locks: %d calls at the start, %d in 50 s without changes, %d for a new lock", whole, idle, one)
	})
}

func TestTheViewSurvivesLostContactAndLostSessions(t *testing.T) {
	onAll(t, func(w *coordtest.World) {
		a := w.Open("a", nil)
		coordtest.MustLock(w.T, coord.NewMutex(a, "/locks/1", nil))
		c := w.Open("viewer", nil)
		m := follow(w.T, c, "/locks", nil)
		one := until(w.T, m, "the first lock", func(v *live.Snapshot) bool { return len(v.Rows) == 1 && v.Rows[0].Holding == 1 })
		link := w.Link("viewer")
		link.Partition()
		suspended := until(w.T, m, "the suspension", func(v *live.Snapshot) bool { return v.Session.Phase == "suspended" })
		if len(suspended.Rows) != 1 {
			w.T.Errorf("%d rows while suspended", len(suspended.Rows))
		}
		coordtest.MustLock(w.T, coord.NewMutex(a, "/locks/2", nil))
		until(w.T, m, "the loss", func(v *live.Snapshot) bool { return v.Session.Phase == "lost" && v.Session.Err != "" })
		link.Heal()
		v := until(w.T, m, "the second lock", func(v *live.Snapshot) bool { return len(v.Rows) == 2 && v.Rows[1].Holding == 1 })
		if v.Session.Phase != "connected" || v.Session.ID == one.Session.ID {
			w.T.Errorf("the session is %+v, before it was %+v", v.Session, one.Session)
		}
		coordtest.MustLock(w.T, coord.NewMutex(a, "/locks/3", nil))
		until(w.T, m, "the third lock", func(v *live.Snapshot) bool { return len(v.Rows) == 3 && v.Rows[2].Holding == 1 })
	})
}

// Without a watch nothing but the pauses keeps the view from reading again and again, also on the
// session that follows a lost one.
func TestAViewWithoutAWatchPausesAfterALostSession(t *testing.T) {
	coordtest.OnMemoryWithoutTrees(t, func(w *coordtest.World) {
		m := follow(w.T, w.Open("viewer", nil), "/", nil)
		first := until(w.T, m, "the first pass", func(v *live.Snapshot) bool { return v.Ready && v.Session.ID != "" })
		w.Link("viewer").Partition()
		until(w.T, m, "the loss", func(v *live.Snapshot) bool { return v.Session.Phase == "lost" })
		w.Link("viewer").Heal()
		next := until(w.T, m, "the next session", func(v *live.Snapshot) bool {
			return v.Session.Phase == "connected" && v.Session.ID != first.Session.ID && v.Passes > first.Passes
		})
		began := time.Now()
		until(w.T, m, "five passes more", func(v *live.Snapshot) bool { return v.Passes >= next.Passes+5 })
		if took, least := time.Since(began), 4*2*time.Second; took < least {
			w.T.Errorf("five passes in %v, want at least %v", took, least)
		}
	})
}

// play does n random things to a tree.
func play(w *coordtest.World, rng *rand.Rand, n int) {
	ctx := context.Background()
	a := w.Open("player", nil)
	s := w.Session("outsider")
	var locks []*coord.Hold
	q := coord.NewQueue[int](a, "/x/q", nil)
	for range n {
		switch path := fmt.Sprintf("/x/%d", rng.IntN(4)); rng.IntN(8) {
		case 0, 1:
			if m := coord.NewMutex(a, path+"/lock", nil); len(locks) < 6 {
				if h, err := m.TryLock(ctx); err == nil {
					locks = append(locks, h)
				}
			}
		case 2, 3:
			if len(locks) > 0 {
				i := rng.IntN(len(locks))
				coordtest.MustRelease(w.T, locks[i])
				locks = slices.Delete(locks, i, i+1)
			}
		case 4:
			if _, err := coord.NewValue[int](a, path+"/value", nil).Set(ctx, rng.IntN(10)); err != nil {
				w.T.Fatal(err)
			}
		case 5:
			if rng.IntN(2) == 0 {
				if _, err := q.Put(ctx, 1); err != nil {
					w.T.Fatal(err)
				}
			} else if item, err := q.TryTake(ctx); err == nil {
				if err := item.Ack(); err != nil {
					w.T.Fatal(err)
				}
			}
		default: // what is there may go, with its directory
			for _, p := range []string{path + "/value", path + "/lock", path}[:1+rng.IntN(3)] {
				if _, err := s.Commit(ctx, backend.Delete(w.Path(p), backend.AnyVersion)); err != nil && !errors.Is(err, backend.ErrNotFound) && !errors.Is(err, backend.ErrNotEmpty) {
					w.T.Fatal(err)
				}
			}
		}
		if w.Fake {
			time.Sleep(time.Duration(rng.IntN(700)) * time.Millisecond)
		}
	}
}

// TestTheViewEndsAsTheTreeIs: whatever happened, when nothing happens any more the view, of which
// only parts were read anew, is what a survey of the whole tree shows.
func TestTheViewEndsAsTheTreeIs(t *testing.T) {
	test := func(w *coordtest.World, seed uint64) {
		c := w.Open("viewer", nil)
		m := follow(w.T, c, "/", &live.Options{Interval: 200 * time.Millisecond})
		until(w.T, m, "the first survey", func(v *live.Snapshot) bool { return v.Ready })
		play(w, rand.New(rand.NewPCG(seed, 7)), 60)
		want, err := inspect.Tree(context.Background(), c, "/", nil)
		if err != nil {
			w.T.Fatal(err)
		}
		plain := func(in *inspect.Report) inspect.Report {
			r := *in
			r.At, r.Reads = time.Time{}, 0
			return r
		}
		whole := make(map[string]inspect.Report)
		for _, in := range want.Reports {
			whole[in.Path] = plain(in)
		}
		until(w.T, m, fmt.Sprintf("the tree of seed %d, %s", seed, want), func(v *live.Snapshot) bool {
			rows := make(map[string]inspect.Report)
			for _, r := range v.Rows {
				rows[r.Path] = plain(r.Report)
			}
			return maps.EqualFunc(rows, whole, func(a, b inspect.Report) bool { return reflect.DeepEqual(a, b) }) && v.Directories == len(want.Directories)
		})
	}
	for seed := range uint64(20) {
		coordtest.OnMemory(t, func(w *coordtest.World) { test(w, seed) })
	}
	t.Run("zookeeper", func(t *testing.T) {
		coordtest.OnEach(t, func(w *coordtest.World) { test(w, 100) })
	})
}

// TestADirectoryThatBecomesEmpty: it is a directory no more when its last node is deleted.
func TestADirectoryThatBecomesEmpty(t *testing.T) {
	coordtest.OnMemory(t, func(w *coordtest.World) {
		s := w.Session("outsider")
		commit := func(ops ...backend.Op) {
			if _, err := s.Commit(context.Background(), ops...); err != nil {
				w.T.Fatal(err)
			}
		}
		commit(backend.Create("/d", nil, backend.Persistent), backend.Create("/d/1", nil, backend.Persistent), backend.Create("/d/2", nil, backend.Persistent))
		m := follow(w.T, w.Open("viewer", nil), "/", nil)
		until(w.T, m, "two nodes", func(v *live.Snapshot) bool { return len(v.Rows) == 2 && v.Directories == 2 })
		commit(backend.Delete("/d/1", backend.AnyVersion))
		until(w.T, m, "one node", func(v *live.Snapshot) bool { return len(v.Rows) == 1 && v.Rows[0].Path == "/d/2" && v.Directories == 2 })
		commit(backend.Delete("/d/2", backend.AnyVersion))
		began := time.Now()
		until(w.T, m, "an empty directory", func(v *live.Snapshot) bool {
			return len(v.Rows) == 1 && v.Rows[0].Path == "/d" && v.Rows[0].Recipe == "empty"
		})
		if d := time.Since(began); d > 5*time.Second {
			w.T.Errorf("it took %v, until the next survey of the whole tree", d)
		}
	})
}

// TestTheViewOfAServerOfEtcd: locks and queues, with rates, on etcd.
func TestTheViewOfAServerOfEtcd(t *testing.T) {
	viewsAServer(t, etcd.New([]string{etcdtest.Start(t, nil).Addr()}, nil))
}

// TestTheViewOfAServerOfPostgreSQL: the same there.
func TestTheViewOfAServerOfPostgreSQL(t *testing.T) {
	viewsAServer(t, postgres.New(pgtest.Start(t, nil).URL(""), nil))
}

func viewsAServer(t *testing.T, b backend.Backend) {
	t.Helper()
	open := func() *coord.Client { return coordtest.Open(t, b, nil) }
	a := open()
	coordtest.MustLock(t, coord.NewMutex(a, "/app/lock", &coord.MutexOptions{ID: "a"}))
	m := follow(t, open(), "/", nil)
	until(t, m, "the lock", func(v *live.Snapshot) bool {
		return len(v.Rows) == 1 && v.Rows[0].Path == "/app/lock" && len(v.Rows[0].Holders) == 1 && v.Rows[0].Holders[0].Label == "a"
	})
	if _, err := coord.NewQueue[int](a, "/app/q", nil).Put(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	v := until(t, m, "the queue, with rates", func(v *live.Snapshot) bool {
		r := v.Find("/app/q")
		return r != nil && r.Queue != nil && r.Queue.Ready == 1 && r.Queue.In != nil
	})
	if !v.Watched {
		t.Error("the tree is not watched")
	}
}

// TestClientsThatWaitForEachOtherAreShown: two clients take two locks in opposite order.
func TestClientsThatWaitForEachOtherAreShown(t *testing.T) {
	coordtest.OnMemory(t, func(w *coordtest.World) {
		m := follow(w.T, w.Open("viewer", nil), "/", nil)
		clients := map[string]*coord.Client{"a": w.Open("a", nil), "b": w.Open("b", nil)}
		lock := func(id, path string) *coord.Mutex {
			return coord.NewMutex(clients[id], path, &coord.MutexOptions{ID: id})
		}
		// The label of a client at another lock does not matter.
		coordtest.MustLock(w.T, coord.NewMutex(clients["a"], "/a", &coord.MutexOptions{ID: "other"}))
		coordtest.MustLock(w.T, lock("a", "/x"))
		coordtest.MustLock(w.T, lock("b", "/y"))
		ctx, cancel := context.WithCancel(context.Background())
		first := w.Waiting(ctx, lock("b", "/x"))
		v := until(w.T, m, "one waiter", func(v *live.Snapshot) bool { return len(v.Rows) == 3 && v.Rows[1].Waiting == 1 })
		if len(v.Cycles) > 0 {
			w.T.Errorf("one waits for the other: cycles %v", v.Cycles)
		}
		second := w.Waiting(ctx, lock("a", "/y"))
		v = until(w.T, m, "two waiters", func(v *live.Snapshot) bool { return len(v.Rows) == 3 && v.Rows[1].Waiting+v.Rows[2].Waiting == 2 })
		cancel()
		<-first.Done
		<-second.Done
		b, a := live.Wait{Label: "b", Path: "/x", For: "a"}, live.Wait{Label: "a", Path: "/y", For: "b"}
		if len(v.Cycles) != 1 || !slices.Equal(v.Cycles[0], []live.Wait{a, b}) && !slices.Equal(v.Cycles[0], []live.Wait{b, a}) {
			w.T.Errorf("cycles %v", v.Cycles)
		}
	})
}

func TestRowsAreSelectedAndOrdered(t *testing.T) {
	now := time.Now()
	v := &live.Snapshot{At: now, Rows: []*live.Row{
		{Path: "/a", Recipe: "mutex", State: "held", Waiting: 1, Holders: []live.Party{{Label: "Host-1"}}, Waiters: []live.Party{{Label: "host-2", Since: now.Add(-time.Minute)}}},
		{Path: "/b", Recipe: "queue", State: "stuck", Queue: &live.Queue{Items: 5, Oldest: now.Add(-time.Hour)}},
		{Path: "/c", Recipe: "rwmutex", State: "free", Waiting: 3},
	}}
	for _, tc := range []struct{ words, order, want string }{
		{"", "", "/a /b /c"},
		{"locks", "", "/a /c"},
		{"HOST-1", "", "/a"},
		{"locks free", "", "/c"},
		{"none", "", ""},
		{"", live.ByWaiting, "/c /a /b"},
		{"", live.ByDepth, "/b /a /c"},
		{"", live.ByAge, "/b /a /c"},
	} {
		var paths []string
		for _, r := range v.Select(tc.words, tc.order) {
			paths = append(paths, r.Path)
		}
		if got := strings.Join(paths, " "); got != tc.want {
			t.Errorf("%q by %q: %s, want %s", tc.words, tc.order, got, tc.want)
		}
	}
}

func TestAgesAndRatesAreShort(t *testing.T) {
	now := time.Now()
	for d, want := range map[time.Duration]string{
		-time.Second: "0s", 0: "0s", 59 * time.Second: "59s", 61 * time.Second: "1m01s", 3 * time.Hour: "3h00m", 50 * time.Hour: "2d02h",
	} {
		if got := live.Age(now, now.Add(-d)); got != want {
			t.Errorf("%v: %s, want %s", d, got, want)
		}
	}
	for rate, want := range map[float64]string{0: "0", 0.25: "0.2", 9.94: "9.9", 1234.5: "1234"} {
		if got := live.Rate(&rate); got != want {
			t.Errorf("%v: %s, want %s", rate, got, want)
		}
	}
	if live.Age(now, time.Time{}) != "" || live.Rate(nil) != "–" {
		t.Error("what is not known looks known")
	}
}

func TestABadPathIsRefusedAtOnce(t *testing.T) {
	coordtest.OnMemory(t, func(w *coordtest.World) {
		_, err := live.New(w.Open("a", nil), "x", nil)
		coordtest.WantErr(w.T, err, coord.ErrBadPath)
	})
}

package memory_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/backend/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type service struct{ *memory.Store }

func (s service) Root() string                      { return "/" }
func (s service) Link(name string) backendtest.Link { return s.Store.Link(name) }

func harness(o memory.Options) backendtest.Harness {
	return backendtest.Harness{
		New:            func(*testing.T) backendtest.Service { return service{memory.New(&o)} },
		SessionTimeout: o.SessionTimeout,
	}
}

func TestTheContractIsKept(t *testing.T) {
	t.Run("in real time", func(t *testing.T) {
		h := harness(memory.Options{SessionTimeout: 2 * time.Second})
		h.Parallel = true
		backendtest.Run(t, h)
	})
	t.Run("in a bubble", func(t *testing.T) {
		h := harness(memory.Options{SessionTimeout: 10 * time.Second, LossMargin: 4 * time.Second})
		h.Leaf = synctest.Test
		backendtest.Run(t, h)
	})
}

func open(t *testing.T, b backend.Backend) backend.Session {
	t.Helper()
	s, err := b.Open(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func create(t *testing.T, s backend.Session, path string, mode backend.CreateMode) string {
	t.Helper()
	res, err := s.Commit(context.Background(), backend.Create(path, nil, mode))
	if err != nil {
		t.Fatal(err)
	}
	return res[0].Path
}

// Sequence numbers look like ZooKeeper's: ten characters, and the last number repeats.
func TestSequenceNumbersNearTheirEnd(t *testing.T) {
	st := memory.New(nil)
	s := open(t, st)
	create(t, s, "/d", backend.Persistent)
	if err := st.SetSequence("/d", math.MaxInt32-1); err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"/d/0-2147483646", "/d/1-2147483647", "/d/2-2147483647"} {
		if got := create(t, s, fmt.Sprintf("/d/%d-", i), backend.EphemeralSequential); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	if err := st.SetSequence("/d", -7); err != nil {
		t.Fatal(err)
	}
	if got := create(t, s, "/d/n", backend.PersistentSequential); got != fmt.Sprintf("/d/n%010d", -7) {
		t.Errorf("got %s", got)
	}
	if err := st.SetSequence("/missing", 1); !errors.Is(err, backend.ErrNotFound) {
		t.Errorf("got %v", err)
	}
	if err := st.SetSequence("/d", math.MaxInt32+1); !errors.Is(err, backend.ErrInvalid) {
		t.Errorf("got %v", err)
	}
}

func TestSequenceNumbersOfAServiceWithoutAnEnd(t *testing.T) {
	st := memory.New(&memory.Options{Limits: backend.Limits{Sequence: math.MaxInt64}})
	s := open(t, st)
	create(t, s, "/d", backend.Persistent)
	if err := st.SetSequence("/d", 9_999_999_999); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"/d/n-9999999999", "/d/n-10000000000", "/d/n-10000000001"} {
		if got := create(t, s, "/d/n-", backend.EphemeralSequential); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

func TestContainersGoWhenTheyAreReaped(t *testing.T) {
	st := memory.New(nil)
	s := open(t, st)
	create(t, s, "/c", backend.Container)
	create(t, s, "/c/d", backend.Container)
	create(t, s, "/new", backend.Container)
	create(t, s, "/c/d/x", backend.Ephemeral)
	st.ReapContainers()
	if _, err := s.Exists(t.Context(), "/c/d", nil); err != nil {
		t.Errorf("a container with a child was reaped: %v", err)
	}
	w := backend.NewWatch()
	if _, err := s.Exists(t.Context(), "/c", w); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Commit(t.Context(), backend.Delete("/c/d/x", backend.AnyVersion)); err != nil {
		t.Fatal(err)
	}
	st.ReapContainers()
	if _, err := s.Exists(t.Context(), "/c", nil); !errors.Is(err, backend.ErrNotFound) {
		t.Errorf("the empty containers still exist: %v", err)
	}
	if w.Kind() != backend.Deleted {
		t.Errorf("watch: %v", w.Kind())
	}
	if _, err := s.Exists(t.Context(), "/new", nil); err != nil {
		t.Errorf("a container that never had a child was reaped: %v", err)
	}
}

func TestLatencyDelaysEachWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memory.New(nil)
		s := open(t, st.Link("slow"))
		st.Link("slow").SetLatency(10 * time.Millisecond)
		start := time.Now()
		create(t, s, "/a", backend.Persistent)
		if d := time.Since(start); d != 20*time.Millisecond {
			t.Errorf("a commit took %v", d)
		}
		start = time.Now()
		if _, _, err := s.Get(t.Context(), "/a", nil); err != nil {
			t.Fatal(err)
		}
		if d := time.Since(start); d != 20*time.Millisecond {
			t.Errorf("a read took %v", d)
		}

		// A commit whose caller gave up is applied all the same, and Sync is ordered after it
		// even when the latency has changed.
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
		defer cancel()
		_, err := s.Commit(ctx, backend.Create("/late", nil, backend.Persistent))
		if !errors.Is(err, backend.ErrUncertain) || !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		st.Link("slow").SetLatency(0)
		if err := s.Sync(t.Context(), "/"); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Exists(t.Context(), "/late", nil); err != nil {
			t.Errorf("after Sync: %v", err)
		}
	})
}

func TestALinkFailsAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memory.New(&memory.Options{SessionTimeout: 3 * time.Second})
		a, b := open(t, st.Link("a")), open(t, st.Link("b"))
		create(t, a, "/a", backend.Ephemeral)
		st.Link("a").Partition()
		if p, _ := b.Status(); p != backend.PhaseConnected {
			t.Errorf("the other link is %v", p)
		}
		time.Sleep(2 * time.Second)
		if err := a.Err(); !errors.Is(err, backend.ErrSessionLost) {
			t.Errorf("after the lease: %v", err)
		}
		if _, err := b.Exists(t.Context(), "/a", nil); err != nil {
			t.Errorf("before the timeout: %v", err)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if _, err := b.Exists(t.Context(), "/a", nil); !errors.Is(err, backend.ErrNotFound) {
			t.Errorf("after the timeout: %v", err)
		}
		st.Link("b").Expire(a.ID()) // not of this link
		st.Link("a").Heal()
	})
}

func BenchmarkCommit(b *testing.B) {
	s, err := memory.New(nil).Open(context.Background())
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := s.Commit(context.Background(), backend.Create("/a", nil, backend.Ephemeral)); err != nil {
			b.Fatal(err)
		}
		if _, err := s.Commit(context.Background(), backend.Delete("/a", backend.AnyVersion)); err != nil {
			b.Fatal(err)
		}
	}
}

// As in ZooKeeper: the event for an Arm that came too late fires the older watches of the
// node.
func TestAnArmThatIsTooLateStartlesTheOlderWatchesOfItsSession(t *testing.T) {
	st := memory.New(nil)
	s, o := open(t, st), open(t, st)
	ctx := context.Background()
	create(t, s, "/n", backend.Persistent)
	watch := func(arm func(w *backend.Watch) error) *backend.Watch {
		t.Helper()
		w := backend.NewWatch()
		if err := arm(w); err != nil && !errors.Is(err, backend.ErrNotFound) {
			t.Fatal(err)
		}
		return w
	}
	get := func(s backend.Session) *backend.Watch {
		return watch(func(w *backend.Watch) error { _, _, err := s.Get(ctx, "/n", w); return err })
	}
	missing := func(s backend.Session) *backend.Watch {
		return watch(func(w *backend.Watch) error { _, err := s.Exists(ctx, "/missing", w); return err })
	}
	data, others := get(s), get(o)
	children := watch(func(w *backend.Watch) error { _, _, err := s.Children(ctx, "/n", w); return err })
	created, othersCreated := missing(s), missing(o)
	for _, step := range []struct {
		target backend.Target
		fires  []*backend.Watch
	}{
		{backend.Target{Path: "/n"}, []*backend.Watch{data}},
		{backend.Target{Path: "/n", Children: true}, []*backend.Watch{data, children}},
		{backend.Target{Path: "/missing", Children: true}, []*backend.Watch{data, children, created}},
	} {
		step.target.Watch = backend.NewWatch()
		if err := s.Arm(ctx, 0, step.target); err != nil {
			t.Fatal(err)
		}
		for i, w := range []*backend.Watch{data, children, created, others, othersCreated, step.target.Watch} {
			want := backend.Kind(0)
			if w == step.target.Watch || slices.Contains(step.fires, w) {
				want = backend.LookAgain
			}
			if got := w.Kind(); got != want {
				t.Errorf("after an Arm of %s, children %v: watch %d has kind %q, want %q", step.target.Path, step.target.Children, i, got, want)
			}
		}
	}
}

func TestLimitsThatMakeNoSenseAreRefused(t *testing.T) {
	for _, l := range []backend.Limits{{Ops: -1}, {Checks: -1}, {Bytes: -1}, {Bytes: backend.MaxRequest + 1}, {Sequence: math.MaxInt32 - 1}} {
		if _, err := memory.New(&memory.Options{Limits: l}).Open(t.Context()); !errors.Is(err, backend.ErrInvalid) {
			t.Errorf("%+v: %v", l, err)
		}
	}
	s := open(t, memory.New(&memory.Options{Limits: backend.Limits{Ops: 1}}))
	if got, want := s.Limits(), (backend.Limits{Ops: 1, Bytes: backend.MaxRequest, Sequence: math.MaxInt32}); got != want {
		t.Errorf("limits %+v, want %+v", got, want)
	}
}

// A store that spares has ZooKeeper's numbers, and a Carry there writes nothing.
func TestAStoreThatSparesWritesNoCarry(t *testing.T) {
	s := open(t, memory.New(&memory.Options{Spares: true}))
	if _, err := s.Commit(t.Context(), backend.Create("/d", []byte("mark"), backend.Persistent)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"/d/n-0000000000", "/d/n-0000000001"} {
		r, err := s.Commit(t.Context(), backend.Create("/d/n-", nil, backend.PersistentSequential), backend.Carry("/d", []byte("mark")))
		if err != nil || r[0].Path != want || r[1].Stat.Version != 0 {
			t.Errorf("%+v, %v, want %s and version 0", r, err, want)
		}
	}
	if _, err := s.Commit(t.Context(), backend.Carry("/d", []byte("other"))); !errors.Is(err, backend.ErrBadVersion) {
		t.Errorf("a Carry of other data: %v", err)
	}
}

func TestNumbersThatAreRevisions(t *testing.T) {
	st := memory.New(&memory.Options{Revisions: true})
	s := open(t, st)
	create(t, s, "/d", backend.Persistent)
	last := int64(0)
	for i := range int32(700) {
		results, err := s.Commit(t.Context(), backend.Create("/d/a-", nil, backend.EphemeralSequential), backend.Create("/d/b-", nil, backend.EphemeralSequential))
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range results {
			digits := r.Path[len("/d/a-"):]
			n, err := strconv.ParseInt(digits, 10, 64)
			if err != nil || n <= last || len(digits) < 10 || r.Siblings != 2*i+2 || r.Czxid == 0 {
				t.Fatalf("%+v after %d", r, last)
			}
			last = n
		}
	}
	if last < 9_999_999_999 {
		t.Errorf("the last number is %d: this tests too little", last)
	}
	if err := st.SetSequence("/d", 7); !errors.Is(err, backend.ErrUnsupported) {
		t.Errorf("got %v", err)
	}
	if _, err := memory.New(&memory.Options{Revisions: true, Limits: backend.Limits{Sequence: math.MaxInt32}}).Open(t.Context()); !errors.Is(err, backend.ErrInvalid) {
		t.Errorf("numbers of revisions with an end: %v", err)
	}
}

func TestContainersGoByThemselvesInFakeTime(t *testing.T) {
	for interval, want := range map[time.Duration]time.Duration{0: time.Minute, time.Second: time.Second, -1: 0} {
		synctest.Test(t, func(t *testing.T) {
			st := memory.New(&memory.Options{ContainerInterval: interval})
			s := open(t, st)
			for _, p := range []string{"/c", "/c/d", "/new", "/full"} {
				create(t, s, p, backend.Container)
			}
			create(t, s, "/full/x", backend.Persistent)
			gone := func(path string, after time.Duration) {
				t.Helper()
				w := backend.NewWatch()
				if _, err := s.Exists(t.Context(), path, w); err != nil {
					t.Fatal(err)
				}
				began := time.Now()
				select {
				case <-w.Fired():
				case <-time.After(24 * time.Hour):
					w.Stop()
					if want != 0 {
						t.Errorf("%v: %s is still there after a day", interval, path)
					}
					return
				}
				if w.Kind() != backend.Deleted || time.Since(began) != after || want == 0 {
					t.Errorf("%v: %s went after %v (%v), want %v", interval, path, time.Since(began), w.Kind(), after)
				}
			}
			create(t, s, "/c/d/x", backend.Ephemeral)
			time.Sleep(24 * time.Hour)
			if _, err := s.Commit(t.Context(), backend.Delete("/c/d/x", backend.AnyVersion)); err != nil {
				t.Fatal(err)
			}
			gone("/c/d", want)
			gone("/c", want)
			for _, p := range []string{"/full", "/new"} {
				if _, err := s.Exists(t.Context(), p, nil); err != nil {
					t.Errorf("%v: %s: %v", interval, p, err)
				}
			}
		})
	}
}

// A container that was filled again before the end of the interval stays, also when its child was
// removed and created again, or when it is another container at the same path.
func TestAContainerThatIsFilledAgainStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memory.New(nil)
		s := open(t, st)
		commit := func(ops ...backend.Op) {
			t.Helper()
			if _, err := s.Commit(t.Context(), ops...); err != nil {
				t.Fatal(err)
			}
		}
		for _, p := range []string{"/a", "/b"} {
			create(t, s, p, backend.Container)
			create(t, s, p+"/x", backend.Persistent)
			commit(backend.Delete(p+"/x", backend.AnyVersion))
		}
		time.Sleep(30 * time.Second)
		create(t, s, "/a/y", backend.Persistent)
		commit(backend.Delete("/b", backend.AnyVersion))
		create(t, s, "/b", backend.Container) // never used
		time.Sleep(time.Hour)
		for _, p := range []string{"/a", "/b"} {
			if _, err := s.Exists(t.Context(), p, nil); err != nil {
				t.Error(err)
			}
		}
	})
}

package coord_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
)

const inspectID = "01234567-89ab-8def-8123-456789abcdef" // has the form of a GUID

// inspectScenes are the states of recipes that Inspect must tell.
var inspectScenes = []inspectScene{
	{name: "mutex", path: "/m", data: true, setup: inspectMutex},
	{name: "mutex-secret", path: "/m", setup: inspectMutex},
	{name: "mutex-kazoo", path: "/m", setup: func(w *world) {
		inspectMake(w, backend.Persistent, "/m")
		inspectMake(w, backend.EphemeralSequential, "/m/0123456789abcdef0123456789abcdef__lock__=10.1.2.3")
	}},
	{name: "rwmutex", path: "/rw", setup: func(w *world) {
		w.inLine("/rw", "RRWRRW", func(c *coord.Client, kind rune) error {
			rw := coord.NewRWMutex(c, "/rw", nil)
			lock := rw.RLock
			if kind == 'W' {
				lock = rw.Lock
			}
			_, err := lock(w.t.Context())
			return err
		})
	}},
	{name: "rwmutex-writer", path: "/rw", setup: func(w *world) {
		w.inLine("/rw", "WWR", func(c *coord.Client, kind rune) error {
			rw := coord.NewRWMutex(c, "/rw", nil)
			lock := rw.RLock
			if kind == 'W' {
				lock = rw.Lock
			}
			_, err := lock(w.t.Context())
			return err
		})
	}},
	{name: "election", path: "/e", data: true, setup: func(w *world) {
		first := make(chan *coord.Term, 3)
		w.inLine("/e", "abc", func(c *coord.Client, id rune) error {
			o := &coord.ElectionOptions{ID: "node-" + string(id)}
			if id == 'b' {
				o.Data = []byte("10.0.0.2:80")
			}
			t, err := coord.NewElection(c, "/e", o).Campaign(w.t.Context())
			if err == nil {
				first <- t
			}
			return err
		})
		if err := (<-first).Announce(context.Background(), []byte("at 10.0.0.1:80")); err != nil {
			w.t.Fatal(err)
		}
	}},
	{name: "semaphore", path: "/s", data: true, setup: func(w *world) {
		n := 0
		w.inLine("/s/requests", "21231", func(c *coord.Client, weight rune) error {
			n++
			o := &coord.SemaphoreOptions{Data: fmt.Appendf(nil, "caller %d", n)}
			_, err := coord.NewSemaphore(c, "/s", 3, o).Acquire(w.t.Context(), int(weight-'0'))
			return err
		})
	}},
	{name: "semaphore-lowered", path: "/s", setup: inspectLowered},
	{name: "semaphore-unused", path: "/s", setup: func(w *world) {
		if err := coord.NewSemaphore(w.open("a", nil), "/s", 3, nil).SetLimit(context.Background(), 5); err != nil {
			w.t.Fatal(err)
		}
	}},
	{name: "group", path: "/g", data: true, setup: func(w *world) {
		for _, id := range []string{"web-2", "web-1"} {
			g := coord.NewGroup(w.open(id, nil), "/g", &coord.GroupOptions[string]{Codec: coord.Text()})
			if _, err := g.Join(context.Background(), id, id+".example:80"); err != nil {
				w.t.Fatal(err)
			}
		}
		inspectMake(w, backend.EphemeralSequential, "/g/_c_"+inspectID+"-member-web-1-=the next one")
	}},
	{name: "value", path: "/v", setup: inspectValue},
	{name: "value-data", path: "/v", data: true, setup: inspectValue},
	{name: "counter", path: "/n", data: true, setup: inspectCounter},
	{name: "counter-secret", path: "/n", setup: inspectCounter},
	{name: "barrier", path: "/b", setup: func(w *world) {
		if err := coord.NewBarrier(w.open("a", nil), "/b", nil).Set(context.Background()); err != nil {
			w.t.Fatal(err)
		}
	}},
	{name: "barrier-ephemeral", path: "/b", setup: func(w *world) {
		b := coord.NewBarrier(w.open("a", nil), "/b", &coord.BarrierOptions{Ephemeral: true})
		if err := b.Set(context.Background()); err != nil {
			w.t.Fatal(err)
		}
	}},
	{name: "doublebarrier-waiting", path: "/d", setup: func(w *world) { w.enterAll(3, 2) }},
	{name: "doublebarrier-open", path: "/d", setup: func(w *world) {
		w.enterAll(2, 3)
		inspectEnter(w, "x", 2, &coord.DoubleBarrierOptions{NextRound: true})
		w.eventually("another one waits", func() bool { return len(w.children("/d/members")) == 4 })
	}},
	{name: "doublebarrier-stale", path: "/d", setup: func(w *world) {
		inspectMake(w, backend.Persistent, "/d", "/d/members") // no containers
		clients := w.enterAll(2, 2)
		for _, c := range clients {
			c.Close()
		}
		w.eventually("all have gone", func() bool { return len(w.children("/d/members")) == 0 })
	}},
	{name: "queue", path: "/q", data: true, setup: inspectQueue},
	{name: "queue-secret", path: "/q", setup: inspectQueue},
	{name: "queue-empty", path: "/q", setup: func(w *world) {
		q := coord.NewQueue[int](w.open("a", nil), "/q", nil)
		mustPut(w.t, q, 1, 1)
		mustAck(w.t, mustTake(w.t, q, 1))
		other := coord.NewQueue[int](w.open("b", nil), "/q", nil)
		w.spawn(func(ctx context.Context) { _, _ = other.Take(ctx) })
		w.eventually("a taker waits", func() bool { return len(w.children("/q/waiters")) == 1 })
	}},
	{name: "priorityqueue", path: "/q", data: true, setup: func(w *world) {
		q := coord.NewPriorityQueue[string](w.open("a", nil), "/q", nil)
		for i, p := range []int64{7, -3, 7} {
			if _, err := q.Put(context.Background(), p, fmt.Sprintf("job %d", i)); err != nil {
				w.t.Fatal(err)
			}
		}
		if _, err := q.Take(context.Background()); err != nil {
			w.t.Fatal(err)
		}
	}},
	{name: "delayqueue", path: "/q", setup: func(w *world) {
		q := coord.NewDelayQueue[string](w.open("a", nil), "/q", nil)
		now := time.Now()
		for _, due := range []time.Time{now.Add(-time.Minute), now.Add(time.Hour), now.Add(30 * time.Minute)} {
			if _, err := q.Put(context.Background(), due, "x"); err != nil {
				w.t.Fatal(err)
			}
		}
	}},
	{name: "twophase", path: "/app/tx", data: true, setup: inspectTwoPhase},
	{name: "twophase-aborted", path: "/app/tx", setup: func(w *world) {
		inspectServe(w, "a", func(context.Context) error { return errors.New("no room") }, nil)
		co := coord.NewCoordinator[string](w.open("co", nil), "/app/tx", &coord.CoordinatorOptions[string]{Keep: true})
		w.propose(co, "t-1", "a")
		w.eventually("it is decided and acknowledged", func() bool {
			return len(w.children("/app/tx/sites/a")) == 0
		})
		w.eventually("its proposer is done", func() bool { return len(w.children("/app/tx/tx/t-1")) == 2 })
	}},
	{name: "twophase-committed", path: "/app/tx", setup: func(w *world) {
		inspectServe(w, "a", nil, nil)
		inspectServe(w, "b", nil, never)
		co := coord.NewCoordinator[string](w.open("co", nil), "/app/tx", nil)
		w.propose(co, "t-1", "a", "b")
		w.eventually("one site and the proposer are done", func() bool {
			return len(w.children("/app/tx/sites/a")) == 0 && len(w.children("/app/tx/tx/t-1")) == 2
		})
	}},
	{name: "twophase-doubt", path: "/app/tx", setup: inspectDoubt},
	{name: "inbox", path: "/app/tx/sites/a", setup: inspectTwoPhase},
	{name: "inbox-doubt", path: "/app/tx/sites/a", setup: inspectDoubt},
	{name: "missing", path: "/nothing", setup: func(*world) {}},
	{name: "empty", path: "/m", setup: func(w *world) {
		inspectMake(w, backend.Persistent, "/m") // a container could go before it is inspected
		prime(w.t, coord.NewMutex(w.open("a", nil), "/m", nil))
	}},
	{name: "unknown", path: "/u", setup: func(w *world) {
		inspectMake(w, backend.Persistent, "/u=some text", "/u/README", "/u/lock-1", "/u/x")
	}},
	{name: "foreign", path: "/m", setup: func(w *world) {
		mustLock(w.t, coord.NewMutex(w.open("a", nil), "/m", nil))
		inspectMake(w, backend.Persistent, "/m/README", "/m/x-99999999999", "/m/ready")
	}},
	{name: "mixture", path: "/m", setup: func(w *world) {
		mustLock(w.t, coord.NewMutex(w.open("a", nil), "/m", nil))
		// An earlier version's, which did not look whose path it is.
		candidate := w.path("/m/_c_01234567-89ab-8def-8123-456789abcdef-latch-")
		if _, err := w.session("b").Commit(context.Background(), backend.Create(candidate, []byte("b"), backend.EphemeralSequential)); err != nil {
			w.t.Fatal(err)
		}
	}},
	{name: "part", path: "/s/requests", setup: func(w *world) {
		if _, err := coord.NewSemaphore(w.open("a", nil), "/s", 3, nil).Acquire(context.Background(), 1); err != nil {
			w.t.Fatal(err)
		}
	}},
}

func inspectMutex(w *world) {
	w.inLine("/m", "abc", func(c *coord.Client, name rune) error {
		_, err := coord.NewMutex(c, "/m", &coord.MutexOptions{Data: []byte("client " + string(name))}).Lock(w.t.Context())
		return err
	})
	w.spawn(func(ctx context.Context) {
		m := coord.NewMutex(w.open("ops", nil), "/m", nil)
		_ = m.Revoke(ctx, &coord.RevokeOptions{By: "ops", Reason: "the disk is full", Force: time.Hour})
	})
	c := w.open("observer", nil)
	w.eventually("the request is there", func() bool {
		in, err := coord.Inspect(context.Background(), c, "/m", nil)
		return err == nil && in.Mutex.Contenders[0].Revocation != nil
	})
}

// inspectLowered: whoever was granted after he had waited keeps his permits under a
// limit that is too low for them.
func inspectLowered(w *world) {
	a := coord.NewSemaphore(w.open("a", nil), "/s", 3, nil)
	first, err := a.Acquire(context.Background(), 3)
	if err != nil {
		w.t.Fatal(err)
	}
	take := func(name string, n int) {
		w.t.Helper()
		s := coord.NewSemaphore(w.open(name, nil), "/s", 3, &coord.SemaphoreOptions{AdoptLimit: true})
		before := len(w.children("/s/requests"))
		w.spawn(func(ctx context.Context) { _, _ = s.Acquire(ctx, n) })
		w.eventually("a request stands there", func() bool { return len(w.children("/s/requests")) > before })
	}
	take("b", 2)
	w.settle()
	mustRelease(w.t, first)
	observer := w.session("observer of marks")
	w.eventually("the request is marked", func() bool {
		names := w.children("/s/requests")
		if len(names) != 1 {
			return false
		}
		stat, err := observer.Exists(context.Background(), w.path("/s/requests/"+names[0]), nil)
		return err == nil && stat.Version > 0
	})
	if err := a.SetLimit(context.Background(), 1); err != nil {
		w.t.Fatal(err)
	}
	take("c", 1)
}

func inspectValue(w *world) {
	v := coord.NewValue[map[string]string](w.open("a", nil), "/v", nil)
	for _, password := range []string{"x", "secret"} {
		if _, err := v.Set(context.Background(), map[string]string{"password": password}); err != nil {
			w.t.Fatal(err)
		}
	}
}

func inspectCounter(w *world) {
	if _, err := coord.NewCounter(w.open("a", nil), "/n", nil).Add(context.Background(), 4711); err != nil {
		w.t.Fatal(err)
	}
}

func inspectQueue(w *world) {
	q := coord.NewQueue[int](w.open("a", nil), "/q", &coord.QueueOptions[int]{MaxAttempts: 2})
	mustPut(w.t, q, 1, 6)
	for range 2 {
		if err := mustTake(w.t, q, 1).Nack(0); err != nil { // to the dead letters, the second time
			w.t.Fatal(err)
		}
	}
	if err := mustTake(w.t, q, 2).Nack(0); err != nil {
		w.t.Fatal(err)
	}
	mustTake(w.t, q, 2) // the second attempt
	if err := mustTake(w.t, q, 3).Nack(time.Hour); err != nil {
		w.t.Fatal(err)
	}
	other := coord.NewQueue[int](w.open("b", nil), "/q", nil)
	mustTake(w.t, other, 4)
}

// inspectTwoPhase: one site has voted yes, the other one takes its time.
func inspectTwoPhase(w *world) {
	inspectServe(w, "a", nil, nil)
	inspectServe(w, "b", never, nil)
	co := coord.NewCoordinator[string](w.open("co", nil), "/app/tx", &coord.CoordinatorOptions[string]{Timeout: time.Hour})
	w.propose(co, "t-1", "a", "b")
	w.eventually("a vote is there", func() bool { return len(w.children("/app/tx/tx/t-1")) == 3 })
}

// inspectDoubt: an outsider destroys the record of a transaction.
func inspectDoubt(w *world) {
	inspectTwoPhase(w)
	s := w.session("vandal")
	w.eventually("the record is destroyed", func() bool {
		for _, name := range w.children("/app/tx/tx/t-1") {
			_, _ = s.Commit(context.Background(), backend.Delete(w.path("/app/tx/tx/t-1/"+name), backend.AnyVersion))
		}
		_, err := s.Commit(context.Background(), backend.Delete(w.path("/app/tx/tx/t-1"), backend.AnyVersion))
		return err == nil || errors.Is(err, coord.ErrNotFound)
	})
	w.eventually("the site that is not bound has given it up", func() bool { return len(w.children("/app/tx/sites/b")) == 0 })
}

// never returns when it is told to.
func never(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

// inspectServe serves a site that votes and commits as told, until the test ends. Nil
// is a yes, and a success.
func inspectServe(w *world, site string, vote, commit func(context.Context) error) {
	as := func(f func(context.Context) error) func(context.Context, coord.Ballot[string]) error {
		return func(ctx context.Context, _ coord.Ballot[string]) error {
			if f == nil {
				return nil
			}
			return f(ctx)
		}
	}
	p := coord.NewParticipant(w.open("site "+site, nil), "/app/tx", site, coord.Handler[string]{
		Prepare: as(vote), Commit: as(commit), Abort: as(nil),
		InDoubt: func(context.Context, coord.Ballot[string], error) {},
	})
	w.spawn(func(ctx context.Context) { _ = p.Serve(ctx) })
	observer := w.session("observer of " + site)
	w.eventually("the site is served", func() bool {
		_, err := observer.Exists(context.Background(), w.path("/app/tx/present/"+site), nil)
		return err == nil
	})
}

func (w *world) propose(co *coord.Coordinator[string], id string, sites ...string) {
	w.spawn(func(ctx context.Context) {
		_, _ = co.Propose(ctx, coord.Proposal[string]{ID: id, Sites: sites, Payload: "move 5"})
	})
}

// spawn runs f with a context that ends, and waits for f, when the test does: before
// the clients of the test are closed.
func (w *world) spawn(f func(ctx context.Context)) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		f(ctx)
	}()
	w.t.Cleanup(func() {
		cancel()
		<-done
	})
}

// inLine has one client after the other come to the directory at path, in order.
// Each acquires as acquire says, for one of the letters of kinds.
func (w *world) inLine(path, kinds string, acquire func(c *coord.Client, kind rune) error) {
	w.t.Helper()
	for i, kind := range kinds {
		c := w.open(fmt.Sprint("client ", i), nil)
		done := make(chan struct{})
		go func() {
			defer close(done)
			if err := acquire(c, kind); err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, coord.ErrClosed) {
				w.t.Error(err)
			}
		}()
		w.t.Cleanup(func() { <-done }) // w.t.Context() has ended by now
		w.eventually("the next one is in line", func() bool { return len(w.children(path)) > i })
	}
	w.settle()
}

// enterAll has come members enter a double barrier for n, and returns their clients.
func (w *world) enterAll(n, come int) []*coord.Client {
	var clients []*coord.Client
	for i := range come {
		clients = append(clients, inspectEnter(w, fmt.Sprint("member ", i), n, nil))
		w.eventually("the next one is there", func() bool { return len(w.children("/d/members")) > i })
	}
	if come >= n {
		d := coord.NewDoubleBarrier(w.open("observer", nil), "/d", n, nil)
		w.eventually("the round is open", func() bool {
			st, err := d.State(context.Background())
			return err == nil && st.Inside == n && st.Extra == come-n && st.Waiting == 0
		})
	}
	return clients
}

func inspectEnter(w *world, name string, n int, o *coord.DoubleBarrierOptions) *coord.Client {
	c := w.open(name, nil)
	w.spawn(func(ctx context.Context) { _, _ = coord.NewDoubleBarrier(c, "/d", n, o).Enter(ctx) })
	return c
}

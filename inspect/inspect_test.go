package inspect_test

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/inspect"
	"github.com/go-coord/coord/internal/coordtest"
)

const inspectID = "01234567-89ab-8def-8123-456789abcdef" // has the form of a GUID

// inspectScenes are the states of recipes that Path must report.
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
			_, err := lock(w.T.Context())
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
			_, err := lock(w.T.Context())
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
			t, err := coord.NewElection(c, "/e", o).Campaign(w.T.Context())
			if err == nil {
				first <- t
			}
			return err
		})
		if err := (<-first).Announce(context.Background(), []byte("at 10.0.0.1:80")); err != nil {
			w.T.Fatal(err)
		}
	}},
	{name: "semaphore", path: "/s", data: true, setup: func(w *world) {
		n := 0
		w.inLine("/s/requests", "21231", func(c *coord.Client, weight rune) error {
			n++
			o := &coord.SemaphoreOptions{Data: fmt.Appendf(nil, "caller %d", n)}
			_, err := coord.NewSemaphore(c, "/s", 3, o).Acquire(w.T.Context(), int(weight-'0'))
			return err
		})
	}},
	{name: "semaphore-lowered", path: "/s", setup: inspectLowered},
	{name: "semaphore-unused", path: "/s", setup: func(w *world) {
		if err := coord.NewSemaphore(w.Open("a", nil), "/s", 3, nil).SetLimit(context.Background(), 5); err != nil {
			w.T.Fatal(err)
		}
	}},
	{name: "group", path: "/g", data: true, setup: func(w *world) {
		for _, id := range []string{"web-2", "web-1"} {
			g := coord.NewGroup(w.Open(id, nil), "/g", &coord.GroupOptions[string]{Codec: coord.Text()})
			if _, err := g.Join(context.Background(), id, id+".example:80"); err != nil {
				w.T.Fatal(err)
			}
		}
		inspectMake(w, backend.EphemeralSequential, "/g/_c_"+inspectID+"-member-web-1-=the next one")
	}},
	{name: "value", path: "/v", setup: inspectValue},
	{name: "value-data", path: "/v", data: true, setup: inspectValue},
	{name: "counter", path: "/n", data: true, setup: inspectCounter},
	{name: "counter-secret", path: "/n", setup: inspectCounter},
	{name: "barrier", path: "/b", setup: func(w *world) {
		if err := coord.NewBarrier(w.Open("a", nil), "/b", nil).Set(context.Background()); err != nil {
			w.T.Fatal(err)
		}
	}},
	{name: "barrier-ephemeral", path: "/b", setup: func(w *world) {
		b := coord.NewBarrier(w.Open("a", nil), "/b", &coord.BarrierOptions{Ephemeral: true})
		if err := b.Set(context.Background()); err != nil {
			w.T.Fatal(err)
		}
	}},
	{name: "doublebarrier-waiting", path: "/d", setup: func(w *world) { w.enterAll(3, 2) }},
	{name: "doublebarrier-open", path: "/d", setup: func(w *world) {
		w.enterAll(2, 3)
		inspectEnter(w, "x", 2, &coord.DoubleBarrierOptions{WaitForNextRound: true})
		w.Eventually("another one waits", func() bool { return len(w.Children("/d/members")) == 4 })
	}},
	{name: "doublebarrier-stale", path: "/d", setup: func(w *world) {
		inspectMake(w, backend.Persistent, "/d", "/d/members") // no containers
		clients := w.enterAll(2, 2)
		for _, c := range clients {
			c.Close()
		}
		w.Eventually("all have gone", func() bool { return len(w.Children("/d/members")) == 0 })
	}},
	{name: "queue", path: "/q", data: true, setup: inspectQueue},
	{name: "queue-secret", path: "/q", setup: inspectQueue},
	{name: "queue-empty", path: "/q", setup: func(w *world) {
		q := coord.NewQueue[int](w.Open("a", nil), "/q", nil)
		mustPut(w.T, q, 1, 1)
		if err := mustTake(w.T, q, 1).Ack(); err != nil {
			w.T.Fatal(err)
		}
		other := coord.NewQueue[int](w.Open("b", nil), "/q", nil)
		w.spawn(func(ctx context.Context) { _, _ = other.Take(ctx) })
		w.Eventually("a taker waits", func() bool { return len(w.Children("/q/waiters")) == 1 })
	}},
	{name: "priorityqueue", path: "/q", data: true, setup: func(w *world) {
		q := coord.NewPriorityQueue[string](w.Open("a", nil), "/q", nil)
		for i, p := range []int64{7, -3, 7} {
			if _, err := q.Put(context.Background(), p, fmt.Sprintf("job %d", i)); err != nil {
				w.T.Fatal(err)
			}
		}
		if _, err := q.Take(context.Background()); err != nil {
			w.T.Fatal(err)
		}
	}},
	{name: "delayqueue", path: "/q", setup: func(w *world) {
		q := coord.NewDelayQueue[string](w.Open("a", nil), "/q", nil)
		now := time.Now()
		for _, due := range []time.Time{now.Add(-time.Minute), now.Add(time.Hour), now.Add(30 * time.Minute)} {
			if _, err := q.Put(context.Background(), due, "x"); err != nil {
				w.T.Fatal(err)
			}
		}
	}},
	{name: "shards", path: "/sh", data: true, setup: func(w *world) {
		// The shard is to move from the first member, which does not give it up yet.
		for i, id := range []string{"web-1", "web-2"} {
			n := w.Waits.Load()
			owns := make(chan struct{})
			s := coord.NewShards(w.Open(id, nil), "/sh", 1, &coord.ShardsOptions{ID: id, Weight: i + 1, Data: []byte(id + ":80")})
			ctx, stop := context.WithCancel(context.Background())
			w.T.Cleanup(stop)
			go s.Run(ctx, func(_ context.Context, sh *coord.Shard) error {
				close(owns)
				<-ctx.Done()
				return nil
			})
			if i == 0 {
				<-owns
			} else {
				w.Eventually("the second member waits", func() bool { return w.Waits.Load() > n })
			}
		}
	}},
	{name: "shards-left", path: "/sh", setup: func(w *world) {
		for sh, err := range coord.NewShards(w.Open("a", nil), "/sh", 1, nil).All(context.Background()) {
			if err != nil {
				w.T.Fatal(err)
			}
			w.T.Cleanup(func() { sh.Release() })
			break
		}
	}},
	{name: "schedule", path: "/jobs", setup: func(w *world) {
		runs := 0
		began := make(chan struct{})
		ctx, stop := context.WithCancel(context.Background())
		w.T.Cleanup(stop)
		for i, id := range []string{"web-1", "web-2"} {
			n := w.Waits.Load()
			s := coord.NewSchedule(w.Open(id, nil), "/jobs", coord.Every(100_000*time.Hour), &coord.ScheduleOptions{ID: id})
			ended := make(chan error, 1)
			go func() {
				ended <- s.Run(ctx, func(ctx context.Context, _ *coord.Run) error {
					if runs++; runs == 1 {
						return errors.New("no room")
					}
					close(began)
					<-ctx.Done()
					return nil
				})
			}()
			w.T.Cleanup(func() { stop(); <-ended })
			if i > 0 {
				w.Eventually("the second process waits", func() bool { return w.Waits.Load() > n })
				continue
			}
			for range 3 {
				if _, err := s.RunNow(ctx); err != nil {
					w.T.Fatal(err)
				}
			}
			<-began
			if err := s.Pause(ctx); err != nil {
				w.T.Fatal(err)
			}
		}
	}},
	{name: "schedule-left", path: "/jobs", setup: func(w *world) {
		if err := coord.NewSchedule(w.Open("a", nil), "/jobs", nil, nil).Pause(context.Background()); err != nil {
			w.T.Fatal(err)
		}
	}},
	{name: "twophase", path: "/app/tx", data: true, setup: inspectTwoPhase},
	{name: "twophase-aborted", path: "/app/tx", setup: func(w *world) {
		inspectServe(w, "a", func(context.Context) error { return errors.New("no room") }, nil)
		co := coord.NewCoordinator[string](w.Open("co", nil), "/app/tx", &coord.CoordinatorOptions[string]{KeepRecords: true})
		w.propose(co, "t-1", "a")
		w.Eventually("it is decided and acknowledged", func() bool {
			return len(w.Children("/app/tx/sites/a")) == 0
		})
		w.Eventually("its proposer is done", func() bool { return len(w.Children("/app/tx/tx/t-1")) == 2 })
	}},
	{name: "twophase-committed", path: "/app/tx", setup: func(w *world) {
		inspectServe(w, "a", nil, nil)
		inspectServe(w, "b", nil, never)
		co := coord.NewCoordinator[string](w.Open("co", nil), "/app/tx", nil)
		w.propose(co, "t-1", "a", "b")
		w.Eventually("one site and the proposer are done", func() bool {
			return len(w.Children("/app/tx/sites/a")) == 0 && len(w.Children("/app/tx/tx/t-1")) == 2
		})
	}},
	{name: "twophase-doubt", path: "/app/tx", setup: inspectDoubt},
	{name: "inbox", path: "/app/tx/sites/a", setup: inspectTwoPhase},
	{name: "inbox-doubt", path: "/app/tx/sites/a", setup: inspectDoubt},
	{name: "missing", path: "/nothing", setup: func(*world) {}},
	{name: "empty", path: "/m", setup: func(w *world) {
		inspectMake(w, backend.Persistent, "/m") // a container could be reaped before it is inspected
		coordtest.Prime(w.T, coord.NewMutex(w.Open("a", nil), "/m", nil))
	}},
	{name: "directory", path: "/u", setup: func(w *world) {
		const barrier = "=coord recipe: barrier" // a node without a mark is none where the service does not tell whether it had children
		inspectMake(w, backend.Persistent, "/u", "/u/README"+barrier, "/u/lock-1"+barrier, "/u/x"+barrier)
	}},
	{name: "value-above", path: "/u", setup: func(w *world) { // set in a directory, so that it has a pin
		inspectMake(w, backend.Persistent, "/u=something", "/u/_coord-pin", "/u/size=5")
	}},
	{name: "value-deleted", path: "/u", setup: func(w *world) {
		inspectMake(w, backend.Persistent, "/u=coord recipe: value", "/u/size=5")
	}},
	{name: "barrier-above", path: "/u", setup: func(w *world) {
		inspectMake(w, backend.Persistent, "/u=coord recipe: barrier", "/u/_coord-pin")
	}},
	{name: "directory-unused", path: "/u", setup: func(w *world) { inspectMake(w, backend.Persistent, "/u=coord recipe: directory") }},
	{name: "directory-of-queues", path: "/queues", data: true, setup: func(w *world) {
		inspectMake(w, backend.Persistent, "/queues", "/queues/old", "/queues/old/2024", "/queues/config=3")
		for _, name := range []string{"orders", "mails"} {
			mustPut(w.T, coord.NewQueue[int](w.Open(name, nil), "/queues/"+name, nil), 1, 2)
		}
	}},
	{name: "foreign", path: "/m", setup: func(w *world) {
		coordtest.MustLock(w.T, coord.NewMutex(w.Open("a", nil), "/m", nil))
		inspectMake(w, backend.Persistent, "/m/README", "/m/x-99999999999", "/m/ready")
	}},
	{name: "mixture", path: "/m", setup: func(w *world) {
		coordtest.MustLock(w.T, coord.NewMutex(w.Open("a", nil), "/m", nil))
		// A node of an earlier version, which did not look at the kind of the path.
		candidate := w.Path("/m/_c_01234567-89ab-8def-8123-456789abcdef-latch-")
		if _, err := w.Session("b").Commit(context.Background(), backend.Create(candidate, []byte("b"), backend.EphemeralSequential)); err != nil {
			w.T.Fatal(err)
		}
	}},
	{name: "part", path: "/s/requests", setup: func(w *world) {
		if _, err := coord.NewSemaphore(w.Open("a", nil), "/s", 3, nil).Acquire(context.Background(), 1); err != nil {
			w.T.Fatal(err)
		}
	}},
}

func inspectMutex(w *world) {
	w.inLine("/m", "abc", func(c *coord.Client, name rune) error {
		_, err := coord.NewMutex(c, "/m", &coord.MutexOptions{Data: []byte("client " + string(name))}).Lock(w.T.Context())
		return err
	})
	w.spawn(func(ctx context.Context) {
		m := coord.NewMutex(w.Open("ops", nil), "/m", nil)
		_ = m.Revoke(ctx, &coord.RevokeOptions{By: "ops", Reason: "the disk is full", ForceAfter: time.Hour})
	})
	c := w.Open("observer", nil)
	w.Eventually("the request is there", func() bool {
		in, err := inspect.Path(context.Background(), c, "/m", nil)
		return err == nil && in.Mutex.Contenders[0].Revocation != nil
	})
}

// inspectLowered: a request that was granted after a wait keeps its permits under a limit that
// is too low for them.
func inspectLowered(w *world) {
	a := coord.NewSemaphore(w.Open("a", nil), "/s", 3, nil)
	first, err := a.Acquire(context.Background(), 3)
	if err != nil {
		w.T.Fatal(err)
	}
	take := func(name string, n int) {
		w.T.Helper()
		s := coord.NewSemaphore(w.Open(name, nil), "/s", 3, &coord.SemaphoreOptions{AdoptLimit: true})
		before := len(w.Children("/s/requests"))
		w.spawn(func(ctx context.Context) { _, _ = s.Acquire(ctx, n) })
		w.Eventually("there is a request", func() bool { return len(w.Children("/s/requests")) > before })
	}
	take("b", 2)
	w.Settle()
	coordtest.MustRelease(w.T, first)
	observer := w.Session("observer of marks")
	w.Eventually("the request is marked", func() bool {
		names := w.Children("/s/requests")
		if len(names) != 1 {
			return false
		}
		stat, err := observer.Exists(context.Background(), w.Path("/s/requests/"+names[0]), nil)
		return err == nil && stat.Version > 0
	})
	if err := a.SetLimit(context.Background(), 1); err != nil {
		w.T.Fatal(err)
	}
	take("c", 1)
}

func inspectValue(w *world) {
	v := coord.NewValue[map[string]string](w.Open("a", nil), "/v", nil)
	for _, password := range []string{"x", "secret"} {
		if _, err := v.Set(context.Background(), map[string]string{"password": password}); err != nil {
			w.T.Fatal(err)
		}
	}
}

func inspectCounter(w *world) {
	if _, err := coord.NewCounter(w.Open("a", nil), "/n").Add(context.Background(), 4711); err != nil {
		w.T.Fatal(err)
	}
}

func inspectQueue(w *world) {
	q := coord.NewQueue[int](w.Open("a", nil), "/q", &coord.QueueOptions[int]{MaxAttempts: 2})
	mustPut(w.T, q, 1, 6)
	for range 2 {
		if err := mustTake(w.T, q, 1).Nack(0); err != nil { // to the dead letters, the second time
			w.T.Fatal(err)
		}
	}
	if err := mustTake(w.T, q, 2).Nack(0); err != nil {
		w.T.Fatal(err)
	}
	mustTake(w.T, q, 2) // the second attempt
	if err := mustTake(w.T, q, 3).Nack(time.Hour); err != nil {
		w.T.Fatal(err)
	}
	other := coord.NewQueue[int](w.Open("b", nil), "/q", nil)
	mustTake(w.T, other, 4)
	w.Ensured("/q/waiters") // where a client learned the time of the service for the delay, if it has a clock
}

// inspectTwoPhase: one site has voted yes, the other has not voted.
func inspectTwoPhase(w *world) {
	inspectServe(w, "a", nil, nil)
	inspectServe(w, "b", never, nil)
	co := coord.NewCoordinator[string](w.Open("co", nil), "/app/tx", &coord.CoordinatorOptions[string]{Timeout: time.Hour})
	w.propose(co, "t-1", "a", "b")
	w.Eventually("a vote is there", func() bool { return len(w.Children("/app/tx/tx/t-1")) == 3 })
}

// inspectDoubt: an outsider destroys the record of a transaction.
func inspectDoubt(w *world) {
	inspectTwoPhase(w)
	s := w.Session("vandal")
	w.Eventually("the record is destroyed", func() bool {
		for _, name := range w.Children("/app/tx/tx/t-1") {
			_, _ = s.Commit(context.Background(), backend.Delete(w.Path("/app/tx/tx/t-1/"+name), backend.AnyVersion))
		}
		_, err := s.Commit(context.Background(), backend.Delete(w.Path("/app/tx/tx/t-1"), backend.AnyVersion))
		return err == nil || errors.Is(err, coord.ErrNotFound)
	})
	w.Eventually("the site that has not voted has given it up", func() bool { return len(w.Children("/app/tx/sites/b")) == 0 })
}

// never returns only when its ctx has ended.
func never(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

// inspectServe serves a site with these functions until the test ends. A nil vote is a yes, and
// a nil commit succeeds.
func inspectServe(w *world, site string, vote, commit func(context.Context) error) {
	as := func(f func(context.Context) error) func(context.Context, coord.Branch[string]) error {
		return func(ctx context.Context, _ coord.Branch[string]) error {
			if f == nil {
				return nil
			}
			return f(ctx)
		}
	}
	p := coord.NewParticipant(w.Open("site "+site, nil), "/app/tx", site, coord.Handler[string]{
		Prepare: as(vote), Commit: as(commit), Abort: as(nil),
		InDoubt: func(context.Context, coord.Branch[string], error) {},
	})
	w.spawn(func(ctx context.Context) { _ = p.Serve(ctx) })
	observer := w.Session("observer of " + site)
	w.Eventually("the site is served", func() bool {
		_, err := observer.Exists(context.Background(), w.Path("/app/tx/present/"+site), nil)
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
	w.T.Cleanup(func() {
		cancel()
		<-done
	})
}

// inLine lets one client for each letter of kinds acquire at path, one after the other.
func (w *world) inLine(path, kinds string, acquire func(c *coord.Client, kind rune) error) {
	w.T.Helper()
	for i, kind := range kinds {
		c := w.Open(fmt.Sprint("client ", i), nil)
		done := make(chan struct{})
		go func() {
			defer close(done)
			if err := acquire(c, kind); err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, coord.ErrClosed) {
				w.T.Error(err)
			}
		}()
		w.T.Cleanup(func() { <-done }) // w.t.Context() has ended by now
		w.Eventually("the next one is in the queue", func() bool { return len(w.Children(path)) > i })
	}
	w.Settle()
}

// enterAll lets come members enter a double barrier of n, and returns their clients.
func (w *world) enterAll(n, come int) []*coord.Client {
	var clients []*coord.Client
	for i := range come {
		clients = append(clients, inspectEnter(w, fmt.Sprint("member ", i), n, nil))
		w.Eventually("the next one is there", func() bool { return len(w.Children("/d/members")) > i })
	}
	if come >= n {
		d := coord.NewDoubleBarrier(w.Open("observer", nil), "/d", n, nil)
		w.Eventually("the round is open", func() bool {
			st, err := d.State(context.Background())
			return err == nil && st.Inside == n && st.Extra == come-n && st.Waiting == 0
		})
	}
	return clients
}

func inspectEnter(w *world, name string, n int, o *coord.DoubleBarrierOptions) *coord.Client {
	c := w.Open(name, nil)
	w.spawn(func(ctx context.Context) { _, _ = coord.NewDoubleBarrier(c, "/d", n, o).Enter(ctx) })
	return c
}

var updateInspect = flag.Bool("update-inspect", false, "write testdata from what memory shows")

// inspectScene brings a recipe into a state to inspect. Its goroutines end with the test.
type inspectScene struct {
	name  string
	path  string
	data  bool
	setup func(w *world)
}

// TestInspectReportsEachScene compares the report of Path on each recipe, made by
// the recipe itself, with the golden files; on memory and on ZooKeeper it must be the
// same. After an intended change:
//
//	go test -run TestInspectReportsEachScene/./memory -update-inspect ./inspect
func TestInspectReportsEachScene(t *testing.T) {
	for _, sc := range inspectScenes {
		t.Run(sc.name, func(t *testing.T) {
			onEach(t, func(w *world) {
				sc.setup(w)
				var mu sync.Mutex
				calls, syncs := 0, 0
				c := w.Open("inspector", &backendtest.Hooks{Before: func(_ context.Context, c backendtest.Call) error {
					mu.Lock()
					defer mu.Unlock()
					switch c.Op {
					case "commit":
						w.T.Errorf("Path writes: %v", c.Ops)
					case "sync":
						syncs++
					default:
						calls++
					}
					return nil
				}})
				in, err := inspect.Path(context.Background(), c, sc.path, &inspect.Options{Data: sc.data})
				if err != nil {
					w.T.Fatal(err)
				}
				if w.Fake && syncs != 1 || calls == 0 || syncs == 1 && calls > in.Reads {
					w.T.Errorf("%d requests and %d Syncs; %d were reported", calls, syncs, in.Reads)
				}
				inspectTimes(w, in)
				inspectColumns(w.T, in.String())
				inspectNormal(in, w.Path(""))
				compareInspection(w, sc.name, in)
			})
		})
	}
}

// compareInspection compares a normal form with its golden file, whose sequence numbers count
// the children of each directory.
func compareInspection(w *world, name string, in *inspect.Report) {
	t := w.T
	t.Helper()
	js, err := json.MarshalIndent(in, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	got := in.String() + "\n" + string(js) + "\n"
	file := filepath.Join("testdata", name+".txt")
	if *updateInspect {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if w.Revisions {
		want, got = sequence.ReplaceAll(want, nil), sequence.ReplaceAllString(got, "")
	}
	if got != string(want) {
		t.Errorf("%s: got\n%s\nwant\n%s", file, got, want)
	}
	// A report that was written as JSON can be read again.
	var again inspect.Report
	if err := json.Unmarshal(js, &again); err != nil {
		t.Fatal(err)
	}
	if again.String() != in.String() {
		t.Errorf("after a round trip through JSON:\n%s\nwant\n%s", again.String(), in.String())
	}
}

// inspectTimes checks that all times are near now, and in UTC.
func inspectTimes(w *world, in *inspect.Report) {
	w.T.Helper()
	now := time.Now()
	walkInspection(reflect.ValueOf(in), "", func(field string, v reflect.Value) {
		at, ok := v.Interface().(time.Time)
		if !ok || at.IsZero() {
			return
		}
		if d := at.Sub(now).Abs(); d > 2*time.Hour {
			w.T.Errorf("%s: %v, now it is %v", field, at, now)
		}
		if _, offset := at.Zone(); offset != 0 || at.Location() != time.UTC {
			w.T.Errorf("%s: %v is not in UTC", field, at)
		}
	})
}

var (
	sequence    = regexp.MustCompile(`[0-9]{10,}"`) // at the end of a name in JSON
	inspectGUID = regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`)
	inspectRun  = regexp.MustCompile(`run-[0-9]+-`)
	columnGap   = regexp.MustCompile(`  +`)
)

// inspectNormal replaces times, sessions, GUIDs and zxids, which differ from run to run, by
// numbers in order. It keeps which of them are equal, and which zxid is greater.
func inspectNormal(in *inspect.Report, root string) {
	var zxids []int64
	isZxid := func(field string) bool {
		return slices.Contains([]string{"Token", "Zxid", "Czxid", "Mzxid"}, field)
	}
	walkInspection(reflect.ValueOf(in), "", func(field string, v reflect.Value) {
		if isZxid(field) && v.Int() != 0 {
			zxids = append(zxids, v.Int())
		}
	})
	slices.Sort(zxids)
	zxids = slices.Compact(zxids)
	names := make(map[string]string)
	number := func(s, format string) string {
		if names[s] == "" {
			n := strconv.Itoa(len(names) + 1)
			names[s] = format[:len(format)-len(n)] + n
		}
		return names[s]
	}
	walkInspection(reflect.ValueOf(in), "", func(field string, v reflect.Value) {
		switch {
		case isZxid(field):
			if v.Int() != 0 {
				i, _ := slices.BinarySearch(zxids, v.Int())
				v.SetInt(int64(101 + i))
			}
		case v.Type() == reflect.TypeFor[time.Time]():
			if !v.Interface().(time.Time).IsZero() {
				v.Set(reflect.ValueOf(time.Date(2000, 1, 2, 3, 4, 5, 0, time.UTC)))
			}
		case v.Kind() == reflect.String:
			s := v.String()
			if field == "Session" && s != "" {
				s = number(s, "0x00")
			}
			s = inspectGUID.ReplaceAllStringFunc(s, func(g string) string { return number(g, "00000000-0000-8000-8000-000000000000") })
			if field == "Took" && s != "" {
				s = "1.5s"
			}
			s = inspectRun.ReplaceAllString(s, "run-946684800000-")
			if root != "" && field == "Path" {
				s = strings.TrimPrefix(s, root)
			}
			v.SetString(s)
		}
	})
}

// walkInspection calls f with every leaf of v, and the name of the field it is in.
func walkInspection(v reflect.Value, field string, f func(string, reflect.Value)) {
	switch {
	case v.Kind() == reflect.Pointer:
		if !v.IsNil() {
			walkInspection(v.Elem(), field, f)
		}
	case v.Type() == reflect.TypeFor[time.Time](), v.Type() == reflect.TypeFor[[]byte]():
		f(field, v)
	case v.Kind() == reflect.Struct:
		for i := range v.NumField() {
			walkInspection(v.Field(i), v.Type().Field(i).Name, f)
		}
	case v.Kind() == reflect.Slice:
		for i := range v.Len() {
			walkInspection(v.Index(i), field, f)
		}
	default:
		f(field, v)
	}
}

// inspectColumns checks that the cells of each table begin below their heads.
func inspectColumns(t *testing.T, text string) {
	t.Helper()
	if strings.Contains(text, " \n") {
		t.Errorf("blanks at the end of a line:\n%s", text)
	}
	var heads []int
	for _, line := range strings.Split(text, "\n") {
		runes := []rune(line)
		switch {
		case !strings.HasPrefix(line, "  "):
			heads = nil
		case heads == nil:
			for _, at := range columnGap.FindAllStringIndex(line, -1) {
				heads = append(heads, at[1])
			}
		case len(heads) > 1 && strings.Contains(line[2:], "  "):
			for _, at := range columnGap.FindAllStringIndex(line, -1) {
				if col := len([]rune(line[:at[1]])); col < len(runes) && !slices.Contains(heads, col) {
					t.Errorf("a cell at column %d is below no head (%v):\n%s", col, heads, text)
				}
			}
		}
	}
}

// TestTheJSONOfAnInspectionHasStableNames: every field has a name of its own in JSON,
// in lower case.
func TestTheJSONOfAnInspectionHasStableNames(t *testing.T) {
	lower := regexp.MustCompile(`^[a-z]+(_[a-z]+)*(,omitempty|,omitzero)?$`)
	done := make(map[reflect.Type]bool)
	var check func(reflect.Type)
	check = func(typ reflect.Type) {
		for typ.Kind() == reflect.Pointer || typ.Kind() == reflect.Slice {
			typ = typ.Elem()
		}
		if typ.Kind() != reflect.Struct || typ == reflect.TypeFor[time.Time]() || done[typ] {
			return
		}
		done[typ] = true
		for i := range typ.NumField() {
			f := typ.Field(i)
			if !f.Anonymous && !lower.MatchString(f.Tag.Get("json")) {
				t.Errorf("%v.%s has the tag %q", typ, f.Name, f.Tag)
			}
			check(f.Type)
		}
	}
	check(reflect.TypeFor[inspect.Report]())
	check(reflect.TypeFor[inspect.Survey]())
	if len(done) < 15 {
		t.Errorf("only %d types were seen", len(done))
	}
}

// TestInspectRefusesBadInput: errors of the caller are returned at once.
func TestInspectRefusesBadInput(t *testing.T) {
	onMemory(t, func(w *world) {
		c := w.Open("a", nil)
		for _, path := range []string{"", "x", "/_coord/journal", "/a//b"} {
			_, err := inspect.Path(context.Background(), c, path, nil)
			coordtest.WantErr(w.T, err, coord.ErrBadPath)
		}
		_, err := inspect.Path(context.Background(), c, "/a", &inspect.Options{MaxReads: -1})
		coordtest.WantErr(w.T, err, coord.ErrInvalid)
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_, err = inspect.Path(ctx, c, "/a", nil)
		coordtest.WantErr(w.T, err, context.Canceled)
		c.Close()
		_, err = inspect.Path(context.Background(), c, "/a", nil)
		coordtest.WantErr(w.T, err, coord.ErrClosed)
	})
}

// inspectMake creates nodes as an outsider, with a session of the test. Data follows "=".
func inspectMake(w *world, mode backend.CreateMode, nodes ...string) {
	w.T.Helper()
	s := w.Session("outsider")
	for _, node := range nodes {
		path, data, _ := strings.Cut(node, "=")
		path = w.Path(path)
		dir, name := filepath.Split(path)
		before := len(coordtest.Children(w.T, w.Link("outsider"), filepath.Clean(dir)))
		w.Eventually("the node "+name+" is made", func() bool {
			_, err := s.Commit(context.Background(), backend.Create(path, []byte(data), mode))
			if errors.Is(err, backend.ErrUncertain) { // the machine is busy
				return len(coordtest.Children(w.T, w.Link("outsider"), filepath.Clean(dir))) > before
			}
			if err != nil {
				w.T.Fatal(err)
			}
			return true
		})
	}
}

// Data of an outsider's making, which reads as an ID, is stored in an envelope, and shown
// without it.
func TestInspectShowsTheDataThatReadsAsAnID(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx, c := context.Background(), w.Open("a", nil)
		const data = `{"coord-contender":{"id":"forged"}}`
		coordtest.MustLock(w.T, coord.NewMutex(c, "/m", &coord.MutexOptions{Data: []byte(data)}))
		if _, err := coord.NewSemaphore(c, "/s", 2, &coord.SemaphoreOptions{Data: []byte(data)}).Acquire(ctx, 1); err != nil {
			w.T.Fatal(err)
		}
		m, err := inspect.Path(ctx, c, "/m", &inspect.Options{Data: true})
		if err != nil {
			w.T.Fatal(err)
		}
		if x := m.Mutex.Contenders[0]; string(x.Data) != data || x.Size != len(data) || x.ID != "" {
			w.T.Errorf("mutex: %q of %d bytes, want %d, ID %q", x.Data, x.Size, len(data), x.ID)
		}
		s, err := inspect.Path(ctx, c, "/s", &inspect.Options{Data: true})
		if err != nil {
			w.T.Fatal(err)
		}
		if x := s.Semaphore.Requests[0]; string(x.Data) != data || x.Size != len(data) || x.ID != "" {
			w.T.Errorf("semaphore: %q of %d bytes, want %d, ID %q", x.Data, x.Size, len(data), x.ID)
		}
	})
}

// The items of a PriorityQueue with one priority stand as those of a Queue. The one that a Redrive
// has put back comes first, and is not the oldest.
func TestInspectFindsTheOldestItemBehindRedrivenOnes(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		c := w.Open("a", nil)
		q := coord.NewPriorityQueue(c, "/q", &coord.QueueOptions[int]{MaxAttempts: 1})
		if _, err := q.PutAll(ctx, 0, 1, 2, 3); err != nil {
			w.T.Fatal(err)
		}
		put := time.Now()
		it, err := q.Take(ctx)
		if err == nil {
			err = it.Nack(0)
		}
		if err != nil {
			w.T.Fatal(err)
		}
		time.Sleep(time.Hour)
		if n, err := q.Redrive(ctx); n != 1 || err != nil {
			w.T.Fatal(n, err)
		}
		in, err := inspect.Path(ctx, c, "/q", nil)
		if err != nil {
			w.T.Fatal(err)
		}
		if d := put.Sub(in.Queue.Oldest); d < -time.Minute || d > time.Minute {
			w.T.Errorf("oldest since %v, put at %v", in.Queue.Oldest, put)
		}
	})
}

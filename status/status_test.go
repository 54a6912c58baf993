package status_test

import (
	"context"
	"encoding/json"
	"errors"
	"expvar"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend/memory"
	"github.com/go-coord/coord/status"
	"github.com/go-coord/coord/trace"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// scene is a service in memory under fake time, and one client whose status is reported.
type scene struct {
	*testing.T
	st    *memory.Store
	h     *status.Handler
	c     *coord.Client // its link is "a"
	other *coord.Client
}

func play(t *testing.T, o *status.Options, co *coord.Options, f func(x *scene)) {
	synctest.Test(t, func(t *testing.T) {
		x := &scene{T: t, st: memory.New(&memory.Options{SessionTimeout: 6 * time.Second}), h: status.New(o)}
		var err error
		if x.c, err = x.h.Open(t.Context(), x.st.Link("a"), co); err != nil {
			t.Fatal(err)
		}
		if x.other, err = coord.Open(t.Context(), x.st.Link("b"), nil); err != nil {
			t.Fatal(err)
		}
		f(x)
		x.c.Close()
		x.other.Close()
	})
}

func (x *scene) get(target string) *httptest.ResponseRecorder {
	x.Helper()
	w := httptest.NewRecorder()
	x.h.ServeHTTP(w, httptest.NewRequestWithContext(x.Context(), "GET", target, nil))
	return w
}

// client returns the report of the only client, once all events have come.
func (x *scene) client() status.Client {
	x.Helper()
	synctest.Wait()
	r := x.h.Report()
	if len(r.Clients) != 1 {
		x.Fatalf("%d clients are reported", len(r.Clients))
	}
	return r.Clients[0]
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func TestEverythingThatAProcessDoesIsReported(t *testing.T) {
	play(t, nil, &coord.Options{Namespace: "/app"}, func(x *scene) {
		ctx, cancel := context.WithCancel(x.Context())
		began := time.Now()
		time.Sleep(time.Second)
		lock := must(coord.NewMutex(x.c, "/lock", nil).Lock(ctx))
		permits := must(coord.NewSemaphore(x.c, "/permits", 5, nil).Acquire(ctx, 3))
		term := must(coord.NewElection(x.c, "/leader", nil).Campaign(ctx))
		q := coord.NewQueue[string](x.c, "/mail", &coord.QueueOptions[string]{MaxAttempts: 1})
		must(q.PutAll(ctx, "a", "b", "c"))
		item := must(q.Take(ctx))
		if err := must(q.Take(ctx)).Ack(); err != nil {
			t.Fatal(err)
		}
		if err := must(q.Take(ctx)).Nack(0); err != nil {
			t.Fatal(err)
		}
		m := must(coord.NewGroup[int](x.c, "/group", nil).Join(ctx, "host-1", 1))

		var all sync.WaitGroup
		all.Go(func() { q.Take(ctx) })
		all.Go(func() {
			coord.NewShards(x.c, "/shards", 4, &coord.ShardsOptions{ID: "host-1"}).Run(ctx,
				func(ctx context.Context, sh *coord.Shard) error { <-ctx.Done(); return nil })
		})
		runs := 0
		all.Go(func() {
			coord.NewSchedule(x.c, "/jobs", coord.Every(time.Second), &coord.ScheduleOptions{Grace: time.Second}).Run(ctx, func(ctx context.Context, r *coord.Run) error {
				switch runs++; runs {
				case 1:
					time.Sleep(3500 * time.Millisecond) // two planned times are missed, and the next one is late
					return nil
				case 2:
					return errors.New("no room")
				}
				<-ctx.Done()
				return ctx.Err()
			})
		})
		synctest.Wait()
		time.Sleep(time.Minute)

		c := x.client()
		if len(c.Schedules) != 1 || len(c.Leads) != 2 || len(c.Holds) != 3 {
			t.Fatalf("schedules are %+v, leads %+v, holds %+v", c.Schedules, c.Leads, c.Holds)
		}
		job := c.Schedules[0]
		job.Late, job.Success = job.Late.Round(10*time.Millisecond), job.Success.Round(10*time.Millisecond)
		if third := began.Add(6 * time.Second); job != (status.Schedule{
			Path: "/app/jobs", Running: 1, Planned: third, Outcome: "failed", Success: third.Add(-500 * time.Millisecond), Took: 3500 * time.Millisecond,
			Done: 1, Failed: 1, Missed: 2,
		}) {
			t.Errorf("the schedule is %+v", job)
		}
		for _, h := range []*[]status.Hold{&c.Leads, &c.Holds} { // those of the schedule
			*h = slices.DeleteFunc(*h, func(h status.Hold) bool { return strings.HasPrefix(h.Path, "/app/jobs") })
		}
		if c.Phase != "connected" || !c.Since.Equal(began) || c.Session != fmt.Sprintf("0x%x", uint64(lock.Session())) {
			t.Errorf("phase %s since %v, session %s", c.Phase, c.Since, c.Session)
		}
		since := began.Add(time.Second)
		want := func(name string, got []status.Hold, want ...status.Hold) {
			t.Helper()
			for i := range got {
				if !got[i].Since.Equal(since) {
					t.Errorf("%s %s since %v, want %v", name, got[i].Path, got[i].Since, since)
				}
				got[i].Since = time.Time{}
			}
			slices.SortFunc(got, func(a, b status.Hold) int { return strings.Compare(a.Path, b.Path) })
			if !slices.Equal(got, want) {
				t.Errorf("%s are %+v, want %+v", name, got, want)
			}
		}
		want("leads", c.Leads, status.Hold{Recipe: "election", Path: "/app/leader", Op: "campaign", Node: term.Path(), Token: term.Token()})
		want("holds", c.Holds,
			status.Hold{Recipe: "mutex", Path: "/app/lock", Op: "lock", Node: lock.Path(), Token: lock.Token()},
			status.Hold{Recipe: "semaphore", Path: "/app/permits", Op: "acquire", Node: permits.Path(), Weight: 3})
		if len(c.Items) != 1 || c.Items[0].Item != item.ID || c.Items[0].Attempt != 1 || c.Items[0].Path != "/app/mail" || c.Items[0].Token != item.Token() {
			t.Errorf("items are %+v", c.Items)
		}
		q0 := status.Queue{Recipe: "queue", Path: "/app/mail", Waiting: 1, Claimed: 1, Taken: 3, Acked: 1, Dead: 1}
		if len(c.Queues) == 1 {
			q0.Latest = c.Queues[0].Latest
		}
		if !slices.Equal(c.Queues, []status.Queue{q0}) || q0.Latest.IsZero() {
			t.Errorf("queues are %+v, want %+v", c.Queues, q0)
		}
		if len(c.Members) != 2 || c.Members[1].Path != "/app/shards/workers" || c.Members[0] != (status.Member{Path: "/app/group", Member: "host-1", Node: c.Members[0].Node, Token: c.Members[0].Token, In: true, Since: since}) {
			t.Errorf("members are %+v", c.Members)
		}
		if len(c.Shards) != 1 || c.Shards[0].Owned != 4 || c.Shards[0].Ought != 4 || c.Shards[0].Members != 1 || c.Shards[0].Member != "host-1" {
			t.Errorf("shards are %+v", c.Shards)
		}
		if len(c.Waits) != 1 || c.Waits[0].Op != "take" || c.Waits[0].Path != "/app/mail" {
			t.Errorf("waits are %+v", c.Waits)
		}
		if r := x.h.Report(); !r.Leads("/leader") || r.Leads("/lock") {
			t.Error("it leads /leader, and nothing else")
		}

		cancel()
		all.Wait()
		for _, release := range []func() error{lock.Release, permits.Release, term.Release, item.Ack, m.Leave} {
			if err := release(); err != nil {
				t.Error(err)
			}
		}
		c = x.client()
		if n := len(c.Leads) + len(c.Holds) + len(c.Items) + len(c.Waits) + len(c.Members) + len(c.Losses); n > 0 {
			t.Errorf("afterwards: %+v", c)
		}
	})
}

func TestAWaitIsReportedWithItsPlaceUntilItEnds(t *testing.T) {
	play(t, nil, nil, func(x *scene) {
		first := must(coord.NewMutex(x.other, "/l", nil).Lock(x.Context()))
		got := make(chan *coord.Hold)
		go func() { got <- must(coord.NewMutex(x.c, "/l", nil).Lock(x.Context())) }()
		c := x.client()
		if len(c.Waits) != 1 || c.Waits[0].Ahead != 1 || c.Waits[0].Node == "" || c.Waits[0].Recipe != "mutex" {
			t.Fatalf("waits are %+v", c.Waits)
		}
		since := c.Waits[0].Since
		s := must(x.c.Session(x.Context()))
		time.Sleep(time.Second)
		x.st.Link("a").Expire(s.ID())
		time.Sleep(time.Second)
		c = x.client()
		if len(c.Waits) != 1 || c.Waits[0].Requeued != 1 || c.Waits[0].Ahead != 1 || !c.Waits[0].Since.Equal(since) {
			t.Errorf("after the loss of the session waits are %+v", c.Waits)
		}
		if c.SessionsLost != 1 || len(c.Losses) != 1 || c.Losses[0].Recipe != "session" {
			t.Errorf("losses are %+v", c.Losses)
		}
		first.Release()
		h := <-got
		c = x.client()
		if len(c.Waits) != 0 || len(c.Holds) != 1 || c.Holds[0].Node != h.Path() {
			t.Errorf("waits are %+v, holds %+v", c.Waits, c.Holds)
		}
	})
}

func TestTheProbesSayInWhichPhaseTheSessionIs(t *testing.T) {
	play(t, nil, nil, func(x *scene) {
		h := must(coord.NewMutex(x.c, "/l", nil).Lock(x.Context()))
		check := func(phase string, alive, ready, held int) {
			t.Helper()
			synctest.Wait()
			for target, code := range map[string]int{"/healthz": alive, "/coord/readyz": ready} {
				w := x.get(target)
				if w.Code != code || !strings.Contains(w.Body.String(), "\n"+phase+" for ") {
					t.Errorf("%s while %s: %d %q, want %d", target, phase, w.Code, w.Body, code)
				}
				if good := strings.HasPrefix(w.Body.String(), "ok\n"); good != (code == 200) {
					t.Errorf("%s with %d says %q", target, w.Code, w.Body)
				}
				w = x.get(target + "?format=json")
				var p struct {
					Status  string
					Clients []struct{ Phase string }
				}
				if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil || w.Code != code || len(p.Clients) != 1 || p.Clients[0].Phase != phase || (p.Status == "ok") != (code == 200) {
					t.Errorf("%s while %s as JSON: %d %v %s", target, phase, w.Code, err, w.Body)
				}
			}
			if n := len(x.client().Holds); n != held {
				t.Errorf("while %s it holds %d locks, want %d", phase, n, held)
			}
		}
		check("connected", 200, 200, 1)
		x.st.Link("a").Partition()
		time.Sleep(2 * time.Second)
		check("suspended", 200, 503, 1)
		x.st.Link("a").Heal()
		time.Sleep(time.Second)
		check("connected", 200, 200, 1)
		x.st.Link("a").Partition()
		<-h.Done()
		check("lost", 200, 503, 0)
		time.Sleep(time.Hour)
		check("lost", 200, 503, 0)
		x.st.Link("a").Heal()
		time.Sleep(time.Minute)
		check("connected", 200, 200, 0)
		c := x.client()
		if c.Suspensions < 2 || c.SessionsLost != 1 {
			t.Errorf("%d suspensions and %d sessions lost", c.Suspensions, c.SessionsLost)
		}
		i := slices.IndexFunc(c.Losses, func(l status.Loss) bool { return l.Path == "/l" })
		if i < 0 || c.Losses[i].Reason != "session_lost" || c.Losses[i].Held == 0 || c.Losses[i].Node != h.Path() {
			t.Errorf("losses are %+v", c.Losses)
		}
		x.c.Close()
		check("closed", 503, 503, 0)
	})
}

func TestAClientIsReportedWhileItOpens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memory.New(nil)
		x := &scene{T: t, st: st, h: status.New(nil)}
		if w := x.get("/healthz"); w.Code != 200 {
			t.Errorf("before Open: %d %s", w.Code, w.Body)
		}
		if w := x.get("/readyz"); w.Code != 503 {
			t.Errorf("before Open: %d %s", w.Code, w.Body)
		}
		st.Link("a").Partition()
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		open := func() {
			c, err := x.h.Open(ctx, st.Link("a"), nil)
			if err == nil {
				defer c.Close()
			}
			ended <- err
		}
		go open()
		time.Sleep(time.Minute)
		if c := x.client(); c.Phase != "opening" || time.Since(c.Since) != time.Minute {
			t.Errorf("phase %s since %v", c.Phase, c.Since)
		}
		if h, r := x.get("/healthz"), x.get("/readyz"); h.Code != 200 || r.Code != 503 {
			t.Errorf("while it opens: %d and %d", h.Code, r.Code)
		}
		cancel()
		if err := <-ended; err == nil {
			t.Error("Open returned nil")
		}
		if r := x.h.Report(); len(r.Clients) != 0 {
			t.Errorf("after an Open that failed: %+v", r.Clients)
		}
	})
}

// A program can close clients, and the report does not grow with them.
func TestClosedClientsAreDroppedWhileAnotherIsOpen(t *testing.T) {
	play(t, nil, nil, func(x *scene) {
		for range 5 {
			must(x.h.Open(x.Context(), x.st.Link("c"), nil)).Close()
		}
		if c := x.client(); c.Phase != "connected" {
			t.Errorf("it reports %s", c.Phase)
		}
		if w := x.get("/healthz"); w.Code != 200 {
			t.Errorf("%d %s", w.Code, w.Body)
		}
		second := must(x.h.Open(x.Context(), x.st.Link("c"), nil))
		if n := len(x.h.Report().Clients); n != 2 {
			t.Errorf("%d clients are reported, want 2", n)
		}
		x.c.Close()
		second.Close()
		if c := x.client(); c.Phase != "closed" {
			t.Errorf("it reports %s", c.Phase)
		}
		third := must(x.h.Open(x.Context(), x.st.Link("c"), nil))
		defer third.Close()
		if c := x.client(); c.Phase != "connected" {
			t.Errorf("it reports %s", c.Phase)
		}
	})
}

func TestReadyIsWhatTheProgramSays(t *testing.T) {
	standby := fmt.Errorf("standby")
	o := &status.Options{Ready: func(r status.Report) error {
		if !r.Leads("/leader") {
			return standby
		}
		return nil
	}}
	play(t, o, nil, func(x *scene) {
		if w := x.get("/readyz"); w.Code != 503 || !strings.HasPrefix(w.Body.String(), "fail: standby\n") {
			t.Errorf("%d %s", w.Code, w.Body)
		}
		term := must(coord.NewElection(x.c, "/leader", nil).Campaign(x.Context()))
		synctest.Wait()
		if w := x.get("/readyz"); w.Code != 200 {
			t.Errorf("%d %s", w.Code, w.Body)
		}
		x.st.Link("a").Partition()
		time.Sleep(2 * time.Second) // suspended, but nobody else leads
		if w := x.get("/readyz"); w.Code != 200 {
			t.Errorf("%d %s", w.Code, w.Body)
		}
		<-term.Done() // the answer needs no event
		if w := x.get("/readyz"); w.Code != 503 {
			t.Errorf("%d %s", w.Code, w.Body)
		}
	})
}

// TestAnErrorWithoutTextIsNotReady: what counts is that Ready returns an error.
func TestAnErrorWithoutTextIsNotReady(t *testing.T) {
	o := &status.Options{Ready: func(status.Report) error { return errors.New("") }}
	play(t, o, nil, func(x *scene) {
		if w := x.get("/readyz"); w.Code != http.StatusServiceUnavailable || !strings.HasPrefix(w.Body.String(), "fail: ") {
			t.Errorf("status %d: %s", w.Code, w.Body)
		}
		if w := x.get("/"); !strings.Contains(w.Body.String(), "not ready") {
			t.Errorf("the page says: %s", w.Body)
		}
	})
}

// A program that closes its client to open another one, and cannot, does not come back by itself.
func TestAClosedClientIsReportedUntilAnotherIsOpen(t *testing.T) {
	play(t, nil, nil, func(x *scene) {
		x.c.Close()
		ended, cancel := context.WithCancel(x.Context())
		cancel()
		if _, err := x.h.Open(ended, x.st.Link("c"), nil); err == nil {
			t.Fatal("Open with a context that has ended succeeds")
		}
		if c := x.client(); c.Phase != "closed" {
			t.Errorf("it reports %s", c.Phase)
		}
		if w := x.get("/healthz"); w.Code != 503 {
			t.Errorf("%d %s", w.Code, w.Body)
		}
	})
}

// blocker is a Trace that blocks between Lock and Unlock. It has a channel, since a bubble does not
// count a wait for a mutex as one.
type blocker struct {
	once sync.Once
	free chan struct{}
	seen []trace.Event
}

func (b *blocker) init() { b.once.Do(func() { b.free = make(chan struct{}, 1); b.free <- struct{}{} }) }

func (b *blocker) Lock() { b.init(); <-b.free }

func (b *blocker) Unlock() { b.free <- struct{}{} }

func (b *blocker) trace(_ context.Context, e trace.Event) {
	b.Lock()
	defer b.Unlock()
	b.seen = append(b.seen, e)
}

// What is held, and the phase, do not come from events. A Trace that blocks stands for a
// process whose events have not come yet, since it was paused.
func TestALossIsReportedBeforeItsEvent(t *testing.T) {
	var b blocker
	play(t, nil, &coord.Options{Trace: b.trace}, func(x *scene) {
		ctx := x.Context()
		term := must(coord.NewElection(x.c, "/leader", nil).Campaign(ctx))
		m := must(coord.NewGroup[int](x.c, "/group", nil).Join(ctx, "me", 1))
		defer m.Leave()
		synctest.Wait()
		b.Lock()
		h := must(coord.NewMutex(x.c, "/l", nil).Lock(ctx)) // this event blocks
		h2 := must(coord.NewMutex(x.c, "/l2", nil).Lock(ctx))
		began := time.Now()
		x.st.Link("a").Partition()
		<-term.Done()
		c := x.client()
		if c.Phase != "lost" || len(c.Leads)+len(c.Holds) > 0 || c.Members[0].In {
			t.Errorf("after the loss it reports %+v", c)
		}
		if !c.Behind.Equal(began) {
			t.Errorf("it is behind since %v, want %v", c.Behind, began)
		}
		since := c.Since
		time.Sleep(time.Second)
		if c := x.client(); !c.Since.Equal(since) {
			t.Errorf("lost since %v, and then since %v", since, c.Since)
		}
		x.st.Link("a").Heal()
		time.Sleep(time.Minute)
		h3 := must(coord.NewMutex(x.c, "/l", nil).Lock(ctx))
		c = x.client()
		if c.Phase != "connected" || len(c.Leads) > 0 || len(c.Holds) != 1 || c.Holds[0].Node != h3.Path() || c.Holds[0].Token != h3.Token() || c.Holds[0].Path != "" {
			t.Errorf("on the next session it reports %+v", c)
		}
		b.Unlock()
		c = x.client()
		if c.Phase != "connected" || len(c.Holds) != 1 || c.Holds[0].Path != "/l" || !c.Behind.IsZero() || !c.Members[0].In {
			t.Errorf("when the events have come it reports %+v", c)
		}
		if h.Err() == nil || h2.Err() == nil {
			t.Error("the holds of the first session stand")
		}
	})
	if !slices.ContainsFunc(b.seen, func(e trace.Event) bool { _, ok := e.(trace.HoldGranted); return ok }) {
		t.Error("the Trace of the program was not called")
	}
}

// A session can be suspended twice. Trace blocks, so that a report notices the first suspension
// before its event.
func TestEachSuspensionIsReportedSinceItBegan(t *testing.T) {
	var b blocker
	play(t, nil, &coord.Options{Trace: b.trace}, func(x *scene) {
		link := x.st.Link("a")
		synctest.Wait()
		b.Lock()
		m := must(coord.NewMutex(x.c, "/l", nil).Lock(x.Context())) // this event blocks
		defer m.Release()
		for i := range 2 {
			time.Sleep(time.Hour)
			link.Partition()
			began := time.Now()
			for range 2 {
				if c := x.client(); c.Phase != "suspended" || !c.Since.Equal(began) {
					t.Errorf("suspension %d: %s since %v, want %v", i, c.Phase, c.Since, began)
				}
				time.Sleep(time.Second)
			}
			if i == 0 {
				b.Unlock()
				if c := x.client(); c.Phase != "suspended" || !c.Since.Equal(began) {
					t.Errorf("suspension %d, after its event: %s since %v, want %v", i, c.Phase, c.Since, began)
				}
			}
			link.Heal()
			synctest.Wait()
		}
	})
}

func TestAReportSaysThatEventsWereDropped(t *testing.T) {
	var b blocker
	play(t, nil, &coord.Options{Trace: b.trace}, func(x *scene) {
		ctx := x.Context()
		kept := must(coord.NewMutex(x.c, "/kept", nil).Lock(ctx))
		lost := must(coord.NewMutex(x.c, "/lost", nil).Lock(ctx))
		busy := must(coord.NewMutex(x.other, "/busy", nil).Lock(ctx))
		waits, giveUp := context.WithCancel(ctx)
		ended := make(chan error)
		go func() { _, err := coord.NewMutex(x.c, "/busy", nil).Lock(waits); ended <- err }()
		synctest.Wait()
		b.Lock()
		m := coord.NewMutex(x.c, "/many", nil)
		for range 9000 { // two events each
			must(m.Lock(ctx)).Release()
		}
		lost.Release()
		late := must(coord.NewMutex(x.c, "/late", nil).Lock(ctx))
		giveUp()
		<-ended
		dropped := time.Now()
		b.Unlock()
		c := x.client()
		if c.Dropped < 1000 || !c.DroppedAt.Equal(dropped) {
			t.Errorf("dropped %d events at %v", c.Dropped, c.DroppedAt)
		}
		if len(c.Waits) > 0 {
			t.Errorf("waits are %+v, although the last has ended", c.Waits)
		}
		slices.SortFunc(c.Holds, func(a, b status.Hold) int { return strings.Compare(a.Path, b.Path) })
		if len(c.Holds) != 2 || c.Holds[0].Node != late.Path() || c.Holds[0].Path != "" || c.Holds[1].Node != kept.Path() || c.Holds[1].Path != "/kept" {
			t.Errorf("holds are %+v", c.Holds)
		}
		if page := x.get("/").Body.String(); !strings.Contains(page, fmt.Sprintf("%d events were dropped", c.Dropped)) || !strings.Contains(page, late.Path()) {
			t.Errorf("the page says\n%s", page)
		}
		busy.Release()
	})
}

func TestListsAreBounded(t *testing.T) {
	play(t, nil, nil, func(x *scene) {
		for i := range 130 {
			must(coord.NewMutex(x.c, fmt.Sprintf("/locks/%d", i), nil).Lock(x.Context()))
			time.Sleep(time.Millisecond)
		}
		for i := range 250 {
			q := coord.NewQueue[int](x.c, fmt.Sprintf("/queues/%d", i), nil)
			must(q.Put(x.Context(), 1))
			if err := must(q.Take(x.Context())).Ack(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Millisecond)
		}
		c := x.client()
		if len(c.Holds) != 100 || c.More["holds"] != 30 || c.Holds[0].Path != "/locks/0" {
			t.Errorf("%d holds from %s, and %v more", len(c.Holds), c.Holds[0].Path, c.More)
		}
		if len(c.Queues) != 100 || c.More["queues"] != 100 {
			t.Errorf("%d queues, and %v more", len(c.Queues), c.More)
		}
		for range 40 {
			s := must(x.c.Session(x.Context()))
			x.st.Link("a").Expire(s.ID())
			<-s.Done()
			time.Sleep(10 * time.Second)
		}
		if c := x.client(); len(c.Losses) != 32 || c.SessionsLost != 40 || c.Losses[0].At.Before(c.Losses[31].At) {
			t.Errorf("%d losses, %d sessions", len(c.Losses), c.SessionsLost)
		}
	})
}

func TestLeadsKnowsTheTermsThatTheListLacks(t *testing.T) {
	play(t, nil, nil, func(x *scene) {
		for i := range 130 {
			must(coord.NewElection(x.c, fmt.Sprintf("/leaders/%d", i), nil).Campaign(x.Context()))
			time.Sleep(time.Millisecond)
		}
		synctest.Wait()
		r := x.h.Report()
		for i := range 130 {
			if !r.Leads(fmt.Sprintf("/leaders/%d", i)) {
				t.Fatalf("term %d of 130 is missing; the list has %d", i, len(r.Clients[0].Leads))
			}
		}
	})
}

// The election /x of the namespace /a is at /a/x on the service, which is also the path of another election that a
// client of the namespace could have: its own is at /a/a/x.
func TestReport_LeadsTakesThePathBelowTheNamespace(t *testing.T) {
	for _, ns := range []string{"/a", "/a/"} {
		play(t, nil, &coord.Options{Namespace: ns}, func(x *scene) {
			must(coord.NewElection(x.c, "/x", nil).Campaign(x.Context()))
			synctest.Wait()
			r := x.h.Report()
			if !r.Leads("/x") || r.Leads("/a/x") || r.Leads("/a") || r.Leads("/") || r.Leads("") {
				t.Errorf("namespace %s: it leads /x, and nothing else: %+v", ns, r.Clients)
			}
			if got := r.Clients[0].Namespace; got != "/a" {
				t.Errorf("namespace %q", got)
			}
			var sent status.Report
			if err := json.Unmarshal([]byte(x.h.String()), &sent); err != nil || !sent.Leads("/x") || sent.Leads("/a/x") {
				t.Errorf("from JSON: %+v, %v", sent, err)
			}
			must(coord.NewElection(x.c, "/a/x", nil).Campaign(x.Context()))
			synctest.Wait()
			if r := x.h.Report(); !r.Leads("/a/x") || r.Leads("/a/a/x") {
				t.Errorf("namespace %s: it leads /a/x: %+v", ns, r.Clients)
			}
		})
	}
	play(t, nil, nil, func(x *scene) {
		must(coord.NewElection(x.c, "/x", nil).Campaign(x.Context()))
		c := must(x.h.Open(x.Context(), x.st.Link("c"), &coord.Options{Namespace: "/b"}))
		defer c.Close()
		must(coord.NewElection(c, "/y", nil).Campaign(x.Context()))
		synctest.Wait()
		if r := x.h.Report(); !r.Leads("/x") || !r.Leads("/y") || r.Leads("/b/y") || r.Leads("/b/x") {
			t.Errorf("clients of two namespaces: %+v", r.Clients)
		}
	})
}

func TestTheReportHasNoDataOfNodes(t *testing.T) {
	play(t, nil, nil, func(x *scene) {
		const secret = "hunter2"
		ctx := x.Context()
		must(coord.NewMutex(x.c, "/l", &coord.MutexOptions{Data: []byte(secret)}).Lock(ctx))
		term := must(coord.NewElection(x.c, "/e", nil).Campaign(ctx))
		if err := term.Announce(ctx, []byte(secret)); err != nil {
			t.Fatal(err)
		}
		q := coord.NewQueue[string](x.c, "/q", nil)
		must(q.Put(ctx, secret))
		must(q.Take(ctx))
		must(coord.NewGroup[string](x.c, "/g", nil).Join(ctx, "me", secret))
		if c := x.client(); !c.Leads[0].Announced || len(c.Items) != 1 || len(c.Members) != 1 {
			t.Errorf("it reports %+v", c)
		}
		for _, target := range []string{"/", "/?format=json", "/healthz", "/readyz"} {
			if w := x.get(target); strings.Contains(w.Body.String(), secret) {
				t.Errorf("%s says %s", target, w.Body)
			}
		}
	})
}

func TestThePageEscapesNames(t *testing.T) {
	play(t, nil, nil, func(x *scene) {
		must(coord.NewMutex(x.c, "/<script>alert(1)<", nil).Lock(x.Context()))
		must(coord.NewGroup[int](x.c, "/g", nil).Join(x.Context(), "<b>me", 1))
		synctest.Wait()
		w := x.get("/coord/")
		page := w.Body.String()
		if strings.Contains(page, "<script>") || strings.Contains(page, "<b>me") || !strings.Contains(page, "&lt;script&gt;alert(1)&lt;") {
			t.Errorf("the page says\n%s", page)
		}
		if got := w.Header().Get("Content-Security-Policy"); !strings.HasPrefix(got, "default-src 'none'") {
			t.Errorf("its policy is %q", got)
		}
	})
}

func TestAHandlerAnswersInTheFormThatIsAskedFor(t *testing.T) {
	play(t, nil, nil, func(x *scene) {
		for _, c := range []struct{ target, accept, want string }{
			{"/", "text/html,application/xhtml+xml,*/*;q=0.8", "text/html"},
			{"/", "", "text/html"},
			{"/", "application/json", "application/json"},
			{"/?format=json", "text/html", "application/json"},
			{"/healthz", "*/*", "text/plain"},
			{"/healthz", "application/json; q=1", "application/json"},
			{"/readyz", "", "text/plain"},
		} {
			r := httptest.NewRequest("GET", c.target, nil)
			if c.accept != "" {
				r.Header.Set("Accept", c.accept)
			}
			w := httptest.NewRecorder()
			x.h.ServeHTTP(w, r)
			if got := w.Header().Get("Content-Type"); w.Code != 200 || !strings.HasPrefix(got, c.want) {
				t.Errorf("%s for %q: %d %s, want %s", c.target, c.accept, w.Code, got, c.want)
			}
		}
		w := httptest.NewRecorder()
		x.h.ServeHTTP(w, httptest.NewRequest("POST", "/healthz", nil))
		if w.Code != http.StatusMethodNotAllowed {
			t.Errorf("POST: %d", w.Code)
		}
		var r status.Report
		if err := json.Unmarshal(x.get("/?format=json").Body.Bytes(), &r); err != nil || len(r.Clients) != 1 {
			t.Errorf("%v %+v", err, r)
		}
		var v expvar.Var = x.h
		if err := json.Unmarshal([]byte(v.String()), &r); err != nil {
			t.Error(err)
		}
	})
}

// Requests, events, and clients that come and go at the same time.
func TestAHandlerIsSafeForConcurrentUse(t *testing.T) {
	st := memory.New(&memory.Options{SessionTimeout: time.Second})
	x := &scene{T: t, st: st, h: status.New(nil)}
	c := must(x.h.Open(t.Context(), st.Link("a"), nil))
	defer c.Close()
	var work, look sync.WaitGroup
	stop := make(chan struct{})
	for range 2 {
		look.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				for _, target := range []string{"/", "/healthz", "/readyz", "/?format=json"} {
					if w := x.get(target); w.Code == 500 {
						t.Errorf("%s: %s", target, w.Body)
					}
				}
			}
		})
	}
	for i := range 3 {
		work.Go(func() {
			for range 50 {
				err := coord.NewMutex(c, "/l", nil).Do(t.Context(), func(context.Context, *coord.Hold) error { return nil })
				if err != nil {
					t.Error(err)
				}
			}
			must(x.h.Open(t.Context(), st.Link(fmt.Sprint(i)), nil)).Close()
		})
	}
	work.Wait()
	close(stop)
	look.Wait()
}

func TestStatus_DecisionsThatAreNotCarriedOut(t *testing.T) {
	play(t, nil, nil, func(x *scene) {
		var mend atomic.Bool
		yes := func(context.Context, coord.Branch[string]) error { return nil }
		ctx, stop := context.WithCancel(x.Context())
		served := make(chan error)
		go func() {
			served <- coord.NewParticipant(x.c, "/tx", "s", coord.Handler[string]{Prepare: yes, Abort: yes,
				Commit: func(context.Context, coord.Branch[string]) error {
					if !mend.Load() {
						panic("no")
					}
					return nil
				},
			}).Serve(ctx)
		}()
		synctest.Wait()
		since := time.Now()
		for _, id := range []string{"1", "2"} {
			must(coord.NewCoordinator[string](x.c, "/tx", nil).Propose(ctx, coord.Proposal[string]{ID: id, Sites: []string{"s"}}))
		}
		time.Sleep(time.Hour)
		if c := x.client(); len(c.Undone) != 1 || c.Undone[0].Path != "/tx" || c.Undone[0].Site != "s" || c.Undone[0].Undone != 2 ||
			c.Undone[0].Failing != 2 || !c.Undone[0].Since.Equal(since) {
			t.Errorf("undone are %+v", c.Undone)
		}
		if page := x.get("/coord/").Body.String(); !strings.Contains(page, "Decisions not carried out") {
			t.Errorf("the page does not say it:\n%s", page)
		}
		mend.Store(true)
		time.Sleep(2 * time.Minute)
		if c := x.client(); len(c.Undone) != 0 {
			t.Errorf("undone are %+v", c.Undone)
		}
		stop()
		<-served
	})
}

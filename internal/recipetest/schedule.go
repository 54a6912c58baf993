package recipetest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/internal/coordtest"
	"github.com/go-coord/coord/trace"
)

type scheduleTests struct{ Services }

// ran is a call of the function of a schedule.
type ran struct {
	by      string
	planned time.Time
	attempt int
	asked   bool
	token   int64
}

func (x ran) String() string {
	text := fmt.Sprintf("%s %s", x.by, x.planned.UTC().Format("15:04:05.000"))
	if x.attempt > 1 {
		text += fmt.Sprintf(" attempt %d", x.attempt)
	}
	return text
}

// roster records the calls of the functions of schedules at one path.
type roster struct {
	w  *world
	tt coord.Timetable
	o  coord.ScheduleOptions

	mu      sync.Mutex
	runs    []ran
	changed chan struct{}
}

func (w *world) roster(tt coord.Timetable, o coord.ScheduleOptions) *roster {
	return &roster{w: w, tt: tt, o: o, changed: make(chan struct{})}
}

// begin is called by each function when it begins.
func (x *roster) begin(by string, r *coord.Run) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if n := len(x.runs); n > 0 && r.Token() <= x.runs[n-1].token {
		x.w.T.Errorf("%s: token %d after %d", by, r.Token(), x.runs[n-1].token)
	}
	x.runs = append(x.runs, ran{by, r.Planned, r.Attempt, r.Asked, r.Token()})
	close(x.changed)
	x.changed = make(chan struct{})
}

// await waits until n calls have begun, and returns them.
func (x *roster) await(n int) []ran {
	x.w.T.Helper()
	limit := time.After(coordtest.Limit + 24*time.Hour*time.Duration(fakeDays(x.w)))
	for {
		x.mu.Lock()
		runs, changed := slices.Clone(x.runs), x.changed
		x.mu.Unlock()
		if len(runs) >= n {
			return runs
		}
		select {
		case <-changed:
		case <-limit:
			x.w.T.Fatalf("%d runs, want %d: %v", len(runs), n, runs)
		}
	}
}

// fakeDays is how many days a test in fake time may take.
func fakeDays(w *world) int {
	if w.Fake {
		return 400
	}
	return 0
}

// start makes a process with a client run the schedule, and calls f, if it is not nil, in each run. stop ends it and
// returns the result.
func (x *roster) start(c *coord.Client, id string, f func(ctx context.Context, r *coord.Run) error) (stop func() error) {
	ctx, cancel := context.WithCancel(context.Background())
	result := make(chan error, 1)
	o := x.o
	o.ID = id
	s := coord.NewSchedule(c, "/s", x.tt, &o)
	go func() {
		result <- s.Run(ctx, func(ctx context.Context, r *coord.Run) error {
			x.begin(id, r)
			if f == nil {
				return nil
			}
			return f(ctx, r)
		})
	}()
	stop = sync.OnceValue(func() error {
		cancel()
		return <-result
	})
	x.w.T.Cleanup(func() { stop() })
	return stop
}

func (x *roster) must(err error) {
	x.w.T.Helper()
	if err != nil {
		x.w.T.Error(err)
	}
}

// state returns the state of the schedule.
func (x *roster) state(c *coord.Client) coord.ScheduleState {
	x.w.T.Helper()
	st, err := coord.NewSchedule(c, "/s", x.tt, &x.o).State(context.Background())
	if err != nil {
		x.w.T.Fatal(err)
	}
	return st
}

// outcome waits until a run has an outcome.
func (x *roster) outcome(c *coord.Client, planned time.Time, attempt int) (found coord.RunRecord) {
	x.w.T.Helper()
	x.w.Eventually("the run has an outcome", func() bool {
		for _, r := range x.state(c).Runs {
			if r.Planned.Equal(planned) && r.Attempt == attempt {
				found = r
			}
		}
		return found.Outcome != ""
	})
	return found
}

// once fails the test if a planned time ran twice, or in another order, or if one was left out.
func (x *roster) once(runs []ran, every time.Duration) {
	x.w.T.Helper()
	for i := 1; i < len(runs); i++ {
		if d := runs[i].planned.Sub(runs[i-1].planned); d <= 0 || every > 0 && d != every {
			x.w.T.Errorf("run %v after %v", runs[i], runs[i-1])
		}
	}
}

// pace is an interval that is long enough for a busy machine with a real service.
func (w *world) pace() time.Duration {
	if w.Fake {
		return time.Minute
	}
	return time.Second
}

func (on scheduleTests) EachPlannedTimeRunsOnce(t *testing.T) {
	on.each(t, func(w *world) {
		x := w.roster(coord.Every(w.pace()), coord.ScheduleOptions{Missed: coord.MissedAll, MissedLimit: 1000})
		observer := w.Open("observer", nil)
		var stops []func() error
		for _, id := range []string{"a", "b", "c"} {
			stops = append(stops, x.start(w.Open(id, nil), id, func(ctx context.Context, r *coord.Run) error {
				if early := time.Until(r.Planned); w.Fake && early > 0 {
					w.T.Errorf("called %v early", early)
				}
				return nil
			}))
		}
		runs := x.await(3)
		for i, stop := range stops { // the leader among them
			x.must(stop())
			if i < len(stops)-1 {
				runs = x.await(len(runs) + 2)
			}
		}
		x.once(runs, w.pace())
		st := x.state(observer)
		for _, r := range st.Runs {
			if r.Outcome != trace.RunDone || r.Attempt != 1 || r.Asked || r.ID == "" || r.Began.Before(r.Planned) {
				w.T.Errorf("%+v", r)
			}
		}
		if last := runs[len(runs)-1].planned; st.Last.Before(last) || !st.Next.After(st.Last) || len(st.Runs) < len(runs) {
			w.T.Errorf("state %+v after %v", st, runs)
		}
	})
}

// A run costs two commits: the claim, and its end with the outcome. A process that does not lead sends nothing.
func (on scheduleTests) ARunCostsTwoCommits(t *testing.T) {
	on.each(t, func(w *world) {
		x := w.roster(coord.Every(w.pace()), coord.ScheduleOptions{Missed: coord.MissedAll, MissedLimit: 1000})
		var counting atomic.Bool
		var commits, reads, waiter atomic.Int64
		count := func(writes, others *atomic.Int64) *backendtest.Hooks {
			return &backendtest.Hooks{Before: func(_ context.Context, c backendtest.Call) error {
				switch {
				case !counting.Load():
				case len(c.Ops) > 0:
					writes.Add(1)
				default:
					others.Add(1)
				}
				return nil
			}}
		}
		ended := make(chan int64, 100)
		x.start(w.Open("a", count(&commits, &reads)), "a", func(ctx context.Context, r *coord.Run) error {
			// At this moment the claim is committed, and the end of the run before.
			ended <- commits.Load()
			counting.Store(true)
			return nil
		})
		x.await(1)
		waits := w.Waits.Load()
		x.start(w.Open("b", count(&waiter, &waiter)), "b", nil)
		w.Eventually("the other process waits", func() bool { return w.Waits.Load() > waits })
		idle := waiter.Load()
		var counts []int64
		for len(ended) > 0 {
			counts = append(counts, <-ended)
		}
		for range 6 {
			counts = append(counts, <-ended)
		}
		perRun := float64(counts[len(counts)-1]-counts[1]) / float64(len(counts)-2)
		w.T.Logf("figure: a scheduled run: %.2f commits, %.1f reads", perRun, float64(reads.Load())/float64(len(counts)-1))
		if perRun != 2 {
			w.T.Errorf("%v commits in all at the beginning of each run", counts)
		}
		if n := waiter.Load() - idle; n > 0 {
			w.T.Errorf("the process that waits has sent %d requests", n)
		}
	})
}

// The holder of a claim is cut off until its session ends. Another process runs the planned time again, with attempt 2.
func (on scheduleTests) AKilledHolderIsFollowedByAnotherAttempt(t *testing.T) {
	on.each(t, func(w *world) {
		x := w.roster(coord.Every(w.pace()), coord.ScheduleOptions{Missed: coord.MissedAll, MissedLimit: 1000, Attempts: 2})
		var held atomic.Pointer[coord.Run]
		until := make(chan struct{})
		x.start(w.Open("a", nil), "a", func(ctx context.Context, r *coord.Run) error {
			if held.CompareAndSwap(nil, r) {
				w.Link("a").Partition()
				<-until // a process that is paused does not see that its claim is lost
			}
			return nil
		})
		first := x.await(1)[0]
		b := w.Open("b", nil)
		x.start(b, "b", nil)
		runs := x.await(4)
		if again := runs[1]; again.by != "b" || !again.planned.Equal(first.planned) || again.attempt != 2 {
			w.T.Errorf("%v after %v", again, first)
		}
		x.once(runs[1:], w.pace())
		w.Link("a").Heal()
		close(until)
		if err := held.Load().Err(); !errors.Is(err, coord.ErrLost) {
			w.T.Errorf("the claim of the holder that was cut off: %v", err)
		}
		if r := x.outcome(b, first.planned, 1); r.Outcome != trace.RunAbandoned || r.ID != "a" {
			w.T.Errorf("attempt 1 is recorded as %+v", r)
		}
		if r := x.outcome(b, first.planned, 2); r.Outcome != trace.RunDone || r.ID != "b" {
			w.T.Errorf("attempt 2 is recorded as %+v", r)
		}
		_, err := coord.NewTxn(b).Under(held.Load().Guard()).Create("/late", nil, backend.Persistent).Commit(context.Background())
		coordtest.WantErr(w.T, err, coord.ErrFenced)
	})
}

// The replies to the commits of a claim and of its end are lost.
func (on scheduleTests) ALostReplyNeitherRepeatsNorLosesARun(t *testing.T) {
	on.each(t, func(w *world) {
		x := w.roster(coord.Every(w.pace()), coord.ScheduleOptions{Missed: coord.MissedAll, MissedLimit: 1000, Attempts: 3})
		var lost atomic.Int64
		hooks := backendtest.Hooks{After: func(ctx context.Context, c backendtest.Call, err error) error {
			if err != nil || len(c.Ops) < 3 || lost.Load() >= 4 {
				return err
			}
			if claims := coordtest.Creates(c) && coordtest.Commits(c, backend.OpCheck); claims || coordtest.Deletes(c) {
				lost.Add(1)
				return backend.ErrUncertain
			}
			return nil
		}}
		c := w.Open("a", &hooks)
		x.start(c, "a", nil)
		runs := x.await(4)
		x.once(runs, w.pace())
		if lost.Load() != 4 {
			w.T.Errorf("%d replies were lost", lost.Load())
		}
		for _, r := range runs[:3] {
			if got := x.outcome(c, r.planned, 1); got.Outcome != trace.RunDone {
				w.T.Errorf("%+v", got)
			}
		}
	})
}

func (on scheduleTests) AFunctionThatFailsPanicsOrExitsHasFailed(t *testing.T) {
	on.each(t, func(w *world) {
		x := w.roster(coord.Every(w.pace()), coord.ScheduleOptions{Missed: coord.MissedAll, MissedLimit: 1000, Attempts: 3})
		c := w.Open("a", nil)
		var mu sync.Mutex
		var previous []coord.RunRecord
		x.start(c, "a", func(ctx context.Context, r *coord.Run) error {
			mu.Lock()
			previous = append(previous, r.Previous)
			n := len(previous)
			mu.Unlock()
			switch n {
			case 1:
				return errors.New("no space in the warehouse")
			case 2:
				panic("work")
			case 3:
				runtime.Goexit()
			}
			return nil
		})
		runs := x.await(4)
		x.once(runs, w.pace())
		mu.Lock()
		defer mu.Unlock()
		for i, want := range []string{"no space in the warehouse", "the function panicked (string)", "the function ended its goroutine (runtime.Goexit)", ""} {
			r := x.outcome(c, runs[i].planned, 1)
			if r.Error != want || (r.Outcome == trace.RunFailed) != (want != "") {
				w.T.Errorf("run %d is recorded as %+v", i, r)
			}
			if i < 3 && (previous[i+1].Error != want || !previous[i+1].Planned.Equal(r.Planned)) || i == 0 && previous[0] != (coord.RunRecord{}) {
				w.T.Errorf("run %d had the previous run %+v", i+1, previous[i+1])
			}
		}
	})
}

func (on scheduleTests) AnOperatorPausesAndRunsNow(t *testing.T) {
	on.each(t, func(w *world) {
		x := w.roster(coord.Every(w.pace()), coord.ScheduleOptions{Missed: coord.MissedAll, MissedLimit: 1000})
		operator := w.Open("operator", nil)
		s := coord.NewSchedule(operator, "/s", x.tt, nil)
		x.must(s.Pause(w.T.Context()))
		x.must(s.Pause(w.T.Context()))
		x.start(w.Open("a", nil), "a", nil)
		if w.Fake {
			time.Sleep(10 * w.pace())
		}
		at, err := s.RunNow(w.T.Context())
		x.must(err)
		other, err := s.RunNow(w.T.Context())
		x.must(err)
		runs := x.await(2)
		if len(runs) != 2 || !runs[0].asked || !runs[0].planned.Equal(at) || !runs[1].asked || !runs[1].planned.Equal(other) {
			w.T.Errorf("while paused: %v, asked for %v and %v", runs, at, other)
		}
		if st := x.state(operator); !st.Paused || !st.Last.IsZero() || !st.Next.IsZero() {
			w.T.Errorf("paused: %+v", st)
		}
		resumed := time.Now()
		x.must(s.Resume(w.T.Context()))
		x.must(s.Resume(w.T.Context()))
		runs = x.await(4)
		if w.Fake && runs[2].planned.Before(resumed) || runs[2].asked || runs[3].asked {
			w.T.Errorf("resumed at %v: %v", resumed, runs)
		}
		x.once(runs[2:], w.pace())
	})
}

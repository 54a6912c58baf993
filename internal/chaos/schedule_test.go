//go:build linux

package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/go-coord/coord"
)

// A plan is a schedule of a run.
type plan struct {
	path  string
	runs  int // Overlap
	limit int // MissedLimit
}

// plans are the schedules, by their workloads. Only the second one leaves planned times out.
var plans = map[string]plan{"schedule": {"/jobs/one", 1, 1000}, "overlap": {"/jobs/many", 3, 10}}

const (
	planEvery = 500 * time.Millisecond
	planTries = 3 // Attempts
)

func (x *client) schedule(work string) *coord.Schedule {
	p := plans[work]
	return coord.NewSchedule(x.c, p.path, coord.Every(planEvery), &coord.ScheduleOptions{
		ID: x.spec.Name, Missed: coord.MissedAll, MissedLimit: p.limit, Overlap: p.runs, Attempts: planTries, History: 10,
	})
}

func (x *client) exclusive(ctx context.Context, w *worker) { x.scheduled(ctx, w, "schedule") }

func (x *client) overlapping(ctx context.Context, w *worker) { x.scheduled(ctx, w, "overlap") }

// scheduled runs a schedule in turns until ctx ends, so that all clients lead. In some turns Run ends in the middle of a function.
func (x *client) scheduled(ctx context.Context, w *worker, work string) {
	for ctx.Err() == nil {
		left := 1 + w.rand.IntN(3)
		inTheMiddle := w.rand.IntN(4) == 0
		turn, leave := context.WithCancel(ctx)
		began := make(chan *coord.Run)
		ended := make(chan error, 1)
		since := x.rec.now()
		go func() {
			ended <- x.schedule(work).Run(turn, func(run context.Context, r *coord.Run) error {
				return x.scheduledRun(ctx, run, work, r, since, began)
			})
		}()
		var err error
		for running := true; running; {
			select {
			case r := <-began:
				if left--; left == 0 && !inTheMiddle {
					select {
					case <-r.Done():
					case <-ctx.Done():
					}
				}
				if left == 0 {
					leave()
				}
			case err = <-ended:
				running = false
			}
		}
		leave()
		if err != nil && !errors.Is(err, coord.ErrClosed) {
			x.rec.say(event{Kind: "told", Work: work, Op: "run", Err: err.Error(), Odd: true})
		}
		w.rest(ctx, 100*time.Millisecond)
	}
}

// scheduledRun is the function of a schedule. Some functions ignore the end of their context, and some return an error. since is a
// time before the claim.
func (x *client) scheduledRun(ctx, run context.Context, work string, r *coord.Run, since int64, began chan<- *coord.Run) error {
	w := &worker{x: x, rand: rand.New(rand.NewPCG(uint64(x.rec.calls.Load()), uint64(x.spec.Number)))}
	defer w.close()
	id, register := r.Path(), work
	key := plannedKey(r.Planned.UnixMilli(), r.Asked)
	if plans[work].runs > 1 {
		register = fmt.Sprint(work, "-", key)
	}
	early := time.Until(r.Planned)
	_, _ = w.one(ctx, event{Work: work, Op: "acquire", Num: key, Since: since}, limit, func(_ context.Context, e *event) error {
		e.ID, e.Token, e.Session = id, r.Token(), r.Session()
		e.Old = fmt.Sprint(r.Attempt, int64(early))
		return nil
	})
	x.watch(work, r.Hold, id)
	w.write(register, r.Hold)
	select {
	case began <- r:
	case <-run.Done():
	}
	w.linger(ctx, work)
	if w.rand.IntN(2) == 0 {
		run = ctx
	}
	mean := 20 * time.Millisecond
	if w.rand.IntN(10) == 0 {
		mean = planEvery
	}
	w.pause(run, mean)
	w.write(register, r.Hold)
	e := x.rec.begin(event{Work: work, Op: "release", ID: id, Token: r.Token(), Session: r.Session(), Value: id})
	var err error
	if w.rand.IntN(8) == 0 {
		err = errors.New("it has failed")
		e.Old = "failed"
	} else if run.Err() != nil && w.rand.IntN(2) == 0 {
		err = run.Err()
		e.Old = "failed"
	}
	x.holds.Go(func() {
		<-r.Done()
		w.end(e, r.Release()) // the result of the Release by Run
	})
	return err
}

// plannedKey is a number for the runs of a planned time.
func plannedKey(planned int64, asked bool) int64 {
	if asked {
		return planned<<1 | 1
	}
	return planned << 1
}

// operate asks for runs, and pauses and resumes the schedules.
func (x *client) operate(ctx context.Context, w *worker) {
	call := func(work, op string, do func(ctx context.Context, s *coord.Schedule, e *event) error) bool {
		kind, _ := w.one(ctx, event{Work: work, Op: op}, 10*time.Second, func(ctx context.Context, e *event) error {
			err := do(ctx, x.schedule(work), e)
			if op == "resume" {
				e.Num = time.Now().UnixMilli()
			}
			return err
		})
		return kind == "ok"
	}
	rounds := 0
	w.loop(ctx, 2*time.Second/x.spec.Slowness, func(ctx context.Context) bool {
		last, all := x.finish.Load(), true
		for _, work := range []string{"schedule", "overlap"} {
			pauses := rounds%32 == 4*x.spec.Index // seldom: after a Resume, planned times that were missed before the Pause do not run
			if pauses {
				call(work, "pause", func(ctx context.Context, s *coord.Schedule, _ *event) error { return s.Pause(ctx) })
				w.pause(ctx, planEvery)
			}
			if pauses || rounds%2 == 0 || last { // another client may have paused it, and was killed
				all = call(work, "resume", func(ctx context.Context, s *coord.Schedule, _ *event) error { return s.Resume(ctx) }) && all
			}
			if rounds%3 > 0 && !last {
				continue // planned times run too
			}
			all = call(work, "runnow", func(ctx context.Context, s *coord.Schedule, e *event) error {
				at, err := s.RunNow(ctx)
				if !at.IsZero() {
					e.Num = at.UnixMilli()
				}
				return err
			}) && all
		}
		rounds++
		return all
	})
}

// awaitAsked returns when each run that was asked for has been claimed.
func (x *client) awaitAsked(ctx context.Context) error {
	for work := range plans {
		for {
			st, err := x.schedule(work).State(ctx)
			if err == nil && len(st.Asked) == 0 {
				break
			}
			if ctx.Err() != nil {
				return fmt.Errorf("%s: runs that were asked for: %v, %v", work, st.Asked, err)
			}
			select {
			case <-time.After(50 * time.Millisecond): // there is no signal for it
			case <-ctx.Done():
			}
		}
	}
	return nil
}

func TestSchedulesOfARunRunEachPlannedTime(t *testing.T) {
	processes := onMemory(t, func(ctx context.Context, x *client) {
		var both sync.WaitGroup
		for i, work := range []func(ctx context.Context, w *worker){x.exclusive, x.overlapping, x.operate} {
			both.Go(func() { work(ctx, &worker{x: x, rand: rand.New(rand.NewPCG(x.spec.Seed, uint64(i)))}) })
		}
		for ctx.Err() == nil && !x.finish.Load() { // a session ends in most of these runs
			x.linger(true)
			time.Sleep(sessionTimeout)
			x.linger(false)
			time.Sleep(sessionTimeout)
		}
		both.Wait()
	}, func(ctx context.Context, all []*client) {
		if err := all[0].awaitAsked(ctx); err != nil {
			t.Error(err)
		}
	})
	checkLocksOnMemory(t, processes, "schedule", 100)
	checkLocksOnMemory(t, processes, "overlap", 150)
	f := &findings{runs: make(map[string]*runCount), tenures: make(map[string]int)}
	f.judgeSchedules(processes, nil)
	verdict(t, f.wrong, "")
	for work, n := range f.runs {
		t.Logf("figure: chaos of %s on memory: %v", work, n)
		if text := n.missing(true); text != "" {
			t.Errorf("%s: %s", work, text)
		}
	}
}

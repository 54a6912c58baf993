package sweep

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/trace"
)

// scheduleRuns has the runs of a schedule that have begun, by planned time and attempt.
type scheduleRuns struct {
	mu     sync.Mutex
	called map[string]bool
	ended  map[time.Time]bool // a function has returned nil under a claim that stood
}

// schedule: two processes run a schedule, one after the other, and runs are asked for. Whatever fails, no attempt is called
// twice, runs exclude each other, and each run that was asked for is done.
func schedule() *recipe {
	begin := func(x *cell, p *player, runs *scheduleRuns) (end func()) {
		ctx, stop := context.WithCancel(x.ctx)
		done := make(chan struct{})
		go func() {
			defer close(done)
			s := coord.NewSchedule(p.c, "/jobs", coord.Every(100_000*time.Hour), &coord.ScheduleOptions{ID: p.name, Attempts: 100})
			p.ok("run", s.Run(ctx, func(ctx context.Context, r *coord.Run) error {
				key := fmt.Sprint(r.Planned.UnixMilli(), " attempt ", r.Attempt)
				runs.mu.Lock()
				if runs.called[key] {
					x.violation("%s: %s is called twice", p.name, key)
				}
				runs.called[key] = true
				runs.mu.Unlock()
				at := x.resource("jobs", 1)
				at.enter(p, r.Hold, 1)
				at.leave(r.Hold)
				runs.mu.Lock()
				runs.ended[r.Planned] = true
				runs.mu.Unlock()
				return nil
			}))
		}()
		return func() {
			stop()
			<-done
		}
	}
	// run asks for a run, and waits until it is done.
	run := func(x *cell, by *player, runs *scheduleRuns) {
		s := coord.NewSchedule(by.c, "/jobs", nil, nil)
		for x.going() {
			at, err := s.RunNow(x.ctx)
			if !by.ok("run now", err, coord.ErrUncertain) {
				if errors.Is(err, coord.ErrUncertain) {
					continue
				}
				return
			}
			x.until("the run is done", func() bool {
				st, err := s.State(x.ctx)
				if err != nil {
					return x.ctx.Err() != nil
				}
				for _, r := range st.Runs {
					if r.Planned.Equal(at) && r.Outcome == trace.RunDone {
						runs.mu.Lock()
						defer runs.mu.Unlock()
						return runs.ended[at]
					}
				}
				return false
			})
			return
		}
	}
	return &recipe{
		name: "schedule", players: []string{"a", "b"},
		play: func(x *cell) {
			runs := &scheduleRuns{called: make(map[string]bool), ended: make(map[time.Time]bool)}
			first := begin(x, x.by["a"], runs)
			run(x, x.by["b"], runs)
			second := begin(x, x.by["b"], runs)
			run(x, x.by["a"], runs)
			x.rest()
			first()
			run(x, x.by["b"], runs)
			second()
		},
		fresh: func(x *cell, p *player) {
			runs := &scheduleRuns{called: make(map[string]bool), ended: make(map[time.Time]bool)}
			end := begin(x, p, runs)
			run(x, p, runs)
			end()
		},
	}
}

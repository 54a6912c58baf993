package simulation_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/internal/layout"
)

// cronPlay has the runs of a schedule. The mutex of the simulation guards it.
type cronPlay struct {
	called map[string]bool // planned time and attempt
	latest time.Time       // the planned time of the latest run, without those that were asked for
	n      int
	more   chan struct{} // closed and replaced when a run has begun
}

// begins checks that no planned time is called twice, except for another attempt, and that they come in order.
func (p *cronPlay) begins(x *sim, r *coord.Run) {
	x.mu().Lock()
	defer x.mu().Unlock()
	key := fmt.Sprint(r.Planned.UnixMilli(), r.Asked, r.Attempt)
	if p.called[key] {
		x.count["violation"]++
		x.simulation.t.Errorf("seed %d: %v, attempt %d is called twice", x.arbiter.seed, r.Planned, r.Attempt)
	}
	p.called[key] = true
	switch {
	case r.Asked:
		x.count["asked"]++
	case r.Attempt > 1:
		x.count["another attempt"]++
	case !x.void(r.Hold):
		if !r.Planned.After(p.latest) {
			x.simulation.t.Errorf("seed %d: %v runs after %v", x.arbiter.seed, r.Planned, p.latest)
		}
		p.latest = r.Planned
	}
	if now := time.Now(); now.Before(r.Planned) && !r.Asked {
		x.simulation.t.Errorf("seed %d: %v runs at %v", x.arbiter.seed, r.Planned, now)
	}
	p.n++
	close(p.more)
	p.more = make(chan struct{})
}

// await waits for n further runs.
func (p *cronPlay) await(x *sim, n int) {
	x.mu().Lock()
	until := p.n + n
	for p.n < until {
		more := p.more
		x.mu().Unlock()
		<-more
		x.mu().Lock()
	}
	x.mu().Unlock()
}

// cronScenario: processes run a schedule, come and go. No planned time is called twice with one attempt, none early, and runs
// exclude each other. When nothing fails any more, planned times run, and each run has its outcome.
func cronScenario() *scenario {
	const at, members = "/sim/jobs", 3
	tt := coord.Every(40 * time.Millisecond)
	return &scenario{
		name: "schedule", share: 5, clients: members, dir: at + "/" + layout.LeaderName,
		must: []string{"grant", "loss", "another attempt", "asked", "paused", "failed", "fenced write", "closed", "cancel", "outsider's delete"},
		play: func(x *sim) {
			p := &cronPlay{called: make(map[string]bool), more: make(chan struct{})}
			fin, finish := context.WithCancel(context.Background())
			for i := range members {
				x.act("member", i, func(a *actor) {
					run := func(ctx context.Context) {
						o := &coord.ScheduleOptions{ID: a.name, Attempts: 1 + int(x.arbiter.seed%3), History: 5}
						err := coord.NewSchedule(a.client(), at, tt, o).Run(ctx, func(ctx context.Context, r *coord.Run) error {
							x.takes(a, at, r.Hold, false)
							p.begins(x, r)
							x.works(a, at, r.Hold, 4)
							x.heard(r.Hold)
							x.gives(at, r.Hold)
							x.ended(r.Hold)
							if a.r.IntN(4) == 0 {
								a.note("failed")
								return errors.New("failed")
							}
							return ctx.Err()
						})
						if err != nil && !a.excused(err) {
							a.errorf("run: %v", err)
						}
						a.pause()
					}
					for round := range 1 + i {
						a.linger(5)
						ctx, done := a.context()
						ctx, stop := context.WithTimeout(ctx, time.Duration(50+a.r.IntN(400))*time.Millisecond+time.Duration(10*i+round))
						run(ctx)
						stop()
						done()
					}
					for fin.Err() == nil {
						run(fin)
					}
				})
			}
			operated := make(chan struct{})
			x.act("operator", 0, func(a *actor) {
				defer close(operated)
				for range 2 {
					a.linger(30)
					s := coord.NewSchedule(a.client(), at, nil, nil)
					certain := func(err error) error {
						if errors.Is(err, coord.ErrUncertain) {
							return nil // it may have been done
						}
						return err
					}
					if a.try("pause", func(ctx context.Context) error { return certain(s.Pause(ctx)) }) {
						a.note("paused")
					}
					a.try("run now", func(ctx context.Context) error {
						_, err := s.RunNow(ctx)
						return certain(err)
					})
					a.linger(10)
				}
			})
			x.act("judge", -1, func(a *actor) {
				<-x.calm
				<-operated
				s := coord.NewSchedule(x.slots[1].client(), at, nil, nil)
				if err := s.Resume(context.Background()); err != nil && !errors.Is(err, coord.ErrClosed) {
					a.errorf("resume: %v", err)
				}
				p.await(x, 3)
				finish()
			})
			x.ending = func() {
				finish()
				x.empty(at + "/" + layout.LeaderName)
				names, _, err := x.truth.Children(context.Background(), at, nil)
				for _, name := range names {
					if strings.HasPrefix(name, "run-") {
						x.errorf("left behind: %s", name)
					}
				}
				data, _, err2 := x.truth.Get(context.Background(), at+"/"+layout.StateName, nil)
				st, err3 := layout.ParseScheduleState(data)
				if err := errors.Join(err, err2, err3); err != nil {
					x.errorf("the state: %v", err)
				}
				if len(st.Runs) > 5+2 {
					x.errorf("the history has %d runs", len(st.Runs))
				}
			}
		},
	}
}

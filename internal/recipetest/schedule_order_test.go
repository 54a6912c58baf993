package recipetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/coordtest"
	"github.com/go-coord/coord/trace"
)

// The leader writes the state, or others do, while the schedule is paused. So the clock of its session differs by
// some milliseconds from that by which Resume is called.
func TestSchedule_NoPlannedTimeOfAPauseRunsAfterwards(t *testing.T) {
	for _, missed := range []coord.Missed{coord.MissedSkip, coord.MissedOnce, coord.MissedAll} {
		for _, event := range []string{"none", "a run that is asked for", "a second pause", "the end of a run", "a lost session"} {
			t.Run(fmt.Sprint(missed, ", ", event), func(t *testing.T) {
				onMemory(t, func(w *world) {
					x := w.roster(coord.Every(time.Minute), coord.ScheduleOptions{Missed: missed, Attempts: 2})
					a := w.Open("a", nil)
					x.start(a, "a", func(ctx context.Context, r *coord.Run) error {
						if event != "the end of a run" || r.Attempt > 1 {
							return nil
						}
						select {
						case <-time.After(90 * time.Second):
						case <-ctx.Done():
						}
						return errors.New("it took long")
					})
					s := coord.NewSchedule(w.Open("operator", nil), "/s", nil, nil)
					sleepUntil(oclock("00:01:05"))
					x.must(s.Pause(w.T.Context()))
					sleepUntil(oclock("00:02:10"))
					switch event {
					case "a run that is asked for":
						_, err := s.RunNow(w.T.Context())
						x.must(err)
					case "a second pause":
						x.must(s.Pause(w.T.Context()))
					case "a lost session":
						w.Link("a").Expire((<-a.WatchState(w.T.Context())).Session)
					}
					sleepUntil(oclock("00:03:10"))
					x.must(s.Resume(w.T.Context()))
					sleepUntil(oclock("00:04:10"))
					ran := false
					for _, r := range x.await(1) {
						if !r.asked && r.planned.After(oclock("00:01:05")) && r.planned.Before(oclock("00:03:10")) {
							w.T.Errorf("%v ran, which was planned in the pause", r)
						}
						ran = ran || r.planned.Equal(oclock("00:04:00"))
					}
					if !ran {
						w.T.Error("00:04:00 did not run")
					}
				})
			})
		}
	}
}

// The claims of runs that are asked for after a long time without a write are not made in the order of the times that
// the clock of the session shows.
func TestSchedule_PreviousIsTheRunThatEndedLast(t *testing.T) {
	onMemory(t, func(w *world) {
		x := w.roster(coord.Every(24*time.Hour), coord.ScheduleOptions{})
		var mu sync.Mutex
		var ended time.Time
		x.start(w.Open("a", nil), "a", func(_ context.Context, r *coord.Run) error {
			mu.Lock()
			defer mu.Unlock()
			if !r.Previous.Planned.Equal(ended) {
				w.T.Errorf("the run before %v is %v, want %v", r.Planned, r.Previous.Planned, ended)
			}
			ended = r.Planned
			return nil
		})
		s := coord.NewSchedule(w.Open("operator", nil), "/s", nil, nil)
		sleepUntil(oclock("10:00:00"))
		for range 5 {
			_, err := s.RunNow(w.T.Context())
			x.must(err)
		}
		x.await(5)
	})
}

func TestSchedule_TheHistoryHasTheRunsThatEndedLast(t *testing.T) {
	onMemory(t, func(w *world) {
		x := w.roster(coord.Every(time.Minute), coord.ScheduleOptions{History: 3, Overlap: 2})
		a := w.Open("a", nil)
		x.start(a, "a", func(_ context.Context, r *coord.Run) error {
			switch {
			case r.Planned.Equal(oclock("00:01:00")):
				sleepUntil(oclock("00:06:20"))
				return errors.New("no space in the warehouse")
			case r.Planned.Equal(oclock("00:07:00")) && r.Previous.Error == "":
				w.T.Errorf("the run before is %+v", r.Previous)
			}
			return nil
		})
		sleepUntil(oclock("00:06:30"))
		if got := x.outcome(a, oclock("00:01:00"), 1); got.Outcome != trace.RunFailed {
			w.T.Errorf("%+v", got)
		}
		x.await(7)
		sleepUntil(oclock("00:09:30"))
		if st := x.state(a); len(st.Runs) != 3 || !st.Runs[0].Planned.Equal(oclock("00:07:00")) {
			w.T.Errorf("%+v", st.Runs)
		}
	})
}

// The function panics after the ctx of Run has ended. The run has failed, and no other process repeats it.
func TestSchedule_APanicAfterTheEndOfTheContextHasFailed(t *testing.T) {
	onMemory(t, func(w *world) {
		x := w.roster(coord.Every(time.Hour), coord.ScheduleOptions{Attempts: 2})
		stop := x.start(w.Open("a", nil), "a", func(ctx context.Context, _ *coord.Run) error {
			<-ctx.Done()
			panic("work")
		})
		x.await(1)
		b := w.Open("b", nil)
		x.start(b, "b", nil)
		x.must(stop())
		if got := x.outcome(b, oclock("01:00:00"), 1); got.Outcome != trace.RunFailed || got.Error != "the function panicked (string)" {
			w.T.Errorf("%+v", got)
		}
		if runs := x.await(2); !runs[1].planned.Equal(oclock("02:00:00")) {
			w.T.Errorf("%v", runs)
		}
	})
}

func TestSchedule_LastIsTheLatestPlannedTime(t *testing.T) {
	onMemory(t, func(w *world) {
		x := w.roster(coord.Every(time.Minute), coord.ScheduleOptions{Attempts: 2, Overlap: 2})
		a := w.Open("a", nil)
		x.start(a, "a", func(_ context.Context, r *coord.Run) error {
			if r.Planned.Equal(oclock("00:01:00")) && r.Attempt == 1 {
				sleepUntil(oclock("00:02:30"))
				return r.Release()
			}
			return nil
		})
		x.await(3)
		if st := x.state(a); !st.Last.Equal(oclock("00:02:00")) || !st.Runs[len(st.Runs)-1].Planned.Equal(oclock("00:01:00")) {
			w.T.Errorf("%+v", st)
		}
	})
}

// Run ends between the claim and the call of the function. The process that calls it reports the planned times that the claim has left out.
func TestSchedule_MissedPlannedTimesOfAReturnedClaimAreReported(t *testing.T) {
	onMemory(t, func(w *world) {
		x := w.roster(coord.Every(time.Minute), coord.ScheduleOptions{Missed: coord.MissedOnce})
		first := x.start(w.Open("first", nil), "first", nil)
		x.await(1)
		x.must(first())
		sleepUntil(oclock("00:05:30"))
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		a := w.Open("a", beforeScheduledClaim(func([]backend.Op) { cancel() }))
		x.must(coord.NewSchedule(a, "/s", x.tt, &x.o).Run(ctx, func(context.Context, *coord.Run) error {
			w.T.Error("the function is called")
			return nil
		}))
		if got := x.outcome(a, oclock("00:05:00"), 1); got.Outcome != trace.RunReturned {
			w.T.Errorf("%+v", got)
		}
		var mu sync.Mutex
		var missed []int
		b := coordtest.Open(w.T, w.Link("b"), &coord.Options{Namespace: w.Path(""), Trace: func(_ context.Context, e trace.Event) {
			if began, ok := e.(trace.RunBegan); ok {
				mu.Lock()
				defer mu.Unlock()
				missed = append(missed, began.Missed)
			}
		}})
		x.start(b, "b", nil)
		if got, want := texts(x.await(3)[1:]), "b 00:05:00.000, b 00:06:00.000"; got != want {
			w.T.Errorf("ran: %s; want %s", got, want)
		}
		w.Settle()
		mu.Lock()
		defer mu.Unlock()
		if want := []int{3, 0}; !slices.Equal(missed, want) {
			w.T.Errorf("missed %v, want %v", missed, want)
		}
	})
}

package recipetest

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/go-coord/coord"
)

// The session has written last at the end of the run before. Both clocks run equally fast, which halves what is documented, and a request
// takes no time.
func TestSchedule_ARunBeginsLateByTheDriftOfClocksAtMost(t *testing.T) {
	for every, drift := range map[time.Duration]time.Duration{
		time.Minute:     12 * time.Millisecond,
		4 * time.Minute: 48 * time.Millisecond,
		time.Hour:       50 * time.Millisecond,
	} {
		onMemory(t, func(w *world) {
			x := w.roster(coord.Every(every), coord.ScheduleOptions{})
			var mu sync.Mutex
			var late time.Duration
			x.start(w.Open("a", nil), "a", func(_ context.Context, r *coord.Run) error {
				mu.Lock()
				defer mu.Unlock()
				late = max(late, time.Since(r.Planned))
				return nil
			})
			x.await(5)
			mu.Lock()
			defer mu.Unlock()
			if w.T.Logf("each %v, late by %v", every, late); late > drift+2*time.Millisecond { // stamps are whole milliseconds
				w.T.Errorf("late by %v, want at most %v", late, drift)
			}
		})
	}
}

// The clock of an operator is ahead. Its run begins at once, and the planned times run in time.
func TestSchedule_ARunAskedForByAClockThatIsAheadBeginsAtOnce(t *testing.T) {
	onClockless(t, func(w *world) {
		x := w.roster(coord.Every(time.Minute), coord.ScheduleOptions{})
		x.start(w.Open("right", nil), "right", nil)
		x.await(1)
		w.Skew = 5 * time.Minute
		s := coord.NewSchedule(w.Open("ahead", nil), "/s", nil, nil)
		sleepUntil(oclock("00:01:10"))
		asked, err := s.RunNow(w.T.Context())
		x.must(err)
		runs := x.await(2)
		if now := time.Now(); !runs[1].asked || !runs[1].planned.Equal(asked) || now.After(oclock("00:01:11")) {
			w.T.Errorf("%v at %v", runs, now)
		}
		if st := x.state(w.Open("c", nil)); len(st.Runs) < 2 || st.Runs[1].Began.After(oclock("00:01:11")) {
			w.T.Errorf("%+v", st.Runs)
		}
		if got, want := texts(x.await(4)[2:]), "right 00:02:00.000, right 00:03:00.000"; got != want || time.Now().After(oclock("00:03:01")) {
			w.T.Errorf("ran: %s at %v; want %s", got, time.Now(), want)
		}
	})
}

// A process whose clock is ahead dies in a run. The next attempt is made when the planned time has come, and keeps no other planned
// time from running.
func TestSchedule_AnotherAttemptOfAClockThatIsAheadBlocksNothing(t *testing.T) {
	onClockless(t, func(w *world) {
		x := w.roster(coord.Every(time.Minute), coord.ScheduleOptions{Attempts: 2})
		w.Skew = 5 * time.Minute
		x.start(w.Open("ahead", nil), "ahead", func(ctx context.Context, _ *coord.Run) error {
			w.Link("ahead").Partition()
			<-ctx.Done()
			return ctx.Err()
		})
		x.await(1)
		w.Skew = 0
		x.start(w.Open("right", nil), "right", nil)
		for n, want := range []string{"right 00:02:00.000", "right 00:03:00.000", "right 00:04:00.000", "right 00:05:00.000", "right 00:06:00.000 attempt 2", "right 00:07:00.000"} {
			run := x.await(n + 2)[n+1]
			if late := time.Since(run.planned); run.String() != want || late < 0 || late > time.Second {
				w.T.Errorf("ran: %v, late by %v; want %s", run, late, want)
			}
		}
	})
}

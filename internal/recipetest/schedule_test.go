package recipetest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/backend/memory"
	"github.com/go-coord/coord/internal/coordtest"
	"github.com/go-coord/coord/trace"
)

// daily is a Timetable for one time of each day, by the clocks of a zone.
type daily struct {
	hour, minute int
	at           *time.Location
}

func (d daily) Next(t time.Time) time.Time {
	// As the parsers of cron expressions do, it goes from minute to minute by the clocks.
	for t = t.Truncate(time.Minute).Add(time.Minute); ; t = t.Add(time.Minute) {
		if l := t.In(d.at); l.Hour() == d.hour && l.Minute() == d.minute {
			return t
		}
	}
}

// onClockless runs a test on a store in memory that has no clock.
func onClockless(t *testing.T, f func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		st := memory.New(&memory.Options{SessionTimeout: coordtest.WorldTimeout, Without: backend.Clock})
		f(&world{&coordtest.World{Service: coordtest.MemoryService{Store: st}, T: t, Timeout: coordtest.WorldTimeout, Fake: true, Without: backend.Clock}})
	})
}

func texts(runs []ran) string {
	var all []string
	for _, r := range runs {
		all = append(all, r.String())
	}
	return strings.Join(all, ", ")
}

// The time in a bubble begins at midnight UTC.
func oclock(text string) time.Time {
	t, err := time.Parse("15:04:05", text)
	if err != nil {
		panic(err)
	}
	return time.Date(2000, 1, 1, t.Hour(), t.Minute(), t.Second(), 0, time.UTC)
}

func sleepUntil(t time.Time) { time.Sleep(time.Until(t)) }

// The table of docs/schedules.md: what ran, and what was refused.
func TestSchedule_WhatRanAndWhatWasRefused(t *testing.T) {
	t.Run("paused holder", func(t *testing.T) {
		onMemory(t, func(w *world) {
			x := w.roster(coord.Every(time.Minute), coord.ScheduleOptions{})
			late := make(chan error, 1)
			a := w.Open("a", nil)
			x.start(a, "a", func(ctx context.Context, r *coord.Run) error {
				if !r.Planned.Equal(oclock("00:02:00")) {
					return nil
				}
				w.Link("a").Partition()
				sleepUntil(oclock("00:04:30")) // paused: it looks at nothing
				w.Link("a").Heal()
				_, err := coord.NewTxn(a).Under(r.Guard()).Create("/late", nil, backend.Persistent).Commit(context.Background())
				late <- err
				return nil
			})
			x.await(1)
			b := w.Open("b", nil)
			x.start(b, "b", nil)
			runs := x.await(5)
			coordtest.WantErr(w.T, <-late, coord.ErrFenced)
			if got, want := texts(runs), "a 00:01:00.000, a 00:02:00.000, b 00:03:00.000, b 00:04:00.000, b 00:05:00.000"; got != want {
				w.T.Errorf("ran: %s; want %s", got, want)
			}
			if r := x.outcome(b, oclock("00:02:00"), 1); r.Outcome != trace.RunAbandoned {
				w.T.Errorf("%+v", r)
			}
		})
	})
	t.Run("killed holder", func(t *testing.T) {
		onMemory(t, func(w *world) {
			x := w.roster(coord.Every(time.Minute), coord.ScheduleOptions{Attempts: 2})
			a := w.Open("a", nil)
			x.start(a, "a", func(ctx context.Context, r *coord.Run) error {
				if r.Planned.Equal(oclock("00:02:00")) {
					w.Link("a").Partition()
					<-ctx.Done()
				}
				return ctx.Err()
			})
			x.await(1)
			x.start(w.Open("b", nil), "b", nil)
			if got, want := texts(x.await(4)), "a 00:01:00.000, a 00:02:00.000, b 00:02:00.000 attempt 2, b 00:03:00.000"; got != want {
				w.T.Errorf("ran: %s; want %s", got, want)
			}
		})
	})
	t.Run("two clocks five minutes apart", func(t *testing.T) {
		onClockless(t, func(w *world) {
			x := w.roster(coord.Every(time.Minute), coord.ScheduleOptions{})
			w.Skew = 5 * time.Minute
			stop := x.start(w.Open("ahead", nil), "ahead", nil)
			x.await(2) // 00:06 and 00:07 by its clock, at 00:01 and 00:02
			w.Skew = 0
			right := w.Open("right", nil)
			x.start(right, "right", nil)
			x.must(stop())
			runs := x.await(9)
			if got, want := texts(runs), "ahead 00:06:00.000, ahead 00:07:00.000, "+
				"right 00:03:00.000, right 00:04:00.000, right 00:05:00.000, "+ // 00:06 and 00:07 are refused
				"right 00:08:00.000, right 00:09:00.000, right 00:10:00.000, right 00:11:00.000"; got != want {
				w.T.Errorf("ran: %s; want %s", got, want)
			}
			if now := time.Now(); !now.Equal(oclock("00:11:00")) {
				w.T.Errorf("it took until %v", now)
			}
		})
	})
	t.Run("two clocks five minutes apart on a service with a clock", func(t *testing.T) {
		onMemory(t, func(w *world) {
			x := w.roster(coord.Every(time.Minute), coord.ScheduleOptions{})
			w.Skew = 5 * time.Minute
			stop := x.start(w.Open("ahead", nil), "ahead", nil)
			x.await(2)
			w.Skew = -5 * time.Minute
			x.start(w.Open("behind", nil), "behind", nil)
			x.must(stop())
			if got, want := texts(x.await(4)), "ahead 00:01:00.000, ahead 00:02:00.000, behind 00:03:00.000, behind 00:04:00.000"; got != want {
				w.T.Errorf("ran: %s; want %s", got, want)
			}
			if late := time.Since(oclock("00:04:00")); late < 0 || late > time.Second {
				w.T.Errorf("late by %v", late)
			}
		})
	})
	for _, tc := range []struct {
		name string
		from time.Time
		once bool
		want []string // of the first runs, UTC
	}{
		{"the clocks are set forward", time.Date(2000, 3, 25, 0, 0, 0, 0, time.UTC), false, []string{"25 01:30", "27 00:30", "28 00:30"}},
		{"the clocks are set back", time.Date(2000, 10, 28, 0, 0, 0, 0, time.UTC), false, []string{"28 00:30", "29 00:30", "29 01:30", "30 01:30"}},
		{"the clocks are set back, once per reading", time.Date(2000, 10, 28, 0, 0, 0, 0, time.UTC), true, []string{"28 00:30", "29 00:30", "30 01:30"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			onMemory(t, func(w *world) {
				berlin, err := time.LoadLocation("Europe/Berlin")
				if err != nil {
					w.T.Fatal(err)
				}
				var tt coord.Timetable = daily{2, 30, berlin}
				if tc.once {
					tt = coord.OncePerReading(tt, berlin)
				}
				sleepUntil(tc.from)
				x := w.roster(tt, coord.ScheduleOptions{})
				// Three processes, of which the first two end in the middle.
				a := x.start(w.Open("a", nil), "a", nil)
				b := x.start(w.Open("b", nil), "b", nil)
				x.start(w.Open("c", nil), "c", nil)
				x.await(1)
				x.must(a())
				x.await(2)
				x.must(b())
				var got []string
				for _, r := range x.await(len(tc.want)) {
					got = append(got, r.planned.UTC().Format("02 15:04"))
				}
				if !slices.Equal(got, tc.want) {
					w.T.Errorf("ran at %v, want %v", got, tc.want)
				}
			})
		})
	}
}

// A clock that is years ahead blocks nothing, and no planned time runs twice.
func TestSchedule_AClockThatIsAheadBlocksNothing(t *testing.T) {
	onClockless(t, func(w *world) {
		x := w.roster(coord.Every(time.Minute), coord.ScheduleOptions{Missed: coord.MissedOnce})
		x.start(w.Open("right", nil), "right", nil)
		x.await(2)
		w.Skew = 3 * 365 * 24 * time.Hour
		ahead := w.Open("ahead", nil)
		stop := x.start(ahead, "ahead", nil)
		w.Link("right").Partition()
		x.await(4) // one that it takes for missed, and one that has come by its clock
		w.Skew = 0
		x.start(w.Open("other", nil), "other", nil)
		w.Link("right").Heal()
		x.must(stop())
		runs := x.await(8)[4:]
		for i, r := range runs {
			if r.by == "ahead" || i > 0 && r.planned.Sub(runs[i-1].planned) != time.Minute || time.Since(r.planned) > 5*time.Minute {
				w.T.Errorf("%v, at %v", runs, time.Now())
			}
		}
	})
}

func TestSchedule_MissedPlannedTimes(t *testing.T) {
	for _, tc := range []struct {
		name string
		o    coord.ScheduleOptions
		back time.Duration // when the schedule runs again, after midnight
		want string
	}{
		{"skip", coord.ScheduleOptions{}, 10*time.Minute + 59*time.Second, "00:01, 00:10, 00:11"},
		{"skip beyond the grace", coord.ScheduleOptions{Grace: 30 * time.Second}, 10*time.Minute + 31*time.Second, "00:01, 00:11, 00:12"},
		{"once", coord.ScheduleOptions{Missed: coord.MissedOnce, Grace: time.Second}, 10*time.Minute + 31*time.Second, "00:01, 00:10, 00:11"},
		{"all up to three", coord.ScheduleOptions{Missed: coord.MissedAll, MissedLimit: 3}, 10*time.Minute + 31*time.Second, "00:01, 00:08, 00:09, 00:10, 00:11"},
		{"all", coord.ScheduleOptions{Missed: coord.MissedAll}, 5*time.Minute + 31*time.Second, "00:01, 00:02, 00:03, 00:04, 00:05, 00:06"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			onMemory(t, func(w *world) {
				x := w.roster(coord.Every(time.Minute), tc.o)
				a := x.start(w.Open("a", nil), "a", nil)
				x.await(1)
				x.must(a())
				sleepUntil(oclock("00:00:00").Add(tc.back))
				x.start(w.Open("b", nil), "b", nil)
				var got []string
				for _, r := range x.await(strings.Count(tc.want, ",") + 1) {
					got = append(got, r.planned.UTC().Format("15:04"))
				}
				if strings.Join(got, ", ") != tc.want {
					w.T.Errorf("ran: %v, want %v", got, tc.want)
				}
			})
		})
	}
}

// A planned time that passes before the first run counts as missed from the moment at which the schedule began.
func TestSchedule_APlannedTimeBeforeTheFirstRunIsNotForgotten(t *testing.T) {
	onMemory(t, func(w *world) {
		x := w.roster(coord.Every(time.Hour), coord.ScheduleOptions{Missed: coord.MissedOnce})
		sleepUntil(oclock("00:30:00"))
		a := x.start(w.Open("a", nil), "a", nil)
		sleepUntil(oclock("00:59:00"))
		x.must(a())
		sleepUntil(oclock("01:30:00"))
		x.start(w.Open("b", nil), "b", nil)
		if got, want := texts(x.await(2)), "b 01:00:00.000, b 02:00:00.000"; got != want {
			w.T.Errorf("ran: %s; want %s", got, want)
		}
	})
}

func TestSchedule_RunsOverlapOnlyByOption(t *testing.T) {
	for overlap, want := range map[int]string{
		1: "a 00:01:00.000, a 00:04:00.000, a 00:07:00.000", // each lasts 2 min 30 s, with a grace of 1 min
		2: "a 00:01:00.000, a 00:02:00.000, a 00:04:00.000",
		3: "a 00:01:00.000, a 00:02:00.000, a 00:03:00.000, a 00:04:00.000",
	} {
		onMemory(t, func(w *world) {
			x := w.roster(coord.Every(time.Minute), coord.ScheduleOptions{Overlap: overlap, Grace: time.Second})
			var n, most atomic.Int32
			x.start(w.Open("a", nil), "a", func(ctx context.Context, r *coord.Run) error {
				if now := n.Add(1); now > most.Load() {
					most.Store(now)
				}
				defer n.Add(-1)
				time.Sleep(2*time.Minute + 30*time.Second)
				return nil
			})
			x.await(1)
			x.start(w.Open("b", nil), "b", nil)
			runs := x.await(strings.Count(want, ",") + 1)
			if got := texts(runs); got != want || int(most.Load()) != overlap {
				w.T.Errorf("overlap %d: %d at a time; ran: %s; want %s", overlap, most.Load(), got, want)
			}
		})
	}
}

// If Run ends while a function runs, the function has the time to return, and another process runs the planned
// time again if Attempts allows.
func TestSchedule_AProcessThatStopsHandsItsRunOver(t *testing.T) {
	for attempts, want := range map[int]string{
		1: "a 00:01:00.000, b 00:02:00.000",
		2: "a 00:01:00.000, b 00:01:00.000 attempt 2, b 00:02:00.000",
	} {
		onMemory(t, func(w *world) {
			x := w.roster(coord.Every(time.Minute), coord.ScheduleOptions{Attempts: attempts})
			a := x.start(w.Open("a", nil), "a", func(ctx context.Context, r *coord.Run) error {
				<-ctx.Done()
				time.Sleep(time.Second)
				if err := r.Err(); err != nil {
					w.T.Errorf("the claim has ended: %v", err)
				}
				return context.Cause(ctx)
			})
			x.await(1)
			b := w.Open("b", nil)
			x.start(b, "b", nil)
			x.must(a())
			if got := texts(x.await(strings.Count(want, ",") + 1)); got != want {
				w.T.Errorf("%d attempts: ran: %s; want %s", attempts, got, want)
			}
			if r := x.outcome(b, oclock("00:01:00"), 1); r.Outcome != trace.RunAbandoned || r.Error != "context canceled" || r.Took != time.Since(oclock("00:01:00")).Truncate(time.Second) && r.Took != time.Second {
				w.T.Errorf("%+v", r)
			}
		})
	}
}

// A function that has lost its claim, and does not return, keeps its process from running another. It does not keep others from it.
func TestSchedule_AFunctionThatDoesNotReturnBlocksOnlyItsProcess(t *testing.T) {
	onMemory(t, func(w *world) {
		x := w.roster(coord.Every(time.Minute), coord.ScheduleOptions{Missed: coord.MissedOnce})
		until := make(chan struct{})
		a := w.Open("a", nil)
		var called atomic.Bool
		x.start(a, "a", func(ctx context.Context, r *coord.Run) error {
			if called.Swap(true) {
				return nil
			}
			s := w.Session("operator")
			if _, err := s.Commit(ctx, backend.Delete(r.Path(), backend.AnyVersion)); err != nil {
				w.T.Error(err)
			}
			<-ctx.Done()
			if !errors.Is(context.Cause(ctx), coord.ErrDeleted) {
				w.T.Error(context.Cause(ctx))
			}
			<-until
			return nil
		})
		x.await(1)
		b := x.start(w.Open("b", nil), "b", nil)
		if got, want := texts(x.await(3)), "a 00:01:00.000, b 00:02:00.000, b 00:03:00.000"; got != want {
			w.T.Errorf("ran: %s; want %s", got, want)
		}
		x.must(b())
		sleepUntil(oclock("00:05:30"))
		if n := len(x.await(3)); n != 3 {
			w.T.Errorf("%d runs beside a function that has lost its claim", n)
		}
		close(until)
		if got, want := texts(x.await(4)[3:]), "a 00:05:00.000"; got != want {
			w.T.Errorf("ran: %s; want %s", got, want)
		}
	})
}

// Run refuses bad options and timetables at once, also while another process leads.
func TestSchedule_BadOptionsAndTimetablesAreRefused(t *testing.T) {
	onMemory(t, func(w *world) {
		c := w.Open("a", nil)
		every := coord.Every(time.Minute)
		nop := func(context.Context, *coord.Run) error { return nil }
		lead, resign := context.WithCancel(w.T.Context())
		led := make(chan error, 1)
		go func() { led <- coord.NewSchedule(w.Open("b", nil), "/s", every, nil).Run(lead, nop) }()
		defer func() {
			resign()
			if err := <-led; err != nil {
				w.T.Error(err)
			}
		}()
		w.Settle()
		soon, cancel := context.WithTimeout(w.T.Context(), time.Hour)
		defer cancel()
		for name, s := range map[string]*coord.Schedule{
			"no timetable": coord.NewSchedule(c, "/s", nil, nil),
			"no interval":  coord.NewSchedule(c, "/s", coord.Every(0), nil),
			"short":        coord.NewSchedule(c, "/s", coord.Every(time.Millisecond-1), nil),
			"backwards":    coord.NewSchedule(c, "/s", timetable(func(t time.Time) time.Time { return t.Add(-time.Second) }), nil),
			"panics":       coord.NewSchedule(c, "/s", timetable(func(time.Time) time.Time { panic("no time") }), nil),
			"ID":           coord.NewSchedule(c, "/s", every, &coord.ScheduleOptions{ID: "\xff"}),
			"Missed":       coord.NewSchedule(c, "/s", every, &coord.ScheduleOptions{Missed: 3}),
			"MissedLimit":  coord.NewSchedule(c, "/s", every, &coord.ScheduleOptions{MissedLimit: 1001}),
			"Grace":        coord.NewSchedule(c, "/s", every, &coord.ScheduleOptions{Grace: -1}),
			"Overlap":      coord.NewSchedule(c, "/s", every, &coord.ScheduleOptions{Overlap: -1}),
			"Attempts":     coord.NewSchedule(c, "/s", every, &coord.ScheduleOptions{Attempts: -1}),
			"History":      coord.NewSchedule(c, "/s", every, &coord.ScheduleOptions{History: 101}),
		} {
			if err := s.Run(soon, nop); !errors.Is(err, coord.ErrInvalid) {
				w.T.Errorf("%s: %v", name, err)
			}
		}
		want := "coord: run /s: invalid argument: Every(0s) as the Timetable, want at least 1ms"
		if err := coord.NewSchedule(c, "/s", coord.Every(0), nil).Run(soon, nop); err == nil || err.Error() != want {
			w.T.Errorf("%v, want %s", err, want)
		}
		coordtest.WantErr(w.T, coord.NewSchedule(c, "s", every, nil).Run(w.T.Context(), nop), coord.ErrBadPath)
		coordtest.WantErr(w.T, coord.NewSchedule(c, "s", every, nil).Pause(w.T.Context()), coord.ErrBadPath)
		never := coord.NewSchedule(c, "/never", timetable(func(time.Time) time.Time { return time.Time{} }), nil)
		ctx, cancel := context.WithTimeout(w.T.Context(), 100*time.Hour)
		defer cancel()
		if err := never.Run(ctx, nop); err != nil {
			w.T.Error(err)
		}
	})
}

// State has all but Next if the Timetable fails.
func TestSchedule_StateOfATimetableThatFails(t *testing.T) {
	onMemory(t, func(w *world) {
		c := w.Open("a", nil)
		if _, err := coord.NewSchedule(c, "/s", nil, nil).RunNow(w.T.Context()); err != nil {
			w.T.Fatal(err)
		}
		for name, tt := range map[string]timetable{
			"backwards": func(t time.Time) time.Time { return t.Add(-time.Second) },
			"panics":    func(time.Time) time.Time { panic("no time") },
			"exits":     func(time.Time) time.Time { runtime.Goexit(); panic("unreachable") },
		} {
			st, err := coord.NewSchedule(c, "/s", tt, nil).State(w.T.Context())
			if !errors.Is(err, coord.ErrInvalid) || len(st.Asked) != 1 || !st.Next.IsZero() {
				w.T.Errorf("%s: %+v, %v", name, st, err)
			}
		}
	})
}

type timetable func(time.Time) time.Time

func (f timetable) Next(t time.Time) time.Time { return f(t) }

// On a service with a clock that runs faster than that of the process, and after a long time without a write, the claim
// is made early. The function is not called before the planned time.
func TestSchedule_NoFunctionIsCalledEarly(t *testing.T) {
	onMemory(t, func(w *world) {
		x := w.roster(coord.Every(30*24*time.Hour), coord.ScheduleOptions{})
		x.start(w.Open("a", nil), "a", func(ctx context.Context, r *coord.Run) error {
			if d := time.Since(r.Planned); d < 0 || d > 10*time.Millisecond {
				w.T.Errorf("called %v after the planned time", d)
			}
			return nil
		})
		x.await(3)
	})
}

// If Run ends between the claim and the planned time, another process has the first attempt.
func TestSchedule_AClaimIsReturnedIfTheFunctionWasNotCalled(t *testing.T) {
	onMemory(t, func(w *world) {
		x := w.roster(coord.Every(30*24*time.Hour), coord.ScheduleOptions{})
		a := w.Open("a", nil)
		stop := x.start(a, "a", nil)
		var claimed coord.RunRecord
		for claimed.Attempt == 0 {
			time.Sleep(30 * time.Second)
			if st := x.state(a); len(st.Runs) > 0 {
				claimed = st.Runs[0]
			}
		}
		if !time.Now().Before(claimed.Planned) {
			w.T.Fatalf("claimed at %v", time.Now())
		}
		x.must(stop())
		b := w.Open("b", nil)
		x.start(b, "b", nil)
		if runs := x.await(1); runs[0].by != "b" || runs[0].attempt != 1 || !runs[0].planned.Equal(claimed.Planned) {
			w.T.Errorf("%v after the claim %v", runs, claimed)
		}
		if st := x.state(b); len(st.Runs) < 2 || st.Runs[0].Outcome != trace.RunReturned {
			w.T.Errorf("%+v", st)
		}
	})
}

// The history is bounded, and so is the data of the schedule.
func TestSchedule_TheHistoryIsBounded(t *testing.T) {
	onMemory(t, func(w *world) {
		x := w.roster(coord.Every(time.Minute), coord.ScheduleOptions{History: 3})
		c := w.Open("a", nil)
		long := strings.Repeat("ü", 1000)
		x.start(c, "a", func(context.Context, *coord.Run) error { return fmt.Errorf("%s", long) })
		x.await(30)
		synctest.Wait()
		runs := x.state(c).Runs
		if len(runs) != 3 || !runs[2].Planned.Equal(oclock("00:30:00")) || len(runs[2].Error) > 210 {
			w.T.Errorf("%+v", runs)
		}
	})
}

// beforeScheduledClaim returns hooks that call f before the first commit that claims a planned time.
func beforeScheduledClaim(f func(ops []backend.Op)) *backendtest.Hooks {
	var done atomic.Bool
	return &backendtest.Hooks{Before: func(_ context.Context, c backendtest.Call) error {
		claims := slices.ContainsFunc(c.Ops, func(op backend.Op) bool { return op.Mode == backend.Ephemeral })
		if claims && coordtest.Commits(c, backend.OpCheck) && !done.Swap(true) {
			f(c.Ops)
		}
		return nil
	}}
}

// The term of a leader ends before its claim is committed, and the leader does not know it.
func TestSchedule_ALeaderWhoseTermHasEndedClaimsNothing(t *testing.T) {
	onMemory(t, func(w *world) {
		x := w.roster(coord.Every(time.Minute), coord.ScheduleOptions{})
		x.start(w.Open("a", beforeScheduledClaim(func(ops []backend.Op) {
			if _, err := w.Session("operator").Commit(context.Background(), backend.Delete(ops[0].Path, backend.AnyVersion)); err != nil {
				w.T.Error(err)
			}
		})), "a", nil)
		n := w.Waits.Load()
		x.start(w.Open("b", nil), "b", nil)
		w.Eventually("the second process waits", func() bool { return w.Waits.Load() > n })
		if got, want := texts(x.await(2)), "b 00:01:00.000, b 00:02:00.000"; got != want {
			w.T.Errorf("ran: %s; want %s", got, want)
		}
	})
}

// A pause that returns before the claim is committed keeps the planned time from running.
func TestSchedule_APauseBeforeTheClaimCounts(t *testing.T) {
	onMemory(t, func(w *world) {
		x := w.roster(coord.Every(time.Minute), coord.ScheduleOptions{})
		operator := coord.NewSchedule(w.Open("operator", nil), "/s", x.tt, nil)
		x.start(w.Open("a", beforeScheduledClaim(func([]backend.Op) { x.must(operator.Pause(context.Background())) })), "a", nil)
		sleepUntil(oclock("00:05:30"))
		x.must(operator.Resume(w.T.Context()))
		if got, want := texts(x.await(2)), "a 00:06:00.000, a 00:07:00.000"; got != want {
			w.T.Errorf("ran: %s; want %s", got, want)
		}
	})
}

// A pause also puts off another attempt. A run that was asked for is repeated all the same.
func TestSchedule_APausePutsOffAnotherAttempt(t *testing.T) {
	onMemory(t, func(w *world) {
		x := w.roster(coord.Every(time.Minute), coord.ScheduleOptions{Attempts: 2})
		c := w.Open("a", nil)
		s := coord.NewSchedule(c, "/s", x.tt, nil)
		stop := x.start(c, "a", func(ctx context.Context, r *coord.Run) error {
			<-ctx.Done()
			return ctx.Err()
		})
		x.await(1)
		x.must(s.Pause(w.T.Context()))
		x.must(stop())
		stop = x.start(c, "b", func(ctx context.Context, r *coord.Run) error {
			if r.Attempt == 1 {
				<-ctx.Done()
			}
			return ctx.Err()
		})
		asked, err := s.RunNow(w.T.Context())
		x.must(err)
		x.await(2)
		x.must(stop())
		x.start(c, "c", nil)
		if runs := x.await(3); !runs[2].asked || runs[2].attempt != 2 || !runs[2].planned.Equal(asked) {
			w.T.Errorf("while paused: %v", runs)
		}
		sleepUntil(oclock("00:10:30"))
		x.must(s.Resume(w.T.Context()))
		if got, want := texts(x.await(5)[3:]), "c 00:01:00.000 attempt 2, c 00:11:00.000"; got != want {
			w.T.Errorf("ran: %s; want %s", got, want)
		}
	})
}

// Data that is no state of a schedule is refused, and left as it is.
func TestSchedule_DataOfOthersIsRefused(t *testing.T) {
	onMemory(t, func(w *world) {
		c := w.Open("a", nil)
		s := coord.NewSchedule(c, "/s", coord.Every(time.Minute), nil)
		x := w.roster(coord.Every(time.Minute), coord.ScheduleOptions{})
		x.must(s.Pause(w.T.Context()))
		const strange = `{"since":-1}`
		session := w.Session("other")
		path := w.Path("/s/schedule-state")
		if _, err := session.Commit(w.T.Context(), backend.SetData(path, []byte(strange), backend.AnyVersion)); err != nil {
			w.T.Fatal(err)
		}
		_, err := s.State(w.T.Context())
		coordtest.WantErr(w.T, err, coord.ErrDecode)
		_, err = s.RunNow(w.T.Context())
		coordtest.WantErr(w.T, err, coord.ErrDecode)
		coordtest.WantErr(w.T, s.Resume(w.T.Context()), coord.ErrDecode)
		coordtest.WantErr(w.T, s.Run(w.T.Context(), func(context.Context, *coord.Run) error { return nil }), coord.ErrDecode)
		if data, _, err := session.Get(w.T.Context(), path, nil); err != nil || string(data) != strange {
			w.T.Errorf("now it is %s, %v", data, err)
		}
	})
}

// While the service has no space nothing is claimed, and a run that has ended keeps its claim. Afterwards its outcome is
// recorded, and planned times run again.
func TestSchedule_NoSpaceIsWaitedFor(t *testing.T) {
	onMemory(t, func(w *world) {
		st := w.Service.(coordtest.MemoryService).Store
		x := w.roster(coord.Every(time.Minute), coord.ScheduleOptions{})
		c := w.Open("a", nil)
		x.start(c, "a", func(ctx context.Context, r *coord.Run) error {
			if r.Planned.Equal(oclock("00:02:00")) {
				st.SetFull(true)
			}
			return nil
		})
		x.await(2)
		sleepUntil(oclock("00:09:30"))
		if runs := x.state(c).Runs; len(runs) != 2 || runs[1].Outcome != "" {
			w.T.Errorf("without space: %+v", runs)
		}
		st.SetFull(false)
		if got, want := texts(x.await(4)[2:]), "a 00:09:00.000, a 00:10:00.000"; got != want {
			w.T.Errorf("ran: %s; want %s", got, want)
		}
		if r := x.outcome(c, oclock("00:02:00"), 1); r.Outcome != trace.RunDone {
			w.T.Errorf("%+v", r)
		}
	})
}

// Each time that the service has no space, the log has one line for the claims, and one for the outcome of a run.
func TestSchedule_NoSpaceIsLoggedEachTime(t *testing.T) {
	onMemory(t, func(w *world) {
		st, book := w.Service.(coordtest.MemoryService).Store, &logbook{}
		x := w.roster(coord.Every(time.Minute), coord.ScheduleOptions{})
		c := coordtest.Open(w.T, st.Link("a"), &coord.Options{Logger: slog.New(book)})
		x.start(c, "a", func(ctx context.Context, r *coord.Run) error {
			if r.Planned.Equal(oclock("00:05:00")) || r.Planned.Equal(oclock("00:15:00")) {
				st.SetFull(true)
			}
			return nil
		})
		for _, c := range []struct {
			from, to, what string
			idle           bool // no run lasts when the space ends
		}{
			{"00:00:30", "00:03:30", "run a schedule", true},
			{"00:04:30", "00:08:30", "record the outcome of a run", false},
			{"00:10:30", "00:13:30", "run a schedule", true},
			{"00:14:30", "00:18:30", "record the outcome of a run", false},
		} {
			sleepUntil(oclock(c.from))
			book.take()
			if c.idle {
				st.SetFull(true)
			}
			sleepUntil(oclock(c.to))
			want := []string{"WARN cannot " + c.what + " because the service has no space, retrying"}
			if got := book.take(); !slices.Equal(got, want) {
				w.T.Errorf("from %s: logged %q, want %q", c.from, got, want)
			}
			st.SetFull(false)
		}
	})
}

// While Close waits for clean-ups, neither the leader nor a run whose outcome finds no space tries again and again.
func TestSchedule_NoSpaceAtClose(t *testing.T) {
	onMemory(t, func(w *world) {
		st, blocked, full := w.Service.(coordtest.MemoryService).Store, make(chan struct{}), make(chan struct{})
		var tries atomic.Int32
		c := w.Open("a", &backendtest.Hooks{Before: func(_ context.Context, c backendtest.Call) error {
			for _, op := range c.Ops {
				switch {
				case op.Kind == backend.OpDelete && strings.HasPrefix(op.Path, "/m/"):
					<-blocked
				case strings.HasPrefix(op.Path, "/s/") && tries.Add(1) == 3000:
					st.SetFull(false) // or time would not pass
				}
			}
			return nil
		}})
		coordtest.MustLock(w.T, coord.NewMutex(w.Open("b", nil), "/m", nil))
		ctx, cancel := context.WithCancel(context.Background())
		result := make(chan error, 1)
		go func() {
			_, err := coord.NewMutex(c, "/m", nil).Lock(ctx)
			result <- err
		}()
		w.roster(coord.Every(time.Second), coord.ScheduleOptions{Overlap: 2}).start(c, "a", func(context.Context, *coord.Run) error {
			st.SetFull(true)
			close(full)
			return nil
		})
		<-full
		cancel()
		if err := <-result; !errors.Is(err, context.Canceled) {
			w.T.Error(err)
		}
		time.AfterFunc(5*time.Second, func() { close(blocked) })
		tries.Store(0)
		c.Close()
		if n := tries.Load(); n > 50 { // operations
			w.T.Errorf("%d operations during Close", n)
		}
	})
}

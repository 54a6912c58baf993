// Package schedules runs the code of docs/moving.md for gocron and for cron under client-go's leader election, and compares
// parsers of cron expressions at a change of summer time.
package schedules

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/netresearch/go-cron"
	robfig "github.com/robfig/cron/v3"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend/memory"
	"github.com/go-coord/coord/trace"
)

// The functions stand on the page as they are here, which internal/readme checks.

func gocronBefore(ctx context.Context, locker gocron.Locker, zone *time.Location, report func(context.Context) error) error {
	s, err := gocron.NewScheduler(gocron.WithLocation(zone), gocron.WithDistributedLocker(locker))
	if err != nil {
		return err
	}
	// The lock is released when report returns. A process whose clock is behind by more than that runs it again.
	_, err = s.NewJob(gocron.CronJob("30 2 * * *", false), gocron.NewTask(report), gocron.WithName("report"))
	if err != nil {
		return err
	}
	s.Start()
	<-ctx.Done()
	return s.Shutdown()
}

func gocronAfter(ctx context.Context, c *coord.Client, zone *time.Location, report func(context.Context) error) error {
	nightly, err := cron.ParseStandard("CRON_TZ=" + zone.String() + " 30 2 * * *") // github.com/netresearch/go-cron
	if err != nil {
		return err
	}
	s := coord.NewSchedule(c, "/jobs/report", coord.OncePerReading(nightly, zone), nil)
	return s.Run(ctx, func(ctx context.Context, _ *coord.Run) error { return report(ctx) })
}

func leaderBefore(ctx context.Context, lock resourcelock.Interface, report func(context.Context)) {
	leaderelection.RunOrDie(ctx, leaderelection.LeaderElectionConfig{
		Lock: lock, LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) {
				ticks := time.NewTicker(time.Hour) // each leader starts a new interval
				defer ticks.Stop()
				for {
					select {
					case <-ticks.C:
						report(ctx) // nothing records it, so the next leader repeats it, or leaves it out
					case <-ctx.Done():
						return
					}
				}
			},
			OnStoppedLeading: func() {},
		},
	})
}

func leaderAfter(ctx context.Context, c *coord.Client, report func(context.Context)) error {
	s := coord.NewSchedule(c, "/jobs/report", coord.Every(time.Hour), &coord.ScheduleOptions{Missed: coord.MissedOnce})
	return s.Run(ctx, func(ctx context.Context, _ *coord.Run) error {
		report(ctx)
		return nil
	})
}

// held is a lock that one caller has, as a locker of gocron.
type held struct{ mu sync.Mutex }

func (h *held) Lock(context.Context, string) (gocron.Lock, error) {
	if !h.mu.TryLock() {
		return nil, errors.New("held")
	}
	return h, nil
}

func (h *held) Unlock(context.Context) error {
	h.mu.Unlock()
	return nil
}

func zone(t *testing.T) *time.Location {
	z, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	return z
}

// Three nights around the end of summer time.
func TestTheNightlyReport(t *testing.T) {
	nights := func(t *testing.T, run func(ctx context.Context, z *time.Location, report func(context.Context) error) error) (ran []string) {
		synctest.Test(t, func(t *testing.T) {
			z := zone(t)
			time.Sleep(time.Until(time.Date(2000, 10, 28, 12, 0, 0, 0, z)))
			ctx, stop := context.WithDeadline(context.WithoutCancel(t.Context()), time.Date(2000, 10, 30, 12, 0, 0, 0, z))
			defer stop()
			if err := run(ctx, z, func(context.Context) error {
				ran = append(ran, time.Now().In(z).Format("02 15:04 MST"))
				return nil
			}); err != nil {
				t.Error(err)
			}
		})
		return ran
	}
	t.Run("gocron", func(t *testing.T) {
		got := nights(t, func(ctx context.Context, z *time.Location, report func(context.Context) error) error {
			return gocronBefore(ctx, new(held), z, report)
		})
		t.Logf("figure: gocron ran at %v", got)
		if len(got) < 2 {
			t.Errorf("ran at %v", got)
		}
	})
	t.Run("coord", func(t *testing.T) {
		got := nights(t, func(ctx context.Context, z *time.Location, report func(context.Context) error) error {
			c, err := coord.Open(ctx, memory.New(nil), nil)
			if err != nil {
				return err
			}
			defer c.Close()
			return gocronAfter(ctx, c, z, report)
		})
		if want := []string{"29 02:30 CEST", "30 02:30 CET"}; !slices.Equal(got, want) {
			t.Errorf("ran at %v, want %v", got, want)
		}
	})
}

func TestTheHourlyReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, err := coord.Open(t.Context(), memory.New(nil), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		ctx, stop := context.WithTimeout(t.Context(), 150*time.Minute)
		defer stop()
		n := 0
		if err := leaderAfter(ctx, c, func(context.Context) { n++ }); err != nil || n != 2 {
			t.Errorf("%d runs, %v", n, err)
		}
		st, err := coord.NewSchedule(c, "/jobs/report", nil, nil).State(t.Context())
		if err != nil || len(st.Runs) != 2 || st.Runs[1].Outcome != trace.RunDone {
			t.Errorf("%+v, %v", st, err)
		}
	})
	_ = leaderBefore // needs a cluster
}

// What the parsers make of 02:30 in the nights in which the clocks are set.
func TestParsersAtAChangeOfSummerTime(t *testing.T) {
	z := zone(t)
	parse := func(t *testing.T, parser string) coord.Timetable {
		const expression = "CRON_TZ=Europe/Berlin 30 2 * * *"
		var tt coord.Timetable
		var err error
		if parser == "robfig/cron" {
			tt, err = robfig.ParseStandard(expression)
		} else {
			tt, err = cron.ParseStandard(expression)
		}
		if err != nil {
			t.Fatal(err)
		}
		return tt
	}
	for _, tc := range []struct {
		parser string
		once   bool
		spring string
		autumn string
	}{
		{"robfig/cron", false, "30 02:30 CEST", "25 02:30 CEST, 25 02:30 CET"},
		{"robfig/cron", true, "30 02:30 CEST", "25 02:30 CEST, 26 02:30 CET"},
		{"netresearch/go-cron", false, "29 03:30 CEST", "25 02:30 CEST, 25 02:30 CET"},
		{"netresearch/go-cron", true, "29 03:30 CEST", "25 02:30 CEST, 26 02:30 CET"},
	} {
		tt := parse(t, tc.parser)
		if tc.once {
			tt = coord.OncePerReading(tt, z)
		}
		show := func(at time.Time) string { return at.In(z).Format("02 15:04 MST") }
		first := tt.Next(time.Date(2026, 10, 24, 12, 0, 0, 0, z))
		spring := show(tt.Next(time.Date(2026, 3, 28, 12, 0, 0, 0, z)))
		autumn := fmt.Sprintf("%s, %s", show(first), show(tt.Next(first)))
		if spring != tc.spring || autumn != tc.autumn {
			t.Errorf("%s, once %t: %s; %s; want %s; %s", tc.parser, tc.once, spring, autumn, tc.spring, tc.autumn)
		}
	}
}

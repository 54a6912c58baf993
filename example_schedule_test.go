package coord_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend/memory"
)

// A job runs every night, once in the cluster: each process of the service does this. With a cron expression,
//
//	nightly, err := cron.ParseStandard("CRON_TZ=Europe/Berlin 30 2 * * *") // github.com/netresearch/go-cron, or robfig/cron
//	berlin, err := time.LoadLocation("Europe/Berlin")
//	s := coord.NewSchedule(c, "/jobs/report", coord.OncePerReading(nightly, berlin), nil)
func ExampleSchedule() {
	ctx, stop := context.WithCancel(context.Background())
	c, err := coord.Open(ctx, memory.New(nil), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	s := coord.NewSchedule(c, "/jobs/report", coord.Every(24*time.Hour), &coord.ScheduleOptions{
		ID:       "host-1",
		Missed:   coord.MissedOnce, // after a night in which no process ran
		Attempts: 3,                // if the process dies in the middle
	})
	if _, err := s.RunNow(ctx); err != nil { // as an operator does
		log.Fatal(err)
	}
	err = s.Run(ctx, func(ctx context.Context, r *coord.Run) error {
		fmt.Println("attempt", r.Attempt, "asked for:", r.Asked)
		stop()
		return nil
	})
	fmt.Println(err)
	// Output:
	// attempt 1 asked for: true
	// <nil>
}

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/coordtest"
	"github.com/go-coord/coord/examples/internal/exampletest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestTheProgramRuns(t *testing.T) {
	exampletest.Runs(t, func(ctx context.Context, b backend.Backend) error { return run(ctx, b, 1) }, `job 1 is done, attempt 1`)
}

func TestTheJobOfAKilledWorkerIsDoneByAnother(t *testing.T) {
	exampletest.Tells(t, "workerpool", story,
		`boss +puts 30 jobs`,
		`worker-1 +takes job 1`,
		`worker-1 +is killed in the middle of job 1`,
		`worker-[23] +takes job 1, attempt 2`,
		`30 jobs, each done once, and none is left`,
	)
}

func TestAWorkerThatLivesKeepsItsJob(t *testing.T) {
	exampletest.Doubts(t, story, "26 of 30 jobs are done")
}

func TestTheErrorDecidesAboutItsJob(t *testing.T) {
	coordtest.Memory(t, nil, func(t *testing.T, s *coordtest.Service) {
		queue := newQueue(s.Client("a", nil))
		if _, err := queue.PutAll(t.Context(), Job{1}, Job{2}, Job{3}); err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithTimeout(t.Context(), time.Hour)
		defer stop()
		began := time.Now()
		var calls []string
		err := queue.Work(ctx, 1, handler(func(_ context.Context, item *coord.Item[Job]) error {
			calls = append(calls, fmt.Sprintf("job %d after %v", item.Value.Number, time.Since(began).Round(10*time.Millisecond)))
			switch {
			case item.Value.Number == 1:
				return fmt.Errorf("job 1: %w", errBad)
			case item.Attempt > 1:
				return nil
			case item.Value.Number == 2:
				return errBusy
			}
			return errors.New("failed")
		}))
		want := []string{"job 1 after 0s", "job 2 after 0s", "job 3 after 0s", "job 3 after 100ms", "job 2 after 1m0.01s"}
		if err != nil || !slices.Equal(calls, want) {
			t.Errorf("%q, error %v, want %q", calls, err, want)
		}
		if st, err := queue.Stats(t.Context()); err != nil || st.Dead != 1 || st.Ready+st.Claimed+st.Delayed != 0 {
			t.Errorf("%+v, error %v", st, err)
		}
	})
}

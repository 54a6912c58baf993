package main

import (
	"context"
	"testing"

	"go.uber.org/goleak"

	"github.com/go-coord/coord/backend"
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
	exampletest.Doubts(t, story, "29 of 30 jobs are done")
}

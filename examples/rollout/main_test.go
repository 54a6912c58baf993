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
	exampletest.Runs(t, func(ctx context.Context, b backend.Backend) error { return run(ctx, b, "a") }, `a goes down`, `a is up`)
}

func TestNoMoreThanTwoServersAreDownAtATime(t *testing.T) {
	exampletest.Tells(t, "rollout", story,
		`6 servers are to be restarted, 2 at a time`,
		`server-\d +goes down`,
		`server-\d +is up with version 2`,
		`All run version 2. Never more than [12] were down`,
	)
}

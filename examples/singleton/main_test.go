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
	exampletest.Runs(t, func(ctx context.Context, b backend.Backend) error { return run(ctx, b, "a") }, `a leads with token \d+`, `a does run 1`)
}

func TestAnotherReplicaContinuesTheJob(t *testing.T) {
	exampletest.Tells(t, "singleton", story,
		`\w+ +leads`,
		`\w+ +does run 1`,
		`\w+ +does run 2`,
		`\w+ +does run 3`,
		`\w+ +is cut off`,
		`\w+ +stops by itself: coord: hold .* lost: session lost`,
		`\w+ +leads`,
		`\w+ +does run \d+`,
		`\w+ +is stopped`,
		`\w+ +leads`,
		`\w+ +does run \d+`,
	)
}

func TestALeaderThatKeepsContactLeadsOn(t *testing.T) {
	exampletest.Doubts(t, story, "did not end")
}

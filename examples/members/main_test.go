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
	exampletest.Runs(t, func(ctx context.Context, b backend.Backend) error { return run(ctx, b, "a") }, `a is answered by a`)
}

func TestCallsGoToTheInstancesInTheList(t *testing.T) {
	exampletest.Tells(t, "members", story,
		`caller +sees the list \[east north west\]`,
		`caller +makes 12 calls, answered by map\[east:4 north:4 west:4\]`,
		`north +leaves the list`,
		`caller +sees the list \[east west\]`,
		`caller +makes 12 calls, answered by map\[east:6 west:6\]`,
		`west +is killed`,
		`caller +makes 12 calls, answered by map\[east:12\]`,
		`caller +has tried the dead one`,
		`caller +sees the list \[east\]`,
	)
}

func TestAnInstanceThatKeepsContactStaysInTheList(t *testing.T) {
	exampletest.Doubts(t, story, "the list is not [east]")
}

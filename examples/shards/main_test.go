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
	exampletest.Runs(t, func(ctx context.Context, b backend.Backend) error { return run(ctx, b, "a") }, `a begins piece`, `a begins piece`)
}

func TestThePiecesOfAKilledWorkerMoveAndComeBack(t *testing.T) {
	exampletest.Tells(t, "shards", story,
		`worker-1 +owns \[0 1 2 3 4 5 6 7 8 9 10 11\]`,
		`worker-2 +comes`,
		`worker-3 +comes`,
		`worker-2 +is killed`,
		`worker-1 +owns \[.*\]`,
		`worker-2 +is back`,
		`Each worker owns the same pieces as before`,
	)
}

func TestAWorkerThatLivesKeepsItsPieces(t *testing.T) {
	exampletest.Doubts(t, story, "do not own 6 pieces each")
}

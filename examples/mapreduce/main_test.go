package main

import (
	"context"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/examples/internal/exampletest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestTheProgramRuns(t *testing.T) {
	exampletest.Runs(t, func(ctx context.Context, b backend.Backend) error {
		return run(ctx, b, all, strings.NewReader("one two one"))
	}, `has counted`, `has counted`, `has counted`)
}

func TestNoWorkerReducesBeforeAllHaveMapped(t *testing.T) {
	exampletest.Tells(t, "mapreduce", story,
		`worker-2 +maps`,
		`worker-2 +has mapped its lines`,
		`worker-\d +reduces`,
		`worker-\d +reduces`,
		`worker-\d +reduces`,
		`161 lines, 13 different words, 160 times "the"`,
	)
}

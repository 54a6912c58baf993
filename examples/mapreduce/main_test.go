package main

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/go-coord/coord/examples/internal/exampletest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

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

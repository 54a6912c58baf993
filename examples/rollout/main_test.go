package main

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/go-coord/coord/examples/internal/exampletest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestNoMoreThanTwoServersAreDownAtATime(t *testing.T) {
	exampletest.Tells(t, "rollout", story,
		`6 servers are to be restarted, 2 at a time`,
		`server-\d +goes down`,
		`server-\d +is up with version 2`,
		`All run version 2. Never more than [12] were down`,
	)
}

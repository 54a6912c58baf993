package sweep

import (
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/go-coord/coord/internal/zktest"
)

const (
	// timeout is the timeout of all sessions but the observer's, which a slow machine must not end.
	timeout   = 3 * time.Second
	observing = time.Minute
	// tick is the server's tick: sessions that the server ends by timeout last up to a tick
	// longer.
	tick = 200 * time.Millisecond
	// limit is the timeout for events that must happen. A cell that reaches it is stuck.
	limit = time.Minute
)

var server = zktest.Shared{Options: &zktest.Options{
	TickTime: tick, MaxSessionTimeout: observing,
	JavaArgs: []string{"-Dznode.container.checkIntervalMs=200"}, // empty directories go between any two steps
}}

func TestMain(m *testing.M) { goleak.VerifyTestMain(server.Main(m)) }

func long() bool { return os.Getenv("COORD_LONG") == "1" }

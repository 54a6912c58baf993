//go:build linux

package interop

import (
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/go-coord/coord/internal/zktest"
)

// server is the one ZooKeeper of all tests here except those that measure, which share an
// ensemble of three. They use separate paths.
var (
	server zktest.Shared
	three  = zktest.Shared{Options: &zktest.Options{Servers: 3, SyncLimit: 20}} // a stall is no election
)

func TestMain(m *testing.M) {
	if spec := os.Getenv(workerEnv); spec != "" {
		os.Exit(workerMain(spec))
	}
	goleak.VerifyTestMain(tests{server.Main(m)})
}

// tests runs all tests and then ends the servers that they share.
type tests struct{ *zktest.SharedMain }

func (t tests) Run() int {
	code := t.SharedMain.Run()
	for _, err := range []error{three.Close(), os.RemoveAll(classes.dir)} {
		if err != nil {
			println("interop:", err.Error())
			code = max(code, 1)
		}
	}
	return code
}

func long() bool { return os.Getenv("COORD_LONG") == "1" }

// limit is the timeout for events that must happen. It is generous, since test machines are
// busy.
const limit = 60 * time.Second

// usualTimeout is the session timeout of tests that kill no process: the largest that the
// server grants.
const usualTimeout = 10 * time.Second

var ids atomic.Int64

// waiting holds the paths of coord's nodes whose owners have reported that they wait.
var waiting sync.Map

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

// server is the one ZooKeeper of all tests here. They keep apart by paths.
var server zktest.Shared

func TestMain(m *testing.M) {
	if spec := os.Getenv(workerEnv); spec != "" {
		os.Exit(workerMain(spec))
	}
	goleak.VerifyTestMain(server.Main(m))
}

func long() bool { return os.Getenv("COORD_LONG") == "1" }

// limit is how long the tests wait for something that must happen. It is
// generous: machines that run tests are busy.
const limit = 60 * time.Second

// usualTimeout is the session timeout where nobody is killed: the largest that
// the server grants.
const usualTimeout = 10 * time.Second

var ids atomic.Int64

// waiting are the paths of nodes of ours whose owners have told that they wait.
var waiting sync.Map

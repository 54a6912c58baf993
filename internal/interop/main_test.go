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

// server is the one ZooKeeper of all tests here but for those that measure, which
// share three. They keep apart by paths.
var (
	server zktest.Shared
	three  = zktest.Shared{Options: &zktest.Options{Servers: 3}}
)

func TestMain(m *testing.M) {
	if spec := os.Getenv(workerEnv); spec != "" {
		os.Exit(workerMain(spec))
	}
	goleak.VerifyTestMain(tests{server.Main(m)})
}

// tests are all tests, and what they share ends after them.
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

// limit is how long the tests wait for something that must happen. It is
// generous: machines that run tests are busy.
const limit = 60 * time.Second

// usualTimeout is the session timeout where nobody is killed: the largest that
// the server grants.
const usualTimeout = 10 * time.Second

var ids atomic.Int64

// waiting are the paths of nodes of ours whose owners have told that they wait.
var waiting sync.Map

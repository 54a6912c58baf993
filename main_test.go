package coord_test

import (
	"flag"
	"testing"

	"go.uber.org/goleak"

	"github.com/go-coord/coord/internal/zktest"
)

// server is the real ZooKeeper that the tests share: one server, or in the long
// form an ensemble of three. Tests that kill or pause servers start their own.
var server zktest.Shared

func TestMain(m *testing.M) {
	if long() {
		server.Options = &zktest.Options{Servers: 3}
	}
	// The tests that run in parallel wait for a server most of the time: as many at a
	// time as there are processors would leave these idle.
	flag.Parse()
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(server.Main(m))
}

package coord_test

import (
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
	goleak.VerifyTestMain(server.Main(m))
}

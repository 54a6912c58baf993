package coord_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/go-coord/coord/internal/zktest"
)

// server is the real ZooKeeper that the tests share. Tests that kill or pause
// servers start their own.
var server zktest.Shared

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(server.Main(m))
}

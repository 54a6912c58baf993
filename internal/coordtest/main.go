package coordtest

import (
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/go-coord/coord/internal/zktest"
)

// Server is the real ZooKeeper that the tests share: one server, or in the long
// form an ensemble of three. Tests that kill or pause servers start their own.
var Server zktest.Shared

// Long reports whether the full counts are wanted.
func Long() bool { return os.Getenv("COORD_LONG") != "" }

// Main runs the tests of a package, and fails if one leaves a goroutine.
func Main(m *testing.M) {
	if Long() {
		Server.Options = &zktest.Options{Servers: 3}
	}
	goleak.VerifyTestMain(Server.Main(m))
}

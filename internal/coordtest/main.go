package coordtest

import (
	"flag"
	"os"
	"strconv"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/go-coord/coord/internal/zktest"
)

// Server is the real ZooKeeper that the tests share: one server, or in the long
// form an ensemble of three. Tests that kill or pause servers start their own. The server removes no
// containers: with the default it would once a minute, and a test that counts requests would then
// count the creation of a lock's directory.
var Server = zktest.Shared{Options: &zktest.Options{JavaArgs: []string{"-Dznode.container.checkIntervalMs=86400000"}}}

// Collecting is a server that removes empty containers at once, in so far as ZooKeeper can.
var Collecting = zktest.Shared{Options: &zktest.Options{JavaArgs: []string{"-Dznode.container.checkIntervalMs=300"}}}

// Long reports whether the full counts are wanted.
func Long() bool { return os.Getenv("COORD_LONG") != "" }

// OnlyLong skips the test unless the full counts are wanted.
func OnlyLong(t *testing.T) {
	t.Helper()
	if !Long() {
		t.Skip("set COORD_LONG=1")
	}
}

// CountsCost skips a test that counts what calls cost if the race detector watches, which makes such a test several
// times slower and changes no count. ./test.sh runs the tests of recipes that have Cost in their names without it.
func CountsCost(t *testing.T) {
	t.Helper()
	if !strings.Contains(t.Name(), "Cost") {
		t.Fatal("no Cost in its name")
	}
	if Race {
		t.Skip("needs a run without the race detector")
	}
}

// Count returns short, or long if the full counts are wanted.
func Count(short, long int) int {
	if Long() {
		return long
	}
	return short
}

// Widen multiplies the flag -parallel by factor, for a package whose tests wait most of their time. With -parallel=1 they still run one after the other.
func Widen(factor int) {
	flag.Parse()
	parallel := flag.Lookup("test.parallel").Value
	n, err := strconv.Atoi(parallel.String())
	if err == nil && n > 1 {
		err = parallel.Set(strconv.Itoa(n * factor))
	}
	if err != nil {
		panic(err) // the flag is an integer
	}
}

// Main runs the tests of a package, and fails if one leaves a goroutine.
func Main(m *testing.M) {
	if Long() {
		Server.Options.Servers = 3
	}
	goleak.VerifyTestMain(Collecting.Main(Server.Main(m)))
}

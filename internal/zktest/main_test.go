package zktest

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"testing"

	"go.uber.org/goleak"
)

var shared Shared

// childMode makes the test binary start a server, print its pid, and wait. See
// TestServersDieWithTheirParent.
const childMode = "COORD_ZKTEST_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childMode) != "" {
		childMain()
		return
	}
	goleak.VerifyTestMain(shared.Main(m))
}

func childMain() {
	e, err := Start(context.Background(), &Options{Dir: os.Getenv(childMode)})
	if err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
	fmt.Println("pid", e.Servers()[0].Pid())
	signal.Ignore(os.Interrupt)
	_, _ = io.Copy(io.Discard, os.Stdin) // until killed
}

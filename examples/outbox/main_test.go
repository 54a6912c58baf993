package main

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

// The test binary is also the programs, see start.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "outbox" {
		os.Args = os.Args[1:]
		main()
		return
	}
	goleak.VerifyTestMain(m)
}

//go:build !unix

package zktest

import "os"

// Processes cannot be paused on this system: Pause and Resume fail.
var (
	sigStop os.Signal = os.Interrupt
	sigCont os.Signal = os.Interrupt
)

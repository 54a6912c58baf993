package top

import (
	"os"
	"testing"

	"golang.org/x/term"
)

// TestATerminalThatHasGoneCanBeLeft: it was closed while the process was stopped, so that enter fails.
func TestATerminalThatHasGoneCanBeLeft(t *testing.T) {
	in, out, err := os.Pipe() // no terminal
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	defer out.Close()
	x := &terminal{in: in, out: out, before: new(term.State)} // as openTerminal has left it
	if err := x.enter(t.Context()); err == nil {
		t.Error("no error")
	}
	x.leave()
}

package recipetest

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"sync"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/internal/coordtest"
)

// A function of the program that panics or ends its goroutine, on a goroutine of the client, costs what
// it was called for, and nothing else.

const unspoken = "5eec4e7"

// loggedClient is a client whose log a test reads.
type loggedClient struct {
	*coord.Client
	w    *world
	mu   sync.Mutex
	text bytes.Buffer
}

func (w *world) openLogged(name string) *loggedClient {
	l := &loggedClient{w: w}
	l.Client = coordtest.Open(w.T, w.Link(name), &coord.Options{Logger: slog.New(slog.NewTextHandler(&lockedWriter{mu: &l.mu, to: &l.text}, nil))})
	return l
}

// failures returns how often the log says that the function what did not return, each time with its
// stack, and never with the value of the panic.
func (l *loggedClient) failures(what string) int {
	l.w.T.Helper()
	l.w.Settle()
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for line := range strings.Lines(l.text.String()) {
		if !strings.Contains(line, "panicked or ended its goroutine") {
			continue
		}
		if strings.Contains(line, fmt.Sprintf("function=%q", what)) || strings.Contains(line, "function="+what+" ") {
			n++
		}
		if !strings.Contains(line, "usercode_test.go:") || strings.Contains(line, unspoken) {
			l.w.T.Errorf("no place in this line, or the value of the panic: %s", line)
		}
	}
	return n
}

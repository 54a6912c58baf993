package zookeeper_test

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/zookeeper"
	"github.com/go-coord/coord/internal/pace"
)

// stuckHandler is a slog.Handler whose methods all block between stop and let.
type stuckHandler struct {
	slog.Handler
	stuck chan struct{} // closed by stop
	let   chan struct{} // closed to let it go
}

func newStuckHandler() *stuckHandler {
	return &stuckHandler{Handler: slog.DiscardHandler, stuck: make(chan struct{}), let: make(chan struct{})}
}

func (h *stuckHandler) wait() {
	select {
	case <-h.stuck:
		<-h.let
	default:
	}
}

func (h *stuckHandler) Enabled(context.Context, slog.Level) bool {
	h.wait()
	return true
}

func (h *stuckHandler) Handle(context.Context, slog.Record) error {
	h.wait()
	return nil
}

// A Logger that blocks for ever loses no session when contact breaks for a moment, delays no
// call, and delays Close by a second at most.
func TestALoggerThatBlocksDelaysNothing(t *testing.T) {
	t.Parallel()
	s := newScene(t, zookeeper.Options{})
	h := newStuckHandler()
	var once sync.Once
	let := func() { once.Do(func() { close(h.let) }) }
	defer let()
	b := zookeeper.New(s.link.Addrs(), &zookeeper.Options{SessionTimeout: 10 * time.Second, Logger: slog.New(h)})
	c := s.open(b)
	id := c.ID()
	close(h.stuck)

	_, change := c.Status()
	s.link.Proxies[0].Cut()
	s.await(change, "the suspension")
	s.phase(c, backend.PhaseConnected)
	if err := c.Sync(s.ctx, "/"); err != nil || c.ID() != id {
		t.Fatalf("after a moment without contact: %v, session %#x, want %#x", err, c.ID(), id)
	}

	// A second session, whose lease passes while the Logger still blocks.
	lost := s.open(b)
	s.link.Partition()
	s.await(lost.Done(), "the loss")
	if err := lost.Err(); !errors.Is(err, backend.ErrSessionLost) {
		t.Errorf("Err is %v", err)
	}
	for _, c := range []backend.Session{c, lost} {
		m := pace.Start(t, nil)
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		m.Within(6*time.Second, "Close")
	}
	let()
}

package core

import (
	"context"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/backoff"
	"github.com/go-coord/coord/internal/errs"
)

// A Shortage makes a loop retry while the service has no space (ErrNoSpace).
type Shortage struct {
	c          *Client
	does, path string
	pause      backoff.Pauses

	Early <-chan struct{} // cuts a pause short; nil: nothing does
}

// NewShortage returns the Shortage of a loop that does something at path, as the log says.
func NewShortage(c *Client, does, path string) *Shortage {
	return &Shortage{c: c, does: does, path: path, pause: NewPauses(c)}
}

// Waited reports whether err says that the service has no space. If so, Waited has made a pause, which the end of ctx or of
// the client cuts short, and Early. The first such error of a row is logged. The caller looks for these ends: without that it would
// try again and again, without a pause.
func (s *Shortage) Waited(ctx context.Context, err error) bool {
	if !errs.Answers(err, backend.ErrNoSpace) {
		s.pause.Reset()
		return false
	}
	if s.pause.Count() == 0 {
		s.c.Log().Warn("coord: cannot "+s.does+" because the service has no space, retrying", "path", s.path, "error", err)
	}
	s.pause.SkipFirst()
	s.pause.WaitOr(ctx.Done(), s.c.Closing(), s.Early)
	return true
}

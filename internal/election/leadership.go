package election

import (
	"context"
	"errors"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/latest"
)

// Leadership campaigns, and sends each term that it gains, until ctx ends. as converts a term: the channel
// has the public form, because only the channel knows whether its reader has received a term. If
// campaigning fails for good, the last element is a term that never stood.
func Leadership[T any](ctx context.Context, e *Election, as func(*Term) T) <-chan T {
	core.NeedContext(ctx)
	out := latest.NewSignal[T]()
	if !e.c.GoWork(func() {
		unclaimed := lead(ctx, e, out, as)
		close(out.Ch)
		if unclaimed != nil {
			unclaimed.h.Release()
		}
	}) {
		out.Put(as(noTerm(errs.Op("campaign", e.path.Full(), backend.ErrClosed))))
		close(out.Ch)
	}
	return out.Ch
}

// noTerm returns a term that never stood.
func noTerm(err error) *Term { return TermOf(core.EndedHold(err)) }

// lead campaigns until ctx ends. It returns a term that the caller must resign, or
// nil.
func lead[T any](ctx context.Context, e *Election, out latest.Signal[T], as func(*Term) T) *Term {
	for {
		t, err := e.campaignOn(ctx)
		if err != nil {
			if ctx.Err() == nil {
				if !errors.Is(err, backend.ErrClosed) {
					e.c.Log().Error("coord: campaigning failed, this candidate stops", "path", e.path.Full(), "error", err)
				}
				out.Put(as(noTerm(err)))
			}
			return nil
		}
		out.Put(as(t))
		unclaimed := time.NewTimer(t.h.On().Backend().Timeout())
		select {
		case <-t.h.Done():
		case <-unclaimed.C:
		case <-ctx.Done():
		}
		unclaimed.Stop()
		if t.h.Err() == nil {
			// The channel decides whether the term was received: Untaken takes t back
			// only if not, since Put has replaced every earlier term.
			if _, mine := out.Untaken(); mine {
				if ctx.Err() != nil {
					return t
				}
				t.h.Release()
			}
		}
		select {
		case <-t.h.Done():
		case <-ctx.Done():
			return nil
		}
	}
}

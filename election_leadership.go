package coord

import (
	"context"
	"errors"
	"time"
)

// Leadership campaigns, and sends each term that it gains on the channel. It
// campaigns again after every loss, and after every Release of a term, until ctx
// ends; then the channel is closed.
//
// A term that was received belongs to its receiver until the receiver releases it,
// also after ctx has ended. Leadership does not resign such a term: a receiver that
// stops working without Release leads until its session ends.
//
// A term that is not received is resigned after one session timeout, or when ctx
// ends, so that no program leads without knowing it. A late receiver may get a term
// that is Done already, but never one that only seems to stand.
//
// If campaigning fails permanently (see Mutex.Lock for the reasons), the last term on
// the channel never stood: its Token is zero, its Path is empty, it is Done, and its
// Guard is refused. Err is the error of Campaign, which matches neither ErrLost nor
// ErrReleased.
func (e *Election) Leadership(ctx context.Context) <-chan *Term {
	out := newSignal[*Term]()
	if !e.c.goWork(func() {
		unclaimed := e.lead(ctx, out)
		close(out.ch)
		if unclaimed != nil {
			unclaimed.Release()
		}
	}) {
		out.put(noTerm(opError("campaign", e.path.full, ErrClosed)))
		close(out.ch)
	}
	return out.ch
}

// noTerm returns a term that never stood.
func noTerm(err error) *Term { return &Term{Hold: &Hold{err: err}} }

// lead campaigns until ctx ends. It returns a term that the caller must resign, or
// nil.
func (e *Election) lead(ctx context.Context, out signal[*Term]) *Term {
	for {
		t, err := e.Campaign(ctx)
		if err != nil {
			if ctx.Err() == nil {
				if !errors.Is(err, ErrClosed) {
					e.c.log.Error("coord: cannot campaign any more", "path", e.path.full, "error", err)
				}
				out.put(noTerm(err))
			}
			return nil
		}
		out.put(t)
		unclaimed := time.NewTimer(t.s.b.Timeout())
		select {
		case <-t.Done():
		case <-unclaimed.C:
		case <-ctx.Done():
		}
		unclaimed.Stop()
		if t.Err() == nil {
			// The channel decides whether the term was received: untaken returns it
			// only if not.
			if mine, ok := out.untaken(); ok {
				if ctx.Err() != nil {
					return mine
				}
				mine.Release()
			}
		}
		select {
		case <-t.Done():
		case <-ctx.Done():
			return nil
		}
	}
}

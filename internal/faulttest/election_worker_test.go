//go:build linux

package faulttest

import (
	"context"
	"fmt"
	"sync"

	"github.com/go-coord/coord"
)

// The reports of a worker in an election, beside those of locks:
//
//	leading       a term began; reported before any other use of it
//	announced     the leader has announced itself to observers, with the token as data
//	done          Done of the term is closed, with the reason
//	releasing, released
//	stopped       it is not a candidate any more
//	seen          by an observer: "vacant", "elected ID" or "ready ID ANNOUNCEMENT"
//
// The commands are leadership and run, which are two ways to be a candidate, resign, stop,
// and observe. The commands write, check and verify refer to the latest term.
type candidacy struct {
	e      *coord.Election
	resign chan struct{}
	cancel context.CancelFunc // of the present campaign
	over   sync.WaitGroup     // of the present campaign
}

// obeyElection reports whether the command is one of these.
func (w *worker) obeyElection(ctx context.Context, work *sync.WaitGroup, command string) bool {
	v := &w.candidacy
	if v.e == nil {
		v.e = coord.NewElection(w.c, w.spec.Election, &coord.ElectionOptions{ID: w.spec.ID})
		v.resign = make(chan struct{}, 1)
	}
	switch command {
	case "leadership", "run":
		ctx, v.cancel = context.WithCancel(ctx)
		campaign := w.leadership
		if command == "run" {
			campaign = w.lead
		}
		v.over.Add(1)
		work.Go(func() {
			defer v.over.Done()
			if err := campaign(ctx, work); err != nil {
				w.say(line{Kind: "failed", Text: err.Error()})
			}
		})
	case "stop":
		v.cancel()
		v.over.Wait()
		w.say(line{Kind: "stopped"})
	case "resign":
		select {
		case v.resign <- struct{}{}:
		default:
		}
	case "observe":
		work.Go(func() { w.observe(ctx) })
	default:
		return false
	}
	return true
}

// begin handles the begin of a term.
func (w *worker) begin(ctx context.Context, work *sync.WaitGroup, t *coord.Term) {
	w.holds(work, t.Hold, "leading")
	for len(w.candidacy.resign) > 0 {
		<-w.candidacy.resign // meant for an earlier term, which ended by itself
	}
	if err := t.Announce(t.Context(ctx), fmt.Append(nil, t.Token())); err == nil {
		w.say(w.about(t.Hold, "announced", ""))
	}
}

// leadership is a candidate that uses the channel of Leadership.
func (w *worker) leadership(ctx context.Context, work *sync.WaitGroup) error {
	terms := w.candidacy.e.Leadership(ctx)
	var term *coord.Term
	release := func() {
		w.say(w.about(term.Hold, "releasing", ""))
		w.say(w.about(term.Hold, "released", verdict(term.Release())))
	}
	for {
		select {
		case t, ok := <-terms:
			if !ok {
				if ctx.Err() == nil {
					return fmt.Errorf("the channel of terms was closed")
				}
				if term != nil && term.Err() == nil {
					release()
				}
				return nil
			}
			if t.Token() == 0 {
				return t.Err()
			}
			if term != nil && term.Err() == nil {
				return fmt.Errorf("a term began at %s before that at %s ended", t.Path(), term.Path())
			}
			term = t
			w.begin(ctx, work, t)
		case <-w.candidacy.resign:
			if term != nil {
				release()
			}
		}
	}
}

// lead is a candidate that uses Run.
func (w *worker) lead(ctx context.Context, work *sync.WaitGroup) error {
	for {
		var term *coord.Term
		err := w.candidacy.e.Run(ctx, func(held context.Context, t *coord.Term) error {
			term = t
			w.begin(held, work, t)
			select {
			case <-held.Done():
			case <-w.candidacy.resign:
			}
			if t.Err() == nil {
				w.say(w.about(t.Hold, "releasing", ""))
			}
			return nil
		})
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		}
		w.say(w.about(term.Hold, "released", "ok"))
	}
}

func (w *worker) observe(ctx context.Context) {
	for l := range w.candidacy.e.WatchLeader(ctx) {
		text := "vacant"
		switch {
		case l.Err != nil:
			w.say(line{Kind: "failed", Text: l.Err.Error()})
			return
		case l.Ready:
			text = fmt.Sprintf("ready %s %s", l.ID, l.Announcement)
		case !l.Vacant():
			text = "elected " + l.ID
		}
		w.say(line{Kind: "seen", Token: l.Token, Path: l.Path, Session: l.Session, Text: text})
	}
	if ctx.Err() == nil {
		w.say(line{Kind: "failed", Text: "the observer's channel was closed"})
	}
}

package coord

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/kinds"
	"github.com/go-coord/coord/internal/latest"
	"github.com/go-coord/coord/internal/line"
	"github.com/go-coord/coord/internal/nodepath"

	"github.com/go-coord/coord/internal/core"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/layout"
	"github.com/go-coord/coord/trace"
)

// ElectionOptions may be nil.
type ElectionOptions struct {
	// ID identifies the candidate to callers of Leader, WatchLeader and Contenders.
	// It is text, and need not be unique.
	ID string

	// Data is published with the ID: an address, for example.
	Data []byte

	// StepDownOnSuspend ends a term with ErrSuspended as soon as the client loses
	// contact with the service, even if contact returns a moment later. Without it a
	// leader stays leader until its session is lost. The client declares that loss
	// before the service lets another candidate lead, with the limits that the package
	// comment lists.
	StepDownOnSuspend bool
}

// An Election chooses one leader among the candidates on one path (the leader election of
// the ZooKeeper recipe guide, without the herd effect). Candidates lead in the order of
// their arrival. No candidate polls, and a change of leader wakes at most two candidates,
// however many there are.
//
// A leader has a Term, which is a Hold: it can be lost, it reports the loss, and it carries
// a guard for transactions and a token that grows from one leader to the next. The
// guarantees are those of a Mutex.
//
// Run is the safest way to lead: it calls a function while the candidate leads, with a
// context that ends with the term. Leadership is for programs that select on a channel.
// Both are built on Campaign. Each campaign is a separate candidate, also within one
// client.
//
// Curator's LeaderLatch and an Election elect one leader on one path, and so does kazoo's
// Election with an option, without which two lead at the same time: see layout.md, which
// also describes the nodes.
//
// An Election is safe for concurrent use and needs no closing.
type Election struct {
	c        *core.Client
	path     nodepath.Path
	own      layout.Candidate
	stepDown bool
}

// NewElection returns the election at path. It does no I/O; a bad path is
// reported by the first call.
func NewElection(c *Client, path string, o *ElectionOptions) *Election {
	e := &Election{c: c.core(), path: c.core().Path(path)}
	if o != nil {
		e.own = layout.Candidate{ID: o.ID, Data: slices.Clone(o.Data)}
		e.stepDown = o.StepDownOnSuspend
	}
	return e
}

// A Term is the time for which a candidate leads. Release resigns. A Term is safe for
// concurrent use.
type Term struct {
	*Hold
	led *leading
}

func (e *Election) line() *line.Line {
	return line.New(e.c, e.path.Full(), layout.LatchLine, kinds.RecipeDir{})
}

// Campaign waits until the candidate leads, or ctx ends. ctx bounds the campaign
// only, not the term. A session that is lost during the wait does not end the
// campaign: it continues at the tail of the queue with the next session. If Campaign
// returns an error, the candidate's node is deleted, as with Mutex.Lock.
//
// The errors are those of Mutex.Lock.
func (e *Election) Campaign(ctx context.Context) (*Term, error) {
	const op = "campaign"
	if err := e.path.Check(op); err != nil {
		return nil, err
	}
	if !utf8.ValidString(e.own.ID) {
		return nil, errs.Op(op, e.path.Full(), fmt.Errorf("%w: the ID is not valid UTF-8", ErrInvalid))
	}
	if err := backend.ContextError(ctx); err != nil {
		return nil, errs.Op(op, e.path.Full(), err)
	}
	data, err := e.own.Encode()
	if err != nil {
		return nil, errs.Op(op, e.path.Full(), err)
	}
	led := &leading{l: e.line()}
	h, err := led.l.Campaign(ctx, op, data, led, e.stepDown)
	if err != nil {
		return nil, err
	}
	return &Term{&Hold{h}, led}, nil
}

// Run campaigns, and when the candidate leads it calls f, with a context that ends
// with the term. Then it resigns. If the term was lost before f returned, Run
// campaigns again and calls f again with the next term. By then the earlier call of f
// has returned, so f never runs twice at a time. f should return when its context
// ends. An error that f returns after a loss is only logged.
//
// Run returns when f returns while the term stands, or after f has released the term.
// The result is the error of f joined with the error of resigning. (This includes the
// end of ctx during a term: the context of f ends, and the error of f counts.) Run
// also returns when ctx ends while the candidate does not lead, with the error of
// ctx; and when it cannot campaign, see Campaign. ErrInvalid: f is nil.
func (e *Election) Run(ctx context.Context, f func(ctx context.Context, t *Term) error) error {
	if f == nil {
		return errs.Op("run", e.path.Full(), errs.ErrNoFunction)
	}
	for {
		again := false
		var t *Term
		campaign := func(ctx context.Context) (h *core.Hold, err error) {
			if t, err = e.Campaign(ctx); err != nil {
				return nil, err
			}
			return t.h, nil
		}
		err := core.Do(ctx, e.path.Full(), campaign, func(held context.Context, _ *core.Hold) error {
			err := f(held, t)
			again = errors.Is(t.Err(), ErrLost)
			if again && err != nil {
				e.c.Log().Info("coord: the function of Run returned an error after its term was lost, campaigning again", "path", t.Path(), "error", err)
			}
			return err
		})
		if !again {
			return err
		}
	}
}

// Leadership campaigns, and sends each term that it gains on the channel. It campaigns
// again after every loss and every Release of a term, until ctx ends; then the channel is
// closed. A program that leaves a loop over the channel must end ctx, since otherwise the
// candidate continues; a loop over Terms does not need that.
//
// A received term belongs to its receiver until the receiver releases it, also after ctx
// has ended: a receiver that stops working without Release leads until its session ends. A
// term that nobody receives is resigned after one session timeout, or when ctx ends. A late
// receiver may get a term that is Done already, but never an ended term that is not Done.
//
// If campaigning fails permanently (see Mutex.Lock), the last element of the channel is not
// a term that the candidate led: its Token is zero, its Path is empty, it is Done, and its
// Guard is refused. Err is the error of Campaign, which matches neither ErrLost nor
// ErrReleased.
func (e *Election) Leadership(ctx context.Context) <-chan *Term {
	core.NeedContext(ctx)
	out := latest.NewSignal[*Term]()
	if !e.c.GoWork(func() {
		unclaimed := e.lead(ctx, out)
		close(out.Ch)
		if unclaimed != nil {
			unclaimed.Release()
		}
	}) {
		out.Put(noTerm(errs.Op("campaign", e.path.Full(), ErrClosed)))
		close(out.Ch)
	}
	return out.Ch
}

// Terms returns an iterator that campaigns and yields each term that it gains. The
// candidate leads while the body runs, unless the term is lost: the body should end when the
// term is Done, or work under its Context. When the body returns, the loop releases the term,
// and campaigns again. If the body breaks off or panics, the loop releases the term, ends, and
// does not campaign again.
//
// If ctx ends, the loop ends after the running body, without another pair. If campaigning
// fails permanently, the last pair is nil and the error of Campaign. A Release that fails ends
// the loop in the same way, unless the body breaks off or the term was lost: see Hold.Release.
func (e *Election) Terms(ctx context.Context) iter.Seq2[*Term, error] {
	core.NeedContext(ctx)
	return func(yield func(*Term, error) bool) {
		for ctx.Err() == nil {
			t, err := e.Campaign(ctx)
			if err != nil {
				if ctx.Err() == nil || !errs.OfContext(err) {
					yield(nil, err)
				}
				return
			}
			goOn := false
			func() {
				defer func() { err = t.Release() }() // also if the body panics
				goOn = yield(t, nil)
			}()
			switch {
			case !goOn:
				return
			case err != nil && !errors.Is(err, ErrLost):
				yield(nil, err)
				return
			}
		}
	}
}

// Revoke asks the leader to resign, for a planned hand-over. It returns when the term has ended,
// by consent, by force or otherwise. The leader learns of the request by Term.Revoked. Without
// a leader, Revoke returns nil. In all else it is as Mutex.Revoke. The candidate that arrived
// first leads next; a former leader that campaigns again is behind all waiting candidates.
func (e *Election) Revoke(ctx context.Context, o *RevokeOptions) error {
	return e.line().Revoke(ctx, &e.path, o.config())
}

// noTerm returns a term that never stood.
func noTerm(err error) *Term { return &Term{Hold: &Hold{core.EndedHold(err)}} }

// lead campaigns until ctx ends. It returns a term that the caller must resign, or
// nil.
func (e *Election) lead(ctx context.Context, out latest.Signal[*Term]) *Term {
	for {
		t, err := e.Campaign(ctx)
		if err != nil {
			if ctx.Err() == nil {
				if !errors.Is(err, ErrClosed) {
					e.c.Log().Error("coord: campaigning failed, this candidate stops", "path", e.path.Full(), "error", err)
				}
				out.Put(noTerm(err))
			}
			return nil
		}
		out.Put(t)
		unclaimed := time.NewTimer(t.h.On().Backend().Timeout())
		select {
		case <-t.Done():
		case <-unclaimed.C:
		case <-ctx.Done():
		}
		unclaimed.Stop()
		if t.Err() == nil {
			// The channel decides whether the term was received: Untaken returns it
			// only if not.
			if mine, ok := out.Untaken(); ok {
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

// leading is the recipe of a term.
type leading struct {
	l         *line.Line
	announced atomic.Bool // a node of an announcement may exist
}

// Announce publishes, with data, that the leader has taken over and is ready: the
// acknowledgement of the recipe guide. Callers of Leader and WatchLeader see it. A
// candidate leads as soon as it is the head of the queue, and may have much to do
// before it can serve. A later call replaces the data. The announcement ends at the same
// moment as the term. Announce costs two requests. If the term has ended, the
// error is that of Err. If ctx ends while the outcome is unknown, the error matches
// ErrUncertain: the announcement may be visible.
func (t *Term) Announce(ctx context.Context, data []byte) error {
	const op = "announce"
	path := t.Path()
	if err := t.Err(); err != nil {
		return errs.Op(op, path, err)
	}
	ready := layout.ReadyPath(path)
	t.led.announced.Store(true) // before the node can exist, because Release reads it
	doubt := false              // an earlier attempt may have been applied
	fail := func(err error) error {
		if doubt {
			err = backend.Uncertain(err)
		}
		return errs.Op(op, path, err)
	}
	pause := core.NewPauses(t.h.On().Client())
	for {
		if err := t.Err(); err != nil {
			return errs.Op(op, path, err)
		}
		// The write is conditional on the version that was read, so an attempt of an
		// earlier call that gave up cannot take effect after this one.
		_, stat, err := t.h.On().Backend().Get(ctx, ready, nil)
		write := backend.SetData(ready, data, stat.Version)
		if errs.IsNotFound(err) {
			err = nil
			write = backend.Create(ready, data, backend.Ephemeral)
		}
		if err == nil {
			_, err = t.h.On().Backend().Commit(ctx, backend.Check(path, backend.AnyVersion), write)
		}
		var e *backend.Error
		switch {
		case err == nil:
			t.h.Emit(ctx, func(at trace.Subject, led time.Duration) trace.Event {
				return trace.LeaderAnnounced{Subject: at, Token: t.Token(), After: led}
			})
			return nil
		case errs.IsNotFound(err) && errors.As(err, &e) && e.Index == 0:
			t.h.NodeGone(ctx, path)
		case errs.IsOver(err):
			t.h.Lose(err)
		case errs.IsNotFound(err), errs.Answers(err, backend.ErrBadVersion), errs.Answers(err, backend.ErrExists):
			// Another call wrote in between, or the read was stale.
			if err := t.h.On().Backend().Sync(ctx, ready); err != nil && !errs.IsOver(err) {
				return fail(err)
			}
		case !backend.IsUncertain(err) || ctx.Err() != nil:
			return fail(err)
		default:
			doubt = true
			pause.Wait(ctx.Done(), t.Done())
		}
	}
}

// Release resigns. The same commit removes the announcement.
func (x *leading) Release(h *core.Hold) error {
	if !x.announced.Load() {
		return x.l.Release(h)
	}
	ready := layout.ReadyPath(h.Path())
	both, err := h.RemoveWith(ready)
	if !both {
		// Once the leader's node is gone, no attempt to announce can succeed any
		// more, so a ready node that exists now is the last one.
		h.On().RemoveLater(ready)
	}
	return err
}

// Leftovers are, if the session lives on, first the node of a leader that has stepped down,
// then the announcement. In the other order, an Announce under way could create the
// announcement again.
func (x *leading) Leftovers(h *core.Hold, cause error) (dir string, paths []string, remove func(ctx context.Context, path string) error) {
	path := h.Path()
	if errors.Is(cause, ErrSuspended) {
		paths = append(paths, path)
	}
	if x.announced.Load() {
		paths = append(paths, layout.ReadyPath(path))
	}
	return nodepath.Parent(path), paths, h.On().Remove
}

func (x *leading) Lost(*core.Hold) {}

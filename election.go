package coord

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"unicode/utf8"

	"github.com/go-coord/coord/backend"
)

// ElectionOptions may be nil.
type ElectionOptions struct {
	// ID says who the candidate is, for Leader, Observe and Contenders. It is
	// text, and need not be unique.
	ID string

	// Data goes with the ID: an address, for example.
	Data []byte

	// StepDown ends a term as soon as contact with the service is lost, with
	// ErrSuspended, even if it comes back a moment later. Without it a leader
	// stays leader through that until its session is lost, which is declared
	// before the service lets anybody else lead, as far as can be promised; see
	// Hold.
	StepDown bool
}

// An Election chooses one leader among the candidates on one path (the leader
// election of the ZooKeeper recipe guide, without the herd). Candidates lead in the
// order in which they came. Nobody polls, and a change of leader wakes at most two
// candidates, however many there are.
//
// Leading is a Term, which is a Hold: it can be lost, it says so, and it carries
// a token that grows from one leader to the next and a guard for transactions.
// The same is promised as for a Mutex.
//
// Run is the way to lead that is hard to get wrong: it calls a function for as
// long as it leads, with a context that ends with the term. Terms is the same as a
// loop. Leadership is for programs that select on a channel. Campaign is what
// these are made of.
//
// Layout: path is a directory (a container, made on first use, with what is
// missing above it), which belongs to the election: its data is empty, and each
// candidate has a node in it, ephemeral and sequential, named
// _c_<uuid>-latch-<number>, as Curator's LeaderLatch names them. Its data is the
// ID; with Data or an announcement it is JSON under the key "coord-candidate".
// Curator's LeaderLatch and ours elect one leader on one path. Names of kazoo's
// Election are understood too; it understands ours if its lock is made with
// extra_lock_patterns=["-latch-"].
//
// An Election is safe for concurrent use and holds nothing; there is nothing to
// close. Each campaign is a candidate of its own, also within one client.
type Election struct {
	c        *Client
	path     recipePath
	own      candidateJSON
	stepDown bool
}

// NewElection returns the election at path. It does no I/O; a bad path is
// reported by the first call.
func NewElection(c *Client, path string, o *ElectionOptions) *Election {
	e := &Election{c: c, path: c.recipePath(path)}
	if o != nil {
		e.own = candidateJSON{ID: o.ID, Data: slices.Clone(o.Data)}
		e.stepDown = o.StepDown
	}
	return e
}

// A Term is the time for which a candidate leads. Release resigns.
type Term struct {
	*Hold
	own candidateJSON
}

func (e *Election) line() *line { return &line{c: e.c, dir: e.path.full, kinds: latchLine} }

// Campaign waits until it leads, or ctx ends. ctx bounds the campaign only, not
// the term. A session lost while waiting does not end the campaign; it goes on at
// the tail with the next session. Whatever ends it, no node of it stays behind.
//
// Its errors are those of Mutex.Lock.
func (e *Election) Campaign(ctx context.Context) (*Term, error) {
	const op = "campaign"
	if err := e.path.check(op); err != nil {
		return nil, err
	}
	if !utf8.ValidString(e.own.ID) {
		return nil, opError(op, e.path.full, fmt.Errorf("%w: the ID is no text", ErrInvalid))
	}
	if err := backend.ContextError(ctx); err != nil {
		return nil, opError(op, e.path.full, err)
	}
	data, err := e.own.encode()
	if err != nil {
		return nil, opError(op, e.path.full, err)
	}
	l := e.line()
	h, err := l.acquire(ctx, &request{op: op, kind: latchKind, data: data, since: e.c.now(), owner: l})
	if err != nil {
		return nil, err
	}
	if e.stepDown {
		// If the client is closed by now, the term has ended with it.
		e.c.goWork(h.endSuspended)
	}
	return &Term{Hold: h, own: e.own}, nil
}

// endSuspended ends the hold as soon as its session is suspended.
func (h *Hold) endSuspended() {
	phase, changed := h.s.b.Status()
	if phase == backend.Connected {
		select {
		case <-changed: // also when contact is back already
		case <-h.Done():
			return
		}
	}
	if h.Err() == nil { // it looks for a lost session first
		h.lose(ErrSuspended)
		h.s.removeLater(h.Path())
	}
}

// Run campaigns, and calls f when it leads, with a context that ends with the
// term; then it resigns. If the term was lost before f returned, Run campaigns
// again, and f is called again with the next term; f has returned by then, so it
// never runs twice at a time. f should return when its context ends. What f
// returned after a loss is only logged.
//
// Run returns when f returned while its term stood or was released by f, with
// what f returned and the error of resigning, joined; when ctx ends while it does
// not lead, with the error of ctx; or when it cannot campaign, see Campaign.
func (e *Election) Run(ctx context.Context, f func(ctx context.Context, t *Term) error) error {
	for {
		again := false
		err := do(ctx, e.campaign, func(held context.Context, h *Hold) error {
			err := f(held, &Term{Hold: h, own: e.own})
			again = errors.Is(h.Err(), ErrLost)
			if again && err != nil {
				e.c.log.Info("coord: what led returned an error after its term was lost", "path", h.Path(), "error", err)
			}
			return err
		})
		if !again {
			return err
		}
	}
}

// campaign is Campaign for those who want the Hold.
func (e *Election) campaign(ctx context.Context) (*Hold, error) {
	t, err := e.Campaign(ctx)
	if err != nil {
		return nil, err
	}
	return t.Hold, nil
}

// Terms is for a loop over the terms of leadership: the body runs once for each,
// and the term is resigned when the body is done with it, however it ends. When
// ctx ends while it does not lead, or when it cannot campaign, the loop gets a nil
// Term with the error, and ends.
func (e *Election) Terms(ctx context.Context) iter.Seq2[*Term, error] {
	return func(yield func(*Term, error) bool) {
		for {
			t, err := e.Campaign(ctx)
			if err != nil {
				yield(nil, err)
				return
			}
			if !t.pass(yield) {
				return
			}
		}
	}
}

// pass lends the term to the body of a loop.
func (t *Term) pass(yield func(*Term, error) bool) bool {
	defer t.Release()
	return yield(t, nil)
}

// Announce publishes that the leader has taken over and is ready, with data for
// those who follow Leader or Observe: the acknowledgement of the recipe guide.
// Being first in line makes a leader, which may have much to do before it can
// serve. A later call replaces the data. It stands until the term ends, and
// costs two requests. If the term has ended the error is that of Err.
func (t *Term) Announce(ctx context.Context, data []byte) error {
	const op = "announce"
	own := t.own
	own.Ready, own.Announcement = true, data
	text, err := own.encode()
	if err != nil {
		return opError(op, t.Path(), err)
	}
	var pause pauses
	for {
		if err := t.Err(); err != nil {
			return opError(op, t.Path(), err)
		}
		// Under the version that was read: an attempt of an earlier call that was
		// given up cannot come after this one. What was read may be a request
		// to give up, which must not be overwritten unseen.
		old, stat, err := t.s.b.Get(ctx, t.Path(), nil)
		if err == nil {
			t.look(old)
			_, err = t.s.b.Commit(ctx, backend.SetData(t.Path(), text, stat.Version))
		}
		switch {
		case err == nil:
			return nil
		case isNotFound(err):
			t.gone(t.Path())
		case isOver(err):
			t.lose(err)
		case errors.Is(err, backend.ErrBadVersion):
		case !isUncertain(err) || ctx.Err() != nil:
			return opError(op, t.Path(), err)
		default:
			pause.wait(ctx.Done(), t.Done())
		}
	}
}

package coord

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"unicode/utf8"

	"github.com/go-coord/coord/backend"
)

// ElectionOptions may be nil.
type ElectionOptions struct {
	// ID says who the candidate is, for Leader, WatchLeader and Contenders. It is
	// text, and need not be unique.
	ID string

	// Data goes with the ID: an address, for example.
	Data []byte

	// StepDownOnSuspend ends a term as soon as contact with the service is lost, with
	// ErrSuspended, even if it comes back a moment later. Without it a leader
	// stays leader through that until its session is lost, which is declared
	// before the service lets anybody else lead, as far as can be promised; see
	// Hold.
	StepDownOnSuspend bool
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
// long as it leads, with a context that ends with the term. Leadership is for
// programs that select on a channel. Campaign is what both are made of.
//
// Layout: path is a directory (a container, made on first use, with what is
// missing above it), which belongs to the election: its data names it, and each
// candidate has a node in it, ephemeral and sequential, named
// _c_<uuid>-latch-<number>, as Curator's LeaderLatch names them. Its data is the
// ID; with Data it is JSON under the key "coord-candidate". Beside a leader that
// has made an announcement stands _c_<uuid>-ready-<number> with its data.
//
// Curator's LeaderLatch and ours elect one leader on one path. Names of kazoo's
// Election are understood too. It understands ours if its lock attribute is
// replaced by client.Lock(path, id, extra_lock_patterns=["-latch-"]); untold, it
// leads beside ours.
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
		e.stepDown = o.StepDownOnSuspend
	}
	return e
}

// A Term is the time for which a candidate leads. Release resigns. It is safe for
// concurrent use.
type Term struct {
	*Hold
	led *leading
}

func (e *Election) line() *line { return &line{c: e.c, dir: e.path.full, kinds: latchLine} }

// Campaign waits until it leads, or ctx ends. ctx bounds the campaign only, not
// the term. A session lost while waiting does not end the campaign; it goes on at
// the tail with the next session. Whatever ends it, its node is gone when Campaign
// returns, as with Mutex.Lock.
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
	led := &leading{l: e.line()}
	r := &request{op: op, kind: latchKind, data: data, owner: led}
	if err := led.l.heldUnder(ctx, r); err != nil {
		return nil, opError(op, e.path.full, err)
	}
	r.trail = e.c.trail("election", e.path.full, op)
	if e.stepDown {
		r.contact = new(contact)
	}
	h, err := led.l.acquire(ctx, r)
	if err != nil {
		return nil, err
	}
	if r.contact != nil {
		// If the client is closed by now, the term has ended with it.
		e.c.goWork(func() { h.endSuspended(*r.contact) })
	}
	return &Term{h, led}, nil
}

// endSuspended ends the hold as soon as its session is suspended.
func (h *Hold) endSuspended(at contact) {
	if at.phase == backend.PhaseConnected {
		select {
		case <-at.changed: // also when contact is back already
		case <-h.Done():
			return
		}
	}
	if h.Err() == nil { // it looks for a lost session first
		h.lose(ErrSuspended)
	}
}

// Run campaigns, and calls f when it leads, with a context that ends with the
// term; then it resigns. If the term was lost before f returned, Run campaigns
// again, and f is called again with the next term; f has returned by then, so it
// never runs twice at a time. f should return when its context ends. What f
// returned after a loss is only logged.
//
// Run returns when f returned while its term stood or was released by f, with
// what f returned and the error of resigning, joined. (So too when ctx ends while
// it leads: then f's context ends, and what f returns counts.) It returns also
// when ctx ends while it does not lead, with the error of ctx; and when it cannot
// campaign, see Campaign.
func (e *Election) Run(ctx context.Context, f func(ctx context.Context, t *Term) error) error {
	for {
		again := false
		var t *Term
		campaign := func(ctx context.Context) (h *Hold, err error) {
			if t, err = e.Campaign(ctx); err != nil {
				return nil, err
			}
			return t.Hold, nil
		}
		err := do(ctx, campaign, func(held context.Context, _ *Hold) error {
			err := f(held, t)
			again = errors.Is(t.Err(), ErrLost)
			if again && err != nil {
				e.c.log.Info("coord: what led returned an error after its term was lost", "path", t.Path(), "error", err)
			}
			return err
		})
		if !again {
			return err
		}
	}
}

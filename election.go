package coord

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"unicode/utf8"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/layout"
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
	// before the service lets another candidate lead, as far as this can be promised;
	// see Hold.
	StepDownOnSuspend bool
}

// An Election chooses one leader among the candidates on one path (the leader
// election of the ZooKeeper recipe guide, without the herd effect). Candidates lead
// in the order of their arrival. No candidate polls, and a change of leader wakes at
// most two candidates, however many there are.
//
// A leader has a Term, which is a Hold: it can be lost, it reports the loss, and it
// carries a token that grows from one leader to the next and a guard for
// transactions. The guarantees are those of a Mutex.
//
// Run is the way to lead that is hard to get wrong: it calls a function while the
// candidate leads, with a context that ends with the term. Leadership is for programs
// that select on a channel. Both are built on Campaign.
//
// Layout: path is a directory (a container, created on first use together with its
// missing parents), which belongs to the election: its data names the recipe. Each
// candidate has a node in it, ephemeral and sequential, named
// _c_<uuid>-latch-<number>, as in Curator's LeaderLatch. The data of the node is the
// ID; if there is Data, it is JSON under the key "coord-candidate". The announcement
// of a leader is the data of a node _c_<uuid>-ready-<number> beside the leader's
// node.
//
// Curator's LeaderLatch and this Election elect one leader on one path. This Election
// also understands the names of kazoo's Election. kazoo's Election understands the
// names of this one if its lock attribute is replaced by client.Lock(path, id,
// extra_lock_patterns=["-latch-"]); without that, its candidate leads at the same
// time as one of this Election.
//
// An Election is safe for concurrent use and holds no resources; there is nothing to
// close. Each campaign is a separate candidate, also within one client.
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

// A Term is the time for which a candidate leads. Release resigns. A Term is safe for
// concurrent use.
type Term struct {
	*Hold
	led *leading
}

func (e *Election) line() *line { return &line{c: e.c, dir: e.path.full, kinds: layout.LatchLine} }

// Campaign waits until the candidate leads, or ctx ends. ctx bounds the campaign
// only, not the term. A session that is lost during the wait does not end the
// campaign: it goes on at the tail of the queue with the next session. If Campaign
// returns an error, the candidate's node is gone, as with Mutex.Lock.
//
// The errors are those of Mutex.Lock.
func (e *Election) Campaign(ctx context.Context) (*Term, error) {
	const op = "campaign"
	if err := e.path.check(op); err != nil {
		return nil, err
	}
	if !utf8.ValidString(e.own.ID) {
		return nil, opError(op, e.path.full, fmt.Errorf("%w: the ID is not text", ErrInvalid))
	}
	if err := backend.ContextError(ctx); err != nil {
		return nil, opError(op, e.path.full, err)
	}
	data, err := e.own.encode()
	if err != nil {
		return nil, opError(op, e.path.full, err)
	}
	led := &leading{l: e.line()}
	r := &request{op: op, kind: layout.LatchInfix, data: data, owner: led}
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
		case <-at.changed: // also if contact has returned already
		case <-h.Done():
			return
		}
	}
	if h.Err() == nil { // Err checks for a lost session first
		h.lose(ErrSuspended)
	}
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
// ctx; and when it cannot campaign, see Campaign.
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
				e.c.log.Info("coord: the function of Run returned an error after its term was lost", "path", t.Path(), "error", err)
			}
			return err
		})
		if !again {
			return err
		}
	}
}

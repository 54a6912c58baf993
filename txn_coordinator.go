package coord

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/trace"
)

// CoordinatorOptions may be nil.
type CoordinatorOptions[T any] struct {
	// Codec of the payload. The zero value is JSON. Participants need the same.
	Codec Codec[T]

	// Timeout is the time for the votes of a Proposal without a Deadline. The
	// default is 30 s.
	Timeout time.Duration

	// KeepRecords has every record stay until Forget is called for it, so that a retry
	// of Propose is safe even when the process died after Propose had returned
	// and before it took note of the decision.
	KeepRecords bool

	// Unserved says what Propose does about a site that no process serves. The default is
	// FailUnserved.
	Unserved Unserved
}

// A Coordinator proposes transactions to sites and decides them: the two-phased
// commit of the ZooKeeper recipe guide. A transaction here is one that is voted
// on; the writes that the service applies at once are a [Txn]. Each site is served by a [Participant], in any process. A transaction
// commits if every site votes yes, and aborts otherwise; all sites learn of the
// same decision, whatever crashes.
//
// It does not block. A site that has voted yes waits for the decision, and if the
// coordinator is gone then not longer than until the deadline of the transaction:
// after it any site decides. Nor does a dead site hold up a decision: when its session
// has ended the transaction aborts, unless the site has voted; see Unserved. (A site that
// is dead when a commit was decided commits when it is served again.)
//
// It makes no more of the sites than they are: while some have committed and
// others not yet, who reads both sees that. And it cannot undo what an operator
// does who deletes nodes of it: see ErrInDoubt.
//
// A transaction costs a number of requests that grows as the number of its sites.
// There is room for MaxSites sites; all that Propose writes is one request, with a
// payload of at most some 700 kB.
//
// Layout: below path, tx/<id> is the record of a transaction. In it stand
// open-<mark>, as long as the proposer has not been told; live-<uuid>, ephemeral,
// for each Propose under way; yes-<zxid>-<site>, a vote; and decision-<zxid>.
// sites/<site> is the inbox of a site, and <id>~<mark> in it a branch.
// serving/<site> is the lock of the process that serves the site, as a Mutex has
// it, and present/<site>, ephemeral, says that it does. The nodes are removed when they are done with, see Propose; inboxes stay.
// Who deletes a record by hand destroys its decision, see ErrInDoubt.
//
// A Coordinator is safe for concurrent use and holds nothing.
type Coordinator[T any] struct {
	txSpace
	opts CoordinatorOptions[T]
}

// A Proposal is a transaction that is to be.
type Proposal[T any] struct {
	// ID names the transaction: the name of a node, of at most 200 bytes. It is
	// what makes a retry find the first attempt.
	ID string
	// Sites are the names of those who vote. Each must be served, see Unserved; it must
	// have been served once in any case.
	Sites []string
	// Payload is what they vote on.
	Payload T
	// Deadline is when the transaction is aborted if votes are missing, by the
	// clocks of the coordinator and of the sites. Those of them that are ahead may
	// abort earlier; no clock can make sites disagree. The zero Time means Timeout
	// of the options from now; later than the year 9999 means its end.
	Deadline time.Time
}

// NewCoordinator returns a coordinator of the transactions at path. It does no
// I/O; a bad path or option is reported by the first call.
func NewCoordinator[T any](c *Client, path string, o *CoordinatorOptions[T]) *Coordinator[T] {
	co := &Coordinator[T]{txSpace: txSpace{c, c.recipePath(path)}}
	if o != nil {
		co.opts = *o
	}
	co.opts.Codec = co.opts.Codec.orJSON()
	if co.opts.Timeout == 0 {
		co.opts.Timeout = 30 * time.Second
	}
	if co.opts.Timeout < 0 && co.path.err == nil {
		co.path.err = fmt.Errorf("%w: negative Timeout", ErrInvalid)
	}
	if u := co.opts.Unserved; (u < FailUnserved || u > AwaitUnserved) && co.path.err == nil {
		co.path.err = fmt.Errorf("%w: Unserved %d", ErrInvalid, int8(u))
	}
	return co
}

// Propose proposes a transaction and returns its decision when it has been made.
// An abort is no error; Reason says why. Decision.ID is set in any case.
//
// The same ID again is the same transaction, not a second one, as long as its
// record stands: Propose then waits for its decision, whoever proposed it first,
// and returns it. The record stands until a Propose of it has returned, or Recover
// has told of it, and the sites have acknowledged; with KeepRecords, until Forget. So
// after a crash or an error the way to learn the decision is to propose the same
// again. The record goes in the background, a moment after Propose has returned and its
// sites have acknowledged, and Close waits for Propose's part in that while the service
// answers. A process that dies right then leaves it to Recover, and until that is called
// the ID stands for the old transaction. Do not use an ID again. A proposal with other
// sites or another payload (as the codec encodes it) under an ID that stands is
// ErrDuplicate.
//
// If ctx ends first, and nobody else proposes it, the transaction is aborted unless
// it was decided already; propose it again to learn which. Lost sessions do not end
// the call, with one exception: ErrUncertain if the session was lost while the
// transaction was being made, so that it may stand or not; propose it again.
// ErrNotFound: a site that was never served; or that is not served, see Unserved; the text
// says which. Nothing was made then.
// ErrInDoubt: the decision was overwritten by an outsider; or the record vanished while
// this call waited for the decision: deleted by an outsider, or told to a Recover that took this proposer for gone, or
// to another Propose of the same id while this one had no session.
// ErrInvalid, ErrTooLarge: a proposal that cannot be.
func (co *Coordinator[T]) Propose(ctx context.Context, p Proposal[T]) (Decision, error) {
	none := Decision{ID: p.ID}
	if err := co.path.check("propose"); err != nil {
		return none, err
	}
	fail := func(err error) (Decision, error) {
		if isClosed(err) && !isUncertain(err) {
			err = ErrClosed
		}
		return none, opError("propose", co.path.full, err)
	}
	rec, err := co.newRecord(p)
	if err != nil {
		return fail(err)
	}
	if err := backend.ContextError(ctx); err != nil {
		return fail(err)
	}
	q := &proposing{txSpace: &co.txSpace, id: p.ID, rec: rec, unserved: co.opts.Unserved}
	began := time.Now()
	for {
		s, err := co.c.session(ctx)
		if err != nil {
			return fail(err)
		}
		d, err := q.enter(ctx, s)
		var o *outcome
		if err == nil {
			if !q.told {
				q.told = true
				tell(ctx, co.c, trace.ProposalMade{Subject: co.subject("propose", d.path), Proposal: d.id, Sites: len(d.rec.Sites)})
			}
			o, err = q.await(ctx, s, d)
		}
		switch {
		case err == nil:
			// Not before the caller knows it: after a crash in between, a retry
			// must find the transaction.
			co.c.goCleanUp(func(ctx context.Context, u *cleanUp) { q.finish(ctx, u, d, true) })
			tell(ctx, co.c, trace.ProposalDecided{Subject: co.subject("propose", d.path), Proposal: d.id,
				Commit: o.Commit, By: o.By, Took: time.Since(began)})
			return o.decision(d), nil
		case errors.Is(err, backend.ErrSessionLost) && ctx.Err() == nil && !errors.Is(err, errMaybe):
			continue
		}
		if errors.Is(err, errMaybe) && !q.maybe && ctx.Err() == nil {
			q.maybe = true // the next session may tell
			continue
		}
		if q.begun {
			if q.tx != nil && !q.other {
				d = q.tx
			}
			co.c.goCleanUp(func(ctx context.Context, u *cleanUp) { q.finish(ctx, u, d, false) })
		}
		if cause := backend.ContextError(ctx); cause != nil {
			err = cause
		}
		return fail(err)
	}
}

// newRecord is the record of a proposal.
func (co *Coordinator[T]) newRecord(p Proposal[T]) (rec txRecord, err error) {
	if err := checkID("ID", p.ID); err != nil {
		return rec, err
	}
	if len(p.Sites) == 0 || len(p.Sites) > MaxSites {
		return rec, fmt.Errorf("%w: %d sites, want 1 to %d", ErrInvalid, len(p.Sites), MaxSites)
	}
	rec.Sites = slices.Clone(p.Sites)
	slices.Sort(rec.Sites)
	for i, site := range rec.Sites {
		if err := checkID("site", site); err != nil {
			return rec, err
		}
		if i > 0 && site == rec.Sites[i-1] {
			return rec, fmt.Errorf("%w: site %q twice", ErrInvalid, site)
		}
	}
	if rec.Payload, err = co.opts.Codec.encode(p.Payload); err != nil {
		return rec, err
	}
	if p.Deadline.IsZero() {
		p.Deadline = time.Now().Add(co.opts.Timeout)
	}
	rec.Deadline = maxDeadline // what is later overflows
	if p.Deadline.Before(time.UnixMilli(maxDeadline)) {
		rec.Deadline = p.Deadline.UnixMilli()
	}
	rec.Mark, rec.Keep = co.c.newGUID(p.ID), co.opts.KeepRecords
	return rec, nil
}

package coord

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-coord/coord/internal/core"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/layout"
	"github.com/go-coord/coord/trace"
)

// CoordinatorOptions may be nil.
type CoordinatorOptions[T any] struct {
	// Codec of the payload. The zero value is JSON. Participants need the same.
	Codec Codec[T]

	// Timeout bounds the wait for the votes of a Proposal without a Deadline. The
	// default is 30 s.
	Timeout time.Duration

	// KeepRecords keeps every record until Forget is called for it. Then a retry of
	// Propose is safe even if the process died after Propose had returned and before
	// it took note of the decision.
	KeepRecords bool

	// Unserved says what Propose does about a site that no process serves. The default is
	// FailUnserved.
	Unserved Unserved
}

// A Coordinator proposes transactions to sites and decides them: the two-phase commit of
// the ZooKeeper recipe guide. Sites vote on such a transaction; writes that the service
// applies at once are a [Txn]. A [Participant] serves each site, in any process. A
// transaction commits if every site votes yes, and aborts otherwise. All sites learn the
// same decision, also after crashes.
//
// The protocol does not block. A site that has voted yes waits for the decision, but at
// most until the deadline of the transaction: after that any site decides. A dead site
// does not delay the decision: if it has not voted, the transaction aborts when its session
// has ended; see Unserved. If a site is dead when the decision is commit, it commits when a
// process serves it again.
//
// The sites are not isolated: a reader can see some sites committed before others. If an
// operator deletes the nodes of a transaction, it can be in doubt: see ErrInDoubt.
//
// A transaction can have MaxSites sites, or fewer if the service takes less in one commit
// (backend.Limits), and a payload of at most some 700 kB. Its requests grow linearly with
// the number of sites.
//
// A Coordinator is safe for concurrent use and needs no closing. layout.md describes its
// nodes.
type Coordinator[T any] struct {
	txSpace
	opts CoordinatorOptions[T]
}

// A Proposal is a transaction to be proposed.
type Proposal[T any] struct {
	// ID names the transaction: the name of a node, of at most 200 bytes. By the ID a
	// retry finds the first attempt.
	ID string
	// Sites are the names of the sites that vote. Each must be served, see Unserved;
	// in any case it must have been served once.
	Sites []string
	// Payload is what the sites vote on.
	Payload T
	// Deadline is the time at which the transaction is aborted if votes are missing,
	// by the clocks of the coordinator and of the sites. A process whose clock is
	// ahead may abort earlier; no clock can make sites disagree. The zero Time means
	// Timeout of the options from now; a time after the year 9999 means its end.
	Deadline time.Time
}

// NewCoordinator returns a coordinator of the transactions at path. It does no
// I/O; a bad path or option is reported by the first call.
func NewCoordinator[T any](c *Client, path string, o *CoordinatorOptions[T]) *Coordinator[T] {
	co := &Coordinator[T]{txSpace: txSpace{c.core(), c.core().Path(path)}}
	if o != nil {
		co.opts = *o
	}
	co.opts.Codec = co.opts.Codec.orJSON()
	if co.opts.Timeout == 0 {
		co.opts.Timeout = 30 * time.Second
	}
	if co.opts.Timeout < 0 {
		co.path.Refuse(fmt.Errorf("%w: negative Timeout", ErrInvalid))
	}
	if u := co.opts.Unserved; u < FailUnserved || u > AwaitUnserved {
		co.path.Refuse(fmt.Errorf("%w: unknown Unserved policy %d", ErrInvalid, int8(u)))
	}
	return co
}

// Propose proposes a transaction and returns its decision. An abort is not an error; Reason
// says why. Decision.ID is set in any case.
//
// While the record of a transaction exists, a proposal with its ID waits for the same
// decision. So after a crash or an error, propose it again. The record is removed in the
// background after a Propose or Recover has returned the decision and the sites have
// acknowledged; with KeepRecords, by Forget. If a process crashes after that and has not
// stored the decision, its next proposal is a new transaction. Do not reuse an ID.
//
// If ctx ends first, an undecided transaction is aborted unless another Propose of it runs.
// If the session is lost while the transaction is created, the error matches ErrUncertain;
// later losses do not end the call. Propose again in both cases.
//
// Errors: ErrDuplicate if another proposal has the ID; ErrNotFound if a site is not served,
// see Unserved; ErrInvalid; ErrTooLarge; ErrInDoubt if the decision is gone.
func (co *Coordinator[T]) Propose(ctx context.Context, p Proposal[T]) (Decision, error) {
	core.NeedContext(ctx)
	none := Decision{ID: p.ID}
	if err := co.path.Check("propose"); err != nil {
		return none, err
	}
	fail := func(err error) (Decision, error) {
		if core.IsClosed(err) && !core.IsUncertain(err) {
			err = ErrClosed
		}
		return none, core.OpError("propose", co.path.Full(), err)
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
		s, err := co.c.Live(ctx)
		if err != nil {
			return fail(err)
		}
		d, err := q.enter(ctx, s)
		var o *layout.Outcome
		if err == nil {
			if !q.told {
				q.told = true
				core.Emit(ctx, co.c, trace.ProposalMade{Subject: co.subject("propose", d.path), Proposal: d.id, Sites: len(d.rec.Sites)})
			}
			o, err = q.await(ctx, s, d)
		}
		switch {
		case err == nil:
			// The open node is removed while the call returns, and not earlier: after
			// a crash before that, a retry must find the transaction.
			co.c.GoCleanUp(func(ctx context.Context, u *core.CleanUp) { q.finish(ctx, u, d, true) })
			core.Emit(ctx, co.c, trace.ProposalDecided{Subject: co.subject("propose", d.path), Proposal: d.id,
				Commit: o.Commit, By: o.By, Took: time.Since(began)})
			return d.result(o), nil
		case errors.Is(err, backend.ErrSessionLost) && ctx.Err() == nil && !errors.Is(err, errMaybe):
			continue
		}
		if errors.Is(err, errMaybe) && !q.maybe && ctx.Err() == nil {
			q.maybe = true // the next session may find out
			continue
		}
		if q.begun {
			if q.tx != nil && !q.other {
				d = q.tx
			}
			co.c.GoCleanUp(func(ctx context.Context, u *core.CleanUp) { q.finish(ctx, u, d, false) })
		}
		if cause := backend.ContextError(ctx); cause != nil {
			err = cause
		}
		return fail(err)
	}
}

// newRecord returns the record of a proposal.
func (co *Coordinator[T]) newRecord(p Proposal[T]) (rec layout.Record, err error) {
	if err := co.checkID("ID", p.ID); err != nil {
		return rec, err
	}
	if len(p.Sites) == 0 || len(p.Sites) > MaxSites {
		return rec, fmt.Errorf("%w: %d sites, want 1 to %d", ErrInvalid, len(p.Sites), MaxSites)
	}
	// The commit that decides checks every vote. If it were refused, the sites would have
	// voted in vain.
	if most := co.c.Rules().Limits().Checks; most > 0 && len(p.Sites) > most {
		return rec, fmt.Errorf("%w: %d sites, limit %d", ErrTooLarge, len(p.Sites), most)
	}
	rec.Sites = slices.Clone(p.Sites)
	slices.Sort(rec.Sites)
	for i, site := range rec.Sites {
		if err := co.checkID("site", site); err != nil {
			return rec, err
		}
		if i > 0 && site == rec.Sites[i-1] {
			return rec, fmt.Errorf("%w: site %q is given twice", ErrInvalid, site)
		}
	}
	if rec.Payload, err = co.opts.Codec.encode(p.Payload); err != nil {
		return rec, err
	}
	if p.Deadline.IsZero() {
		p.Deadline = time.Now().Add(co.opts.Timeout)
	}
	rec.Deadline = layout.MaxDeadline // a later time overflows
	if p.Deadline.Before(time.UnixMilli(layout.MaxDeadline)) {
		rec.Deadline = p.Deadline.UnixMilli()
	}
	rec.Mark, rec.Keep = co.c.NewGUID(p.ID), co.opts.KeepRecords
	return rec, nil
}

package twophase

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/layout"
	"github.com/go-coord/coord/trace"
)

// Options are the options of a Coordinator.
type Options struct {
	Timeout     time.Duration // of a proposal without a deadline; 0 means 30 s
	KeepRecords bool          // records are kept until Forget
	Unserved    Unserved
}

// A Coordinator proposes transactions and decides them.
type Coordinator struct {
	space
	opts Options
}

// A Proposal is a transaction to be proposed.
type Proposal struct {
	ID       string
	Sites    []string
	Payload  func() ([]byte, error) // called if the other fields are valid
	Deadline time.Time              // if it is zero, Timeout of the options from now
}

// NewCoordinator returns a coordinator of the transactions at path. The first call reports a
// bad path or option.
func NewCoordinator(c *core.Client, path string, o Options) *Coordinator {
	co := &Coordinator{space: space{c, c.Path(path)}, opts: o}
	if co.opts.Timeout == 0 {
		co.opts.Timeout = 30 * time.Second
	}
	if co.opts.Timeout < 0 {
		co.path.Refuse(fmt.Errorf("%w: negative Timeout", backend.ErrInvalid))
	}
	if u := co.opts.Unserved; u < FailUnserved || u > AwaitUnserved {
		co.path.Refuse(fmt.Errorf("%w: unknown Unserved policy %d", backend.ErrInvalid, int8(u)))
	}
	return co
}

// Propose proposes a transaction and returns its decision. If a session is lost, it continues
// with the next one.
func (co *Coordinator) Propose(ctx context.Context, p Proposal) (Decision, error) {
	core.NeedContext(ctx)
	none := Decision{ID: p.ID}
	if err := co.path.Check("propose"); err != nil {
		return none, err
	}
	fail := func(err error) (Decision, error) {
		if errs.IsClosed(err) && !backend.IsUncertain(err) {
			err = backend.ErrClosed
		}
		return none, errs.Op("propose", co.path.Full(), err)
	}
	rec, err := co.newRecord(p)
	if err != nil {
		return fail(err)
	}
	if err := backend.ContextError(ctx); err != nil {
		return fail(err)
	}
	q := &proposing{space: &co.space, id: p.ID, rec: rec, unserved: co.opts.Unserved}
	began := time.Now()
	for {
		s, err := co.c.Live(ctx)
		if err != nil {
			return fail(err)
		}
		d, err := q.enter(ctx, s)
		var o *layout.Outcome
		if err == nil {
			if !q.made {
				q.made = true
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
func (co *Coordinator) newRecord(p Proposal) (rec layout.Record, err error) {
	if err := co.checkID("ID", p.ID); err != nil {
		return rec, err
	}
	if len(p.Sites) == 0 || len(p.Sites) > layout.MaxSites {
		return rec, fmt.Errorf("%w: %d sites, want 1 to %d", backend.ErrInvalid, len(p.Sites), layout.MaxSites)
	}
	// The commit that decides checks every vote. If it were refused, the sites would have
	// voted in vain.
	if most := co.c.Rules().Limits().Checks; most > 0 && len(p.Sites) > most {
		return rec, fmt.Errorf("%w: %d sites, limit %d", backend.ErrTooLarge, len(p.Sites), most)
	}
	rec.Sites = slices.Clone(p.Sites)
	slices.Sort(rec.Sites)
	for i, site := range rec.Sites {
		if err := co.checkID("site", site); err != nil {
			return rec, err
		}
		if i > 0 && site == rec.Sites[i-1] {
			return rec, fmt.Errorf("%w: site %q is given twice", backend.ErrInvalid, site)
		}
	}
	if rec.Payload, err = p.Payload(); err != nil {
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

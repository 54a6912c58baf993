package twophase

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/backoff"
	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/layout"
	"github.com/go-coord/coord/trace"
)

// branchWork is a site's work on one transaction: to vote, to wait for the decision,
// to carry it out, to acknowledge. The rules that it cites are in transaction.go.
type branchWork struct {
	*serving
	name string // of the branch
	path string
	id   string

	// As last read, or written by this process.
	version int32          // of the branch
	vote    string         // in it, "" if there is none
	zxid    int64          // the branch's czxid, and so its record's
	d       *transaction   // nil if the record is gone
	unread  error          // the record exists and cannot be read; d has only its names then
	bad     *backend.Error // as unread, or the decision is lost or cannot be read: why the site is in doubt if it has voted yes
	retried bool           // this is not the first look at the branch

	w     *backend.Watch // for the decision, armed or nil
	gone  *backend.Watch // for the deletion of the record, armed with w
	since time.Time      // since when a yes has waited for the decision
	pause backoff.Pauses
}

// errDone reports that the branch is gone: the site is done with the transaction.
var errDone = errors.New("acknowledged")

// run takes the transaction to its end. An error ends the serving of the site: it is
// that of ctx, or of the session. Any other failure concerns this transaction alone,
// and is tried again.
func (b *branchWork) run(ctx context.Context) error {
	defer b.unwatch()
	for {
		o, err := b.look(ctx)
		if err == nil {
			err = b.step(ctx, o)
		}
		switch {
		case errors.Is(err, errDone):
			if b.d == nil {
				return nil
			}
			return b.clear(ctx, b.name, b.d)
		case err == nil, errors.Is(err, errs.ErrAgain):
		case errs.IsOver(err) || ctx.Err() != nil:
			return err
		default:
			b.c.Log().Warn("coord: a site cannot process a transaction, retrying",
				"site", b.site, "transaction", b.id, "error", err)
		}
		b.retried = true
		b.pause.Wait(ctx.Done(), b.s.Backend().Done())
		if err := backend.ContextError(ctx); err != nil {
			return err
		}
	}
}

// look reads the branch, the decision and the record, in this order.
func (b *branchWork) look(ctx context.Context) (*layout.Outcome, error) {
	for again := false; ; again = true {
		data, stat, err := b.s.Backend().Get(ctx, b.path, nil)
		if errs.IsNotFound(err) {
			return nil, errDone
		}
		if err != nil {
			return nil, err
		}
		b.vote = layout.BranchVote(data)
		b.version, b.zxid = stat.Version, stat.Czxid
		o, err := b.decided(ctx)
		switch {
		case err != nil:
			return nil, err
		case b.version == 0 && !again && (o != nil && o.Commit || b.bad != nil):
			// The site may have voted after the branch was read and before the decision
			// was made.
		case b.version == 1 && b.vote == layout.BranchNo, b.version == 0:
			return o, nil
		default:
			b.vote = layout.BranchYes // or an outsider has overwritten the vote, which may have been a yes, and binds the site
			return o, nil
		}
	}
}

// decided reads the decision and then the record. (In the other order, a decision
// that was removed together with its record would look like none.) If the record
// exists without a decision, b.w is armed for the decision, and b.gone for the
// deletion of the record. If the record is gone, b.d is nil.
func (b *branchWork) decided(ctx context.Context) (*layout.Outcome, error) {
	b.unwatch()
	b.unread, b.bad = nil, nil
	w, gone := backend.NewWatch(), backend.NewWatch()
	o, err := (&transaction{path: b.record(b.id), zxid: b.zxid}).outcome(ctx, b.s, w)
	if errs.IsDecode(err) {
		b.bad, err = b.doubtful(err), nil
	}
	if err != nil {
		return nil, err // w is stopped
	}
	d, err := b.load(ctx, b.s, b.id, gone)
	switch {
	case errs.IsNotFound(err), d != nil && d.zxid != b.zxid:
		d, err = nil, nil // gone, or another transaction in its place
	case errs.IsDecode(err):
		_, d.rec.Mark, _ = layout.ParseBranch(b.name)
		b.unread = err
		if b.bad == nil {
			b.bad = b.doubtful(err)
		}
		err = nil
	}
	// A site that has not voted does without this request at its first look: if the
	// decision is lost, its vote is refused.
	if err == nil && o == nil && d != nil && (b.version > 0 || b.retried) {
		if err = d.checkLost(ctx, b.s); errs.Answers(err, errs.ErrInDoubt) {
			b.bad, err = b.doubtful(err), nil
		}
	}
	if err == nil {
		b.d = d
	}
	if err != nil || o != nil || d == nil {
		w.Stop()
		gone.Stop()
		return o, err
	}
	b.w, b.gone = w, gone
	return nil, nil
}

// doubtful returns the ErrInDoubt for a node that the decision depends on, and that is
// lost or cannot be read.
func (b *branchWork) doubtful(err error) *backend.Error {
	e := &backend.Error{Op: "serve", Path: b.path, Err: err}
	errors.As(err, &e) // e names the node
	err = e.Err
	if !errors.Is(err, errs.ErrInDoubt) {
		err = fmt.Errorf("%w: %w", errs.ErrInDoubt, err)
	}
	return &backend.Error{Op: "serve", Path: e.Path, Err: err}
}

func (b *branchWork) unwatch() {
	b.w.Stop()
	b.gone.Stop()
	b.w, b.gone = nil, nil
}

// woken reads the decision after b.w or b.gone has fired. It returns errs.ErrAgain if the
// record is gone, or a node cannot be read.
func (b *branchWork) woken(ctx context.Context) (*layout.Outcome, error) {
	o, err := b.d.outcome(ctx, b.s, nil) // the likely case, in one request
	if o == nil && err == nil {
		o, err = b.decided(ctx)
	}
	if errs.IsDecode(err) || err == nil && o == nil && (b.d == nil || b.bad != nil) {
		err = errs.ErrAgain
	}
	return o, err
}

// step takes the next steps, to the end if nothing prevents that. o is the decision,
// or nil if there is none. step returns errs.ErrAgain if the state has changed since it was
// read.
func (b *branchWork) step(ctx context.Context, o *layout.Outcome) error {
	if e := b.doubt(o); e != nil {
		return b.inDoubt(ctx, e)
	}
	if o == nil && (b.d == nil || b.bad != nil && (b.bad.Path != b.d.path || b.vote == layout.BranchNo)) {
		return b.carryOut(ctx, false) // without a yes of this site it cannot have been committed
	}
	if o == nil && b.vote == "" && (b.unread != nil || time.Now().Before(b.d.rec.Due())) {
		if err := b.prepare(ctx); err != nil {
			return err
		}
	}
	if o == nil {
		if b.vote == layout.BranchYes && b.since.IsZero() {
			b.since = time.Now()
		}
		var err error
		if o, err = b.await(ctx); err != nil {
			return err
		}
		if b.doubt(o) != nil {
			return errs.ErrAgain
		}
	}
	if !b.since.IsZero() {
		core.Emit(ctx, b.c, trace.ProposalDecided{Subject: b.subject(b.path), Proposal: b.id, Site: b.site,
			Commit: o.Commit, By: o.By, InDoubt: time.Since(b.since)})
		b.since = time.Time{}
	}
	if o.Commit && b.d == nil {
		return errs.ErrAgain // the record was deleted between the two reads
	}
	return b.carryOut(ctx, o.Commit)
}

// doubt returns why the site cannot know the decision, as far as was read, and the
// node that an operator has to repair. It returns nil if the site can continue (rule 9).
func (b *branchWork) doubt(o *layout.Outcome) *backend.Error {
	switch {
	case o != nil && !o.Commit:
	case b.vote != layout.BranchYes:
		if o != nil {
			path := (&transaction{path: b.record(b.id), zxid: b.zxid}).decision()
			return &backend.Error{Op: "serve", Path: path, Err: fmt.Errorf("%w: the decision is commit, but this site has not voted", errs.ErrInDoubt)}
		}
	case b.bad != nil:
		return b.bad
	case o == nil && b.d == nil:
		// A transaction that ended in order would have waited for this site.
		return &backend.Error{Op: "serve", Path: b.path, Err: errs.ErrInDoubt}
	}
	return nil
}

// inDoubt reports that the site is in doubt, and waits until the node that the reason
// names has changed. first is the reason as first read. Only this transaction waits:
// the site continues with others meanwhile.
func (b *branchWork) inDoubt(ctx context.Context, first *backend.Error) error {
	mended := backend.NewWatch()
	defer mended.Stop()
	if _, err := b.s.Backend().Exists(ctx, first.Path, mended); err != nil && !errs.IsNotFound(err) {
		return err
	}
	// The first reads may be stale: the transaction may have ended in order.
	if err := b.s.Backend().Sync(ctx, b.path); err != nil {
		return err
	}
	o, err := b.look(ctx)
	if err != nil {
		return err
	}
	e := b.doubt(o)
	if e == nil || e.Path != first.Path {
		return errs.ErrAgain
	}
	if b.doubtOnce(b.name) {
		b.c.Log().Error("coord: a transaction is in doubt and needs an operator", "path", b.path, "error", e)
		core.Emit(ctx, b.c, trace.ProposalInDoubt{Subject: b.subject(b.path), Proposal: b.id, Site: b.site})
		if b.handler.InDoubt != nil {
			tx, _ := b.tx()
			b.call("InDoubt", func() error {
				b.handler.InDoubt(ctx, tx, e)
				return nil
			})
		}
	}
	if b.removes {
		return b.acknowledge(ctx, false) // the site is being removed, so no operator will repair the node for it
	}
	select {
	case <-mended.Fired():
	case <-b.w.Fired():
	case <-b.gone.Fired():
	case <-ctx.Done():
		return backend.ContextError(ctx)
	}
	return errs.ErrAgain
}

// prepare asks the handler for the vote and casts it (rules 4 and 5).
func (b *branchWork) prepare(ctx context.Context) error {
	verdict, err := b.ask(ctx)
	if err != nil {
		return err
	}
	ops := append(b.hold.Guard().Ops(), backend.Check(b.d.open(), backend.AnyVersion))
	vote := layout.BranchYes
	if verdict == nil {
		ops = append(ops,
			backend.SetData(b.path, []byte(layout.BranchYes), 0),
			backend.Create(b.d.vote(b.site), nil, backend.Persistent))
	} else {
		vote = layout.BranchNo
		o := layout.Outcome{By: "site " + b.site, Reason: layout.Clip(verdict.Error())}
		ops = append(ops,
			backend.SetData(b.path, layout.EncodeNo(o.Reason), 0),
			backend.Create(b.d.decision(), o.Encode(), backend.Persistent))
	}
	if _, err := b.s.Backend().Commit(ctx, ops...); err != nil {
		return b.settle(ctx, err)
	}
	b.version, b.vote = 1, vote
	core.Emit(ctx, b.c, trace.ProposalVoted{Subject: b.subject(b.path), Proposal: b.id, Site: b.site, Yes: vote == layout.BranchYes})
	return nil
}

// settle returns the error of a step whose commit failed: errs.ErrAgain, if a read reveals
// the outcome (rule 11). (If the site's hold has ended, ctx ends soon.)
func (b *branchWork) settle(ctx context.Context, err error) error {
	return b.s.LookAgain(ctx, b.path, err)
}

// ask calls Prepare, with a ctx that ends when the transaction is decided without
// this site. The verdict is the error that Prepare returned; err is errs.ErrAgain if that
// is no vote.
func (b *branchWork) ask(ctx context.Context) (verdict, err error) {
	if err := b.hold.Err(); err != nil {
		return nil, err // see conclude
	}
	tx, err := b.tx()
	if err != nil {
		return err, nil // a site that cannot decode the payload votes no
	}
	tx.d = b.d
	pctx, cancel := context.WithDeadline(ctx, b.d.rec.Due())
	defer cancel()
	free, ended := b.prepares, pctx.Done()
	var returned chan error
	looked := false
	for {
		slot := free
		if !looked && (b.w.Kind() != 0 || b.gone.Kind() != 0) {
			looked, slot = true, nil // there can be a decision: it comes before the call, once
		}
		select {
		case slot <- struct{}{}:
			free, ended = nil, nil
			returned = make(chan error, 1)
			go func() {
				defer func() { <-b.prepares }()
				returned <- b.call("Prepare", func() error {
					if err := b.handler.Prepare(pctx, tx); err != nil {
						return errors.New(err.Error()) // here, since it is a method of the program
					}
					return nil
				})
			}()
			continue
		case <-ended: // before the call
			return nil, errs.ErrAgain
		case verdict = <-returned:
			if verdict != nil && pctx.Err() != nil {
				return nil, errs.ErrAgain
			}
			return verdict, nil
		case <-b.w.Fired():
		case <-b.gone.Fired():
		}
		if o, err := b.woken(ctx); o != nil || err != nil {
			cancel()
			if returned != nil {
				<-returned
			}
			return nil, errs.ErrAgain // the caller repeats the reads, also a read that failed here
		}
	}
}

// await waits for the decision, and at the deadline decides to abort (rules 6 and 3).
func (b *branchWork) await(ctx context.Context) (*layout.Outcome, error) {
	deadline := time.NewTimer(time.Until(b.d.rec.Due()))
	defer deadline.Stop()
	for {
		select {
		case <-b.w.Fired():
		case <-b.gone.Fired():
		case <-deadline.C:
			o, err := b.d.abort(ctx, b.s, "site "+b.site, lateVotes)
			if o == nil && err == nil {
				err = errs.ErrAgain
			}
			return o, err
		case <-ctx.Done():
			return nil, b.s.ContextError(ctx)
		}
		if o, err := b.woken(ctx); o != nil || err != nil {
			return o, err
		}
	}
}

// mostCarryPause bounds the growing pause after a Commit or an Abort that has failed. The cause can
// last for hours, and the function is the program's: each call costs it something, and a line of
// the log.
const mostCarryPause = time.Minute

// carryOut calls Commit or Abort until that succeeds, and acknowledges it.
func (b *branchWork) carryOut(ctx context.Context, commit bool) error {
	pause := core.NewPauses(b.s.Client()).UpTo(mostCarryPause)
	failing := 0
	b.owe(1, 0)
	defer func() { b.owe(-1, -failing) }()
	for {
		err := b.conclude(ctx, commit)
		if err == nil {
			break
		}
		if err := backend.ContextError(ctx); err != nil {
			return err
		}
		if failing == 0 {
			failing = 1
			b.owe(0, 1)
		}
		b.c.Log().Warn("coord: a site cannot carry out a decision, retrying",
			"site", b.site, "transaction", b.id, "commit", commit, "error", err)
		pause.Wait(ctx.Done(), b.s.Backend().Done())
	}
	return b.acknowledge(ctx, commit)
}

// acknowledge deletes the branch and the vote: the site is done with the transaction
// (rule 7).
func (b *branchWork) acknowledge(ctx context.Context, commit bool) error {
	if b.d != nil {
		b.ack(b.name, b.d)
	}
	ops := append(b.hold.Guard().Ops(), backend.Delete(b.path, b.version))
	if b.d != nil && b.vote == layout.BranchYes {
		vote := b.d.vote(b.site)
		_, err := b.s.Backend().Commit(ctx, append(ops, backend.Delete(vote, backend.AnyVersion))...)
		var e *backend.Error
		if !errs.IsNotFound(err) || !errors.As(err, &e) || e.Path != vote {
			return b.acked(ctx, commit, err)
		}
		// There is no vote: the branch was written by an outsider.
	}
	_, err := b.s.Backend().Commit(ctx, ops...)
	return b.acked(ctx, commit, err)
}

// acked returns the result of an acknowledgement whose commit has returned err.
func (b *branchWork) acked(ctx context.Context, commit bool, err error) error {
	if err != nil {
		return b.settle(ctx, err)
	}
	core.Emit(ctx, b.c, trace.ProposalAcked{Subject: b.subject(b.path), Proposal: b.id, Site: b.site, Commit: commit})
	return errDone
}

// subject is the subject of trace events about node.
func (b *branchWork) subject(node string) trace.Subject { return b.space.subject("serve", node) }

// call calls a function of the handler.
func (b *branchWork) call(what string, f func() error) error {
	return b.c.Call(what, []any{"site", b.site, "transaction", b.id}, f)
}

// conclude calls Commit or Abort once.
func (b *branchWork) conclude(ctx context.Context, commit bool) error {
	select {
	case b.carries <- struct{}{}:
		defer func() { <-b.carries }()
	case <-ctx.Done():
		return backend.ContextError(ctx)
	}
	// After a pause of this process, another one may have acknowledged for the site.
	if err := b.hold.Err(); err != nil {
		return err
	}
	tx, err := b.tx()
	if !commit {
		return b.call("Abort", func() error { return b.handler.Abort(ctx, tx) })
	}
	if err != nil {
		return err
	}
	return b.call("Commit", func() error { return b.handler.Commit(ctx, tx) })
}

// tx is the transaction as the handler sees it. The error is that of its payload.
func (b *branchWork) tx() (*Branch, error) {
	tx := &Branch{ID: b.id, Zxid: b.zxid, Site: b.site, NoPayload: true, hold: b.hold, path: b.path, version: b.version}
	if b.d == nil || b.unread != nil {
		return tx, b.unread
	}
	tx.Deadline = b.d.rec.Due()
	v, err := b.handler.Decode(b.d.path, b.d.rec.Payload)
	if err != nil {
		return tx, err
	}
	tx.Payload, tx.NoPayload = v, false
	return tx, nil
}

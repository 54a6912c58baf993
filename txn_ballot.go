package coord

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/go-coord/coord/backend"
)

// What a ballot holds once it is filled in.
const (
	ballotYes = "yes"
	ballotNo  = "no"
)

// ballotWork is a site's work on one transaction: to vote, to wait for the
// decision, to carry it out, to acknowledge.
type ballotWork[T any] struct {
	*serving[T]
	name string // of the ballot
	path string
	id   string

	// As last read, or written by us.
	version int32  // of the ballot
	vote    string // in it, "" if it is not filled in
	zxid    int64  // the ballot's czxid, and so its record's
	d       *dtx   // nil if the record is gone

	w     *backend.Watch // for the decision, armed or nil
	since time.Time      // when we began to be in doubt
	pause pauses
}

// errDone says that the ballot is gone: the site is done with the transaction.
var errDone = errors.New("acknowledged")

// run takes the transaction to its end. An error is one that ends the serving of
// the site.
func (b *ballotWork[T]) run(ctx context.Context) error {
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
			err := b.s.collect(ctx, b.d)
			if err == nil {
				b.ack(b.name, nil)
			}
			return err
		case err == nil, errors.Is(err, errAgain):
			b.pause.wait(ctx.Done(), b.s.b.Done())
			if err := backend.ContextError(ctx); err != nil {
				return err
			}
		default:
			return err
		}
	}
}

// look reads the ballot, the decision and the record, in this order.
func (b *ballotWork[T]) look(ctx context.Context) (*outcome, error) {
	data, stat, err := b.s.b.Get(ctx, b.path, nil)
	if isNotFound(err) {
		return nil, errDone
	}
	if err != nil {
		return nil, err
	}
	b.vote, _, _ = strings.Cut(string(data), "\n")
	b.version, b.zxid = stat.Version, stat.Czxid
	return b.decided(ctx)
}

// decided reads the decision and then the record. (In the other order a decision
// that has gone with its record would look like none.) If there is no decision,
// b.w is armed for it; if the record is gone, b.d is nil.
func (b *ballotWork[T]) decided(ctx context.Context) (*outcome, error) {
	b.unwatch()
	w := backend.NewWatch()
	o, err := b.s.outcome(ctx, &dtx{path: b.record(b.id), zxid: b.zxid}, w)
	if err != nil {
		w.Stop()
		return nil, err
	}
	d, err := b.s.load(ctx, &b.txSpace, b.id)
	switch {
	case isNotFound(err), errors.Is(err, ErrDecode), err == nil && d.zxid != b.zxid:
		b.d, err = nil, nil // gone, or destroyed, or another one in its place
	case err == nil:
		b.d = d
	}
	if err != nil || o != nil || b.d == nil {
		w.Stop()
		return o, err
	}
	b.w = w
	return nil, nil
}

func (b *ballotWork[T]) unwatch() {
	if b.w != nil {
		b.w.Stop()
		b.w = nil
	}
}

// woken is decided after b.w has fired. It returns errAgain if the record is gone.
func (b *ballotWork[T]) woken(ctx context.Context) (*outcome, error) {
	o, err := b.s.outcome(ctx, b.d, nil) // the likely case, in one request
	if o != nil || err != nil {
		return o, err
	}
	if o, err = b.decided(ctx); err == nil && o == nil && b.d == nil {
		err = errAgain
	}
	return o, err
}

// step does what is next, to the end if nothing comes between. o is the decision as
// far as there is one. It returns errAgain when what was read does not hold any
// more.
func (b *ballotWork[T]) step(ctx context.Context, o *outcome) error {
	if b.d == nil && o == nil {
		return b.withoutRecord(ctx)
	}
	if o == nil && b.vote == "" && time.Now().Before(b.d.deadline()) {
		if err := b.prepare(ctx); err != nil {
			return err
		}
	}
	if o == nil {
		if b.vote == ballotYes && b.since.IsZero() {
			b.since = time.Now()
		}
		var err error
		if o, err = b.await(ctx); err != nil {
			return err
		}
	}
	if !b.since.IsZero() {
		tell(ctx, b.c, ProposalDecided{Where: b.where(b.path), Proposal: b.id, Site: b.site,
			Commit: o.Commit, By: o.By, InDoubt: time.Since(b.since)})
		b.since = time.Time{}
	}
	if o.Commit && (b.vote != ballotYes || b.d == nil) {
		return errAgain // the ballot was read before it was filled in
	}
	return b.carryOut(ctx, o.Commit)
}

// prepare asks for the vote and casts it.
func (b *ballotWork[T]) prepare(ctx context.Context) error {
	verdict, err := b.ask(ctx)
	if err != nil {
		return err
	}
	ops := append(b.hold.Guard().Ops(), backend.Check(b.d.open(), backend.AnyVersion))
	vote := ballotYes
	if verdict == nil {
		ops = append(ops,
			backend.SetData(b.path, []byte(ballotYes), 0),
			backend.Create(b.d.vote(b.site), nil, backend.Persistent))
	} else {
		vote = ballotNo
		o := outcome{By: "site " + b.site, Reason: clip(verdict.Error())}
		ops = append(ops,
			backend.SetData(b.path, []byte(ballotNo+"\n"+o.Reason), 0),
			backend.Create(b.d.decision(), o.encode(), backend.Persistent))
	}
	if _, err := b.s.b.Commit(ctx, ops...); err != nil {
		return b.settle(ctx, err)
	}
	b.version, b.vote = 1, vote
	tell(ctx, b.c, ProposalVoted{Where: b.where(b.path), Proposal: b.id, Site: b.site, Yes: vote == ballotYes})
	return nil
}

// settle says what to do about a commit that failed: errAgain, if reading tells.
func (b *ballotWork[T]) settle(ctx context.Context, err error) error {
	switch {
	case isUncertain(err) && !isOver(err) && ctx.Err() == nil:
		if err := b.s.b.Sync(ctx, b.path); err != nil {
			return err
		}
		return errAgain
	case isNotFound(err), errors.Is(err, backend.ErrExists), errors.Is(err, backend.ErrBadVersion):
		return errAgain // if it was our hold that is gone, ctx ends soon
	}
	return err
}

// ask calls Prepare, with a ctx that ends when the transaction is decided without
// us. The verdict is what Prepare returned; err is errAgain if that is no vote.
func (b *ballotWork[T]) ask(ctx context.Context) (verdict, err error) {
	if err := b.hold.Err(); err != nil {
		return nil, err // see call
	}
	tx, err := b.tx()
	if err != nil {
		return err, nil // who cannot read it cannot do it
	}
	pctx, cancel := context.WithDeadline(ctx, b.d.deadline())
	defer cancel()
	returned := make(chan error, 1)
	go func() {
		err := errNoReturn // if it ends its goroutine
		defer func() { returned <- err }()
		err = b.handler.Prepare(pctx, tx)
	}()
	for {
		select {
		case verdict = <-returned:
			if verdict != nil && pctx.Err() != nil {
				return nil, errAgain
			}
			return verdict, nil
		case <-b.w.Fired():
			if o, err := b.woken(ctx); o != nil || err != nil {
				cancel()
				<-returned
				return nil, errAgain // it is read again, and so is what failed
			}
		}
	}
}

var errNoReturn = errors.New("the handler's Prepare did not return")

// await waits for the decision, and at the deadline makes it.
func (b *ballotWork[T]) await(ctx context.Context) (*outcome, error) {
	deadline := time.NewTimer(time.Until(b.d.deadline()))
	defer deadline.Stop()
	for {
		select {
		case <-b.w.Fired():
			if o, err := b.woken(ctx); o != nil || err != nil {
				return o, err
			}
		case <-deadline.C:
			o, err := b.s.abort(ctx, b.d, "site "+b.site, lateVotes)
			if o == nil && err == nil {
				err = errAgain
			}
			return o, err
		case <-ctx.Done():
			return nil, backend.ContextError(ctx)
		}
	}
}

// withoutRecord deals with a ballot whose record is gone. Without a yes of ours
// the transaction cannot have been committed. With it, the record would have
// waited for us.
func (b *ballotWork[T]) withoutRecord(ctx context.Context) error {
	if b.vote != ballotYes {
		return b.carryOut(ctx, false)
	}
	if err := b.s.b.Sync(ctx, b.path); err != nil {
		return err
	}
	if o, err := b.look(ctx); err != nil || o != nil || b.d != nil {
		if err == nil {
			err = errAgain
		}
		return err
	}
	err := &backend.Error{Op: "serve", Path: b.path, Err: ErrInDoubt}
	b.c.log.Error("coord: a transaction is in doubt", "path", b.path)
	if b.handler.InDoubt == nil {
		tell(ctx, b.c, ProposalInDoubt{Where: b.where(b.path), Proposal: b.id, Site: b.site})
		return err
	}
	tell(ctx, b.c, ProposalInDoubt{Where: b.where(b.path), Proposal: b.id, Site: b.site})
	b.doubt(b.name)
	tx, _ := b.tx()
	b.handler.InDoubt(ctx, tx, err)
	return errDone
}

// carryOut does what was decided until that succeeds, and acknowledges it.
func (b *ballotWork[T]) carryOut(ctx context.Context, commit bool) error {
	pause := pauses{c: b.s.c}
	for {
		err := b.call(ctx, commit)
		if err == nil {
			break
		}
		if err := backend.ContextError(ctx); err != nil {
			return err
		}
		b.c.log.Warn("coord: a site cannot carry out a decision, trying again",
			"site", b.site, "transaction", b.id, "commit", commit, "error", err)
		pause.wait(ctx.Done(), b.s.b.Done())
	}
	ops := append(b.hold.Guard().Ops(), backend.Delete(b.path, b.version))
	if b.d != nil && b.vote == ballotYes {
		ops = append(ops, backend.Delete(b.d.vote(b.site), backend.AnyVersion))
	}
	if b.d != nil {
		b.ack(b.name, b.d)
	}
	if _, err := b.s.b.Commit(ctx, ops...); err != nil {
		return b.settle(ctx, err)
	}
	tell(ctx, b.c, ProposalAcked{Where: b.where(b.path), Proposal: b.id, Site: b.site, Commit: commit})
	return errDone
}

// where is where this is told of.
func (b *ballotWork[T]) where(node string) Where { return b.txSpace.where("serve", node) }

func (b *ballotWork[T]) call(ctx context.Context, commit bool) error {
	// After a pause another process may have acknowledged in our place.
	if err := b.hold.Err(); err != nil {
		return err
	}
	tx, err := b.tx()
	if !commit {
		return b.handler.Abort(ctx, tx)
	}
	if err != nil {
		return err
	}
	return b.handler.Commit(ctx, tx)
}

// tx is the transaction as the handler sees it. The error is that of its payload.
func (b *ballotWork[T]) tx() (Ballot[T], error) {
	tx := Ballot[T]{ID: b.id, Zxid: b.zxid, Site: b.site, NoPayload: true}
	if b.d == nil {
		return tx, nil
	}
	tx.Deadline = b.d.deadline()
	v, err := b.handler.Codec.decode(b.d.rec.Payload)
	if err != nil {
		return tx, err
	}
	tx.Payload, tx.NoPayload = v, false
	return tx, nil
}

package queue

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/layout"
	"github.com/go-coord/coord/internal/txn"
)

// An Ack in a transaction leaves the hold as it is until the transaction is known to be applied, since the
// claim must stand after a refusal. Meanwhile another call can end the claim: of the two commits, the one
// that deletes the mark wins. The transaction can also be applied without this client knowing it: its reply
// is lost or under way, its context has ended, or another transaction carries it. So while txns is not
// zero, a mark that is gone proves no loss. Then the client asks for the item, by a commit on the session of
// the claim: if the service answers, the session lives, and has not taken the mark with it. If the item is
// gone too, it is acknowledged: no consumer gets it again. Otherwise another client has deleted the mark.

// AckOp is Item.AckOp of package coord. A nil claim stands for an item of no queue.
func (cl *Claim) AckOp() txn.Op {
	if cl == nil {
		return txn.Op{Name: "ack", Err: &backend.Error{Op: "ack", Err: fmt.Errorf("%w: the item was not taken from a queue", backend.ErrInvalid)}}
	}
	return txn.Op{Name: "ack", Path: cl.e.Path(), Claim: cl.mark, Least: cl.ackOps(nil),
		Expand: cl.expandAck, Again: cl.ackAgain, Begin: cl.beginTxn, Ended: cl.endTxn, Refused: cl.refusedAck}
}

// expandAck returns the requests of the transaction. They are those of an Ack alone. If an earlier
// transaction may have acknowledged the item, or was refused where this client could not see it, expandAck
// first asks which of the nodes are there. Otherwise another transaction that carries the requests could be
// refused each time for the same reason.
func (cl *Claim) expandAck(ctx context.Context, s *core.Session, before []backend.Op) ([]backend.Op, error) {
	if slices.ContainsFunc(before, func(op backend.Op) bool { return op.Kind == backend.OpDelete && op.Path == cl.mark }) {
		return nil, fmt.Errorf("%w: the transaction acknowledges the item twice", backend.ErrInvalid)
	}
	for {
		if err := cl.hold.Err(); err != nil {
			return nil, &txn.Conflict{Err: err}
		}
		ops, again := cl.txnOps()
		if !again {
			return ops, nil
		}
		checks := make([]backend.Op, len(ops))
		for i, op := range ops {
			checks[i] = backend.Check(op.Path, backend.AnyVersion)
		}
		_, err := s.Backend().Commit(ctx, checks...)
		switch {
		case err == nil:
			return ops, nil
		case errs.Blamed(err) == 0: // the mark
			return nil, &txn.Conflict{Err: cl.refusedAck(ctx, err)}
		case errs.Blamed(err) < 0 || !cl.ackAgain(err):
			return nil, err
		}
	}
}

// txnOps returns the requests of a transaction, the one on the mark first. again reports whether there was
// another transaction before.
func (cl *Claim) txnOps() (ops []backend.Op, again bool) {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	ops = cl.ackOps(nil)
	if !slices.Contains(cl.gone, cl.e.Path()) {
		ops = append(ops, cl.q.counting(1)...)
	}
	return slices.DeleteFunc(ops, func(op backend.Op) bool { return slices.Contains(cl.gone, op.Path) }), cl.txns > 1
}

// ackAgain is called when the service refused the transaction because of one of the requests. It reports
// whether the rest can be committed without that one, as in Claim.commit.
func (cl *Claim) ackAgain(err error) bool {
	var e *backend.Error
	if !errors.As(err, &e) || e.Path == cl.mark || errors.Is(err, backend.ErrNotEmpty) && !layout.IsNote(e.Path) {
		return false
	}
	if e.Path == cl.q.out {
		cl.q.counted.Store(false)
		return true
	}
	cl.mu.Lock()
	defer cl.mu.Unlock()
	cl.gone = append(cl.gone, e.Path)
	if holder, until := cl.e.KeyAt(); holder != "" && e.Path == cl.e.TagAt() {
		cl.gone = append(cl.gone, holder, until) // see withoutNote
	}
	return true
}

// beginTxn is called before a transaction can be applied, and endTxn after it.
func (cl *Claim) beginTxn() {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	cl.txns++
}

func (cl *Claim) endTxn(o txn.Outcome) {
	switch o {
	case txn.Applied:
		cl.acknowledged()
	case txn.NotApplied:
		cl.mu.Lock()
		defer cl.mu.Unlock()
		cl.txns--
	}
}

// refusedAck returns the reason why the service has refused the transaction: the same as that of an Ack.
func (cl *Claim) refusedAck(ctx context.Context, err error) error {
	var e *backend.Error
	if !errors.As(err, &e) || e.Path != cl.mark {
		return err
	}
	if ended, _ := cl.hold.NodeGone(ctx, cl.mark); ended {
		return cl.hold.Err()
	}
	return err
}

// inTxn reports whether a transaction may have acknowledged the item.
func (cl *Claim) inTxn() bool {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	return cl.txns > 0
}

// ackedInTxn reports whether a transaction is known to have acknowledged the item.
func (cl *Claim) ackedInTxn() bool {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	return cl.acked
}

// acknowledged ends the claim after a transaction has acknowledged the item.
func (cl *Claim) acknowledged() {
	cl.mu.Lock()
	cl.acked = true
	cl.mu.Unlock()
	if cl.decide(verbAck, 0) {
		cl.hold.EndRelease(cl.end(context.Background(), nil))
	}
}

// findAcked is called when the mark is gone. It finds out whether a transaction has acknowledged the item.
// With an error that is not known.
func (cl *Claim) findAcked(ctx context.Context) (bool, error) {
	if acked := cl.ackedInTxn(); acked || !cl.inTxn() {
		return acked, nil
	}
	pause := core.NewPauses(cl.s.Client())
	for {
		_, err := cl.s.Backend().Commit(ctx, backend.Check(cl.e.Path(), backend.AnyVersion))
		switch {
		case err == nil:
			return false, nil
		case errs.IsNotFound(err):
			cl.mu.Lock()
			defer cl.mu.Unlock()
			cl.acked = true
			return true, nil
		case !errs.MayRepeat(ctx, err):
			return false, err
		}
		pause.Wait(ctx.Done(), cl.s.Backend().Done())
	}
}

// explain is called when the commit of the verb has failed with lost, since the mark is gone. If a
// transaction has acknowledged the item, that is what has ended the claim.
func (cl *Claim) explain(lost error) error {
	acked, err := cl.findAcked(context.Background()) // the session bounds it
	switch {
	case acked:
		cl.verb, cl.delay = verbAck, 0
		return nil
	case err != nil:
		return &errs.Loss{Path: cl.mark, Cause: backend.Uncertain(err)}
	}
	return lost
}

// EndIfSettled ends the hold as that of an acknowledged item if a transaction has deleted the mark.
func (cl *Claim) EndIfSettled(ctx context.Context) (bool, error) {
	acked, _ := cl.findAcked(ctx)
	if acked {
		cl.acknowledged()
		return true, nil
	}
	return false, backend.ContextError(ctx)
}

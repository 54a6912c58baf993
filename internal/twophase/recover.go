package twophase

import (
	"context"
	"fmt"
	"slices"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/layout"
	"github.com/go-coord/coord/internal/nodepath"
	"github.com/go-coord/coord/trace"
)

// Recover finishes the transactions of dead proposers, and returns the decisions that no
// proposer has received. It waits for the transactions of live proposers.
func (co *Coordinator) Recover(ctx context.Context) ([]Decision, error) {
	if err := co.path.Check("recover"); err != nil {
		return nil, err
	}
	reported := make(map[int64]bool) // by the czxid of the record
	var list []Decision
	_, err := core.OnSession(ctx, co.c, func(s *core.Session) (struct{}, error) {
		ids, err := co.txIDs(ctx, s)
		if err == nil && len(ids) == 0 {
			err = s.CheckKind(ctx, co.recipeDir()) // the path may be another recipe's
		}
		if err != nil {
			return struct{}{}, err
		}
		// The transactions that have to be waited for come last.
		for _, wait := range []bool{false, true} {
			var later []string
			for _, id := range ids {
				alive, err := co.recoverOne(ctx, s, id, wait, func(d *transaction, o *layout.Outcome) {
					if !reported[d.zxid] {
						reported[d.zxid] = true
						core.Emit(ctx, co.c, trace.ProposalDecided{Subject: co.subject("recover", d.path), Proposal: d.id, Commit: o.Commit, By: o.By})
						list = append(list, d.result(o))
					}
				})
				switch {
				case err != nil:
					return struct{}{}, err
				case alive:
					later = append(later, id)
				}
			}
			ids = later
		}
		return struct{}{}, nil
	})
	return list, errs.Op("recover", co.path.Full(), err)
}

// recoverOne finishes one transaction. It calls tell with the decision if that is
// still owed to a proposer. If wait is false and the transaction is alive, it reports
// that instead of waiting.
func (co *Coordinator) recoverOne(ctx context.Context, s *core.Session, id string, wait bool, tell func(*transaction, *layout.Outcome)) (alive bool, err error) {
	pause := core.NewPauses(s.Client())
	for {
		d, err := co.load(ctx, s, id, nil)
		if errs.IsNotFound(err) || errs.IsDecode(err) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		names, stat, err := s.Backend().Children(ctx, d.path, nil)
		if errs.IsNotFound(err) || err == nil && stat.Czxid != d.zxid {
			continue
		}
		if err != nil {
			return false, err
		}
		if i := slices.IndexFunc(names, layout.IsLive); i >= 0 {
			if !wait {
				return true, nil
			}
			if _, err := s.AwaitDeletion(ctx, d.path+"/"+names[i], nil); err != nil {
				return false, err
			}
			continue
		}
		var o *layout.Outcome
		if err = d.lost(names); err == nil {
			o, err = d.outcome(ctx, s, nil)
		}
		if err == nil && o == nil {
			o, err = d.abort(ctx, s, "recovery", "its proposer is gone")
		}
		if errs.Answers(err, errs.ErrInDoubt) {
			// Its sites report it too, and List shows it.
			s.Client().Log().Error("coord: recovery skips a transaction that is in doubt", "path", d.path, "error", err)
			return false, nil
		}
		if err != nil {
			return false, err
		}
		if o == nil {
			pause.Wait(ctx.Done(), s.Backend().Done())
			continue
		}
		if slices.Contains(names, nodepath.Base(d.open())) {
			tell(d, o) // before open is deleted: a decision reported twice is better than one never reported
			if d.rec.Keep {
				return false, nil
			}
			if err := s.Remove(ctx, d.open()); err != nil {
				return false, err
			}
			if err := s.Backend().Err(); err != nil {
				return false, err
			}
		}
		if live, err := d.collect(ctx, s); err != nil || live == "" {
			return false, err
		}
	}
}

// Forget marks the decision of a transaction as noted by the caller, so that its record is
// removed when every site has acknowledged.
func (co *Coordinator) Forget(ctx context.Context, id string) error {
	if err := co.path.Check("forget"); err != nil {
		return err
	}
	if err := co.checkID("ID", id); err != nil {
		return errs.Op("forget", co.path.Full(), err)
	}
	_, err := core.OnSession(ctx, co.c, func(s *core.Session) (struct{}, error) {
		if err := s.Backend().Sync(ctx, co.record(id)); err != nil {
			return struct{}{}, err
		}
		d, err := co.load(ctx, s, id, nil)
		if errs.IsNotFound(err) {
			return struct{}{}, s.CheckKind(ctx, co.recipeDir())
		}
		if err != nil {
			return struct{}{}, err
		}
		o, err := d.outcome(ctx, s, nil)
		if err == nil && o == nil {
			err = d.checkLost(ctx, s)
			switch {
			case err == nil:
				err = fmt.Errorf("%w: the transaction is undecided", backend.ErrInvalid)
			case errs.Answers(err, errs.ErrAgain):
				return struct{}{}, nil // another client has just removed the record
			}
		}
		if err == nil {
			err = s.Remove(ctx, d.open())
		}
		if err == nil {
			err = s.Backend().Err()
		}
		if err != nil {
			return struct{}{}, err
		}
		return struct{}{}, d.collectSoon(ctx, s)
	})
	return errs.Op("forget", co.record(id), err)
}

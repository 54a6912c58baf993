package coord

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/go-coord/coord/internal/core"

	"github.com/go-coord/coord/internal/layout"
	"github.com/go-coord/coord/trace"
)

// ProposalStatus is the state of a transaction when it was read.
type ProposalStatus struct {
	ID       string
	Zxid     int64     // of the commit that created it; distinguishes it from others with its ID
	Since    time.Time // when it was created, by the service's clock
	Deadline time.Time
	Sites    []SiteStatus // in order of their names
	Decided  bool
	Decision Decision // if Decided
	Proposed bool     // a Propose of it is under way, or has just returned
	Told     bool     // its decision is not owed to a Propose or Recover any more
	InDoubt  bool     // an outsider has overwritten or deleted the decision: see ErrInDoubt
}

// SiteStatus is one site's part in a transaction.
type SiteStatus struct {
	Site         string
	Voted        bool // yes or no
	Yes          bool
	Acknowledged bool // the site is done with the transaction
	Served       bool // a Serve of the site is under way
}

// Status returns the state of the transaction. ErrNotFound: it was never proposed, or
// it is finished and its record was removed.
func (co *Coordinator[T]) Status(ctx context.Context, id string) (ProposalStatus, error) {
	if err := co.path.Check("status"); err != nil {
		return ProposalStatus{}, err
	}
	if err := co.checkID("ID", id); err != nil {
		return ProposalStatus{}, core.OpError("status", co.path.Full(), err)
	}
	st, err := core.OnSession(ctx, co.c, func(s *core.Session) (ProposalStatus, error) {
		if err := s.Backend().Sync(ctx, co.records()); err != nil {
			return ProposalStatus{}, err
		}
		return co.txStatus(ctx, s, id)
	})
	return st, core.OpError("status", co.record(id), err)
}

// List returns the state of every transaction that has a record, in order of their
// IDs. It costs some requests for each transaction, and some for each of their sites.
func (co *Coordinator[T]) List(ctx context.Context) ([]ProposalStatus, error) {
	if err := co.path.Check("list"); err != nil {
		return nil, err
	}
	list, err := core.OnSession(ctx, co.c, func(s *core.Session) ([]ProposalStatus, error) {
		ids, err := co.txIDs(ctx, s)
		var list []ProposalStatus
		for _, id := range ids {
			st, err := co.txStatus(ctx, s, id)
			if core.IsNotFound(err) || core.IsDecode(err) {
				continue // removed since, or foreign
			}
			if err != nil {
				return nil, err
			}
			list = append(list, st)
		}
		return list, err
	})
	return list, core.OpError("list", co.path.Full(), err)
}

// txIDs lists the ids that have a record, after a Sync.
func (x *txSpace) txIDs(ctx context.Context, s *core.Session) ([]string, error) {
	ids, err := s.List(ctx, x.records())
	ids = slices.DeleteFunc(ids, func(id string) bool { return x.checkID("ID", id) != nil }) // foreign
	slices.Sort(ids)
	return ids, err
}

func (x *txSpace) txStatus(ctx context.Context, s *core.Session, id string) (ProposalStatus, error) {
	d, err := x.load(ctx, s, id, nil)
	if err != nil {
		return ProposalStatus{}, err
	}
	names, stat, err := s.Backend().Children(ctx, d.path, nil)
	if err != nil {
		return ProposalStatus{}, err
	}
	if stat.Czxid != d.zxid {
		return x.txStatus(ctx, s, id) // another transaction has taken its place
	}
	st := ProposalStatus{
		ID: id, Zxid: d.zxid, Since: time.UnixMilli(stat.Ctime), Deadline: d.rec.Due(),
		Proposed: slices.ContainsFunc(names, layout.IsLive),
		Told:     !slices.Contains(names, core.Base(d.open())),
	}
	o, err := d.outcome(ctx, s, nil)
	if err == nil && o == nil {
		err = d.lost(names)
	}
	if st.InDoubt = core.Answers(err, ErrInDoubt); err != nil && !st.InDoubt {
		return ProposalStatus{}, err
	}
	if o != nil {
		st.Decided, st.Decision = true, d.result(o)
	}
	for _, site := range d.rec.Sites {
		t := SiteStatus{Site: site}
		stat, err := s.Backend().Exists(ctx, x.branch(d, site), nil)
		if err != nil && !core.IsNotFound(err) {
			return ProposalStatus{}, err
		}
		t.Acknowledged = err != nil
		t.Yes = slices.Contains(names, core.Base(d.vote(site))) || t.Acknowledged && st.Decision.Commit
		t.Voted = t.Yes || err == nil && stat.Version > 0
		stat, err = s.Backend().Exists(ctx, x.present(site), nil)
		if err != nil && !core.IsNotFound(err) {
			return ProposalStatus{}, err
		}
		t.Served = err == nil && stat.EphemeralOwner != 0 // otherwise it is foreign
		st.Sites = append(st.Sites, t)
	}
	return st, nil
}

// Recover finishes the transactions of dead proposers: it aborts undecided transactions,
// and returns the decisions that no proposer has received. It does not wait for sites.
// It waits for transactions of live proposers until their deadlines, and for those of dead
// proposers until the service has ended their sessions.
//
// Call Recover when a coordinator starts, and from time to time, since only Recover
// collects the records that dead processes have left. A transaction that Recover has
// returned is finished and its ID is free: a new proposal with that ID makes a new
// transaction. So a program that retries Propose does that before Recover, or uses
// KeepRecords, with which Recover returns every transaction until Forget is called for it.
//
// A transaction in doubt (see ErrInDoubt) is logged and left as it is; List shows it. Nodes
// that are not records are skipped. ErrKind: the path belongs to another recipe.
func (co *Coordinator[T]) Recover(ctx context.Context) ([]Decision, error) {
	if err := co.path.Check("recover"); err != nil {
		return nil, err
	}
	told := make(map[int64]bool)
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
				alive, err := co.recoverOne(ctx, s, id, wait, func(d *dtx, o *layout.Outcome) {
					if !told[d.zxid] {
						told[d.zxid] = true
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
	return list, core.OpError("recover", co.path.Full(), err)
}

// recoverOne finishes one transaction. It calls tell with the decision if that is
// still owed to a proposer. If wait is false and the transaction is alive, it reports
// that instead of waiting.
func (co *Coordinator[T]) recoverOne(ctx context.Context, s *core.Session, id string, wait bool, tell func(*dtx, *layout.Outcome)) (alive bool, err error) {
	pause := core.NewPauses(s.Client())
	for {
		d, err := co.load(ctx, s, id, nil)
		if core.IsNotFound(err) || core.IsDecode(err) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		names, stat, err := s.Backend().Children(ctx, d.path, nil)
		if core.IsNotFound(err) || err == nil && stat.Czxid != d.zxid {
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
		if core.Answers(err, ErrInDoubt) {
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
		if slices.Contains(names, core.Base(d.open())) {
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

// Forget marks the decision of a transaction as noted by the caller: the record is
// removed as soon as every site has acknowledged. It is needed with KeepRecords only.
// A transaction without a record is forgotten already. Errors: ErrInvalid if the
// transaction is undecided; ErrInDoubt if its decision was overwritten or deleted.
func (co *Coordinator[T]) Forget(ctx context.Context, id string) error {
	if err := co.path.Check("forget"); err != nil {
		return err
	}
	if err := co.checkID("ID", id); err != nil {
		return core.OpError("forget", co.path.Full(), err)
	}
	_, err := core.OnSession(ctx, co.c, func(s *core.Session) (struct{}, error) {
		if err := s.Backend().Sync(ctx, co.record(id)); err != nil {
			return struct{}{}, err
		}
		d, err := co.load(ctx, s, id, nil)
		if core.IsNotFound(err) {
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
				err = fmt.Errorf("%w: the transaction is undecided", ErrInvalid)
			case core.Answers(err, core.ErrAgain):
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
	return core.OpError("forget", co.record(id), err)
}

package coord

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-coord/coord/trace"
)

// ProposalStatus is how a transaction stood when it was read.
type ProposalStatus struct {
	ID       string
	Zxid     int64     // the commit that made it; tells it from others with its ID
	Since    time.Time // when it was made, by the service's clock
	Deadline time.Time
	Sites    []SiteStatus // in order of their names
	Decided  bool
	Decision Decision // if Decided
	Proposed bool     // a Propose of it is under way, or has returned a moment ago
	Told     bool     // no Propose or Recover is owed its decision
	InDoubt  bool     // an outsider has overwritten the decision: see ErrInDoubt
}

// SiteStatus is one site's part in a transaction.
type SiteStatus struct {
	Site         string
	Voted        bool // yes or no
	Yes          bool
	Acknowledged bool // and so it is done with the transaction
	Served       bool // a Serve of the site is under way
}

// Status tells how the transaction stands. ErrNotFound: it was never proposed, or
// is done with.
func (co *Coordinator[T]) Status(ctx context.Context, id string) (ProposalStatus, error) {
	if err := co.path.check("status"); err != nil {
		return ProposalStatus{}, err
	}
	if err := checkID("ID", id); err != nil {
		return ProposalStatus{}, opError("status", co.path.full, err)
	}
	st, err := onSession(ctx, co.c, func(s *session) (ProposalStatus, error) {
		if err := s.b.Sync(ctx, co.records()); err != nil {
			return ProposalStatus{}, err
		}
		return co.txStatus(ctx, s, id)
	})
	return st, opError("status", co.record(id), err)
}

// List tells how all transactions stand that are not done with, in order of their
// IDs. It costs some requests for each, and some for each of their sites.
func (co *Coordinator[T]) List(ctx context.Context) ([]ProposalStatus, error) {
	if err := co.path.check("list"); err != nil {
		return nil, err
	}
	list, err := onSession(ctx, co.c, func(s *session) ([]ProposalStatus, error) {
		ids, err := co.txIDs(ctx, s)
		var list []ProposalStatus
		for _, id := range ids {
			st, err := co.txStatus(ctx, s, id)
			if isNotFound(err) || isDecode(err) {
				continue // done with since, or foreign
			}
			if err != nil {
				return nil, err
			}
			list = append(list, st)
		}
		return list, err
	})
	return list, opError("list", co.path.full, err)
}

// txIDs lists what stands, after a Sync.
func (x *txSpace) txIDs(ctx context.Context, s *session) ([]string, error) {
	ids, err := s.list(ctx, x.records())
	ids = slices.DeleteFunc(ids, func(id string) bool { return checkID("ID", id) != nil }) // foreign
	slices.Sort(ids)
	return ids, err
}

func (x *txSpace) txStatus(ctx context.Context, s *session, id string) (ProposalStatus, error) {
	d, err := x.load(ctx, s, id, nil)
	if err != nil {
		return ProposalStatus{}, err
	}
	names, stat, err := s.b.Children(ctx, d.path, nil)
	if err != nil {
		return ProposalStatus{}, err
	}
	if stat.Czxid != d.zxid {
		return x.txStatus(ctx, s, id) // another one has taken its place
	}
	st := ProposalStatus{
		ID: id, Zxid: d.zxid, Since: time.UnixMilli(stat.Ctime), Deadline: d.deadline(),
		Proposed: slices.ContainsFunc(names, isLive),
		Told:     !slices.Contains(names, base(d.open())),
	}
	o, err := d.outcome(ctx, s, nil)
	if st.InDoubt = errors.Is(err, ErrInDoubt); err != nil && !st.InDoubt {
		return ProposalStatus{}, err
	}
	if o != nil {
		st.Decided, st.Decision = true, o.decision(d)
	}
	for _, site := range d.rec.Sites {
		t := SiteStatus{Site: site}
		stat, err := s.b.Exists(ctx, x.branch(d, site), nil)
		if err != nil && !isNotFound(err) {
			return ProposalStatus{}, err
		}
		t.Acknowledged = err != nil
		t.Yes = slices.Contains(names, base(d.vote(site))) || t.Acknowledged && st.Decision.Commit
		t.Voted = t.Yes || err == nil && stat.Version > 0
		_, err = s.b.Exists(ctx, x.present(site), nil)
		if err != nil && !isNotFound(err) {
			return ProposalStatus{}, err
		}
		t.Served = err == nil
		st.Sites = append(st.Sites, t)
	}
	return st, nil
}

func isLive(name string) bool { return strings.HasPrefix(name, livePrefix) && speakable(name) }

// Recover finishes what proposers have left that are gone: transactions that are
// undecided abort, and those that nobody was told of are told of by what Recover
// returns. It does not wait for sites: they finish when they are served. It waits
// for the transactions of proposers that are alive, or that the service does not
// know to be dead yet, at most until their deadlines.
//
// Call it when a coordinator starts, and from time to time: nothing else collects the
// record of a transaction whose decision is still owed to a proposer that died; of one
// that is over and was held, to the last, by a process that died: by a proposer before it
// took its nodes back, or by a site between its acknowledgement and the look whether it
// was the last; or of one that a dead proposer's last request made after all. What is in
// the directory and is no record is passed over. A transaction in doubt (see ErrInDoubt)
// is logged and left as it is; List shows it. ErrKind: the path is another recipe's.
//
// What was returned is done with, and its ID is free again: proposing it again is a
// new transaction. So who means to retry Propose does that before, or instead; or
// uses KeepRecords, with which Recover returns all that Forget has not been called for.
func (co *Coordinator[T]) Recover(ctx context.Context) ([]Decision, error) {
	if err := co.path.check("recover"); err != nil {
		return nil, err
	}
	told := make(map[int64]bool)
	var list []Decision
	_, err := onSession(ctx, co.c, func(s *session) (struct{}, error) {
		ids, err := co.txIDs(ctx, s)
		if err == nil && len(ids) == 0 {
			err = s.meet(ctx, co.ground()) // perhaps it is not ours
		}
		if err != nil {
			return struct{}{}, err
		}
		// Those that have to be waited for come last.
		for _, wait := range []bool{false, true} {
			var later []string
			for _, id := range ids {
				alive, err := co.recoverOne(ctx, s, id, wait, func(d *dtx, o *outcome) {
					if !told[d.zxid] {
						told[d.zxid] = true
						tell(ctx, co.c, trace.ProposalDecided{Subject: co.subject("recover", d.path), Proposal: d.id, Commit: o.Commit, By: o.By})
						list = append(list, o.decision(d))
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
	return list, opError("recover", co.path.full, err)
}

// recoverOne finishes one transaction. It tells the decision if it was owed to
// somebody, and reports whether the transaction is alive, if wait is false.
func (co *Coordinator[T]) recoverOne(ctx context.Context, s *session, id string, wait bool, tell func(*dtx, *outcome)) (alive bool, err error) {
	pause := pauses{c: s.c}
	for {
		d, err := co.load(ctx, s, id, nil)
		if isNotFound(err) || isDecode(err) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		names, stat, err := s.b.Children(ctx, d.path, nil)
		if isNotFound(err) || err == nil && stat.Czxid != d.zxid {
			continue
		}
		if err != nil {
			return false, err
		}
		if i := slices.IndexFunc(names, isLive); i >= 0 {
			if !wait {
				return true, nil
			}
			if _, err := s.awaitDeletion(ctx, d.path+"/"+names[i], nil); err != nil {
				return false, err
			}
			continue
		}
		if !slices.Contains(names, base(d.open())) && !slices.Contains(names, base(d.decision())) {
			// Nobody of ours made it so, or left it so: open goes after the decision has
			// come. Nothing can abort it any more, so there is nothing to wait for.
			return false, nil
		}
		o, err := d.outcome(ctx, s, nil)
		if err == nil && o == nil {
			o, err = d.abort(ctx, s, "recovery", "its proposer is gone")
		}
		if isDecode(err) {
			// Its sites tell of it too, and List shows it.
			s.c.log.Error("coord: a transaction is in doubt", "path", d.path, "error", err)
			return false, nil
		}
		if err != nil {
			return false, err
		}
		if o == nil {
			pause.wait(ctx.Done(), s.b.Done())
			continue
		}
		if slices.Contains(names, base(d.open())) {
			tell(d, o) // before the service forgets it: told twice is better than never
			if d.rec.Keep {
				return false, nil
			}
			if err := s.remove(ctx, d.open()); err != nil {
				return false, err
			}
			if err := s.b.Err(); err != nil {
				return false, err
			}
		}
		if live, err := d.collect(ctx, s); err != nil || live == "" {
			return false, err
		}
	}
}

// Forget says that the decision of a transaction was taken note of: its record
// goes as soon as every site has acknowledged. It is needed with KeepRecords only. A
// transaction that does not stand is forgotten already; one that is undecided is
// ErrInvalid.
func (co *Coordinator[T]) Forget(ctx context.Context, id string) error {
	if err := co.path.check("forget"); err != nil {
		return err
	}
	if err := checkID("ID", id); err != nil {
		return opError("forget", co.path.full, err)
	}
	_, err := onSession(ctx, co.c, func(s *session) (struct{}, error) {
		if err := s.b.Sync(ctx, co.record(id)); err != nil {
			return struct{}{}, err
		}
		d, err := co.load(ctx, s, id, nil)
		if isNotFound(err) {
			return struct{}{}, s.meet(ctx, co.ground())
		}
		if err != nil {
			return struct{}{}, err
		}
		o, err := d.outcome(ctx, s, nil)
		if err == nil && o == nil {
			err = fmt.Errorf("%w: undecided", ErrInvalid)
		}
		if err == nil {
			err = s.remove(ctx, d.open())
		}
		if err == nil {
			err = s.b.Err()
		}
		if err != nil {
			return struct{}{}, err
		}
		return struct{}{}, d.collectSoon(ctx, s)
	})
	return opError("forget", co.record(id), err)
}

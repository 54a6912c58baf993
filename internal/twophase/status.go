package twophase

import (
	"context"
	"slices"
	"time"

	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/layout"
	"github.com/go-coord/coord/internal/nodepath"
)

// Status is the state of a transaction when it was read.
type Status struct {
	ID       string
	Zxid     int64     // of the commit that created it; distinguishes it from others with its ID
	Since    time.Time // when it was created, by the service's clock
	Deadline time.Time
	Sites    []SiteStatus // in order of their names
	Decided  bool
	Decision Decision // if Decided
	Proposed bool     // a Propose of it is under way, or has just returned
	Told     bool     // its decision is not owed to a Propose or Recover any more
	InDoubt  bool     // an outsider has overwritten or deleted the decision: see errs.ErrInDoubt
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
func (co *Coordinator) Status(ctx context.Context, id string) (Status, error) {
	if err := co.path.Check("status"); err != nil {
		return Status{}, err
	}
	if err := co.checkID("ID", id); err != nil {
		return Status{}, errs.Op("status", co.path.Full(), err)
	}
	st, err := core.OnSession(ctx, co.c, func(s *core.Session) (Status, error) {
		if err := s.Backend().Sync(ctx, co.records()); err != nil {
			return Status{}, err
		}
		return co.txStatus(ctx, s, id)
	})
	return st, errs.Op("status", co.record(id), err)
}

// List returns the state of every transaction that has a record, in order of their
// IDs. It costs some requests for each transaction, and some for each of their sites.
func (co *Coordinator) List(ctx context.Context) ([]Status, error) {
	if err := co.path.Check("list"); err != nil {
		return nil, err
	}
	list, err := core.OnSession(ctx, co.c, func(s *core.Session) ([]Status, error) {
		ids, err := co.txIDs(ctx, s)
		var list []Status
		for _, id := range ids {
			st, err := co.txStatus(ctx, s, id)
			if errs.IsNotFound(err) || errs.IsDecode(err) {
				continue // removed since, or foreign
			}
			if err != nil {
				return nil, err
			}
			list = append(list, st)
		}
		return list, err
	})
	return list, errs.Op("list", co.path.Full(), err)
}

// txIDs lists the ids that have a record, after a Sync.
func (x *space) txIDs(ctx context.Context, s *core.Session) ([]string, error) {
	ids, err := s.List(ctx, x.records())
	ids = slices.DeleteFunc(ids, func(id string) bool { return x.checkID("ID", id) != nil }) // foreign
	slices.Sort(ids)
	return ids, err
}

func (x *space) txStatus(ctx context.Context, s *core.Session, id string) (Status, error) {
	d, err := x.load(ctx, s, id, nil)
	if err != nil {
		return Status{}, err
	}
	names, stat, err := s.Backend().Children(ctx, d.path, nil)
	if err != nil {
		return Status{}, err
	}
	if stat.Czxid != d.zxid {
		return x.txStatus(ctx, s, id) // another transaction has taken its place
	}
	st := Status{
		ID: id, Zxid: d.zxid, Since: time.UnixMilli(stat.Ctime), Deadline: d.rec.Due(),
		Proposed: slices.ContainsFunc(names, layout.IsLive),
		Told:     !slices.Contains(names, nodepath.Base(d.open())),
	}
	o, err := d.outcome(ctx, s, nil)
	if err == nil && o == nil {
		err = d.lost(names)
	}
	if st.InDoubt = errs.Answers(err, errs.ErrInDoubt); err != nil && !st.InDoubt {
		return Status{}, err
	}
	if o != nil {
		st.Decided, st.Decision = true, d.result(o)
	}
	for _, site := range d.rec.Sites {
		t := SiteStatus{Site: site}
		stat, err := s.Backend().Exists(ctx, x.branch(d, site), nil)
		if err != nil && !errs.IsNotFound(err) {
			return Status{}, err
		}
		t.Acknowledged = err != nil
		t.Yes = slices.Contains(names, nodepath.Base(d.vote(site))) || t.Acknowledged && st.Decision.Commit
		t.Voted = t.Yes || err == nil && stat.Version > 0
		stat, err = s.Backend().Exists(ctx, x.present(site), nil)
		if err != nil && !errs.IsNotFound(err) {
			return Status{}, err
		}
		t.Served = err == nil && stat.EphemeralOwner != 0 // otherwise it is foreign
		st.Sites = append(st.Sites, t)
	}
	return st, nil
}

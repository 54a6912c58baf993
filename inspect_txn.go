package coord

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/layout"
)

// An InspectedTwoPhase is the transactions that are not done with, and the sites that
// were served and not removed with RemoveSite.
type InspectedTwoPhase struct {
	Transactions []InspectedTransaction `json:"transactions"`
	Sites        []InspectedSite        `json:"sites"`
}

// An InspectedTransaction is the state of a transaction; compare ProposalStatus.
type InspectedTransaction struct {
	ID       string    `json:"id"`
	Zxid     int64     `json:"zxid"`
	Since    time.Time `json:"since"`
	Deadline time.Time `json:"deadline"`

	// State is "open" (votes are missing), "prepared" (all sites have voted yes, and
	// there is no decision yet), "committed", "aborted", or "in doubt": an outsider
	// has overwritten the decision, see ErrInDoubt.
	State string `json:"state"`

	// InDoubt is the time since which a site has been bound by a yes without knowing
	// the decision. It is zero if there is no such site.
	InDoubt time.Time `json:"in_doubt_since,omitzero"`

	By       string          `json:"by,omitempty"`      // the decider, as in Decision
	Reason   string          `json:"reason,omitempty"`  // of an abort
	Proposed bool            `json:"proposed"`          // a Propose of it is under way
	Told     bool            `json:"told"`              // its decision is not owed to a Propose or Recover any more
	Kept     bool            `json:"kept,omitempty"`    // it is kept until Forget, see CoordinatorOptions
	Overdue  bool            `json:"overdue,omitempty"` // not decided at its deadline, by this client's clock
	Votes    []InspectedVote `json:"votes"`
	Size     int             `json:"size"`              // of the payload, in bytes
	Payload  []byte          `json:"payload,omitempty"` // with InspectOptions.Data
}

// An InspectedVote is one site's part in a transaction.
type InspectedVote struct {
	Site         string    `json:"site"`
	Vote         string    `json:"vote,omitempty"` // "yes", "no", or none yet
	Since        time.Time `json:"since,omitzero"` // of a yes that is not acknowledged
	Acknowledged bool      `json:"acknowledged"`   // the site is done with the transaction
	Served       bool      `json:"served"`         // a Serve of the site is under way
}

// An InspectedSite is a site and the contents of its inbox.
type InspectedSite struct {
	Site   string `json:"site"`
	Served bool   `json:"served"`
	Count  int    `json:"count"` // of branches in its inbox

	// Branches are all branches of an inbox that is inspected itself. For a site
	// among others, they are only those whose transaction is gone.
	Branches []InspectedBranch `json:"ballots,omitempty"`
}

// An InspectedBranch is one site's branch for one transaction.
type InspectedBranch struct {
	ID      string    `json:"id"` // of the transaction
	Name    string    `json:"name"`
	Since   time.Time `json:"since,omitzero"`
	Vote    string    `json:"vote,omitempty"`    // "yes", "no", or none yet
	VotedAt time.Time `json:"voted_at,omitzero"` // when the site voted

	// State is that of the transaction, as in InspectedTransaction. It is "gone" if
	// the transaction's record is gone and the site has not voted yes, so that the
	// transaction was aborted. It is "in doubt" if the record is gone and the site
	// has voted yes: an outsider has destroyed the record, see ErrInDoubt.
	State  string `json:"state"`
	Unread string `json:"unread,omitempty"`
}

// twoPhase describes the nodes that a Coordinator and Participants share.
func (x *inspector) twoPhase(ctx context.Context, k *nameKinds, add func(recipe, summary string)) error {
	if !k.fixed["tx"] && !k.fixed["sites"] && !k.fixed["serving"] && !k.fixed["present"] {
		return nil
	}
	space := &txSpace{x.s.c, x.path}
	in := &InspectedTwoPhase{Transactions: []InspectedTransaction{}, Sites: []InspectedSite{}}
	var ids, sites []string
	var err error
	if k.fixed["tx"] {
		if ids, _, _, err = x.list(ctx, space.records()); err != nil {
			return err
		}
	}
	if k.fixed["sites"] {
		if sites, _, _, err = x.list(ctx, space.path.full+"/sites"); err != nil {
			return err
		}
	}
	standing, strange, err := x.transactions(ctx, space, ids, in)
	if err != nil {
		return err
	}
	if len(in.Transactions) == 0 && len(sites) == 0 && !x.in.Truncated {
		if len(strange) > 0 || !k.fixed["serving"] && !k.fixed["present"] && len(ids) > 0 {
			return nil // only the names are those of the recipe
		}
		x.in.note("recognized by the names of its directories alone: nothing is in them")
	}
	k.claim("tx", "sites", "serving", "present")
	if len(strange) > 0 {
		x.in.note("%s among the records is none: %s", plural(len(strange), "node"), strings.Join(strange, ", "))
	}
	for _, site := range sites {
		s, ok, err := x.site(ctx, space, site, standing)
		if err != nil {
			return err
		}
		if ok {
			in.Sites = append(in.Sites, s)
		}
	}
	x.in.TwoPhase = in
	add("twophase", in.summary())
	return nil
}

// transactions describes the transactions with these ids. It returns the ids of those
// that exist, and the names of the nodes that are not records.
func (x *inspector) transactions(ctx context.Context, space *txSpace, ids []string, in *InspectedTwoPhase) (standing map[string]bool, strange []string, err error) {
	standing = make(map[string]bool)
	for _, id := range ids {
		t, ok, err := x.transaction(ctx, space, id)
		switch {
		case isDecode(err):
			strange = append(strange, printable(id))
		case err != nil:
			return nil, nil, err
		case ok:
			standing[id] = true
			in.Transactions = append(in.Transactions, t)
		}
	}
	return standing, strange, nil
}

func (in *InspectedTwoPhase) summary() string {
	open, doubt, lost := 0, 0, 0
	for _, t := range in.Transactions {
		if t.State == "open" || t.State == "prepared" || t.State == "in doubt" {
			open++
		}
		if !t.InDoubt.IsZero() {
			doubt++
		}
	}
	for _, s := range in.Sites {
		for _, b := range s.Branches {
			if b.State == "in doubt" {
				lost++
			}
		}
	}
	say := plural(len(in.Transactions), "transaction")
	if len(in.Transactions) > 0 {
		say += fmt.Sprintf(": %d undecided, %d of them in doubt at a site", open, doubt)
	}
	if lost > 0 {
		say += fmt.Sprintf(", %d destroyed by an outsider", lost)
	}
	return say + ", " + plural(len(in.Sites), "site")
}

// transaction describes one transaction. ok is false if it is gone or cannot be
// described.
func (x *inspector) transaction(ctx context.Context, space *txSpace, id string) (t InspectedTransaction, ok bool, err error) {
	if !layout.IsID(id) {
		return t, false, ErrDecode
	}
	// The record, and then the first reads of txStatus: the record, its children and
	// the decision.
	if !x.takeN(4) {
		return t, false, nil
	}
	d, err := space.load(ctx, x.s, id, nil)
	if err == nil && !x.takeN(3*len(d.rec.Sites)) {
		return t, false, nil
	}
	var st ProposalStatus
	if err == nil {
		st, err = space.txStatus(ctx, x.s, id)
	}
	switch {
	case errors.Is(err, backend.ErrDenied):
		x.in.note("no permission to read the transaction %s", printable(id))
		return t, false, nil
	case isNotFound(err), err == nil && st.Zxid != d.zxid:
		return t, false, nil // it is gone meanwhile
	case err != nil:
		return t, false, err
	}
	t = InspectedTransaction{
		ID: id, Zxid: st.Zxid, Since: st.Since.UTC(), Deadline: st.Deadline.UTC(), Proposed: st.Proposed, Told: st.Told,
		State: st.state(), By: strings.ToValidUTF8(st.Decision.By, "?"), Reason: layout.Clip(st.Decision.Reason),
		Kept:    d.rec.Keep,
		Overdue: !st.Decided && x.in.At.After(st.Deadline),
		Size:    len(d.rec.Payload), Payload: x.keep(d.rec.Payload), Votes: []InspectedVote{},
	}
	for _, s := range st.Sites {
		v := InspectedVote{Site: s.Site, Acknowledged: s.Acknowledged, Served: s.Served}
		switch {
		case s.Yes:
			v.Vote = layout.BranchYes
		case s.Voted:
			v.Vote = layout.BranchNo
		}
		if s.Yes && !s.Acknowledged {
			vote, err := x.s.b.Exists(ctx, d.vote(s.Site), nil)
			if err != nil && !isNotFound(err) {
				return t, false, err
			}
			if err == nil {
				v.Since = utc(vote.Ctime)
				if !st.Decided && (t.InDoubt.IsZero() || v.Since.Before(t.InDoubt)) {
					t.InDoubt = v.Since
				}
			}
		}
		t.Votes = append(t.Votes, v)
	}
	return t, true, nil
}

// state returns the State of an InspectedTransaction.
func (st *ProposalStatus) state() string {
	switch {
	case st.InDoubt:
		return "in doubt"
	case st.Decided && st.Decision.Commit:
		return "committed"
	case st.Decided:
		return "aborted"
	case !slices.ContainsFunc(st.Sites, func(s SiteStatus) bool { return !s.Yes }):
		return "prepared"
	}
	return "open"
}

// site describes a site. Branches of the transactions in known are only counted.
func (x *inspector) site(ctx context.Context, space *txSpace, name string, known map[string]bool) (s InspectedSite, ok bool, err error) {
	names, _, ok, err := x.list(ctx, space.inbox(name))
	if err != nil || !ok {
		return s, false, err
	}
	s.Site = name
	present, err := x.get(ctx, space.present(name), false)
	if err != nil {
		return s, false, err
	}
	s.Served = present.stat.Czxid != 0
	for _, branch := range names {
		id, _, isBranch := layout.ParseBranch(branch)
		if !isBranch {
			continue
		}
		s.Count++
		if known[id] {
			continue
		}
		b, ok, err := x.branch(ctx, space, name, branch)
		if err != nil {
			return s, false, err
		}
		// For a site among others, a branch whose transaction exists but is not
		// described is left out.
		if ok && (known == nil || b.State == "in doubt" || b.State == "gone") {
			s.Branches = append(s.Branches, b)
		}
	}
	return s, true, nil
}

// branch describes a branch. ok is false if it is gone or cannot be described.
func (x *inspector) branch(ctx context.Context, space *txSpace, site, name string) (b InspectedBranch, ok bool, err error) {
	r, err := x.get(ctx, space.inbox(site)+"/"+name, true)
	if err != nil || r.gone || r.skip {
		return b, false, err
	}
	id, _, _ := layout.ParseBranch(name)
	b = InspectedBranch{ID: id, Name: name, Unread: r.unread}
	if r.stat.Czxid == 0 || r.unread != "" {
		return b, true, nil
	}
	b.Since = utc(r.stat.Ctime)
	if vote := layout.BranchVote(r.data); vote == layout.BranchYes || vote == layout.BranchNo {
		b.Vote, b.VotedAt = vote, utc(r.stat.Mtime)
	}
	ok, err = x.branchState(ctx, space, site, r, &b)
	return b, ok, err
}

// branchState sets the state of a branch, of whose node r was read, and Unread if its
// record may not be read. It reports false if the branch is gone or cannot be
// described.
func (x *inspector) branchState(ctx context.Context, space *txSpace, site string, r seen, b *InspectedBranch) (bool, error) {
	if !x.takeN(3) {
		return false, nil
	}
	// The decision is read before the record, as by the process that serves the site.
	o, err := (&dtx{path: space.record(b.ID), zxid: r.stat.Czxid}).outcome(ctx, x.s, nil)
	var d *dtx
	if err == nil {
		d, err = space.load(ctx, x.s, b.ID, nil)
	}
	switch {
	case o != nil && o.Commit:
		b.State = "committed"
	case o != nil:
		b.State = "aborted"
	case errors.Is(err, ErrInDoubt):
		b.State = "in doubt"
	case errors.Is(err, backend.ErrDenied):
		b.Unread = "no permission to read its record"
	case err == nil && d.zxid == r.stat.Czxid:
		b.State = "open"
		if !x.take() {
			return false, nil
		}
		names, _, err := x.s.b.Children(ctx, d.path, nil)
		if err != nil && !isNotFound(err) {
			return false, err
		}
		if len(d.rec.Missing(d.zxid, names)) == 0 {
			b.State = "prepared"
		}
	case err != nil && !isNotFound(err) && !isDecode(err):
		return false, err
	default:
		// The record is gone, or another one is in its place. If the transaction had
		// ended in order, this branch would have been deleted first, so look whether
		// it was.
		again, err := x.s.b.Exists(ctx, space.inbox(site)+"/"+b.Name, nil)
		switch {
		case isNotFound(err):
			return false, nil
		case err != nil:
			return false, err
		case again.Version != r.stat.Version:
			return false, nil // its site is working on it
		}
		if b.State = "gone"; b.Vote == layout.BranchYes {
			b.State = "in doubt"
		}
	}
	return true, nil
}

// inbox describes the inbox of a site.
func (x *inspector) inbox(ctx context.Context, k *nameKinds, add func(recipe, summary string)) error {
	dir, site := parent(x.path.full), base(x.path.full)
	if len(k.branches) == 0 {
		return nil
	}
	if base(dir) != "sites" || len(parent(dir)) <= len(x.s.c.root) {
		k.foreign = append(k.foreign, k.branches...)
		x.in.note("some nodes look like the ballots of a two-phase commit, but are in no directory called sites")
		return nil
	}
	root := parent(dir)
	space := &txSpace{x.s.c, recipePath{given: strings.TrimPrefix(root, x.s.c.root), full: root}}
	s, _, err := x.site(ctx, space, site, nil)
	if err != nil {
		return err
	}
	x.in.Inbox = &s
	say := "not served"
	if s.Served {
		say = "served"
	}
	add("inbox", fmt.Sprintf("of the site %s: %s, %s", printable(site), plural(s.Count, "ballot"), say))
	return nil
}

package inspect

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

// A TwoPhase is the transactions that are not done with, and the sites that
// were served and not removed with RemoveSite.
type TwoPhase struct {
	Transactions []Transaction `json:"transactions"`
	Sites        []Site        `json:"sites"`
}

// A Transaction is the state of a transaction; compare coord.ProposalStatus.
type Transaction struct {
	ID       string    `json:"id"`
	Zxid     int64     `json:"zxid"`
	Since    time.Time `json:"since"`
	Deadline time.Time `json:"deadline"`

	// State is "open" (votes are missing), "prepared" (all sites have voted yes, and
	// there is no decision yet), "committed", "aborted", or "in doubt": an outsider
	// has overwritten or deleted the decision, see coord.ErrInDoubt.
	State string `json:"state"`

	// InDoubt is the time since which a site has been bound by a yes without knowing
	// the decision. It is zero if there is no such site.
	InDoubt time.Time `json:"in_doubt_since,omitzero"`

	By       string `json:"by,omitempty"`      // the decider, as in coord.Decision
	Reason   string `json:"reason,omitempty"`  // of an abort
	Proposed bool   `json:"proposed"`          // a Propose of it is under way
	Told     bool   `json:"told"`              // its decision is not owed to a Propose or Recover any more
	Kept     bool   `json:"kept,omitempty"`    // it is kept until Forget, see coord.CoordinatorOptions
	Overdue  bool   `json:"overdue,omitempty"` // not decided at its deadline, by this client's clock
	Votes    []Vote `json:"votes"`
	Size     int    `json:"size"`              // of the payload, in bytes
	Payload  []byte `json:"payload,omitempty"` // with Options.Data
}

// A Vote is one site's part in a transaction.
type Vote struct {
	Site         string    `json:"site"`
	Vote         string    `json:"vote,omitempty"` // "yes", "no", or none yet
	Since        time.Time `json:"since,omitzero"` // of a yes that is not acknowledged
	Acknowledged bool      `json:"acknowledged"`   // the site is done with the transaction
	Served       bool      `json:"served"`         // a Serve of the site is under way
}

// A Site is a site and the contents of its inbox.
type Site struct {
	Site   string `json:"site"`
	Served bool   `json:"served"`
	Count  int    `json:"count"` // of branches in its inbox

	// Branches are all branches of an inbox that is inspected itself. For a site
	// among others, they are only those whose transaction is gone.
	Branches []Branch `json:"ballots,omitempty"`
}

// A Branch is one site's branch for one transaction.
type Branch struct {
	ID      string    `json:"id"` // of the transaction
	Name    string    `json:"name"`
	Since   time.Time `json:"since,omitzero"`
	Vote    string    `json:"vote,omitempty"`    // "yes", "no", or none yet
	VotedAt time.Time `json:"voted_at,omitzero"` // when the site voted

	// State is that of the transaction, as in Transaction. It is "gone" if
	// the transaction's record is gone and the site has not voted yes, so that the
	// transaction was aborted. It is "in doubt" if the record is gone and the site
	// has voted yes: an outsider has destroyed the record, see coord.ErrInDoubt.
	State  string `json:"state"`
	Unread string `json:"unread,omitempty"`
}

// twoPhase describes the nodes that a Coordinator and Participants share.
func (x *inspector) twoPhase(ctx context.Context, k *nameKinds, add func(recipe, summary string)) error {
	if !k.fixed["tx"] && !k.fixed["sites"] && !k.fixed["serving"] && !k.fixed["present"] {
		return nil
	}
	sp := space{x.dir}
	in := &TwoPhase{Transactions: []Transaction{}, Sites: []Site{}}
	var ids, sites []string
	var err error
	if k.fixed["tx"] {
		if ids, _, err = x.list(ctx, sp.records()); err != nil {
			return err
		}
	}
	if k.fixed["sites"] {
		if sites, _, err = x.list(ctx, sp.sites()); err != nil {
			return err
		}
	}
	standing, strange, err := x.transactions(ctx, sp, ids, in)
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
		s, ok, err := x.site(ctx, sp, site, standing)
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

// transactions describes the transactions with these ids. It returns the names of the
// branches of those that exist, and the names of the nodes that are not records.
func (x *inspector) transactions(ctx context.Context, sp space, ids []string, in *TwoPhase) (standing map[string]bool, strange []string, err error) {
	standing = make(map[string]bool)
	for _, id := range ids {
		t, mark, err := x.transaction(ctx, sp, id)
		switch {
		case answers(err, layout.ErrDecode):
			strange = append(strange, printable(id))
		case err != nil:
			return nil, nil, err
		case mark != "":
			standing[layout.BranchName(id, mark)] = true
			in.Transactions = append(in.Transactions, t)
		}
	}
	return standing, strange, nil
}

func (in *TwoPhase) summary() string {
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

// transaction describes one transaction, and returns the mark of its record. The mark is
// empty if the transaction is gone or cannot be described.
func (x *inspector) transaction(ctx context.Context, sp space, id string) (t Transaction, mark string, err error) {
	if !layout.IsID(id) {
		return t, "", layout.ErrDecode
	}
	// The record, and then the first reads of status: the record, its children and the
	// decision.
	if !x.takeN(4) {
		return t, "", nil
	}
	rec, err := x.load(ctx, sp, id)
	if err == nil && !x.takeN(3*len(rec.Sites)) {
		return t, "", nil
	}
	if err == nil {
		t, err = x.status(ctx, sp, id)
	}
	switch {
	case errors.Is(err, backend.ErrDenied):
		x.in.note("no permission to read the transaction %s", printable(id))
		return t, "", nil
	case isNotFound(err), err == nil && t.Zxid != rec.czxid:
		return t, "", nil // it is gone meanwhile
	case err != nil:
		return t, "", err
	}
	t.Kept, t.Size, t.Payload = rec.Keep, len(rec.Payload), x.keep(rec.Payload)
	t.Overdue = !t.decided() && x.in.At.After(t.Deadline)
	for i := range t.Votes {
		v := &t.Votes[i]
		if v.Vote != layout.BranchYes || v.Acknowledged {
			continue
		}
		vote, err := x.s.Exists(ctx, sp.record(id)+"/"+layout.VoteName(t.Zxid, v.Site), nil)
		if err != nil && !isNotFound(err) {
			return t, "", err
		}
		if err == nil {
			v.Since = utc(vote.Ctime)
			if !t.decided() && (t.InDoubt.IsZero() || v.Since.Before(t.InDoubt)) {
				t.InDoubt = v.Since
			}
		}
	}
	return t, rec.Mark, nil
}

func (t *Transaction) decided() bool { return t.State == "committed" || t.State == "aborted" }

// status reads the record, the decision and the votes of a transaction.
func (x *inspector) status(ctx context.Context, sp space, id string) (t Transaction, err error) {
	rec, err := x.load(ctx, sp, id)
	if err != nil {
		return t, err
	}
	names, stat, err := x.s.Children(ctx, sp.record(id), nil)
	if err != nil {
		return t, err
	}
	if stat.Czxid != rec.czxid {
		return x.status(ctx, sp, id) // another transaction has taken its place
	}
	t = Transaction{
		ID: id, Zxid: rec.czxid, Since: utc(stat.Ctime), Deadline: rec.Due().UTC(), Votes: []Vote{},
		Proposed: slices.ContainsFunc(names, layout.IsLive), Told: !slices.Contains(names, layout.OpenName(rec.Mark)),
	}
	o, bad, err := x.outcome(ctx, sp, id, rec.czxid)
	if err != nil {
		return t, err
	}
	if o != nil {
		t.By, t.Reason = strings.ToValidUTF8(o.By, "?"), layout.Clip(o.Reason)
	}
	for _, site := range rec.Sites {
		v, err := x.vote(ctx, sp, id, rec, site, o, names)
		if err != nil {
			return t, err
		}
		t.Votes = append(t.Votes, v)
	}
	switch {
	case bad, o == nil && rec.lost(names):
		t.State = "in doubt"
	case o != nil && o.Commit:
		t.State = "committed"
	case o != nil:
		t.State = "aborted"
	case !slices.ContainsFunc(t.Votes, func(v Vote) bool { return v.Vote != layout.BranchYes }):
		t.State = "prepared"
	default:
		t.State = "open"
	}
	return t, nil
}

// vote reads one site's part in a transaction. names are the children of the record, and
// o is the decision, if there is one.
func (x *inspector) vote(ctx context.Context, sp space, id string, rec record, site string, o *layout.Outcome, names []string) (v Vote, err error) {
	branch, err := x.s.Exists(ctx, sp.inbox(site)+"/"+layout.BranchName(id, rec.Mark), nil)
	if err != nil && !isNotFound(err) {
		return v, err
	}
	v = Vote{Site: site, Acknowledged: err != nil}
	switch {
	case slices.Contains(names, layout.VoteName(rec.czxid, site)), v.Acknowledged && o != nil && o.Commit:
		v.Vote = layout.BranchYes
	case err == nil && branch.Version > 0:
		v.Vote = layout.BranchNo
	}
	present, err := x.s.Exists(ctx, sp.present(site), nil)
	if err != nil && !isNotFound(err) {
		return v, err
	}
	v.Served = err == nil && present.EphemeralOwner != 0 // otherwise it is foreign
	return v, nil
}

// space is the path of a two-phase commit, with the names of its nodes.
type space struct{ path string }

func (sp space) records() string            { return sp.path + "/tx" }
func (sp space) record(id string) string    { return sp.path + "/tx/" + id }
func (sp space) sites() string              { return sp.path + "/sites" }
func (sp space) inbox(site string) string   { return sp.path + "/sites/" + site }
func (sp space) present(site string) string { return sp.path + "/present/" + site }

// record is the record of a transaction.
type record struct {
	layout.Record
	czxid int64 // identifies the transaction
}

// lost reports whether an outsider has deleted the decision. names are the children of the
// record. The open node is deleted only after the decision was created, and the decision
// only together with the record.
func (r *record) lost(names []string) bool {
	return !slices.Contains(names, layout.OpenName(r.Mark)) && !slices.Contains(names, layout.DecisionName(r.czxid))
}

// load reads the record of the transaction called id.
func (x *inspector) load(ctx context.Context, sp space, id string) (record, error) {
	data, stat, err := x.s.Get(ctx, sp.record(id), nil)
	if err != nil {
		return record{}, err
	}
	rec, err := layout.ParseRecord(data)
	return record{rec, stat.Czxid}, err
}

// outcome reads the decision of a transaction. It returns nil if there is none yet. bad
// reports that an outsider has overwritten the decision.
func (x *inspector) outcome(ctx context.Context, sp space, id string, czxid int64) (o *layout.Outcome, bad bool, err error) {
	data, _, err := x.s.Get(ctx, sp.record(id)+"/"+layout.DecisionName(czxid), nil)
	switch {
	case isNotFound(err):
		return nil, false, nil
	case err != nil:
		return nil, false, err
	}
	o, ok := layout.ParseOutcome(data)
	return o, !ok, nil
}

// site describes a site. Branches whose names are in known are only counted. These are
// names and not ids: the record of a branch can have been destroyed, and its id used again.
func (x *inspector) site(ctx context.Context, sp space, name string, known map[string]bool) (s Site, ok bool, err error) {
	names, ok, err := x.list(ctx, sp.inbox(name))
	if err != nil || !ok {
		return s, false, err
	}
	s.Site = name
	present, err := x.get(ctx, sp.present(name), false)
	if err != nil {
		return s, false, err
	}
	s.Served = present.stat.EphemeralOwner != 0 // otherwise there is none, or a foreign node
	for _, branch := range names {
		if _, _, isBranch := layout.ParseBranch(branch); !isBranch {
			continue
		}
		s.Count++
		if known[branch] {
			continue
		}
		b, ok, err := x.branch(ctx, sp, name, branch)
		if err != nil {
			return s, false, err
		}
		if ok && known != nil && b.Unread == unreadable {
			x.in.note("no permission to read the ballot %s of the site %s", printable(branch), printable(name))
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
func (x *inspector) branch(ctx context.Context, sp space, site, name string) (b Branch, ok bool, err error) {
	r, err := x.get(ctx, sp.inbox(site)+"/"+name, true)
	if err != nil || r.gone || r.skip {
		return b, false, err
	}
	id, _, _ := layout.ParseBranch(name)
	b = Branch{ID: id, Name: name, Unread: r.unread}
	if r.stat.Czxid == 0 || r.unread != "" {
		return b, true, nil
	}
	b.Since = utc(r.stat.Ctime)
	if vote := layout.BranchVote(r.data); vote == layout.BranchYes || vote == layout.BranchNo {
		b.Vote, b.VotedAt = vote, utc(r.stat.Mtime)
	}
	ok, err = x.branchState(ctx, sp, site, r, &b)
	return b, ok, err
}

// branchState sets the state of a branch, of whose node r was read, and Unread if its
// record may not be read. It reports false if the branch is gone or cannot be
// described.
func (x *inspector) branchState(ctx context.Context, sp space, site string, r seen, b *Branch) (bool, error) {
	if !x.takeN(3) {
		return false, nil
	}
	// The decision is read before the record, as by the process that serves the site.
	o, bad, err := x.outcome(ctx, sp, b.ID, r.stat.Czxid)
	var rec record
	if err == nil && !bad {
		rec, err = x.load(ctx, sp, b.ID)
	}
	switch {
	case o != nil && o.Commit:
		b.State = "committed"
	case o != nil:
		b.State = "aborted"
	case bad:
		b.State = "in doubt"
	case errors.Is(err, backend.ErrDenied):
		b.Unread = "no permission to read its record"
	case err == nil && rec.czxid == r.stat.Czxid:
		b.State = "open"
		if !x.take() {
			return false, nil
		}
		names, stat, err := x.s.Children(ctx, sp.record(b.ID), nil)
		if err != nil && !isNotFound(err) {
			return false, err
		}
		switch {
		case err == nil && stat.Czxid == rec.czxid && rec.lost(names):
			b.State = "in doubt"
		case len(rec.Missing(rec.czxid, names)) == 0:
			b.State = "prepared"
		}
	case err != nil && !isNotFound(err) && !answers(err, layout.ErrDecode):
		return false, err
	default:
		// The record is gone, or another one is in its place. If the transaction had
		// ended in order, this branch would have been deleted first, so look whether
		// it was.
		again, err := x.s.Exists(ctx, sp.inbox(site)+"/"+b.Name, nil)
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
	dir, site := parent(x.dir), base(x.dir)
	if len(k.branches) == 0 {
		return nil
	}
	if base(dir) != "sites" || len(parent(dir)) <= len(x.root) {
		k.foreign = append(k.foreign, k.branches...)
		x.in.note("some nodes look like the ballots of a two-phase commit, but are in no directory called sites")
		return nil
	}
	s, _, err := x.site(ctx, space{parent(dir)}, site, nil)
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

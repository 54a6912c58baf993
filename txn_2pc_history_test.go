package coord_test

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
)

// txHistory replays what was applied, and checks each step against the rules of the
// protocol.
type txHistory struct {
	at      map[string]*txInstance // by id: whose record stands
	all     map[txKey]*txInstance
	commits int
}

type txKey struct {
	id   string
	zxid int64
}

// txInstance is one transaction.
type txInstance struct {
	key     txKey
	mark    string
	sites   map[string]*txSiteHistory
	decided string // "", "commit" or "abort"
	gone    bool   // the record
	since   time.Time
}

type txSiteHistory struct {
	vote                     string
	voteStands               bool
	prepares, commits, abort int
	acked                    bool
	ended                    time.Time
}

// apply takes a commit that was applied.
func (h *txHistory) apply(x *txWorld, c backendtest.Call) {
	h.commits++
	h.shape(x, c.Ops)
	for i, op := range c.Ops {
		rest, ok := strings.CutPrefix(op.Path, txPath+"/tx/")
		if ok {
			id, child, _ := strings.Cut(rest, "/")
			if child == "" {
				h.record(x, c, i, id)
			} else if in := h.at[id]; in != nil {
				h.child(x, in, op, child)
			} else if op.Kind == backend.OpCreate {
				x.errorf("history: %s of %s without a record", child, id)
			}
			continue
		}
		if rest, ok = strings.CutPrefix(op.Path, txPath+"/sites/"); ok {
			site, name, _ := strings.Cut(rest, "/")
			if i := strings.LastIndexByte(name, '~'); i > 0 {
				h.ballot(x, op, site, name[:i], name[i+1:])
			}
		}
	}
}

// shape checks that a commit has the conditions that its rule asks for, whether or
// not they made a difference this time.
func (h *txHistory) shape(x *txWorld, ops []backend.Op) {
	checks := func(part string) (n int) {
		for _, op := range ops {
			if op.Kind == backend.OpCheck && strings.Contains(op.Path, part) {
				n++
			}
		}
		return n
	}
	for _, op := range ops {
		ballot := strings.HasPrefix(op.Path, txPath+"/sites/") && strings.Contains(op.Path, "~")
		vote := strings.Contains(op.Path, "/yes-")
		decision := strings.Contains(op.Path, "/decision-")
		ok := true
		switch {
		case op.Kind == backend.OpSetData && ballot:
			ok = op.Version == 0 && checks("/serving/") == 1 && checks("/open-") == 1
		case op.Kind == backend.OpDelete && ballot:
			ok = op.Version >= 0 && checks("/serving/") == 1
		case op.Kind == backend.OpCreate && vote:
			ok = checks("/serving/") == 1 && checks("/open-") == 1
		case op.Kind == backend.OpCreate && decision && strings.Contains(string(op.Data), `"commit":true`):
			id, _, _ := strings.Cut(strings.TrimPrefix(op.Path, txPath+"/tx/"), "/")
			ok = h.at[id] != nil && checks("/yes-") == len(h.at[id].sites)
		case op.Kind == backend.OpCreate && decision:
			ok = checks("/open-") == 1
		}
		if !ok {
			x.errorf("history: a commit lacks a condition: %v %s in %v", op.Kind, op.Path, ops)
		}
	}
}

func (h *txHistory) record(x *txWorld, c backendtest.Call, i int, id string) {
	switch op := c.Ops[i]; op.Kind {
	case backend.OpCreate:
		stat, err := c.Session.Exists(context.Background(), op.Path, nil)
		if err != nil {
			x.errorf("history: %v", err)
			return
		}
		in := &txInstance{key: txKey{id, stat.Czxid}, sites: make(map[string]*txSiteHistory), since: time.Now()}
		if h.at[id] != nil {
			x.errorf("history: a second record of %s", id)
		}
		h.at[id], h.all[in.key] = in, in
	case backend.OpDelete:
		in := h.at[id]
		if in == nil || in.decided == "" {
			x.errorf("history: the record of %s goes undecided", id)
			return
		}
		for site, s := range in.sites {
			if s.voteStands || in.decided == "commit" && !s.acked {
				x.errorf("history: the record of %s goes before %s has acknowledged", id, site)
			}
		}
		in.gone = true
		delete(h.at, id)
	}
}

func (h *txHistory) child(x *txWorld, in *txInstance, op backend.Op, child string) {
	kind, rest, _ := strings.Cut(child, "-")
	switch {
	case kind == "open" && op.Kind == backend.OpCreate:
		in.mark = rest
	case kind == "yes":
		zxid, site, _ := strings.Cut(rest, "-")
		if zxid != fmt.Sprintf("%x", in.key.zxid) {
			x.errorf("history: a vote for %s in the record of %x", child, in.key.zxid)
			return
		}
		s := in.sites[site]
		switch op.Kind {
		case backend.OpCreate:
			if s.prepares == 0 || s.voteStands {
				x.errorf("history: vote %s, site %+v", child, s)
			}
			s.vote, s.voteStands = "yes", true
		case backend.OpDelete:
			s.voteStands = false
		}
	case kind == "decision" && op.Kind == backend.OpCreate:
		yes := 0
		for _, s := range in.sites {
			if s.voteStands {
				yes++
			}
		}
		decided := "abort"
		if strings.Contains(string(op.Data), `"commit":true`) {
			decided = "commit"
		}
		if in.decided != "" {
			x.errorf("history: %s decided again: %s after %s", in.key.id, decided, in.decided)
		}
		if decided == "commit" && yes != len(in.sites) {
			x.errorf("history: %s commits with %d of %d votes", in.key.id, yes, len(in.sites))
		}
		in.decided = decided
		x.count[decided]++
	}
}

func (h *txHistory) ballot(x *txWorld, op backend.Op, site, id, mark string) {
	if op.Kind == backend.OpCreate {
		h.at[id].sites[site] = new(txSiteHistory)
		return
	}
	var in *txInstance
	for _, other := range h.all {
		if other.mark == mark {
			in = other
		}
	}
	if in == nil {
		x.errorf("history: a ballot of no transaction: %s", op.Path)
		return
	}
	s := in.sites[site]
	switch op.Kind {
	case backend.OpSetData:
		if s.vote != "" || op.Version != 0 {
			x.errorf("history: %s votes again on %s: %s", site, id, op.Data)
		}
		s.vote, _, _ = strings.Cut(string(op.Data), "\n")
	case backend.OpDelete:
		called := s.commits
		if in.decided == "abort" {
			called = s.abort
		}
		if s.acked || called == 0 {
			x.errorf("history: %s acknowledges %s (%s) with %d calls", site, id, in.decided, called)
		}
		s.acked, s.ended = true, time.Now()
	}
}

// call takes a callback.
func (h *txHistory) call(x *txWorld, what string, tx coord.Ballot[string]) {
	in := h.all[txKey{tx.ID, tx.Zxid}]
	if in == nil || in.sites[tx.Site] == nil {
		x.errorf("history: %s of an unknown transaction: %+v", what, tx)
		return
	}
	x.count["call of "+what]++
	s := in.sites[tx.Site]
	if s.acked {
		x.errorf("history: %s of %s at %s after its acknowledgement", what, tx.ID, tx.Site)
	}
	switch what {
	case "prepare":
		s.prepares++
		if s.commits+s.abort > 0 {
			x.errorf("history: prepare of %s at %s after its end", tx.ID, tx.Site)
		}
	case "commit":
		s.commits++
		if in.decided != "commit" || s.vote != "yes" {
			x.errorf("history: commit of %s at %s: decided %q, vote %q", tx.ID, tx.Site, in.decided, s.vote)
		}
	case "abort":
		s.abort++
		if in.decided != "abort" {
			x.errorf("history: abort of %s at %s: decided %q", tx.ID, tx.Site, in.decided)
		}
	}
}

// end checks that every transaction has ended everywhere, and in time.
func (h *txHistory) end(x *txWorld) {
	for key, in := range h.all {
		if !in.gone || in.decided == "" {
			x.errorf("history: %v stands in the end, decided %q", key, in.decided)
		}
		for site, s := range in.sites {
			if !s.acked || s.commits > 0 && s.abort > 0 {
				x.errorf("history: %v at %s ends with %+v", key, site, s)
			}
		}
	}
}

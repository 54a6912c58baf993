//go:build linux

package faulttest

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-coord/coord/internal/ensemble"
	"github.com/go-coord/coord/internal/zklog"
)

// endLog commits a transaction after all others, and returns its zxid.
func endLog(t *testing.T, e servers) int64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	end, err := ensemble.MarkEnd(ctx, backendAt(e.Addrs(), mostTimeout, 0))
	if err != nil {
		t.Fatal(err)
	}
	return end
}

// wholeLog reads the transaction log of a server once the log contains all changes.
func wholeLog(t *testing.T, e servers) (txns []zklog.Txn) {
	t.Helper()
	if e.Other != nil {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		txns, err := e.Other.Log(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return txns
	}
	leader, end := leaderOf(t, e.ZooKeeper), endLog(t, e)
	eventually(t, "the log has the last transaction", func() bool {
		var err error
		txns, err = zklog.Read(leader.DataDir())
		return err == nil && zklog.Have([][]zklog.Txn{txns}, end) == 1
	})
	return txns
}

// commitHistory replays a log of the service and checks every step against the rules of the
// two-phase commit. It knows the layout, and nothing of the implementation.
type commitHistory struct {
	prefix   string
	partial  bool // the log has no checks and no times, and sessions only of ephemeral nodes
	roots    map[string]bool
	standing map[string]*commitTx // by the path of the record
	marked   map[string]*commitTx // by root and mark
	all      map[commitKey]*commitTx
	outcomes map[string]int
	count    map[string]int
	waits    figures[time.Duration] // from the record to an acknowledgement
	faults   []string
}

type commitKey struct {
	record string
	zxid   int64
}

// commitTx is one transaction.
type commitTx struct {
	key      commitKey
	root     string
	mark     string
	deadline time.Time
	made     time.Time
	sites    map[string]*commitSite
	open     bool
	decided  string // "", "commit" or "abort"
	when     time.Time
	ended    bool
	// The sessions that made it, and that recorded the notification of the proposer.
	madeBy, toldBy int64
	told           bool // by the report of a process
}

type commitSite struct {
	branch bool   // the branch exists
	filled string // its content: "", "yes" or "no"
	vote   bool   // the node of a yes exists
	done   bool   // it has acknowledged
	acked  time.Time
	// By the reports of its processes.
	prepared bool
	calls    map[string]int // callbacks before the acknowledgement, by kind
}

func newCommitHistory(prefix string) *commitHistory {
	return &commitHistory{
		prefix: prefix, roots: make(map[string]bool), standing: make(map[string]*commitTx), marked: make(map[string]*commitTx),
		all: make(map[commitKey]*commitTx), outcomes: make(map[string]int), count: make(map[string]int),
	}
}

func (h *commitHistory) faultf(format string, args ...any) {
	h.faults = append(h.faults, fmt.Sprintf(format, args...))
}

// commitPath is a parsed path of the recipe.
type commitPath struct {
	root, kind, name, child string // kind is tx, sites or serving
}

func (h *commitHistory) parse(path string) (p commitPath, ok bool) {
	rest, ok := strings.CutPrefix(path, h.prefix+"/")
	if !ok {
		return p, false
	}
	parts := strings.SplitN(rest, "/", 4)
	parts = append(parts, "", "", "")
	return commitPath{h.prefix + "/" + parts[0], parts[1], parts[2], parts[3]}, parts[2] != ""
}

// step is one transaction of the log.
type step struct {
	zklog.Txn
	checked map[string]bool
	partial bool // of the log
}

// checks reports whether the step checks a node, as far as the log shows it.
func (s step) checks(path string) bool { return s.partial || s.checked[path] }

func (s step) made(path string) bool    { return s.has(path, zklog.Op.IsCreate) }
func (s step) deleted(path string) bool { return s.has(path, zklog.Op.IsDelete) }
func (s step) filled(path, with string) bool {
	return s.has(path, func(op zklog.Op) bool {
		vote, _, _ := strings.Cut(string(op.Data), "\n")
		return op.Type == zklog.SetData && op.Version == 1 && vote == with
	})
}

func (s step) has(path string, is func(zklog.Op) bool) bool {
	for _, op := range s.Ops {
		if op.Path == path && is(op) {
			return true
		}
	}
	return false
}

// guarded reports whether the step checks a node of the lock of the site.
func (s step) guarded(root, site string) bool {
	if s.partial {
		return true
	}
	for path := range s.checked {
		if strings.HasPrefix(path, root+"/serving/"+site+"/") {
			return true
		}
	}
	return false
}

// apply takes the next transaction of the log.
func (h *commitHistory) apply(x zklog.Txn) {
	s := step{x, make(map[string]bool), h.partial}
	for _, op := range x.Ops {
		if op.Type == zklog.Check {
			s.checked[op.Path] = true
		}
	}
	for _, op := range x.Ops {
		p, ok := h.parse(op.Path)
		if !ok || op.Type == zklog.Check {
			continue
		}
		h.roots[p.root] = true
		switch {
		case p.kind == "tx" && p.child == "" && op.IsCreate():
			h.record(s, p, op)
		case p.kind == "tx":
			in := h.standing[p.root+"/tx/"+p.name]
			switch {
			case in == nil:
				h.faultf("%s at %#x without a record", op.Path, x.Zxid)
			case p.child == "":
				h.recordGoes(s, in)
			default:
				h.part(s, in, op, p.child)
			}
		case p.kind == "sites" && strings.Contains(p.child, "~"):
			h.branch(s, p, op)
		}
	}
}

// record checks the creation of a transaction, which makes all of its nodes at once.
func (h *commitHistory) record(s step, p commitPath, op zklog.Op) {
	var rec struct {
		Mark     string
		Sites    []string
		Deadline int64
	}
	if err := json.Unmarshal(op.Data, &rec); err != nil || len(rec.Sites) == 0 || rec.Mark == "" {
		h.faultf("the record %s holds %q", op.Path, op.Data)
		return
	}
	in := &commitTx{
		key: commitKey{op.Path, s.Zxid}, root: p.root, mark: rec.Mark, deadline: time.UnixMilli(rec.Deadline), made: s.Time, madeBy: s.Session,
		sites: make(map[string]*commitSite), open: s.made(op.Path + "/open-" + rec.Mark),
	}
	for _, site := range rec.Sites {
		in.sites[site] = &commitSite{branch: s.made(in.branch(site, p.name)), calls: make(map[string]int)}
		if !in.sites[site].branch {
			h.faultf("%s is made without a branch for %s", op.Path, site)
		}
	}
	live := false
	for _, o := range s.Ops {
		live = live || o.Ephemeral && strings.HasPrefix(o.Path, op.Path+"/live-")
	}
	if h.standing[op.Path] != nil || h.marked[p.root+"~"+rec.Mark] != nil || !in.open || !live {
		h.faultf("%s is made at %#x: open %v, live %v, existed before %v", op.Path, s.Zxid, in.open, live, h.standing[op.Path] != nil)
	}
	h.standing[op.Path], h.marked[p.root+"~"+rec.Mark], h.all[in.key] = in, in, in
}

func (in *commitTx) branch(site, id string) string {
	return in.root + "/sites/" + site + "/" + id + "~" + in.mark
}
func (in *commitTx) id() string       { return in.key.record[strings.LastIndexByte(in.key.record, '/')+1:] }
func (in *commitTx) openNode() string { return in.key.record + "/open-" + in.mark }
func (in *commitTx) decision() string {
	return fmt.Sprintf("%s/decision-%x", in.key.record, in.key.zxid)
}
func (in *commitTx) String() string { return fmt.Sprintf("%s of %#x", in.key.record, in.key.zxid) }
func (in *commitTx) yes(s string) string {
	return fmt.Sprintf("%s/yes-%x-%s", in.key.record, in.key.zxid, s)
}

// recordGoes checks that the transaction is decided, that all yes voters have acknowledged it
// (for a commit, all sites), and that the proposer was notified.
func (h *commitHistory) recordGoes(s step, in *commitTx) {
	if in.decided == "" || in.open || !s.deleted(in.decision()) {
		h.faultf("%v is removed at %#x, decided %q, open %v", in, s.Zxid, in.decided, in.open)
	}
	for name, site := range in.sites {
		if site.vote || site.branch && in.decided == "commit" {
			h.faultf("%v is removed at %#x before %s has acknowledged", in, s.Zxid, name)
		}
	}
	in.ended = true
	delete(h.standing, in.key.record)
}

// part checks a node below a record.
func (h *commitHistory) part(s step, in *commitTx, op zklog.Op, child string) {
	kind, rest, _ := strings.Cut(child, "-")
	switch {
	case kind == "live":
		if op.IsCreate() && !op.Ephemeral {
			h.faultf("%s is not ephemeral", op.Path)
		}
	case kind == "open" && op.IsCreate():
		if op.Path != in.openNode() || s.Zxid != in.key.zxid {
			h.faultf("%s is made at %#x", op.Path, s.Zxid)
		}
	case kind == "open":
		if in.decided == "" {
			h.faultf("the proposer of %v was notified before the decision", in)
		}
		in.open, in.toldBy = false, s.Session
	case kind == "yes":
		zxid, name, _ := strings.Cut(rest, "-")
		site := in.sites[name]
		switch {
		case site == nil, zxid != strconv.FormatInt(in.key.zxid, 16):
			h.faultf("%s is not a vote of %v", op.Path, in)
		case op.IsCreate():
			h.count["yes"]++
			if site.vote || !s.filled(in.branch(name, in.id()), "yes") || !s.checks(in.openNode()) || !s.guarded(in.root, name) {
				h.faultf("%s votes yes on %v without a condition: %v", name, in, s.Ops)
			}
			site.vote = true
		case op.IsDelete():
			if !s.deleted(in.branch(name, in.id())) {
				h.faultf("the vote of %s on %v is deleted without its branch", name, in)
			}
			site.vote = false
		}
	case kind == "decision" && op.IsCreate():
		h.decision(s, in, op)
	case kind == "decision" && op.IsDelete() && s.deleted(in.key.record):
	default:
		h.faultf("%v: %s must not be changed", in, op.Path)
	}
}

// decision checks that the decision follows from the votes, and is made under the conditions
// that keep it true.
func (h *commitHistory) decision(s step, in *commitTx, op zklog.Op) {
	var o struct {
		Commit     bool
		By, Reason string
	}
	if err := json.Unmarshal(op.Data, &o); err != nil || op.Path != in.decision() {
		h.faultf("%v is decided at %s by %q", in, op.Path, op.Data)
		return
	}
	if in.decided != "" {
		h.faultf("%v is decided again at %#x: %+v after %s", in, s.Zxid, o, in.decided)
		return
	}
	in.decided, in.when = "abort", s.Time
	if !op.Made.IsZero() {
		in.when = op.Made // the log tells of it later
	}
	if o.Commit {
		in.decided = "commit"
	}
	h.outcomes[in.decided]++
	if !o.Commit {
		by, isSite := strings.CutPrefix(o.By, "site ")
		late := strings.Contains(o.Reason, "deadline")
		switch {
		case !s.checks(in.openNode()):
			h.faultf("%v aborts at %#x without a check whether it is open", in, s.Zxid)
		case late && !s.partial && s.Time.Before(in.deadline.Truncate(time.Millisecond)):
			h.faultf("%v aborts at its deadline %v before that", in, in.deadline.Sub(s.Time))
		case isSite && !late && !s.filled(in.branch(by, in.id()), "no"):
			h.faultf("%v aborts for the no of %s, which does not exist", in, by)
		}
		return
	}
	for name, site := range in.sites {
		if !site.vote || site.filled != "yes" || !s.checks(in.yes(name)) {
			h.faultf("%v commits at %#x: %s has voted %q, checked %v", in, s.Zxid, name, site.filled, s.checks(in.yes(name)))
		}
	}
}

// branch checks a branch: it is made with the record, filled in once, and deleted once.
func (h *commitHistory) branch(s step, p commitPath, op zklog.Op) {
	id, mark, _ := strings.Cut(p.child, "~")
	in := h.marked[p.root+"~"+mark]
	if in == nil {
		if !op.IsCreate() || !s.made(p.root+"/tx/"+id) {
			h.faultf("%s is a branch without a transaction", op.Path)
		}
		return
	}
	site := in.sites[p.name]
	if site == nil || in.id() != id {
		h.faultf("%s is not a branch of %v", op.Path, in)
		return
	}
	switch {
	case op.IsCreate():
		if s.Zxid != in.key.zxid {
			h.faultf("%s is made at %#x, later than %v", op.Path, s.Zxid, in)
		}
	case op.IsDelete():
		h.count["ack"]++
		if !site.branch || in.decided == "" || !s.guarded(p.root, p.name) || site.filled == "yes" && site.vote && !s.deleted(in.yes(p.name)) ||
			in.decided == "commit" && site.filled != "yes" {
			h.faultf("%s acknowledges %v at %#x: it has voted %q, decided %q", p.name, in, s.Zxid, site.filled, in.decided)
		}
		site.branch, site.done, site.acked = false, true, s.Time
		if !s.partial {
			h.waits.add(s.Time.Sub(in.made))
		}
	case op.Type == zklog.SetData:
		vote, _, _ := strings.Cut(string(op.Data), "\n")
		if site.filled != "" || op.Version != 1 || !s.checks(in.openNode()) || !s.guarded(p.root, p.name) {
			h.faultf("%s fills in its branch for %v at %#x with %q, before %q", p.name, in, s.Zxid, vote, site.filled)
		}
		switch vote {
		case "yes":
			if !s.made(in.yes(p.name)) {
				h.faultf("%s says yes to %v without a vote", p.name, in)
			}
		case "no":
			h.count["no"]++
			if !s.made(in.decision()) {
				h.faultf("%s says no to %v without a decision", p.name, in)
			}
		default:
			h.faultf("%s votes %q", p.name, vote)
		}
		site.filled = vote
	}
}

package simulation_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/backend/memory"
	"github.com/go-coord/coord/internal/coordtest"
)

const (
	txPath     = "/app/tx"
	txTimeout  = 2 * time.Second // of sessions
	txDeadline = 5 * time.Second // of transactions
)

// txWorld is a store and the processes that use it, of which some crash. Every commit and every
// callback of a site goes into one history, in the order in which it happened. Calls and
// callbacks are made one at a time, so the order is exact.
type txWorld struct {
	t    *testing.T
	name string // of the cell or seed
	st   *memory.Store

	mu      sync.Mutex
	calls   int
	procs   int
	history txHistory
	prepare func(site, id string) error // what a site votes
	count   map[string]int

	unserved coord.Unserved // of Propose
}

func newTxWorld(t *testing.T, name string) *txWorld {
	x := &txWorld{t: t, name: name, st: memory.New(&memory.Options{SessionTimeout: txTimeout}), count: make(map[string]int)}
	x.history = txHistory{at: make(map[string]*txInstance), all: make(map[txKey]*txInstance)}
	return x
}

func (x *txWorld) errorf(format string, args ...any) {
	x.t.Helper()
	x.t.Errorf(x.name+": "+format, args...)
}

// txProc is a process with a client of its own.
type txProc struct {
	x      *txWorld
	name   string
	link   *memory.Link
	c      *coord.Client
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	dead   bool // guarded by x.mu
	n      int  // calls made; guarded by x.mu
	// fault acts around the n-th call, from 1, with x.mu held. done is what the
	// call has returned; for a call that is about to be made it is nil.
	fault func(p *txProc, n int, c backendtest.Call, after bool, done error) error
	// delay is how long the next request or reply takes; called with x.mu held.
	delay func() time.Duration
}

// travel waits as long as a request or a reply takes.
func (p *txProc) travel() {
	if p.delay == nil {
		return
	}
	p.x.mu.Lock()
	d := p.delay()
	p.x.mu.Unlock()
	time.Sleep(d)
}

var errKilled = errors.New("the process is dead")

// start starts a process that uses the service over a link of its own.
func (x *txWorld) start(name string, fault func(p *txProc, n int, c backendtest.Call, after bool, done error) error) *txProc {
	x.mu.Lock()
	x.procs++
	p := &txProc{x: x, name: name, fault: fault, link: x.st.Link(fmt.Sprint(name, "-", x.procs))}
	x.mu.Unlock()
	p.ctx, p.cancel = context.WithCancel(context.Background())
	c, err := coord.Open(p.ctx, backendtest.Intercept(p.link, backendtest.Hooks{Before: p.before, After: p.after}), nil)
	if err != nil {
		x.t.Fatal(err)
	}
	p.c = c
	return p
}

// before returns with x.mu held if the call is made.
func (p *txProc) before(ctx context.Context, c backendtest.Call) error {
	p.travel()
	p.x.mu.Lock()
	if p.dead {
		p.x.mu.Unlock()
		return coordtest.Silence(ctx, c)
	}
	p.x.calls++
	p.n++
	if p.fault != nil {
		if err := p.fault(p, p.n, c, false, nil); err != nil {
			p.x.mu.Unlock()
			if errors.Is(err, errKilled) {
				return coordtest.Silence(ctx, c)
			}
			return err
		}
	}
	return nil
}

func (p *txProc) after(ctx context.Context, c backendtest.Call, err error) error {
	p.x.applied(c, err)
	if p.fault != nil {
		err = p.fault(p, p.n, c, true, err)
	}
	p.x.mu.Unlock()
	if errors.Is(err, errKilled) {
		return coordtest.Silence(ctx, c)
	}
	p.travel()
	return err
}

func (x *txWorld) applied(c backendtest.Call, err error) {
	if c.Op == "commit" && err == nil {
		x.history.apply(x, c)
	}
}

// kill stops the process: from now on nothing of it reaches the service, and no
// callback of it does anything. Its session lives on until the service ends it. The
// caller holds x.mu.
func (p *txProc) kill() {
	if p.dead {
		return
	}
	p.dead = true
	p.link.Partition()
	p.cancel()
}

// stop ends a process in order, or cleans up after a dead one.
func (p *txProc) stop() {
	p.cancel()
	p.wg.Wait()
	p.c.Close()
}

// serve serves a site until the process ends.
func (p *txProc) serve(site string) {
	p.wg.Go(func() {
		err := coord.NewParticipant(p.c, txPath, site, coord.Handler[string]{
			Prepare: func(_ context.Context, tx coord.Branch[string]) error { return p.callback("prepare", tx) },
			Commit:  func(_ context.Context, tx coord.Branch[string]) error { return p.callback("commit", tx) },
			Abort:   func(_ context.Context, tx coord.Branch[string]) error { return p.callback("abort", tx) },
		}).Serve(p.ctx)
		if !errors.Is(err, context.Canceled) && !errors.Is(err, errKilled) {
			p.x.errorf("Serve of %s: %v", site, err)
		}
	})
}

func (p *txProc) callback(what string, tx coord.Branch[string]) error {
	p.x.mu.Lock()
	defer p.x.mu.Unlock()
	if p.dead {
		return errKilled
	}
	if tx.Payload != "payload of "+tx.ID && !tx.NoPayload {
		p.x.errorf("%s of %s: payload %q", what, tx.ID, tx.Payload)
	}
	p.x.history.call(p.x, what, tx)
	if what == "prepare" && p.x.prepare != nil {
		return p.x.prepare(tx.Site, tx.ID)
	}
	return nil
}

// proposed is what a process has learned of a transaction.
type proposed struct {
	d   coord.Decision
	err error
}

func txProposal(id string, sites []string) coord.Proposal[string] {
	return coord.Proposal[string]{ID: id, Sites: sites, Payload: "payload of " + id, Deadline: time.Now().Add(txDeadline)}
}

// propose proposes in the background; the result can be received, unless the process has
// died before there was one. A decision that Propose returns is received also if the process
// dies in the next moment: a retry would be a second transaction.
func (p *txProc) propose(prop coord.Proposal[string]) <-chan proposed {
	ch := make(chan proposed, 1)
	p.wg.Go(func() {
		defer close(ch)
		d, err := coord.NewCoordinator(p.c, txPath, &coord.CoordinatorOptions[string]{Unserved: p.x.unserved}).Propose(p.ctx, prop)
		p.x.mu.Lock()
		defer p.x.mu.Unlock()
		if !p.dead || err == nil {
			ch <- proposed{d, err}
		}
	})
	return ch
}

// finish runs Recover in a fresh process and checks that nothing is left.
func (x *txWorld) finish(sites []string) {
	p := x.start("recovery", nil)
	defer p.stop()
	if _, err := coord.NewCoordinator[string](p.c, txPath, nil).Recover(p.ctx); err != nil {
		x.errorf("Recover: %v", err)
	}
	synctest.Wait()
	if left := coordtest.Children(x.t, x.st, txPath+"/tx"); len(left) > 0 {
		list, err := coord.NewCoordinator[string](p.c, txPath, nil).List(p.ctx)
		x.errorf("records left: %v: %+v, %v", left, list, err)
	}
	for _, site := range sites {
		if left := coordtest.Children(x.t, x.st, txPath+"/sites/"+site); len(left) > 0 {
			x.errorf("branches of %s left: %v", site, left)
		}
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.history.end(x)
}

// txHistory replays what was applied, and checks each step against the rules of the
// protocol.
type txHistory struct {
	at      map[string]*txInstance // by id: those with a record
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

// apply records a commit that was applied.
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
				h.branch(x, op, site, name[:i], name[i+1:])
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
		branch := strings.HasPrefix(op.Path, txPath+"/sites/") && strings.Contains(op.Path, "~")
		vote := strings.Contains(op.Path, "/yes-")
		decision := strings.Contains(op.Path, "/decision-")
		ok := true
		switch {
		case op.Kind == backend.OpSetData && branch:
			ok = op.Version == 0 && checks("/serving/") == 1 && checks("/open-") == 1
		case op.Kind == backend.OpDelete && branch:
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
			x.errorf("history: the record of %s is deleted undecided", id)
			return
		}
		for site, s := range in.sites {
			if s.voteStands || in.decided == "commit" && !s.acked {
				x.errorf("history: the record of %s is deleted before %s has acknowledged", id, site)
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

func (h *txHistory) branch(x *txWorld, op backend.Op, site, id, mark string) {
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
		x.errorf("history: a branch of no transaction: %s", op.Path)
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

// call records a callback.
func (h *txHistory) call(x *txWorld, what string, tx coord.Branch[string]) {
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

// end checks that every transaction has ended at all of its sites.
func (h *txHistory) end(x *txWorld) {
	for key, in := range h.all {
		if !in.gone || in.decided == "" {
			x.errorf("history: %v is left in the end, decided %q", key, in.decided)
		}
		for site, s := range in.sites {
			if !s.acked || s.commits > 0 && s.abort > 0 {
				x.errorf("history: %v at %s ends with %+v", key, site, s)
			}
		}
	}
}

package coord_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/backend/memory"
)

const (
	txPath     = "/app/tx"
	txTimeout  = 2 * time.Second // of sessions
	txDeadline = 5 * time.Second // of transactions
)

// txWorld is a store whose every commit, and every callback of every site, goes
// into one history in the order in which it happened; and the processes of which
// some crash. Calls and callbacks are made one at a time, so the order is exact.
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

// before is left with x.mu held if the call is made.
func (p *txProc) before(ctx context.Context, c backendtest.Call) error {
	p.travel()
	p.x.mu.Lock()
	if p.dead {
		p.x.mu.Unlock()
		return silence(ctx, c)
	}
	p.x.calls++
	p.n++
	if p.fault != nil {
		if err := p.fault(p, p.n, c, false, nil); err != nil {
			p.x.mu.Unlock()
			if errors.Is(err, errKilled) {
				return silence(ctx, c)
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
		return silence(ctx, c)
	}
	p.travel()
	return err
}

// silence is what a dead process hears.
func silence(ctx context.Context, c backendtest.Call) error {
	err := backend.ErrSessionLost
	select {
	case <-c.Session.Done():
	case <-ctx.Done():
		err = backend.ContextError(ctx)
	}
	if c.Op == "commit" {
		return backend.Uncertain(err)
	}
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

// stop ends a process in order, or buries a dead one.
func (p *txProc) stop() {
	p.cancel()
	p.wg.Wait()
	p.c.Close()
}

// serve serves a site until the process ends.
func (p *txProc) serve(site string) {
	p.wg.Go(func() {
		err := coord.NewParticipant(p.c, txPath, site, coord.Handler[string]{
			Prepare: func(_ context.Context, tx coord.Ballot[string]) error { return p.callback("prepare", tx) },
			Commit:  func(_ context.Context, tx coord.Ballot[string]) error { return p.callback("commit", tx) },
			Abort:   func(_ context.Context, tx coord.Ballot[string]) error { return p.callback("abort", tx) },
		}).Serve(p.ctx)
		if !errors.Is(err, context.Canceled) && !errors.Is(err, errKilled) {
			p.x.errorf("Serve of %s: %v", site, err)
		}
	})
}

func (p *txProc) callback(what string, tx coord.Ballot[string]) error {
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

// propose proposes in the background; the result can be received, unless the
// process has died.
func (p *txProc) propose(prop coord.Proposal[string]) <-chan proposed {
	ch := make(chan proposed, 1)
	p.wg.Go(func() {
		defer close(ch)
		d, err := coord.NewCoordinator(p.c, txPath, &coord.CoordinatorOptions[string]{Unserved: p.x.unserved}).Propose(p.ctx, prop)
		p.x.mu.Lock()
		defer p.x.mu.Unlock()
		if !p.dead {
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
	if left := children(x.t, x.st, txPath+"/tx"); len(left) > 0 {
		list, err := coord.NewCoordinator[string](p.c, txPath, nil).List(p.ctx)
		x.errorf("records left: %v: %+v, %v", left, list, err)
	}
	for _, site := range sites {
		if left := children(x.t, x.st, txPath+"/sites/"+site); len(left) > 0 {
			x.errorf("ballots of %s left: %v", site, left)
		}
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.history.end(x)
}

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
	"github.com/go-coord/coord/internal/coordtest"
)

// txCell is one cell of the crash matrix: which process fails, at which of its
// calls, on which side of it, and how.
type txCell struct {
	role  string // "coordinator" or a site
	n     int    // the call, from 1
	after bool
	how   string
	// Further differences.
	no      bool // the last site votes no
	recover bool // a dead proposer is not replaced by one that proposes again
}

func (c txCell) String() string {
	side := "before"
	if c.after {
		side = "after"
	}
	return fmt.Sprintf("%s of the %s %s call %d (no=%v, recover=%v)", c.how, c.role, side, c.n, c.no, c.recover)
}

// txFaults are the ways to fail. Each is called with x.mu held, and returns the result of the
// call.
var txFaults = map[string]func(p *txProc, c backendtest.Call, after bool, err error) error{
	// The process is killed, and its request or reply under way is lost.
	"kill": func(p *txProc, _ backendtest.Call, _ bool, _ error) error {
		p.kill()
		return errKilled
	},
	// The process is killed, and its commit under way arrives late, when others work in its
	// place.
	"late write": func(p *txProc, c backendtest.Call, after bool, err error) error {
		if after || c.Op != "commit" {
			return err
		}
		p.dead = true
		p.cancel()
		time.AfterFunc(txTimeout/2, func() {
			p.x.mu.Lock()
			defer p.x.mu.Unlock()
			_, err := c.Session.Commit(context.Background(), c.Ops...)
			if err == nil {
				p.x.count["late write landed"]++
			}
			p.x.applied(c, err)
			p.link.Partition()
		})
		return errKilled
	},
	// The service ends the session.
	"expiry": func(p *txProc, c backendtest.Call, after bool, err error) error {
		p.link.Expire(c.Session.ID())
		switch {
		case !after:
			return nil // the call itself fails
		case c.Op == "commit":
			return backend.Uncertain(backend.ErrSessionLost)
		}
		return backend.ErrSessionLost
	},
	// The message is lost: the request before the call, the reply after it. A read
	// is repeated by the session, so it only sees a reconnection.
	"loss": func(p *txProc, c backendtest.Call, after bool, err error) error {
		p.link.Partition()
		p.link.Heal()
		if c.Op == "commit" {
			return backend.ErrUncertain
		}
		return err
	},
}

// play plays a cell, and returns how many calls the role made.
func (c txCell) play(t *testing.T, count map[string]int) (calls int) {
	sites := []string{"a", "b"}
	x := newTxWorld(t, c.String())
	x.unserved = coord.AwaitUnserved // dead processes are replaced
	x.prepare = func(site, _ string) error {
		if c.no && site == "b" {
			return errors.New("no")
		}
		return nil
	}
	// The inboxes must exist, else a proposal is refused.
	first := x.start("first", nil)
	for _, site := range sites {
		first.serve(site)
	}
	synctest.Wait()
	first.stop()

	hit, over := false, false // under x.mu
	fault := func(role string) func(*txProc, int, backendtest.Call, bool, error) error {
		if role != c.role {
			return nil
		}
		return func(p *txProc, n int, call backendtest.Call, after bool, err error) error {
			if !over {
				calls = max(calls, n)
			}
			if n != c.n || after != c.after || c.how == "" || hit || over {
				return err
			}
			hit = true
			x.count[c.how]++
			return txFaults[c.how](p, call, after, err)
		}
	}
	var procs []*txProc
	start := time.Now()
	// again starts a process in place of one that dies.
	again := func(p *txProc, restart func()) {
		p.wg.Go(func() {
			<-p.ctx.Done()
			x.mu.Lock()
			dead := p.dead && !over
			x.mu.Unlock()
			if dead {
				restart()
			}
		})
	}
	for _, site := range sites {
		p := x.start(site, fault(site))
		p.serve(site)
		again(p, func() {
			q := x.start(site+" again", nil)
			q.serve(site)
			x.mu.Lock()
			procs = append(procs, q)
			x.mu.Unlock()
		})
		x.mu.Lock()
		procs = append(procs, p)
		x.mu.Unlock()
	}
	if c.role == "coordinator" {
		synctest.Wait()
	}
	co := x.start("coordinator", fault("coordinator"))
	prop := txProposal("t", sites)
	var told []proposed
	tell := func(p *txProc) bool {
		r, ok := <-p.propose(prop)
		if ok {
			told = append(told, r)
		}
		return ok
	}
	ok := tell(co)
	if !ok && !c.recover {
		q := x.start("coordinator again", nil)
		tell(q)
		synctest.Wait()
		q.stop()
	}
	if ok && errors.Is(told[0].err, coord.ErrUncertain) {
		told = nil // the session was lost while the record was made: ask again
		tell(co)
	}
	if len(told) == 0 {
		// No process proposes it again.
		rec := x.start("recovery", nil)
		list, err := coord.NewCoordinator[string](rec.c, txPath, nil).Recover(rec.ctx)
		if err != nil {
			x.errorf("%v", err)
		}
		for _, d := range list {
			told = append(told, proposed{d: d})
		}
		rec.stop()
	}
	// All remaining work ends within the deadline and two timeouts: one for the session of the
	// dead process, one for the lock of its site.
	time.Sleep(time.Until(start.Add(txDeadline + 2*txTimeout)))
	synctest.Wait()
	x.finish(sites)
	for _, r := range told {
		in := x.history.all[txKey{"t", r.d.Zxid}]
		if r.err != nil || in == nil || (in.decided == "commit") != r.d.Commit {
			x.errorf("received %+v, %v; %+v", r.d, r.err, in)
		}
	}
	// A late write of a dead proposer may be applied when all has ended. It commits nothing
	// twice.
	committed := 0
	for _, in := range x.history.all {
		if in.decided == "commit" {
			committed++
		}
	}
	if n := len(x.history.all); committed > 1 || n > 1 && c.how != "late write" {
		x.errorf("%d transactions, %d commits", n, committed)
	}
	for _, in := range x.history.all {
		for site, s := range in.sites {
			if d := s.ended.Sub(start); d > txDeadline+txTimeout {
				x.errorf("%s ended after %v", site, d)
			}
		}
		if c.no && in.decided == "commit" {
			x.errorf("commit against a no")
		}
	}
	x.mu.Lock()
	over = true
	all := procs
	x.mu.Unlock()
	for _, p := range append(all, co) {
		p.stop()
	}
	for what, n := range x.count {
		count[what] += n
	}
	return calls
}

// Every process fails at every one of its calls, on either side of it, in every
// way, and the transaction ends everywhere in the same way and in time.
func TestATransactionSurvivesACrashAtEveryStep(t *testing.T) {
	t.Parallel()
	count, cells, at := make(map[string]int), 0, 0
	for _, role := range []string{"coordinator", "a", "b"} {
		for _, no := range []bool{false, true} {
			for _, rec := range []bool{false, true} {
				steps := 0
				play := func(c txCell) {
					synctest.Test(t, func(t *testing.T) { steps = max(steps, c.play(t, count)) })
					cells++
				}
				play(txCell{role: role, no: no, recover: rec})
				plain := steps
				for how := range txFaults {
					for n := 1; n <= plain+3 && !t.Failed(); n++ {
						for _, after := range []bool{false, true} {
							if at++; !coordtest.Race || at%5 == 0 {
								play(txCell{role, n, after, how, no, rec})
							}
						}
					}
				}
				if plain < 8 {
					t.Errorf("only %d calls of %s", plain, role)
				}
			}
		}
	}
	t.Logf("figure: crash matrix of the two-phase commit: %d cells, %v", cells, count)
	for _, what := range []string{"kill", "late write", "late write landed", "expiry", "loss", "commit", "abort"} {
		if count[what] == 0 {
			t.Errorf("%q never happened", what)
		}
	}
}

// txRequests is how many requests one transaction of n sites takes, all processes
// together, from Propose until nothing is left of it.
func txRequests(t *testing.T, n int) (requests int) {
	synctest.Test(t, func(t *testing.T) {
		x := newTxWorld(t, fmt.Sprint(n, " sites"))
		var sites []string
		var procs []*txProc
		for i := range n {
			sites = append(sites, fmt.Sprint("site-", i))
			p := x.start(sites[i], nil)
			p.serve(sites[i])
			procs = append(procs, p)
		}
		co := x.start("co", nil)
		for i := range 2 { // the first also makes directories
			synctest.Wait()
			x.mu.Lock()
			requests = x.calls
			x.mu.Unlock()
			if r := <-co.propose(txProposal(fmt.Sprint("t", i), sites)); r.err != nil || !r.d.Commit {
				t.Fatal(r)
			}
			synctest.Wait()
		}
		x.mu.Lock()
		requests = x.calls - requests
		x.mu.Unlock()
		x.finish(sites)
		for _, p := range append(procs, co) {
			p.stop()
		}
	})
	return requests
}

func TestTheRequestsOfATransactionGrowWithItsSites(t *testing.T) {
	t.Parallel()
	var list []string
	most := 0
	for n := 1; n <= 20; n++ {
		r := txRequests(t, n)
		list = append(list, fmt.Sprint(r))
		most = max(most, r)
		// 17 requests with one site, and at most 10 more with each further one: fewer when the
		// proposer sees several of its sites' nodes in one list. One more when the proposer and
		// the last site remove the transaction at the same time.
		if limit := 8 + 10*n; r > limit {
			t.Errorf("%d sites take %d requests, want at most %d", n, r, limit)
		}
	}
	t.Logf("figure: requests for a transaction of 1 to 20 sites: %s", strings.Join(list, " "))
}

// Many transactions run at once over the same sites; each site votes no on some. The history
// checks that each has the same decision everywhere.
func TestAHundredTransactionsAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		x := newTxWorld(t, "a hundred")
		x.prepare = func(site, id string) error {
			if strings.HasSuffix(id, site) {
				return errors.New("no")
			}
			return nil
		}
		sites := []string{"0", "1", "2", "3", "4"}
		var procs []*txProc
		for _, site := range sites {
			p := x.start(site, nil)
			p.delay = func() time.Duration { return time.Duration(x.calls%7) * time.Millisecond }
			p.serve(site)
			procs = append(procs, p)
		}
		time.Sleep(time.Second) // until they are served
		for i := range 4 {
			procs = append(procs, x.start(fmt.Sprint("co", i), nil))
		}
		var wg sync.WaitGroup
		var mu sync.Mutex
		commits := 0
		start := time.Now()
		for i := range 100 {
			p := procs[len(sites)+i%4]
			wg.Go(func() {
				id := fmt.Sprintf("t%03d", i)
				d, err := coord.NewCoordinator[string](p.c, txPath, nil).Propose(context.Background(), txProposal(id, sites))
				if err != nil {
					t.Error(err)
				}
				if no := i%10 < 5; d.Commit == no {
					t.Errorf("%+v", d)
				}
				mu.Lock()
				defer mu.Unlock()
				if d.Commit {
					commits++
				}
			})
		}
		wg.Wait()
		took := time.Since(start)
		time.Sleep(time.Second)
		synctest.Wait()
		x.finish(sites)
		if commits != 50 || len(x.history.all) != 100 || took > txDeadline {
			t.Errorf("%d commits of %d in %v", commits, len(x.history.all), took)
		}
		t.Logf("figure: 100 transactions at once over 5 sites: %d commits, %d aborts, %d requests", commits, 100-commits, x.calls)
		for _, p := range procs {
			p.stop()
		}
	})
}

package coord_test

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
)

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

func TestTheRequestsOfATransactionGrowAsItsSites(t *testing.T) {
	t.Parallel()
	var list []string
	most := 0
	one, two := txRequests(t, 1), txRequests(t, 2)
	for n := 1; n <= 20; n++ {
		r := txRequests(t, n)
		list = append(list, fmt.Sprint(r))
		most = max(most, r)
		// Not more for each further site than for the second, and one list of the
		// votes by the proposer, which may see several at once.
		if limit := one + (n-1)*(two-one+1); r > limit {
			t.Errorf("%d sites take %d requests, want at most %d", n, r, limit)
		}
	}
	t.Logf("figure: requests for a transaction of 1 to 20 sites: %s", strings.Join(list, " "))
}

// Many at once over the same sites; each site says no to some. What is decided is
// the same everywhere, which the history checks.
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

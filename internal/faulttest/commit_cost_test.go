//go:build linux

package faulttest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/zkservice"
)

// commitCost is the cost of transactions for all clients together, from Propose until no node
// of them is left.
type commitCost struct {
	requests, events figures[int]
	proposer, site   figures[int] // events of one transaction at the proposer, and at each site

	most int    // requests of the most expensive transaction
	each string // requests of each of its clients
}

// commitCosts runs transactions over n sites, each a client of its own with its own link to
// the server.
func commitCosts(t *testing.T, n, transactions int) (cost commitCost) {
	t.Helper()
	s := newService(t)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	var links []*zkservice.Link
	open := func(name string) *coord.Client {
		l := s.ZooKeeper(name)
		links = append(links, l)
		c, err := coord.Open(ctx, l, &coord.Options{Namespace: s.Root()})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	const path = "/commits"
	var sites []string
	nothing := func(context.Context, coord.Branch[string]) error { return nil }
	for i := range n {
		site := fmt.Sprint("site-", i)
		p := coord.NewParticipant(open(site), path, site, coord.Handler[string]{Prepare: nothing, Commit: nothing, Abort: nothing})
		wg.Go(func() {
			if err := p.Serve(ctx); !errors.Is(err, context.Canceled) {
				t.Errorf("%s: %v", site, err)
			}
		})
		sites = append(sites, site)
	}
	c := open("coordinator")
	co := coord.NewCoordinator[string](c, path, nil)
	outside, err := c.Session(ctx)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "every site is served", func() bool {
		names, _, err := outside.Children(ctx, s.Root()+path+"/present", nil)
		if err != nil && !errors.Is(err, backend.ErrNotFound) {
			t.Fatal(err)
		}
		return len(names) == n
	})
	frames := func() int {
		k := 0
		for _, l := range links {
			c := l.Proxies[0].Count()
			k += c.Requests() + c.Replies + c.Events
		}
		return k
	}
	measured := 0
	for i := 0; measured < transactions; i++ { // the first also makes directories
		if i > 10*transactions {
			t.Fatalf("contact broke in each of %d transactions", i)
		}
		quiet(t, frames)
		for _, l := range links {
			l.Proxies[0].ResetCounts()
		}
		p := coord.Proposal[string]{ID: fmt.Sprint("t", i), Sites: sites, Deadline: time.Now().Add(limit)}
		if d, err := co.Propose(ctx, p); err != nil || !d.Commit {
			t.Fatalf("%+v, %v", d, err)
		}
		// The record is deleted when the last site has acknowledged it.
		eventually(t, "the record is deleted", func() bool {
			left, _, err := outside.Children(ctx, s.Root()+path+"/tx", nil)
			return err == nil && len(left) == 0
		})
		quiet(t, frames)
		if i == 0 {
			continue
		}
		requests, events, connections := 0, 0, 0
		var each []string
		var perClient []int // the proposer's is the last
		for _, l := range links {
			c := l.Proxies[0].Count()
			requests += c.Requests()
			events += c.Events
			perClient = append(perClient, c.Events)
			connections += c.Connections
			each = append(each, c.String())
		}
		if connections > 0 {
			continue // a client that was disconnected reads everything again
		}
		measured++
		if requests >= cost.most {
			cost.most, cost.each = requests, strings.Join(each, " | ")
		}
		cost.requests.add(requests)
		cost.events.add(events)
		cost.proposer.add(perClient[n])
		for _, k := range perClient[:n] {
			cost.site.add(k)
		}
	}
	return cost
}

// In the plain recipe every site watches every vote, so its number of messages grows with the
// square of the number of sites.
func TestTheRequestsOfATransactionGrowLinearlyWithItsSitesOnAServer(t *testing.T) {
	most := 20
	transactions := 2
	counts := []int{1, 2, 5, 10, most}
	if long() {
		counts, transactions = nil, 5
		for n := 1; n <= most; n++ {
			counts = append(counts, n)
		}
	}
	// The cost of a further site: to list its inbox when a branch comes and when it is
	// deleted (2), to read the branch, the record and that there is no decision (3), to vote,
	// to read the decision, to acknowledge, and to check whether it was the last (4). The
	// proposer lists the votes when it is notified of more, at most once for each, and two
	// sites can both see that they were the last. The rest is for whole transactions: whether
	// the sites are served, the record, its first list, the decision, the end of the
	// proposal, and the removal of the record, which the proposer can try at the same time as
	// the sites.
	const perSite, rest = 11, 14
	var list []string
	for _, n := range counts {
		cost := commitCosts(t, n, transactions)
		list = append(list, fmt.Sprintf("%d: %d to %d, %d events", n, cost.requests.min(), cost.requests.max(), cost.events.max()))
		if m := cost.requests.max(); m > perSite*n+rest {
			t.Errorf("%d sites take %d requests, want at most %d: %s", n, m, perSite*n+rest, cost.each)
		}
		// A site is notified five times: that its branch is created, voted on and deleted, that
		// there is a decision, and that the record is deleted. The proposer is notified once for
		// each list of the votes. Votes that come together share a list, so the number varies from
		// run to run: it is at most one for each vote, and one for the decision, which comes when
		// the watch of the last list is armed.
		if m := cost.site.max(); m > 5 {
			t.Errorf("one of %d sites gets %d events, want at most 5", n, m)
		}
		if m := cost.proposer.max(); m > n+1 {
			t.Errorf("the proposer gets %d events for %d sites, want at most %d", m, n, n+1)
		}
	}
	t.Logf("figure: requests of a transaction by its sites, on a server, all clients together: %s", strings.Join(list, "; "))
}

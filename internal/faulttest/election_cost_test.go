//go:build linux

package faulttest

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/internal/zkproxy"
	"github.com/go-coord/coord/internal/zkservice"
)

const disputed = "/elections/disputed"

// electionCost makes 9 candidates with a session each lead for 100 ms and resign, so that 8
// of them wait at each change. A change is the time from the call of Release in one client to
// the term on the channel of Leadership in the next.
func electionCost(tb testing.TB, n int) (cost figures[float64]) {
	tb.Helper()
	s := newService(tb)
	type turn struct {
		client         int
		token          int64
		led, releasing time.Time
	}
	var (
		mu    sync.Mutex
		turns []turn
		wg    sync.WaitGroup
		links []*zkservice.Link
	)
	// The first turns happen before the queue is complete.
	const first = 2 * (handOverWaiters + 1)
	ctx, cancel := context.WithTimeout(context.Background(), limit+time.Duration(n+first)*time.Second)
	defer cancel()
	for i := range handOverWaiters + 1 {
		link := s.ZooKeeper(fmt.Sprint(i))
		links = append(links, link)
		c, err := coord.Open(ctx, link, &coord.Options{Namespace: s.Root()})
		if err != nil {
			tb.Fatal(err)
		}
		defer c.Close()
		terms := coord.NewElection(c, disputed, nil).Leadership(ctx)
		wg.Go(func() {
			for t := range terms {
				led := time.Now()
				if t.Token() == 0 {
					tb.Error(t.Err())
					cancel()
					return
				}
				<-time.After(handOverSection)
				mu.Lock()
				turns = append(turns, turn{i, t.Token(), led, time.Now()})
				enough := len(turns) == first+n+1
				mu.Unlock()
				if err := t.Release(); err != nil {
					tb.Error(err)
				}
				if enough {
					cancel()
				}
			}
		})
	}
	for _, link := range links {
		link.SetLatency(oneWay)
	}
	wg.Wait()
	if len(turns) <= first+n {
		tb.Fatalf("%d turns, want %d", len(turns), first+n+1)
	}
	for i := first; i < first+n; i++ {
		a, b := turns[i], turns[i+1]
		if b.token <= a.token || b.client == a.client {
			tb.Errorf("client %d with token %#x after client %d with %#x", b.client, b.token, a.client, a.token)
		}
		cost.add(inRoundTrips(b.led.Sub(a.releasing)))
	}
	return cost
}

// As in TestAHandOverBetweenClientsCostsOneRoundTrip.
func TestAChangeOfLeaderByResignationCostsOneRoundTrip(t *testing.T) {
	s := newService(t)
	n := rounds(16)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	type candidate struct {
		*contender
		term chan *coord.Term
	}
	var candidates []candidate
	campaign := func(c candidate) {
		wg.Go(func() {
			term, err := coord.NewElection(c.c, disputed, nil).Campaign(ctx)
			if err != nil {
				t.Error(err)
			}
			c.term <- term
		})
	}
	for i := range handOverWaiters + 1 {
		c := candidate{newContender(t, s, fmt.Sprint(i)), make(chan *coord.Term, 1)}
		candidates = append(candidates, c)
		campaign(c)
		if i > 0 {
			receive(t, c.waiting, "a place in the queue")
		} else {
			c.term <- receive(t, c.term, "the first term")
		}
	}
	term := receive(t, candidates[0].term, "the first term")
	for i := range n + handOverWaiters {
		leader, next := candidates[i%len(candidates)], candidates[(i+1)%len(candidates)]
		token := term.Token()
		handOver(t, leader.link, next.link, func() {
			if err := term.Release(); err != nil {
				t.Error(err)
			}
		}, func() {
			term = receive(t, next.term, "the next term")
		})
		if term.Token() <= token {
			t.Errorf("token %#x after %#x", term.Token(), token)
		}
		if i < n {
			campaign(leader)
			receive(t, leader.waiting, "a place in the queue")
		}
	}
	if err := term.Release(); err != nil {
		t.Error(err)
	}
	if long() {
		t.Logf("figure: change of leader by resignation, %d candidates behind: from Release called to the next term received %v round trips",
			handOverWaiters, electionCost(t, 100))
	}
}

func BenchmarkChangeOfLeader(b *testing.B) {
	cost := electionCost(b, b.N)
	b.ReportMetric(cost.mean(), "rtt/op")
	b.ReportMetric(cost.median(), "median-rtt/op")
}

// change counts the traffic between all clients and the server at one change of leader,
// without pings.
type change struct {
	requests, replies, events int
	woken                     int // clients that got an event, except the one that resigned
}

// changes counts the traffic of some changes of leader, the last of which leaves that many
// candidates behind the leader. The proxies count it, of which the maximum is returned, and
// so does the server, which also counts pings that are under way.
func changes(t *testing.T, behind, n int) (most change, received, sent figures[int]) {
	t.Helper()
	s := newService(t)
	type candidate struct {
		link *zkproxy.Proxy
		term chan *coord.Term
	}
	var (
		candidates []candidate
		wg         sync.WaitGroup
	)
	ctx, cancel := context.WithCancel(t.Context())
	defer wg.Wait()
	defer cancel()
	for i := range behind + n {
		x := newContender(t, s, fmt.Sprint(i))
		e := coord.NewElection(x.c, disputed, nil)
		c := candidate{x.link.Proxies[0], make(chan *coord.Term, 1)}
		candidates = append(candidates, c)
		wg.Go(func() {
			term, err := e.Campaign(ctx)
			switch {
			case err == nil:
				c.term <- term
			case ctx.Err() == nil:
				t.Error(err)
			}
		})
		if i > 0 {
			receive(t, x.waiting, "a place in line")
			continue
		}
		c.term <- receive(t, c.term, "the first term")
	}
	var (
		pings    int // since the latest reset, connects included
		resigned *zkproxy.Proxy
	)
	count := func() (now change) {
		pings = 0
		for _, c := range candidates {
			k := c.link.Count()
			now.requests += k.Requests()
			now.replies += k.Replies
			now.events += k.Events
			if k.Events > 0 && c.link != resigned {
				now.woken++
			}
			pings += k.AllRequests() - k.Requests()
		}
		return now
	}
	frames := func() int {
		c := count()
		return c.requests + c.replies + c.events
	}
	term := receive(t, candidates[0].term, "the first term")
	for i, next := range candidates[1 : 1+n] {
		resigned = candidates[i].link
		quiet(t, frames)
		for _, c := range candidates {
			c.link.ResetCounts()
		}
		r, a := serverPackets(t)
		if err := term.Release(); err != nil {
			t.Error(err)
		}
		after := receive(t, next.term, "the next term")
		if after.Token() <= term.Token() {
			t.Errorf("token %#x after %#x", after.Token(), term.Token())
		}
		term = after
		quiet(t, frames)
		c := count()
		rr, aa := serverPackets(t)
		received.add(rr - r - pings)
		sent.add(aa - a - pings)
		most.requests = max(most.requests, c.requests)
		most.replies = max(most.replies, c.replies)
		most.events = max(most.events, c.events)
		most.woken = max(most.woken, c.woken)
	}
	if err := term.Release(); err != nil {
		t.Error(err)
	}
	return most, received, sent
}

// serverPackets asks the server for the number of packets that it has received and sent.
func serverPackets(t *testing.T) (received, sent int) {
	t.Helper()
	m, err := server.Get(t).Servers()[0].Mntr(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	received, err = strconv.Atoi(m["zk_packets_received"])
	if err == nil {
		sent, err = strconv.Atoi(m["zk_packets_sent"])
	}
	if err != nil {
		t.Fatal(err)
	}
	return received, sent
}

func TestAChangeOfLeaderCostsTheSameHoweverManyAreCandidates(t *testing.T) {
	const n = 5
	few, fewReceived, fewSent := changes(t, 5, n)
	many, manyReceived, manySent := changes(t, 200, n)
	t.Logf("figure: one change of leader by resignation: of 5 candidates %+v; of 200 candidates %+v", few, many)
	t.Logf("figure: packets at the server for it, by its own count without pings: of 5 candidates received %v, sent %v; of 200 candidates received %v, sent %v",
		fewReceived, fewSent, manyReceived, manySent)
	if many != few {
		t.Errorf("of 5 candidates %+v, of 200 %+v, want the same", few, many)
	}
	if many.events == 0 || many.woken > 2 || many.requests == 0 {
		t.Errorf("of 200 candidates %+v, want at most 2 woken", many)
	}
	// Some pings of the 200 clients are counted here and not there.
	const pings = 20
	if manyReceived.median() > many.requests+pings || manySent.median() > many.replies+many.events+pings || manyReceived.max() < 1 {
		t.Errorf("the server received %v and sent %v", manyReceived, manySent)
	}
}

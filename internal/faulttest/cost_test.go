//go:build linux

package faulttest

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/go-coord/coord/backend/zookeeper"
	"github.com/go-coord/coord/internal/zkproxy"
	"github.com/go-coord/coord/internal/zkservice"
)

// A round trip in these tests. The proxy delays every frame by half of it, so that the time
// of an operation divided by it is the number of its round trips, and the processing time of
// servers and clients matters little.
const (
	oneWay    = 20 * time.Millisecond
	roundTrip = 2 * oneWay
)

func newService(tb testing.TB) *zkservice.Service {
	tb.Helper()
	return zkservice.New(tb, server.Get(tb), zookeeper.Options{SessionTimeout: countTimeout})
}

// inRoundTrips converts a duration to a number of round trips.
func inRoundTrips(d time.Duration) float64 { return float64(d) / float64(roundTrip) }

// lockCost acquires and releases a lock n times without contention. It leaves out a client's
// first Lock on a path, which also reads the directory.
func lockCost(tb testing.TB, n int) (lock, release figures[float64], requests figures[int]) {
	tb.Helper()
	x := newContender(tb, newService(tb), "a")
	for range 50 {
		x.prime() // this also warms up the server's code
	}
	x.link.SetLatency(oneWay)
	for range n {
		before := x.link.Requests()
		began := time.Now()
		h := x.lock()
		locked := time.Now()
		if h.Token() == 0 {
			tb.Fatal("no token")
		}
		x.release(h)
		release.add(inRoundTrips(time.Since(locked)))
		lock.add(inRoundTrips(locked.Sub(began)))
		requests.add(x.link.Requests() - before)
	}
	return lock, release, requests
}

// A call that makes one request and waits for its reply costs one round trip. The counted
// frames show it on any machine; the figure of the long form is a time.
func TestAnUncontendedLockAndItsReleaseCostOneRoundTripEach(t *testing.T) {
	x := newContender(t, newService(t), "a")
	x.prime()
	for range rounds(10) {
		before := x.link.Requests()
		h := x.lock()
		locked := x.link.Requests()
		x.release(h)
		released := x.link.Requests()
		// A hold that lasted longer than intended has had its watch armed.
		if locked-before != 1 || released-locked > 2 {
			t.Errorf("%d requests for Lock, %d for Release, want 1 each", locked-before, released-locked)
		}
	}
	if long() {
		lock, release, requests := lockCost(t, rounds(10))
		t.Logf("figure: uncontended Lock with token %v round trips; Release %v; both together %v requests", lock, release, requests)
	}
}

const (
	handOverWaiters = 8
	handOverSection = 100 * time.Millisecond
)

// handOverCost makes 9 clients with a session each take turns in a critical section of 100
// ms, so that 8 of them wait at each hand-over. A hand-over is the time from the call of
// Release in one client to the return of Lock in the next: the request and the event together
// are one round trip.
func handOverCost(tb testing.TB, n int) figures[float64] {
	tb.Helper()
	s := newService(tb)
	var clients []*contender
	for i := range handOverWaiters + 1 {
		x := newContender(tb, s, fmt.Sprint(i))
		x.prime()
		clients = append(clients, x)
	}
	for _, x := range clients {
		x.link.SetLatency(oneWay)
	}
	type turn struct {
		client             int
		token              int64
		granted, releasing time.Time
	}
	var (
		mu    sync.Mutex
		turns []turn
		wg    sync.WaitGroup
	)
	// The first turns happen before the queue is complete.
	first := 2 * len(clients)
	ctx, cancel := context.WithTimeout(context.Background(), limit+time.Duration(n+first)*time.Second)
	defer cancel()
	for i, x := range clients {
		wg.Go(func() {
			for {
				h, err := x.m.Lock(ctx)
				granted := time.Now()
				if ctx.Err() != nil {
					if err == nil {
						x.release(h)
					}
					return
				}
				if err != nil {
					tb.Error(err)
					return
				}
				<-time.After(handOverSection)
				mu.Lock()
				turns = append(turns, turn{i, h.Token(), granted, time.Now()})
				enough := len(turns) == first+n+1
				mu.Unlock()
				if err := h.Release(); err != nil {
					tb.Error(err)
				}
				if enough {
					cancel()
				}
				x.drain()
			}
		})
	}
	wg.Wait()
	if len(turns) <= first+n {
		tb.Fatalf("%d turns, want %d", len(turns), first+n+1)
	}
	var cost figures[float64]
	for i := first; i < first+n; i++ {
		a, b := turns[i], turns[i+1]
		if b.token <= a.token || b.client == a.client {
			tb.Errorf("client %d with token %#x after client %d with %#x", b.client, b.token, a.client, a.token)
		}
		cost.add(inRoundTrips(b.granted.Sub(a.releasing)))
	}
	return cost
}

// A hand-over consists of the deletion's way to the server and the way back of its event, one
// round trip: Release begins with the deletion, and the next client is granted without any
// further request.
func TestAHandOverBetweenClientsCostsOneRoundTrip(t *testing.T) {
	s := newService(t)
	var clients []*contender
	for i := range handOverWaiters + 1 {
		x := newContender(t, s, fmt.Sprint(i))
		x.prime()
		clients = append(clients, x)
	}
	h := clients[0].lock()
	for _, x := range clients[1:] {
		x.queue()
	}
	for i := range rounds(16) {
		holder, next := clients[i%len(clients)], clients[(i+1)%len(clients)]
		token := h.Token()
		handOver(t, holder.link, next.link, func() {
			holder.release(h)
		}, func() {
			h = next.hold()
		})
		if h.Token() <= token {
			t.Errorf("token %#x after %#x", h.Token(), token)
		}
		holder.queue()
	}
	for i := range clients {
		x := clients[(rounds(16)+i)%len(clients)]
		if i > 0 {
			h = x.hold()
		}
		x.release(h)
	}
	if long() {
		t.Logf("figure: hand-over, %d waiters, critical section %v: from Release called to the next Lock returned %v round trips",
			handOverWaiters, handOverSection, handOverCost(t, 100))
	}
}

// handOver shows that a hand-over is one round trip: the holder sends the deletion before it
// has any reply, and then await returns in the next client, though none of its own requests
// is forwarded.
func handOver(t *testing.T, holder, next *zkservice.Link, release, await func()) {
	t.Helper()
	proxy := next.Proxies[0]
	// Wait until the watches that waiters and holders arm are armed, and no other request is
	// under way.
	quiet(t, func() int {
		a, b := holder.Proxies[0].Count(), proxy.Count()
		return a.Requests() + a.Replies + a.Events + b.Requests() + b.Replies + b.Events
	})
	var mu sync.Mutex
	answered, deleted := false, false
	holder.Proxies[0].OnFrame(func(f zkproxy.Frame) {
		mu.Lock()
		defer mu.Unlock()
		switch {
		case f.Dir == zkproxy.Up && f.Opcode == zkproxy.OpDelete:
			deleted = deleted || !answered
		case f.Dir == zkproxy.Down && f.Opcode != zkproxy.OpPing && f.Opcode != zkproxy.OpEvent:
			answered = true
		}
	})
	proxy.HoldUp(true)
	release()
	await()
	proxy.HoldUp(false)
	holder.Proxies[0].OnFrame(nil)
	mu.Lock()
	defer mu.Unlock()
	if !deleted {
		t.Error("a release waits for a reply before it deletes the node")
	}
}

// The figures of the tests above. Times per operation include the delay.

func BenchmarkUncontendedLock(b *testing.B) {
	lock, release, requests := lockCost(b, b.N)
	b.ReportMetric(lock.mean(), "lock-rtt/op")
	b.ReportMetric(release.mean(), "release-rtt/op")
	b.ReportMetric(requests.mean(), "requests/op")
}

func BenchmarkHandOver(b *testing.B) {
	cost := handOverCost(b, b.N)
	b.ReportMetric(cost.mean(), "rtt/op")
	b.ReportMetric(cost.median(), "median-rtt/op")
}

//go:build linux

package faulttest

import (
	"fmt"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/internal/zkproxy"
)

// lazily is the shortest time after which package coord arms a watch on the node of a hold.
// On a busy machine a short hold can last that long; it may cost that one request more.
const lazily = 20 * time.Millisecond

func TestAnUncontendedCycleCostsTwoRequests(t *testing.T) {
	n := 10 * rounds(10)
	x := newContender(t, newService(t), "a")
	x.prime()
	proxy := x.link.Proxies[0]
	proxy.ResetCounts()
	slow := 0
	for range n {
		began := time.Now()
		x.release(x.lock())
		if time.Since(began) >= lazily {
			slow++ // the watch may have been armed
		}
	}
	c := proxy.Count()
	t.Logf("figure: %d short holds: %.2f requests a cycle (%v)", n, float64(c.Requests())/float64(n), c)
	if writes(c) != 2*n || c.Requests() > 2*n+slow {
		t.Errorf("%d requests, %d of them writes, for %d cycles, %d of them slow; want 2 a cycle", c.Requests(), writes(c), n, slow)
	}
}

// A hold that lasts has a watch on its own node, armed off the critical path.
func TestALongHoldCostsThreeRequests(t *testing.T) {
	n := rounds(5)
	x := newContender(t, newService(t), "a")
	x.prime()
	proxy := x.link.Proxies[0]
	armed := make(chan string, 1)
	proxy.OnFrame(func(f zkproxy.Frame) {
		if f.Dir == zkproxy.Down && f.Opcode == zkproxy.OpGetData {
			armed <- f.Path
		}
	})
	proxy.ResetCounts()
	for range n {
		h := x.lock()
		if got := receive(t, armed, "the watch on the own node"); got != h.Path() {
			t.Errorf("a watch on %s, want it on %s", got, h.Path())
		}
		x.release(h)
	}
	c := proxy.Count()
	t.Logf("figure: %d long holds: %.2f requests a cycle (%v)", n, float64(c.Requests())/float64(n), c)
	if c.Requests() != 3*n {
		t.Errorf("%d requests for %d cycles, want 3 a cycle", c.Requests(), n)
	}
}

// Inside a client the lock passes from one caller to the next with one commit.
func TestALocalHandOverCostsOneRequest(t *testing.T) {
	n := 10 * rounds(10)
	x := newContender(t, newService(t), "a")
	x.prime()
	proxy := x.link.Proxies[0]
	h := x.lock()
	x.queue()
	proxy.ResetCounts()
	slow, token := 0, h.Token()
	for range n {
		// h is held and another caller waits.
		began := time.Now()
		x.release(h)
		h = x.hold()
		if h.Token() <= token {
			t.Errorf("token %#x after %#x", h.Token(), token)
		}
		token = h.Token()
		x.queue()
		if time.Since(began) >= lazily {
			slow++
		}
	}
	c := proxy.Count()
	x.release(h)
	x.release(x.hold())
	t.Logf("figure: %d local hand-overs: %.2f requests each (%v)", n, float64(c.Requests())/float64(n), c)
	// A hold lasts from one release to the next, so it can be slow in two rounds.
	if writes(c) != n || c.Requests() > n+2*slow {
		t.Errorf("%d requests, %d of them writes, for %d hand-overs, %d of them slow; want 1 each", c.Requests(), writes(c), n, slow)
	}
}

// writes returns the number of requests that change the tree.
func writes(c zkproxy.Counts) int {
	n := 0
	for _, op := range []int32{zkproxy.OpCreate, zkproxy.OpCreate2, zkproxy.OpCreateContainer, zkproxy.OpDelete, zkproxy.OpSetData, zkproxy.OpMulti} {
		n += c.Ops[op]
	}
	return n
}

// woken is the effect of a release on the clients other than the releasing one.
type woken struct {
	clients  int // clients that got an event
	events   int
	requests int // requests that these clients sent
}

// wakeUps makes clients wait for a lock, with a session each, and counts the effect of each
// of some releases on them, the last of which leaves that many waiters. It returns the
// maximum.
func wakeUps(t *testing.T, waiters, releases int, locker func(*coord.Client) coord.Locker) (most woken) {
	t.Helper()
	s := newService(t)
	var clients []*contender
	for i := range waiters + releases {
		x := newContender(t, s, fmt.Sprint(i))
		x.m = locker(x.c)
		clients = append(clients, x)
	}
	frames := func() int {
		n := 0
		for _, x := range clients {
			c := x.link.Proxies[0].Count()
			n += c.Requests() + c.Replies + c.Events
		}
		return n
	}
	h := clients[0].lock()
	for _, x := range clients[1:] {
		x.queue()
	}
	for i := range releases {
		quiet(t, frames)
		for _, x := range clients {
			x.link.Proxies[0].ResetCounts()
		}
		clients[i].release(h)
		h = clients[i+1].hold()
		quiet(t, frames)
		var w woken
		for j, x := range clients {
			if j == i {
				continue
			}
			c := x.link.Proxies[0].Count()
			if c.Events > 0 {
				w.clients++
			}
			w.events += c.Events
			w.requests += c.Requests()
		}
		most.clients = max(most.clients, w.clients)
		most.events = max(most.events, w.events)
		most.requests = max(most.requests, w.requests)
	}
	for i := releases; i < len(clients)-1; i++ {
		clients[i].release(h)
		h = clients[i+1].hold()
	}
	clients[len(clients)-1].release(h)
	return most
}

// quiet waits until only pings pass. On a busy machine a pause proves nothing; so each look
// counts only after the server has answered another client.
func quiet(t *testing.T, frames func() int) {
	t.Helper()
	const looks = 5
	last, n := frames(), 0
	eventually(t, "no frames are sent any more", func() bool {
		time.Sleep(20 * time.Millisecond)
		if _, err := server.Get(t).Servers()[0].FourLetter(t.Context(), "ruok"); err != nil {
			t.Fatal(err)
		}
		if now := frames(); now != last {
			last, n = now, 0
			return false
		}
		n++
		return n >= looks
	})
}

func TestAReleaseWakesTwoClientsHoweverManyWait(t *testing.T) {
	lockers := map[string]func(*coord.Client) coord.Locker{
		"mutex":                    func(c *coord.Client) coord.Locker { return coord.NewMutex(c, contested, nil) },
		"writers of a shared lock": func(c *coord.Client) coord.Locker { return coord.NewRWMutex(c, contested, nil) },
	}
	for name, locker := range lockers {
		t.Run(name, func(t *testing.T) {
			few := wakeUps(t, 5, 3, locker)
			many := wakeUps(t, 200, 3, locker)
			t.Logf("figure: one release of a %s wakes: of 5 waiters %+v; of 200 waiters %+v", name, few, many)
			if many.clients == 0 || many.clients > 2 || many.events > 2 {
				t.Errorf("woken of 200 waiters: %+v, want at most 2 clients by one event each", many)
			}
			if few != many {
				t.Errorf("of 5 waiters %+v, of 200 waiters %+v, want the same", few, many)
			}
		})
	}
}

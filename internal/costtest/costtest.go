// Package costtest tests what calls of the recipes cost on a service, in round trips and in requests. Proxies before the service report
// each message to Trips. Package recipetest has the costs on ZooKeeper.
package costtest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/trace"
)

// A Service is a service to test. Its methods are the tests.
type Service struct {
	Name   string // in figures
	Rounds int    // how often a call is measured

	// Most is what a call may cost in round trips on average, once the directories of the recipe exist. A hand-over is the way of the
	// deletion to the server and of its event to the next client. Take lists the queue when it knows no further
	// item. On a busy machine the watch of a hold can be armed so late that its reply is counted.
	Most map[string]float64

	New func(t *testing.T) Tree // with a session timeout that a busy machine does not exceed
}

// A Tree is an empty tree on the service.
type Tree struct {
	Trips *Trips
	// Connect makes a connection for one client, and returns the key of the client in Trips.
	Connect func(name string) (b backend.Backend, client any)
	// Ping is a round trip of no client.
	Ping func(ctx context.Context) error
}

// costs counts the round trips of the calls of several clients.
type costs struct {
	Service
	Tree
	t *testing.T

	mu      sync.Mutex
	levels  map[string][]int
	allSent map[string]map[string]int
}

func (s Service) begin(t *testing.T) *costs {
	return &costs{Service: s, Tree: s.New(t), t: t, levels: make(map[string][]int), allSent: make(map[string]map[string]int)}
}

// client is a client with a connection of its own.
type client struct {
	*coord.Client
	trips   any           // its key in Trips
	waiting chan struct{} // a call begins to wait
	take    func(ctx context.Context) (*coord.Hold, error)
	came    chan *coord.Hold // nil after an error
}

func (x *costs) open(name string) *client {
	x.t.Helper()
	b, known := x.Connect(name)
	c := &client{trips: known, waiting: make(chan struct{}, 16), came: make(chan *coord.Hold, 1)}
	var err error
	c.Client, err = coord.Open(x.t.Context(), b, &coord.Options{Trace: func(_ context.Context, e trace.Event) {
		if _, ok := e.(trace.WaitBegan); ok {
			select {
			case c.waiting <- struct{}{}:
			default: // of a test that does not look
			}
		}
	}})
	if err != nil {
		x.t.Fatal(err)
	}
	x.t.Cleanup(func() { c.Close() })
	return c
}

// quiet returns when nothing but keep-alives is under way: the server has answered another client
// several times, and no message passed meanwhile.
func (x *costs) quiet() {
	x.t.Helper()
	for last, n := -1, 0; n < 4; n++ {
		time.Sleep(20 * time.Millisecond) // holds arm their watches after a while
		if err := x.Ping(x.t.Context()); err != nil {
			x.t.Fatal(err)
		}
		if now := x.Trips.total(); now != last {
			last, n = now, -1
		}
	}
}

// of counts the round trips that c waits for until do returns.
func (x *costs) of(what string, c *client, do func()) {
	x.t.Helper()
	x.quiet()
	x.Trips.Reset()
	do()
	level, requests := x.Trips.of(c.trips)
	x.mu.Lock()
	defer x.mu.Unlock()
	x.levels[what] = append(x.levels[what], level)
	if x.allSent[what] == nil {
		x.allSent[what] = make(map[string]int)
	}
	for kind, n := range requests {
		x.allSent[what][kind] += n
	}
}

// want logs what calls cost, and checks the means.
func (x *costs) want(calls ...string) {
	x.t.Helper()
	for _, what := range calls {
		all, most := x.levels[what], x.Most[what]
		sum := 0
		for _, n := range all {
			sum += n
		}
		mean := float64(sum) / float64(len(all))
		x.t.Logf("figure: %s on %s: %.2f round trips on average of %d; requests of the client %v", what, x.Name, mean, len(all), x.allSent[what])
		if !(mean >= 1 && mean <= most) {
			x.t.Errorf("%s costs %.2f round trips, want 1 to %v: %v", what, mean, most, all)
		}
	}
}

// LockAndRelease tests a lock that no other client wants.
func (s Service) LockAndRelease(t *testing.T) {
	x := s.begin(t)
	c := x.open("a")
	m := coord.NewMutex(c.Client, "/lock", nil)
	for i := range s.Rounds/2 + 1 {
		var h *coord.Hold
		var err error
		lock := func() { h, err = m.Lock(t.Context()) }
		if i == 0 { // this makes the directory
			lock()
		} else {
			x.of("Lock", c, lock)
		}
		if err != nil {
			t.Fatal(err)
		}
		x.of("Release", c, func() { err = h.Release() })
		if err != nil {
			t.Fatal(err)
		}
	}
	x.want("Lock", "Release")
}

const waitingClients = 8

// contenders opens n clients, with what they wait for.
func (x *costs) contenders(n int, take func(c *coord.Client) func(ctx context.Context) (*coord.Hold, error)) (all []*client) {
	for i := range n {
		c := x.open(fmt.Sprint(i))
		c.take = take(c.Client)
		all = append(all, c)
	}
	return all
}

func lock(c *coord.Client) func(ctx context.Context) (*coord.Hold, error) {
	return coord.NewMutex(c, "/lock", nil).Lock
}

// join makes a client wait for its turn.
func (x *costs) join(wg *sync.WaitGroup, c *client) {
	wg.Go(func() {
		h, err := c.take(x.t.Context())
		if err != nil {
			x.t.Error(err)
		}
		c.came <- h
	})
}

// line makes the clients wait one after the other, and returns the hold of the first one.
func (x *costs) line(wg *sync.WaitGroup, all []*client) *coord.Hold {
	x.join(wg, all[0])
	h := <-all[0].came
	for _, c := range all[1:] {
		x.join(wg, c)
		<-c.waiting
	}
	return h
}

// turns passes turns from client to client, with all others waiting, and counts what a turn costs
// the client that gets it, from the call of Release in the client before.
func (x *costs) turns(what string, take func(c *coord.Client) func(ctx context.Context) (*coord.Hold, error)) {
	all := x.contenders(waitingClients+1, take)
	var wg sync.WaitGroup
	defer wg.Wait()
	h := x.line(&wg, all)
	for i := range x.Rounds + waitingClients {
		if h == nil {
			return
		}
		next := all[(i+1)%len(all)]
		step := func() {
			last := h
			wg.Go(func() {
				if err := last.Release(); err != nil {
					x.t.Error(err)
				}
			})
			h = <-next.came
		}
		if i >= x.Rounds { // the queue ends
			step()
			continue
		}
		token := h.Token()
		x.of(what, next, step)
		if h != nil && h.Token() <= token {
			x.t.Errorf("token %d after %d", h.Token(), token)
		}
		x.join(&wg, all[i%len(all)])
		<-all[i%len(all)].waiting
	}
	if h != nil {
		if err := h.Release(); err != nil {
			x.t.Error(err)
		}
	}
	x.want(what)
}

// HandOver tests the hand-over of a lock.
func (s Service) HandOver(t *testing.T) { s.begin(t).turns("hand-over", lock) }

// ChangeOfLeader tests an election that several clients stand in.
func (s Service) ChangeOfLeader(t *testing.T) {
	s.begin(t).turns("change of leader", func(c *coord.Client) func(ctx context.Context) (*coord.Hold, error) {
		e := coord.NewElection(c, "/leader", nil)
		return func(ctx context.Context) (*coord.Hold, error) {
			term, err := e.Campaign(ctx)
			if err != nil {
				return nil, err
			}
			return term.Hold, nil
		}
	})
}

// Turn tests that clients which wait for one lock send no more than these requests, by kind, for a turn. The next turn
// begins when all waiters have made the requests that the previous turn causes.
func (s Service) Turn(t *testing.T, most map[string]float64) {
	x := s.begin(t)
	all := x.contenders(waitingClients, lock)
	var wg sync.WaitGroup
	defer wg.Wait()
	h := x.line(&wg, all)
	const first, turns = 2, 2 * waitingClients
	for i := range first + turns {
		x.quiet()
		if i == first { // the directories, and the watch of a hold that did not wait, are no part of it
			x.Trips.Reset()
		}
		if h == nil {
			return
		}
		if err := h.Release(); err != nil {
			t.Fatal(err)
		}
		h = <-all[(i+1)%len(all)].came
		last := all[i%len(all)]
		x.join(&wg, last)
		<-last.waiting
	}
	x.quiet()
	x.requests("a turn of 8 clients", turns, most)
	for i := range waitingClients {
		if h == nil {
			return
		}
		if err := h.Release(); err != nil {
			t.Fatal(err)
		}
		if i < waitingClients-1 {
			h = <-all[(first+turns+i+1)%len(all)].came
		}
	}
}

// TurnUnderLoad is Turn with turns that follow each other at once. They cost more: a node ahead can be gone before it is watched.
func (s Service) TurnUnderLoad(t *testing.T, most map[string]float64) {
	x := s.begin(t)
	all := x.contenders(waitingClients, lock)
	const each = 50
	var wg sync.WaitGroup
	start := make(chan struct{})
	for _, c := range all {
		wg.Go(func() {
			defer close(c.came)
			for i := range each + 1 {
				if i == 1 {
					<-start
				}
				h, err := c.take(t.Context())
				if err == nil {
					err = h.Release()
				}
				if err != nil {
					t.Error(err)
					return
				}
				if i == 0 {
					c.came <- nil
				}
			}
		})
	}
	for _, c := range all {
		<-c.came
	}
	x.Trips.Reset()
	close(start)
	wg.Wait()
	x.requests("a turn of 8 clients under load", each*waitingClients, most)
}

// requests logs the requests of all clients for each of some turns, and checks them.
func (x *costs) requests(what string, turns int, most map[string]float64) {
	x.t.Helper()
	sum, text := 0, ""
	sent := x.Trips.all()
	for _, kind := range slices.Sorted(maps.Keys(sent)) {
		n := float64(sent[kind]) / float64(turns)
		sum += sent[kind]
		text += fmt.Sprintf(", %s %.2f", kind, n)
		if n > most[kind] {
			x.t.Errorf("%s: %.2f requests of the kind %q, want at most %v", what, n, kind, most[kind])
		}
	}
	x.t.Logf("figure: %s on %s: %.2f requests%s", what, x.Name, float64(sum)/float64(turns), text)
}

// Item tests an item of a queue with other items.
func (s Service) Item(t *testing.T) {
	x := s.begin(t)
	c := x.open("a")
	q := coord.NewQueue[int](c.Client, "/queue", nil)
	for n := range 100 {
		if _, err := q.Put(t.Context(), n); err != nil {
			t.Fatal(err)
		}
	}
	for n := range s.Rounds + 1 {
		var it *coord.Item[int]
		var err error
		put := func() { _, err = q.Put(t.Context(), 100+n) }
		take := func() { it, err = q.Take(t.Context()) }
		ack := func() { err = it.Ack() }
		for _, step := range []struct {
			what string
			do   func()
		}{{"Put", put}, {"Take", take}, {"Ack", ack}} {
			if n == 0 { // the client learns the directories
				step.do()
			} else {
				x.of(step.what, c, step.do)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	x.want("Put", "Take", "Ack")

	// A key costs no request. If it is in use, a Sync and two reads follow the commit that is refused.
	once := coord.NewQueue[int](c.Client, "/once", nil)
	for n := range s.Rounds/2 + 1 {
		put := func(want bool) {
			if _, put, err := once.PutOnce(t.Context(), "key", n); put != want || err != nil {
				t.Errorf("PutOnce returns %t, %v, want %t", put, err, want)
			}
		}
		first, again := func() { put(true) }, func() { put(false) }
		if n == 0 { // this makes the directories
			first()
			again()
		} else {
			x.of("PutOnce", c, first)
			x.of("PutOnce again", c, again)
		}
		it, err := once.Take(t.Context())
		if err == nil {
			err = it.Ack()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	x.want("PutOnce", "PutOnce again")

	// With FairEvery 2, every other take serves a priority behind the first one.
	for what, o := range map[string]coord.QueueOptions[int]{"Take by priority": {}, "Take with FairEvery": {FairEvery: 2}} {
		q := coord.NewPriorityQueue(c.Client, fmt.Sprint("/priorities", o.FairEvery), &o)
		for priority := range 3 {
			if _, err := q.PutAll(t.Context(), int64(priority), make([]int, s.Rounds+4)...); err != nil {
				t.Fatal(err)
			}
		}
		for n := range s.Rounds + 2 {
			var it *coord.Item[int]
			var err error
			take := func() { it, err = q.Take(t.Context()) }
			if n < 2 { // the client learns the directories
				take()
			} else {
				x.of(what, c, take)
			}
			if err == nil {
				err = it.Ack()
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	x.want("Take by priority", "Take with FairEvery")

	// Work acknowledges an item and claims the next one in one commit. It lists the queue once for 32 items, or in a second.
	const items = 40
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	x.quiet()
	x.Trips.Reset()
	n, level := 0, 0
	var requests map[string]int
	if err := q.Work(ctx, 1, func(context.Context, *coord.Item[int]) error {
		if n++; n == items {
			level, requests = x.Trips.of(c.trips)
			cancel()
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	mean := float64(level) / items
	t.Logf("figure: an item of Work on %s: %.2f round trips on average of %d; requests of the client %v", x.Name, mean, items, requests)
	if most := x.Most["item of Work"]; !(mean >= 1 && mean <= most) {
		t.Errorf("an item of Work costs %.2f round trips, want 1 to %v", mean, most)
	}

	// Handlers of one Work share commits, and so do items with Prefetch.
	for _, with := range []struct {
		handlers, prefetch int
		most               float64
	}{{8, 1, 1.3}, {1, 16, 0.8}} {
		q := coord.NewQueue(c.Client, fmt.Sprint("/shared", with.handlers), &coord.QueueOptions[int]{Prefetch: with.prefetch})
		const items = 160
		if _, err := q.PutAll(t.Context(), make([]int, items)...); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		x.quiet()
		x.Trips.Reset()
		var n atomic.Int32
		if err := q.Work(ctx, with.handlers, func(context.Context, *coord.Item[int]) error {
			if n.Add(1) == items {
				cancel()
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		_, requests := x.Trips.of(c.trips)
		sum := 0
		for _, n := range requests {
			sum += n
		}
		perItem := float64(sum) / items
		t.Logf("figure: an item of Work with %d handlers and a Prefetch of %d on %s: %.2f requests on average of %d: %v",
			with.handlers, with.prefetch, x.Name, perItem, items, requests)
		if perItem > with.most {
			t.Errorf("an item of Work with %d handlers and a Prefetch of %d costs %.2f requests, want %v at most", with.handlers, with.prefetch, perItem, with.most)
		}
	}

	// A Pop reads the next item beside its deletion, so it is one commit. It lists the queue as often as Work.
	x.quiet()
	x.Trips.Reset()
	for range items {
		if _, err := q.Pop(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	level, requests = x.Trips.of(c.trips)
	mean = float64(level) / items
	t.Logf("figure: a Pop on %s: %.2f round trips on average of %d; requests of the client %v", x.Name, mean, items, requests)
	if most := x.Most["Pop"]; !(mean >= 1 && mean <= most) {
		t.Errorf("a Pop costs %.2f round trips, want 1 to %v", mean, most)
	}
}

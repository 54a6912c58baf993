package postgres_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend/postgres"
	"github.com/go-coord/coord/backend/postgres/pgtest"
	"github.com/go-coord/coord/trace"
)

// roundTrips is what calls cost once the directories of the recipe exist: what they cost on ZooKeeper. A
// hand-over is the way of the deletion to the server and of its notification to the next client. Take
// lists the queue when it knows no further item.
var roundTrips = map[string]float64{
	"Lock": 1, "Release": 1, "hand-over": 1, "change of leader": 1, "Put": 1, "Take": 2, "Ack": 1,
}

// more is what the mean may exceed roundTrips by. On a busy machine the watch of a hold can be armed so
// late that its reply is counted.
const more = 1.2

// costs counts the round trips of the calls of several clients.
type costs struct {
	t     *testing.T
	s     *service
	other *pgx.Conn // of no client

	mu      sync.Mutex
	levels  map[string][]int
	allSent map[string]map[kind]int
}

func newCosts(t *testing.T) *costs {
	// No session of a busy machine is lost.
	s := newService(t, shared.Get(t).Addr(), postgres.Options{SessionTimeout: 10 * time.Minute})
	s.trips = new(trips)
	other, err := pgx.Connect(t.Context(), pgtest.URL(s.server, ""))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := other.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return &costs{t: t, s: s, other: other, levels: make(map[string][]int), allSent: make(map[string]map[kind]int)}
}

// costClient is a client with a link of its own.
type costClient struct {
	*coord.Client
	link    *link
	waiting chan struct{} // a call begins to wait
	came    chan *coord.Hold
	take    func(ctx context.Context) (*coord.Hold, error)
}

func (x *costs) open(name string) *costClient {
	x.t.Helper()
	c := &costClient{link: x.s.link(name), waiting: make(chan struct{}, 16), came: make(chan *coord.Hold, 1)}
	var err error
	c.Client, err = coord.Open(x.t.Context(), c.link, &coord.Options{Trace: func(_ context.Context, e trace.Event) {
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
		if err := x.other.Ping(x.t.Context()); err != nil {
			x.t.Fatal(err)
		}
		if now := x.s.trips.total(); now != last {
			last, n = now, -1
		}
	}
}

// of counts the round trips that c waits for until do returns.
func (x *costs) of(what string, c *costClient, do func()) {
	x.t.Helper()
	x.quiet()
	x.s.trips.reset()
	do()
	level, requests := x.s.trips.of(c.link.line)
	x.mu.Lock()
	defer x.mu.Unlock()
	x.levels[what] = append(x.levels[what], level)
	if x.allSent[what] == nil {
		x.allSent[what] = make(map[kind]int)
	}
	for k, n := range requests {
		x.allSent[what][k] += n
	}
}

// want logs what a call costs, and checks the mean.
func (x *costs) want(what string) {
	x.t.Helper()
	all, most := x.levels[what], roundTrips[what]
	sum := 0
	for _, n := range all {
		sum += n
	}
	mean := float64(sum) / float64(len(all))
	x.t.Logf("figure: %s on PostgreSQL: %.2f round trips on average of %d; requests of the client %v", what, mean, len(all), x.allSent[what])
	if mean < 1 || mean > most*more {
		x.t.Errorf("%s costs %.2f round trips, want 1 to %v: %v", what, mean, most, all)
	}
}

func TestCost_OfALockAndItsRelease(t *testing.T) {
	t.Parallel()
	x := newCosts(t)
	c := x.open("a")
	m := coord.NewMutex(c.Client, "/lock", nil)
	for i := range 6 {
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
	x.want("Lock")
	x.want("Release")
}

const waitingClients = 8

// join makes a client wait for its turn.
func (x *costs) join(wg *sync.WaitGroup, c *costClient) {
	wg.Go(func() {
		h, err := c.take(x.t.Context())
		if err != nil {
			x.t.Error(err)
		}
		c.came <- h // nil after an error
	})
}

// turns passes turns from client to client, with all others waiting, and counts what a turn costs
// the client that gets it, from the call of Release in the client before.
func (x *costs) turns(what string, take func(c *coord.Client) func(ctx context.Context) (*coord.Hold, error)) {
	var all []*costClient
	var wg sync.WaitGroup
	defer wg.Wait()
	for i := range waitingClients + 1 {
		c := x.open(fmt.Sprint(i))
		c.take = take(c.Client)
		all = append(all, c)
		x.join(&wg, c)
		if i == 0 {
			c.came <- <-c.came
			continue
		}
		<-c.waiting
	}
	const n = 10
	h := <-all[0].came
	for i := range n + waitingClients {
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
		if i >= n { // the queue ends
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
}

func TestCost_OfAHandOver(t *testing.T) {
	t.Parallel()
	x := newCosts(t)
	x.turns("hand-over", func(c *coord.Client) func(ctx context.Context) (*coord.Hold, error) {
		return coord.NewMutex(c, "/lock", nil).Lock
	})
	x.want("hand-over")
}

func TestCost_OfAChangeOfLeader(t *testing.T) {
	t.Parallel()
	x := newCosts(t)
	x.turns("change of leader", func(c *coord.Client) func(ctx context.Context) (*coord.Hold, error) {
		e := coord.NewElection(c, "/leader", nil)
		return func(ctx context.Context) (*coord.Hold, error) {
			term, err := e.Campaign(ctx)
			if err != nil {
				return nil, err
			}
			return term.Hold, nil
		}
	})
	x.want("change of leader")
}

// turnRequests is what a turn of a contended lock may cost in requests of each kind: its client creates
// and deletes its node, lists the directory, watches the two nodes ahead and later its own.
var turnRequests = map[kind]float64{commits: 2, reads: 3}

// Clients that wait for one lock send no more than turnRequests for a turn. The next turn begins when
// all waiters have made the requests that the previous turn causes.
func TestCost_OfATurnInRequests(t *testing.T) {
	t.Parallel()
	x := newCosts(t)
	var all []*costClient
	for i := range waitingClients {
		c := x.open(fmt.Sprint(i))
		c.take = coord.NewMutex(c.Client, "/lock", nil).Lock
		all = append(all, c)
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	x.join(&wg, all[0])
	h := <-all[0].came
	for _, c := range all[1:] {
		x.join(&wg, c)
		<-c.waiting
	}
	const first, turns = 2, 2 * waitingClients
	for i := range first + turns {
		x.quiet()
		if i == first { // the directories, and the watch of a hold that did not wait, are no part of it
			x.s.trips.reset()
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
	sum, text := 0, ""
	sent := x.s.trips.all()
	for _, k := range slices.Sorted(maps.Keys(sent)) {
		n := float64(sent[k]) / turns
		sum += sent[k]
		text += fmt.Sprintf(", %s %.2f", k, n)
		if n > turnRequests[k]*more {
			t.Errorf("%.2f requests of the kind %q for a turn, want at most %v", n, k, turnRequests[k])
		}
	}
	t.Logf("figure: a turn of 8 clients on PostgreSQL: %.2f requests%s", float64(sum)/turns, text)
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

// An item of a queue with other items.
func TestCost_OfAnItem(t *testing.T) {
	t.Parallel()
	x := newCosts(t)
	c := x.open("a")
	q := coord.NewQueue[int](c.Client, "/queue", nil)
	for n := range 100 {
		if _, err := q.Put(t.Context(), n); err != nil {
			t.Fatal(err)
		}
	}
	for n := range 9 {
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
	x.want("Put")
	x.want("Take")
	x.want("Ack")
}

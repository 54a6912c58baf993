package etcd_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend/etcd"
	"github.com/go-coord/coord/trace"
)

// costs counts the round trips of the calls of several clients.
type costs struct {
	t *testing.T
	s *service

	mu      sync.Mutex
	levels  map[string][]int
	allSent map[string]map[string]int
}

func newCosts(t *testing.T) *costs {
	// No session of a busy machine is lost, and none proves its watch stream meanwhile: it does so
	// when a sixth of the lease has passed.
	s := newService(t, shared.get(t), etcd.Options{SessionTimeout: 10 * time.Minute})
	s.trips = new(trips)
	return &costs{t: t, s: s, levels: make(map[string][]int), allSent: make(map[string]map[string]int)}
}

// costClient is a client with a link of its own.
type costClient struct {
	*coord.Client
	link    *link
	waiting chan struct{} // a call begins to wait
}

func (x *costs) open(name string) *costClient {
	x.t.Helper()
	c := &costClient{link: x.s.link(name), waiting: make(chan struct{}, 16)}
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
		if _, err := x.s.roundTrip(x.t.Context()); err != nil {
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
	level, requests := x.s.trips.of(c.link)
	x.mu.Lock()
	defer x.mu.Unlock()
	x.levels[what] = append(x.levels[what], level)
	if x.allSent[what] == nil {
		x.allSent[what] = make(map[string]int)
	}
	for method, n := range requests {
		x.allSent[what][method] += n
	}
}

// exactly is the limit for calls that cost one round trip. On a busy machine the watch of a hold can
// be armed so late that its reply is counted.
const exactly = 1.1

// want logs what a call costs, and checks the mean.
func (x *costs) want(what string, most float64) {
	x.t.Helper()
	all := x.levels[what]
	sum := 0
	for _, n := range all {
		sum += n
	}
	mean := float64(sum) / float64(len(all))
	x.t.Logf("figure: %s on etcd: %.2f round trips on average of %d; requests of the client %v", what, mean, len(all), x.allSent[what])
	if mean < 1 || mean > most {
		x.t.Errorf("%s costs %.2f round trips, want 1 to %v: %v", what, mean, most, all)
	}
}

// A lock and its release cost one round trip each, as on ZooKeeper.
func TestALockAndItsReleaseAreOneRoundTripEach(t *testing.T) {
	t.Parallel()
	x := newCosts(t)
	c := x.open("a")
	m := coord.NewMutex(c.Client, "/lock", nil)
	for i := range 11 {
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
	x.want("Lock", exactly)
	x.want("Release", exactly)
}

const waitingClients = 8

// queuer is a client that waits for its turn.
type queuer struct {
	*costClient
	take func(ctx context.Context) (*coord.Hold, error)
	came chan *coord.Hold // nil after an error
}

// turns passes turns from client to client, with all others waiting, and counts what a turn costs
// the client that gets it, from the call of Release in the client before.
func (x *costs) turns(what string, take func(c *coord.Client) func(ctx context.Context) (*coord.Hold, error)) {
	var all []*queuer
	var wg sync.WaitGroup
	defer wg.Wait()
	queue := func(c *queuer) {
		wg.Go(func() {
			h, err := c.take(x.t.Context())
			if err != nil {
				x.t.Error(err)
			}
			c.came <- h
		})
	}
	for i := range waitingClients + 1 {
		c := &queuer{costClient: x.open(fmt.Sprint(i)), came: make(chan *coord.Hold, 1)}
		c.take = take(c.Client)
		all = append(all, c)
		queue(c)
		if i == 0 {
			c.came <- <-c.came
			continue
		}
		<-c.waiting
	}
	const n = 20
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
		x.of(what, next.costClient, step)
		if h != nil && h.Token() <= token {
			x.t.Errorf("token %d after %d", h.Token(), token)
		}
		queue(all[i%len(all)])
		<-all[i%len(all)].waiting
	}
	if h != nil {
		if err := h.Release(); err != nil {
			x.t.Error(err)
		}
	}
}

// A hand-over is the way of the deletion to the server and the way of its event to the next
// client, which is one round trip.
func TestAHandOverIsOneRoundTrip(t *testing.T) {
	t.Parallel()
	x := newCosts(t)
	x.turns("hand-over", func(c *coord.Client) func(ctx context.Context) (*coord.Hold, error) {
		return coord.NewMutex(c, "/lock", nil).Lock
	})
	x.want("hand-over", 1.2)
}

// turnRequests is what a turn of a contended lock may cost in requests of each kind. Its client
// creates its node, lists the directory, watches its node and the two ahead of it, and reads these
// three; it lists again when it may be next; it deletes its node, and the server keeps a watcher
// until it is canceled.
var turnRequests = map[string]float64{writeTxn: 2, readTxn: 3, watchCreate: 3, watchCancel: 3, watchProgress: 1}

// contenders opens clients of one lock.
func (x *costs) contenders() []*queuer {
	var all []*queuer
	for i := range waitingClients {
		c := &queuer{costClient: x.open(fmt.Sprint(i)), came: make(chan *coord.Hold, 1)}
		c.take = coord.NewMutex(c.Client, "/lock", nil).Lock
		all = append(all, c)
	}
	return all
}

// Clients that wait for one lock send no more than turnRequests for a turn. The next turn
// begins when all waiters have made the requests that the previous turn causes.
func TestTheRequestsOfATurn(t *testing.T) {
	t.Parallel()
	x := newCosts(t)
	all := x.contenders()
	var wg sync.WaitGroup
	defer wg.Wait()
	join := func(c *queuer) {
		wg.Go(func() {
			h, err := c.take(t.Context())
			if err != nil {
				t.Error(err)
			}
			c.came <- h
		})
	}
	join(all[0])
	h := <-all[0].came
	for _, c := range all[1:] {
		join(c)
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
		join(last)
		<-last.waiting
	}
	x.quiet()
	x.requests("a turn of 8 clients", turns, turnRequests)
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

// Turns that follow each other at once cost more: a node ahead can be gone before it is watched,
// and a read can be older than the watchers beside it. On a busy machine proofs come late, and are
// requested again.
func TestTheRequestsOfATurnUnderLoad(t *testing.T) {
	t.Parallel()
	x := newCosts(t)
	all := x.contenders()
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
	x.s.trips.reset()
	close(start)
	wg.Wait()
	x.requests("a turn of 8 clients under load", each*waitingClients, map[string]float64{writeTxn: 2, readTxn: 5, watchCreate: 5, watchCancel: 5, watchProgress: 4})
}

// requests logs the requests of all clients for each of some turns, and checks them.
func (x *costs) requests(what string, turns int, most map[string]float64) {
	x.t.Helper()
	sum, text := 0, ""
	sent := x.s.trips.all()
	for _, kind := range slices.Sorted(maps.Keys(sent)) {
		n := float64(sent[kind]) / float64(turns)
		sum += sent[kind]
		text += fmt.Sprintf(", %s %.2f", kind, n)
		if n > most[kind]*exactly {
			x.t.Errorf("%s: %.2f requests of the kind %q, want at most %v", what, n, kind, most[kind])
		}
	}
	x.t.Logf("figure: %s on etcd: %.2f requests%s", what, float64(sum)/float64(turns), text)
}

func TestAChangeOfLeaderIsOneRoundTrip(t *testing.T) {
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
	x.want("change of leader", 1.2)
}

// An item of a queue with other items costs one round trip each for Put and Ack, and two at most
// for Take.
func TestAnItemTakesFourRoundTripsAtMost(t *testing.T) {
	t.Parallel()
	x := newCosts(t)
	c := x.open("a")
	q := coord.NewQueue[int](c.Client, "/queue", nil)
	for n := range 100 {
		if _, err := q.Put(t.Context(), n); err != nil {
			t.Fatal(err)
		}
	}
	for n := range 21 {
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
	x.want("Put", exactly)
	x.want("Take", 2)
	x.want("Ack", exactly)
}

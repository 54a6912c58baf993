package coord_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/memory"
)

var simSeed = flag.Uint64("sim.seed", 0, "run only this seed of the simulation")

// simulation is clients that take one lock over links with latency, while links
// are partitioned, sessions expire, messages are lost, callers give up and
// outsiders delete nodes, all drawn from one seed. Each actor draws from numbers
// of its own, so what one does does not shift what another draws.
type simulation struct {
	t    *testing.T
	seed uint64
	st   *memory.Store

	mu      sync.Mutex
	token   int64                   // the highest granted
	holding map[*coord.Hold]bool    // those whose holder has not been told yet
	outside map[int64]bool          // tokens whose node an outsider deleted
	count   map[string]int          // what happened
	clients map[string]*memory.Link // by name
}

func (x *simulation) rng(actor uint64) *rand.Rand { return rand.New(rand.NewPCG(x.seed, actor)) }

func (x *simulation) note(what string) {
	x.mu.Lock()
	x.count[what]++
	x.mu.Unlock()
}

// granted checks what must hold at each grant.
func (x *simulation) granted(h *coord.Hold) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.count["grant"]++
	if x.outside[h.Token()] {
		// Its node was deleted before the reply that granted it had come. It
		// is told soon, and until then fence and guard refuse what it does.
		return
	}
	if h.Token() <= x.token {
		x.t.Errorf("seed %d: token %d after %d", x.seed, h.Token(), x.token)
	}
	x.token = max(x.token, h.Token())
	for other := range x.holding {
		// Whoever held before must have been told, unless an outsider deleted
		// the node: that is told as soon as the event comes.
		if other.Err() == nil && !x.outside[other.Token()] {
			x.t.Errorf("seed %d: token %d granted while %d holds", x.seed, h.Token(), other.Token())
		}
	}
	x.holding[h] = true
}

func (x *simulation) ended(h *coord.Hold) {
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.holding, h)
	if errors.Is(h.Err(), coord.ErrLost) {
		x.count["loss"]++
	}
}

// worker takes the lock some times.
func (x *simulation) worker(c *coord.Client, actor uint64, rounds int) {
	r := x.rng(actor)
	m := coord.NewMutex(c, "/sim/lock", nil)
	for range rounds {
		ctx, cancel := context.Background(), context.CancelFunc(func() {})
		if r.IntN(3) == 0 {
			ctx, cancel = context.WithTimeout(ctx, time.Duration(r.IntN(400))*time.Millisecond)
		}
		var h *coord.Hold
		var err error
		if r.IntN(5) == 0 {
			h, err = m.TryLock(ctx)
		} else {
			h, err = m.Lock(ctx)
		}
		cancel()
		switch {
		case err == nil:
			x.granted(h)
			select {
			case <-time.After(time.Duration(r.IntN(30)) * time.Millisecond):
			case <-h.Done():
			}
			if r.IntN(4) == 0 {
				h.Verify(context.Background())
			}
			// It stops holding before it says so.
			x.mu.Lock()
			delete(x.holding, h)
			x.mu.Unlock()
			h.Release()
			x.ended(h)
		case errors.Is(err, context.DeadlineExceeded):
			x.note("gave up")
		case errors.Is(err, coord.ErrLocked):
			x.note("locked")
		default:
			x.t.Errorf("seed %d: %v", x.seed, err)
			return
		}
		time.Sleep(time.Duration(r.IntN(20)) * time.Millisecond)
	}
}

// nemesis breaks things until stop is closed.
func (x *simulation) nemesis(names []string, clients []*coord.Client, stop <-chan struct{}) {
	r := x.rng(1 << 32)
	s, err := x.st.Open(context.Background())
	if err != nil {
		x.t.Error(err)
		return
	}
	defer s.Close()
	for {
		select {
		case <-stop:
			for _, n := range names {
				x.clients[n].Heal()
			}
			return
		case <-time.After(time.Duration(r.IntN(60)) * time.Millisecond):
		}
		i := r.IntN(len(names))
		link := x.clients[names[i]]
		switch r.IntN(7) {
		case 0:
			x.note("partition")
			link.Partition()
			select {
			case <-time.After(time.Duration(r.IntN(400)) * time.Millisecond):
			case <-stop:
			}
			link.Heal()
		case 1:
			x.note("blip")
			link.Partition()
			link.Heal()
		case 2:
			st := <-clients[i].States(context.Background())
			x.note("expiry")
			link.Expire(st.Session)
		case 3:
			x.note("lost request")
			link.DropNextRequest()
		case 4:
			x.note("lost reply")
			link.DropNextReply()
		case 5:
			link.SetLatency(time.Duration(r.IntN(3)) * time.Millisecond)
		case 6:
			list, _, _ := s.Children(context.Background(), "/sim/lock", nil)
			if len(list) == 0 || r.IntN(3) > 0 {
				continue
			}
			path := "/sim/lock/" + list[r.IntN(len(list))]
			stat, err := s.Exists(context.Background(), path, nil)
			if err != nil {
				continue
			}
			x.mu.Lock()
			x.outside[stat.Czxid] = true
			x.mu.Unlock()
			if _, err := s.Commit(context.Background(), backend.Delete(path, backend.AnyVersion)); err == nil {
				x.note("outsider's delete")
			}
		}
	}
}

// run plays one seed to the end and checks that nothing is left.
func (x *simulation) run() {
	const clients, workers, rounds = 4, 2, 6
	x.st = memory.New(&memory.Options{SessionTimeout: 300 * time.Millisecond})
	x.holding, x.outside, x.clients = make(map[*coord.Hold]bool), make(map[int64]bool), make(map[string]*memory.Link)
	var names []string
	var all []*coord.Client
	var wg sync.WaitGroup
	for i := range clients {
		name := fmt.Sprint("client-", i)
		names = append(names, name)
		x.clients[name] = x.st.Link(name)
		all = append(all, open(x.t, x.clients[name], nil))
	}
	for i, c := range all {
		for j := range workers {
			wg.Go(func() { x.worker(c, uint64(i*workers+j), rounds) })
		}
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		x.nemesis(names, all, stop)
	}()
	wg.Wait() // a lost wake-up is a deadlock of the bubble
	close(stop)
	<-stopped
	time.Sleep(time.Second) // of fake time, for sessions that have to expire
	synctest.Wait()
	if left := children(x.t, x.st, "/sim/lock"); len(left) != 0 {
		x.t.Errorf("seed %d: left behind: %v", x.seed, left)
	}
	for _, c := range all {
		c.Close()
	}
}

func TestTheMutexUnderRandomFaults(t *testing.T) {
	seeds, first := uint64(300), uint64(1)
	if os.Getenv("COORD_LONG") != "" {
		seeds = 20_000
	}
	if *simSeed != 0 {
		seeds, first = 1, *simSeed
	}
	count := make(map[string]int)
	for seed := first; seed < first+seeds && !t.Failed(); seed++ {
		synctest.Test(t, func(t *testing.T) {
			(&simulation{t: t, seed: seed, count: count}).run()
		})
	}
	t.Logf("figure: simulation of the mutex, %d seeds: %v", seeds, count)
	if *simSeed != 0 {
		return
	}
	for _, what := range []string{"grant", "loss", "gave up", "locked", "partition", "blip", "expiry", "lost request", "lost reply", "outsider's delete"} {
		if count[what] == 0 {
			t.Errorf("%q never happened: the simulation tested nothing of it", what)
		}
	}
}

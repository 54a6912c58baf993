package coord_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/memory"
	"github.com/go-coord/coord/internal/coordtest"
)

var simTrace = flag.Bool("sim.trace", false, "print the seed of each schedule before it is played: a deadlock names none")

var simSeed = flag.Uint64("sim.seed", 0, "run only this seed of the simulation")

// simRange returns the seeds that a random simulation plays, and whether they are
// enough for everything that can happen in it. Under the race detector, which makes a
// schedule take ten times as long, a fifth is played: test.sh plays all without it.
func simRange(short, most uint64) (first, seeds uint64, enough bool) {
	switch {
	case *simSeed != 0:
		return *simSeed, 1, false
	case coordtest.Long():
		return 1, most, true
	case raceDetector:
		return 1, short / 5, false
	}
	return 1, short, true
}

// simulation is clients that use one recipe over links with latency, while links
// are partitioned, sessions expire, messages are lost, callers give up and
// outsiders delete nodes, all drawn from one seed. Each actor draws from numbers
// of its own, so what one does does not shift what another draws.
type simulation struct {
	t    *testing.T
	seed uint64
	st   *memory.Store
	path string // of the recipe

	mu      sync.Mutex
	token   int64                 // the highest granted
	holding map[*coord.Hold]bool  // exclusive holds whose holder has not let go yet
	outside map[string]bool       // paths of nodes that an outsider deleted
	deleted map[string]int64      // their Czxids, where they are known
	nodes   map[*coord.Hold]int64 // the Czxids of their nodes when they were given back
	early   map[int64]bool        // sessions that were ended while their client could not know
	count   map[string]int        // what happened
	links   []*memory.Link        // of the clients
}

func (x *simulation) rng(actor uint64) *rand.Rand { return rand.New(rand.NewPCG(x.seed, actor)) }

func (x *simulation) note(what string) {
	x.mu.Lock()
	x.count[what]++
	x.mu.Unlock()
}

// granted checks what must hold at the grant of an exclusive hold.
func (x *simulation) granted(h *coord.Hold) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.count["grant"]++
	x.grows(h)
	x.conflict(h, x.holding)
	x.holding[h] = true
}

// void reports whether a hold need not be first in anything: it was lost before
// its holder came to say that he has it; or an outsider deleted its node, which can
// have happened before the reply that granted it had come. Then its holder is told
// soon, and until then fence and guard refuse what he does.
func (x *simulation) void(h *coord.Hold) bool {
	return h.Err() != nil || x.outside[h.Path()] || x.early[h.Session()]
}

// grows checks that tokens do.
func (x *simulation) grows(h *coord.Hold) {
	if x.void(h) {
		return
	}
	if h.Token() <= x.token {
		x.t.Errorf("seed %d: token %d after %d", x.seed, h.Token(), x.token)
	}
	x.token = max(x.token, h.Token())
}

// conflict checks that those who held before have been told.
func (x *simulation) conflict(h *coord.Hold, others map[*coord.Hold]bool) {
	if x.void(h) {
		return
	}
	for other := range others {
		if !x.void(other) {
			x.t.Errorf("seed %d: %s granted while %s holds", x.seed, h.Path(), other.Path())
		}
	}
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
func (x *simulation) worker(c *coord.Client, actor uint64) {
	r := x.rng(actor)
	m := coord.NewMutex(c, x.path, nil)
	for range 6 {
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

// nemesis breaks things for a number of steps, and mends them. After that nothing
// wakes a waiter but the protocol, so a wake-up that was lost shows: the bubble
// has a deadlock.
func (x *simulation) nemesis(clients []*coord.Client) {
	r := x.rng(1 << 32)
	s, err := x.st.Open(context.Background())
	if err != nil {
		x.t.Error(err)
		return
	}
	defer s.Close()
	defer func() {
		for _, l := range x.links {
			l.Heal()
		}
	}()
	for range 2 + r.IntN(40) {
		time.Sleep(time.Duration(r.IntN(60)) * time.Millisecond)
		i := r.IntN(len(clients))
		link := x.links[i]
		switch r.IntN(7) {
		case 0:
			x.note("partition")
			link.Partition()
			time.Sleep(time.Duration(r.IntN(400)) * time.Millisecond)
			link.Heal()
		case 1:
			x.note("blip")
			link.Partition()
			link.Heal()
		case 2:
			st := <-clients[i].WatchState(context.Background())
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
			list, _, _ := s.Children(context.Background(), x.path, nil)
			if len(list) == 0 || r.IntN(3) > 0 {
				continue
			}
			path := x.path + "/" + list[r.IntN(len(list))]
			x.mu.Lock()
			x.outside[path] = true
			x.mu.Unlock()
			if _, err := s.Commit(context.Background(), backend.Delete(path, backend.AnyVersion)); err == nil {
				x.note("outsider's delete")
			}
		}
	}
}

// play has clients with two workers each use the recipe at path, to the end, and
// checks that nothing is left.
func (x *simulation) play(path string, worker func(c *coord.Client, actor uint64)) {
	const clients, workers = 4, 2
	x.path = path
	if *simTrace {
		fmt.Println("seed", x.seed)
	}
	x.st = memory.New(&memory.Options{SessionTimeout: 300 * time.Millisecond})
	x.holding, x.outside = make(map[*coord.Hold]bool), make(map[string]bool)
	var all []*coord.Client
	var wg sync.WaitGroup
	for i := range clients {
		x.links = append(x.links, x.st.Link(fmt.Sprint("client-", i)))
		all = append(all, coordtest.Open(x.t, x.links[i], nil))
	}
	for i, c := range all {
		for j := range workers {
			wg.Go(func() { worker(c, uint64(i*workers+j)) })
		}
	}
	wg.Go(func() { x.nemesis(all) })
	wg.Wait()
	time.Sleep(time.Second) // of fake time, for sessions that have to expire
	synctest.Wait()
	if left := coordtest.Children(x.t, x.st, path); len(left) != 0 {
		x.t.Errorf("seed %d: left behind: %v", x.seed, left)
	}
	for _, c := range all {
		c.Close()
	}
}

func TestTheMutexUnderRandomFaults(t *testing.T) {
	first, seeds, all := simRange(300, 20_000)
	count := make(map[string]int)
	for seed := first; seed < first+seeds && !t.Failed(); seed++ {
		synctest.Test(t, func(t *testing.T) {
			x := &simulation{t: t, seed: seed, count: count}
			x.play("/sim/lock", x.worker)
		})
	}
	t.Logf("figure: simulation of the mutex, %d seeds: %v", seeds, count)
	if !all {
		return
	}
	for _, what := range []string{"grant", "loss", "gave up", "locked", "partition", "blip", "expiry", "lost request", "lost reply", "outsider's delete"} {
		if count[what] == 0 {
			t.Errorf("%q never happened: the simulation tested nothing of it", what)
		}
	}
}

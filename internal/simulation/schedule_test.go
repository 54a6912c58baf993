package simulation_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/backend/memory"
	"github.com/go-coord/coord/internal/coordtest"
)

// gates stops every call of every client twice: before it is made, and before its reply is
// seen. A schedule lets one call continue at a time, in an order drawn from its seed. So
// messages arrive in orders that timing alone would seldom produce.
type gates struct {
	mu      sync.Mutex
	waiting []chan struct{}
	open    bool
}

func (g *gates) pass() {
	g.mu.Lock()
	if g.open {
		g.mu.Unlock()
		return
	}
	ch := make(chan struct{})
	g.waiting = append(g.waiting, ch)
	g.mu.Unlock()
	<-ch
}

// step lets one call continue that r picks. It reports false if none waits.
func (g *gates) step(r *rand.Rand) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.waiting) == 0 {
		return false
	}
	i := r.IntN(len(g.waiting))
	close(g.waiting[i])
	g.waiting = append(g.waiting[:i], g.waiting[i+1:]...)
	return true
}

// set opens or closes all gates.
func (g *gates) set(open bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open = open
	for _, ch := range g.waiting {
		close(ch)
	}
	g.waiting = nil
}

// schedule lets three or four callers take one lock, once each, in steps.
type schedule struct {
	simulation
	r        *rand.Rand
	gates    gates
	readers  map[*coord.Hold]bool
	cancels  []context.CancelFunc
	outsider backend.Session // the session of an outsider
}

const schedulePath = "/schedule"

func (x *schedule) run(lockers func(*coord.Client) []coord.Locker) {
	x.r = x.rng(1)
	x.st = memory.New(&memory.Options{SessionTimeout: time.Hour})
	x.holding, x.outside, x.readers = make(map[*coord.Hold]bool), make(map[string]bool), make(map[*coord.Hold]bool)
	x.gates.set(true)
	pass := func() { x.gates.pass() }
	var clients []*coord.Client
	for i := range 3 + x.r.IntN(2) {
		x.links = append(x.links, x.st.Link(fmt.Sprint(i)))
		c := coordtest.Open(x.t, backendtest.Intercept(x.links[i], backendtest.Hooks{
			Before: func(context.Context, backendtest.Call) error { pass(); return nil },
			After:  func(_ context.Context, _ backendtest.Call, err error) error { pass(); return err },
		}), nil)
		coordtest.MustRelease(x.t, coordtest.MustLock(x.t, lockers(c)[0])) // the directory is known
		clients = append(clients, c)
	}
	var err error
	if x.outsider, err = x.st.Open(context.Background()); err != nil {
		x.t.Fatal(err)
	}
	defer x.outsider.Close()

	x.gates.set(false)
	var callers sync.WaitGroup
	shared := x.r.IntN(4) == 0 // two callers have one client
	for i, c := range clients {
		if shared && i == len(clients)-1 {
			c = clients[0]
		}
		sides := lockers(c)
		side := x.r.IntN(len(sides))
		ctx, cancel := context.WithCancel(context.Background())
		x.cancels = append(x.cancels, cancel)
		callers.Go(func() { x.caller(ctx, sides[side], side == 1) })
	}
	finished := make(chan struct{})
	go func() {
		callers.Wait()
		close(finished)
	}()
	x.steps(finished)

	x.gates.set(true)
	for _, cancel := range x.cancels {
		cancel()
	}
	<-finished
	time.Sleep(time.Minute) // of fake time, for the work in the background
	synctest.Wait()
	if left := coordtest.Children(x.t, x.st, schedulePath); len(left) != 0 {
		x.t.Errorf("seed %d: left behind: %v", x.seed, left)
	}
	for _, c := range clients {
		c.Close()
	}
}

// caller takes the lock once and holds it for some steps.
func (x *schedule) caller(ctx context.Context, l coord.Locker, reads bool) {
	h, err := l.Lock(ctx)
	if err != nil {
		return // cancelled
	}
	x.mu.Lock()
	x.count["grant"]++
	x.conflict(h, x.holding)
	if reads {
		x.readers[h] = true
	} else {
		x.conflict(h, x.readers)
		x.grows(h)
		x.holding[h] = true
	}
	x.mu.Unlock()
	x.gates.pass()
	x.mu.Lock()
	delete(x.holding, h)
	delete(x.readers, h)
	x.mu.Unlock()
	h.Release()
}

// steps lets one call after the other continue until all callers have finished, with a few
// faults in between. Nothing rescues a waiter whose wake-up was lost: if no call waits at a
// gate any more, the waiter is stuck.
func (x *schedule) steps(finished <-chan struct{}) {
	faults := x.r.IntN(4)
	for idle := 0; idle < 5; {
		synctest.Wait()
		select {
		case <-finished:
			return
		default:
		}
		if faults > 0 && x.r.IntN(12) == 0 {
			faults--
			x.fault()
			continue
		}
		if x.gates.step(x.r) {
			idle = 0
			x.note("step")
			continue
		}
		idle++
		time.Sleep(time.Second) // for pauses and for watches that are armed later
	}
	left, _, _ := x.outsider.Children(context.Background(), schedulePath, nil)
	x.t.Errorf("seed %d: a caller is stuck; in the queue are %v", x.seed, left)
}

func (x *schedule) fault() {
	i := x.r.IntN(len(x.links))
	ctx := context.Background()
	list, _, _ := x.outsider.Children(ctx, schedulePath, nil)
	node := ""
	if len(list) > 0 {
		node = schedulePath + "/" + list[x.r.IntN(len(list))]
	}
	switch x.r.IntN(5) {
	case 0:
		x.cancels[i]()
		x.note("cancel")
	case 1:
		x.links[i].Partition()
		x.links[i].Heal()
		x.note("blip")
	case 2:
		x.links[i].DropNextReply()
		x.note("lost reply")
	case 3:
		if node != "" {
			x.mu.Lock()
			x.outside[node] = true
			x.mu.Unlock()
			if _, err := x.outsider.Commit(ctx, backend.Delete(node, backend.AnyVersion)); err == nil {
				x.note("outsider's delete")
			}
		}
	case 4:
		if node != "" {
			if _, err := x.outsider.Commit(ctx, backend.SetData(node, nil, backend.AnyVersion)); err == nil {
				x.note("outsider's write")
			}
		}
	}
}

func TestTheLineInEveryOrderOfMessages(t *testing.T) {
	for name, lockers := range map[string]func(*coord.Client) []coord.Locker{
		"mutex": func(c *coord.Client) []coord.Locker {
			return []coord.Locker{coord.NewMutex(c, schedulePath, nil)}
		},
		"readers and writers": func(c *coord.Client) []coord.Locker {
			rw := coord.NewRWMutex(c, schedulePath, nil)
			return []coord.Locker{rw, rw.RLocker()}
		},
	} {
		t.Run(name, func(t *testing.T) {
			first, seeds, _ := simRange(1_000, 50_000)
			count := make(map[string]int)
			for seed := first; seed < first+seeds && !t.Failed(); seed++ {
				synctest.Test(t, func(t *testing.T) {
					x := &schedule{simulation: simulation{t: t, seed: seed, count: count}}
					x.run(lockers)
				})
			}
			t.Logf("figure: schedules of the line of a %s: %d, %v", name, seeds, count)
			for _, what := range []string{"grant", "step", "cancel", "blip", "lost reply", "outsider's delete", "outsider's write"} {
				if count[what] == 0 && *simSeed == 0 {
					t.Errorf("%q never happened: the schedules tested nothing of it", what)
				}
			}
		})
	}
}

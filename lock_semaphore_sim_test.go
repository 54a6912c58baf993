package coord_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend/memory"
	"github.com/go-coord/coord/backend/zookeeper"
	"github.com/go-coord/coord/internal/zkservice"
)

// permitCount checks that holders never have more permits than there are. Like
// the simulation's other checks it leaves out holds whose node an outsider has
// deleted.
type permitCount struct {
	mu      sync.Mutex
	limit   int
	most    int
	holding map[*coord.Hold]int
	void    func(*coord.Hold) bool
}

func newPermitCount(limit int) *permitCount {
	return &permitCount{limit: limit, holding: make(map[*coord.Hold]int), void: func(h *coord.Hold) bool { return h.Err() != nil }}
}

func (p *permitCount) take(h *coord.Hold, n int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.holding[h] = n
	sum := 0
	for h, n := range p.holding {
		if !p.void(h) {
			sum += n
		}
	}
	p.most = max(p.most, sum)
	if sum > p.limit {
		return fmt.Errorf("%d permits of %d are held", sum, p.limit)
	}
	return nil
}

func (p *permitCount) give(h *coord.Hold) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.holding, h)
}

// permitWorker takes chunks of permits until it has had a number of them, and
// gives up some waits. It returns what went wrong.
func permitWorker(s *coord.Semaphore, r *rand.Rand, p *permitCount, note func(string)) error {
	for left := 10; left > 0; {
		n := 1 + r.IntN(p.limit)
		if r.IntN(3) > 0 {
			n = 1 + r.IntN(min(3, p.limit))
		}
		ctx, cancel := context.Background(), context.CancelFunc(func() {})
		if r.IntN(4) == 0 {
			ctx, cancel = context.WithTimeout(ctx, time.Duration(r.IntN(200))*time.Millisecond)
		}
		var h *coord.Hold
		var err error
		if r.IntN(6) == 0 {
			h, err = s.TryAcquire(ctx, n)
		} else {
			h, err = s.Acquire(ctx, n)
		}
		cancel()
		switch {
		case errors.Is(err, context.DeadlineExceeded):
			note("gave up")
		case errors.Is(err, coord.ErrLocked):
			note("locked")
		case err != nil:
			return err
		default:
			note("grant")
			if err := p.take(h, n); err != nil {
				return err
			}
			select {
			case <-time.After(time.Duration(r.IntN(20)) * time.Millisecond):
			case <-h.Done():
			}
			p.give(h)
			h.Release()
			if errors.Is(h.Err(), coord.ErrLost) {
				note("loss")
			}
		}
		left -= n
	}
	return nil
}

func TestTheSemaphoreUnderRandomFaults(t *testing.T) {
	first, seeds, all := simRange(200, 20_000)
	count := make(map[string]int)
	for seed := first; seed < first+seeds && !t.Failed(); seed++ {
		synctest.Test(t, func(t *testing.T) {
			x := &simulation{t: t, seed: seed, count: count}
			p := newPermitCount(2 + int(seed%4))
			p.void = func(h *coord.Hold) bool {
				x.mu.Lock()
				defer x.mu.Unlock()
				return x.void(h)
			}
			x.play("/sim/s/requests", func(c *coord.Client, actor uint64) {
				s := coord.NewSemaphore(c, "/sim/s", p.limit, nil)
				if err := permitWorker(s, x.rng(actor), p, x.note); err != nil {
					t.Errorf("seed %d: %v", seed, err)
				}
			})
		})
	}
	t.Logf("figure: simulation of the semaphore, %d seeds: %v", seeds, count)
	if !all {
		return
	}
	for _, what := range []string{"grant", "loss", "gave up", "locked", "partition", "blip", "expiry", "lost request", "lost reply", "outsider's delete"} {
		if count[what] == 0 {
			t.Errorf("%q never happened: the simulation tested nothing of it", what)
		}
	}
}

func TestAHundredWorkersNeverHaveMoreThanElevenPermits(t *testing.T) {
	t.Parallel()
	workers := func(t *testing.T, clients []*coord.Client, each int, r func(actor uint64) *rand.Rand) {
		count := make(map[string]int)
		var mu sync.Mutex
		note := func(what string) {
			mu.Lock()
			defer mu.Unlock()
			count[what]++
		}
		p := newPermitCount(11)
		var wg sync.WaitGroup
		for i, c := range clients {
			s := coord.NewSemaphore(c, "/s", p.limit, nil)
			for j := range each {
				wg.Go(func() {
					if err := permitWorker(s, r(uint64(i*each+j)), p, note); err != nil {
						t.Error(err)
					}
				})
			}
		}
		wg.Wait()
		t.Logf("figure: %d clients with %d workers each, at most %d of %d permits: %v", len(clients), each, p.most, p.limit, count)
		if p.most < p.limit || count["gave up"] == 0 || count["locked"] == 0 {
			t.Error("the permits were never all taken, or nobody gave up: this tested too little")
		}
	}
	t.Run("memory", func(t *testing.T) {
		seeds := uint64(4)
		if long() {
			seeds = 200
		}
		for seed := range seeds {
			synctest.Test(t, func(t *testing.T) {
				st := memory.New(nil)
				var clients []*coord.Client
				for i := range 20 {
					l := st.Link(fmt.Sprint(i))
					l.SetLatency(time.Duration(i%3) * time.Millisecond)
					clients = append(clients, open(t, l, nil))
				}
				workers(t, clients, 5, func(actor uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, actor)) })
				time.Sleep(time.Second) // of fake time, for what is removed in the background
				if left := children(t, st, "/s/requests"); len(left) != 0 {
					t.Errorf("left behind: %v", left)
				}
			})
		}
	})
	t.Run("zookeeper", func(t *testing.T) {
		w := &world{
			Service: zkservice.New(t, server.Get(t), zookeeper.Options{SessionTimeout: realTimeout}),
			t:       t, timeout: realTimeout,
		}
		var clients []*coord.Client
		for i := range 10 {
			clients = append(clients, w.open(fmt.Sprint(i), nil))
		}
		workers(w.t, clients, 10, func(actor uint64) *rand.Rand { return rand.New(rand.NewPCG(1, actor)) })
		w.empty("/s/requests")
	})
}

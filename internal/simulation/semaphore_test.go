package simulation_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/memory"
	"github.com/go-coord/coord/backend/zookeeper"
	"github.com/go-coord/coord/internal/coordtest"
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
			t.Error("the permits were never all taken, or no worker gave up: this tested too little")
		}
	}
	t.Run("memory", func(t *testing.T) {
		seeds := uint64(4)
		if coordtest.Long() {
			seeds = 200
		}
		for seed := range seeds {
			synctest.Test(t, func(t *testing.T) {
				st := memory.New(nil)
				var clients []*coord.Client
				for i := range 20 {
					l := st.Link(fmt.Sprint(i))
					l.SetLatency(time.Duration(i%3) * time.Millisecond)
					clients = append(clients, coordtest.Open(t, l, nil))
				}
				workers(t, clients, 5, func(actor uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, actor)) })
				time.Sleep(time.Second) // of fake time, for what is removed in the background
				if left := coordtest.Children(t, st, "/s/requests"); len(left) != 0 {
					t.Errorf("left behind: %v", left)
				}
			})
		}
	})
	t.Run("zookeeper", func(t *testing.T) {
		w := coordtest.OnServer(t, zookeeper.Options{})
		var clients []*coord.Client
		for i := range 10 {
			clients = append(clients, w.Open(fmt.Sprint(i), nil))
		}
		workers(w.T, clients, 10, func(actor uint64) *rand.Rand { return rand.New(rand.NewPCG(1, actor)) })
		w.Empty("/s/requests")
	})
}

// settledSemaphore makes random things happen to a semaphore, several at a time, and compares
// the queue with the limit whenever everything is at rest: every request that fits must have
// been granted, and no more permits than the limits allow.
type settledSemaphore struct {
	t    *testing.T
	seed uint64
	r    *rand.Rand
	st   *memory.Store
	s    backend.Session // of an outsider
	all  []*coord.Client

	mu      sync.Mutex
	holds   []*coord.Hold
	waiting map[int]context.CancelFunc
	next    int
	came    map[string]requestSeen
	count   map[string]int
	wg      sync.WaitGroup
}

// requestSeen records when a request was first seen in the queue, and whether it was granted
// when it was seen last.
type requestSeen struct {
	round   int
	granted bool
}

var requestName = regexp.MustCompile(`-permit-(\d+)-(\d{10})$`)

type requestInLine struct {
	path        string
	weight, seq int
}

func (x *settledSemaphore) line() []requestInLine {
	names, _, err := x.s.Children(context.Background(), "/s/requests", nil)
	if err != nil && !errors.Is(err, coord.ErrNotFound) {
		x.t.Fatal(err)
	}
	var line []requestInLine
	for _, name := range names {
		m := requestName.FindStringSubmatch(name)
		if m == nil {
			x.t.Fatalf("name %q", name)
		}
		weight, _ := strconv.Atoi(m[1])
		seq, _ := strconv.Atoi(m[2])
		line = append(line, requestInLine{"/s/requests/" + name, weight, seq})
	}
	slices.SortFunc(line, func(a, b requestInLine) int { return a.seq - b.seq })
	return line
}

func (x *settledSemaphore) limit() int {
	data, _, err := x.s.Get(context.Background(), "/s/limit", nil)
	if err != nil {
		x.t.Fatal(err)
	}
	n, err := strconv.Atoi(string(data))
	if err != nil {
		x.t.Fatal(err)
	}
	return n
}

// act makes one thing happen.
func (x *settledSemaphore) act(changed func(limit int)) {
	c := x.all[x.r.IntN(len(x.all))]
	link := x.st.Link(fmt.Sprint(slices.Index(x.all, c)))
	s := coord.NewSemaphore(c, "/s", 3, &coord.SemaphoreOptions{AdoptLimit: true})
	switch k := x.r.IntN(20); {
	case k < 7:
		x.count["acquire"]++
		n, id := 1+x.r.IntN(3), x.next
		x.next++
		ctx, cancel := context.WithCancel(context.Background())
		x.waiting[id] = cancel
		x.wg.Go(func() {
			h, err := s.Acquire(ctx, n)
			x.mu.Lock()
			defer x.mu.Unlock()
			cancel()
			delete(x.waiting, id)
			switch {
			case err == nil:
				x.holds = append(x.holds, h)
				x.count["grant"]++
			case errors.Is(err, coord.ErrLimit):
				x.count["too heavy"]++
			case !errors.Is(err, context.Canceled):
				x.t.Errorf("seed %d: %v", x.seed, err)
			}
		})
	case k < 12:
		if len(x.holds) > 0 {
			i := x.r.IntN(len(x.holds))
			h := x.holds[i]
			x.holds = slices.Delete(x.holds, i, i+1)
			x.count["release"]++
			x.wg.Go(func() { h.Release() })
		}
	case k < 14:
		if ids := slices.Sorted(maps.Keys(x.waiting)); len(ids) > 0 {
			x.count["cancel"]++
			id := ids[x.r.IntN(len(ids))]
			x.waiting[id]()
			delete(x.waiting, id)
		}
	case k < 17:
		x.count["change of the limit"]++
		n := 1 + x.r.IntN(6)
		changed(n)
		x.wg.Go(func() {
			if err := s.SetLimit(context.Background(), n); err != nil && !errors.Is(err, coord.ErrUncertain) {
				x.t.Errorf("seed %d: %v", x.seed, err)
			}
		})
	case k == 17:
		x.count["expiry"]++
		st := <-c.WatchState(context.Background())
		link.Expire(st.Session)
	case k == 18:
		x.count["blip"]++
		link.Partition()
		link.Heal()
	default:
		if line := x.line(); len(line) > 0 {
			x.count["outsider's delete"]++
			x.s.Commit(context.Background(), backend.Delete(line[x.r.IntN(len(line))].path, backend.AnyVersion))
		}
	}
}

// check compares the queue with the limits, one for each time that all was at rest. A request
// may be granted under any limit since it was first seen, since its turn may have been then.
func (x *settledSemaphore) check(limits []int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	granted := make(map[string]bool)
	for _, h := range x.holds {
		if h.Err() == nil {
			granted[h.Path()] = true
		}
	}
	limit, sum, held, since := x.limit(), 0, 0, -1
	for _, q := range x.line() {
		at, known := x.came[q.path]
		if !known {
			at = requestSeen{round: len(limits) - 1}
		}
		sum += q.weight
		switch {
		case granted[q.path]:
			held += q.weight
			if !at.granted {
				since = max(since, at.round)
			}
		case sum <= limit:
			x.t.Errorf("seed %d: %s waits, with a sum of %d and a limit of %d", x.seed, q.path, sum, limit)
		default:
			x.count["at rest in line"]++
		}
		at.granted = granted[q.path]
		x.came[q.path] = at
	}
	if since >= 0 && held > slices.Max(limits[since:]) {
		x.t.Errorf("seed %d: %d permits are held, the limits were %d", x.seed, held, limits[since:])
	}
}

func (x *settledSemaphore) play() {
	x.st = memory.New(nil)
	x.waiting, x.came = make(map[int]context.CancelFunc), make(map[string]requestSeen)
	for i := range 5 {
		link := x.st.Link(fmt.Sprint(i))
		link.SetLatency(time.Duration(x.r.IntN(4)) * time.Millisecond)
		x.all = append(x.all, coordtest.Open(x.t, link, nil))
	}
	s, err := x.st.Open(context.Background())
	if err != nil {
		x.t.Fatal(err)
	}
	defer s.Close()
	x.s = s
	coordtest.MustRelease(x.t, coordtest.MustLock(x.t, coord.NewSemaphore(x.all[0], "/s", 3, nil).Locker(1)))
	var limits []int
	for i := range 40 {
		limits = append(limits, x.limit())
		for range 1 + x.r.IntN(4) {
			x.mu.Lock()
			x.act(func(n int) { limits[i] = max(limits[i], n) })
			x.mu.Unlock()
			time.Sleep(time.Duration(x.r.IntN(6)) * time.Millisecond)
		}
		time.Sleep(time.Second) // of fake time: long enough for everything
		synctest.Wait()
		x.check(limits)
	}
	x.mu.Lock()
	for _, cancel := range x.waiting {
		cancel()
	}
	x.mu.Unlock()
	x.wg.Wait()
	for _, h := range x.holds {
		h.Release()
	}
	time.Sleep(time.Second)
	if line := x.line(); len(line) != 0 {
		x.t.Errorf("seed %d: left behind: %v", x.seed, line)
	}
}

func TestEveryRequestThatFitsIsGrantedAtRest(t *testing.T) {
	first, seeds, _ := simRange(150, 10_000)
	count := make(map[string]int)
	for seed := first; seed < first+seeds && !t.Failed(); seed++ {
		synctest.Test(t, func(t *testing.T) {
			x := &settledSemaphore{t: t, seed: seed, r: rand.New(rand.NewPCG(seed, 0)), count: count}
			x.play()
		})
	}
	t.Logf("figure: the semaphore at rest, %d seeds: %v", seeds, count)
	if *simSeed != 0 {
		return
	}
	for _, what := range []string{
		"acquire", "grant", "too heavy", "release", "cancel", "change of the limit", "expiry", "blip", "outsider's delete", "at rest in line",
	} {
		if count[what] == 0 {
			t.Errorf("%q never happened: this tested nothing of it", what)
		}
	}
}

func semaphoreScenario() *scenario {
	const at, dir = "/sim/s", "/sim/s/requests"
	return &scenario{
		name: "semaphore", share: 10, clients: 4, dir: dir,
		must: []string{"grant", "loss", "gave up", "locked", "all permits were taken", "cancel", "outsider's delete"},
		play: func(x *sim) {
			p := newPermitCount(2 + x.draw.IntN(4))
			p.void = func(h *coord.Hold) bool {
				x.mu().Lock()
				defer x.mu().Unlock()
				return x.void(h)
			}
			for i := range 5 {
				x.act("worker", i, func(a *actor) {
					for range 3 {
						s := coord.NewSemaphore(a.client(), at, p.limit, nil)
						n := 1 + a.r.IntN(p.limit)
						lock := s.Acquire
						if a.r.IntN(6) == 0 {
							lock = s.TryAcquire
						}
						h := x.lock(a, func(ctx context.Context) (*coord.Hold, error) { return lock(ctx, n) })
						if h == nil {
							continue
						}
						a.note("grant")
						x.mu().Lock()
						x.standing(a, h, true)
						x.mu().Unlock()
						if err := p.take(h, n); err != nil {
							a.errorf("%v", err)
						}
						if p.most == p.limit {
							x.note("all permits were taken")
						}
						x.works(a, at, h, 4)
						p.give(h)
						x.releases(a, at, h)
					}
				})
			}
		},
		end: func(x *sim) { x.empty(dir) },
	}
}

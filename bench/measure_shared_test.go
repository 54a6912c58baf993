package main

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"
)

// A logged is a client whose locks write down which client had them.
type logged struct {
	client int
	mu     *sync.Mutex
	log    map[string][]int // clients by path of the lock
}

func (x *logged) locker(_ context.Context, path string, _ int) (locker, error) {
	return func(context.Context) (func() error, error) {
		x.mu.Lock()
		x.log[path] = append(x.log[path], x.client)
		x.mu.Unlock()
		return func() error { return nil }, nil
	}, nil
}

func (x *logged) Close() error { return nil }

// Each mix has the cycles that its name says.
func TestMixes(t *testing.T) {
	t.Parallel()
	for _, m := range mixes {
		var s sample
		var log map[string][]int
		// A busy machine can run few cycles in a short time, and a share of few says nothing.
		for span := 10 * time.Millisecond; s[mDone] < 200; span *= 2 {
			if span > time.Minute {
				t.Fatalf("%s: %g cycles in %v", m.what, s[mDone], span/2)
			}
			var mu sync.Mutex
			log = make(map[string][]int)
			who := &contestant{who: "logged", where: "nowhere", dial: func(_ context.Context, _ *place, i int, _ time.Duration) (connection, error) {
				return &logged{i, &mu, log}, nil
			}}
			var err error
			if s, err = (native{who}).share(t.Context(), &place{}, "/a", m, span); err != nil {
				t.Fatalf("%s: %v", m.what, err)
			}
		}
		want := map[string]struct{ locks, again float64 }{
			whatAlternate: {1, 0}, whatTenth: {1, 0.8}, whatTenLocks: {10, 0.9},
		}[m.what]
		again, cycles := 0, 0
		for i := range m.locks {
			clients := log[fmt.Sprintf("/a-%03d", i)]
			if i == 0 {
				clients = clients[1:] // the second client has had the lock before the cycles
			}
			if want := int(s[mDone]) / m.locks; len(clients) < want || len(clients) > want+2 {
				t.Errorf("%s: lock %d has %d cycles of %g", m.what, i, len(clients), s[mDone])
			}
			for k := 1; k < len(clients); k++ {
				cycles++
				if clients[k] == clients[k-1] {
					again++
				}
			}
		}
		if got := float64(again) / float64(cycles); len(log) != int(want.locks) || got < want.again-0.01 || got > want.again+0.01 {
			t.Errorf("%s: %d locks, of %d cycles %.2f by the client that had the lock before, want %v", m.what, len(log), cycles, got, want)
		}
	}
}

// The targets of kept locks compare them with the fastest of the other libraries.
func TestKeptLocksAreJudged(t *testing.T) {
	t.Parallel()
	cycle := func(who, where string, rate float64) *result {
		return rates(name{"uncontended", whatCycle, who, where, "callers", 1}, rate)
	}
	shared := func(what, who string, values ...float64) *result {
		return rates(name{sharedLocks, what, who, onZooKeeper, "clients", 2}, values...)
	}
	results := []*result{
		cycle(byCoord, onZooKeeper, 1000), cycle(keeping.who, onZooKeeper, 50_000), cycle(byGoZK, onZooKeeper, 400), cycle(byEtcd, onEtcd, 500),
		shared(whatContend, byCoord, 100, 200, 100), shared(whatContend, keeping.who, 96, 180, 97),
		shared(whatAlternate, byCoord, 100), shared(whatAlternate, keeping.who, 90),
		{name: name{severalLocks, whatTogether, byCoord, onZooKeeper, "locks", 3}, Figures: summarize([]sample{{mTripsOf + "Lock": 1, mTrips: 2}})},
	}
	got := make(map[string]target)
	for _, x := range judge(results) {
		got[x.Name] = x
	}
	for name, want := range map[string]target{
		"lock that the same client keeps, 1 callers, times the fastest peer":  {Known: true, Met: true, Figure: 100},
		"contended inside a process, kept, times Curator's InterProcessMutex": {},
		"two clients contend, kept, as a part of no Keep":                     {Known: true, Met: true, Figure: 0.96},
		"two clients alternate, kept, as a part of no Keep":                   {Known: true, Figure: 0.9},
		"LockAll of 3 free locks: round trips":                                {Known: true, Met: true, Figure: 1},
		"LockAll of 10 free locks: round trips":                               {},
	} {
		x, ok := got[name]
		if !ok || x.Known != want.Known || x.Met != want.Met || x.Figure != want.Figure {
			t.Errorf("%s: %+v, want %+v", name, x, want)
		}
	}
}

//go:build linux

package faulttest

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/coordtest"
	"github.com/go-coord/coord/internal/zkproxy"
)

// follower is a cache with a client of its own, and with loops over its events.
type follower struct {
	name    string
	x       *contender
	k       *coord.Cache
	flash   coordtest.Flash // of its loops
	loops   []*coordtest.Fold
	halt    func()       // ends Run
	passes  atomic.Int64 // complete ones
	probes  int          // requests for a tree that were not of the cache
	steady  int64        // changes that were followed while the watch of the tree stood
	ctx     context.Context
	cancel  context.CancelFunc
	ongoing sync.WaitGroup
}

// follow begins a follower. Its loops make these pauses after each batch.
func follow(t *testing.T, name string, all *sightings, x *contender, pauses ...time.Duration) *follower {
	t.Helper()
	session, err := x.c.Session(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	f := &follower{name: name, x: x, k: coord.NewCache(x.c, churned, nil), flash: flashes(session)}
	f.ctx, f.cancel = context.WithCancel(context.Background())
	f.probes = f.arms()
	f.ongoing.Go(func() {
		for {
			select {
			case <-x.synced:
				f.passes.Add(1)
			case <-f.ctx.Done():
				return
			}
		}
	})
	for _, pause := range pauses {
		f.read(all, pause)
	}
	f.run()
	return f
}

// read begins a loop over the events.
func (f *follower) read(all *sightings, pause time.Duration) {
	loop := all.fold(f.flash)
	loop.Pace = func() { time.Sleep(pause) }
	f.loops = append(f.loops, loop)
	f.ongoing.Go(func() {
		if loop.Follow(f.ctx, f.k); loop.Err != nil {
			f.x.tb.Errorf("%s: the events end: %v", f.name, loop.Err)
		}
	})
}

func (f *follower) run() {
	ctx, cancel := context.WithCancel(f.ctx)
	done := make(chan struct{})
	f.halt = func() {
		cancel()
		<-done
	}
	go func() {
		defer close(done)
		if err := f.k.Run(ctx); ctx.Err() == nil || !errors.Is(err, context.Canceled) {
			f.x.tb.Errorf("%s: Run ended: %v", f.name, err)
		}
	}()
}

// end ends everything but the client.
func (f *follower) end() {
	f.cancel()
	f.halt()
	f.ongoing.Wait()
}

// arms returns the number of requests for a watch of the tree. A copy by watches of single nodes
// makes none.
func (f *follower) arms() int {
	if f.flash != coordtest.FlashNever {
		return 0
	}
	return f.x.way.requests()[zkproxy.OpAddWatch] - f.probes
}

// expire ends the session of the client.
func (f *follower) expire() {
	ctx, cancel := context.WithTimeout(f.ctx, limit)
	defer cancel()
	session, err := f.x.c.Session(ctx)
	if err != nil {
		f.x.tb.Error(err)
		return
	}
	f.x.way.expire(session.ID())
}

// judge compares the copy and the folded events with the tree. now can pass; ever cannot.
func (f *follower) judge(tree map[string]coordtest.NodeState) (now, ever []string) {
	if err := checkCounts(f.k, churned); err != nil {
		now = append(now, fmt.Sprintf("%s: %v", f.name, err))
	}
	if d := coordtest.Difference(coordtest.CopyOf(f.k, churned), tree); d != "" {
		now = append(now, fmt.Sprintf("the copy of %s: %s", f.name, d))
	}
	for i, loop := range f.loops {
		sum, wrong := loop.Sum()
		if d := coordtest.Difference(sum, tree); d != "" {
			now = append(now, fmt.Sprintf("the events of %s, loop %d: %s", f.name, i, d))
		}
		for _, w := range wrong {
			ever = append(ever, fmt.Sprintf("the events of %s, loop %d: %s", f.name, i, w))
		}
	}
	return now, ever
}

// checkCounts returns an error if the counts of children in a cache do not belong to its nodes.
func checkCounts(k *coord.Cache, root string) error {
	below, counts := make(map[string]int32), make(map[string]int32)
	for p, n := range k.Walk(root) {
		below[path.Dir(p)]++
		counts[p] = n.Stat.NumChildren
	}
	for p, n := range counts {
		if n != below[p] {
			return fmt.Errorf("the copy of %s has %d children and counts %d", p, below[p], n)
		}
	}
	return nil
}

// sightings are the states of nodes that caches have shown. All caches show one commit of a
// node in the same way, and data of a node begins with its path.
type sightings struct {
	mu   sync.Mutex
	seen map[sighting]coordtest.NodeState
}

type sighting struct {
	path  string
	mzxid int64
}

// judge returns why a state is wrong that a cache has shown.
func (s *sightings) judge(p string, is coordtest.NodeState) string {
	if !strings.HasPrefix(is.Data, p+" ") {
		return fmt.Sprintf("%+v has the data of another node", is)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	at := sighting{p, is.Mzxid}
	if other, known := s.seen[at]; known && other != is {
		return fmt.Sprintf("%+v was shown elsewhere as %+v", is, other)
	}
	s.seen[at] = is
	return ""
}

func TestSightings_FindAStateThatIsShownInTwoWays(t *testing.T) {
	all := &sightings{seen: make(map[sighting]coordtest.NodeState)}
	for _, tc := range []struct {
		is   coordtest.NodeState
		want string
	}{
		{coordtest.NodeState{Czxid: 2, Mzxid: 6, Data: "/t/a 6"}, ""},
		{coordtest.NodeState{Czxid: 2, Mzxid: 6, Data: "/t/a 6"}, ""},
		{coordtest.NodeState{Czxid: 2, Mzxid: 7, Data: "/t/a 7"}, ""},
		{coordtest.NodeState{Czxid: 2, Mzxid: 6, Version: 7, Data: "/t/a 6"}, "shown elsewhere"},
		{coordtest.NodeState{Czxid: 2, Mzxid: 8, Data: "/t/a/b 3"}, "another node"},
	} {
		if why := all.judge("/t/a", tc.is); !strings.Contains(why, tc.want) || tc.want == "" && why != "" {
			t.Errorf("%+v: %q, want %q", tc.is, why, tc.want)
		}
	}
}

// fold returns a reader of the events of a cache.
func (s *sightings) fold(flash coordtest.Flash) *coordtest.Fold {
	f := coordtest.NewFold(churned)
	f.Flash, f.Judge = flash, s.judge
	return f
}

// flashes returns which flashes a cache in this session may report.
func flashes(s backend.Session) coordtest.Flash {
	if s.Features().Has(backend.Trees) {
		return coordtest.FlashNever
	}
	return coordtest.FlashWithParent
}

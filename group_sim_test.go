package coord_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend/memory"
	"github.com/go-coord/coord/internal/coordtest"
)

// groupSimulation is members that join, change their values and leave under the
// faults of a simulation, and slow readers that check what they are told.
type groupSimulation struct {
	simulation
	memberships []*simMember
}

type simMember struct {
	m     *coord.Membership[string]
	maybe map[string]bool // what its value can be
}

func (x *groupSimulation) member(c *coord.Client, actor uint64) {
	r := x.rng(actor)
	g := textGroup(c, r.IntN(3) == 0)
	for round := range 5 {
		ctx, cancel := context.Background(), context.CancelFunc(func() {})
		if r.IntN(3) == 0 {
			ctx, cancel = context.WithTimeout(ctx, time.Duration(r.IntN(300))*time.Millisecond)
		}
		value := fmt.Sprintf("%d.%d", actor, round)
		m, err := g.Join(ctx, string(rune('a'+r.IntN(4))), value)
		cancel()
		switch {
		case errors.Is(err, coord.ErrDuplicate):
			x.note("duplicate")
		case errors.Is(err, context.DeadlineExceeded):
			x.note("gave up")
		case err != nil:
			x.t.Errorf("seed %d: join: %v", x.seed, err)
			return
		}
		time.Sleep(time.Duration(r.IntN(60)) * time.Millisecond)
		if err != nil {
			continue
		}
		x.note("join")
		e := &simMember{m, map[string]bool{value: true}}
		for i := range r.IntN(4) {
			ctx, cancel := context.WithTimeout(context.Background(), time.Duration(1+r.IntN(400))*time.Millisecond)
			next := fmt.Sprint(value, ".", i)
			err := m.SetValue(ctx, next)
			cancel()
			switch {
			case err == nil:
				x.note("set")
				e.maybe = map[string]bool{next: true}
			case errors.Is(err, coord.ErrUncertain):
				x.note("set uncertain")
				e.maybe[next] = true
			case errors.Is(err, coord.ErrDuplicate), errors.Is(err, context.DeadlineExceeded):
			default:
				x.t.Errorf("seed %d: set: %v", x.seed, err)
			}
			time.Sleep(time.Duration(r.IntN(60)) * time.Millisecond)
		}
		if round == 4 || r.IntN(8) == 0 {
			x.mu.Lock()
			x.memberships = append(x.memberships, e) // stays
			x.mu.Unlock()
			continue
		}
		if err := m.Leave(); err != nil && !errors.Is(err, coord.ErrDuplicate) {
			x.t.Errorf("seed %d: leave: %v", x.seed, err)
		}
	}
}

// reader takes what a Watch tells, sometimes late, and checks that a Picker is
// never behind it.
func (x *groupSimulation) reader(ctx context.Context, g *coord.Group[string], actor uint64) *watching {
	r := x.rng(actor)
	p, err := g.Picker(ctx, coord.PickPolicy(r.IntN(2)))
	if err != nil {
		x.t.Error(err)
	}
	w := &watching{ch: g.Watch(ctx), gone: make(map[string]bool)}
	for m := range w.ch {
		if err := w.take(m); err != nil {
			x.t.Errorf("seed %d: %v", x.seed, err)
		}
		x.mu.Lock()
		x.count["element"]++
		x.count["joined"] += len(m.Joined)
		x.count["left"] += len(m.Left)
		x.mu.Unlock()
		for range 3 {
			if m, ok := p.TryNext(); ok {
				x.note("pick")
				if w.gone[m.Path] {
					x.t.Errorf("seed %d: picked %s, who had left", x.seed, m.Path)
				}
			}
			time.Sleep(time.Duration(r.IntN(20)) * time.Millisecond)
		}
	}
	return w
}

func (x *groupSimulation) run() {
	const clients = 4
	if *simTrace {
		fmt.Println("seed", x.seed)
	}
	x.path, x.outside = "/g", make(map[string]bool)
	x.st = memory.New(&memory.Options{SessionTimeout: 300 * time.Millisecond})
	var all []*coord.Client
	var members, readers sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	told := make([]*watching, clients)
	for i := range clients {
		x.links = append(x.links, x.st.Link(fmt.Sprint("client-", i)))
		c := coordtest.Open(x.t, x.links[i], nil)
		all = append(all, c)
		g := textGroup(c, false)
		readers.Go(func() { told[i] = x.reader(ctx, g, uint64(100+i)) })
		for j := range 2 {
			members.Go(func() { x.member(c, uint64(2*i+j)) })
		}
	}
	members.Go(func() { x.nemesis(all) })
	members.Wait()
	time.Sleep(5 * time.Second) // of fake time: sessions expire, pauses end
	synctest.Wait()
	truth, err := textGroup(coordtest.Open(x.t, x.st.Link("truth"), nil), false).Members(ctx)
	if err != nil {
		x.t.Errorf("seed %d: %v", x.seed, err)
	}
	if n := len(coordtest.Children(x.t, x.st, x.path)); n != len(truth) {
		x.t.Errorf("seed %d: %d nodes for %d members", x.seed, n, len(truth))
	}
	cancel()
	readers.Wait()
	for i, w := range told {
		if !slices.Equal(w.last.List, truth) {
			x.t.Errorf("seed %d: reader %d was told %v at last, the truth is %v", x.seed, i, w.last.List, truth)
		}
	}
	left := make(map[string]string)
	for _, m := range truth {
		left[m.ID] = m.Value
	}
	for _, e := range x.memberships {
		if err := e.m.Err(); err != nil {
			coordtest.WantErr(x.t, err, coord.ErrDuplicate)
			x.note("ended")
			continue
		}
		x.note("stayed")
		if v, ok := left[e.m.ID()]; !ok || !e.maybe[v] {
			x.t.Errorf("seed %d: the member %q has %q, want one of %v", x.seed, e.m.ID(), v, e.maybe)
		}
		delete(left, e.m.ID())
		e.m.Leave()
	}
	if len(left) > 0 {
		x.t.Errorf("seed %d: nobody's members: %v", x.seed, left)
	}
	synctest.Wait()
	if names := coordtest.Children(x.t, x.st, x.path); len(names) != 0 {
		x.t.Errorf("seed %d: left behind: %v", x.seed, names)
	}
	for _, c := range all {
		c.Close()
	}
}

func TestTheGroupUnderRandomFaults(t *testing.T) {
	first, seeds, all := simRange(250, 15_000)
	count := make(map[string]int)
	for seed := first; seed < first+seeds && !t.Failed(); seed++ {
		synctest.Test(t, func(t *testing.T) {
			x := &groupSimulation{simulation: simulation{t: t, seed: seed, count: count}}
			x.run()
		})
	}
	t.Logf("figure: simulation of the group, %d seeds: %v", seeds, count)
	if !all {
		return
	}
	for _, what := range []string{"join", "duplicate", "gave up", "set", "set uncertain", "element", "joined", "left", "pick", "stayed", "ended",
		"partition", "blip", "expiry", "lost request", "lost reply", "outsider's delete"} {
		if count[what] == 0 {
			t.Errorf("%q never happened: the simulation tested nothing of it", what)
		}
	}
}

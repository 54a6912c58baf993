package simulation_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/memory"
	"github.com/go-coord/coord/internal/coordtest"
	"github.com/go-coord/coord/internal/hook"
)

// sim is one run of a scenario: clients behind an arbiter, and actors that use a
// recipe with them, while the arbiter causes faults. The checks are those of
// simulation.
type sim struct {
	simulation
	*arbiter
	sc           *scenario
	slots        []*slot
	actors       []*actor
	joined       sync.WaitGroup // actors and closers
	faults       int            // number of faults that are left to cause
	held         map[string]*heldThings
	dones        map[*coord.Hold]<-chan struct{}
	forced       bool // an outsider deletes by force
	queue        *queuePlay
	producing    int
	stop         func()         // ends the actors that run as long as they are needed
	finishing    func(a *actor) // runs as the scenario's finish, for a scenario that needs the variables of play
	ending       func()         // likewise
	watchers     sync.WaitGroup
	watching     context.Context
	stopWatching context.CancelFunc
	calm         chan struct{} // closed when no more faults occur
}

// scenario is the simulation of one recipe.
type scenario struct {
	name    string
	share   int           // of the schedules
	faults  int           // at most, in one run; 0: the default
	timeout time.Duration // of sessions; 0: the default
	bucket  int           // of queues; 0: the default
	dir     string        // where outsiders delete and write, "" for nowhere
	without []string      // faults that must not occur
	must    []string      // notes that must occur, over all seeds together
	clients int
	play    func(x *sim)           // starts the actors
	finish  func(x *sim, a *actor) // checks, and may use a client
	end     func(x *sim)           // checks, when nothing moves any more
}

// slot is a place for a client, with another one in it when the first was closed.
type slot struct {
	x      *sim
	n      int
	p      *peer
	users  int  // actors, without those that only watch
	shared bool // by several of them
	mu     sync.Mutex
	c      *coord.Client
	made   int
}

func (s *slot) client() *coord.Client {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.c
}

func (x *arbiter) setDirect(yes bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.direct = yes
}

// open puts a new client into the slot. The arbiter calls it.
func (s *slot) open() {
	s.made++
	s.x.setDirect(true)
	draw := s.x.drawer(fmt.Sprint(s.p.name, ".", s.made), &s.shared)
	c, err := coord.Open(hook.With(context.Background(), hook.Hooks{Draw: draw, BucketSize: s.x.sc.bucket}), s.p, nil)
	s.x.setDirect(false)
	if err != nil {
		s.x.simulation.t.Fatal(err)
	}
	s.mu.Lock()
	s.c = c
	s.mu.Unlock()
}

// actor does one thing after the other, each when the arbiter lets it.
type actor struct {
	x    *sim
	name string
	slot *slot
	r    *rand.Rand

	mu     sync.Mutex
	cancel context.CancelFunc // of what it waits for, if that can be given up
}

// act starts an actor that uses the client in a slot.
func (x *sim) act(name string, n int, f func(a *actor)) { x.actOf(&x.joined, name, n, f) }

func (x *sim) actOf(wg *sync.WaitGroup, name string, n int, f func(a *actor)) {
	a := &actor{x: x, name: fmt.Sprint(name, len(x.actors)), r: rand.New(rand.NewPCG(x.arbiter.seed, uint64(len(x.actors))+1))}
	if n >= 0 {
		a.slot = x.slots[n%len(x.slots)]
		if wg == &x.joined {
			a.slot.users++
			a.slot.shared = a.slot.users > 1
		}
	}
	x.actors = append(x.actors, a)
	wg.Go(func() {
		id := goroutine()
		x.arbiter.mu.Lock()
		x.names[id] = " " + a.name
		x.arbiter.mu.Unlock()
		a.pause()
		f(a)
		a.say("ends")
	})
}

// pause lets others go first.
func (a *actor) pause() { a.x.pass(context.Background(), &simCall{op: "step", path: a.name}) }

// linger lets others go first, once or more often.
func (a *actor) linger(most int) {
	for range 1 + a.r.IntN(most) {
		a.pause()
	}
}

func (a *actor) client() *coord.Client { return a.slot.client() }

func (a *actor) say(what string) {
	a.x.say(a.name, what)
}

func (a *actor) note(what string) {
	a.say(what)
	a.x.note(what)
}

// errorf reports a violation.
func (a *actor) errorf(format string, args ...any) { a.x.errorf(a.name+": "+format, args...) }

func (x *sim) errorf(format string, args ...any) {
	x.mu().Lock()
	defer x.mu().Unlock()
	x.count["violation"]++
	x.simulation.t.Errorf("seed %d: "+format, append([]any{x.arbiter.seed}, args...)...)
}

func (x *sim) mu() *sync.Mutex { return &x.simulation.mu }

// context is for a call that can be given up: the arbiter may cancel it. It is
// given up for certain only if the arbiter does so. done is to be called when the
// call has returned.
func (a *actor) context() (ctx context.Context, done func()) {
	ctx, cancel := context.WithCancel(context.WithValue(context.Background(), actorKey{}, a.name))
	a.mu.Lock()
	a.cancel = cancel
	a.mu.Unlock()
	return ctx, func() {
		a.mu.Lock()
		a.cancel = nil
		a.mu.Unlock()
		cancel()
	}
}

// excused reports whether an error is what faults bring about: the caller has given
// up, the client was closed.
func (a *actor) excused(err error) bool {
	switch {
	case errors.Is(err, context.Canceled):
		a.note("gave up")
	case errors.Is(err, coord.ErrClosed):
		a.note("closed")
		a.pause()
	default:
		return false
	}
	return true
}

// try makes a call that may be given up, again until it succeeds or is given up or
// the client closed. It reports whether it has succeeded.
func (a *actor) try(what string, f func(ctx context.Context) error) bool {
	a.pause() // two actors that share a client never begin something at once
	ctx, done := a.context()
	a.say(what)
	err := f(ctx)
	done()
	if err == nil {
		return true
	}
	if !a.excused(err) {
		a.errorf("%s: %v", what, err)
	}
	return false
}

const (
	simTimeout  = 300 * time.Millisecond
	simFaults   = 14
	simPatience = 60 * time.Second // of fake time in which nothing happens
	simSteps    = 20_000
	simSome     = 20  // schedules in which every fault happens
	simEnough   = 200 // schedules in which everything happens that a scenario asks for
)

// run plays until all actors have ended.
func (x *sim) run() {
	for i := range x.sc.clients {
		name := fmt.Sprint("c", i)
		p := &peer{x: x.arbiter, name: name, link: x.arbiter.st.Link(name)}
		x.peers = append(x.peers, p)
		s := &slot{x: x, n: i, p: p}
		x.slots = append(x.slots, s)
		s.open()
	}
	x.calm = make(chan struct{})
	most := x.sc.faults
	if most == 0 {
		most = simFaults
	}
	x.faults = x.draw.IntN(most + 1)
	x.watching, x.stopWatching = context.WithCancel(context.Background())
	x.sc.play(x)
	x.settle()
	x.until(&x.joined, true)
	x.rest()
	if x.sc.finish != nil {
		x.finishing = func(a *actor) { x.sc.finish(x, a) }
	}
	if x.finishing != nil && !x.simulation.t.Failed() {
		x.act("finale", 0, x.finishing)
		x.until(&x.joined, false)
		x.rest()
	}
	if x.sc.end != nil && !x.simulation.t.Failed() {
		x.sc.end(x)
	}
	if x.ending != nil && !x.simulation.t.Failed() {
		x.ending()
	}
	x.stopWatching()
	x.until(&x.watchers, false)
	for _, s := range x.slots {
		x.joined.Go(func() { s.client().Close() })
	}
	x.until(&x.joined, false)
	x.truth.Close()
}

// rest lets sessions expire, and lets the clients remove the nodes of calls that were given up.
func (x *sim) rest() {
	x.settle()
	for {
		if !x.step() && !x.idle(3*time.Second) && !x.step() {
			return
		}
		x.settle()
	}
}

// watch runs f with one client after the other, until all else has ended.
func (x *sim) watch(name string, n int, f func(ctx context.Context, a *actor)) {
	x.actOf(&x.watchers, name, n, func(a *actor) {
		ctx := context.WithValue(x.watching, actorKey{}, a.name)
		for ctx.Err() == nil {
			f(ctx, a)
			a.pause()
		}
	})
}

// until runs the simulation until all of wg have ended.
func (x *sim) until(wg *sync.WaitGroup, breaking bool) {
	over := make(chan struct{})
	go func() {
		wg.Wait()
		close(over)
	}()
	synctest.Wait()
	x.absorb()
	idle := time.Duration(0)
	for n := 0; ; n++ {
		select {
		case <-over:
			x.mend()
			return
		default:
		}
		if n > simSteps || idle > simPatience {
			x.errorf("it does not come to an end after %d steps%s", n, x.stuck())
			x.simulation.t.FailNow()
		}
		if breaking && x.faults > 0 {
			if x.draw.IntN(15) == 0 && x.fault() {
				x.faults--
				x.settle()
				continue
			}
		} else {
			x.mend()
		}
		for _, p := range x.peers {
			if p.cut && x.draw.IntN(30) == 0 {
				x.tell("heal:", p.name)
				x.heal(p)
			}
		}
		if x.draw.IntN(6) == 0 {
			x.idle(time.Duration(x.draw.IntN(12_000_000)))
		}
		if x.step() {
			idle = 0
			x.settle()
			continue
		}
		d := time.Duration(1 + x.draw.IntN(50_000_000))
		if !x.idle(d) {
			idle += d
		}
	}
}

// run runs a scenario with one seed, and returns the hash of its history.
func (sc *scenario) run(t *testing.T, seed uint64, count map[string]int, verbose bool) uint64 {
	hash, _ := sc.history(t, seed, count, verbose, nil)
	return hash
}

// history is run that also returns the history, appended to record if that is not nil.
func (sc *scenario) history(t *testing.T, seed uint64, count map[string]int, verbose bool, record []string) (hash uint64, lines []string) {
	synctest.Test(t, func(t *testing.T) {
		timeout := sc.timeout
		if timeout == 0 {
			timeout = simTimeout
		}
		// At some seeds containers go soon after they are empty, at others by the fault "reaping" only.
		options := &memory.Options{SessionTimeout: timeout, ContainerInterval: -1}
		if seed%3 == 0 {
			options.ContainerInterval = 7_000_003
		}
		if seed%2 == 1 {
			options.Without = backend.Trees | backend.Batches
		}
		x := &sim{
			simulation: simulation{t: t, seed: seed, count: count, holding: make(map[*coord.Hold]bool), outside: make(map[string]bool), deleted: make(map[string]int64), nodes: make(map[*coord.Hold]int64), early: make(map[int64]bool)},
			arbiter:    newArbiter(t, seed, options),
			sc:         sc,
			held:       make(map[string]*heldThings),
			dones:      make(map[*coord.Hold]<-chan struct{}),
		}
		x.simulation.st = x.arbiter.st
		x.verbose, x.record = verbose, record
		x.run()
		hash, lines = x.hash, x.record
		count["steps"] += int(x.now.Load())
		count["uncertain outcome"] += x.uncertain
		count["tie"] += x.ties
		if t.Failed() {
			t.Logf("seed %d: replay it with\n\tCOORD_SEED=%d go test -count=1 -v -run '^TestEveryRecipeInSimulation$/^%s$' ./internal/simulation", seed, seed, strings.ReplaceAll(sc.name, " ", "_"))
		}
	})
	return hash, lines
}

// parting returns the place where two histories part, with the steps before it.
func parting(a, b []string) string {
	i := 0
	for i < len(a) && i < len(b) && a[i] == b[i] {
		i++
	}
	const around = 12
	from := max(0, i-4*around)
	text := slices.Clone(a[from:i])
	for _, line := range a[i:min(len(a), i+around)] {
		text = append(text, "- "+line)
	}
	for _, line := range b[i:min(len(b), i+around)] {
		text = append(text, "+ "+line)
	}
	return strings.Join(text, "\n")
}

// scenarios are all that are simulated.
func scenarios() []*scenario {
	return []*scenario{
		mutexScenario(), rwMutexScenario(), lockAllScenario(), revocationScenario(), semaphoreScenario(),
		barrierScenario(), doubleBarrierScenario(), electionScenario(), groupScenario(), shardsScenario(), cronScenario(), valueScenario(), txnScenario(), cacheScenario(), commitScenario(),
		queueScenario("fifo", 8), queueScenario("priority", 4), queueScenario("delay", 4), queueScenario("limited", 3), queueScenario("dead letters", 4),
	}
}

// simSchedules is how many schedules are played of all recipes together.
func simSchedules() int {
	switch {
	case coordtest.Long():
		return 100_000
	case coordtest.Race:
		return 500
	}
	return 3_000
}

var alwaysFaults = []string{"partition", "blip", "expiry", "lost request", "lost reply", "pause", "latency", "close", "uncertain outcome"}

// Every recipe is simulated with many seeds. COORD_SEED plays one of them, and
// prints what happens.
func TestEveryRecipeInSimulation(t *testing.T) {
	one, _ := strconv.ParseUint(os.Getenv("COORD_SEED"), 10, 64)
	all, played, total := 0, 0, make(map[string]int)
	for _, sc := range scenarios() {
		all += sc.share
	}
	for _, sc := range scenarios() {
		t.Run(sc.name, func(t *testing.T) {
			count := make(map[string]int)
			if one != 0 {
				t.Logf("history %x", sc.run(t, one, count, true))
				return
			}
			seeds := max(1, simSchedules()*sc.share/all)
			for seed := range uint64(seeds) {
				if sc.run(t, seed+1, count, false); t.Failed() {
					return
				}
			}
			t.Logf("figure: simulation of the %s: %d schedules, 0 violations, %s", sc.name, seeds, countText(count))
			played += seeds
			for what, n := range count {
				total[what] += n
			}
			var must []string
			if seeds >= simSome {
				must = slices.DeleteFunc(slices.Clone(alwaysFaults), func(f string) bool { return slices.Contains(sc.without, f) })
			}
			if seeds >= simEnough {
				must = append(must, sc.must...)
			}
			for _, what := range must {
				if count[what] == 0 {
					t.Errorf("%q never happened: the simulation tested nothing of it", what)
				}
			}
		})
	}
	for _, what := range alwaysFaults {
		if played >= simSome && total[what] == 0 {
			t.Errorf("%q never happened in any recipe", what)
		}
	}
	if one == 0 {
		t.Logf("figure: simulation of all recipes: %d schedules, %s", played, countText(total))
	}
}

func countText(count map[string]int) string {
	var list []string
	for _, what := range slices.Sorted(maps.Keys(count)) {
		list = append(list, fmt.Sprint(count[what], " ", what))
	}
	return strings.Join(list, ", ")
}

// The same seed gives the same history, message by message, on one processor. On several,
// a reader who gets only the latest value may or may not run between two changes of the
// same moment.
//
// One thing is not decided by the seed: the runtime preempts a goroutine that has had the
// processor for 10 ms of real time, also if the machine ran other programs meanwhile. If one
// message has woken two goroutines of a client, the other one then goes first. This is rare,
// so a seed whose histories differ is played replayPlays times, and nearly all of these plays
// must have the same history. An order that is left to chance, such as that of a map, makes
// the histories differ in a large share.
func TestASimulationReplaysExactly(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	for _, sc := range scenarios() {
		t.Run(sc.name, func(t *testing.T) {
			seeds := max(3, simSchedules()/250)
			differ := 0
			for seed := range uint64(seeds) {
				play := func() []string {
					_, lines := sc.history(t, seed+1, make(map[string]int), false, make([]string, 0, 1000))
					return lines
				}
				a, b := play(), play()
				if slices.Equal(a, b) {
					continue
				}
				differ++
				times := map[string]int{strings.Join(a, "\n"): 1}
				times[strings.Join(b, "\n")]++
				for range replayPlays - 2 {
					times[strings.Join(play(), "\n")]++
				}
				most := slices.Max(slices.Collect(maps.Values(times)))
				t.Logf("seed %d: %d of %d plays have the same history; the first two part here:\n%s", seed+1, most, replayPlays, parting(a, b))
				if most < replayPlays-replayPreempted {
					t.Fatalf("seed %d does not decide the history: %d histories in %d plays", seed+1, len(times), replayPlays)
				}
			}
			t.Logf("figure: %d of %d seeds of the %s have another history the second time", differ, seeds, sc.name)
			if differ > max(1, seeds/replayShare) {
				t.Errorf("%d of %d seeds differ: preemption alone is rarer", differ, seeds)
			}
		})
	}
}

const (
	replayPlays     = 30
	replayPreempted = 2  // of replayPlays, at most, may differ from the others
	replayShare     = 10 // one seed in this many may differ
)

package simulation_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/coordtest"
)

// outcomes has the results that callers received for named operations, by kind. checkOutcomes
// compares them with the operations that were applied.
type outcomes struct{ sure, maybe, not map[string]bool }

func newOutcomes() *outcomes {
	return &outcomes{make(map[string]bool), make(map[string]bool), make(map[string]bool)}
}

// told records the result of a write. It fails the test if no fault explains it.
func (x *sim) told(a *actor, o *outcomes, name string, err error) {
	x.mu().Lock()
	switch {
	case err == nil:
		o.sure[name] = true
	case errors.Is(err, coord.ErrUncertain):
		o.maybe[name] = true
	default:
		o.not[name] = true
	}
	x.mu().Unlock()
	switch {
	case err == nil:
		a.note("written")
	case errors.Is(err, coord.ErrUncertain):
		a.note("uncertain")
	case errors.Is(err, coord.ErrConflict):
		a.note("conflict")
	case !a.excused(err):
		a.errorf("%s: %v", name, err)
	}
}

// checkOutcomes compares the results with the names of the operations that were applied.
func (x *sim) checkOutcomes(o *outcomes, done []string) {
	times := make(map[string]int)
	for _, name := range done {
		if times[name]++; times[name] > 1 {
			x.errorf("%s was done twice", name)
		}
		if o.not[name] || !o.sure[name] && !o.maybe[name] {
			x.errorf("%s was done, and was reported to its caller as not done", name)
		}
	}
	for name := range o.sure {
		if times[name] == 0 {
			x.errorf("%s was not done, and was reported to its caller as done", name)
		}
	}
}

func valueScenario() *scenario {
	const at, counter = "/sim/value", "/sim/counter"
	return &scenario{
		name: "value and counter", share: 10, clients: 4,
		must:    []string{"written", "uncertain", "conflict", "counted", "seen", "cancel", "gave up"},
		without: []string{"outsider's delete", "outsider's write"},
		play: func(x *sim) {
			value := func(a *actor) *coord.Value[[]string] { return coord.NewValue[[]string](a.client(), at, nil) }
			updates, adds, sums := newOutcomes(), newOutcomes(), make(map[int64]bool)
			for i := range 3 {
				x.act("writer", i, func(a *actor) {
					for n := range 4 {
						name := fmt.Sprint(a.name, ".", n)
						ctx, done := a.context()
						var err error
						if a.say(name); a.r.IntN(2) == 0 {
							_, err = value(a).Update(ctx, func(old []string) ([]string, error) { return append(slices.Clip(old), name), nil })
						} else {
							var old coord.Versioned[[]string]
							if old, err = value(a).Get(ctx); err == nil || errors.Is(err, coord.ErrNotFound) {
								_, err = value(a).CompareAndSet(ctx, old, append(slices.Clip(old.Value), name))
							}
						}
						done()
						x.told(a, updates, name, err)
						ctx, done = a.context()
						sum, err := coord.NewCounter(a.client(), counter).Add(ctx, 1)
						done()
						x.told(a, adds, name, err)
						if err == nil {
							a.note("counted")
							x.mu().Lock()
							if sums[sum] {
								x.simulation.t.Errorf("seed %d: two additions made %d", x.arbiter.seed, sum)
							}
							sums[sum] = true
							x.mu().Unlock()
						}
						a.linger(3)
					}
				})
			}
			last := make([][]string, 2)
			for i := range last {
				x.watch("reader", 2+i, func(ctx context.Context, a *actor) {
					for v := range value(a).Watch(ctx) {
						if v.Err != nil {
							continue // there is none yet, or this is the last
						}
						a.note("seen")
						x.mu().Lock()
						if len(v.Value) < len(last[i]) || !slices.Equal(v.Value[:len(last[i])], last[i]) {
							x.simulation.t.Errorf("seed %d: %s saw %v after %v", x.arbiter.seed, a.name, v.Value, last[i])
						}
						last[i] = v.Value
						x.mu().Unlock()
					}
				})
			}
			x.ending = func() {
				var truth []string
				if data, _, err := x.truth.Get(context.Background(), at, nil); err == nil {
					truth, err = coord.JSON[[]string]().Decode(data)
					if err != nil {
						x.errorf("%v", err)
					}
				}
				x.checkOutcomes(updates, truth)
				for i := range last {
					if !slices.Equal(last[i], truth) {
						x.errorf("a reader saw %v at last, the truth is %v", last[i], truth)
					}
				}
				data, _, _ := x.truth.Get(context.Background(), counter, nil)
				var n int
				fmt.Sscan(string(data), &n)
				if n < len(adds.sure) || n > len(adds.sure)+len(adds.maybe) {
					x.errorf("the counter is %d after %d additions and %d uncertain ones", n, len(adds.sure), len(adds.maybe))
				}
			}
		},
	}
}

func txnScenario() *scenario {
	const lock, dir = "/sim/t/lock", "/sim/t/done"
	return &scenario{
		name: "transaction", share: 8, clients: 3, dir: lock,
		must: []string{"written", "uncertain", "conflict", "guarded", "loss", "cancel", "gave up"},
		play: func(x *sim) {
			o := newOutcomes()
			guards, under := make(map[string]string), make(map[string]*coord.Hold)
			queue := func(c *coord.Client) *coord.Queue[string] { return coord.NewQueue[string](c, "/sim/t/q", nil) }
			for _, p := range []string{"/sim", "/sim/t", dir, "/sim/t/sum"} {
				x.truth.Commit(context.Background(), backend.Create(p, nil, backend.Persistent))
			}
			x.applied = func(c *simCall) {
				for _, op := range c.ops {
					name, ok := strings.CutPrefix(op.Path, dir+"/")
					x.mu().Lock()
					guard := guards[name]
					for h := range x.at(lock).writers {
						if ok && guard == h.Path() && under[name] != h {
							x.simulation.t.Errorf("seed %d: %s was done under a later hold", x.arbiter.seed, name)
						}
					}
					x.mu().Unlock()
					if !ok || guard == "" {
						continue
					}
					if _, err := x.truth.Exists(context.Background(), guard, nil); err != nil {
						x.errorf("%s was done, and its hold was gone", name)
					}
				}
			}
			for i := range 3 {
				x.act("worker", i, func(a *actor) {
					for n := range 4 {
						var options coord.MutexOptions
						if a.r.IntN(2) == 0 {
							options.Keep = 2 * time.Second
						}
						h := x.lock(a, coord.NewMutex(a.client(), lock, &options).Lock)
						if h == nil {
							continue
						}
						x.mayKeep(lock, h, options.Keep > 0)
						x.takes(a, lock, h, false)
						x.works(a, lock, h, 4)
						name := fmt.Sprint(a.name, ".", n)
						x.mu().Lock()
						guards[name], under[name] = h.Path(), h
						x.mu().Unlock()
						ctx, done := a.context()
						txn := coord.NewTxn(a.client()).Under(h.Guard()).Set("/sim/t/sum", []byte(name)).
							Create(dir+"/"+name, nil, backend.Persistent).Add(queue(a.client()).PutOp(name))
						a.say("commits " + name)
						if h.Err() == nil {
							a.note("guarded")
						}
						_, err := txn.Commit(ctx)
						done()
						x.told(a, o, name, err)
						x.releases(a, lock, h)
					}
				})
			}
			x.finishing = func(a *actor) {
				var puts []string
				for {
					it, err := queue(a.client()).TryTake(context.Background())
					if errors.Is(err, coord.ErrEmpty) {
						break
					}
					if err != nil || it.Ack() != nil {
						a.errorf("%v", err)
						break
					}
					puts = append(puts, it.Value)
				}
				done, _, _ := x.truth.Children(context.Background(), dir, nil)
				x.checkOutcomes(o, done)
				slices.Sort(puts)
				if !slices.Equal(puts, done) {
					x.errorf("what was done is %v, what was put with it %v", done, puts)
				}
				stat, _ := x.truth.Exists(context.Background(), "/sim/t/sum", nil)
				if int(stat.Version) != len(done) {
					x.errorf("%d were done, the version is %d", len(done), stat.Version)
				}
			}
		},
		end: func(x *sim) { x.empty(lock) },
	}
}

// cacheScenario has a tree that changes, and caches of it.
func cacheScenario() *scenario {
	return &scenario{
		name: "cache", share: 8, clients: 2,
		must: []string{"create", "ephemeral", "set", "delete", "recreation", "deletion of a subtree", "recreation of a subtree", "end of a writer", "late reader",
			"event: created", "event: changed", "event: deleted", "nodes at the end"},
		without: []string{"outsider's delete", "outsider's write", "cancel", "uncertain outcome"},
		play: func(x *sim) {
			// The changes are made past the arbiter, each while nothing else moves.
			ctx := context.Background()
			x.truth.Commit(ctx, backend.Create("/sim", nil, backend.Persistent))
			cs := &cacheSim{t: x.simulation.t, seed: x.arbiter.seed, count: make(map[string]int)}
			for i := range 2 {
				x.act("writer", i, func(a *actor) {
					for left := 40; left > 0; {
						s, err := x.arbiter.st.Open(ctx)
						if err != nil {
							x.simulation.t.Fatal(err)
						}
						for more := true; more && left > 0; left-- {
							a.pause()
							cs.change(a.r, s)
							a.say("changed")
							a.linger(3)
							more = a.r.IntN(15) > 0
						}
						s.Close() // with its ephemerals
						a.note("end of a writer")
					}
				})
			}
			var folds [2][]*coordtest.Fold
			var caches [2]*coord.Cache
			for i := range 2 {
				x.watch("cache", i, func(ctx context.Context, a *actor) {
					k := coord.NewCache(a.client(), "/sim/r", nil)
					eager, slow, late := coordtest.NewFold("/sim/r"), coordtest.NewFold("/sim/r"), coordtest.NewFold("/sim/r")
					x.mu().Lock()
					folds[i], caches[i] = []*coordtest.Fold{eager, slow, late}, k
					x.mu().Unlock()
					step := func(reader string) { x.pass(ctx, &simCall{op: "step", path: a.name + reader}) }
					slow.Pace = func() { step(" slow"); step(" slow") }
					wait := a.r.IntN(60)
					var readers sync.WaitGroup
					readers.Go(func() { eager.Follow(ctx, k) })
					readers.Go(func() { slow.Follow(ctx, k) })
					readers.Go(func() {
						for range wait {
							step(" late")
						}
						x.note("late reader")
						late.Follow(ctx, k)
					})
					err := k.Run(ctx)
					readers.Wait()
					if !errors.Is(err, context.Canceled) && !errors.Is(err, coord.ErrClosed) {
						a.errorf("Run ended with %v", err)
					}
				})
			}
			x.ending = func() {
				for i, k := range caches {
					cs.k = k
					cs.sameAs(coordtest.TreeOf(x.simulation.t, x.truth, "", "/sim/r"), "/sim/r", folds[i]...)
				}
				x.mu().Lock()
				defer x.mu().Unlock()
				for what, n := range cs.count {
					x.count[what] += n
				}
			}
		},
	}
}

// randomOf draws one of a few names, so that several actors use the same.
func randomOf(r *rand.Rand, names string) string { return string(names[r.IntN(len(names))]) }

// cacheSim makes random changes of a tree that is so small that they conflict, beside a cache.
type cacheSim struct {
	t     *testing.T
	seed  uint64
	k     *coord.Cache
	mu    sync.Mutex
	count map[string]int
}

const simRoot = "/sim/r"

func (x *cacheSim) note(what string) {
	x.mu.Lock()
	x.count[what]++
	x.mu.Unlock()
}

func randomPath(r *rand.Rand) string {
	p := simRoot
	for range r.IntN(4) {
		p += "/" + string("abc"[r.IntN(3)])
	}
	return p
}

// below lists a node and what is below it, parents first.
func below(s backend.Session, path string) []string {
	names, _, err := s.Children(context.Background(), path, nil)
	if err != nil {
		return nil
	}
	list := []string{path}
	for _, name := range names {
		list = append(list, below(s, path+"/"+name)...)
	}
	return list
}

// change makes one random change.
func (x *cacheSim) change(r *rand.Rand, s backend.Session) {
	ctx := context.Background()
	p := randomPath(r)
	commit := func(what string, ops ...backend.Op) {
		if len(ops) == 0 {
			return
		}
		if _, err := s.Commit(ctx, ops...); err == nil {
			x.note(what)
		}
	}
	kill := func(list []string) (ops []backend.Op) {
		for _, q := range slices.Backward(list) {
			ops = append(ops, backend.Delete(q, backend.AnyVersion))
		}
		return ops
	}
	what := r.IntN(12)
	if what > 8 && p == simRoot && r.IntN(4) > 0 {
		return // or the tree would be gone most of the time
	}
	switch what {
	case 0, 1, 2, 3, 4, 5:
		if r.IntN(4) == 0 {
			commit("ephemeral", backend.Create(p, []byte("e"), backend.Ephemeral))
		} else {
			commit("create", backend.Create(p, []byte{byte(r.IntN(256))}, backend.Persistent))
		}
	case 6, 7:
		commit("set", backend.SetData(p, []byte{byte(r.IntN(256))}, backend.AnyVersion))
	case 8:
		commit("delete", backend.Delete(p, backend.AnyVersion))
	case 9:
		commit("recreation", backend.Delete(p, backend.AnyVersion), backend.Create(p, nil, backend.Persistent))
	case 10:
		commit("deletion of a subtree", kill(below(s, p))...)
	case 11:
		list := below(s, p)
		ops := kill(list)
		for _, q := range list {
			if r.IntN(3) > 0 || q == p {
				ops = append(ops, backend.Create(q, []byte{1}, backend.Persistent))
			}
		}
		commit("recreation of a subtree", ops...) // fails if a parent is left out
	}
}

func (x *cacheSim) sameAs(tree map[string]coordtest.NodeState, root string, readers ...*coordtest.Fold) {
	x.t.Helper()
	if got := coordtest.CopyOf(x.k, root); !maps.Equal(got, tree) {
		x.t.Errorf("seed %d: the copy is %v\nwant %v", x.seed, got, tree)
	}
	for i, f := range readers {
		if !f.Equals(tree) {
			x.t.Errorf("seed %d: reader %d has %v\nwant %v", x.seed, i, f.Tree, tree)
		}
		for _, s := range f.Wrong {
			x.t.Errorf("seed %d: reader %d: %s", x.seed, i, s)
		}
		x.mu.Lock()
		x.count["false deletion"] += f.Flashes
		for kind, n := range f.Counts {
			x.count["event: "+kind.String()] += n
		}
		x.mu.Unlock()
	}
	x.count["nodes at the end"] += len(tree)
}

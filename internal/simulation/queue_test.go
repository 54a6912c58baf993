package simulation_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/internal/coordtest"
)

// queueScenario is a queue of one kind.
func queueScenario(kind string, share int) *scenario {
	const at = "/sim/q"
	must := []string{"put", "uncertain put", "delivered", "received", "again", "ack", "uncertain ack", "nack", "release", "loss", "gave up", "empty", "cancel", "outsider's delete", "pop"}
	if kind == "dead letters" {
		must = append(must, "dead letter", "redrive", "remove")
	}
	if kind == "limited" {
		must = append(must, "full")
	}
	return &scenario{
		name: "queue, " + kind, share: share, clients: 4, bucket: simBucket, dir: at + "/waiters", must: must,
		play: func(x *sim) {
			q := &queuePlay{simulation: simulation{t: x.simulation.t, seed: x.arbiter.seed, count: make(map[string]int)}, l: coordtest.NewLedger(), kind: kind}
			x.queue = q
			x.producing = 2
			if kind == "limited" {
				x.applied = func(c *simCall) { x.checkLimit(at + "/items") }
			}
			ctx, cancel := context.WithCancel(context.Background())
			x.stop = cancel
			for i := range 2 {
				x.act("producer", i, func(a *actor) {
					x.produce(a, q, i)
					x.mu().Lock()
					x.producing--
					x.mu().Unlock()
				})
				x.act("consumer", 2+i, func(a *actor) { x.consume(ctx, a, q) })
			}
			x.act("looker", 0, func(a *actor) {
				for {
					a.linger(40)
					x.mu().Lock()
					busy := x.producing > 0
					x.mu().Unlock()
					if busy {
						continue
					}
					if kind == "dead letters" {
						x.revive(a, q)
					}
					n, err := newSimQueue(a.client(), at, kind, coord.QueueOptions[int]{}).Len(context.Background())
					switch {
					case err != nil:
						if !a.excused(err) {
							a.errorf("len: %v", err)
							cancel()
							return
						}
					case n == 0:
						cancel()
						return
					case kind == "limited" && n > simMaxLen:
						a.errorf("%d items, the limit is %d", n, simMaxLen)
					}
				}
			})
		},
		finish: func(x *sim, a *actor) {
			dead := coord.NewQueue[int](a.client(), at+"/dead", nil)
			for {
				it, err := dead.TryTake(context.Background())
				if errors.Is(err, coord.ErrEmpty) {
					break
				}
				if err != nil {
					a.errorf("dead letters: %v", err)
					break
				}
				if kind != "dead letters" {
					a.errorf("a dead letter: %d", it.Value)
				}
				a.note("dead letter")
				x.queue.l.Ended(it, it.Ack())
			}
			if _, err := newSimQueue(a.client(), at, kind, coord.QueueOptions[int]{}).TryTake(context.Background()); !errors.Is(err, coord.ErrEmpty) {
				a.errorf("in the end: %v", err)
			}
		},
		end: func(x *sim) {
			for _, wrong := range x.queue.l.Check() {
				x.errorf("%s", wrong)
			}
			x.empty(at + "/waiters")
			buckets, _, _ := x.truth.Children(context.Background(), at+"/items", nil)
			for _, b := range buckets {
				x.empty(at + "/items/" + b)
			}
		},
	}
}

// checkLimit checks the length of a limited queue, and the nodes that count its items.
func (x *sim) checkLimit(items string) {
	ctx := context.Background()
	buckets, _, _ := x.truth.Children(ctx, items, nil)
	n := 0
	for _, b := range buckets {
		names, _, _ := x.truth.Children(ctx, items+"/"+b, nil)
		for _, name := range names {
			if strings.HasPrefix(name, "i-") {
				n++
			}
		}
	}
	in, _, err := x.truth.Get(ctx, items+"/in", nil)
	if err != nil && n == 0 {
		return // nothing was put yet
	}
	came, wrong := strconv.ParseUint(string(in), 10, 32)
	out, err := x.truth.Exists(ctx, items+"/out", nil)
	if length := int(came) - int(out.Version); wrong != nil || err != nil || length != n || n > simMaxLen {
		x.errorf("%d items, the limit is %d, and the nodes count %d - %d, %v, %v", n, simMaxLen, came, out.Version, wrong, err)
	}
	if n == simMaxLen {
		x.note("full")
	}
}

// produce puts some values of its own.
func (x *sim) produce(a *actor, q *queuePlay, who int) {
	for n := 0; n < 6; {
		vs := []int{who*1000 + n}
		for len(vs) < 3 && n+len(vs) < 6 && a.r.IntN(3) == 0 {
			vs = append(vs, vs[0]+len(vs))
		}
		n += len(vs)
		var ids []string
		a.say("put")
		ids, err := newSimQueue(a.client(), "/sim/q", q.kind, coord.QueueOptions[int]{}).putAll(context.Background(), a.r, vs...)
		for i, v := range vs {
			if i < len(ids) {
				q.l.Did(v, nil)
			} else {
				q.l.Did(v, err)
			}
		}
		switch {
		case err == nil:
			a.note("put")
		case errors.Is(err, coord.ErrUncertain):
			a.note("uncertain put")
		case errors.Is(err, coord.ErrClosed):
			a.note("closed")
		default:
			a.errorf("put: %v", err)
		}
		a.linger(3)
	}
}

// consume takes until ctx ends.
func (x *sim) consume(ctx context.Context, a *actor, q *queuePlay) {
	for ctx.Err() == nil {
		c := newSimQueue(a.client(), "/sim/q", q.kind, coord.QueueOptions[int]{Prefetch: 1 + a.r.IntN(3)})
		var items []*coord.Item[int]
		how := a.r.IntN(8)
		a.try("take", func(own context.Context) error {
			own, cancel := context.WithCancel(own)
			defer cancel()
			if ctx.Err() != nil {
				cancel()
			}
			defer context.AfterFunc(ctx, cancel)()
			switch how {
			case 0:
				it, err := c.TryTake(own)
				if errors.Is(err, coord.ErrEmpty) {
					a.note("empty")
					return nil
				}
				items = append(items, it)
				return err
			case 1:
				for it, err := range c.All(own) {
					if err != nil {
						return err
					}
					if x.consumed(a, q, it); a.r.IntN(2) == 0 {
						break
					}
				}
				return nil
			case 2:
				ch := c.Items(own)
				it, ok := <-ch
				if !ok {
					return cmp.Or(own.Err(), coord.ErrClosed)
				}
				items = append(items, it)
				a.note("received")
				a.pause() // the next one is claimed, or there is none
				cancel()
				for it := range ch {
					it.Release() // it was sent in the same moment
				}
				return nil
			case 3, 4:
				for range 1 + a.r.IntN(3) { // those that follow the first need no claim
					v, err := c.Pop(own)
					q.l.Popped(v, err)
					if errors.Is(err, coord.ErrUncertain) {
						a.note("uncertain pop")
						return nil
					}
					if err != nil {
						return err
					}
					a.note("pop")
				}
				return nil
			default:
				it, err := c.Take(own)
				items = append(items, it)
				return err
			}
		})
		for _, it := range items {
			if it != nil {
				x.consumed(a, q, it)
			}
		}
		a.pause()
	}
}

// revive puts dead letters back into their queue, or removes one of them.
func (x *sim) revive(a *actor, q *queuePlay) {
	c := newSimQueue(a.client(), "/sim/q", q.kind, coord.QueueOptions[int]{})
	switch a.r.IntN(4) {
	case 0:
		n, err := c.Redrive(context.Background())
		switch {
		case errors.Is(err, coord.ErrUncertain):
			a.note("uncertain redrive")
		case err != nil && !a.excused(err):
			a.errorf("redrive: %v", err)
		}
		if n > 0 {
			a.note("redrive")
		}
	case 1:
		var letter *coord.DeadLetter[int]
		for l, err := range c.Dead(context.Background()) {
			if err != nil {
				if !a.excused(err) {
					a.errorf("dead: %v", err)
				}
				return
			}
			letter = l
		}
		if letter == nil {
			return
		}
		err := c.Remove(context.Background(), letter.ID)
		q.l.Removed(letter.Value, err)
		switch {
		case err == nil:
			a.note("remove")
		case errors.Is(err, coord.ErrUncertain):
			a.note("uncertain remove")
		case !a.excused(err):
			a.errorf("remove: %v", err)
		}
	}
}

// consumed does something with an item.
func (x *sim) consumed(a *actor, q *queuePlay, it *coord.Item[int]) {
	q.l.Took(it)
	a.note("delivered")
	a.say(fmt.Sprint(it.Value, " attempt ", it.Attempt))
	if it.Attempt > 1 {
		x.note("again")
	}
	a.linger(3)
	switch a.r.IntN(6) {
	case 0:
		if it.Nack(time.Duration(a.r.IntN(2)*a.r.IntN(100))*time.Millisecond) == nil {
			a.note("nack")
		}
		return
	case 1:
		if it.Release() == nil {
			a.note("release")
		}
		return
	}
	err := it.Ack()
	q.l.Ended(it, err)
	if errors.Is(it.Err(), coord.ErrLost) {
		x.note("loss")
	}
	switch {
	case err == nil:
		a.note("ack")
	case !errors.Is(err, coord.ErrLost):
		a.errorf("ack: %v", err)
	case errors.Is(err, coord.ErrUncertain):
		a.note("uncertain ack")
	}
}

// commitScenario is transactions in two phases: three sites and two proposers.
func commitScenario() *scenario {
	return &scenario{
		name: "two-phase commit", share: 10, clients: 4, timeout: txTimeout,
		must:    []string{"commit", "abort", "told", "gave up", "cancel", "call of prepare", "call of commit", "call of abort"},
		without: []string{"outsider's delete", "outsider's write"},
		play: func(x *sim) {
			w := &txWorld{t: x.simulation.t, name: fmt.Sprint("seed ", x.arbiter.seed), st: x.arbiter.st, count: make(map[string]int),
				history: txHistory{at: make(map[string]*txInstance), all: make(map[txKey]*txInstance)}}
			x.applied = func(c *simCall) {
				w.mu.Lock()
				defer w.mu.Unlock()
				w.history.apply(w, c.seen(x.truth))
			}
			for i, site := range txSimSites {
				x.watch("site "+site, i, func(ctx context.Context, a *actor) {
					call := func(what string) func(context.Context, coord.Branch[string]) error {
						return func(_ context.Context, tx coord.Branch[string]) error {
							// It returns in a step of its own.
							defer x.pass(context.Background(), &simCall{op: "step", path: a.name + " " + what + " " + tx.ID, after: a.name})
							w.mu.Lock()
							defer w.mu.Unlock()
							a.say(what + " " + tx.ID)
							w.history.call(w, what, tx)
							if what == "prepare" && a.r.IntN(6) == 0 {
								return errors.New("not today")
							}
							return nil
						}
					}
					err := coord.NewParticipant(a.client(), txPath, site, coord.Handler[string]{
						Prepare: call("prepare"), Commit: call("commit"), Abort: call("abort"),
					}).Serve(ctx)
					if !errors.Is(err, context.Canceled) && !errors.Is(err, coord.ErrClosed) {
						a.errorf("Serve: %v", err)
					}
				})
			}
			var told []coord.Decision
			for i := range 2 {
				x.act("proposer", 2+i, func(a *actor) {
					for served := 0; served < len(txSimSites); a.pause() {
						list, _, _ := x.truth.Children(context.Background(), txPath+"/sites", nil)
						served = len(list)
					}
					for n := range 2 {
						prop := txProposal(fmt.Sprint("p", i, "-", n), txSimSites[:1+a.r.IntN(3)])
						for {
							var d coord.Decision
							ctx, done := a.context()
							a.say("proposes " + prop.ID)
							o := &coord.CoordinatorOptions[string]{Unserved: coord.Unserved(a.r.IntN(3))}
							d, err := coord.NewCoordinator(a.client(), txPath, o).Propose(ctx, prop)
							done()
							if err == nil {
								a.note("told")
								x.mu().Lock()
								told = append(told, d)
								x.mu().Unlock()
								break
							}
							if errors.Is(err, coord.ErrUncertain) {
								a.note("uncertain")
							} else if errors.Is(err, coord.ErrNotFound) {
								a.note("not served")
							} else if !a.excused(err) {
								a.errorf("propose: %v", err)
								break
							}
							a.pause()
						}
						a.linger(5)
					}
				})
			}
			x.finishing = func(a *actor) {
				if _, err := coord.NewCoordinator[string](a.client(), txPath, nil).Recover(context.Background()); err != nil {
					a.errorf("recover: %v", err)
				}
			}
			x.ending = func() {
				x.empty(txPath + "/tx")
				for _, site := range txSimSites {
					x.empty(txPath + "/sites/" + site)
				}
				w.mu.Lock()
				defer w.mu.Unlock()
				w.history.end(w)
				w.checkTold(told)
				x.mu().Lock()
				defer x.mu().Unlock()
				for what, n := range w.count {
					x.count[what] += n
				}
			}
		},
	}
}

func electionScenario() *scenario {
	const at = "/sim/election"
	return &scenario{
		name: "election", share: 10, clients: 4, dir: at,
		must:    []string{"grant", "loss", "announced", "observed", "vacant", "leadership", "led again", "late term", "run", "ran again", "gave up", "cancel", "outsider's delete"},
		without: []string{"outsider's write"},
		play: func(x *sim) {
			election := func(a *actor) *coord.Election {
				return coord.NewElection(a.client(), at, &coord.ElectionOptions{ID: a.name, StepDownOnSuspend: a.slot.n == 3})
			}
			for i := range 4 {
				x.act("candidate", i, func(a *actor) {
					lead := func(t *coord.Term) {
						x.takes(a, at, t.Hold, false)
						x.works(a, at, t.Hold, 3)
						if a.r.IntN(2) == 0 && t.Announce(context.Background(), []byte(a.name)) == nil {
							a.note("announced")
							x.works(a, at, t.Hold, 3)
						}
					}
					for range 3 {
						switch a.r.IntN(4) {
						case 0, 1:
							var t *coord.Term
							if a.try("campaign", func(ctx context.Context) (err error) {
								t, err = election(a).Campaign(ctx)
								return err
							}) {
								lead(t)
								x.releases(a, at, t.Hold)
							}
						case 2:
							x.leadership(a, election(a), at, lead)
						case 3:
							x.runs(a, election(a), at, lead)
						}
					}
				})
			}
			last := make([]coord.Leader, 2)
			for i := range last {
				x.watch("observer", i, func(ctx context.Context, a *actor) {
					for l := range election(a).WatchLeader(ctx) {
						if l.Err != nil {
							continue
						}
						a.say("sees " + l.Path)
						if l.Vacant() {
							x.note("vacant")
						} else {
							x.note("observed")
						}
						x.mu().Lock()
						if !l.Vacant() && !last[i].Vacant() && l.Token < last[i].Token {
							x.simulation.t.Errorf("seed %d: %s saw the leader %d after %d", x.arbiter.seed, a.name, l.Token, last[i].Token)
						}
						last[i] = l
						x.mu().Unlock()
					}
				})
			}
			x.ending = func() {
				x.empty(at)
				for _, l := range last {
					if !l.Vacant() {
						x.errorf("no candidate leads, and an observer saw %s at last", l.Path)
					}
				}
			}
		},
	}
}

// leadership leads for one term of a Leadership, or for more.
func (x *sim) leadership(a *actor, e *coord.Election, path string, lead func(*coord.Term)) {
	a.note("leadership")
	ctx, cancel := a.context()
	terms := e.Leadership(ctx)
	for t := range terms {
		if t.Token() == 0 {
			if err := t.Err(); !a.excused(err) {
				a.errorf("leadership: %v", err)
			}
			break
		}
		lead(t)
		x.releases(a, path, t.Hold)
		a.pause() // the next campaign begins, or this is over
		if a.r.IntN(2) == 0 {
			break
		}
		a.note("led again")
	}
	if a.r.IntN(2) == 0 {
		select { // the next term may be there already
		case t, open := <-terms:
			if open && t.Token() != 0 {
				a.note("late term")
				t.Release()
			}
		default:
		}
	}
	cancel()
	a.pause() // or two would take what is in the channel now
	for t := range terms {
		t.Release()
	}
}

// runs leads in a Run.
func (x *sim) runs(a *actor, e *coord.Election, path string, lead func(*coord.Term)) {
	a.note("run")
	ctx, done := a.context()
	defer done()
	var last *coord.Hold
	err := e.Run(ctx, func(_ context.Context, t *coord.Term) error {
		if last != nil {
			a.note("ran again")
		}
		last = t.Hold
		lead(t)
		a.pause()
		x.heard(last)
		x.gives(path, last)
		x.ended(last)
		return nil
	})
	switch {
	case last != nil && (err == nil || errors.Is(err, coord.ErrLost) || errors.Is(err, coord.ErrUncertain)):
		x.gave(a, err, last)
	case !a.excused(err):
		a.errorf("run: %v", err)
	}
}

type simMember struct {
	m     *coord.Membership[string]
	maybe map[string]bool // what its value can be
}

func groupScenario() *scenario {
	const at = "/g"
	group := func(a *actor, takeOver bool) *coord.Group[string] {
		return coord.NewGroup(a.client(), at, &coord.GroupOptions[string]{Codec: coord.Text(), TakeOver: takeOver})
	}
	return &scenario{
		name: "group", share: 10, clients: 4, dir: at,
		must:    []string{"join", "duplicate", "gave up", "set", "set uncertain", "element", "pick", "stayed", "ended", "cancel", "outsider's delete"},
		without: []string{"outsider's write"}, // of other values
		play: func(x *sim) {
			var stay []*simMember
			for i := range 4 {
				x.act("member", i, func(a *actor) {
					for round := range 3 {
						value := fmt.Sprint(a.name, ".", round)
						var m *coord.Membership[string]
						id := randomOf(a.r, "abc")
						a.try("join "+id, func(ctx context.Context) (err error) {
							if m, err = group(a, a.r.IntN(3) == 0).Join(ctx, id, value); errors.Is(err, coord.ErrDuplicate) {
								a.note("duplicate")
								return nil
							}
							return err
						})
						if m == nil {
							continue
						}
						a.note("join")
						e := &simMember{m, map[string]bool{value: true}}
						for n := range a.r.IntN(3) {
							a.linger(5)
							next := fmt.Sprint(value, ".", n)
							ctx, done := a.context()
							err := m.SetValue(ctx, next)
							done()
							switch {
							case err == nil:
								a.note("set")
								e.maybe = map[string]bool{next: true}
							case errors.Is(err, coord.ErrUncertain):
								a.note("set uncertain")
								e.maybe[next] = true
							case errors.Is(err, coord.ErrDuplicate), a.excused(err):
							default:
								a.errorf("set: %v", err)
							}
						}
						a.linger(5)
						if round == 2 {
							x.mu().Lock()
							stay = append(stay, e)
							x.mu().Unlock()
						} else if err := m.Leave(); err != nil && !errors.Is(err, coord.ErrDuplicate) && !a.excused(err) {
							a.errorf("leave: %v", err)
						}
					}
				})
			}
			told := make([]*coordtest.GroupReader, 2)
			for i := range told {
				x.watch("reader", i, func(ctx context.Context, a *actor) {
					g := group(a, false)
					p, err := g.Picker(ctx, coord.PickPolicy(i))
					if err != nil {
						if !a.excused(err) {
							a.errorf("picker: %v", err)
						}
						return
					}
					updates, w := g.Watch(ctx), new(coordtest.GroupReader)
					x.mu().Lock()
					told[i] = w
					x.mu().Unlock()
					for m := range updates {
						if m.Err != nil {
							continue
						}
						x.mu().Lock()
						err := w.Take(m)
						x.count["element"]++
						x.mu().Unlock()
						if err != nil {
							a.errorf("%v", err)
						}
						for range 1 + a.r.IntN(3) {
							if m, ok := p.TryNext(); ok {
								x.note("pick")
								if w.Gone[m.Path] {
									a.errorf("picked %s, which the watch had reported to be gone", m.Path)
								}
							}
							a.pause()
						}
					}
				})
			}
			x.finishing = func(a *actor) {
				truth, err := group(a, false).Members(context.Background())
				if err != nil {
					a.errorf("members: %v", err)
				}
				if list, _, _ := x.truth.Children(context.Background(), at, nil); len(list) != len(truth) {
					a.errorf("%d nodes for %d members", len(list), len(truth))
				}
				for i, w := range told {
					if !slices.Equal(w.Last.Members, truth) {
						a.errorf("reader %d received %v at last, the truth is %v", i, w.Last.Members, truth)
					}
				}
				left := make(map[string]string)
				for _, m := range truth {
					left[m.ID] = m.Value
				}
				for _, e := range stay {
					if e.m.Err() != nil {
						a.note("ended")
						continue
					}
					a.note("stayed")
					if v, ok := left[e.m.ID()]; !ok || !e.maybe[v] {
						a.errorf("the member %q has %q, want one of %v", e.m.ID(), v, e.maybe)
					}
					delete(left, e.m.ID())
					e.m.Leave()
				}
				if len(left) > 0 {
					a.errorf("members that no client is: %v", left)
				}
			}
			x.ending = func() { x.empty(at) }
		},
	}
}

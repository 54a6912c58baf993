package sweep

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/go-coord/coord"
)

// txn: under a lock, a transaction sets a value and puts an item. Both are applied, or none.
func txn() *recipe {
	commit := func(x *cell, p *player, tag string) (done, maybe bool) {
		r := x.resource("m", 1)
		h, err := coord.NewMutex(p.c, "/locks/m", nil).Lock(x.ctx)
		if !p.ok("lock", err) {
			return false, false
		}
		r.enter(p, h, 1)
		v := coord.NewValue(p.c, "/app/v-"+tag, &coord.ValueOptions[string]{Codec: coord.Text()})
		q := coord.NewQueue(p.c, "/q", &coord.QueueOptions[string]{})
		if p.name == "a" {
			x.rest()
		}
		// No error means applied; any error but ErrUncertain means not applied.
		_, err = coord.NewTxn(p.c).Under(h.Guard()).Add(v.SetOp(tag), q.PutOp(tag)).Commit(x.ctx)
		done = p.ok("commit", err, coord.ErrUncertain, coord.ErrNotFound)
		maybe = !done && errors.Is(err, coord.ErrUncertain)
		r.release(p, h)
		return done, maybe
	}
	look := func(x *cell, tag string, done, maybe bool) {
		set := x.count("/app/v-"+tag) == 1
		if !done && maybe {
			return
		}
		if x.going() && set != done {
			x.violation("transaction %s: applied %t, reported %t", tag, set, done)
		}
	}
	return &recipe{
		name: "txn", players: []string{"a", "b"},
		play: func(x *cell) {
			a, b := x.by["a"], x.by["b"]
			var done, maybe [3]bool
			x.together(
				func() { done[0], maybe[0] = commit(x, a, "a1"); done[1], maybe[1] = commit(x, a, "a2") },
				func() { done[2], maybe[2] = commit(x, b, "b1") },
			)
			sets := 0
			for i, tag := range []string{"a1", "a2", "b1"} {
				look(x, tag, done[i], maybe[i])
				if x.count("/app/v-"+tag) == 1 {
					sets++
				}
			}
			// Each transaction puts its item at most once. An item whose Ack is lost with the
			// session is delivered again.
			items := map[string]int{}
			q := coord.NewQueue(b.c, "/q", &coord.QueueOptions[string]{})
			for x.going() {
				it, err := q.TryTake(x.ctx)
				if errors.Is(err, coord.ErrEmpty) {
					break
				}
				if !b.ok("take", err) {
					break
				}
				tag := it.Value
				err = it.Ack()
				if items[tag] == 0 {
					items[tag]++
				} else if !b.lost() {
					x.violation("%q was put twice", tag)
				}
				b.ok("ack", err, coord.ErrLost)
			}
			for tag := range items {
				if x.going() && x.count("/app/v-"+tag) != 1 {
					x.violation("half of a transaction was applied: %s", tag)
				}
			}
			if x.going() && len(items) != sets {
				x.violation("%d values set, %d items put", sets, len(items))
			}
		},
		fresh: func(x *cell, p *player) {
			done, _ := commit(x, p, "fresh")
			look(x, "fresh", done, false)
			_, err := coord.NewQueue(p.c, "/q", &coord.QueueOptions[string]{}).Pop(x.ctx)
			p.ok("pop", err)
		},
		rests: emptied,
	}
}

// site records the callbacks of a participant, by the zxid of the transaction.
type site struct {
	x        *cell
	p        *player
	name     string
	no       bool
	mu       sync.Mutex
	prepared map[int64]bool
	outcome  map[int64]string
}

// serve serves the site until ctx ends. No site gets both a commit and an abort of one
// transaction.
func (s *site) serve(ctx context.Context) {
	note := func(what string) func(context.Context, coord.Branch[string]) error {
		return func(ctx context.Context, tx coord.Branch[string]) error {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.x.step(s.name + " " + what)
			if o := s.outcome[tx.Zxid]; o != "" && o != what {
				s.x.violation("site %s: %s after %s", s.name, what, o)
			}
			if what == "commit" && (!s.prepared[tx.Zxid] || tx.Payload != "payload") {
				s.x.violation("site %s commits a transaction that it has not prepared: %+v", s.name, tx)
			}
			s.outcome[tx.Zxid] = what
			return nil
		}
	}
	err := coord.NewParticipant(s.p.c, "/tx", s.name, coord.Handler[string]{
		Prepare: func(ctx context.Context, tx coord.Branch[string]) error {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.x.step(s.name + " prepare")
			if s.no {
				return errors.New("not here")
			}
			s.prepared[tx.Zxid] = true
			return nil
		},
		Commit: note("commit"),
		Abort:  note("abort"),
	}).Serve(ctx)
	if ctx.Err() == nil || !errors.Is(err, context.Canceled) {
		s.x.violation("serve of site %s ended: %v", s.name, err)
	}
}

func (s *site) result(zxid int64) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.outcome[zxid]
}

func (x *cell) site(p *player, name string, no bool) *site {
	return &site{x: x, p: p, name: name, no: no, prepared: make(map[int64]bool), outcome: make(map[int64]string)}
}

// transact serves both sites, proposes, waits until all have acted, and stops.
func transact(x *cell, proposer *player, sites []*site, no bool) {
	ctx, stop := context.WithCancel(x.ctx)
	var served sync.WaitGroup
	for _, s := range sites {
		served.Go(func() { s.serve(ctx) })
	}
	defer served.Wait()
	defer stop()
	x.until("both sites are served", func() bool { return x.count("/tx/sites/") >= 2 && x.count("/tx/serving/", "-lock-") >= 2 })
	x.rest()
	co := coord.NewCoordinator(proposer.c, "/tx", &coord.CoordinatorOptions[string]{Unserved: coord.AwaitUnserved})
	unsure := false
	var d coord.Decision
	for x.going() {
		var err error
		d, err = co.Propose(x.ctx, coord.Proposal[string]{
			ID: "t-" + proposer.name, Sites: []string{"one", "two"}, Payload: "payload", Deadline: time.Now().Add(limit / 2),
		})
		if proposer.ok("propose", err, coord.ErrUncertain) {
			break
		}
		unsure = true // the same proposal again is the same transaction
	}
	if !x.going() {
		return
	}
	if d.Commit == no && !(unsure && !no) {
		x.violation("the decision is %+v", d)
	}
	want := map[bool]string{true: "commit", false: "abort"}[d.Commit]
	for _, s := range sites {
		x.until(fmt.Sprintf("site %s has done %s of %d", s.name, want, d.Zxid), func() bool { return s.result(d.Zxid) != "" })
		if got := s.result(d.Zxid); got != want && x.going() {
			x.violation("site %s: %s, but the decision is %+v", s.name, got, d)
		}
	}
	// The branches are deleted when the sites have acknowledged.
	x.until("both sites have acknowledged", func() bool { return x.count("/tx/sites/one/")+x.count("/tx/sites/two/") == 0 })
}

// twoPhase is a two-phase commit of two sites. With no, one of them votes no.
func twoPhase(no bool) *recipe {
	name := "two-phase commit"
	if no {
		name = "two-phase abort"
	}
	return &recipe{
		name: name, players: []string{"a", "b", "c"},
		play: func(x *cell) {
			transact(x, x.by["a"], []*site{x.site(x.by["b"], "one", false), x.site(x.by["c"], "two", no)}, no)
		},
		fresh: func(x *cell, p *player) {
			transact(x, p, []*site{x.site(p, "one", false), x.site(p, "two", false)}, false)
			// A failure may have left the transaction to a Recover.
			_, err := coord.NewCoordinator[string](p.c, "/tx", nil).Recover(x.ctx)
			p.ok("recover", err)
		},
		rests: func(paths []string) string {
			for _, p := range paths {
				if strings.HasPrefix(p, "/tx/tx/") || strings.HasPrefix(p, "/tx/sites/one/") || strings.HasPrefix(p, "/tx/sites/two/") {
					return "left of a transaction: " + p
				}
			}
			return ""
		},
	}
}

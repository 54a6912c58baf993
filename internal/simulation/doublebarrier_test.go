package simulation_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/zookeeper"
	"github.com/go-coord/coord/internal/coordtest"
)

// rounds checks the rounds of a double barrier as they go by. Each entry is asked
// for the ready node of its round, which stands at least as long as the entry does:
// its creation tells the rounds apart.
type rounds struct {
	n      int
	ready  string                    // its path
	void   func(e *coord.Entry) bool // the entry is lost, or its client will soon learn that it is
	exists func(path string) bool    // asks the service
	note   func(what string)
	mu     sync.Mutex
	calls  map[*enterCall]bool    // under way, or ended a moment ago with their nodes perhaps still there
	inside map[*coord.Entry]int64 // those that have not begun to leave, and their rounds
	named  map[string]int64       // each member's round
	opened map[int64]bool
}

// enterCall is one call of Enter.
type enterCall struct{ most int }

func newRounds(n int, ready string, note func(string)) *rounds {
	return &rounds{
		n: n, ready: ready, note: note, void: func(e *coord.Entry) bool { return e.Err() != nil },
		calls: make(map[*enterCall]bool), inside: make(map[*coord.Entry]int64),
		named: make(map[string]int64), opened: make(map[int64]bool),
	}
}

func (r *rounds) begin() *enterCall {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := &enterCall{}
	r.calls[c] = true
	for other := range r.calls {
		other.most = max(other.most, len(r.calls))
	}
	return c
}

func (r *rounds) end(c *enterCall) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.calls, c)
}

// entered checks an entry.
func (r *rounds) entered(s backend.Session, c *enterCall, e *coord.Entry) error {
	data, stat, err := s.Get(context.Background(), r.ready, nil)
	// In a recreated directory, the second node of a call can have the name of its first.
	members, dirErr := s.Exists(context.Background(), path.Dir(e.Path()), nil)
	if r.void(e) {
		r.note("lost at once")
		return nil // so its round may be over
	}
	if e.Extra() {
		r.note("extra")
		return nil // the members of its round may have left since, and others be inside
	}
	if err != nil || dirErr != nil {
		return fmt.Errorf("no ready for %s, or no directory: %w", e.Path(), errors.Join(err, dirErr))
	}
	node := func(name string) string { return fmt.Sprint(members.Czxid, " ", name) }
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.opened[stat.Czxid] {
		r.opened[stat.Czxid] = true
		r.note("round")
		names := strings.Fields(string(data))
		if len(names) != r.n {
			return fmt.Errorf("a round of %d", len(names))
		}
		guids := make(map[string]bool)
		for _, name := range names {
			guids[name[:39]] = true
			if r.named[node(name)] != 0 {
				return fmt.Errorf("%s is in two rounds", name)
			}
			r.named[node(name)] = stat.Czxid
		}
		if len(guids) != r.n {
			return fmt.Errorf("a round of %d calls: %q", len(guids), names)
		}
	}
	r.inside[e] = stat.Czxid
	r.note("entry")
	if r.named[node(path.Base(e.Path()))] != stat.Czxid {
		return fmt.Errorf("%s is inside a round that does not name it: %q", e.Path(), data)
	}
	if c.most < r.n {
		return fmt.Errorf("%s entered, and no more than %d calls of Enter ever were under way with it", e.Path(), c.most)
	}
	return nil
}

// leaves notes that e begins to leave.
func (r *rounds) leaves(e *coord.Entry) (round int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	round = r.inside[e]
	delete(r.inside, e)
	return round
}

// left checks that all have left when Leave of a member of their round has returned.
// A member whose session the service has ended may not know of that yet.
func (r *rounds) left(round int64) error {
	r.mu.Lock()
	var suspects []string
	for e, of := range r.inside {
		if of == round && e.Err() == nil {
			suspects = append(suspects, e.Path())
		}
	}
	r.mu.Unlock()
	for _, path := range suspects {
		if r.exists(path) {
			return fmt.Errorf("a Leave returned while %s is inside", path)
		}
		r.note("died unknowingly")
	}
	return nil
}

// attempt enters once and leaves, with contexts that may end early.
func (r *rounds) attempt(c *coord.Client, d *coord.DoubleBarrier, rng *rand.Rand, enter, leave context.Context) error {
	call := r.begin()
	var e *coord.Entry
	err := timely(enter, func() (err error) {
		e, err = d.Enter(enter)
		return err
	})
	if err != nil {
		// Its node is deleted in the background, or with its session.
		time.AfterFunc(time.Second, func() { r.end(call) })
		switch {
		case enter.Err() == nil || !errors.Is(err, enter.Err()):
			return err
		case errors.Is(err, coord.ErrSessionLost):
			return fmt.Errorf("Enter reported a lost session: %w", err)
		}
		r.note("gave up entering")
		return nil
	}
	s, err := c.Session(context.Background())
	if err != nil {
		return err
	}
	err = r.entered(s, call, e)
	r.end(call)
	if err != nil {
		return err
	}
	select {
	case <-time.After(time.Duration(rng.IntN(30)) * time.Millisecond):
	case <-e.Done():
	}
	round := r.leaves(e)
	if rng.IntN(12) == 0 {
		r.note("release")
		e.Release()
		return nil
	}
	switch err := timely(leave, func() error { return e.Leave(leave) }); {
	case errors.Is(err, coord.ErrLost):
		r.note("loss")
	case err == nil && round != 0:
		return r.left(round)
	case err == nil:
	case leave.Err() != nil && errors.Is(err, leave.Err()):
		r.note("gave up leaving")
	default:
		return err
	}
	return nil
}

// timely makes a call that has to return soon after its ctx has ended.
func timely(ctx context.Context, f func() error) error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-done:
		return err
	case <-time.After(10 * time.Second):
		return errors.New("the call hangs past its ctx")
	}
}

// Five members on the real service, whose sessions expire, whose links break and lose messages,
// and which give up.
func TestRoundsOfADoubleBarrierOnZooKeeper(t *testing.T) {
	t.Parallel()
	want := 15
	if coordtest.Long() {
		want = 50
	}
	w := coordtest.OnServer(t, zookeeper.Options{})
	count := make(map[string]int)
	var mu sync.Mutex
	note := func(what string) {
		mu.Lock()
		defer mu.Unlock()
		count[what]++
	}
	const members = 5
	r := newRounds(members, w.Path("/d/ready"), note)
	observer := w.Session("observer")
	r.exists = func(path string) bool {
		err := observer.Sync(context.Background(), path)
		if err == nil {
			_, err = observer.Exists(context.Background(), path, nil)
		}
		if err != nil && !errors.Is(err, coord.ErrNotFound) {
			t.Error(err)
		}
		return err == nil
	}
	var clients []*coord.Client
	for i := range members {
		clients = append(clients, w.Open(fmt.Sprint(i), nil))
	}
	all, finish := context.WithTimeout(context.Background(), 2*time.Minute)
	defer finish()
	var wg sync.WaitGroup
	for i, c := range clients {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(1, uint64(i)))
			d := coord.NewDoubleBarrier(c, "/d", members, nil)
			for all.Err() == nil {
				ctx, cancel := context.WithTimeout(all, time.Duration(200+rng.IntN(8000))*time.Millisecond)
				err := r.attempt(c, d, rng, ctx, all)
				cancel()
				if err != nil {
					t.Error(err)
					finish()
				}
				r.mu.Lock()
				enough := len(r.opened) >= want
				r.mu.Unlock()
				if enough {
					finish()
				}
			}
		})
	}
	rng := rand.New(rand.NewPCG(1, 99))
	for fault := 0; all.Err() == nil; fault++ {
		select {
		case <-all.Done():
		case <-time.After(time.Duration(rng.IntN(100)) * time.Millisecond):
		}
		i := rng.IntN(members)
		link := w.Link(fmt.Sprint(i))
		switch fault % 5 {
		case 0:
			note("expiry")
			link.Expire((<-clients[i].WatchState(context.Background())).Session)
		case 1:
			note("partition")
			link.Partition()
			select {
			case <-all.Done():
			case <-time.After(time.Duration(rng.IntN(300)) * time.Millisecond):
			}
			link.Heal()
		case 2:
			note("blip")
			link.Partition()
			link.Heal()
		case 3:
			note("lost request")
			link.DropNextRequest()
		case 4:
			note("lost reply")
			link.DropNextReply()
		}
	}
	wg.Wait()
	t.Logf("figure: rounds of %d members on the service: %v", members, count)
	if len(r.opened) < want {
		t.Errorf("%d rounds in the time, want %d", len(r.opened), want)
	}
	for _, what := range []string{"entry", "expiry", "partition", "lost reply"} {
		if count[what] == 0 {
			t.Errorf("%q never happened", what)
		}
	}
	w.Empty("/d/members")
}

func doubleBarrierScenario() *scenario {
	const at, dir = "/sim/d", "/sim/d/members"
	return &scenario{
		name: "double barrier", share: 10, clients: 4, dir: dir,
		must:    []string{"round", "entry", "extra", "release", "loss", "gave up", "gave up leaving", "cancel", "outsider's delete"},
		without: []string{"outsider's write"},
		play: func(x *sim) {
			n, o := 3, &coord.DoubleBarrierOptions{WaitForNextRound: x.draw.IntN(2) == 0}
			if x.draw.IntN(3) == 0 {
				n = 4
			}
			r := newRounds(n, at+"/ready", x.note)
			r.exists = func(path string) bool {
				_, err := x.truth.Exists(context.Background(), path, nil)
				return err == nil
			}
			r.void = func(e *coord.Entry) bool {
				x.mu().Lock()
				defer x.mu().Unlock()
				return x.void(e.Hold)
			}
			all, finish := context.WithCancel(context.Background())
			x.stop = finish // whose round cannot be completed any more
			for i := range 4 {
				x.act("member", i, func(a *actor) {
					for left := 3; left > 0 && all.Err() == nil; {
						if x.enterOnce(a, r, coord.NewDoubleBarrier(a.client(), at, n, o), all) {
							left--
						}
					}
					x.stop()
				})
			}
		},
		end: func(x *sim) { x.empty(dir) },
	}
}

// enterOnce enters a double barrier and leaves it. It reports whether it entered.
func (x *sim) enterOnce(a *actor, r *rounds, d *coord.DoubleBarrier, all context.Context) bool {
	bounded := func(f func(context.Context) error) func(context.Context) error {
		return func(ctx context.Context) error {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			if all.Err() != nil {
				cancel()
			}
			defer context.AfterFunc(all, cancel)()
			return f(ctx)
		}
	}
	call := r.begin()
	var e *coord.Entry
	if !a.try("enter", bounded(func(ctx context.Context) (err error) {
		e, err = d.Enter(ctx)
		return err
	})) {
		return false // its node is deleted in the background, so the call still counts
	}
	a.say("entered " + path.Base(e.Path()))
	if err := r.entered(x.truth, call, e); err != nil {
		a.errorf("%v", err)
	}
	r.end(call)
	a.linger(4)
	round := r.leaves(e)
	ctx, done := a.context()
	defer done()
	if a.r.IntN(10) == 0 {
		a.note("release")
		e.Release()
		return true
	}
	switch err := bounded(e.Leave)(ctx); {
	case errors.Is(err, coord.ErrLost):
		a.note("loss")
	case err == nil && round != 0:
		if err := r.left(round); err != nil {
			a.errorf("%v", err)
		}
	case err == nil:
	case errors.Is(err, context.Canceled):
		a.note("gave up leaving")
	case a.excused(err):
	default:
		a.errorf("leave: %v", err)
	}
	return true
}

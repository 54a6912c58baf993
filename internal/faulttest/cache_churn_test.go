//go:build linux

package faulttest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/coordtest"
	"github.com/go-coord/coord/internal/ensemble"
)

const (
	churned    = "/churn"
	churnDirs  = 8  // directories at the top
	mostChurn  = 60 // the largest subtree that one commit deletes
	churnUsers = 20 // sessions that write

	readsAtOnce = 32
)

// churn changes the tree.
type churn struct {
	e     servers
	s     *room
	guide *coord.Cache // suggests operations that fit the tree
	width int          // nodes below each directory; each has up to three children
	rate  int          // changed nodes a second, less the losses during elections
	most  int          // operations in a commit

	pause    sync.RWMutex // held for reading by each commit
	sessions [churnUsers]atomic.Int64
	commits  atomic.Int64
	changes  atomic.Int64 // of nodes
	done     [5]atomic.Int64
}

// The kinds of commits.
const (
	aCreation = iota
	aChange
	aDeletion
	aRecreation
	aSubtree // a deletion or a recreation of several nodes
)

func (c *churn) create(p, tag string, mode backend.CreateMode) backend.Op {
	return backend.Create(c.s.root+p, []byte(p+" "+tag), mode)
}

// plant makes the tree.
func (c *churn) plant(t *testing.T, s backend.Session) {
	t.Helper()
	if c.most = 2 * mostChurn; s.Limits().Ops > 0 {
		c.most = min(c.most, s.Limits().Ops)
	}
	ops := []backend.Op{c.create(churned, "planted", backend.Persistent)}
	flush := func() {
		if _, err := s.Commit(t.Context(), ops...); err != nil {
			t.Fatal(err)
		}
		ops = nil
	}
	for d := range churnDirs {
		dir := fmt.Sprintf("%s/%d", churned, d)
		ops = append(ops, c.create(dir, "planted", backend.Persistent))
		for m := range c.width {
			p := fmt.Sprintf("%s/%d", dir, m)
			ops = append(ops, c.create(p, "planted", backend.Persistent), c.create(p+"/0", "planted", backend.Persistent))
			if len(ops) > c.most-4 {
				flush()
			}
		}
	}
	flush()
}

// next returns the operations of a commit at random.
func (c *churn) next(r *rand.Rand, tag string) (kind int, ops []backend.Op) {
	p := fmt.Sprintf("%s/%d", churned, r.IntN(churnDirs))
	if r.IntN(12) > 0 {
		p += fmt.Sprintf("/%d", r.IntN(c.width))
		if r.IntN(3) == 0 {
			p += fmt.Sprintf("/%d", r.IntN(3))
		}
	}
	n := r.IntN(6)
	names, there := c.guide.Children(p)
	switch {
	case !there && n == 0:
		return aCreation, []backend.Op{c.create(p, tag, backend.Ephemeral)}
	case !there:
		return aCreation, []backend.Op{c.create(p, tag, backend.Persistent)}
	case n < 2 || len(names) > mostChurn/4:
		return aChange, []backend.Op{backend.SetData(c.s.root+p, []byte(p+" "+tag), backend.AnyVersion)}
	}
	var nodes []string
	for below := range c.guide.Walk(p) {
		nodes = append(nodes, below)
	}
	for _, below := range slices.Backward(nodes) {
		ops = append(ops, backend.Delete(c.s.root+below, backend.AnyVersion))
	}
	kind = aDeletion
	if n > 3 {
		kind = aRecreation
		for _, below := range nodes {
			ops = append(ops, c.create(below, tag, backend.Persistent))
		}
	}
	if len(nodes) > 1 {
		kind = aSubtree
	}
	switch {
	case len(ops) == 0: // deleted meanwhile
		return aCreation, []backend.Op{c.create(p, tag, backend.Persistent)}
	case len(ops) > c.most:
		return aChange, []backend.Op{backend.SetData(c.s.root+p, []byte(p+" "+tag), backend.AnyVersion)}
	}
	return kind, ops
}

// write commits at random until ctx ends, at most at a rate.
func (c *churn) write(ctx context.Context, t *testing.T, user int) {
	r := rand.New(rand.NewPCG(uint64(user), 1))
	b := c.s.link(fmt.Sprint("writer ", user))
	s, err := b.Open(ctx)
	if err != nil {
		t.Error(err)
		return
	}
	defer func() { s.Close() }()
	c.sessions[user].Store(s.ID())
	began := time.Now()
	for n, try := 0, 0; ctx.Err() == nil; try++ {
		if due := began.Add(time.Duration(n*churnUsers) * time.Second / time.Duration(c.rate)); time.Until(due) > 0 {
			select {
			case <-time.After(time.Until(due)):
			case <-ctx.Done():
				return
			}
		} else if time.Since(due) > time.Second {
			began, n = time.Now(), 0 // no servers for a while, or a pause; do not catch up
		}
		kind, ops := c.next(r, fmt.Sprint(user, try))
		c.pause.RLock()
		_, err := s.Commit(ctx, ops...)
		c.pause.RUnlock()
		switch {
		case err == nil:
			c.done[kind].Add(1)
			c.commits.Add(1)
			c.changes.Add(int64(len(ops)))
			n += len(ops)
		case errors.Is(err, backend.ErrSessionLost):
			// It was ended, or an election took too long. The session's ephemerals are
			// deleted, which is a change too.
			next, err := b.Open(ctx)
			if err != nil {
				if ctx.Err() == nil {
					t.Error(err)
				}
				return
			}
			s.Close()
			s = next
			c.sessions[user].Store(s.ID())
		case ctx.Err() != nil, errors.Is(err, backend.ErrUncertain), // no servers
			errors.Is(err, backend.ErrExists), errors.Is(err, backend.ErrNotFound), // it does not fit the tree
			errors.Is(err, backend.ErrNotEmpty), errors.Is(err, backend.ErrNoChildren):
		default:
			t.Errorf("writer %d: %v", user, err)
			return
		}
	}
}

// check pauses the writers until all copies and folded events equal the tree, and returns the
// number of nodes.
func (c *churn) check(t *testing.T, when string, followers ...*follower) int {
	t.Helper()
	c.pause.Lock()
	defer c.pause.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), 2*limit)
	defer cancel()
	for began := time.Now(); ; coordtest.Pause(began) {
		var tree map[string]coordtest.NodeState
		reader, err := c.s.link("reader").Open(ctx)
		if err == nil {
			tree, err = coordtest.ReadTree(ctx, reader, c.s.root, churned, readsAtOnce)
			reader.Close()
		}
		now, ever := []string{fmt.Sprint(err)}, []string(nil)
		if err == nil {
			now = nil
			for _, f := range followers {
				passing, lasting := f.judge(tree)
				now, ever = append(now, passing...), append(ever, lasting...)
			}
		}
		switch {
		case len(ever) > 0:
			t.Fatalf("%s: %d events do not follow from earlier ones:\n%s", when, len(ever), strings.Join(ever[:min(len(ever), 20)], "\n"))
		case len(now) == 0:
			return len(tree)
		case time.Since(began) > limit:
			t.Fatalf("%s: never equal:\n%s\n%s", when, strings.Join(now, "\n"), c.compareServers())
		}
	}
}

// compareServers describes how the servers' trees differ from that of the first, for longer
// than sessions take to expire. No client can cause that: ZooKeeper has had such defects when
// servers are killed.
func (c *churn) compareServers() (difference string) {
	var servers []backend.Backend
	for _, addr := range c.e.Addrs() {
		servers = append(servers, backendAt([]string{addr}, killTimeout, 0))
	}
	for began := time.Now(); time.Since(began) < 2*killTimeout; {
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		d, err := coordtest.CompareServers(ctx, servers, c.s.root, readsAtOnce, churned)
		cancel()
		switch {
		case err != nil:
			return err.Error()
		case d == "":
			return ""
		}
		difference = "THE SERVERS DIFFER: " + d
	}
	return difference
}

// churnTime returns the duration of the churn of a large tree, or 0 for that of a small one.
func churnTime(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv("COORD_CHURN")
	switch {
	case text == "" && long():
		return 150 * time.Second
	case text == "":
		return 0
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestACacheIsExactAfterChurnAndKills changes a tree while servers are killed, sessions end
// and clients come and go. Every round ends with a pause of the writers, in which the copies,
// the trees folded from the events and the servers' tree must become equal, before another
// fault could hide that something was missed.
func TestACacheIsExactAfterChurnAndKills(t *testing.T) {
	ensemble.Require(t)
	rounds, took, width, rate := 2, 1500*time.Millisecond, 12, 400
	large := churnTime(t)
	if large > 0 {
		took, width, rate = 15*time.Second, 900, 1200 // about 10,000 nodes
		rounds = max(rounds, int(large/took))
	}
	e := startServers(t, shortSync)
	s := newRoom(t, e, killTimeout, shortMargin)
	c := &churn{e: e, s: s, width: width, rate: rate}
	plain, err := s.link("observer").Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c.plant(t, plain)
	plain.Close()

	all := &sightings{seen: make(map[sighting]coordtest.NodeState)}
	a := follow(t, "the first cache", all, s.contender("a"), 0, 300*time.Millisecond)
	defer a.end()
	if large == 0 {
		// A copy by one-shot watches: too many requests for the long form.
		s.linkWithout("b", backend.Trees)
	}
	b := follow(t, "the second cache", all, s.contender("b"), 0)
	defer b.end()
	b.x.moveTo(1)
	var last *follower // begins in the middle, and is replaced
	defer func() {
		if last != nil {
			last.end()
		}
	}()
	followers := func() []*follower {
		list := []*follower{a, b}
		if last != nil {
			list = append(list, last)
		}
		return list
	}
	receive(t, a.k.Synced(), "the first copy")
	receive(t, b.k.Synced(), "the second copy")
	c.guide = a.k

	var writing sync.WaitGroup
	writers, stop := context.WithCancel(context.Background())
	defer writing.Wait()
	defer stop()
	for i := range churnUsers {
		writing.Go(func() { c.write(writers, t, i) })
	}
	goesOn := func(when string) {
		seen := c.commits.Load()
		eventually(t, "the writers continue "+when, func() bool { return c.commits.Load() > seen+50 })
	}
	goesOn("at the start")

	var kills, leaders, expired, clients int
	faults := []func(round int){
		func(round int) { // the client of a cache dies, and another one begins
			if last != nil {
				last.x.way.partition()
				last.end()
				last.x.c.Close()
			}
			clients++
			x := s.contender(fmt.Sprint("client ", clients))
			x.way.delay(3 * time.Millisecond) // so that nodes change while they are read
			last = follow(t, fmt.Sprint("the cache of client ", clients), all, x, 0)
			receive(t, last.k.Synced(), "the copy of a new client")
		},
		func(int) { // sessions end, with their ephemeral nodes
			a.expire()
			expired++
			for i := 0; i < churnUsers; i += 5 {
				s.link(fmt.Sprint("writer ", i)).expire(c.sessions[i].Load())
				expired++
			}
		},
		func(int) { // a Run ends, and another one continues
			b.halt()
			goesOn("without a Run")
			b.run()
		},
		func(int) { // a loop over the events begins, and the session ends
			b.read(all, 50*time.Millisecond)
			b.expire()
			expired++
		},
		func(round int) { a.x.moveTo(round % 3) }, // the connection breaks
	}
	var lasted, still time.Duration // of the churn, and of that without any server
	nodes, before := 0, a.x.way.calls()
	for round := range rounds {
		began, seen := time.Now(), c.changes.Load()
		victim := e.leader(t)
		if round%2 == 0 {
			victim = e.followers(t)[round/2%2]
		} else {
			leaders++
		}
		a.x.moveTo(slices.Index(e.All(), victim))
		time.Sleep(took / 5)
		from := time.Now()
		victim.Kill()
		kills++
		goesOn("without a server")
		still += time.Since(from)
		restart(t, victim)
		for i, fault := range faults {
			if i%rounds == round%len(faults) {
				fault(round)
				goesOn("after a fault")
			}
		}
		time.Sleep(max(0, took*3/5-time.Since(began)))
		// Then nothing breaks for a time: what is missed is not found by reading again.
		armed := func() (all []int) {
			for _, f := range followers() {
				all = append(all, f.arms())
			}
			return all
		}
		var arms []int
		var base int64
		eventually(t, "nothing breaks", func() bool {
			arms, base = armed(), c.changes.Load()
			time.Sleep(max(took*2/5, took-time.Since(began)))
			return slices.Equal(armed(), arms)
		})
		lasted += time.Since(began)
		calm := c.changes.Load() - base
		nodes = c.check(t, fmt.Sprintf("round %d", round), followers()...)
		for i, n := range armed() {
			if n > 0 && n == arms[i] {
				followers()[i].steady += calm
			}
		}
		if large > 0 {
			t.Logf("round %d: %d changes, %d of them after the last fault, %d nodes", round, c.changes.Load()-seen, calm, nodes)
		}
	}
	stop()
	writing.Wait()
	if d := c.compareServers(); d != "" {
		t.Error(d)
	}
	nodes = c.check(t, "at the end", followers()...) // the writers' ephemeral nodes are gone
	requests := a.x.way.calls() - before

	for kind := range c.done {
		if c.done[kind].Load() == 0 {
			t.Errorf("no commit of kind %d: not tested", kind)
		}
	}
	if clients == 0 || expired == 0 || nodes < 10 || a.steady < 10 || last.steady < 10 {
		t.Errorf("%d clients, %d sessions ended, %d nodes at the end, %d and %d changes followed without a fault: this tested nothing",
			clients, expired, nodes, a.steady, last.steady)
	}
	t.Logf("figure: caches under churn for %v: %d changes of nodes, %.0f/s, in %d commits (%d creations, %d changes, %d deletions, %d recreations, %d of whole subtrees); %d servers killed, of them %d leaders (%v until the writers continued), %d sessions ended, %d clients; all copies and events equal the tree of %d nodes at %d points",
		lasted.Round(time.Millisecond), c.changes.Load(), float64(c.changes.Load())/lasted.Seconds(), c.commits.Load(),
		c.done[aCreation].Load(), c.done[aChange].Load(), c.done[aDeletion].Load(), c.done[aRecreation].Load(), c.done[aSubtree].Load(),
		kills, leaders, still.Round(time.Millisecond), expired, clients, nodes, rounds+1)
	t.Logf("figure: the first cache sent %d requests", requests)
	for _, f := range followers() {
		var told []string
		for _, loop := range f.loops {
			loop.Mu.Lock()
			counts, batches := maps.Clone(loop.Counts), loop.Batches
			loop.Mu.Unlock()
			if counts[coord.NodeCreated] == 0 || counts[coord.NodeDeleted] == 0 {
				t.Errorf("%s: a loop was told %v: not tested", f.name, counts)
			}
			told = append(told, fmt.Sprintf("%v in %d batches", counts, batches))
		}
		t.Logf("figure: %s: %d watches of the tree, %d passes, %d changes followed between faults; its loops were told %s",
			f.name, f.arms(), f.passes.Load(), f.steady, strings.Join(told, "; "))
	}
}

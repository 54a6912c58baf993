//go:build linux

package chaos

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-coord/coord/internal/ensemble"
	"github.com/go-coord/coord/internal/zkproxy"
	"github.com/go-coord/coord/internal/zktest"
)

// A fault is one action of the nemesis, which also undoes it.
type fault struct {
	kind string
	// alone: no other fault happens meanwhile, and until every workload has made progress.
	alone bool
	do    func(n *nemesis, r *rand.Rand, about *event) error
}

// The faults of servers happen one after the other, so that a majority is always up. Beside
// them, the faults of clients and their networks happen one after the other too.
var (
	serverFaults = []fault{
		{"leader killed", true, (*nemesis).killLeader},
		{"leader stopped", true, (*nemesis).stopLeader},
		{"rolling restart", true, (*nemesis).rollingRestart},
		{"follower killed", false, (*nemesis).killFollower},
		{"follower stopped", false, (*nemesis).stopFollower},
		{"slow disk", false, (*nemesis).slowDisk},
		{"full disk", false, (*nemesis).fullDisk},
	}
	clientFaults = []fault{
		{"connections cut", false, (*nemesis).cut},
		{"network lost", false, (*nemesis).blackhole},
		{"requests lost", false, (*nemesis).halfOpenUp},
		{"replies lost", false, (*nemesis).halfOpenDown},
		{"slow network", false, (*nemesis).delay},
		{"client stopped", false, (*nemesis).stopClient},
		{"client killed", false, (*nemesis).killClient},
		{"session expired", false, (*nemesis).expire},
		{"connection limit", false, (*nemesis).connectionLimit},
	}
)

// nemesis injects all faults. Their order follows from the seed.
type nemesis struct {
	r      *run
	rec    *recorder
	faults [2][]fault // of the servers, and of the clients

	alone sync.RWMutex // read-locked by faults that may overlap others

	since time.Time // the end of the latest fault of servers; only their goroutine uses it

	mu      sync.Mutex
	counts  map[string]int
	skipped map[string]error // faults that this machine does not allow
}

func newNemesis(r *run, rec *recorder) *nemesis {
	n := &nemesis{r: r, rec: rec, faults: [2][]fault{serverFaults, clientFaults}, counts: make(map[string]int), skipped: make(map[string]error)}
	if ensemble.Elsewhere != nil {
		n.faults = otherFaults()
	}
	return n
}

// rage injects faults until the time is over and every kind has occurred.
func (n *nemesis) rage(ctx context.Context, seed uint64, d time.Duration) error {
	var wg sync.WaitGroup
	errs := make([]error, 2)
	over := time.Now().Add(d)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for i, faults := range n.faults {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(i)))
			if errs[i] = n.round(ctx, r, faults, over); errs[i] != nil {
				cancel()
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (n *nemesis) round(ctx context.Context, r *rand.Rand, faults []fault, over time.Time) error {
	for first := true; first || time.Now().Before(over); first = false {
		order := slices.Clone(faults)
		r.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
		for _, f := range order {
			pause := time.Duration(100+r.IntN(400)) * time.Millisecond
			seed := r.Uint64() // so that the order does not depend on the random numbers that a fault uses
			select {
			case <-time.After(pause):
			case <-ctx.Done():
				return nil
			}
			if !first && time.Now().After(over) {
				return nil
			}
			if n.skipped[f.kind] != nil {
				continue
			}
			if err := n.play(ctx, f, rand.New(rand.NewPCG(seed, 1))); err != nil {
				return fmt.Errorf("%s: %w", f.kind, err)
			}
		}
	}
	return nil
}

// play injects one fault.
func (n *nemesis) play(ctx context.Context, f fault, r *rand.Rand) error {
	if f.alone {
		n.alone.Lock()
		defer n.alone.Unlock()
		if err := n.r.goesOn(ctx, "before it"); err != nil {
			return err
		}
	} else {
		n.alone.RLock()
		defer n.alone.RUnlock()
	}
	if ctx.Err() != nil {
		return nil
	}
	about := n.rec.begin(event{Work: "fault", Op: f.kind})
	err := f.do(n, r, &about)
	n.rec.end(about, "ok", err)
	if err != nil {
		return err
	}
	n.mu.Lock()
	n.counts[f.kind]++
	n.mu.Unlock()
	if f.alone {
		return n.r.goesOn(ctx, "after it")
	}
	return nil
}

// count returns the number of faults of each kind.
func (n *nemesis) count() map[string]int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return maps.Clone(n.counts)
}

func (n *nemesis) ctx() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), limit)
}

func (n *nemesis) leader() (ensemble.Server, error) {
	ctx, cancel := n.ctx()
	defer cancel()
	return n.r.servers().Leader(ctx)
}

// number returns the number of a server, or 0 if it has none.
func number(s ensemble.Server) int64 {
	if s, ok := s.(*zktest.Server); ok {
		return int64(s.ID())
	}
	return 0
}

// follower returns one of the two followers.
func (n *nemesis) follower(r *rand.Rand) (ensemble.Server, error) {
	which := r.IntN(2)
	for _, s := range n.r.e.Servers() {
		if err := n.serves(s); err != nil {
			return nil, err
		}
	}
	ctx, cancel := n.ctx()
	defer cancel()
	followers, err := n.r.servers().Followers(ctx)
	if err != nil {
		return nil, err
	}
	return followers[which], nil
}

// restart kills a server and returns when it serves again.
func (n *nemesis) restart(s ensemble.Server) error {
	zk, ok := s.(*zktest.Server)
	if !ok {
		s.Kill()
		if err := s.Launch(); err != nil {
			return err
		}
		ctx, cancel := n.ctx()
		defer cancel()
		return s.Await(ctx)
	}
	if err := n.rested(zk); err != nil {
		return err
	}
	return n.again(zk)
}

// again is restart without a pause before it.
func (n *nemesis) again(s *zktest.Server) error {
	s.Kill()
	err := s.Launch()
	if err == nil {
		err = n.serves(s)
	}
	n.since = time.Now()
	return err
}

// serves returns when a server serves clients. A server can be locked out: it has accepted
// the epoch of an election that failed, the two others continue with the epoch before it, and
// ZooKeeper's Learner refuses such a leader until the next election. An operator then
// restarts the leader, and so does the nemesis.
func (n *nemesis) serves(s *zktest.Server) error {
	ctx, cancel := n.ctx()
	defer cancel()
	lockedOut := logged(s, "is less than accepted epoch")
	err := until(fmt.Sprintf("server %d serves, or refuses the leader", s.ID()), limit, func() bool {
		_, err := s.Role(ctx)
		return err == nil || lockedOut() || !s.Alive()
	})
	if err != nil {
		return err
	}
	if _, err := s.Role(ctx); err != nil && lockedOut() {
		leader, err := n.leader()
		if err != nil {
			return err
		}
		if err := n.restart(leader); err != nil {
			return err
		}
	}
	return s.Await(ctx)
}

// rested returns when a server has a snapshot that is at least a second younger than the
// latest fault.
//
// When a running server changes its leader, ZooKeeper 3.8.0 can omit changes from its log, or
// write some there that were never committed (ZOOKEEPER-4712 is one way). The tree in memory
// is right; but if the server is killed before it has made a snapshot, it comes back with a
// tree that differs from the others permanently: with deleted nodes that block the clients
// connected to it. No client can compensate for that, and this test is not about it.
//
// A server can also hang between two leaders: it serves nobody and makes no snapshot until an
// operator restarts it, and so does the nemesis.
func (n *nemesis) rested(s *zktest.Server) error {
	ctx, cancel := n.ctx()
	defer cancel()
	served, hung := time.Now(), false
	err := until(fmt.Sprintf("server %d makes a snapshot", s.ID()), limit, func() bool {
		if _, err := s.Role(ctx); err == nil {
			served = time.Now()
		}
		hung = time.Since(served) > hangs
		files, err := filepath.Glob(filepath.Join(s.DataDir(), "version-2", "snapshot.*[0-9a-f]")) // not a snapshot.*.tmp
		return hung || err == nil && slices.ContainsFunc(files, func(file string) bool {
			info, err := os.Stat(file)
			return err == nil && info.ModTime().After(n.since.Add(time.Second))
		})
	})
	if err != nil || !hung {
		return err
	}
	if err := n.again(s); err != nil {
		return err
	}
	return n.rested(s)
}

func (n *nemesis) killLeader(_ *rand.Rand, about *event) error {
	s, err := n.leader()
	if err != nil {
		return err
	}
	about.Num = number(s)
	return n.restart(s)
}

func (n *nemesis) killFollower(r *rand.Rand, about *event) error {
	s, err := n.follower(r)
	if err != nil {
		return err
	}
	about.Num = number(s)
	return n.restart(s)
}

// stop pauses a server and resumes it. A leader of etcd that was paused for about as long as a session
// lasts can end this session although it is renewed at the next leader (see the documentation of
// package etcd), so that its holds overlap with the next ones. So d is shorter there, and what a pause
// that took longer may have ended is excused.
func (n *nemesis) stop(s ensemble.Server, about *event, d time.Duration) error {
	about.Num = number(s)
	began := time.Now()
	if err := s.Pause(); err != nil {
		return err
	}
	time.Sleep(d) // the length of the fault
	if n.r.other != nil && time.Since(began) > longestPause+sessionTimeout/8 {
		for _, a := range n.r.actors {
			n.rec.say(event{Kind: "expire", Work: "fault", Session: a.session()})
		}
	}
	if err := s.Resume(); err != nil {
		return err
	}
	ctx, cancel := n.ctx()
	defer cancel()
	err := s.Await(ctx)
	n.since = time.Now()
	return err
}

// stopLeader pauses the leader for so long that the others elect another one, and that its
// clients have to connect elsewhere. When it resumes it still believes that it leads.
func (n *nemesis) stopLeader(r *rand.Rand, about *event) error {
	s, err := n.leader()
	if err != nil {
		return err
	}
	d := syncLimit*tick + time.Duration(1000+r.IntN(2000))*time.Millisecond
	if n.r.other != nil {
		d = longestPause - time.Duration(r.IntN(500))*time.Millisecond
	}
	return n.stop(s, about, d)
}

func (n *nemesis) stopFollower(r *rand.Rand, about *event) error {
	s, err := n.follower(r)
	if err != nil {
		return err
	}
	return n.stop(s, about, time.Duration(500+r.IntN(3000))*time.Millisecond)
}

func (n *nemesis) rollingRestart(r *rand.Rand, _ *event) error {
	servers := n.r.servers().All()
	for _, i := range r.Perm(len(servers)) {
		if err := n.restart(servers[i]); err != nil {
			return err
		}
	}
	return nil
}

// logged returns a function that reports whether a server has logged a text since.
func logged(s *zktest.Server, text string) func() bool {
	size := int64(0)
	if info, err := os.Stat(s.LogFile()); err == nil {
		size = info.Size()
	}
	return func() bool {
		b, err := os.ReadFile(s.LogFile())
		return err == nil && int64(len(b)) > size && strings.Contains(string(b[size:]), text)
	}
}

// slowDisk makes each flush of one server's log slow.
func (n *nemesis) slowDisk(r *rand.Rand, about *event) error {
	s := n.r.e.Servers()[r.IntN(3)]
	about.Num = int64(s.ID())
	seen := logged(s, "fsync-ing the write ahead log")
	if err := n.r.brake.slow(s.ID(), slowFlush); err != nil {
		return err
	}
	time.Sleep(time.Duration(1500+r.IntN(1500)) * time.Millisecond) // the length of the fault
	err := until("the server reports a slow disk", limit, seen)
	return errors.Join(err, n.r.brake.slow(s.ID(), 0))
}

// fullDisk leaves no space on one server's disk. Such a server starts to follow the leader
// again and again, and its tree cannot be trusted any more (see rested). An operator makes
// room, deletes its data, and lets it copy everything from the leader.
func (n *nemesis) fullDisk(r *rand.Rand, about *event) error {
	s := n.r.e.Servers()[r.IntN(3)]
	about.Num = int64(s.ID())
	if err := n.rested(s); err != nil {
		return err
	}
	seen := logged(s, "No space left on device")
	if err := n.r.disks.full(s.ID(), true); err != nil {
		return err
	}
	err := until("the server reports a full disk", limit, seen)
	time.Sleep(time.Duration(500+r.IntN(1000)) * time.Millisecond) // the length of the fault
	s.Kill()
	return errors.Join(err, n.r.disks.full(s.ID(), false), n.r.empty(s), n.again(s))
}

// heal undoes all faults that may not be undone yet.
func (n *nemesis) heal() error {
	for _, a := range n.r.actors {
		a.each(func(p *zkproxy.Proxy) {
			p.Blackhole(false)
			p.SetDelay(0, 0)
			p.Refuse(false)
		})
	}
	if n.r.other != nil {
		return n.healOther()
	}
	for _, s := range n.r.e.Servers() {
		if err := s.Launch(); err != nil {
			return err
		}
	}
	for _, s := range n.r.e.Servers() {
		if err := n.serves(s); err != nil {
			return err
		}
	}
	return nil
}

// until polls a condition that has no signal.
func until(what string, atMost time.Duration, cond func() bool) error {
	for deadline := time.Now().Add(atMost); !cond(); {
		if time.Now().After(deadline) {
			return fmt.Errorf("never happened within %v: %s", atMost, what)
		}
		time.Sleep(10 * time.Millisecond)
	}
	return nil
}

// Package simulation_test simulates the recipes on the memory service, under fake time. In
// TestEveryRecipeInSimulation an arbiter puts all messages of several clients, and faults, in an
// order that a seed decides, so that a seed replays (TestASimulationReplaysExactly says when
// exactly). Beside it are plays of single recipes that take other schedules: the line in every order of
// messages, a transaction whose processes fail at each of their calls, queues without faults, and
// crowds at a semaphore or a double barrier, which also run on a real server.
//
// The faults are lost requests and replies, partitions, short breaks, slow and paused clients,
// expired sessions (also while the client is cut off), canceled calls, closed clients, removed
// empty directories, and nodes that an outsider deletes or writes. The checks are those of the
// recipe: exclusion, growing tokens, a fence that refuses late writes, order, nothing lost,
// nothing early, nothing delivered twice without cause, one item for a key, no waiter forgotten at
// rest, no node left. A test fails if one of the faults, or an event that its scenario names, never
// happened.
//
// The memory service is one server whose reads are linearizable, so no follower lags behind;
// internal/model and internal/chaos have that. Time between messages is not realistic. One
// message is delivered at a time, so data races are for other tests.
//
//	go test -v ./internal/simulation                # 3,000 schedules, with -race 500
//	COORD_LONG=1 go test -v -timeout 1h ./internal/simulation    # 100,000
//	COORD_SEED=17 go test -v -run TestEveryRecipeInSimulation/mutex ./internal/simulation
//	go test -run TestTheLineInEveryOrderOfMessages ./internal/simulation -sim.seed 17
//
// COORD_SEED plays one seed of TestEveryRecipeInSimulation and prints each step; -sim.seed plays
// one seed of the other random plays. -sim.trace prints each seed before it is played.
package simulation_test

import (
	"errors"
	"flag"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend/memory"
	"github.com/go-coord/coord/internal/coordtest"
)

func TestMain(m *testing.M) { coordtest.Main(m) }

var simTrace = flag.Bool("sim.trace", false, "print the seed of each schedule before it is played: a deadlock names none")

var simSeed = flag.Uint64("sim.seed", 0, "run only this seed of the simulation")

// simRange returns the seeds that a random simulation plays, and whether they are
// enough for everything that can happen in it. Under the race detector, which makes a
// schedule take ten times as long, a tenth is played: test.sh plays all without it.
func simRange(short, most uint64) (first, seeds uint64, enough bool) {
	switch {
	case *simSeed != 0:
		return *simSeed, 1, false
	case coordtest.Long():
		return 1, most, true
	case coordtest.Race:
		return 1, short / 10, false
	}
	return 1, short, true
}

// simulation is what all simulations share: a store, the draws of actors, and checks of
// holds. Each actor draws from numbers of its own, so the draws of one do not shift
// those of another.
type simulation struct {
	t    *testing.T
	seed uint64
	st   *memory.Store

	mu      sync.Mutex
	token   int64                 // the highest granted
	holding map[*coord.Hold]bool  // exclusive holds whose holder has not let go yet
	outside map[string]bool       // paths of nodes that an outsider deleted
	deleted map[string]int64      // their Czxids, where they are known
	nodes   map[*coord.Hold]int64 // the Czxids of their nodes when they were given back
	early   map[int64]bool        // sessions that were ended while their client could not know
	count   map[string]int        // what happened
	links   []*memory.Link        // of the clients
}

func (x *simulation) rng(actor uint64) *rand.Rand { return rand.New(rand.NewPCG(x.seed, actor)) }

func (x *simulation) note(what string) {
	x.mu.Lock()
	x.count[what]++
	x.mu.Unlock()
}

// void reports whether a hold need not exclude others: it was lost before its holder reported
// it, or an outsider deleted its node, which can have happened before the reply to the grant.
// Then the holder learns of it soon, and until then fence and guard refuse its writes.
func (x *simulation) void(h *coord.Hold) bool {
	return h.Err() != nil || x.outside[h.Path()] || x.early[h.Session()]
}

// grows checks that tokens do.
func (x *simulation) grows(h *coord.Hold) {
	if x.void(h) {
		return
	}
	if h.Token() <= x.token {
		x.t.Errorf("seed %d: token %d after %d", x.seed, h.Token(), x.token)
	}
	x.token = max(x.token, h.Token())
}

// conflict checks that the earlier holders have learned of their end.
func (x *simulation) conflict(h *coord.Hold, others map[*coord.Hold]bool) {
	if x.void(h) {
		return
	}
	for other := range others {
		if !x.void(other) {
			x.t.Errorf("seed %d: %s granted while %s holds", x.seed, h.Path(), other.Path())
		}
	}
}

func (x *simulation) ended(h *coord.Hold) {
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.holding, h)
	if errors.Is(h.Err(), coord.ErrLost) {
		x.count["loss"]++
	}
}

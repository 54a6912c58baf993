package recipetest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-coord/coord"
)

// crew is the members of one Shards, and what they own.
type crew struct {
	w *world
	n int

	mu      sync.Mutex
	owners  []*crewMember // of each shard
	tokens  []int64       // the highest of each shard
	changed chan struct{}
	grants  int
}

type crewMember struct {
	x      *crew
	id     string
	c      *coord.Client
	s      *coord.Shards
	stop   context.CancelFunc
	done   chan struct{}
	err    error
	shards map[int]*coord.Shard
	old    bool // another process has its ID
}

func newCrew(w *world, n int) *crew {
	return &crew{w: w, n: n, owners: make([]*crewMember, n), tokens: make([]int64, n), changed: make(chan struct{})}
}

// start starts a member on a client of its own.
func (x *crew) start(id string, o coord.ShardsOptions) *crewMember {
	x.w.T.Helper()
	return x.startOn(x.w.Open(id, nil), id, o)
}

func (x *crew) startOn(c *coord.Client, id string, o coord.ShardsOptions) *crewMember {
	o.ID = id
	ctx, stop := context.WithCancel(context.Background())
	m := &crewMember{x: x, id: id, c: c, s: coord.NewShards(c, "/s", x.n, &o), stop: stop, done: make(chan struct{}), shards: make(map[int]*coord.Shard)}
	x.w.T.Cleanup(stop)
	go func() {
		defer close(m.done)
		m.err = m.s.Run(ctx, m.work)
	}()
	return m
}

// work owns a shard until it is to move.
func (m *crewMember) work(ctx context.Context, sh *coord.Shard) error {
	m.x.own(m, sh)
	<-ctx.Done()
	m.x.disown(m, sh)
	return nil
}

// own checks that the shard has no other owner whose hold stands.
func (x *crew) own(m *crewMember, sh *coord.Shard) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if other := x.owners[sh.Index]; other != nil && !other.old && other.shards[sh.Index].Err() == nil && sh.Err() == nil {
		x.w.T.Errorf("shard %d: %s owns it, and so does %s", sh.Index, m.id, other.id)
	}
	if sh.Err() == nil && sh.Token() <= x.tokens[sh.Index] {
		x.w.T.Errorf("shard %d: token %d after %d", sh.Index, sh.Token(), x.tokens[sh.Index])
	}
	x.tokens[sh.Index] = max(x.tokens[sh.Index], sh.Token())
	x.owners[sh.Index] = m
	m.shards[sh.Index] = sh
	x.grants++
	x.change()
}

// replaced records that another process takes the shards of a member, which need not know.
func (x *crew) replaced(m *crewMember) {
	x.mu.Lock()
	defer x.mu.Unlock()
	m.old = true
}

func (x *crew) disown(m *crewMember, sh *coord.Shard) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.owners[sh.Index] == m && m.shards[sh.Index] == sh {
		x.owners[sh.Index] = nil
	}
	if m.shards[sh.Index] == sh {
		delete(m.shards, sh.Index)
	}
	x.change()
}

func (x *crew) change() {
	close(x.changed)
	x.changed = make(chan struct{})
}

// loads waits until each member owns as many shards as want says, and nothing is missing.
func (x *crew) loads(want map[*crewMember]int) {
	x.w.T.Helper()
	timeout := time.After(time.Minute)
	for {
		x.mu.Lock()
		changed := x.changed
		have := make(map[*crewMember]int)
		for _, m := range x.owners {
			have[m]++
		}
		x.mu.Unlock()
		same := len(have) == len(want)
		for m, n := range want {
			same = same && have[m] == n
		}
		if same {
			return
		}
		select {
		case <-changed:
		case <-timeout:
			text := ""
			for m, n := range have {
				id := "nobody"
				if m != nil {
					id = m.id
				}
				text += fmt.Sprint(" ", id, ":", n)
			}
			x.w.T.Fatalf("the shards are owned by%s", text)
		}
	}
}

// ids returns the ids of the owners.
func (x *crew) ids() []string {
	x.mu.Lock()
	defer x.mu.Unlock()
	var ids []string
	for _, m := range x.owners {
		ids = append(ids, m.id)
	}
	return ids
}

func (x *crew) granted() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.grants
}

// leave stops a member, and returns what Run does.
func (m *crewMember) leave() error {
	m.x.w.T.Helper()
	m.stop()
	return m.wait()
}

func (m *crewMember) wait() error {
	m.x.w.T.Helper()
	select {
	case <-m.done:
	case <-time.After(time.Minute):
		m.x.w.T.Fatal(m.id, " never ends")
	}
	return m.err
}

func moves(a, b []string) int {
	n := 0
	for i := range a {
		if a[i] != b[i] {
			n++
		}
	}
	return n
}

// shardsTests are tests of Shards on each service.
type shardsTests struct{ Services }

func (on shardsTests) EachShardHasOneOwner(t *testing.T) {
	on.all(t, func(w *world) {
		x := newCrew(w, 12)
		a := x.start("a", coord.ShardsOptions{})
		x.loads(map[*crewMember]int{a: 12})
		b := x.start("b", coord.ShardsOptions{})
		x.loads(map[*crewMember]int{a: 6, b: 6})
		c := x.start("c", coord.ShardsOptions{Weight: 2})
		x.loads(map[*crewMember]int{a: 3, b: 3, c: 6})
		before := x.ids()
		if err := b.leave(); err != nil {
			w.T.Error(err)
		}
		x.loads(map[*crewMember]int{a: 4, c: 8})
		after := x.ids()
		b = x.start("b", coord.ShardsOptions{})
		x.loads(map[*crewMember]int{a: 3, b: 3, c: 6})
		if again := x.ids(); !slices.Equal(again, before) {
			w.T.Errorf("a member that leaves and comes back: %v, want %v (%v meanwhile)", again, before, after)
		}
		owners, err := a.s.Owners(context.Background())
		if err != nil {
			w.T.Fatal(err)
		}
		for i, id := range x.ids() {
			if owners[i].ID != id || owners[i].Token == 0 {
				w.T.Errorf("shard %d: owner %q with token %d, want %q", i, owners[i].ID, owners[i].Token, id)
			}
		}
		for _, m := range []*crewMember{a, b, c} {
			if err := m.leave(); err != nil {
				w.T.Error(err)
			}
		}
		w.Empty("/s/workers")
		for i := range x.n {
			w.Empty(fmt.Sprint("/s/shards/", i))
		}
	})
}

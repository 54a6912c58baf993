package coord_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend/backendtest"
)

// lossy loses a share of the replies to the requests of one client.
type lossy struct {
	link backendtest.Link

	mu      sync.Mutex
	r       *rand.Rand
	on      bool
	calls   int
	lost    int
	commits int // that were among the lost
}

func (x *lossy) before(_ context.Context, c backendtest.Call) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.on {
		return nil
	}
	x.calls++
	if x.r.IntN(20) == 0 {
		x.lost++
		if c.Op == "commit" {
			x.commits++
		}
		x.link.DropNextReply()
	}
	return nil
}

// crowd is clients that lose one reply in twenty.
func (w *world) crowd(n int) ([]*coord.Client, []*lossy) {
	var clients []*coord.Client
	var faults []*lossy
	for i := range n {
		name := fmt.Sprint("c", i)
		if l, ok := w.Link(name).(interface{ SetLatency(time.Duration) }); ok && w.fake {
			l.SetLatency(time.Millisecond) // or nobody would meet anybody
		}
		x := &lossy{link: w.Link(name), r: rand.New(rand.NewPCG(1, uint64(i)))}
		clients = append(clients, w.open(name, &backendtest.Hooks{Before: x.before}))
		x.mu.Lock()
		x.on = true
		x.mu.Unlock()
		faults = append(faults, x)
	}
	return clients, faults
}

// report prints what happened, and fails a test in which too little did.
func (w *world) report(what string, faults []*lossy, done int, took time.Duration) {
	w.t.Helper()
	calls, lost, commits := 0, 0, 0
	for _, x := range faults {
		x.mu.Lock()
		calls, lost, commits = calls+x.calls, lost+x.lost, commits+x.commits
		x.mu.Unlock()
	}
	w.t.Logf("figure: %s: %d in %v, %.1f requests each, %d replies lost, %d of them of commits",
		what, done, took.Round(time.Millisecond), float64(calls)/float64(done), lost, commits)
	if lost == 0 || commits == 0 {
		w.t.Error("no reply was lost: this tested nothing")
	}
}

// each is how many operations each of a crowd does.
func each(short, full int) int {
	if long() {
		return full
	}
	return short
}

func TestUpdatesOfEightClientsAreExactWhenRepliesAreLost(t *testing.T) {
	onEach(t, func(w *world) {
		clients, faults := w.crowd(8)
		n := each(25, 500)
		start := time.Now()
		var wg sync.WaitGroup
		for _, c := range clients {
			wg.Go(func() {
				v := coord.NewValue[int](c, "/x/v", nil)
				var changed int64
				for range n {
					got, err := v.Update(context.Background(), inc)
					if err != nil {
						w.t.Error(err)
						return
					}
					if got.Mzxid <= changed {
						w.t.Errorf("%+v after %d", got, changed)
					}
					changed = got.Mzxid
				}
			})
		}
		wg.Wait()
		w.report("updates by 8 clients", faults, 8*n, time.Since(start))
		got := getValue(w.t, coord.NewValue[int](w.open("z", nil), "/x/v", nil))
		if got.Value != 8*n || got.Version != int32(8*n-1) {
			w.t.Errorf("got %+v, want %d", got, 8*n)
		}
	})
}

func TestAdditionsOfEightClientsAreExactWhenRepliesAreLost(t *testing.T) {
	onEach(t, func(w *world) {
		clients, faults := w.crowd(8)
		n := each(50, 1000)
		start := time.Now()
		var wg sync.WaitGroup
		for _, c := range clients {
			wg.Go(func() {
				counter := coord.NewCounter(c, "/n", nil)
				last := int64(0)
				for range n {
					got, err := counter.Add(context.Background(), 1)
					if err != nil {
						w.t.Error(err)
						return
					}
					if got <= last {
						w.t.Errorf("%d after %d", got, last)
					}
					last = got
				}
			})
		}
		wg.Wait()
		w.report("additions by 8 clients", faults, 8*n, time.Since(start))
		if data, stat := w.nodeData("/n"); data != fmt.Sprint(8*n) || stat.Version != int32(8*n-1) {
			w.t.Errorf("the node holds %s, version %d, want %d", data, stat.Version, 8*n)
		}
	})
}

func TestBlocksReservedByEightClientsAreDisjointWhenRepliesAreLost(t *testing.T) {
	onEach(t, func(w *world) {
		clients, faults := w.crowd(8)
		n := each(25, 500)
		type block struct{ first, count int64 }
		var mu sync.Mutex
		var blocks []block
		start := time.Now()
		var wg sync.WaitGroup
		for i, c := range clients {
			wg.Go(func() {
				counter := coord.NewCounter(c, "/ids", nil)
				r := rand.New(rand.NewPCG(2, uint64(i)))
				for range n {
					b := block{count: 1 + r.Int64N(100)}
					var err error
					if b.first, err = counter.Reserve(context.Background(), b.count); err != nil {
						w.t.Error(err)
						return
					}
					mu.Lock()
					blocks = append(blocks, b)
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		w.report("blocks reserved by 8 clients", faults, 8*n, time.Since(start))
		slices.SortFunc(blocks, func(a, b block) int { return int(a.first - b.first) })
		next := int64(1)
		for _, b := range blocks {
			if b.first != next {
				w.t.Fatalf("a block begins at %d, the one before ends at %d", b.first, next-1)
			}
			next += b.count
		}
		if data, _ := w.nodeData("/ids"); len(blocks) != 8*n || data != fmt.Sprint(next-1) {
			w.t.Errorf("%d blocks, the node holds %s, want %d", len(blocks), data, next-1)
		}
	})
}

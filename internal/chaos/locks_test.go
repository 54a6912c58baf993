//go:build linux

package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-coord/coord"
)

const (
	homePath     = "/locks/home"     // a lock for each place
	togetherPath = "/locks/together" // the locks of LockAll

	togetherLocks = 3
)

func newMutexes(c *coord.Client, path string, n int, keep time.Duration) (list []*coord.Mutex) {
	for i := range n {
		list = append(list, coord.NewMutex(c, fmt.Sprint(path, "/", i), &coord.MutexOptions{Keep: keep}))
	}
	return list
}

// hold passes the time of a hold, which is long now and then.
func (w *worker) hold(ctx context.Context) {
	mean := 4 * time.Millisecond
	if w.rand.IntN(40) == 0 {
		mean = 400 * time.Millisecond
	}
	w.pause(ctx, mean)
}

// home locks the lock of the client's place again and again, and keeps it. Now and then it locks
// that of another place, whose client has to give it up.
func (x *client) home(ctx context.Context, w *worker) {
	const work = "keep"
	locks := newMutexes(x.c, homePath, clients, time.Second)
	w.loop(ctx, 80*time.Millisecond, func(ctx context.Context) bool {
		i := x.spec.Index
		if w.rand.IntN(40) == 0 {
			i = w.rand.IntN(clients)
		}
		h, id := w.acquire(ctx, event{Work: work, Num: int64(i), Value: keeps}, locks[i].Lock)
		if h == nil {
			return false
		}
		register := fmt.Sprint(work, "-", i)
		w.write(register, h)
		w.hold(ctx)
		w.write(register, h)
		return w.release(ctx, work, h, id)
	})
}

// lockAll acquires some of a few locks by LockAll, or one by one in the order of their paths. Half of
// the processes keep them.
func (x *client) lockAll(ctx context.Context, w *worker) {
	const work = "lockall"
	keep, value := time.Duration(0), ""
	if w.rand.IntN(2) == 0 {
		keep, value = time.Second, keeps
	}
	locks := newMutexes(x.c, togetherPath, togetherLocks, keep)
	w.loop(ctx, 80*time.Millisecond, func(ctx context.Context) bool {
		which := w.rand.Perm(togetherLocks)
		if w.rand.IntN(3) == 0 {
			which = which[:1+w.rand.IntN(togetherLocks-1)]
		}
		slices.Sort(which)
		var events []event
		for _, i := range which {
			events = append(events, event{Work: work, Num: int64(i), Value: value})
		}
		var list []knownHold
		if w.rand.IntN(4) > 0 {
			var lockers []coord.Locker
			for _, i := range which {
				lockers = append(lockers, locks[i])
			}
			list = w.acquireAll(ctx, events, lockers)
		} else {
			for k, i := range which {
				h, id := w.acquire(ctx, events[k], locks[i].Lock)
				if h == nil {
					break
				}
				list = append(list, knownHold{h, id})
			}
		}
		for range 2 {
			for k, l := range list {
				w.write(fmt.Sprint(work, "-", which[k]), l.h)
			}
			w.hold(ctx)
		}
		w.releaseAll(ctx, work, list)
		return len(list) == len(which)
	})
}

// knownHold is a hold and its ID in the history.
type knownHold struct {
	h  *coord.Hold
	id string
}

// acquireAll makes a LockAll. In the history it is an acquisition of each lock. The lockers are in
// the order of their paths.
func (w *worker) acquireAll(ctx context.Context, events []event, lockers []coord.Locker) (list []knownHold) {
	ctx, cancel := context.WithTimeout(ctx, w.patience())
	defer cancel()
	for i := range events {
		events[i].Op = "acquire"
		events[i] = w.x.rec.begin(events[i])
	}
	shuffled := slices.Clone(lockers)
	w.rand.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
	set, err := coord.LockAll(ctx, shuffled...)
	for i := range events {
		if err == nil {
			h := set.Holds()[i]
			list = append(list, knownHold{h, w.grant(&events[i], h)})
		}
		w.end(events[i], err)
	}
	for i, l := range list {
		w.x.watch(events[i].Work, l.h, l.id)
	}
	return list
}

// releaseAll releases the holds at once, as HoldSet.Release does.
func (w *worker) releaseAll(ctx context.Context, work string, list []knownHold) {
	var all sync.WaitGroup
	for _, l := range list {
		all.Go(func() { w.release(ctx, work, l.h, l.id) })
	}
	all.Wait()
}

func TestKeptLocksOfARunHaveOneHolderEach(t *testing.T) {
	processes := onMemory(t, func(ctx context.Context, x *client) {
		var both sync.WaitGroup
		for i := range 2 {
			w := &worker{x: x, rand: rand.New(rand.NewPCG(x.spec.Seed, uint64(i)))}
			both.Go(func() {
				defer w.close()
				x.home(ctx, w)
			})
		}
		both.Wait()
	}, func(context.Context, []*client) {})
	checkLocksOnMemory(t, processes, "keep", 1000)
	n, visits := reused(processes), 0
	for _, c := range callsOf(processes, "keep", "acquire") {
		if c.outcome == "ok" && c.process.name != fmt.Sprintf("client%d.1", c.Num) {
			visits++
		}
	}
	t.Logf("figure: chaos of keep on memory: %d holds reused a kept lock, %d were those of other clients", n, visits)
	if n < 500 || visits < 20 {
		t.Errorf("%d holds reused a kept lock, and %d were those of other clients: want 500 and 20", n, visits)
	}
}

func TestLocksOfLockAllOfARunHaveOneHolderEach(t *testing.T) {
	processes := onMemory(t, func(ctx context.Context, x *client) {
		w := &worker{x: x, rand: rand.New(rand.NewPCG(x.spec.Seed, 0))}
		defer w.close()
		x.lockAll(ctx, w)
	}, func(context.Context, []*client) {})
	checkLocksOnMemory(t, processes, "lockall", 2000) // callers that wait for each other would have fewer
}

package coord_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend/memory"
)

// The hot paths on memory, where nothing but the library costs time. Compare two
// versions with benchstat:
//
//	go test -run '^$' -bench . -benchmem -count 10 . >new.txt
//
// What they cost on ZooKeeper, beside other libraries, is measured by ./bench.

// onStore opens a client on memory for a benchmark.
func onStore(b *testing.B) (context.Context, *coord.Client) {
	b.Helper()
	c, err := coord.Open(b.Context(), memory.New(nil), nil)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { c.Close() })
	return b.Context(), c
}

// repeat measures one caller. Directories are made before.
func repeat(b *testing.B, f func() error) {
	b.Helper()
	if err := f(); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if err := f(); err != nil {
			b.Fatal(err)
		}
	}
}

// takeAndGive acquires a hold and releases it.
func takeAndGive(take func() (*coord.Hold, error)) error {
	h, err := take()
	if err != nil {
		return err
	}
	return h.Release()
}

// The target is 2 µs and 10 allocations for an uncontended cycle.
func BenchmarkMutexOnMemory(b *testing.B) {
	ctx, c := onStore(b)
	m := coord.NewMutex(c, "/locks/a", nil)
	repeat(b, func() error { return takeAndGive(func() (*coord.Hold, error) { return m.Lock(ctx) }) })
}

func BenchmarkTryLockOfAHeldMutex(b *testing.B) {
	ctx, c := onStore(b)
	m := coord.NewMutex(c, "/locks/a", nil)
	h, err := m.Lock(ctx)
	if err != nil {
		b.Fatal(err)
	}
	defer h.Release()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := m.TryLock(ctx); err == nil {
			b.Fatal("locked twice")
		}
	}
}

func BenchmarkContendedMutexOnMemory(b *testing.B) {
	ctx, c := onStore(b)
	m := coord.NewMutex(c, "/locks/a", nil)
	b.ReportAllocs()
	b.SetParallelism(8)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if err := takeAndGive(func() (*coord.Hold, error) { return m.Lock(ctx) }); err != nil {
				b.Error(err)
				return
			}
		}
	})
}

// Clients of one store take turns: each hand-over is between sessions.
func BenchmarkHandOverBetweenClientsOnMemory(b *testing.B) {
	const clients = 8
	st := memory.New(nil)
	var locks []*coord.Mutex
	for range clients {
		c, err := coord.Open(b.Context(), st, nil)
		if err != nil {
			b.Fatal(err)
		}
		defer c.Close()
		locks = append(locks, coord.NewMutex(c, "/locks/a", nil))
	}
	b.ReportAllocs()
	var wg sync.WaitGroup
	turns := make(chan struct{}, b.N)
	for range b.N {
		turns <- struct{}{}
	}
	close(turns)
	b.ResetTimer()
	for _, m := range locks {
		wg.Go(func() {
			for range turns {
				if err := takeAndGive(func() (*coord.Hold, error) { return m.Lock(b.Context()) }); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

func BenchmarkWriterOnMemory(b *testing.B) {
	ctx, c := onStore(b)
	rw := coord.NewRWMutex(c, "/locks/a", nil)
	repeat(b, func() error { return takeAndGive(func() (*coord.Hold, error) { return rw.Lock(ctx) }) })
}

func BenchmarkReaderOnMemory(b *testing.B) {
	ctx, c := onStore(b)
	rw := coord.NewRWMutex(c, "/locks/a", nil)
	repeat(b, func() error { return takeAndGive(func() (*coord.Hold, error) { return rw.RLock(ctx) }) })
}

func BenchmarkSemaphoreOnMemory(b *testing.B) {
	ctx, c := onStore(b)
	s := coord.NewSemaphore(c, "/permits", 3, nil)
	repeat(b, func() error { return takeAndGive(func() (*coord.Hold, error) { return s.Acquire(ctx, 1) }) })
}

func BenchmarkLockAllOnMemory(b *testing.B) {
	ctx, c := onStore(b)
	lockers := []coord.Locker{coord.NewMutex(c, "/locks/a", nil), coord.NewMutex(c, "/locks/b", nil), coord.NewMutex(c, "/locks/c", nil)}
	repeat(b, func() error {
		h, err := coord.LockAll(ctx, lockers...)
		if err != nil {
			return err
		}
		return h.Release()
	})
}

func BenchmarkElectionOnMemory(b *testing.B) {
	ctx, c := onStore(b)
	e := coord.NewElection(c, "/election", &coord.ElectionOptions{ID: "a"})
	repeat(b, func() error {
		t, err := e.Campaign(ctx)
		if err != nil {
			return err
		}
		return t.Release()
	})
}

func BenchmarkBarrierOnMemory(b *testing.B) {
	ctx, c := onStore(b)
	bar := coord.NewBarrier(c, "/barrier", nil)
	repeat(b, func() error {
		if err := bar.Set(ctx); err != nil {
			return err
		}
		return bar.Remove(ctx)
	})
}

func BenchmarkDoubleBarrierOnMemory(b *testing.B) {
	ctx, c := onStore(b)
	d := coord.NewDoubleBarrier(c, "/rounds", 1, nil)
	repeat(b, func() error {
		e, err := d.Enter(ctx)
		if err != nil {
			return err
		}
		return e.Leave(ctx)
	})
}

// A run that is asked for: the request, the claim, the call and the outcome.
func BenchmarkScheduleOnMemory(b *testing.B) {
	ctx, c := onStore(b)
	s := coord.NewSchedule(c, "/jobs", coord.Every(100*365*24*time.Hour), nil)
	running, stop := context.WithCancel(ctx)
	called, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- s.Run(running, func(context.Context, *coord.Run) error {
			called <- struct{}{}
			return nil
		})
	}()
	repeat(b, func() error {
		if _, err := s.RunNow(ctx); err != nil {
			return err
		}
		select {
		case <-called:
			return nil
		case err := <-ended:
			ended <- err
			return fmt.Errorf("ended: %w", err)
		}
	})
	stop()
	if err := <-ended; err != nil {
		b.Error(err)
	}
}

// textQueue is a queue at /jobs with some items in it.
func textQueue(b *testing.B, c *coord.Client, items, prefetch int) *coord.Queue[string] {
	b.Helper()
	q := coord.NewQueue(c, "/jobs", &coord.QueueOptions[string]{Codec: coord.Text(), Prefetch: prefetch})
	if _, err := q.PutAll(b.Context(), slices.Repeat([]string{"job"}, items)...); err != nil {
		b.Fatal(err)
	}
	return q
}

func BenchmarkQueuePutOnMemory(b *testing.B) {
	ctx, c := onStore(b)
	q := textQueue(b, c, 1, 0)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := q.Put(ctx, "job"); err != nil {
			b.Fatal(err)
		}
	}
}

// One operation is a batch of 100 items.
func BenchmarkQueuePutAllOnMemory(b *testing.B) {
	ctx, c := onStore(b)
	q := textQueue(b, c, 1, 0)
	batch := slices.Repeat([]string{"job"}, 100)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := q.PutAll(ctx, batch...); err != nil {
			b.Fatal(err)
		}
	}
}

// One operation is an item that is put, taken and acknowledged, with others in the
// queue.
func BenchmarkQueueCycleOnMemory(b *testing.B) {
	for _, items := range []int{0, 100, 1000} {
		b.Run(fmt.Sprint(items, "-items"), func(b *testing.B) {
			ctx, c := onStore(b)
			q := textQueue(b, c, items, 0)
			repeat(b, func() error {
				if _, err := q.Put(ctx, "job"); err != nil {
					return err
				}
				it, err := q.Take(ctx)
				if err != nil {
					return err
				}
				return it.Ack()
			})
		})
	}
}

// One operation is an item that is taken with others and acknowledged.
func BenchmarkQueueTakeWithPrefetchOnMemory(b *testing.B) {
	ctx, c := onStore(b)
	q := textQueue(b, c, b.N, 64)
	b.ReportAllocs()
	b.ResetTimer()
	n := 0
	for it, err := range q.All(ctx) {
		if err != nil {
			b.Fatal(err)
		}
		if err := it.Ack(); err != nil {
			b.Fatal(err)
		}
		if n++; n == b.N {
			break
		}
	}
}

func BenchmarkQueuePopOnMemory(b *testing.B) {
	ctx, c := onStore(b)
	q := textQueue(b, c, 0, 0)
	repeat(b, func() error {
		if _, err := q.Put(ctx, "job"); err != nil {
			return err
		}
		_, err := q.Pop(ctx)
		return err
	})
}

func BenchmarkTxnOnMemory(b *testing.B) {
	ctx, c := onStore(b)
	h, err := coord.NewMutex(c, "/locks/a", nil).Lock(ctx)
	if err != nil {
		b.Fatal(err)
	}
	defer h.Release()
	v := coord.NewValue(c, "/value", &coord.ValueOptions[string]{Codec: coord.Text()})
	if _, err := v.Set(ctx, "a"); err != nil {
		b.Fatal(err)
	}
	data := []byte("b")
	repeat(b, func() error {
		_, err := coord.NewTxn(c).Under(h.Guard()).Set("/value", data).Commit(ctx)
		return err
	})
}

func BenchmarkTwoPhaseCommitOnMemory(b *testing.B) {
	for _, sites := range []int{1, 5} {
		b.Run(fmt.Sprint(sites, "-sites"), func(b *testing.B) {
			ctx, c := onStore(b)
			names := serveSites(ctx, b, c, sites)
			co := coord.NewCoordinator(c, "/tx", &coord.CoordinatorOptions[string]{Codec: coord.Text()})
			n := 0
			repeat(b, func() error {
				n++
				d, err := co.Propose(ctx, coord.Proposal[string]{ID: fmt.Sprint("t", n), Sites: names, Payload: "p"})
				if err == nil && !d.Commit {
					err = fmt.Errorf("aborted: %s", d.Reason)
				}
				return err
			})
		})
	}
}

// serveSites serves sites that vote yes until the benchmark ends, and returns their names when
// all of them can be proposed to.
func serveSites(ctx context.Context, b *testing.B, c *coord.Client, n int) []string {
	b.Helper()
	yes := func(context.Context, coord.Branch[string]) error { return nil }
	life, cancel := context.WithCancel(ctx)
	var serving sync.WaitGroup
	b.Cleanup(func() {
		cancel()
		serving.Wait()
	})
	var names []string
	for i := range n {
		name := fmt.Sprint("site-", i)
		names = append(names, name)
		p := coord.NewParticipant(c, "/tx", name, coord.Handler[string]{Prepare: yes, Commit: yes, Abort: yes, Codec: coord.Text()})
		serving.Go(func() {
			if err := p.Serve(life); life.Err() == nil {
				b.Error(err)
			}
		})
	}
	s, err := c.Session(ctx)
	if err != nil {
		b.Fatal(err)
	}
	for _, name := range names {
		for { // its node is there while it is served
			if _, err := s.Exists(ctx, "/tx/present/"+name, nil); err == nil {
				break
			}
		}
	}
	return names
}

func BenchmarkGroupJoinOnMemory(b *testing.B) {
	ctx, c := onStore(b)
	g := coord.NewGroup(c, "/members", &coord.GroupOptions[string]{Codec: coord.Text()})
	repeat(b, func() error {
		m, err := g.Join(ctx, "me", "address")
		if err != nil {
			return err
		}
		return m.Leave()
	})
}

func BenchmarkValueOnMemory(b *testing.B) {
	ctx, c := onStore(b)
	v := coord.NewValue(c, "/value", &coord.ValueOptions[string]{Codec: coord.Text()})
	if _, err := v.Set(ctx, "a"); err != nil {
		b.Fatal(err)
	}
	for name, f := range map[string]func() error{
		"Get": func() error { _, err := v.Get(ctx); return err },
		"Set": func() error { _, err := v.Set(ctx, "b"); return err },
		"Update": func() error {
			_, err := v.Update(ctx, func(old string) (string, error) { return old, nil })
			return err
		},
	} {
		b.Run(name, func(b *testing.B) { repeat(b, f) })
	}
}

func BenchmarkCounterOnMemory(b *testing.B) {
	ctx, c := onStore(b)
	n := coord.NewCounter(c, "/counter")
	for name, f := range map[string]func() error{
		"Get": func() error { _, err := n.Get(ctx); return err },
		"Add": func() error { _, err := n.Add(ctx, 1); return err },
	} {
		b.Run(name, func(b *testing.B) { repeat(b, f) })
	}
}

func BenchmarkCacheGet(b *testing.B) {
	ctx, c := onStore(b)
	v := coord.NewValue(c, "/config/a", &coord.ValueOptions[string]{Codec: coord.Text()})
	if _, err := v.Set(ctx, "a"); err != nil {
		b.Fatal(err)
	}
	life, cancel := context.WithCancel(ctx)
	cache := coord.NewCache(c, "/config", nil)
	ended := make(chan error, 1)
	go func() { ended <- cache.Run(life) }()
	defer func() {
		cancel()
		<-ended
	}()
	<-cache.Synced()
	repeat(b, func() error {
		if _, ok := cache.Get("/config/a"); !ok {
			return fmt.Errorf("not in the cache")
		}
		return nil
	})
}

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/go-coord/coord"
)

const (
	// together is the number of items that are claimed and acknowledged at a time: the most
	// that the library puts into one commit.
	together = 128

	whatBatches = "items in batches"
)

// queueGroup moves items through queues of coord: with growing numbers of waiting items, put
// one by one and in batches.
func queueGroup(e *env, depths, batches []int, span time.Duration) *group {
	g := &group{
		name: "queues",
		warm: 1,
		about: "Items of 100 bytes through one client. A cycle is Put, Take and Ack of one item, with that many others in the queue. " +
			"For items put in batches the times are those of a PutAll; the other figures are per item. " +
			fmt.Sprintf("Items in batches are put by PutAll and taken with a prefetch of %d, as many Acks at a time.", together),
		shown: []metric{mRate, mP50, mP99, mPackets},
	}
	add := func(what, who string, cost time.Duration, run func(ctx context.Context) (sample, error)) *cell {
		return g.add(what, who, onZooKeeper, span+cost, func(ctx context.Context) (sample, error) {
			return run(e.metered(ctx, onZooKeeper))
		})
	}
	add(whatPairs, byRaw, 0, func(ctx context.Context) (sample, error) { return e.rawPairs(ctx, 1, span) }).at("callers", 1)
	for _, depth := range depths {
		var filled filledQueue
		add("cycle of an item", byCoord, 200*time.Millisecond, func(ctx context.Context) (sample, error) {
			q, err := filled.get(ctx, e, depth)
			if err != nil {
				return nil, err
			}
			x := consuming(func(ctx context.Context) (string, error) { return q.Put(ctx, payload) }, &q.Consumer)
			if err := x.cycle(ctx); err != nil {
				return nil, err
			}
			return hammer(ctx, span, []step{x.cycle})
		}).at("items", float64(depth))
	}
	for _, batch := range batches {
		add("put", byCoord, 500*time.Millisecond, func(ctx context.Context) (sample, error) { return e.puts(ctx, batch, span) }).at("items a batch", float64(batch))
	}
	for _, batch := range batches {
		add(whatBatches, byCoord, 500*time.Millisecond, func(ctx context.Context) (sample, error) { return e.batches(ctx, batch, span) }).at("items a batch", float64(batch))
	}
	return g
}

// A filledQueue is filled once for all rounds.
type filledQueue struct {
	once sync.Once
	q    *coord.Queue[string]
	err  error
}

func (f *filledQueue) get(ctx context.Context, e *env, depth int) (*coord.Queue[string], error) {
	f.once.Do(func() {
		c, err := e.direct.client(ctx)
		if err != nil {
			f.err = err
			return
		}
		f.q = coord.NewQueue(c, e.path(), &coord.QueueOptions[string]{Codec: coord.Text()})
		_, f.err = f.q.PutAll(ctx, slices.Repeat([]string{payload}, depth)...)
	})
	return f.q, f.err
}

// puts puts items in batches and takes no items. The rate counts items.
func (e *env) puts(ctx context.Context, batch int, span time.Duration) (sample, error) {
	c, err := e.direct.client(ctx)
	if err != nil {
		return nil, err
	}
	q := coord.NewQueue(c, e.path(), &coord.QueueOptions[string]{Codec: coord.Text()})
	vs := slices.Repeat([]string{payload}, batch)
	put := func(ctx context.Context) error { _, err := q.PutAll(ctx, vs...); return err }
	if err := put(ctx); err != nil {
		return nil, err
	}
	s, err := hammer(ctx, span, []step{put})
	if err != nil {
		return nil, err
	}
	_, err = q.Purge(ctx)
	return s.perItem(batch), err
}

// batches puts items in batches and takes them concurrently.
func (e *env) batches(ctx context.Context, batch int, span time.Duration) (sample, error) {
	c, err := e.direct.client(ctx)
	if err != nil {
		return nil, err
	}
	q := coord.NewQueue(c, e.path(), &coord.QueueOptions[string]{Codec: coord.Text(), Prefetch: together})
	vs := slices.Repeat([]string{payload}, batch)
	if _, err := q.PutAll(ctx, payload); err != nil {
		return nil, err
	}
	if it, err := q.Take(ctx); err != nil {
		return nil, err
	} else if err := it.Ack(); err != nil {
		return nil, err
	}
	const (
		ahead  = 1_000 // the most items that are put and not taken yet
		acking = together
	)
	var (
		room    = make(chan struct{}, max(ahead/batch, 2))
		total   = make(chan int, 1)
		ending  = make(chan struct{})
		taken   int
		drained = errors.New("drained")
	)
	metered := startMeter(ctx)
	began := time.Now()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	wg.Go(func() {
		defer close(ending)
		n := 0
		defer func() { total <- n }()
		for time.Since(began) < span {
			select {
			case room <- struct{}{}:
			case <-ctx.Done():
				return
			}
			if _, err := q.PutAll(ctx, vs...); err != nil {
				cancel(fmt.Errorf("put: %w", err))
				return
			}
			n += batch
		}
	})
	acks := make(chan struct{}, acking)
	put := -1
	for it, err := range q.All(ctx) {
		if err != nil {
			cancel(err)
			break
		}
		taken++
		if taken%batch == 0 {
			select {
			case <-room:
			default:
			}
		}
		acks <- struct{}{}
		wg.Go(func() {
			defer func() { <-acks }()
			if err := it.Ack(); err != nil {
				cancel(fmt.Errorf("ack: %w", err))
			}
		})
		if put < 0 {
			select {
			case <-ending:
				put = <-total
			default:
			}
		}
		if taken == put {
			cancel(drained)
			break
		}
	}
	wg.Wait()
	took := time.Since(began)
	if err := context.Cause(ctx); err != nil && !errors.Is(err, drained) {
		return nil, err
	}
	s := sample{mRate: float64(taken) / took.Seconds()}
	metered(s, taken)
	return s, nil
}

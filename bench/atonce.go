package main

import (
	"context"
	"sync"
)

// atOnce calls f for 0 to n-1, some of them concurrently, and returns the first error.
func atOnce(n int, f func(i int) error) error {
	const most = 32
	var (
		wg   sync.WaitGroup
		room = make(chan struct{}, most)
		mu   sync.Mutex
		err  error
	)
	for i := range n {
		room <- struct{}{}
		wg.Go(func() {
			defer func() { <-room }()
			if ferr := f(i); ferr != nil {
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					err = ferr
				}
			}
		})
	}
	wg.Wait()
	return err
}

// gather runs f in n goroutines under one context. The first error ends the context.
func gather(ctx context.Context, n int, f func(ctx context.Context, i int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			if err := f(ctx, i); err != nil {
				cancel(err)
			}
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}

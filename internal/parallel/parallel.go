// Package parallel makes several calls at a time.
package parallel

import (
	"context"

	"golang.org/x/sync/errgroup"
)

// Do calls f with 0 to n-1 concurrently, and returns when all calls have
// returned.
func Do(n int, f func(i int)) {
	if n == 1 {
		f(0)
		return
	}
	var all errgroup.Group
	for i := range n {
		all.Go(func() error {
			f(i)
			return nil
		})
	}
	all.Wait() // no call fails
}

// MostReads bounds the number of concurrent reads of one Read.
const MostReads = 16

// Read calls read with 0 to n-1, at most MostReads at a time. The first error
// cancels the context of the others and is returned.
func Read(ctx context.Context, n int, read func(ctx context.Context, i int) error) error {
	if n == 1 {
		return read(ctx, 0)
	}
	all, ctx := errgroup.WithContext(ctx)
	all.SetLimit(MostReads)
	for i := range n {
		all.Go(func() error { return read(ctx, i) })
	}
	return all.Wait()
}

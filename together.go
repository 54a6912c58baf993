package coord

import (
	"context"

	"golang.org/x/sync/errgroup"
)

// together calls f with 0 to n-1 concurrently, and returns when all calls have
// returned.
func together(n int, f func(i int)) {
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

// mostReads bounds the number of concurrent reads of one readAll.
const mostReads = 16

// readAll calls read with 0 to n-1, at most mostReads at a time. The first error
// cancels the context of the others and is returned.
func readAll(ctx context.Context, n int, read func(ctx context.Context, i int) error) error {
	if n == 1 {
		return read(ctx, 0)
	}
	all, ctx := errgroup.WithContext(ctx)
	all.SetLimit(mostReads)
	for i := range n {
		all.Go(func() error { return read(ctx, i) })
	}
	return all.Wait()
}

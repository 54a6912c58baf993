package coord

import "sync"

// together calls f with 0 to n-1, beside each other, and returns when all calls have.
func together(n int, f func(i int)) {
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { f(i) })
	}
	all.Wait()
}

package coord

import "sync"

// together calls f with 0 to n-1, beside each other, and returns when all calls have.
// A panic in one of them (of the user's Logger or Trace) goes on in the caller, when
// the others are done, as if he had made the calls himself.
func together(n int, f func(i int)) {
	var (
		all      sync.WaitGroup
		mu       sync.Mutex
		panicked any
	)
	for i := range n {
		all.Go(func() {
			defer func() {
				if p := recover(); p != nil {
					mu.Lock()
					defer mu.Unlock()
					panicked = p
				}
			}()
			f(i)
		})
	}
	all.Wait()
	if panicked != nil {
		panic(panicked)
	}
}

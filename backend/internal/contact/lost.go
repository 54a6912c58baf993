package contact

import (
	"slices"
	"sync"
)

// Lost holds the sessions of a backend that their clients have lost, and that may not have ended on the service. The next session of
// the backend ends them first, so that none of their commits is applied later. The zero value is ready for use.
type Lost struct {
	mu  sync.Mutex
	ids []int64
}

// Add adds a session.
func (x *Lost) Add(id int64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.ids = append(x.ids, id)
}

// End calls end for each session and forgets those that have ended. It stops at the first error.
func (x *Lost) End(end func(id int64) error) error {
	x.mu.Lock()
	ids := slices.Clone(x.ids)
	x.mu.Unlock()
	for _, id := range ids {
		if err := end(id); err != nil {
			return err
		}
		x.mu.Lock()
		x.ids = slices.DeleteFunc(x.ids, func(other int64) bool { return other == id })
		x.mu.Unlock()
	}
	return nil
}

package recipetest

import (
	"context"
	"sync"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
)

// reads counts the reads of nodes' data, alone and in batches.
type reads struct {
	mu             sync.Mutex
	alone, batches int
}

func (r *reads) hooks() *backendtest.Hooks {
	return &backendtest.Hooks{Before: func(_ context.Context, c backendtest.Call) error {
		r.mu.Lock()
		defer r.mu.Unlock()
		switch c.Op {
		case "get":
			r.alone++
		case "read":
			r.batches++
		}
		return nil
	}}
}

// since returns the counts since the latest call.
func (r *reads) since() (alone, batches int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	alone, batches = r.alone, r.batches
	r.alone, r.batches = 0, 0
	return alone, batches
}

// costs checks that n nodes were read in one batch, or one by one where the service has no
// batches.
func (w *world) costs(r *reads, what string, n int) {
	w.T.Helper()
	wantAlone, wantBatches := 0, 1
	if w.Without.Has(backend.Batches) {
		wantAlone, wantBatches = n, 0
	}
	if alone, batches := r.since(); alone != wantAlone || batches != wantBatches {
		w.T.Errorf("%s: %d reads and %d batches, want %d and %d", what, alone, batches, wantAlone, wantBatches)
	}
}

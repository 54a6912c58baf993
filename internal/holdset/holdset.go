// Package holdset has the set of holds that LockAll returns: all of them were acquired, or none. The set ends when
// any of its holds ends.
package holdset

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/nodepath"
	"github.com/go-coord/coord/internal/parallel"
)

// Set is the engine of a HoldSet.
type Set struct {
	holds []*core.Hold // in the order in which they were acquired
	done  chan struct{}

	mu  sync.Mutex
	err error
}

// New returns a set without holds.
func New() *Set { return &Set{done: make(chan struct{})} }

// Within returns the context of the next acquisition. It derives from ctx and from the latest hold of the
// set, so the loss of a hold ends the wait for the others.
func (s *Set) Within(ctx context.Context) context.Context {
	if n := len(s.holds); n > 0 {
		return s.holds[n-1].Context(ctx)
	}
	return ctx
}

// Add adds a hold.
func (s *Set) Add(h *core.Hold) { s.holds = append(s.holds, h) }

// Complete is called when the set has all of its holds. It returns an error if one of them has ended.
func (s *Set) Complete(ctx context.Context) error {
	if err := s.test(ctx); err != nil {
		return err
	}
	for _, h := range s.holds {
		h.WhenEnded(s.end)
	}
	return s.Err()
}

// test verifies each hold whose node may have been deleted while the call waited for other locks: a watch on
// that node has fired.
func (s *Set) test(ctx context.Context) error {
	for _, h := range s.holds {
		if h.IsDoubted() {
			if err := h.Verify(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// GiveBack releases the holds of a set that was not completed because of the error why. It
// returns why joined with the errors of the releases. When ctx has ended, it waits for the releases under
// way as core.CleanUp.Wait does.
func (s *Set) GiveBack(ctx context.Context, why error) error {
	type release struct {
		h   *core.Hold
		u   *core.CleanUp
		err chan error
	}
	var all []release
	for _, h := range slices.Backward(s.holds) {
		result := make(chan error, 1)
		u := h.On().Client().GoCleanUp(func(context.Context, *core.CleanUp) { result <- h.Release() })
		all = append(all, release{h, u, result})
		if u == nil {
			result <- h.Release() // the hold ended with its client
			continue
		}
		select {
		case <-u.Done:
		case <-ctx.Done(): // the next release does not wait for this one
		}
	}
	failed := []error{why}
	began := time.Now()
	for _, r := range all {
		if r.u != nil {
			r.h.On().WaitFor(r.u.Done, core.GiveUpWait-time.Since(began))
			r.u.Note(nodepath.Parent(r.h.Path()))
		}
		select {
		case err := <-r.err:
			if err != why { // the loss that ended the call is already in failed
				failed = append(failed, err)
			}
		default:
		}
	}
	return errors.Join(failed...)
}

// end marks the set as ended. The first reason counts.
func (s *Set) end(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.err = err
		close(s.done)
	}
}

// Loss returns the loss of one of the holds, or nil.
func (s *Set) Loss() error {
	for _, h := range s.holds {
		if err := h.Err(); errors.Is(err, errs.ErrLost) {
			return err
		}
	}
	return nil
}

// Done is HoldSet.Done of package coord.
func (s *Set) Done() <-chan struct{} {
	s.Err() // compares the leases with the clock
	return s.done
}

// Err is HoldSet.Err of package coord.
func (s *Set) Err() error {
	if lost := s.Loss(); lost != nil {
		s.end(lost) // the goroutine that ended the hold may not have called end yet
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// Context is HoldSet.Context of package coord.
func (s *Set) Context(parent context.Context) context.Context {
	for _, h := range s.holds {
		parent = h.Context(parent)
	}
	return parent
}

// Holds is HoldSet.Holds of package coord.
func (s *Set) Holds() []*core.Hold { return s.holds }

// Guard is HoldSet.Guard of package coord.
func (s *Set) Guard() core.Guard { return core.GuardAll(s.holds) }

// Verify is HoldSet.Verify of package coord.
func (s *Set) Verify(ctx context.Context) error {
	for _, h := range s.holds {
		if err := h.Verify(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Release is HoldSet.Release of package coord.
func (s *Set) Release() error {
	failed := make([]error, len(s.holds))
	parallel.Do(len(s.holds), func(i int) { failed[i] = s.holds[i].Release() })
	return errors.Join(failed...)
}

package backend

import "sync"

// A WatchSet lets one reader wait for any of many watches, without a goroutine for each. Its
// methods are safe for concurrent use.
//
// A nil *WatchSet makes no watches: New returns nil, and Ready never delivers.
type WatchSet struct {
	ready chan struct{} // capacity 1; holds a value while fired is not empty

	mu      sync.Mutex
	all     map[*Watch]struct{} // neither fired nor stopped
	fired   []*Watch
	stopped bool
}

// NewWatchSet returns an empty set.
func NewWatchSet() *WatchSet {
	return &WatchSet{ready: make(chan struct{}, 1), all: make(map[*Watch]struct{})}
}

// New returns a watch of the set, to be passed to one read or Arm. Its Fired channel is nil;
// Ready and Take report that it fired. The caller stops the watch if it does not pass it to a
// read or if the read fails.
func (s *WatchSet) New() *Watch {
	if s == nil {
		return nil
	}
	w := &Watch{set: s}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		w.stopped = true
	} else {
		s.all[w] = struct{}{}
	}
	return w
}

// Ready returns a channel that delivers a value when watches have fired since the latest
// Take.
func (s *WatchSet) Ready() <-chan struct{} {
	if s == nil {
		return nil
	}
	return s.ready
}

// Take returns the watches that have fired since the latest Take, in the order
// in which they fired.
func (s *WatchSet) Take() []*Watch {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	fired := s.fired
	s.fired = nil
	select {
	case <-s.ready:
	default:
	}
	return fired
}

// Len returns the number of watches that have neither fired nor been stopped.
func (s *WatchSet) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.all)
}

// Stop stops every watch of the set, and those that New returns afterwards.
func (s *WatchSet) Stop() {
	if s == nil {
		return
	}
	s.mu.Lock()
	all := s.all
	s.all, s.fired, s.stopped = nil, nil, true
	s.mu.Unlock()
	for w := range all {
		w.Stop()
	}
}

// add records that a watch has fired.
func (s *WatchSet) add(w *Watch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return
	}
	delete(s.all, w)
	s.fired = append(s.fired, w)
	select {
	case s.ready <- struct{}{}:
	default:
	}
}

// forget removes a stopped watch.
func (s *WatchSet) forget(w *Watch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, w)
}

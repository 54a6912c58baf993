package backend

import (
	"fmt"
	"sync"
)

// Kind is the meaning of a fired watch.
type Kind int8

const (
	// LookAgain: something may have changed, so read again. It is fired for every change
	// except a deletion, when the session ends, and when the session cannot be sure. It may
	// come without a change, and does so after each reconnect unless the service resumes
	// watches without a gap.
	LookAgain Kind = iota + 1
	// Deleted: the node existed when the watch was armed, and it has been deleted since. It
	// is never a guess: the service has sent the deletion, and no reconnect can have hidden an
	// earlier event of the watch. (Another node may have been created at the path after that.)
	Deleted
)

// String returns the kind as a word.
func (k Kind) String() string {
	switch k {
	case LookAgain:
		return "look again"
	case Deleted:
		return "deleted"
	}
	return "not fired"
}

// A Target is a node for Session.Arm to watch. With Children set the watch fires as one of
// Session.Children does, else as one of Session.Get does. Each target has its own watch,
// which no read has used before.
type Target struct {
	Path     string
	Children bool
	Watch    *Watch
}

// CheckTargets checks the arguments of Session.Arm, for backends: there is at least one
// target, the paths are good, and their sum is within the limit.
func CheckTargets(targets []Target) error {
	if len(targets) == 0 {
		return &Error{Op: "arm", Path: "", Err: fmt.Errorf("%w: no target given", ErrInvalid)}
	}
	size := 0
	for _, t := range targets {
		size += 4 + len(t.Path)
		reason := badPath(t.Path)
		switch {
		case reason != "":
			return &Error{Op: "arm", Path: t.Path, Err: fmt.Errorf("%w: %s", ErrBadPath, reason)}
		case t.Watch == nil:
			return &Error{Op: "arm", Path: t.Path, Err: fmt.Errorf("%w: the watch is nil", ErrInvalid)}
		case size > MaxRequest:
			return &Error{Op: "arm", Path: t.Path, Err: fmt.Errorf("%w: the paths have more than %d bytes", ErrTooLarge, MaxRequest)}
		}
	}
	return nil
}

// A Watch is a one-shot notification. The caller makes it with NewWatch, passes it to one
// read, or as one target to Session.Arm, and then waits on Fired. After an error it is not
// armed (but see Session.Exists); use a new one for the next read.
//
// The watches of one session fire in the order in which the service sent the events: when a
// caller has seen one fire, Kind of every watch whose event came before it is set. An event
// is recorded before any read returns the state that the event announces. That holds across
// reconnects: unless the service resumes watches without a gap, all that were armed before are
// marked as fired before any read on the new connection returns. When a session ends, Err is set first, and then all its watches fire
// with LookAgain.
//
// A change is never missed while the watch is armed.
//
// A nil *Watch means no watch: a read with it arms nothing, it never fires, and Stop does
// nothing.
type Watch struct {
	fired chan struct{} // nil in a set
	set   *WatchSet     // or nil

	mu      sync.Mutex
	kind    Kind
	stopped bool
	armed   bool
	disarm  func(*Watch)
}

// NewWatch returns a watch that is not armed yet.
func NewWatch() *Watch {
	return &Watch{fired: make(chan struct{})}
}

// Fired is closed when the watch has fired. It stays open for ever after Stop. It
// is nil for a watch of a WatchSet.
func (w *Watch) Fired() <-chan struct{} {
	if w == nil {
		return nil
	}
	return w.fired
}

// Kind returns the meaning of the event, or zero while the watch has not fired.
func (w *Watch) Kind() Kind {
	if w == nil {
		return 0
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.kind
}

// Stop cancels the watch: it does not fire any more. Stop is idempotent, and does nothing on
// a watch that has fired or was never armed. It sends no request; the server's side of the
// watch may stay until it fires.
func (w *Watch) Stop() {
	if w == nil {
		return
	}
	w.mu.Lock()
	disarm := w.disarm
	w.disarm = nil
	w.stopped = true
	w.mu.Unlock()
	if disarm != nil {
		disarm(w)
	}
	if w.set != nil {
		w.set.forget(w)
	}
}

// Arm is for backends: it marks the watch as armed. Stop then calls disarm, at most once and
// without holding a lock of the watch. Arm returns false, and does nothing, if the watch was
// stopped, has fired, or is armed already. disarm may be nil.
func (w *Watch) Arm(disarm func(*Watch)) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stopped || w.armed {
		return false
	}
	w.armed = true
	w.disarm = disarm
	return true
}

// Fire is for backends: it marks the watch as fired and closes Fired. Only the first call has
// an effect, and none has after Stop. It calls no foreign code, so it may be called with
// locks held.
func (w *Watch) Fire(kind Kind) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stopped || w.kind != 0 {
		return
	}
	w.kind = kind
	w.armed = true // never again
	w.disarm = nil
	if w.set != nil {
		w.set.add(w)
		return
	}
	close(w.fired)
}

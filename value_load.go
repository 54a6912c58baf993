package coord

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Load returns the latest value that a Watch of this Value has seen, and its age. It sends
// no request, waits for nothing and allocates nothing. It is for configuration that is read
// at each request of a service:
//
//	changes := limits.Watch(ctx) // keeps Load current until ctx ends
//	if first := <-changes; first.Err != nil {
//		return first.Err // better not to start than to start without limits
//	}
//	...
//	now, age := limits.Load()
//
// Nothing has to receive from the channel. Without a Watch, Load does not follow changes:
// Get, writes, and Watches of another Value with the same path do not count.
//
// A bad change does not take the last good value away. If the value was deleted, or the
// codec cannot decode it, Load still returns the last value that could be decoded, with its
// Czxid, Version and Mzxid, and reports the change in Err: ErrNotFound or ErrDecode. Err is
// nil again when a good value has been seen. Export Err and the age as metrics: a service
// that continues with an old configuration should do so visibly. The codec can reject
// values that decode but make no sense, so that they count as ErrDecode.
//
// A Czxid of 0 means that no good value has been seen yet: there is none, or the first one
// is bad. Before the first read of a Watch, Err is ErrNotFound too and the age is the
// greatest Duration. For a bad path, Err is ErrBadPath.
//
// The age is the time since the state that Load reports, including an error, was last known
// to be current. It is 0 while a Watch has contact and knows of no change. It grows while
// the session is suspended or lost and until the next session has read the value, while a
// change is being read, and after the last Watch has ended. The client notices a connection
// that breaks at once, but silence of the network only when an answer is overdue, within the
// session timeout; so the age can be too low by that time, and, after the process or
// its machine was paused, by the time of the pause. Current means current as a read of this
// session is: it can lag behind other clients.
//
// The states never go back to an older one, except with the service itself, when an older
// snapshot of it is restored. All callers of Load and the receivers of the Watch's elements
// share the memory that Value refers to, so it must not be changed.
func (v *Value[T]) Load() (now Versioned[T], age time.Duration) {
	k := v.known.latest.Load()
	if k == nil {
		err := v.path.err
		if err == nil {
			err = fmt.Errorf("%w: no Watch has read it yet", ErrNotFound)
		}
		return Versioned[T]{Err: opError("load", v.path.full, err)}, math.MaxInt64
	}
	return k.value, k.age(v.c)
}

// known is what the Watches of a Value have seen. Any number of them can run at a time, so
// each has a valueWatch, and the latest state is that of one of them.
type known[T any] struct {
	latest atomic.Pointer[state[T]] // written under mu

	mu      sync.Mutex
	watches []*valueWatch[T] // those of the Watches that know the present state
}

// state is the state of a Value at one time. It is never changed.
type state[T any] struct {
	value   Versioned[T] // for Load
	seen    content      // which state this is; without its data
	at      int64        // when it was known to be current, by Client.elapsed
	contact *stretch     // it is current until this stretch is over; nil: it was at that time
}

func (k *state[T]) age(c *Client) time.Duration {
	at := k.at
	if k.contact != nil {
		end, over := k.contact.over()
		if !over {
			return 0
		}
		at = max(at, end)
	}
	return time.Duration(max(c.elapsed()-at, 0))
}

// current reports whether a watch stands for the state.
func (k *state[T]) current() bool {
	if k == nil || k.contact == nil {
		return false
	}
	_, over := k.contact.over()
	return !over
}

// valueWatch is what one Watch knows.
type valueWatch[T any] struct {
	k    *known[T]
	c    *Client
	path string
	seen content   // the state of its latest element; without its data
	now  *state[T] // nil before the first element
}

// see notes the state that a read has found, with a watch that was armed in t. e is the
// element of the Watch for it. It reports false, and notes nothing, if the read has to be
// repeated.
func (w *valueWatch[T]) see(e Versioned[T], st content, began int64, t *stretch) bool {
	w.k.mu.Lock()
	defer w.k.mu.Unlock()
	if w.outrun(st, began) {
		return false
	}
	w.seen = content{created: st.created, changed: st.changed}
	if e.Err != nil {
		err := opError("load", w.path, e.Err)
		e = Versioned[T]{}
		if latest := w.k.latest.Load(); latest != nil {
			e = latest.value
		}
		e.Err = err
	}
	if w.now == nil {
		w.k.watches = append(w.k.watches, w)
	}
	w.now = &state[T]{value: e, seen: w.seen, at: w.c.elapsed(), contact: t}
	w.publish(began)
	return true
}

// confirm notes that a read has found the state of the latest element again. It reports false
// as see does.
func (w *valueWatch[T]) confirm(began int64, t *stretch) bool {
	w.k.mu.Lock()
	defer w.k.mu.Unlock()
	if w.outrun(w.seen, began) {
		return false
	}
	w.now = &state[T]{value: w.now.value, seen: w.seen, at: w.c.elapsed(), contact: t}
	w.publish(began)
	return true
}

// outrun reports whether a read has found no node, and another Watch has seen one since the
// read began. Which state is older is not known then, since a missing node has no number. A
// read that begins afterwards is the newer one. The caller holds mu.
func (w *valueWatch[T]) outrun(st content, began int64) bool {
	latest := w.k.latest.Load()
	return st.created == 0 && latest != nil && latest.seen.created != 0 && latest.at > began
}

// publish makes the state of this Watch the latest one, unless another Watch has seen a newer
// one meanwhile. The watch of this one fires then, so it reads again. A state without a node
// is the latest one, see outrun. The caller holds mu.
func (w *valueWatch[T]) publish(began int64) {
	latest := w.k.latest.Load()
	if latest != nil && w.seen.created != 0 && latest.seen.changed > w.seen.changed && (latest.current() || latest.at > began) {
		return
	}
	w.k.latest.Store(w.now)
}

// doubt notes that the watch does not stand any more: it has fired, or its Watch ends.
func (w *valueWatch[T]) doubt() {
	w.k.mu.Lock()
	defer w.k.mu.Unlock()
	was := w.now
	if was == nil || was.contact == nil {
		return
	}
	at, over := was.contact.over()
	if !over {
		at = w.c.elapsed()
	}
	w.now = &state[T]{value: was.value, seen: was.seen, at: max(at, was.at)}
	if w.k.latest.Load() != was {
		return
	}
	best := w.now
	for _, other := range w.k.watches {
		if other.now.current() && other.seen.changed >= best.seen.changed {
			best = other.now
		}
	}
	w.k.latest.Store(best)
}

// end ends the part of a Watch.
func (w *valueWatch[T]) end() {
	w.doubt()
	w.k.mu.Lock()
	defer w.k.mu.Unlock()
	w.k.watches = slices.DeleteFunc(w.k.watches, func(other *valueWatch[T]) bool { return other == w })
}

// lookInContact is look, with the time when the read began and the stretch of contact in which
// its watch was armed. If that is over, the watch fires with the next contact.
func (n *cell) lookInContact(ctx context.Context, g *vigil) (st content, began int64, t *stretch, err error) {
	for {
		_, t = g.s.status()
		began = n.c.elapsed()
		if st, err = n.look(ctx, g); err != nil {
			return st, began, t, err
		}
		// The read can have waited for the next contact, in which its watch does not fire.
		_, now := g.s.status()
		if _, over := now.over(); now == t || over {
			return st, began, t, nil
		}
		g.renew()
	}
}

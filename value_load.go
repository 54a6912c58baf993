package coord

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-coord/coord/internal/core"
)

// Load returns the latest value that a Watch of this Value has seen, and its age. It sends
// no request, waits for nothing and allocates nothing. Without a running Watch of this
// Value, Load follows no changes; nothing has to receive from the channel of the Watch.
//
// If the value was deleted or cannot be decoded, Load still returns the last good value,
// with ErrNotFound or ErrDecode in Err. A Czxid of 0 means that no good value was seen yet.
// Before the first read of a Watch, Err is ErrNotFound (ErrBadPath for a bad path) and the
// age is the greatest Duration. States never go back, except with a restored snapshot of
// the service.
//
// The age is the time since the reported state was last known to be current, as a read of
// this session is. It is 0 while a Watch has contact and knows of no change. It can be too
// low until the client notices a loss of contact, for less than the session timeout, and
// after a pause of the process. All callers share what Value refers to: do not change it.
func (v *Value[T]) Load() (now Versioned[T], age time.Duration) {
	k := v.known.latest.Load()
	if k == nil {
		err := v.path.Err()
		if err == nil {
			err = fmt.Errorf("%w: no Watch of this client has read the value yet", ErrNotFound)
		}
		return Versioned[T]{Err: core.OpError("load", v.path.Full(), err)}, math.MaxInt64
	}
	return k.value, k.age(v.c)
}

// known is what the Watches of a Value have seen. Any number of them can run at a time, so
// each has a valueWatch, and the latest state is that of one of them.
//
// A missing node has no number, so the reads order the states: a read that began after
// the latest state was accepted is not older than it. If the read began before, only the
// numbers of two existing nodes of one session can tell which one is older. In all other
// cases the read is repeated. So the accepted states never go back, whatever the order in
// which the goroutines of the Watches run.
type known[T any] struct {
	latest atomic.Pointer[state[T]] // written under mu

	mu      sync.Mutex
	watches []*valueWatch[T] // those of the Watches that know the present state
}

// began returns the number of the latest state, for a read that begins now.
func (k *known[T]) began() int64 {
	if latest := k.latest.Load(); latest != nil {
		return latest.number
	}
	return 0
}

// state is the state of a Value at one time. It is never changed.
type state[T any] struct {
	value   Versioned[T]        // for Load
	seen    content             // which state this is; without its data
	number  int64               // of the state among those that were accepted; counts from 1
	s       *core.Session       // that has read it
	at      int64               // when it was known to be current, by Client.elapsed
	contact *core.ContactPeriod // it is current until this contact period is over; nil: it was at that time
}

func (k *state[T]) age(c *core.Client) time.Duration {
	at := k.at
	if k.contact != nil {
		end, over := k.contact.Over()
		if !over {
			return 0
		}
		at = max(at, end)
	}
	return time.Duration(max(c.Elapsed()-at, 0))
}

// current reports whether a watch stands for the state.
func (k *state[T]) current() bool {
	if k == nil || k.contact == nil {
		return false
	}
	_, over := k.contact.Over()
	return !over
}

// valueWatch is what one Watch knows.
type valueWatch[T any] struct {
	k    *known[T]
	c    *core.Client
	path string
	seen content      // the state of its latest element; without its data
	last Versioned[T] // its latest element
	now  *state[T]    // nil before the first element
}

// found is the state that a read has found.
type found struct {
	content
	s     *core.Session
	began int64               // known.began when the read began
	t     *core.ContactPeriod // of contact, in which the watch of the read was armed
}

// see notes the state that a read has found. e is the element of the Watch for it. It reports
// false, and notes nothing, if the read has to be repeated.
func (w *valueWatch[T]) see(e Versioned[T], f found) bool {
	w.k.mu.Lock()
	defer w.k.mu.Unlock()
	latest := w.k.latest.Load()
	if latest != nil && !latest.precedes(f) {
		return false
	}
	st := &state[T]{value: e, seen: content{created: f.created, changed: f.changed}, number: 1, s: f.s, at: w.c.Elapsed(), contact: f.t}
	if latest != nil {
		st.number = latest.number
		if !latest.seen.same(st.seen) || latest.s != st.s {
			st.number++
		}
	}
	if e.Err != nil {
		st.value = Versioned[T]{}
		if latest != nil {
			st.value = latest.value // the last good one
		}
		st.value.Err = core.OpError("load", w.path, e.Err)
	}
	if w.now == nil {
		w.k.watches = append(w.k.watches, w)
	}
	w.seen, w.last, w.now = st.seen, e, st
	w.k.latest.Store(st)
	return true
}

// precedes reports whether the state is known not to be newer than what a read has found.
func (k *state[T]) precedes(f found) bool {
	switch {
	case f.began >= k.number:
		return true
	case f.s != k.s:
		return false // their numbers may be those of two histories of the service
	}
	return k.seen.created != 0 && f.changed >= k.seen.changed
}

// doubt notes that the watch does not stand any more: it has fired, or its Watch ends.
func (w *valueWatch[T]) doubt() {
	w.k.mu.Lock()
	defer w.k.mu.Unlock()
	was := w.now
	if was == nil || was.contact == nil {
		return
	}
	at, over := was.contact.Over()
	if !over {
		at = w.c.Elapsed()
	}
	now := *was
	now.at, now.contact = max(at, was.at), nil
	w.now = &now
	if w.k.latest.Load() != was {
		return
	}
	// Another Watch may still stand for this state. An older one counts no more.
	latest := w.now
	for _, other := range w.k.watches {
		if other.now.number == was.number && other.now.current() {
			latest = other.now
		}
	}
	w.k.latest.Store(latest)
}

// end ends the part of a Watch.
func (w *valueWatch[T]) end() {
	w.doubt()
	w.k.mu.Lock()
	defer w.k.mu.Unlock()
	w.k.watches = slices.DeleteFunc(w.k.watches, func(other *valueWatch[T]) bool { return other == w })
}

// read is cell.look. If the contact period in which its watch was armed is over, the watch
// fires with the next contact.
func (w *valueWatch[T]) read(ctx context.Context, n *cell, g *core.WatchLoop) (found, error) {
	for {
		_, t := g.S.Status()
		f := found{s: g.S, began: w.k.began(), t: t}
		var err error
		if f.content, err = n.look(ctx, g); err != nil {
			return f, err
		}
		// The read can have waited for the next contact, in which its watch does not fire.
		_, now := g.S.Status()
		if _, over := now.Over(); now == t || over {
			return f, nil
		}
		g.Renew()
	}
}

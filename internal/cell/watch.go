package cell

import (
	"context"
	"fmt"
	"hash/maphash"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/follow"
	"github.com/go-coord/coord/internal/latest"
)

// Versioned is coord.Versioned.
type Versioned[T any] struct {
	Value   T
	Czxid   int64
	Version int32
	Mzxid   int64
	Err     error
}

// A Follower follows a node for the Watches of a Value, and keeps the latest decoded value, for Load.
// Any number of Watches can run at a time, so each has a watcher, and the latest state is that of one
// of them.
//
// A missing node has no number, so the reads order the states: a read that began after
// the latest state was accepted is not older than it. If the read began before, only the
// numbers of two existing nodes of one session can tell which one is older. In all other
// cases the read is repeated. So the accepted states never go back, whatever the order in
// which the goroutines of the Watches run.
type Follower[T any] struct {
	n      *Node
	decode func(data []byte) (T, error)
	latest atomic.Pointer[state[T]] // written under mu

	mu       sync.Mutex
	watchers []*watcher[T] // of the Watches that have read the node
}

// NewFollower returns a Follower of n. Watches call decode on goroutines of the client.
func NewFollower[T any](n *Node, decode func(data []byte) (T, error)) *Follower[T] {
	return &Follower[T]{n: n, decode: decode}
}

// Load returns the latest state that a Watch has read, and its age. It sends no request and allocates
// nothing. After an error it returns the last good value with the error.
func (k *Follower[T]) Load() (Versioned[T], time.Duration) {
	latest := k.latest.Load()
	if latest == nil {
		err := k.n.path.Err()
		if err == nil {
			err = fmt.Errorf("%w: no Watch of this client has read the value yet", backend.ErrNotFound)
		}
		return Versioned[T]{Err: errs.Op("load", k.n.path.Full(), err)}, math.MaxInt64
	}
	return latest.value, latest.age(k.n.c)
}

// Watch returns a latest-wins channel with the present state and then every change, until ctx ends. as
// converts a state.
func Watch[T, E any](ctx context.Context, k *Follower[T], as func(Versioned[T]) E) <-chan E {
	n := k.n
	failed := func(err error) E { return as(Versioned[T]{Err: err}) }
	w := &watcher[T]{k: k}
	first := true
	seed, sum := maphash.MakeSeed(), uint64(0) // of the latest data: a restored service can give it the same numbers
	return follow.Observe(ctx, n.c, "watch", &n.path, failed, w.end, func(ctx context.Context, g *follow.Loop, out latest.Signal[E]) error {
		w.markStale()
		if g.First {
			// The server of a new session may lag behind the last element.
			if err := g.S.Backend().Sync(ctx, n.path.Full()); err != nil {
				return err
			}
		}
		for ; ; g.Renew() {
			f, err := w.read(ctx, g)
			if err != nil {
				return err
			}
			now := maphash.Bytes(seed, f.Data)
			if !first && f.same(w.seen) && now == sum {
				if w.accept(w.last, f) {
					return nil
				}
				continue
			}
			e := k.element(f.Content)
			if !w.accept(e, f) { // before the element: its receiver finds no older one
				continue
			}
			first, sum = false, now
			e.Err = errs.Op("watch", n.path.Full(), e.Err)
			out.Put(as(e))
			return nil
		}
	})
}

// element returns the element of Watch for x. Its error does not name the operation yet.
func (k *Follower[T]) element(x Content) Versioned[T] {
	e := Versioned[T]{Czxid: x.Czxid, Version: x.Version, Mzxid: x.Mzxid, Err: backend.ErrNotFound}
	if x.Czxid != 0 {
		e.Value, e.Err = k.decode(x.Data)
	}
	return e
}

// began returns the number of the latest state, for a read that begins now.
func (k *Follower[T]) began() int64 {
	if latest := k.latest.Load(); latest != nil {
		return latest.number
	}
	return 0
}

// state is the state of a Value at one time. It is never changed.
type state[T any] struct {
	value   Versioned[T]        // for Load
	seen    Content             // which state this is; without its data
	number  int64               // of the state among those that were accepted; counts from 1
	s       *core.Session       // that has read it
	at      int64               // when it was known to be current, by Client.Elapsed
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

// current reports whether an armed watch would report a change of the state.
func (k *state[T]) current() bool {
	if k == nil || k.contact == nil {
		return false
	}
	_, over := k.contact.Over()
	return !over
}

// watcher is what one Watch has read.
type watcher[T any] struct {
	k    *Follower[T]
	seen Content      // the state of its latest element; without its data
	last Versioned[T] // its latest element
	now  *state[T]    // nil before the first element
}

// found is the state that a read has found.
type found struct {
	Content
	s       *core.Session
	began   int64               // Follower.began when the read began
	contact *core.ContactPeriod // in which the watch of the read was armed
}

// accept makes the state that a read has found the latest one. e is the element of the Watch for it. It
// reports false, and changes nothing, if the read has to be repeated.
func (w *watcher[T]) accept(e Versioned[T], f found) bool {
	w.k.mu.Lock()
	defer w.k.mu.Unlock()
	latest := w.k.latest.Load()
	if latest != nil && !latest.precedes(f) {
		return false
	}
	st := &state[T]{value: e, seen: Content{Czxid: f.Czxid, Mzxid: f.Mzxid}, number: 1, s: f.s, at: w.k.n.c.Elapsed(), contact: f.contact}
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
		st.value.Err = errs.Op("load", w.k.n.path.Full(), e.Err)
	}
	if w.now == nil {
		w.k.watchers = append(w.k.watchers, w)
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
	return k.seen.Czxid != 0 && f.Mzxid >= k.seen.Mzxid
}

// markStale notes that the state may have changed: the armed watch has fired, or the Watch ends.
func (w *watcher[T]) markStale() {
	w.k.mu.Lock()
	defer w.k.mu.Unlock()
	was := w.now
	if was == nil || was.contact == nil {
		return
	}
	at, over := was.contact.Over()
	if !over {
		at = w.k.n.c.Elapsed()
	}
	now := *was
	now.at, now.contact = max(at, was.at), nil
	w.now = &now
	if w.k.latest.Load() != was {
		return
	}
	// Another Watch may have this state still under an armed watch. Older states do not count.
	latest := w.now
	for _, other := range w.k.watchers {
		if other.now.number == was.number && other.now.current() {
			latest = other.now
		}
	}
	w.k.latest.Store(latest)
}

// end removes the watcher of a Watch that ends.
func (w *watcher[T]) end() {
	w.markStale()
	w.k.mu.Lock()
	defer w.k.mu.Unlock()
	w.k.watchers = slices.DeleteFunc(w.k.watchers, func(other *watcher[T]) bool { return other == w })
}

// read reads the node with a watch. If the contact period in which the watch was armed is over, the watch
// fires with the next contact.
func (w *watcher[T]) read(ctx context.Context, g *follow.Loop) (found, error) {
	for {
		_, contact := g.S.Status()
		f := found{s: g.S, began: w.k.began(), contact: contact}
		var err error
		if f.Content, err = w.k.n.readAndWatch(ctx, g); err != nil {
			return f, err
		}
		// The read can have waited for the next contact, in which its watch does not fire.
		_, now := g.S.Status()
		if _, over := now.Over(); now == contact || over {
			return f, nil
		}
		g.Renew()
	}
}

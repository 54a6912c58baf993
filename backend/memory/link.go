package memory

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/go-coord/coord/backend"
)

// A Link is a connection to a Store whose contact can be broken. It is a backend: its faults
// affect all sessions that were opened over it. A Link is safe for concurrent use.
type Link struct {
	store *Store
	name  string

	// Guarded by store.mu.
	partitioned bool
	healed      chan struct{} // closed by Heal
	latency     time.Duration
	dropRequest bool
	dropReply   bool
	live        []*session // live in the client's view, oldest first
}

func newLink(st *Store, name string) *Link {
	return &Link{store: st, name: name, healed: make(chan struct{})}
}

// Open starts a session over the link. While the link is partitioned it waits
// until ctx ends.
func (l *Link) Open(ctx context.Context) (backend.Session, error) {
	st := l.store
	if st.bad != nil {
		return nil, &backend.Error{Op: "open", Err: st.bad}
	}
	begun := time.Now()
	for {
		if err := backend.ContextError(ctx); err != nil {
			return nil, &backend.Error{Op: "open", Err: err}
		}
		st.mu.Lock()
		if !l.partitioned {
			st.lastID++
			s := &session{
				link: l, store: st, id: st.lastID,
				phase:   backend.PhaseConnected,
				changed: make(chan struct{}),
				done:    make(chan struct{}),
			}
			st.sessions[s.id] = s
			l.live = append(l.live, s)
			st.tree.zxid++ // sessions begin with a commit of their own
			st.mu.Unlock()
			return s, nil
		}
		healed := l.healed
		st.mu.Unlock()
		select {
		case <-healed:
		case <-ctx.Done():
			return nil, &backend.Error{Op: "open", Err: &backend.NoContactError{
				Err: backend.ContextError(ctx), For: time.Since(begun), Why: fmt.Sprintf("memory link %q is partitioned", l.name)}}
		}
	}
}

// Partition breaks the contact between the link and the store until Heal. Requests and
// replies that are under way are lost. Sessions become suspended at once. The client declares
// them lost when their lease passes, and the store ends them after their timeout.
func (l *Link) Partition() {
	l.store.mu.Lock()
	defer l.store.mu.Unlock()
	if l.partitioned {
		return
	}
	l.partitioned = true
	l.healed = make(chan struct{})
	for _, s := range slices.Clone(l.live) {
		s.suspend()
	}
}

// Heal restores contact. Sessions that still live are connected again, with all
// their watches fired; the others learn that they are lost.
func (l *Link) Heal() {
	l.store.mu.Lock()
	defer l.store.mu.Unlock()
	if !l.partitioned {
		return
	}
	l.partitioned = false
	close(l.healed)
	for _, s := range slices.Clone(l.live) {
		s.resume()
	}
}

// Expire makes the store end a session of this link now; Hold.Session and State.Session of
// package coord return a session's id. An id that the link does not know is ignored. The
// session's ephemerals are deleted at once. The client learns of the end at once if it has
// contact, else when its lease passes or the link heals.
func (l *Link) Expire(id int64) {
	st := l.store
	st.mu.Lock()
	defer st.mu.Unlock()
	s := st.sessions[id]
	if s == nil || s.link != l {
		return
	}
	if s.suspended() {
		s.ended = true
	} else {
		s.finish(backend.ErrSessionLost)
	}
	st.endSession(s)
}

// DropNextRequest loses the next request of any session of the link before the
// store sees it. Contact breaks with it and returns at once.
func (l *Link) DropNextRequest() {
	l.store.mu.Lock()
	defer l.store.mu.Unlock()
	l.dropRequest = true
}

// DropNextReply lets the store handle the next request of any session of the
// link and loses its reply. Contact breaks with it and returns at once.
func (l *Link) DropNextReply() {
	l.store.mu.Lock()
	defer l.store.mu.Unlock()
	l.dropReply = true
}

// SetLatency makes each request and each reply of the link take this long.
// Watch events do not wait.
func (l *Link) SetLatency(d time.Duration) {
	l.store.mu.Lock()
	defer l.store.mu.Unlock()
	l.latency = d
}

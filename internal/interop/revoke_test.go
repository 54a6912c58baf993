//go:build linux

package interop

import (
	"testing"
	"time"

	"github.com/go-coord/coord"
)

// curatorRevokesOurs: Curator's Revoker overwrites the node that it is given with
// "__REVOKE__", whatever its data.
func curatorRevokesOurs(t *testing.T, w *crew) {
	s := newScene(t)
	h := s.hold(s.mutex("ours").Lock)
	next := w.java[1].lock(t, "mutex", s.path)
	s.queued(2)
	w.java[0].tell(t, "revoke", h.Path())
	w.java[0].await(t, "asked")
	select {
	case <-h.Revoked():
	case <-time.After(limit):
		t.Fatal("the holder was never notified")
	}
	if q, ok := h.Revocation(); !ok || q.Force {
		t.Errorf("the request reads %v, %v", q, ok)
	}
	if err := h.Err(); err != nil {
		t.Errorf("the hold ended without consent: %v", err)
	}
	next.pending() // it was woken, and found that the holder still holds
	s.release(h)
	next.granted().release()
	s.empty()
}

// oursRevokesCurators: Curator's holder listens only to "__REVOKE__", and only if it was made
// revocable before it acquired the lock.
func oursRevokesCurators(t *testing.T, w *crew) {
	s := newScene(t)
	m := s.mutex("ours")
	holder := w.java[0].lock(t, "revocable", s.path).granted()
	revoked := make(chan error, 1)
	ctx := s.ctx()
	go func() { revoked <- m.Revoke(ctx, &coord.RevokeOptions{By: "ours", Reason: "test"}) }()
	w.java[0].await(t, "revoked", holder.id)
	select {
	case err := <-revoked:
		t.Errorf("Revoke returned %v while the holder still holds", err)
	default:
	}
	holder.release()
	if err := <-revoked; err != nil {
		t.Error(err)
	}
	s.release(s.hold(m.TryLock))

	// By force: Curator's holder is not notified that its node is deleted, but the next
	// waiter is granted.
	holder = w.java[0].lock(t, "mutex", s.path).granted()
	if err := m.Revoke(s.ctx(), &coord.RevokeOptions{ForceAfter: 50 * time.Millisecond}); err != nil {
		t.Error(err)
	}
	h := s.hold(m.TryLock)
	if h.Token() <= holder.czid {
		t.Errorf("token %#x after %#x", h.Token(), holder.czid)
	}
	holder.release() // its node is deleted; coord's node stays
	if err := h.Verify(s.ctx()); err != nil {
		t.Error(err)
	}
	s.release(h)
	s.empty()
}

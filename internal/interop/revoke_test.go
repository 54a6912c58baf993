//go:build linux

package interop

import (
	"testing"
	"time"

	"github.com/go-coord/coord"
)

// curatorRevokesOurs: Curator's Revoker writes "__REVOKE__" into the node that it
// is given, whatever stood there.
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
		t.Fatal("the holder was never told")
	}
	if q, ok := h.Revocation(); !ok || q.Force {
		t.Errorf("the request reads %v, %v", q, ok)
	}
	if err := h.Err(); err != nil {
		t.Errorf("the hold ended without consent: %v", err)
	}
	next.pending() // it was woken, and found that the holder is still there
	s.release(h)
	next.granted().release()
	s.empty()
}

// oursRevokesCurators: Curator's holder listens if it was made revocable before it
// took the lock, to nothing but "__REVOKE__".
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

	// By force: Curator's holder is not told that its node is gone, but the next
	// in line goes on.
	holder = w.java[0].lock(t, "mutex", s.path).granted()
	if err := m.Revoke(s.ctx(), &coord.RevokeOptions{Force: 50 * time.Millisecond}); err != nil {
		t.Error(err)
	}
	h := s.hold(m.TryLock)
	if h.Token() <= holder.czid {
		t.Errorf("token %#x after %#x", h.Token(), holder.czid)
	}
	holder.release() // of a node that is gone; ours stays
	if err := h.Verify(s.ctx()); err != nil {
		t.Error(err)
	}
	s.release(h)
	s.empty()
}

package coord

import (
	"context"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/layout"
)

// SetValue changes the member's value. After it returns nil, the node has the
// value, and so has every later incarnation. While the membership has no node,
// SetValue waits for the next one, until ctx ends. Concurrent calls are served in
// the order in which they arrive.
//
// If SetValue fails before the outcome is known, for example because ctx ends, the
// error also matches ErrUncertain: the change may become visible, but never after
// that of a later SetValue. After any other error it does not become visible. If
// the membership has ended, SetValue returns Err.
func (m *Membership[T]) SetValue(ctx context.Context, v T) error {
	data, err := m.g.codec.encode(v)
	if err == nil {
		// Data with which the next incarnation could not be created is refused now.
		sp := newSpec(m.g.c, ground{dir: m.g.path.full, recipe: layout.KindGroup}, layout.MemberInfix+m.id+"-", nil)
		err = backend.CheckOps([]backend.Op{
			backend.Create(sp.prefix, data, backend.EphemeralSequential), backend.SetData(sp.dir, sp.recipe.Mark(), backend.AnyVersion),
		})
	}
	if err != nil {
		return opError("set", m.g.path.full, err)
	}
	select {
	case m.turn <- struct{}{}:
	case <-m.done:
		return m.Err()
	case <-ctx.Done():
		return opError("set", m.g.path.full, backend.ContextError(ctx))
	}
	defer func() { <-m.turn }()
	return opError("set", m.g.path.full, m.setData(ctx, data))
}

func (m *Membership[T]) setData(ctx context.Context, data []byte) error {
	st, err := m.standing(ctx, nil)
	if err != nil {
		return err
	}
	// The data is stored before it is sent: the session may be lost at any time,
	// and the next incarnation must not go back behind a value that others have
	// seen.
	m.mu.Lock()
	old := m.data
	m.data = data
	m.rev++
	rev := m.rev
	m.mu.Unlock()
	pause := pauses{c: m.g.c}
	for definite := true; ; {
		err := m.write(ctx, st, data)
		switch {
		case err == nil:
			return nil
		case isUncertain(err):
			definite = false
			m.unsettled = st.s
		}
		switch {
		case mayRepeat(ctx, err):
			pause.wait(ctx.Done(), st.s.b.Done())
			continue
		case ctx.Err() == nil && (isNotFound(err) || isOver(err)):
			// The session is lost or the node deleted; the next incarnation may
			// have the new data already.
			definite = false
			st, err = m.standing(ctx, st)
			if err == nil && st.rev == rev {
				return nil
			}
			if err == nil {
				continue
			}
			if ctx.Err() == nil {
				return err // the membership has ended
			}
		}
		if definite && m.takeBack(st, old) {
			return err
		}
		return backend.Uncertain(err)
	}
}

// write writes the data of the node, ordered after all earlier writes.
func (m *Membership[T]) write(ctx context.Context, st *stand, data []byte) error {
	if m.unsettled == st.s {
		// A write whose outcome is unknown could be applied after this one.
		if err := st.s.b.Sync(ctx, st.n.path); err != nil {
			return err
		}
	}
	m.unsettled = nil
	_, err := st.s.b.Commit(ctx, backend.SetData(st.n.path, data, backend.AnyVersion))
	return err
}

// takeBack restores the old data unless an incarnation may have been made with the
// new data. Before keep makes an incarnation from data, it removes the old one from
// now.
func (m *Membership[T]) takeBack(st *stand, old []byte) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if now, _, _ := m.now.get(); now != st {
		return false
	}
	m.data = old
	return true
}

// standing waits for an incarnation other than not.
func (m *Membership[T]) standing(ctx context.Context, not *stand) (*stand, error) {
	for {
		st, changed, ended := m.now.get()
		if ended {
			return nil, m.Err()
		}
		if st != nil && st != not {
			return st, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, backend.ContextError(ctx)
		}
	}
}

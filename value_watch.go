package coord

import (
	"context"
)

// Watch returns a channel that receives the current value and then every change. It
// is latest-wins: a slow reader misses intermediate values but never the newest,
// and receives no value twice.
//
// If there is no value, the element has ErrNotFound in Err, so a deletion is
// visible. A value that was deleted and made again always counts as a change. If
// the codec cannot decode the data, the element has ErrDecode in Err, and the watch
// continues. It also continues if the session is lost: the state that the next
// session finds is sent if it is new. Elements never go back to an older state.
//
// The channel is closed when ctx ends. If the watch cannot continue (ErrClosed,
// ErrDenied, ErrBadPath), the last element has that error in Err and no value, and
// then the channel is closed.
//
// The codec's Decode runs in a goroutine of the client. A change costs the event
// and one read.
func (v *Value[T]) Watch(ctx context.Context) <-chan Versioned[T] {
	failed := func(err error) Versioned[T] { return Versioned[T]{Err: err} }
	var told content
	first := true
	return observe(ctx, v.c, "watch", &v.path, failed, func(ctx context.Context, g *vigil, out signal[Versioned[T]]) error {
		if g.first {
			// The server of a new session may lag behind the last element.
			if err := g.s.b.Sync(ctx, v.path.full); err != nil {
				return err
			}
		}
		st, err := v.look(ctx, g)
		if err != nil {
			return err
		}
		if !first && st.same(told) {
			return nil
		}
		first, told = false, content{created: st.created, changed: st.changed}
		out.put(v.element(st))
		return nil
	})
}

// element returns the element of Watch for st.
func (v *Value[T]) element(st content) Versioned[T] {
	var val T
	err := error(ErrNotFound)
	if st.created != 0 {
		val, err = v.codec.decode(st.data)
	}
	e := versioned(val, st)
	e.Err = opError("watch", v.path.full, err)
	return e
}

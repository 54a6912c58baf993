package coord

import (
	"context"
)

// Watch returns a channel with the present value and then every change. It is
// latest-wins: a slow reader misses what lies between, never the newest, and is
// given nothing twice.
//
// That there is no value is an element with ErrNotFound in Err, so a deletion is
// seen; a value that was deleted and made again is a change in any case. Data
// that the codec refuses is an element with ErrDecode in Err, and the watch goes
// on. A session that is lost does not end it: what the next session finds is told
// if it is news. Elements never go back to an older state.
//
// The channel is closed when ctx ends. If the watch cannot go on (ErrClosed,
// ErrDenied, ErrBadPath), the last element says so in Err, with nothing else in
// it, and then the channel is closed.
//
// The codec's Decode runs in a goroutine of the client. A change costs the event
// and one read.
func (v *Value[T]) Watch(ctx context.Context) <-chan Versioned[T] {
	failed := func(err error) Versioned[T] { return Versioned[T]{Err: err} }
	var told content
	first := true
	return observe(ctx, v.c, "watch", &v.path, failed, func(ctx context.Context, g *vigil, out signal[Versioned[T]]) error {
		if g.first {
			// The server of a new session may be behind what was told.
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

// element is what Watch tells of st.
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

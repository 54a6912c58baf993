package queue

import (
	"errors"
	"testing"
	"testing/synctest"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/memory"
	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/layout"
)

// The caller that asked has not noticed yet that its client closes. No item is claimed for it.
func TestQueue_AClosingClientClaimsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, st := t.Context(), memory.New(nil)
		c, err := core.Open(ctx, st.Link("a"), core.Config{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		q := New(c, "/q", layout.KindQueue, Config[any]{})
		_, err = q.PutValue(ctx, 0, 0, PutOptions{}, func() ([]byte, error) { return []byte("1"), nil })
		if err != nil {
			t.Fatal(err)
		}
		s, closed := c.Present(), make(chan struct{})
		u := c.BeginCleanUp() // Close waits for it
		go func() {
			defer close(closed)
			c.Close()
		}()
		<-c.Closing()
		a := &itemRequest{want: 1, try: true, reply: make(chan handOut, 1)}
		q.requests = append(q.requests, a)
		f := &feeder{q: q, s: s, place: slotPlace{l: q.waiters, s: s}}
		took, _, err := f.takeFor(ctx, q.requests, 1, true)
		if took || !errors.Is(err, backend.ErrClosed) {
			t.Errorf("took an item: %t, error %v", took, err)
		}
		select {
		case ans := <-a.reply:
			t.Errorf("the caller has got %d items, error %v", len(ans.claims), ans.err)
		default:
		}
		u.End()
		<-closed
	})
}

package coord

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/memory"
)

// A caller that was passed the turn with the node of a stay is not granted if the session is
// lost, or the node deleted, before it goes on.
func TestAGrantInMemoryTestsSessionAndNode(t *testing.T) {
	for name, strike := range map[string]func(st *memory.Store, link *memory.Link, k *stay){
		"session": func(_ *memory.Store, link *memory.Link, k *stay) { link.Expire(k.s.b.ID()) },
		"node": func(st *memory.Store, _ *memory.Link, k *stay) {
			other, _ := st.Open(context.Background())
			defer other.Close()
			if _, err := other.Commit(context.Background(), backend.Delete(k.path, backend.AnyVersion)); err != nil {
				t.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, st := context.Background(), memory.New(nil)
				link := st.Link("a")
				c, err := Open(ctx, link, nil)
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				m := NewMutex(c, "/l", &MutexOptions{Keep: time.Hour})
				h, err := m.Lock(ctx)
				if err != nil || h.Release() != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				r := &request{op: "lock", data: m.data, keep: m.keep}
				q, w, err := c.join(*m.line(), r)
				if err != nil || w != nil || r.berth.state != berthKept {
					t.Fatal(err, w, r.berth)
				}
				strike(st, link, r.berth.stay)
				synctest.Wait()
				if h := q.resume(ctx, r, r.berth.stay); h != nil {
					t.Errorf("granted: %v", h.Err())
				}
				q.advance()
				if h, err = m.Lock(ctx); err != nil || h.Release() != nil {
					t.Error(err)
				}
			})
		})
	}
}

package recipetest

import (
	"errors"
	"testing"
	"testing/synctest"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/memory"
	"github.com/go-coord/coord/internal/layout"
)

// Another program writes to the directory of a lock that is in use. The next creation of a node overwrites the data, and
// the lock keeps working, on services that write for a Carry and on those that compare.
func TestMutex_AForeignWriteToItsDirectoryIsOverwritten(t *testing.T) {
	for _, revisions := range []bool{false, true} {
		for _, data := range []string{"foreign", "17", ""} {
			for _, held := range []bool{false, true} {
				synctest.Test(t, func(t *testing.T) {
					st := memory.New(&memory.Options{Revisions: revisions})
					open := func(b backend.Backend) *coord.Client {
						c, err := coord.Open(t.Context(), b, nil)
						if err != nil {
							t.Fatal(err)
						}
						t.Cleanup(func() { c.Close() })
						return c
					}
					c, other := open(st.Link("a")), open(st.Link("b"))
					m, n := coord.NewMutex(c, "/lock", nil), coord.NewMutex(other, "/lock", nil)
					for _, m := range []*coord.Mutex{m, n, m, n} {
						h, err := m.Lock(t.Context())
						if err != nil {
							t.Fatal(err)
						}
						h.Release()
					}
					if held {
						h, err := n.Lock(t.Context())
						if err != nil {
							t.Fatal(err)
						}
						defer h.Release()
					}
					s, err := c.Session(t.Context())
					if err != nil {
						t.Fatal(err)
					}
					if _, err := s.Commit(t.Context(), backend.SetData("/lock", []byte(data), backend.AnyVersion)); err != nil {
						t.Fatal(err)
					}
					h, err := m.TryLock(t.Context())
					if held != errors.Is(err, coord.ErrLocked) || !held && err != nil {
						t.Fatalf("revisions %v, data %q, held %v: %v", revisions, data, held, err)
					}
					if held {
						return
					}
					if kept, _, err := s.Get(t.Context(), "/lock", nil); err != nil || string(kept) != string(layout.KindMutex.Mark()) {
						t.Errorf("revisions %v, data %q, held %v: the directory has %q, %v", revisions, data, held, kept, err)
					}
					h.Release()
					for _, m := range []*coord.Mutex{n, m} {
						h, err := m.Lock(t.Context())
						if err != nil {
							t.Fatal(err)
						}
						h.Release()
					}
				})
			}
		}
	}
}

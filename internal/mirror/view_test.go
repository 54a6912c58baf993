package mirror

import (
	"context"
	"strconv"
	"testing"
	"testing/synctest"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/memory"
	"github.com/go-coord/coord/internal/core"
)

func TestView_ForgetsNodesThatAreGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memory.New(nil)
		c, err := core.Open(t.Context(), st.Link("a"), core.Config{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		s, err := st.Link("outsider").Open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		commit := func(op backend.Op) {
			t.Helper()
			if _, err := s.Commit(t.Context(), op); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		k := New(c, "/config", 0)
		v := NewView(k, func(_ string, n Node) string { return string(n.Data) })
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- k.Run(ctx) }()
		defer func() {
			stop()
			<-done
		}()
		commit(backend.Create("/config", nil, backend.Persistent))
		for i := range 500 {
			path := "/config/" + strconv.Itoa(i)
			commit(backend.Create(path, []byte("1"), backend.Persistent))
			if got, ok := v.Get(path); !ok || got != "1" {
				t.Fatalf("%q, %v", got, ok)
			}
			commit(backend.Delete(path, 0))
		}
		if n := len(v.decoded); n < 1 || n > 70 {
			t.Errorf("the view keeps %d values of one node", n)
		}
	})
}

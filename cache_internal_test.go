package coord

import (
	"context"
	"strconv"
	"testing"
	"testing/synctest"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/memory"
)

func TestCacheView_ForgetsNodesThatAreGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memory.New(nil)
		c, err := Open(t.Context(), st.Link("a"), nil)
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
		k := NewCache(c, "/config", nil)
		v := NewCacheView(k, Codec[int]{})
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
			if got, ok := v.Get(path); !ok || got.Value != 1 {
				t.Fatalf("%+v, %v", got, ok)
			}
			commit(backend.Delete(path, 0))
		}
		if n := len(v.decoded); n < 1 || n > 70 {
			t.Errorf("the view keeps %d values of one node", n)
		}
	})
}

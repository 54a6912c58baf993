package zookeeper_test

import (
	"testing"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/zookeeper"
)

// A server of version 3.6 or later knows the requests for many reads at once and for
// persistent watches.
func TestAServerKnowsTheRequestsForTrees(t *testing.T) {
	t.Parallel()
	s := newScene(t, zookeeper.Options{})
	c := s.open(s.link)
	a, missing := s.path("a"), s.path("missing")
	s.commit(c, backend.Create(a, []byte("data"), backend.Persistent), backend.Create(a+"/child", nil, backend.Persistent))
	s.commit(c, backend.SetData(a, []byte("more"), 0))
	got, err := zookeeper.MultiRead(s.ctx, c, a, missing, a+"/child")
	want := `0 "more" 1 []; 0 "" 0 [child]; -101 "" 0 []; -101 "" 0 []; 0 "" 0 []; 0 "" 0 []; `
	if err != nil || got != want {
		t.Errorf("many reads: %v, %v, want %v", got, err, want)
	}
	// The second removal finds nothing.
	for _, want := range []int32{0, -121} {
		if want == 0 {
			if code, err := zookeeper.AddWatch(s.ctx, c, a); code != 0 || err != nil {
				t.Errorf("a watch of a tree: %d, %v", code, err)
			}
		}
		if code, err := zookeeper.RemoveWatches(s.ctx, c, a); code != want || err != nil {
			t.Errorf("its removal: %d, %v, want %d", code, err, want)
		}
	}
}

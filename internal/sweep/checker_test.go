package sweep

import (
	"context"
	"testing"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend/memory"
)

// A lost session excuses the holds of that session. Holds of the next session are judged like
// any other.
func TestALostSessionExcusesNoLaterHold(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	store := memory.New(nil)
	x := &cell{ctx: ctx, cancel: cancel, state: make(map[string]any)}
	lock := func(p *player, path string) *coord.Hold {
		t.Helper()
		h, err := coord.NewMutex(p.c, path, nil).Lock(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	join := func(name string) *player {
		t.Helper()
		p := &player{x: x, name: name, under: store.Link(name)}
		c, err := coord.Open(ctx, p, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		p.c = c
		return p
	}
	a, b := join("a"), join("b")
	r := x.resource("r", 1)

	first := lock(a, "/a")
	r.enter(a, first, 1)
	store.Link("a").Expire(first.Session())
	<-first.Done()
	r.enter(b, lock(b, "/b"), 1)
	if len(x.violations) != 0 {
		t.Fatalf("the hold of the lost session was judged: %q", x.violations)
	}
	r.enter(a, lock(a, "/a"), 1)
	if len(x.violations) != 1 {
		t.Errorf("two are inside, but the violations are %q", x.violations)
	}
}

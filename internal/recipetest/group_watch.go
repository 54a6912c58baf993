package recipetest

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/coordtest"
)

// watching is a Watch whose elements are checked as they are received.
type watching struct {
	coordtest.GroupReader
	w  *world
	ch <-chan coord.GroupUpdate[string]
}

func (w *world) watch(ctx context.Context, g *coord.Group[string]) *watching {
	return &watching{w: w, ch: g.Watch(ctx)}
}

// next takes the next element.
func (x *watching) next() coord.GroupUpdate[string] {
	x.w.T.Helper()
	select {
	case m, ok := <-x.ch:
		if !ok {
			x.w.T.Fatalf("the watch was closed after %s", brief(x.Last.Members))
		}
		if err := x.Take(m); err != nil {
			x.w.T.Error(err)
		}
	case <-time.After(coordtest.Limit):
		x.w.T.Fatalf("the watch reported nothing after %s", brief(x.Last.Members))
	}
	return x.Last
}

// until takes elements until the list is want. It returns them.
func (x *watching) until(want string) (all []coord.GroupUpdate[string]) {
	x.w.T.Helper()
	for {
		m := x.next()
		all = append(all, m)
		if brief(m.Members) == want {
			return all
		}
		if len(all) > 1000 {
			x.w.T.Fatalf("never came: %s", want)
		}
	}
}

// another takes elements until the id has another incarnation than old. It returns that
// incarnation, and whether the id was free in between.
func (x *watching) another(old coord.Member[string]) (now coord.Member[string], vacant bool) {
	x.w.T.Helper()
	for {
		i := slices.IndexFunc(x.Last.Members, func(m coord.Member[string]) bool { return m.ID == old.ID })
		switch {
		case i < 0:
			vacant = true
		case x.Last.Members[i].Token != old.Token:
			return x.Last.Members[i], vacant
		}
		x.next()
	}
}

// closed drains the channel and returns its last element.
func (x *watching) closed() coord.GroupUpdate[string] {
	x.w.T.Helper()
	for m := range x.ch {
		if err := x.Take(m); err != nil {
			x.w.T.Error(err)
		}
	}
	return x.Last
}

// groupWatchTests are tests of Group on each service.
type groupWatchTests struct{ Services }

func (on groupWatchTests) WaitWaitsForTheNumber(t *testing.T) {
	on.all(t, func(w *world) {
		ctx := context.Background()
		g := w.group("a", nil)
		if list, err := g.Wait(ctx, 0); err != nil || len(list) != 0 {
			w.T.Errorf("%v, %v", list, err)
		}
		type result struct {
			list []coord.Member[string]
			err  error
		}
		waiter := w.group("b", nil)
		got := make(chan result, 1)
		go func() {
			list, err := waiter.Wait(ctx, 3)
			got <- result{list, err}
		}()
		var all []*coord.Membership[string]
		for _, id := range []string{"a", "b", "c"} {
			w.Settle()
			select {
			case r := <-got:
				w.T.Fatalf("Wait returned before %s had joined: %v, %v", id, r.list, r.err)
			default:
			}
			all = append(all, mustJoin(w.T, g, id, "1"))
		}
		if r := <-got; r.err != nil || brief(r.list) != "a=1 b=1 c=1" {
			w.T.Errorf("%v, %v", r.list, r.err)
		}
		short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
		defer cancel()
		_, err := waiter.Wait(short, 4)
		coordtest.WantErr(w.T, err, context.DeadlineExceeded)
		for _, m := range all {
			mustLeave(w.T, m)
		}
	})
}

func (on groupWatchTests) TheWatchOutlivesTheDirectory(t *testing.T) {
	on.all(t, func(w *world) {
		ctx := context.Background()
		g, s := w.group("a", nil), w.Session("x")
		watch := w.watch(ctx, w.group("b", nil))
		watch.next()
		for i := range 3 {
			m := mustJoin(w.T, g, "x", fmt.Sprint(i))
			watch.until(fmt.Sprint("x=", i))
			mustLeave(w.T, m)
			watch.until("")
			// The service deletes an empty container, or an outsider does.
			if _, err := s.Commit(ctx, backend.Delete(w.Path("/g"), backend.AnyVersion)); err != nil {
				w.T.Fatal(err)
			}
			if i == 1 {
				w.Settle() // the watch waits for the directory to be made
			}
		}
	})
}

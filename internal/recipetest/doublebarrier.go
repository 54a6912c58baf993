package recipetest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/internal/coordtest"
)

// entering is an Enter under way.
type entering struct {
	*call
	e *coord.Entry
}

func (w *world) enter(ctx context.Context, d *coord.DoubleBarrier) *entering {
	x := &entering{}
	x.call = w.call(func() (err error) {
		x.e, err = d.Enter(ctx)
		return err
	})
	return x
}

// entry waits for the entry.
func (x *entering) entry() *coord.Entry {
	x.w.T.Helper()
	x.w.must(x.end())
	return x.e
}

func (w *world) leave(e *coord.Entry) *call {
	return w.call(func() error { return e.Leave(context.Background()) })
}

// stand waits until the barrier is in the state want.
func (w *world) stand(d *coord.DoubleBarrier, want coord.DoubleBarrierState) {
	w.T.Helper()
	var st coord.DoubleBarrierState
	var err error
	w.Eventually(fmt.Sprintf("%+v at the barrier", want), func() bool {
		st, err = d.State(context.Background())
		w.must(err)
		return st == want
	})
}

// doubles opens clients, and returns a double barrier at path for each.
func (w *world) doubles(clients int, path string, n int, o *coord.DoubleBarrierOptions) []*coord.DoubleBarrier {
	w.T.Helper()
	var all []*coord.DoubleBarrier
	for i := range clients {
		all = append(all, coord.NewDoubleBarrier(w.Open(fmt.Sprint(i), nil), path, n, o))
	}
	return all
}

// inside lets all of ds enter, one after the other, and returns their entries in this order.
func (w *world) inside(ds []*coord.DoubleBarrier) []*coord.Entry {
	w.T.Helper()
	var in []*entering
	for i, d := range ds {
		in = append(in, w.enter(context.Background(), d))
		if i < len(ds)-1 {
			w.stand(d, coord.DoubleBarrierState{Waiting: i + 1})
		}
	}
	var es []*coord.Entry
	for _, x := range in {
		es = append(es, x.entry())
	}
	return es
}

func (w *world) bare(path string) {
	w.T.Helper()
	w.Empty(path + "/members")
	w.Eventually("no ready at "+path, func() bool { return !strings.Contains(fmt.Sprint(w.Children(path)), "ready") })
}

// doublebarrierTests are tests of DoubleBarrier on each service.
type doublebarrierTests struct{ Services }

func (on doublebarrierTests) MembersEnterTogetherAndLeaveTogetherRoundAfterRound(t *testing.T) {
	on.each(t, func(w *world) {
		const n = 4
		ds := w.doubles(n, "/d", n, nil)
		for range 3 {
			var in []*entering
			for i, d := range ds[:n-1] {
				in = append(in, w.enter(context.Background(), d))
				w.stand(d, coord.DoubleBarrierState{Waiting: i + 1})
			}
			for _, x := range in {
				x.pending("one is missing")
			}
			in = append(in, w.enter(context.Background(), ds[n-1]))
			var out []*call
			for _, x := range in {
				if e := x.entry(); e.Extra() || e.Err() != nil || e.Token() != 0 {
					w.T.Errorf("entry of a member: extra %v, %v, token %d", e.Extra(), e.Err(), e.Token())
				}
			}
			w.stand(ds[0], coord.DoubleBarrierState{Inside: n})
			for _, x := range in[:n-1] {
				out = append(out, w.leave(x.e))
				<-x.e.Done()
				coordtest.WantErr(w.T, x.e.Err(), coord.ErrReleased)
			}
			for _, c := range out {
				c.pending("one is inside")
			}
			w.must(in[n-1].e.Leave(context.Background()))
			for _, c := range out {
				w.must(c.end())
			}
			w.must(in[0].e.Leave(context.Background())) // again
			w.must(in[0].e.Release())
			w.bare("/d")
		}
	})
}

func (on doublebarrierTests) AnExtraEntrantJoinsTheRoundInProgress(t *testing.T) {
	on.each(t, func(w *world) {
		ds := w.doubles(3, "/d", 2, nil)
		es := w.inside(ds[:2])
		extra := w.enter(context.Background(), ds[2]).entry()
		if !extra.Extra() || es[0].Extra() {
			w.T.Error("the wrong entrant is extra")
		}
		w.stand(ds[0], coord.DoubleBarrierState{Inside: 2, Extra: 1})
		// An extra entrant that leaves waits for the members, which do not wait for it.
		first := w.leave(es[0])
		another := w.enter(context.Background(), ds[2]).entry()
		late := w.leave(another)
		late.pending("a member is inside")
		w.must(es[1].Leave(context.Background()))
		w.must(first.end())
		w.must(late.end())
		// While it is inside, an extra entrant is no member of the next round.
		next := w.enter(context.Background(), ds[0])
		w.stand(ds[0], coord.DoubleBarrierState{Waiting: 1, Extra: 1})
		next.pending("one has come, and an extra of the round before is inside")
		w.must(extra.Leave(context.Background()))
		second := w.enter(context.Background(), ds[2])
		a, b := w.leave(next.entry()), w.leave(second.entry())
		w.must(a.end())
		w.must(b.end())
		w.bare("/d")
	})
}

func (on doublebarrierTests) AnExtraEntrantWaitsForTheNextRoundByOption(t *testing.T) {
	on.each(t, func(w *world) {
		ds := w.doubles(4, "/d", 2, &coord.DoubleBarrierOptions{WaitForNextRound: true})
		es := w.inside(ds[:2])
		third, fourth := w.enter(context.Background(), ds[2]), w.enter(context.Background(), ds[3])
		w.stand(ds[0], coord.DoubleBarrierState{Waiting: 2, Inside: 2})
		third.pending("a round is in progress")
		fourth.pending("a round is in progress")
		first := w.leave(es[0])
		first.pending("a member is inside")
		w.must(es[1].Leave(context.Background())) // does not count the entrants that wait
		w.must(first.end())
		a, b := w.leave(third.entry()), w.leave(fourth.entry())
		w.must(a.end())
		w.must(b.end())
		w.bare("/d")
	})
}

// Entrants that wait for the next round also enter if all members of the round in progress die,
// and no member removes its ready node.
func (on doublebarrierTests) TheNextRoundOpensAfterOneThatDied(t *testing.T) {
	on.each(t, func(w *world) {
		ds := w.doubles(4, "/d", 2, &coord.DoubleBarrierOptions{WaitForNextRound: true})
		es := w.inside(ds[:2])
		third, fourth := w.enter(context.Background(), ds[2]), w.enter(context.Background(), ds[3])
		w.stand(ds[0], coord.DoubleBarrierState{Waiting: 2, Inside: 2})
		for i, e := range es {
			w.Link(fmt.Sprint(i)).Expire(e.Session())
		}
		a, b := w.leave(third.entry()), w.leave(fourth.entry())
		w.must(a.end())
		w.must(b.end())
		w.bare("/d")
	})
}

func (on doublebarrierTests) ADoubleBarrierOfOneAndSeveralMembersOfOneClient(t *testing.T) {
	on.each(t, func(w *world) {
		c := w.Open("a", nil)
		one := coord.NewDoubleBarrier(c, "/one", 1, nil)
		for range 3 {
			e := w.enter(context.Background(), one).entry()
			w.must(e.Leave(context.Background()))
		}
		w.bare("/one")
		two := coord.NewDoubleBarrier(c, "/two", 2, nil)
		a, b := w.enter(context.Background(), two), w.enter(context.Background(), two)
		x, y := w.leave(a.entry()), w.leave(b.entry())
		w.must(x.end())
		w.must(y.end())
		w.bare("/two")
	})
}

func (on doublebarrierTests) ReleaseLeavesWithoutWaiting(t *testing.T) {
	on.each(t, func(w *world) {
		ds := w.doubles(2, "/d", 2, nil)
		es := w.inside(ds)
		w.must(es[0].Release())
		w.stand(ds[0], coord.DoubleBarrierState{Inside: 1})
		late := w.leave(es[0]) // waits nevertheless
		late.pending("a member is inside")
		w.must(es[1].Release())
		w.must(late.end())
		w.bare("/d")
	})
}

func (on doublebarrierTests) NodesOfOthersDoNotCountAtADoubleBarrier(t *testing.T) {
	on.each(t, func(w *world) {
		ds := w.doubles(2, "/d", 2, nil)
		first := w.enter(context.Background(), ds[0])
		w.stand(ds[0], coord.DoubleBarrierState{Waiting: 1})
		dir := w.Path("/d/members/")
		for _, name := range []string{"README", "member-0000000001", "_c_s1", "x-99999999999",
			"_c_00000000-0000-4000-8000-000000000000-member-0000000001", "_c_00000000-0000-8000-8000-000000000000-member--1"} {
			w.commit(backend.Create(dir+name, nil, backend.Persistent))
		}
		// Foreign data on the directory must not be erased.
		w.commit(backend.SetData(w.Path("/d"), []byte("mine"), backend.AnyVersion))
		w.stand(ds[0], coord.DoubleBarrierState{Waiting: 1})
		first.pending("only one has come")
		second := w.enter(context.Background(), ds[1])
		a, b := w.leave(first.entry()), w.leave(second.entry())
		w.must(a.end())
		w.must(b.end())
		data, _, err := w.Session("x").Get(context.Background(), w.Path("/d"), nil)
		w.must(err)
		if string(data) != "mine" {
			w.T.Errorf("the data of the directory is %q", data)
		}
	})
}

func (on doublebarrierTests) ADoubleBarrierRefusesBadUse(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		c := w.Open("a", nil)
		for _, x := range []struct {
			path string
			n    int
			want error
		}{{"bad", 2, coord.ErrBadPath}, {"/d", 0, coord.ErrInvalid}, {"/d", 1 << 40, coord.ErrTooLarge}} {
			d := coord.NewDoubleBarrier(c, x.path, x.n, nil)
			_, err := d.Enter(ctx)
			var e *backend.Error
			if !errors.Is(err, x.want) || !errors.As(err, &e) || e.Op != "enter" {
				w.T.Errorf("%q, %d: %v", x.path, x.n, err)
			}
			_, err = d.State(ctx)
			coordtest.WantErr(w.T, err, x.want)
		}
		ended, cancel := context.WithCancel(ctx)
		cancel()
		_, err := coord.NewDoubleBarrier(c, "/d", 1, nil).Enter(ended)
		coordtest.WantErr(w.T, err, context.Canceled)

		// Another number of members.
		two, three := coord.NewDoubleBarrier(c, "/d", 2, nil), coord.NewDoubleBarrier(c, "/d", 3, nil)
		wrong := w.enter(ctx, three)
		w.stand(two, coord.DoubleBarrierState{Waiting: 1})
		right := w.enter(ctx, two).entry()
		coordtest.WantErr(w.T, wrong.end(), coord.ErrLimit)
		_, err = three.Enter(ctx) // would join
		coordtest.WantErr(w.T, err, coord.ErrLimit)
		w.must(right.Leave(ctx))
		w.bare("/d")

		waiting := w.enter(ctx, two)
		w.stand(two, coord.DoubleBarrierState{Waiting: 1})
		inside := w.enter(ctx, coord.NewDoubleBarrier(c, "/one", 1, nil)).entry()
		c.Close()
		coordtest.WantErr(w.T, waiting.end(), coord.ErrClosed)
		coordtest.WantErr(w.T, inside.Leave(ctx), coord.ErrLost, coord.ErrClosed)
		_, err = two.Enter(ctx)
		coordtest.WantErr(w.T, err, coord.ErrClosed)
	})
}

// cameAnew waits until the lost session of the client at link b, whose Enter waits with the
// node first, has ended. It deletes the directory of members, and waits until the call has
// another node of the same name.
func (w *world) cameAnew(first string) {
	w.T.Helper()
	w.Eventually("the nodes of the lost sessions are gone", func() bool { return len(w.Children("/d/members")) == 0 })
	w.commit(backend.Delete("/d/members", backend.AnyVersion)) // as the service does with an empty container
	w.Link("b").Heal()
	w.Eventually("it has entered again, under the same name", func() bool {
		now := w.Children("/d/members")
		return len(now) == 1 && now[0] == first
	})
	w.Settle()
}

// does matches commits with an operation of this kind on a path that contains name.
func does(kind backend.OpKind, name string) func(backendtest.Call) bool {
	return func(c backendtest.Call) bool {
		for _, op := range c.Ops {
			if op.Kind == kind && strings.Contains(op.Path, name) {
				return true
			}
		}
		return false
	}
}

// A member that leaves while the last entrant opens the round is not counted.
func (on doublebarrierTests) AMemberThatLeavesAtTheLastMomentDoesNotCount(t *testing.T) {
	on.each(t, func(w *world) {
		var before coordtest.Nth
		last := coord.NewDoubleBarrier(w.Open("last", &backendtest.Hooks{Before: before.Before}), "/d", 2, nil)
		d := coord.NewDoubleBarrier(w.Open("a", nil), "/d", 2, nil)
		ctx, cancel := context.WithCancel(context.Background())
		first := w.enter(ctx, d)
		w.stand(d, coord.DoubleBarrierState{Waiting: 1})
		gone := make(chan struct{})
		before.Arm(1, does(backend.OpCreate, "/ready"), func(context.Context, backendtest.Call, error) error {
			defer close(gone)
			cancel()
			w.Eventually("the first has gone", func() bool { return len(w.Children("/d/members")) == 1 })
			return nil
		})
		second := w.enter(context.Background(), last)
		coordtest.WantErr(w.T, first.end(), context.Canceled)
		<-gone
		w.stand(d, coord.DoubleBarrierState{Waiting: 1})
		second.pending("the first has gone")
		third := w.enter(context.Background(), d)
		w.must(second.entry().Release())
		w.must(third.entry().Release())
		w.bare("/d")
	})
}

// An entrant that is about to join a round becomes a member of the next if the round ends.
func (on doublebarrierTests) AnEntrantThatIsTooLateToJoinWaitsForTheNextRound(t *testing.T) {
	on.each(t, func(w *world) {
		var before coordtest.Nth
		late := coord.NewDoubleBarrier(w.Open("late", &backendtest.Hooks{Before: before.Before}), "/d", 2, nil)
		ds := w.doubles(2, "/d", 2, nil)
		es := w.inside(ds)
		over := make(chan struct{})
		before.Arm(1, does(backend.OpCreate, "guest-"), func(context.Context, backendtest.Call, error) error {
			defer close(over)
			w.must(es[0].Release())
			return es[1].Release()
		})
		x := w.enter(context.Background(), late)
		<-over
		w.stand(ds[0], coord.DoubleBarrierState{Waiting: 1})
		x.pending("the round is over")
		y := w.enter(context.Background(), ds[0])
		if e := x.entry(); e.Extra() {
			w.T.Error("it joined a round that was over")
		}
		w.must(x.e.Release())
		w.must(y.entry().Release())
		w.bare("/d")
	})
}

// Every new ready has version 0. A slow client that removed a stale one on that condition alone
// would remove the next one.
func (on doublebarrierTests) TheRemovalOfAStaleReadySparesTheNext(t *testing.T) {
	on.each(t, func(w *world) {
		var before coordtest.Nth
		slow := coord.NewDoubleBarrier(w.Open("slow", &backendtest.Hooks{Before: before.Before}), "/d", 2, nil)
		ds := w.doubles(2, "/d", 2, nil)
		for i, e := range w.inside(ds) {
			w.Link(fmt.Sprint(i)).Expire(e.Session())
			<-e.Done()
		}
		at, let := make(chan struct{}), make(chan struct{})
		before.Arm(1, does(backend.OpDelete, "/ready"), func(context.Context, backendtest.Call, error) error {
			close(at)
			<-let
			return nil
		})
		x := w.enter(context.Background(), slow) // the next round lists it while it is about to remove the stale ready
		<-at
		y := w.enter(context.Background(), ds[0]).entry()
		observer := w.Session("observer")
		opened, err := observer.Exists(context.Background(), w.Path("/d/ready"), nil)
		w.must(err)
		close(let)
		e := x.entry()
		w.must(observer.Sync(context.Background(), w.Path("/d")))
		if now, err := observer.Exists(context.Background(), w.Path("/d/ready"), nil); err != nil || now.Czxid != opened.Czxid {
			w.T.Errorf("the ready of the open round was replaced: %v", err)
		}
		w.stand(ds[0], coord.DoubleBarrierState{Inside: 2})
		out := w.leave(e)
		out.pending("a member is inside")
		w.must(y.Leave(context.Background()))
		w.must(out.end())
		w.bare("/d")
	})
}

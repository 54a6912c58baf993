package recipetest

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/internal/coordtest"
)

// shardsFaultTests are tests of Shards on each service.
type shardsFaultTests struct{ Services }

// A short loss of contact, also of the member's node, moves nothing.
func (on shardsFaultTests) ABlipMovesNoShard(t *testing.T) {
	on.all(t, func(w *world) {
		x := newCrew(w, 10)
		a := x.start("a", coord.ShardsOptions{})
		b := x.start("b", coord.ShardsOptions{})
		x.loads(map[*crewMember]int{a: 5, b: 5})
		before, grants := x.ids(), x.granted()
		w.Link("a").Partition()
		awaitPhase(w.T, a.c, coord.PhaseSuspended)
		w.Link("a").Heal()
		awaitPhase(w.T, a.c, coord.PhaseConnected)
		w.Settle()
		// An outsider deletes the node of the member, which joins again.
		for _, name := range w.Children("/s/workers") {
			w.Destroy(w.Path("/s/workers/" + name))
		}
		w.Eventually("both are members again", func() bool { return len(w.Children("/s/workers")) == 2 })
		c := x.start("c", coord.ShardsOptions{}) // so that all have seen that
		x.loads(map[*crewMember]int{a: 4, b: 3, c: 3})
		if n := x.granted() - grants; moves(before, x.ids()) != n {
			w.T.Errorf("%d shards have another owner after %d grants", moves(before, x.ids()), n)
		}
	})
}

// The shards of a dead process move to the others, when its session has ended.
func (on shardsFaultTests) TheShardsOfADeadProcessMove(t *testing.T) {
	on.all(t, func(w *world) {
		x := newCrew(w, 12)
		a := x.start("a", coord.ShardsOptions{})
		b := x.start("b", coord.ShardsOptions{})
		c := x.start("c", coord.ShardsOptions{})
		x.loads(map[*crewMember]int{a: 4, b: 4, c: 4})
		before := x.ids()
		w.Link("a").Partition()
		x.loads(map[*crewMember]int{b: 6, c: 6})
		if n := moves(before, x.ids()); n > 4+4 {
			w.T.Errorf("%d shards moved when the owner of 4 died", n)
		}
		w.Link("a").Heal()
		x.loads(map[*crewMember]int{a: 4, b: 4, c: 4})
		if !slices.Equal(before, x.ids()) {
			w.T.Errorf("a member came back: %v, want %v", x.ids(), before)
		}
	})
}

// A process that comes back under its ID before its session has ended gets its shards at once,
// and no shard of another member moves.
func (on shardsFaultTests) ARestartMovesNoShard(t *testing.T) {
	on.all(t, func(w *world) {
		x := newCrew(w, 9)
		a := x.start("a", coord.ShardsOptions{})
		b := x.start("b", coord.ShardsOptions{})
		c := x.start("c", coord.ShardsOptions{})
		x.loads(map[*crewMember]int{a: 3, b: 3, c: 3})
		before, grants := x.ids(), x.granted()
		w.Link("a").Partition() // the process hangs or is dead; the service does not know which
		x.replaced(a)
		began := time.Now()
		again := x.startOn(w.Open("again", nil), "a", coord.ShardsOptions{})
		x.loads(map[*crewMember]int{again: 3, b: 3, c: 3})
		if !slices.Equal(before, x.ids()) || x.granted() != grants+3 {
			w.T.Errorf("%v with %d grants, want %v with 3", x.ids(), x.granted()-grants, before)
		}
		if d := time.Since(began); w.Fake && d > w.Timeout/2 {
			w.T.Errorf("it has its shards after %v, as if it had waited for the end of the former session", d)
		}
		w.Link("a").Heal()
		coordtest.WantErr(w.T, a.wait(), coord.ErrDuplicate)
		x.loads(map[*crewMember]int{again: 3, b: 3, c: 3})
	})
}

// A member with another number of shards is refused, and disturbs no other.
func (on shardsFaultTests) MembersAgreeOnTheNumberOfShards(t *testing.T) {
	on.each(t, func(w *world) {
		x := newCrew(w, 6)
		a := x.start("a", coord.ShardsOptions{})
		x.loads(map[*crewMember]int{a: 6})
		grants := x.granted()
		err := coord.NewShards(w.Open("b", nil), "/s", 7, nil).Run(context.Background(), func(context.Context, *coord.Shard) error {
			w.T.Error("a shard of another number")
			return nil
		})
		coordtest.WantErr(w.T, err, coord.ErrInvalid)
		x.loads(map[*crewMember]int{a: 6})
		if x.granted() != grants {
			w.T.Errorf("%d shards were granted again", x.granted()-grants)
		}
		other, err := coord.NewGroup[string](w.Open("other", nil), "/s/workers", nil).Join(context.Background(), "other", "not a worker")
		if err != nil {
			w.T.Fatal(err)
		}
		defer other.Leave()
		c := x.start("c", coord.ShardsOptions{})
		coordtest.WantErr(w.T, c.wait(), coord.ErrDecode) // an older one cannot be read
		x.loads(map[*crewMember]int{a: 6})
	})
}

// Two processes with one ID: the later one has the shards, and the former one ends.
func (on shardsFaultTests) TheLaterOfTwoProcessesWithOneIDHasTheShards(t *testing.T) {
	on.each(t, func(w *world) {
		x := newCrew(w, 5)
		a := x.start("a", coord.ShardsOptions{})
		x.loads(map[*crewMember]int{a: 5})
		x.replaced(a)
		b := x.startOn(w.Open("b", nil), "a", coord.ShardsOptions{})
		coordtest.WantErr(w.T, a.wait(), coord.ErrDuplicate)
		x.loads(map[*crewMember]int{b: 5})
	})
}

// A shard that its owner releases, and one that an operator revokes, are acquired again.
func (on shardsFaultTests) AShardThatIsReleasedComesAgain(t *testing.T) {
	on.each(t, func(w *world) {
		ctx, stop := context.WithCancel(context.Background())
		defer stop()
		c := w.Open("a", nil)
		var tokens []int64
		for sh, err := range coord.NewShards(c, "/s", 1, nil).All(ctx) {
			if err != nil {
				w.T.Fatal(err)
			}
			tokens = append(tokens, sh.Token())
			switch len(tokens) {
			case 1:
				if err := sh.Release(); err != nil {
					w.T.Error(err)
				}
			case 2:
				go coord.NewMutex(c, "/s/shards/0", nil).Revoke(ctx, &coord.RevokeOptions{Reason: "restart"})
				<-sh.Revoked()
				if q, _ := sh.Revocation(); q.Reason != "restart" {
					w.T.Errorf("%+v", q)
				}
				sh.Release()
			case 3:
				w.Destroy(sh.Path())
				<-sh.Done()
			case 4:
				stop()
				sh.Release()
			}
		}
		if len(tokens) != 4 || !slices.IsSorted(tokens) {
			w.T.Errorf("tokens %v", tokens)
		}
	})
}

// What the loop has not handed out is given back when it ends; what it has is asked for.
func (on shardsFaultTests) TheEndOfTheLoopGivesBackShards(t *testing.T) {
	on.all(t, func(w *world) {
		c := w.Open("a", nil)
		var mine *coord.Shard
		for sh, err := range coord.NewShards(c, "/s", 8, nil).All(context.Background()) {
			if err != nil {
				w.T.Fatal(err)
			}
			mine = sh
			w.Settle()
			break
		}
		select {
		case <-mine.Revoked():
		case <-time.After(time.Minute):
			w.T.Error("the shard that was handed out is not asked for")
		}
		if mine.Err() != nil {
			w.T.Error(mine.Err())
		}
		w.Empty("/s/workers")
		for i := range 8 {
			want := 0
			if i == mine.Index {
				want = 1
			}
			w.Eventually("other shards are free", func() bool { return len(w.Children(fmt.Sprint("/s/shards/", i))) == want })
		}
		coordtest.MustRelease(w.T, mine.Hold)
	})
}

func (on shardsFaultTests) ErrorsOfShards(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		c := w.Open("a", nil)
		work := func(context.Context, *coord.Shard) error { return nil }
		for _, s := range []*coord.Shards{
			coord.NewShards(c, "/s", 0, nil), coord.NewShards(c, "/s", 65_537, nil),
			coord.NewShards(c, "/s", 1, &coord.ShardsOptions{Weight: -1}), coord.NewShards(c, "/s", 1, &coord.ShardsOptions{Weight: 1001}),
			coord.NewShards(c, "/s", 1, &coord.ShardsOptions{ForceAfter: -1}), coord.NewShards(c, "/s", 1, &coord.ShardsOptions{ID: "\xff"}),
		} {
			coordtest.WantErr(w.T, s.Run(ctx, work), coord.ErrInvalid)
		}
		coordtest.WantErr(w.T, coord.NewShards(c, "/s", 1, nil).Run(ctx, nil), coord.ErrInvalid)
		coordtest.WantErr(w.T, coord.NewShards(c, "s", 1, nil).Run(ctx, work), coord.ErrBadPath)
		coordtest.WantErr(w.T, coord.NewShards(c, "/s", 1, &coord.ShardsOptions{ID: "a/b"}).Run(ctx, work), coord.ErrBadPath)
		_, err := coord.NewShards(c, "s", 1, nil).Owners(ctx)
		coordtest.WantErr(w.T, err, coord.ErrBadPath)
		over, stop := context.WithCancel(ctx)
		stop()
		if err := coord.NewShards(c, "/s", 1, nil).Run(over, work); err != nil {
			w.T.Error(err)
		}
		owners, err := coord.NewShards(c, "/never", 3, nil).Owners(ctx)
		if err != nil || len(owners) != 3 || owners[0].Token != 0 {
			w.T.Errorf("%v, %v", owners, err)
		}
		done := make(chan error, 1)
		granted := make(chan struct{}, 4)
		go func() {
			done <- coord.NewShards(c, "/s", 4, nil).Run(ctx, func(ctx context.Context, sh *coord.Shard) error {
				granted <- struct{}{}
				<-ctx.Done()
				return nil
			})
		}()
		<-granted
		c.Close()
		coordtest.WantErr(w.T, <-done, coord.ErrClosed)
		coordtest.WantErr(w.T, coord.NewShards(c, "/s", 1, nil).Run(ctx, work), coord.ErrClosed)
	})
}

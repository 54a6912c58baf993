package recipetest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/internal/coordtest"
)

// An owner that does not give its shards up loses them after ForceAfter, and not before.
func TestShards_AShardMovesByForce(t *testing.T) {
	onMemory(t, func(w *world) {
		for _, after := range []time.Duration{0, time.Minute} {
			path := fmt.Sprint("/s", after)
			ctx := context.Background()
			open := make(chan struct{})
			var held []*coord.Shard
			stubborn, leave := context.WithCancel(ctx)
			done := make(chan error, 1)
			s := coord.NewShards(w.Open(fmt.Sprint("a", after), nil), path, 4, &coord.ShardsOptions{ID: "a", ForceAfter: after})
			go func() {
				defer close(open)
				for sh, err := range s.All(stubborn) {
					if err != nil {
						done <- err
						return
					}
					if held = append(held, sh); len(held) == 4 {
						open <- struct{}{}
					}
				}
				done <- nil
			}()
			<-open
			x := newCrew(w, 4)
			b := &crewMember{x: x, id: "b", done: make(chan struct{}), shards: make(map[int]*coord.Shard)}
			bctx, stop := context.WithCancel(ctx)
			b.s = coord.NewShards(w.Open(fmt.Sprint("b", after), nil), path, 4, nil)
			go func() {
				defer close(b.done)
				b.err = b.s.Run(bctx, b.work)
			}()
			time.Sleep(59 * time.Second)
			asked, lost := 0, 0
			count := func() {
				asked, lost = 0, 0
				for _, sh := range held {
					if _, ok := sh.Revocation(); ok {
						asked++
					}
					if errors.Is(sh.Err(), coord.ErrRevoked) {
						lost++
					}
				}
			}
			if count(); asked != 2 || lost != 0 {
				w.T.Errorf("%v: after 59 s %d are asked for and %d lost, want 2 and 0", after, asked, lost)
			}
			time.Sleep(2 * time.Second)
			want := 2
			if after == 0 {
				want = 0
			}
			if count(); lost != want || x.granted() != want {
				w.T.Errorf("%v: after 61 s %d are lost, and %d granted to the other member, want %d", after, lost, x.granted(), want)
			}
			leave()
			if err := <-done; err != nil {
				w.T.Error(err)
			}
			time.Sleep(59 * time.Second)
			if count(); asked != 4 || lost != want {
				w.T.Errorf("%v: 59 s after the end of the loop %d are asked for and %d lost, want 4 and %d", after, asked, lost, want)
			}
			time.Sleep(2 * time.Second)
			if count(); lost != 2*want || x.granted() != 2*want {
				w.T.Errorf("%v: 61 s after the end of the loop %d are lost, and %d granted, want %d", after, lost, x.granted(), 2*want)
			}
			for _, sh := range held {
				sh.Release()
			}
			w.Settle()
			if x.granted() != 4 {
				w.T.Errorf("%v: all are released, and %d are granted", after, x.granted())
			}
			stop()
			<-b.done
			if b.err != nil {
				w.T.Error(b.err)
			}
		}
	})
}

// A function that fails, panics or ends its goroutine is called again; one that returns nil is
// not, and the shard stays.
func TestShards_RunCallsAFunctionThatFailsAgain(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx, stop := context.WithCancel(context.Background())
		var calls [5]atomic.Int32
		var holds [5]atomic.Pointer[coord.Shard]
		done := make(chan error, 1)
		go func() {
			done <- coord.NewShards(w.Open("a", nil), "/s", 5, nil).Run(ctx, func(ctx context.Context, sh *coord.Shard) error {
				holds[sh.Index].Store(sh)
				if n := calls[sh.Index].Add(1); n <= 3 {
					switch sh.Index {
					case 0:
						return errors.New("fails")
					case 1:
						panic("fails")
					case 2:
						runtime.Goexit()
					case 3:
						return nil
					}
				}
				<-ctx.Done()
				return ctx.Err()
			})
		}()
		time.Sleep(time.Minute)
		for i, want := range []int32{4, 4, 4, 1, 1} {
			if n := calls[i].Load(); n != want || holds[i].Load().Err() != nil {
				w.T.Errorf("shard %d: %d calls, want %d; the hold: %v", i, n, want, holds[i].Load().Err())
			}
		}
		stop()
		if err := <-done; err != nil {
			w.T.Error(err)
		}
		w.Settle()
		for i := range holds {
			if err := holds[i].Load().Err(); !errors.Is(err, coord.ErrReleased) {
				w.T.Errorf("shard %d: %v after the end of Run", i, err)
			}
		}
	})
}

// Restart decides of the pause before the next call, from the failures in a row, and can end Run;
// then the shards move to the other members.
func TestShards_RestartDecidesWhatFollowsAFailure(t *testing.T) {
	onMemory(t, func(w *world) {
		failure := errors.New("fails")
		type asked struct {
			failures int
			err      error
			at       time.Duration
		}
		var asks []asked
		began := time.Now()
		var calls, others atomic.Int32
		drained := make(chan struct{}, 2)
		c := w.Open("a", nil)
		ctx, stop := context.WithTimeout(context.Background(), time.Hour)
		defer stop()
		err := coord.NewShards(c, "/s", 3, &coord.ShardsOptions{ID: "a", Restart: func(failures int, err error) time.Duration {
			asks = append(asks, asked{failures, err, time.Since(began)})
			if len(asks) == 5 {
				return -1
			}
			return time.Duration(failures) * time.Minute
		}}).Run(ctx, func(ctx context.Context, sh *coord.Shard) error {
			if sh.Index != 1 {
				others.Add(1)
				<-ctx.Done()
				if sh.Err() != nil {
					w.T.Errorf("shard %d ends with %v before its function has returned", sh.Index, sh.Err())
				}
				drained <- struct{}{}
				return nil
			}
			switch calls.Add(1) {
			case 3:
				time.Sleep(2 * time.Second) // begins the count again
			case 5:
				panic("fails")
			}
			return failure
		})
		if err == nil || len(asks) != 5 {
			w.T.Fatalf("Run returns %v after %d questions, want an error after 5", err, len(asks))
		}
		if !errors.Is(err, asks[4].err) || !strings.Contains(err.Error(), "shard 1") {
			w.T.Errorf("Run returns %v, want the error of shard 1: %v", err, asks[4].err)
		}
		if len(drained) != 2 || others.Load() != 2 {
			w.T.Errorf("%d of %d other calls have returned, want 2 of 2", len(drained), others.Load())
		}
		want := []asked{{1, failure, 0}, {2, failure, time.Minute}, {1, failure, 3*time.Minute + 2*time.Second}, {2, failure, 4*time.Minute + 2*time.Second}}
		if !slices.Equal(asks[:4], want) || asks[4].failures != 3 || asks[4].err == nil || errors.Is(asks[4].err, failure) {
			w.T.Errorf("asked %v, want %v and a third failure that is no error of the function", asks, want)
		}
		w.Empty("/s/workers")
		for i := range 3 {
			w.Empty(fmt.Sprint("/s/shards/", i))
		}
	})
}

// A pause of Restart ends when the shard is to move.
func TestShards_AShardThatPausesMovesAtOnce(t *testing.T) {
	onMemory(t, func(w *world) {
		c := w.Open("a", nil)
		ctx, stop := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() {
			done <- coord.NewShards(c, "/s", 2, &coord.ShardsOptions{ID: "a", Restart: func(int, error) time.Duration { return time.Hour }}).Run(ctx,
				func(context.Context, *coord.Shard) error { return errors.New("fails") })
		}()
		w.Settle()
		x := newCrew(w, 2)
		began := time.Now()
		b := x.start("b", coord.ShardsOptions{})
		w.Eventually("b owns one", func() bool { x.mu.Lock(); defer x.mu.Unlock(); return len(b.shards) == 1 })
		stop()
		if err := <-done; err != nil {
			w.T.Error(err)
		}
		w.Eventually("b owns both", func() bool { x.mu.Lock(); defer x.mu.Unlock(); return len(b.shards) == 2 })
		if d := time.Since(began); d > time.Minute {
			w.T.Errorf("the shards move after %v, as if the pause of an hour had to pass", d)
		}
	})
}

// A member whose shard is assigned to a third one does not wait for it any more.
func TestShards_AWaiterThatIsNotWantedGivesUp(t *testing.T) {
	onMemory(t, func(w *world) {
		x := newCrew(w, 12)
		stubborn := coord.NewShards(w.Open("a", nil), "/s", x.n, &coord.ShardsOptions{ID: "a"})
		ctx, stop := context.WithCancel(context.Background())
		var held []*coord.Shard
		done := make(chan struct{})
		go func() {
			defer close(done)
			for sh := range stubborn.All(ctx) {
				held = append(held, sh)
			}
		}()
		w.Settle()
		for i, name := range []string{"b", "c", "d"} {
			x.start(name, coord.ShardsOptions{})
			w.Settle()
			waiters := 0
			for s := range x.n {
				n := len(w.Children(fmt.Sprint("/s/shards/", s)))
				if n > 2 {
					w.T.Errorf("%d members wait for shard %d", n-1, s)
				}
				waiters += n - 1
			}
			if want := 12 - 12/(i+2); waiters != want {
				w.T.Errorf("with %d members there are %d waiters, want %d", i+2, waiters, want)
			}
		}
		stop()
		<-done
		for _, sh := range held {
			sh.Release()
		}
	})
}

// If an acquisition is given up when the lock is granted already, the shard is released.
func TestShards_AGrantThatIsNotWantedIsGivenBack(t *testing.T) {
	onMemory(t, func(w *world) {
		x := newCrew(w, 4)
		var hold atomic.Bool
		hold.Store(true)
		late := make(chan struct{})
		c := w.Open("a", &backendtest.Hooks{After: func(_ context.Context, c backendtest.Call, err error) error {
			if coordtest.Creates(c) && strings.Contains(c.Path, "-lock-") && hold.Load() {
				<-late // the reply
			}
			return err
		}})
		a := x.startOn(c, "a", coord.ShardsOptions{})
		w.Settle()
		b := x.start("b", coord.ShardsOptions{})
		w.Settle() // a has seen that two of them are not its own
		hold.Store(false)
		close(late)
		x.loads(map[*crewMember]int{a: 2, b: 2})
	})
}

// An error with which a function returns after the end of its context, because the shard moves, is lost
// or the program ends, is given to Restart, is a part of the result of Run, and is logged; the end
// of the context itself is none.
func TestShards_TheErrorAtAHandOverIsReported(t *testing.T) {
	for _, why := range []string{"moves", "lost", "ends"} {
		t.Run(why, func(t *testing.T) {
			onMemory(t, func(w *world) {
				checkpoint := errors.New("the last checkpoint failed")
				returns := []func(ctx context.Context) error{
					func(context.Context) error { return nil },
					func(ctx context.Context) error { return ctx.Err() },
					func(ctx context.Context) error { return fmt.Errorf("stopped: %w", context.Cause(ctx)) },
					func(ctx context.Context) error { return errors.Join(ctx.Err(), context.Cause(ctx)) },
					func(context.Context) error { return checkpoint },
					func(ctx context.Context) error { return errors.Join(ctx.Err(), checkpoint) },
					func(ctx context.Context) error { return fmt.Errorf("%w: %w", checkpoint, ctx.Err()) },
					func(context.Context) error { panic("at the end") },
				}
				var mu sync.Mutex
				asked := make(map[int]bool)
				causes := make([]error, len(returns))
				begun := 0
				ctx, stop := context.WithCancelCause(context.Background())
				end := errors.New("the program ends")
				done := make(chan error, 1)
				c := w.Open("a", nil)
				go func() {
					o := &coord.ShardsOptions{ID: "a", Restart: func(failures int, err error) time.Duration {
						mu.Lock()
						defer mu.Unlock()
						if failures != 1 || err == nil {
							w.T.Errorf("Restart(%d, %v)", failures, err)
						}
						for i := range returns {
							if i < 4 && (errors.Is(err, context.Canceled) && !errors.Is(err, checkpoint)) {
								w.T.Errorf("Restart is given the end of the context: %v", err)
							}
						}
						asked[len(asked)] = true
						return time.Hour
					}}
					done <- coord.NewShards(c, "/s", len(returns), o).Run(ctx, func(ctx context.Context, sh *coord.Shard) error {
						mu.Lock()
						begun++
						mu.Unlock()
						<-ctx.Done()
						mu.Lock()
						if causes[sh.Index] == nil {
							causes[sh.Index] = context.Cause(ctx)
						} else { // called again, after the loss
							mu.Unlock()
							return nil
						}
						mu.Unlock()
						return returns[sh.Index](ctx)
					})
				}()
				owners := coord.NewShards(w.Open("observer", nil), "/s", len(returns), nil)
				owned := func(id string) int {
					list, err := owners.Owners(context.Background())
					w.must(err)
					n := 0
					for _, x := range list {
						if x.ID == id {
							n++
						}
					}
					return n
				}
				w.Eventually("a owns all, and each function has begun", func() bool {
					mu.Lock()
					all := begun == len(returns)
					mu.Unlock()
					return all && owned("a") == len(returns)
				})
				var cause func(i int, err error) bool
				switch why {
				case "moves": // two members that weigh a thousand times as much take all
					for _, id := range []string{"b", "c"} {
						go coord.NewShards(w.Open(id, nil), "/s", len(returns), &coord.ShardsOptions{ID: id, Weight: 1000}).Run(ctx,
							func(ctx context.Context, _ *coord.Shard) error { <-ctx.Done(); return nil })
					}
					w.Eventually("all shards have moved", func() bool { return owned("b")+owned("c") == len(returns) })
					cause = func(i int, err error) bool {
						var e *coord.HandOverError
						return errors.As(err, &e) && e.Shard == i && (e.By == "b" || e.By == "c") && e.Reason != "" && !errors.Is(err, coord.ErrLost)
					}
				case "lost":
					w.Link("a").Expire(sessionOf(w.T, c))
					w.Eventually("a owns all again", func() bool {
						mu.Lock()
						defer mu.Unlock()
						return !slices.Contains(causes, nil)
					})
					cause = func(_ int, err error) bool { return errors.Is(err, coord.ErrLost) }
				case "ends":
					cause = func(_ int, err error) bool { return err == end }
				}
				stop(end)
				err := <-done
				for i := range causes {
					if !cause(i, causes[i]) {
						w.T.Errorf("shard %d: the cause is %v", i, causes[i])
					}
				}
				if !errors.Is(err, checkpoint) || len(asked) != 4 {
					w.T.Errorf("Run returns %v, and Restart was asked %d times, want 4", err, len(asked))
				}
				for i := range returns {
					if says := err != nil && strings.Contains(err.Error(), fmt.Sprintf("shard %d,", i)); says != (i >= 4) {
						w.T.Errorf("the error of shard %d is in the result: %t: %v", i, says, err)
					}
				}
			})
		})
	}
}

// Run returns the latest errors of hand-overs, however many there were, and Restart can end it at one.
func TestShards_TheErrorsOfHandOversAreBounded(t *testing.T) {
	onMemory(t, func(w *world) {
		const n = 40
		ctx, stop := context.WithCancel(context.Background())
		var begun sync.WaitGroup
		begun.Add(n)
		go func() { begun.Wait(); stop() }()
		err := coord.NewShards(w.Open("a", nil), "/s", n, nil).Run(ctx, func(ctx context.Context, sh *coord.Shard) error {
			begun.Done()
			<-ctx.Done()
			return fmt.Errorf("checkpoint of %d", sh.Index)
		})
		if err == nil || strings.Count(err.Error(), "checkpoint of") != 16 || !strings.Contains(err.Error(), "24 earlier") {
			w.T.Errorf("Run returns %v, want 16 errors and the number of the others", err)
		}
		ctx, stop = context.WithCancel(context.Background())
		defer stop()
		refused := errors.New("no checkpoint")
		var once sync.Once
		o := &coord.ShardsOptions{ID: "a", Restart: func(int, error) time.Duration { return -1 }}
		go func() {
			time.Sleep(time.Second)
			coord.NewShards(w.Open("b", nil), "/t", 2, &coord.ShardsOptions{ID: "b"}).Run(ctx, func(ctx context.Context, _ *coord.Shard) error { <-ctx.Done(); return nil })
		}()
		err = coord.NewShards(w.Open("c", nil), "/t", 2, o).Run(ctx, func(ctx context.Context, sh *coord.Shard) (err error) {
			<-ctx.Done()
			once.Do(func() { err = refused })
			return err
		})
		if !errors.Is(err, refused) || ctx.Err() != nil {
			w.T.Errorf("Run returns %v, want %v", err, refused)
		}
	})
}

// Another process takes the ID of a member over, whose process has a second member on the same
// session. The takeover removes the nodes of the one ID, and not the hold of the other.
func TestShards_TakeoverLeavesTheOtherMembersOfItsProcess(t *testing.T) {
	onMemory(t, func(w *world) {
		c := w.Open("process", nil)
		release := make(chan struct{})
		var mu sync.Mutex
		var held []*coord.Shard
		b := coord.NewShards(c, "/s", 4, &coord.ShardsOptions{ID: "b"})
		ctx, stop := context.WithCancel(context.Background())
		var members sync.WaitGroup
		defer members.Wait()
		defer stop()
		run := func(s *coord.Shards, f func(context.Context, *coord.Shard) error) {
			members.Go(func() { s.Run(ctx, f) })
		}
		run(b, func(ctx context.Context, sh *coord.Shard) error {
			mu.Lock()
			held = append(held, sh)
			mu.Unlock()
			<-ctx.Done()
			<-release // it takes its time to hand the shard over
			return nil
		})
		w.Settle()
		first := held
		if len(first) != 4 {
			w.T.Fatalf("the only member owns %d shards of 4", len(first))
		}
		run(coord.NewShards(c, "/s", 4, &coord.ShardsOptions{ID: "a"}), func(ctx context.Context, _ *coord.Shard) error {
			<-ctx.Done()
			return nil
		})
		w.Settle()
		var moved atomic.Int32
		run(coord.NewShards(w.Open("other", nil), "/s", 4, &coord.ShardsOptions{ID: "a"}), func(ctx context.Context, _ *coord.Shard) error {
			moved.Add(1)
			<-ctx.Done()
			return nil
		})
		w.Settle()
		asked := 0
		for _, sh := range first {
			if err := sh.Verify(context.Background()); err != nil {
				w.T.Errorf("shard %d: %v", sh.Index, err)
			}
			if _, ok := sh.Revocation(); ok {
				asked++
			}
		}
		if asked != 2 || moved.Load() != 0 {
			w.T.Errorf("%d shards are to move, and %d have moved, want 2 and none", asked, moved.Load())
		}
		close(release)
		w.Eventually("the shards move", func() bool { return moved.Load() == 2 })
	})
}

package recipetest

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/internal/coordtest"
	"github.com/go-coord/coord/trace"
)

// In Prepare, Verify also reports an abort that the proposer does not know yet.
func TestTwoPhase_VerifyInPrepareTellsOfADecision(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		first, asked, answers := make(chan struct{}), make(chan struct{}), make(chan error, 4)
		var co *coord.Coordinator[string]
		w.serveSite(w.Open("site", nil), coord.Handler[string]{
			Prepare: func(_ context.Context, tx coord.Branch[string]) error {
				answers <- tx.Verify(ctx)
				close(first)
				<-asked
				answers <- tx.Verify(ctx)
				w.Eventually("the proposer has learned it", func() bool { st, err := co.Status(ctx, "t1"); return err != nil || st.Told })
				answers <- tx.Verify(ctx)
				_, err := coord.NewTxn(w.Open("other", nil)).Under(tx.Guard()).Create("/w", nil, backend.Persistent).Commit(ctx)
				answers <- err
				return nil
			},
			Commit: nothing, Abort: nothing,
		})
		w.accounts("b")[0].votes(func(context.Context, coord.Branch[string]) error { <-first; return errors.New("no") })
		w.served("a")
		var delay coordtest.Nth
		delay.Arm(1, func(c backendtest.Call) bool {
			return c.Op == "commit" && len(c.Ops) > 0 && c.Ops[0].Kind == backend.OpDelete
		}, func(_ context.Context, _ backendtest.Call, err error) error {
			close(asked)
			time.Sleep(time.Second)
			return err
		})
		co = coord.NewCoordinator[string](w.Open("co", &backendtest.Hooks{Before: delay.Before}), "/tx", nil)
		mustPropose(w.T, co, w.proposal("t1", "a", "b"))
		w.must(receive(w, "an answer", answers))
		for range 3 {
			coordtest.WantErr(w.T, receive(w, "an answer", answers), coord.ErrConflict)
		}
	})
}

// A Commit that fails is called again after a pause that grows to a minute, not in step with others, and
// delays nothing else. Its site says so.
func TestTwoPhase_ThePauseAfterAFailedCommitGrowsToAMinute(t *testing.T) {
	onMemory(t, func(w *world) {
		var mu sync.Mutex
		var calls []time.Time
		var owed []trace.DecisionsUndone
		mend := false
		c := coordtest.Open(w.T, w.Link("site"), &coord.Options{Trace: func(_ context.Context, e trace.Event) {
			if e, ok := e.(trace.DecisionsUndone); ok {
				mu.Lock()
				defer mu.Unlock()
				owed = append(owed, e)
			}
		}})
		last := func() (e trace.DecisionsUndone) {
			w.Settle()
			mu.Lock()
			defer mu.Unlock()
			if len(owed) > 0 {
				e = owed[len(owed)-1]
			}
			return e
		}
		stop := w.serveSite(c, coord.Handler[string]{
			Prepare: nothing, Abort: nothing,
			Commit: func(_ context.Context, tx coord.Branch[string]) error {
				mu.Lock()
				defer mu.Unlock()
				if tx.ID != "bad" || mend {
					return nil
				}
				calls = append(calls, time.Now())
				return errors.New("disk full")
			},
		})
		w.served("a")
		co := coord.NewCoordinator[string](w.Open("co", nil), "/tx", nil)
		mustPropose(w.T, co, w.proposal("bad", "a"))
		time.Sleep(3 * time.Hour)
		mu.Lock()
		n := len(calls)
		var pauses []time.Duration
		for i := range calls[1:] {
			pauses = append(pauses, calls[i+1].Sub(calls[i]))
		}
		mu.Unlock()
		// 3 hours with pauses of half a minute to a minute, and 15 calls before.
		if longest := slices.Max(pauses); n < 180 || n > 380 || longest > time.Minute || longest < 45*time.Second {
			w.T.Errorf("%d calls in three hours, the longest pause %v", n, longest)
		}
		if slices.Equal(pauses[len(pauses)-3:], slices.Repeat(pauses[len(pauses)-1:], 3)) {
			w.T.Errorf("the pauses have no random part: %v", pauses[len(pauses)-3:])
		}
		if e := last(); e.Site != "a" || e.Undone != 1 || e.Failing != 1 || e.Path != w.Path("/tx") {
			w.T.Errorf("the site reports %+v", e)
		}
		began := time.Now()
		mustPropose(w.T, co, w.proposal("good", "a"))
		w.Empty("/tx/tx/good")
		if took := time.Since(began); took > time.Second {
			w.T.Errorf("another transaction took %v", took)
		}
		stop() // at once, and the next process calls it at once
		if e := last(); e.Undone != 0 || e.Failing != 0 {
			w.T.Errorf("after the end of Serve the site reports %+v", e)
		}
		mu.Lock()
		mend = true
		mu.Unlock()
		w.serveSite(c, coord.Handler[string]{Prepare: nothing, Abort: nothing, Commit: func(_ context.Context, tx coord.Branch[string]) error { return nil }})
		w.over("a")
		if e := last(); e.Undone != 0 || e.Failing != 0 {
			w.T.Errorf("in the end the site reports %+v", e)
		}
	})
}

// The lists of the inbox of a site have a bounded number of names for each transaction, and few
// functions run at a time, also when a backlog of transactions comes at once.
func TestTwoPhase_ABacklogCostsEachTransactionTheSame(t *testing.T) {
	coordtest.CountsCost(t)
	for name, on := range map[string]func(*testing.T, func(*world)){"trees": onMemory, "no trees": withoutTrees} {
		for _, present := range []bool{false, true} { // whether the site is served when they come
			t.Run(fmt.Sprint(name, ", served: ", present), func(t *testing.T) {
				on(t, func(w *world) {
					const n = 400
					var names, lists atomic.Int64
					inbox := w.Path("/tx/sites/a")
					count := func(c backendtest.Call, list []string) []string {
						if c.Path == inbox {
							lists.Add(1)
							names.Add(int64(len(list)))
						}
						return list
					}
					w.Service.(coordtest.MemoryService).Store.Link("site").SetLatency(time.Millisecond)
					c := w.Open("site", &backendtest.Hooks{Names: count})
					var now, most [2]atomic.Int64
					few := make(chan struct{}, 4) // connections of a database
					work := func(i int) func(context.Context, coord.Branch[string]) error {
						return func(_ context.Context, tx coord.Branch[string]) error {
							m := now[i].Add(1)
							defer now[i].Add(-1)
							for old := most[i].Load(); m > old && !most[i].CompareAndSwap(old, m); old = most[i].Load() {
							}
							few <- struct{}{}
							time.Sleep(20 * time.Millisecond)
							<-few
							return nil
						}
					}
					h := coord.Handler[string]{Prepare: work(0), Commit: work(1), Abort: nothing, Concurrent: 16}
					stop := w.serveSite(c, h)
					w.served("a")
					if !present {
						stop()
					}
					co := coord.NewCoordinator(w.Open("co", nil), "/tx", &coord.CoordinatorOptions[string]{Unserved: coord.AwaitUnserved})
					var all sync.WaitGroup
					for i := range n {
						all.Go(func() {
							if present {
								time.Sleep(time.Duration(i) * time.Millisecond)
							}
							p := w.proposal(fmt.Sprint("t", i), "a")
							p.Deadline = time.Now().Add(time.Hour)
							if d := mustPropose(w.T, co, p); !d.Commit {
								w.T.Errorf("%+v", d)
							}
						})
					}
					if !present {
						time.Sleep(time.Minute)
						names.Store(0)
						w.serveSite(c, h)
					}
					all.Wait()
					w.over("a")
					w.T.Logf("%d lists with %d names, at most %d and %d calls at a time", lists.Load(), names.Load(), most[0].Load(), most[1].Load())
					bound := int64(2 * n)
					if name != "trees" {
						bound = 4 * n
					}
					if names.Load() > bound {
						w.T.Errorf("the lists of the inbox have %d names, want at most %d", names.Load(), bound)
					}
					if most[0].Load() != 16 || most[1].Load() != 16 {
						w.T.Errorf("at most %d calls of Prepare and %d of Commit at a time, want 16", most[0].Load(), most[1].Load())
					}
				})
			})
		}
	}
}

// While every Prepare that may run hangs, decided transactions are carried out, new ones end at their
// deadlines, and when a Prepare returns the next one is called.
func TestTwoPhase_PreparesThatHangDelayOnlyOtherPrepares(t *testing.T) {
	onMemories(t, func(w *world) {
		hang := make(chan struct{})
		var prepared, carried atomic.Int64
		w.serveSite(w.Open("site", nil), coord.Handler[string]{
			Concurrent: 2,
			Prepare: func(_ context.Context, tx coord.Branch[string]) error {
				if prepared.Add(1); tx.Payload == "hangs" {
					<-hang
				}
				return nil
			},
			Commit: func(context.Context, coord.Branch[string]) error { carried.Add(1); return nil },
			Abort:  nothing,
		})
		votes := make(chan struct{})
		w.accounts("b")[0].votes(func(_ context.Context, tx coord.Branch[string]) error {
			if tx.ID == "early" {
				<-votes
			}
			return nil
		})
		w.served("a")
		co := coord.NewCoordinator[string](w.Open("co", nil), "/tx", nil)
		early := make(chan coord.Decision, 1)
		go func() { early <- mustPropose(w.T, co, w.proposal("early", "a", "b")) }()
		time.Sleep(time.Second) // a has voted
		decisions := make(chan coord.Decision, 4)
		propose := func(id, payload string) {
			p := w.proposal(id, "a")
			p.Payload = payload
			p.Deadline = time.Now().Add(10 * time.Second)
			go func() { decisions <- mustPropose(w.T, co, p) }()
			time.Sleep(time.Millisecond)
		}
		propose("t1", "hangs")
		propose("t2", "hangs")
		propose("t3", "waits")
		time.Sleep(time.Second)
		close(votes)
		if d := <-early; !d.Commit {
			w.T.Errorf("%+v", d)
		}
		time.Sleep(time.Second)
		if carried.Load() != 1 || prepared.Load() != 3 {
			w.T.Errorf("%d carried out after %d Prepares, want 1 after 3", carried.Load(), prepared.Load())
		}
		for range 3 {
			if d := <-decisions; d.Commit {
				w.T.Errorf("%+v", d)
			}
		}
		close(hang)
		propose("t4", "")
		if d := <-decisions; !d.Commit || prepared.Load() != 4 {
			w.T.Errorf("%+v after %d Prepares", d, prepared.Load())
		}
		w.over("a", "b")
	})
}

// A branch that is created again while it is being acknowledged is not left behind.
func TestTwoPhase_ABranchThatIsCreatedAgainIsLookedAt(t *testing.T) {
	onMemories(t, func(w *world) {
		var ack coordtest.Nth
		outsider := w.Session("outsider")
		ack.Arm(1, func(c backendtest.Call) bool {
			return c.Op == "commit" && slices.ContainsFunc(c.Ops, func(op backend.Op) bool {
				return op.Kind == backend.OpDelete && path.Dir(op.Path) == w.Path("/tx/sites/a")
			})
		}, func(ctx context.Context, c backendtest.Call, err error) error {
			for _, op := range c.Ops {
				if op.Kind == backend.OpDelete && path.Dir(op.Path) == w.Path("/tx/sites/a") {
					if _, err := outsider.Commit(ctx, backend.Create(op.Path, nil, backend.Persistent)); err != nil {
						w.T.Error(err)
					}
				}
			}
			time.Sleep(time.Second) // the site learns of it
			return err
		})
		a := &account{w: w, name: "a"}
		a.serve(w.Open("site a", &backendtest.Hooks{After: ack.After}))
		w.served("a")
		co := coord.NewCoordinator[string](w.Open("co", nil), "/tx", nil)
		mustPropose(w.T, co, w.proposal("t1", "a"))
		w.over("a")
		if got := a.did(); got != "[prepare t1:p commit t1:p abort t1:]" || !ack.Idle() {
			w.T.Errorf("%s; acknowledged: %t", got, ack.Idle())
		}
	})
}

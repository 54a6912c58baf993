package recipetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/internal/coordtest"
)

func makesRecord(c backendtest.Call) bool {
	return c.Op == "commit" && c.Ops[0].Kind == backend.OpCreate && c.Path == "/tx/tx/t1"
}

// The reply to the creation of the record is lost in a partition, and another Propose of the
// same id commits the transaction. The first proposer must not execute it a second time.
func TestTwoPhase_AProposeWhoseSessionIsLostInTheMiddleExecutesOnce(t *testing.T) {
	onMemory(t, func(w *world) {
		list := w.accounts("a")
		var x coordtest.Nth
		c := w.Open("A", &backendtest.Hooks{After: x.After})
		p := w.proposal("t1", "a")
		p.Deadline = time.Now().Add(time.Hour)
		first := w.proposal("t0", "a") // makes the directories
		mustPropose(w.T, coord.NewCoordinator[string](c, "/tx", nil), first)
		w.over("a")
		list[0].mu.Lock()
		list[0].log = nil
		list[0].mu.Unlock()
		x.Arm(1, makesRecord, func(_ context.Context, _ backendtest.Call, err error) error {
			if err != nil {
				w.T.Error(err)
			}
			w.Link("A").Partition()
			return backend.ErrUncertain
		})
		done := make(chan proposed, 1)
		go func() {
			d, err := coord.NewCoordinator[string](c, "/tx", nil).Propose(context.Background(), p)
			done <- proposed{d, err}
		}()
		synctest.Wait()
		b := mustPropose(w.T, coord.NewCoordinator[string](w.Open("B", nil), "/tx", nil), p)
		time.Sleep(10 * time.Second) // A's session has ended
		if list, err := coord.NewCoordinator[string](w.Open("R", nil), "/tx", nil).Recover(context.Background()); err != nil || len(list) != 0 {
			w.T.Error(list, err)
		}
		w.over("a")
		w.T.Log("B:", b)
		w.Link("A").Heal()
		a := <-done
		w.T.Log("A:", a.d, a.err)
		time.Sleep(20 * time.Second)
		if got := list[0].did(); got != "[prepare t1:p commit t1:p]" {
			w.T.Errorf("the site did %s", got)
		}
	})
}

// A's session is lost while its Propose waits. The transaction commits for B and is finished. A
// must not take the decision of the next transaction with this id for its own.
func TestTwoPhase_AnotherTransactionsDecisionIsNotReturned(t *testing.T) {
	onMemory(t, func(w *world) {
		list := w.accounts("a")
		let := make(chan struct{})
		list[0].votes(func(context.Context, coord.Branch[string]) error { <-let; return nil })
		c := w.Open("A", nil)
		done := make(chan proposed, 1)
		go func() {
			d, err := coord.NewCoordinator[string](c, "/tx", nil).Propose(context.Background(), w.proposal("t1", "a"))
			done <- proposed{d, err}
		}()
		synctest.Wait()
		w.Link("A").Partition()
		co := coord.NewCoordinator[string](w.Open("B", nil), "/tx", nil)
		go func() { time.Sleep(time.Second); close(let) }()
		b := mustPropose(w.T, co, w.proposal("t1", "a"))
		time.Sleep(10 * time.Second) // A's session has ended
		w.T.Log("B:", b, w.Children("/tx/tx"), w.Children("/tx/tx/t1"))
		if list, err := co.Recover(context.Background()); err != nil || len(list) != 0 {
			w.T.Error(list, err)
		}
		w.over("a")
		list[0].votes(func(context.Context, coord.Branch[string]) error { time.Sleep(time.Second); return errors.New("no") })
		second := make(chan proposed, 1)
		go func() {
			d, err := co.Propose(context.Background(), w.proposal("t1", "a"))
			second <- proposed{d, err}
		}()
		synctest.Wait()
		w.Link("A").Heal()
		a := <-done
		w.T.Log("B again:", <-second)
		w.T.Log("A:", a.d, a.err)
		if a.err == nil && a.d != b {
			w.T.Errorf("A received %+v, its transaction ended as %+v", a.d, b)
		}
	})
}

// The reply to Recover's deletion of the open node is lost with the session. The decision must
// be returned nevertheless.
func TestTwoPhase_ADecisionWhoseReplyToRecoverIsLostIsReturned(t *testing.T) {
	onMemory(t, func(w *world) {
		w.accounts("a")
		var x coordtest.Nth
		c := w.Open("A", &backendtest.Hooks{After: x.After})
		ctx, cancel := context.WithCancel(context.Background())
		x.Arm(1, func(c backendtest.Call) bool {
			return c.Op == "commit" && len(c.Ops) == 2 && c.Ops[0].Kind == backend.OpCheck && c.Ops[1].Kind == backend.OpCreate
		}, func(_ context.Context, _ backendtest.Call, err error) error {
			w.Link("A").Partition() // the proposer dies when it has decided
			cancel()
			return backend.Uncertain(context.Canceled)
		})
		_, err := coord.NewCoordinator[string](c, "/tx", nil).Propose(ctx, w.proposal("t1", "a"))
		coordtest.WantErr(w.T, err, context.Canceled)
		time.Sleep(10 * time.Second)
		var y coordtest.Nth
		r := w.Open("R", &backendtest.Hooks{After: y.After})
		y.Arm(1, func(c backendtest.Call) bool {
			return c.Op == "commit" && len(c.Ops) == 1 && c.Ops[0].Kind == backend.OpDelete
		},
			func(_ context.Context, c backendtest.Call, err error) error {
				w.Link("R").Expire(c.Session.ID())
				return backend.Uncertain(backend.ErrSessionLost)
			})
		co := coord.NewCoordinator[string](r, "/tx", nil)
		got, err := co.Recover(context.Background())
		again, err2 := co.Recover(context.Background())
		w.T.Log(got, err, again, err2)
		if len(got)+len(again) == 0 {
			w.T.Error("no Recover returned the commit, and its record is gone")
		}
		w.over("a")
	})
}

// There is a foreign node beside the records.
func TestTwoPhase_AForeignNodeBesideTheRecordsBlocksNothing(t *testing.T) {
	onMemory(t, func(w *world) {
		w.accounts("a")
		c := w.Open("A", nil)
		ctx, cancel := context.WithCancel(context.Background())
		go func() {
			coord.NewCoordinator[string](c, "/tx", nil).Propose(ctx, w.proposal("zz", "nobody-yet", "a"))
		}()
		_ = cancel
		// This creates the directory of the records.
		co := coord.NewCoordinator[string](w.Open("B", nil), "/tx", nil)
		mustPropose(w.T, co, w.proposal("t0", "a"))
		w.over("a")
		if _, err := w.Session("x").Commit(context.Background(), backend.Create("/tx/tx/README", []byte("do not delete"), backend.Persistent)); err != nil {
			w.T.Fatal(err)
		}
		if _, err := co.Recover(context.Background()); err != nil {
			w.T.Errorf("Recover: %v", err)
		}
		if _, err := co.List(context.Background()); err != nil {
			w.T.Errorf("List: %v", err)
		}
		// A Propose of that id leaves no node there, and no goroutine.
		_, err := co.Propose(context.Background(), w.proposal("README", "a"))
		w.T.Log(err)
		time.Sleep(time.Minute)
		if left := w.Children("/tx/tx/README"); len(left) > 0 {
			w.T.Errorf("left a minute after Propose returned: %v", left)
		}
		cancel()
	})
}

// Two proposers of one id give up at once. The transaction must be aborted.
func TestTwoPhase_ProposersThatGiveUpTogetherAbort(t *testing.T) {
	onMemory(t, func(w *world) {
		list := w.accounts("a", "b")
		list[1].votes(func(ctx context.Context, _ coord.Branch[string]) error { <-ctx.Done(); return ctx.Err() })
		p := w.proposal("t1", "a", "b")
		p.Deadline = time.Now().Add(time.Hour)
		ctx, cancel := context.WithCancel(context.Background())
		var wg sync.WaitGroup
		for i := range 2 {
			// With this latency both read before either has left.
			w.Service.(coordtest.MemoryService).Store.Link(fmt.Sprint("co", i)).SetLatency(10 * time.Millisecond)
			co := coord.NewCoordinator[string](w.Open(fmt.Sprint("co", i), nil), "/tx", nil)
			wg.Go(func() { co.Propose(ctx, p) })
		}
		time.Sleep(time.Second)
		cancel()
		wg.Wait()
		time.Sleep(time.Minute)
		st, err := coord.NewCoordinator[string](w.Open("look", nil), "/tx", nil).Status(context.Background(), "t1")
		if err == nil && !st.Decided && !st.Proposed {
			w.T.Errorf("undecided a minute after both gave up, site a is bound until the deadline: %+v", st)
		}
	})
}

// Close right after Propose has returned: nothing is left to Recover.
func TestTwoPhase_CloseAfterProposeFinishesItsRecord(t *testing.T) {
	onMemory(t, func(w *world) {
		w.accounts("a")
		c := w.Open("co", nil)
		w.Service.(coordtest.MemoryService).Store.Link("co").SetLatency(time.Millisecond)
		d := mustPropose(w.T, coord.NewCoordinator[string](c, "/tx", nil), w.proposal("t1", "a"))
		c.Close()
		w.Settle()
		if left := w.Children("/tx/tx"); len(left) > 0 || !d.Commit {
			w.T.Errorf("%+v, left: %v", d, left)
		}
	})
}

// The site's process is paused before Prepare. Another process has acknowledged meanwhile.
func TestTwoPhase_PrepareIsNotCalledAfterAnAcknowledgement(t *testing.T) {
	onMemory(t, func(w *world) {
		t := w.T
		var mu sync.Mutex
		var log []string
		note := func(who, s string) func(context.Context, coord.Branch[string]) error {
			return func(ctx context.Context, _ coord.Branch[string]) error {
				mu.Lock()
				defer mu.Unlock()
				log = append(log, fmt.Sprint(who, " ", s))
				return nil
			}
		}
		handler := func(who string) coord.Handler[string] {
			return coord.Handler[string]{Prepare: note(who, "prepare"), Commit: note(who, "commit"), Abort: note(who, "abort")}
		}
		var x coordtest.Nth
		c1 := w.Open("p1", &backendtest.Hooks{After: x.After})
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		var wg sync.WaitGroup
		wg.Go(func() { coord.NewParticipant(c1, "/tx", "a", handler("p1")).Serve(ctx) })
		w.served("a")
		wg.Go(func() { coord.NewParticipant(w.Open("p2", nil), "/tx", "a", handler("p2")).Serve(ctx) })
		synctest.Wait()
		// The process is paused right after it has read the record.
		x.Arm(1, func(c backendtest.Call) bool { return c.Op == "get" && c.Path == "/tx/tx/t1" },
			func(_ context.Context, c backendtest.Call, err error) error {
				w.Link("p1").Expire(c.Session.ID())
				time.Sleep(3 * time.Second)
				return err
			})
		d := mustPropose(t, coord.NewCoordinator[string](w.Open("co", nil), "/tx", nil), w.proposal("t1", "a"))
		w.over("a")
		mu.Lock()
		log = append(log, "acknowledged")
		mu.Unlock()
		time.Sleep(time.Minute)
		cancel()
		wg.Wait()
		t.Log(d, log)
		if log[len(log)-1] != "acknowledged" {
			t.Errorf("%q after the acknowledgement, and no process will abort it", log[len(log)-1])
		}
	})
}

// The site's session is lost when its acknowledgement, the last one, has been applied.
func TestTwoPhase_ASiteLostAtItsAcknowledgementLeavesNoRecord(t *testing.T) {
	onMemory(t, func(w *world) {
		var x, y coordtest.Nth
		a := &account{w: w, name: "a"}
		a.serve(w.Open("site a", &backendtest.Hooks{Before: y.Before, After: x.After}))
		w.served("a")
		ack := func(c backendtest.Call) bool {
			return c.Op == "commit" && len(c.Ops) == 3 && c.Ops[1].Kind == backend.OpDelete
		}
		y.Arm(1, ack, func(context.Context, backendtest.Call, error) error {
			time.Sleep(100 * time.Millisecond) // the proposer has left
			return nil
		})
		x.Arm(1, ack, func(_ context.Context, c backendtest.Call, err error) error {
			w.Link("site a").Expire(c.Session.ID())
			return err
		})
		mustPropose(w.T, coord.NewCoordinator[string](w.Open("co", nil), "/tx", nil), w.proposal("t1", "a"))
		time.Sleep(time.Hour)
		if left := w.Children("/tx/tx"); len(left) > 0 {
			w.T.Errorf("left forever though all are alive: %v: %v", left, w.Children("/tx/tx/t1"))
		}
	})
}

// The last node in a record is that of a Propose whose session has ended. All sites and the
// other proposer are alive.
func TestTwoPhase_RecoverCollectsARecordThatADeadProposerKept(t *testing.T) {
	onMemory(t, func(w *world) {
		list := w.accounts("a")
		let := make(chan struct{})
		list[0].votes(func(context.Context, coord.Branch[string]) error { <-let; return nil })
		c := w.Open("A", nil)
		go coord.NewCoordinator[string](c, "/tx", nil).Propose(context.Background(), w.proposal("t1", "a"))
		synctest.Wait()
		w.Link("A").Partition()
		go func() { time.Sleep(time.Second); close(let) }()
		mustPropose(w.T, coord.NewCoordinator[string](w.Open("B", nil), "/tx", nil), w.proposal("t1", "a"))
		time.Sleep(time.Hour)
		if list, err := coord.NewCoordinator[string](w.Open("r", nil), "/tx", nil).Recover(context.Background()); err != nil || len(list) > 0 {
			w.T.Errorf("returned: %v, %v", list, err)
		}
		if left := w.Children("/tx/tx"); len(left) > 0 {
			w.T.Errorf("left: %v: %v", left, w.Children("/tx/tx/t1"))
		}
	})
}

// A proposer's session is lost when it deletes the node that keeps its record.
func TestTwoPhase_AProposerThatIsLostAtItsEndLeavesNoRecord(t *testing.T) {
	onMemory(t, func(w *world) {
		w.accounts("a")
		var before coordtest.Nth
		c := w.Open("co", &backendtest.Hooks{Before: before.Before})
		before.Arm(1, does(backend.OpDelete, "/open-"), func(_ context.Context, c backendtest.Call, _ error) error {
			w.Link("co").Expire(c.Session.ID())
			return backend.ErrSessionLost
		})
		mustPropose(w.T, coord.NewCoordinator[string](c, "/tx", nil), w.proposal("t1", "a"))
		time.Sleep(time.Minute)
		if left := w.Children("/tx/tx"); len(left) > 0 {
			w.T.Errorf("left though the client lives: %v: %v", left, w.Children("/tx/tx/t1"))
		}
	})
}

// The process is paused between two attempts to commit, for longer than its lease, and has not
// learned of the loss yet. Another process may have acknowledged meanwhile.
func TestTwoPhase_CommitIsNotCalledAfterTheLease(t *testing.T) {
	onMemory(t, func(w *world) {
		late := &lateBackend{Backend: w.Link("site")}
		var commits atomic.Int32
		var owner atomic.Int64
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		defer func() {
			cancel()
			<-ended
		}()
		p := coord.NewParticipant(coordtest.Open(w.T, late, nil), "/tx", "a", coord.Handler[string]{
			Prepare: nothing,
			Abort:   nothing,
			Commit: func(context.Context, coord.Branch[string]) error {
				if late.over.Load() {
					w.T.Error("Commit was called after the lease had passed")
				}
				if commits.Add(1) > 1 {
					return nil
				}
				late.over.Store(true)
				time.AfterFunc(time.Minute, func() {
					late.over.Store(false)
					w.Link("site").Expire(owner.Load())
				})
				return errors.New("not yet")
			},
		})
		go func() { ended <- p.Serve(ctx) }()
		w.served("a")
		stat, err := w.Session("x").Exists(ctx, "/tx/present/a", nil)
		w.must(err)
		owner.Store(stat.EphemeralOwner)
		mustPropose(w.T, coord.NewCoordinator[string](w.Open("co", nil), "/tx", nil), w.proposal("t1", "a"))
		time.Sleep(2 * time.Minute)
		w.over("a")
		if n := commits.Load(); n != 2 {
			w.T.Errorf("Commit was called %d times", n)
		}
	})
}

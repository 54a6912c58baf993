package recipetest

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/internal/coordtest"
	"github.com/go-coord/coord/internal/layout"
)

// A site without InDoubt continues to serve too.
func TestTwoPhase_ASiteWithoutInDoubtContinuesToServe(t *testing.T) {
	onMemory(t, func(w *world) {
		a := w.accounts("a")[0]
		b := w.accounts("b")[0]
		b.votes(func(ctx context.Context, tx coord.Branch[string]) error {
			if tx.ID == "bad" {
				<-ctx.Done()
			}
			return ctx.Err()
		})
		co := coord.NewCoordinator[string](w.Open("co", nil), "/tx", nil)
		go co.Propose(context.Background(), w.proposal("bad", "a", "b"))
		w.Settle()
		w.Destroy("/tx/tx/bad")
		w.Settle()
		if d := mustPropose(w.T, co, w.proposal("t1", "a", "b")); !d.Commit {
			w.T.Errorf("%+v", d)
		}
		w.Settle()
		if got := a.did(); got != "[prepare bad:p prepare t1:p commit t1:p]" {
			w.T.Error(got)
		}
	})
}

// Other nodes that an outsider can overwrite: each transaction ends as it was decided. (If an
// acknowledgement does not match the branch any more, the site is called once more.)
func TestTwoPhase_OverwrittenNodesDoNotChangeADecision(t *testing.T) {
	for _, tt := range []struct {
		name, node, data string
		voted            bool // a has voted
		commit           bool // the proposer decides commit; else b votes no
		want             string
	}{
		{"a branch with yes, commit", "branch", "?", true, true, "[prepare t1:p commit t1:p commit t1:p]"},
		{"a branch with yes, now empty, commit", "branch", "", true, true, "[prepare t1:p commit t1:p commit t1:p]"},
		{"a branch with yes, now no, commit", "branch", "no", true, true, "[prepare t1:p commit t1:p commit t1:p]"},
		{"a branch with yes, abort", "branch", "?", true, false, "[prepare t1:p abort t1:p abort t1:p]"},
		{"a branch that is not filled in", "branch", "yes", false, false, "[prepare t1:p abort t1:p]"},
		{"a record, before the vote", "record", "{", false, false, "[prepare t1:p abort t1:]"},
		{"a record, after the vote, abort", "record", "{", true, false, "[prepare t1:p abort t1:]"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			onMemory(t, func(w *world) {
				a, stop := w.doubtful()
				defer stop()
				b := w.accounts("b")[0]
				let := make(chan struct{})
				b.votes(func(context.Context, coord.Branch[string]) error {
					<-let
					if !tt.commit {
						return errors.New("no")
					}
					return nil
				})
				if !tt.voted {
					a.votes(func(ctx context.Context, _ coord.Branch[string]) error { <-ctx.Done(); return ctx.Err() })
				}
				// The record is kept until all have read it.
				co := coord.NewCoordinator(w.Open("co", nil), "/tx", &coord.CoordinatorOptions[string]{KeepRecords: true})
				result := make(chan proposed, 1)
				go func() {
					d, err := co.Propose(context.Background(), w.proposal("t1", "a", "b"))
					result <- proposed{d, err}
				}()
				w.Settle()
				path := "/tx/tx/t1"
				if tt.node == "branch" {
					path = "/tx/sites/a/" + w.Children("/tx/sites/a")[0]
				}
				w.overwrite(path, tt.data)
				w.Settle()
				close(let)
				r := <-result
				if r.err != nil || r.d.Commit != tt.commit {
					w.T.Errorf("%+v", r)
				}
				time.Sleep(time.Second) // of fake time: failed steps are retried after a pause
				w.Settle()
				if err := co.Forget(context.Background(), "t1"); err != nil && tt.node != "record" {
					w.T.Error(err)
				}
				// A record that cannot be read is not collected, since that would take reading
				// it.
				if got := a.did(); got != tt.want {
					w.T.Errorf("a did %s, want %s", got, tt.want)
				}
				if left := w.Children("/tx/sites/a"); len(left) > 0 {
					w.T.Errorf("branches left: %v", left)
				}
				if left := w.Children("/tx/tx"); tt.node == "branch" && len(left) > 0 {
					w.T.Errorf("records left: %v", left)
				}
			})
		})
	}
}

// An outsider writes the decision to commit without the votes: the site neither commits nor
// aborts.
func TestTwoPhase_ACommitOfAnOutsiderIsDoubted(t *testing.T) {
	onMemory(t, func(w *world) {
		a, stop := w.doubtful()
		defer stop()
		a.votes(func(ctx context.Context, _ coord.Branch[string]) error { <-ctx.Done(); return ctx.Err() })
		w.orphan("t1", "a")
		w.Settle()
		st, err := coord.NewCoordinator[string](w.Open("co", nil), "/tx", nil).Status(context.Background(), "t1")
		if err != nil {
			w.T.Fatal(err)
		}
		decision := "/tx/tx/t1/" + layout.DecisionName(st.Zxid)
		if _, err := w.Session("outsider").Commit(context.Background(), backend.Create(decision, []byte(`{"commit":true}`), backend.Persistent)); err != nil {
			w.T.Fatal(err)
		}
		a.inDoubtAbout(decision)
		if got := a.did(); got != "[prepare t1:p]" {
			w.T.Error(got)
		}
	})
}

// A server that lags may not show the record yet. The site syncs and looks again before it is
// in doubt.
func TestTwoPhase_AServerThatLagsBehindLeavesNoSiteInDoubt(t *testing.T) {
	onMemory(t, func(w *world) {
		a := &account{w: w, name: "a", doubts: make(chan error, 10)}
		var gone atomic.Bool
		a.serve(w.Open("site a", &backendtest.Hooks{
			Before: func(_ context.Context, c backendtest.Call) error {
				// A server that lags answers the first reads of the record.
				if !gone.Load() && (c.Op == "exists" || c.Op == "get") && strings.HasPrefix(c.Path, "/tx/tx/t1") {
					return &backend.Error{Op: c.Op, Path: c.Path, Err: backend.ErrNotFound}
				}
				if c.Op == "sync" && strings.HasPrefix(c.Path, "/tx/sites/a/") {
					gone.Store(true)
				}
				return nil
			},
		}))
		w.served("a")
		// The site's previous process has voted, and died.
		w.orphan("t1", "a", backend.SetData("/tx/sites/a/t1~"+orphanMark, []byte("yes"), 0))
		w.Settle()
		if n := len(a.doubts); n > 0 {
			w.T.Errorf("in doubt: %v", <-a.doubts)
		}
		if !gone.Load() {
			w.T.Error("no second look")
		}
	})
}

// A SetOp depends on another operation of the same Txn. The commit must return.
func TestTwoPhase_ASetOpAfterAnotherOperationOnItsValueEnds(t *testing.T) {
	for _, name := range []string{"twice", "after Create", "after Delete"} {
		t.Run(name, func(t *testing.T) {
			onMemory(t, func(w *world) {
				n := 0
				c := w.Open("a", &backendtest.Hooks{Before: func(_ context.Context, c backendtest.Call) error {
					if c.Op == "commit" {
						n++
					}
					return nil
				}})
				v := coord.NewValue[int](c, "/v", nil)
				x := coord.NewTxn(c)
				switch name {
				case "twice":
					x.Add(v.SetOp(1), v.SetOp(2))
				case "after Create":
					x.Create("/v", []byte("1"), backend.Persistent).Add(v.SetOp(2))
				case "after Delete":
					setValue(w.T, v, 1)
					x.Delete("/v").Add(v.SetOp(2))
				}
				n = 0
				ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
				defer cancel()
				start := time.Now()
				_, err := x.Commit(ctx)
				if took := time.Since(start); took > time.Minute {
					w.T.Errorf("%v after %v and %d commits", err, took, n)
				}
			})
		})
	}
}

// Only the creation of a directory or a bucket has an unknown outcome. The transaction was not
// sent.
func TestTwoPhase_ATransactionThatWasNotSentIsNotUncertain(t *testing.T) {
	for _, name := range []string{"SetOp", "PutOp"} {
		t.Run(name, func(t *testing.T) {
			onMemory(t, func(w *world) {
				var x coordtest.Nth
				c := w.Open("a", &backendtest.Hooks{After: x.After})
				v := coord.NewValue[int](c, "/dir/v", nil)
				q := coord.NewQueue[int](c, "/q", nil)
				setValue(w.T, coord.NewValue[int](c, "/plain", nil), 1) // creates the receipt
				x.Arm(1, coordtest.Creates, func(_ context.Context, call backendtest.Call, err error) error {
					w.Link("a").Expire(call.Session.ID())
					return backend.Uncertain(backend.ErrSessionLost)
				})
				txn := coord.NewTxn(c).Set("/plain", []byte("2"))
				if name == "SetOp" {
					txn.Add(v.SetOp(2))
				} else {
					txn.Add(q.PutOp(2))
				}
				_, err := txn.Commit(context.Background())
				if errors.Is(err, coord.ErrUncertain) {
					got, stat, _ := w.Session("x").Get(context.Background(), "/plain", nil)
					w.T.Errorf("%v; nothing of the transaction was sent: /plain is %s, version %d", err, got, stat.Version)
				}
			})
		})
	}
}

// Each Serve calls InDoubt once for a transaction.
func TestTwoPhase_ServeCallsInDoubtOnce(t *testing.T) {
	onMemory(t, func(w *world) {
		a := &account{w: w, name: "a", doubts: make(chan error, 10)}
		a.serve(w.Open("site a", nil))
		w.accounts("b")[0].votes(func(ctx context.Context, _ coord.Branch[string]) error { <-ctx.Done(); return ctx.Err() })
		w.served("a", "b")
		go coord.NewCoordinator[string](w.Open("co", nil), "/tx", nil).Propose(context.Background(), w.proposal("t1", "a", "b"))
		time.Sleep(time.Second)
		s := w.Session("outsider")
		var ops []backend.Op
		for _, name := range w.Children("/tx/tx/t1") {
			ops = append(ops, backend.Delete("/tx/tx/t1/"+name, backend.AnyVersion))
		}
		if _, err := s.Commit(context.Background(), append(ops, backend.Delete("/tx/tx/t1", backend.AnyVersion))...); err != nil {
			w.T.Fatal(err)
		}
		<-a.doubts
		stat, err := w.stat("/tx/serving/a/" + w.Children("/tx/serving/a")[0])
		if err != nil {
			w.T.Fatal(err)
		}
		w.Link("site a").Expire(stat.EphemeralOwner)
		time.Sleep(3 * time.Minute) // also beyond the deadline
		if n := len(a.doubts); n > 0 {
			w.T.Errorf("called %d times more by one Serve", n)
		}
	})
}

// An item that could never be moved to the dead letters.
func TestTwoPhase_PutOpRefusesAnItemThatCannotBeBuried(t *testing.T) {
	onMemory(t, func(w *world) {
		c := w.Open("a", nil)
		q := coord.NewQueue(c, "/q", &coord.QueueOptions[[]byte]{Codec: coord.Bytes(), MaxAttempts: 1})
		big := make([]byte, backend.MaxRequest-1000)
		_, err := q.Put(context.Background(), big)
		w.T.Log("Put:", err)
		if _, err := coord.NewTxn(c).Add(q.PutOp(big)).Commit(context.Background()); err != nil {
			w.T.Log("PutOp:", err)
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if _, err := q.Put(ctx, []byte("small")); err != nil {
			w.T.Fatal(err)
		}
		item, err := q.Take(ctx)
		if err != nil {
			w.T.Fatal(err)
		}
		w.T.Log("attempt", item.Attempt, "of", len(item.Value), "nack:", item.Nack(0))
		c.Close()
		b := coord.NewQueue(w.Open("b", nil), "/q", &coord.QueueOptions[[]byte]{Codec: coord.Bytes(), MaxAttempts: 1})
		for range 2 {
			item, err := b.Take(ctx)
			if err != nil {
				w.T.Errorf("Take of what is behind it: %v", err)
				continue
			}
			w.T.Logf("took %q", item.Value)
		}
	})
}

// A foreign node in an inbox is not taken for a branch: Abort is not called, and the node
// stays.
func TestTwoPhase_AForeignNodeInAnInboxIsLeftAlone(t *testing.T) {
	onMemory(t, func(w *world) {
		a := w.accounts("a")[0]
		name := "notes~of-the-operator-of-this-very-site-00"
		name = name[:len("notes~")+36]
		if _, err := w.Session("x").Commit(context.Background(), backend.Create("/tx/sites/a/"+name, nil, backend.Persistent)); err != nil {
			w.T.Fatal(err)
		}
		time.Sleep(time.Minute)
		if a.did() != "[]" || len(w.Children("/tx/sites/a")) != 1 {
			w.T.Errorf("did %s, left %v", a.did(), w.Children("/tx/sites/a"))
		}
	})
}

// The Txn itself removes the directory that its SetOp needs. The commit must return.
func TestTwoPhase_ATransactionThatRemovesItsOwnDirectoryEnds(t *testing.T) {
	onMemory(t, func(w *world) {
		n := 0
		c := w.Open("a", &backendtest.Hooks{Before: func(context.Context, backendtest.Call) error { n++; return nil }})
		if _, err := coord.NewTxn(c).Create("/d", nil, backend.Persistent).Commit(context.Background()); err != nil {
			w.T.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
		defer cancel()
		start := time.Now()
		_, err := coord.NewTxn(c).Delete("/d").Add(coord.NewValue[int](c, "/d/v", nil).SetOp(1)).Commit(ctx)
		if took := time.Since(start); took > time.Minute {
			w.T.Errorf("%v after %v, %d calls", err, took, n)
		}
	})
}

// A record that cannot be decoded does not end the Serve of a site.
func TestTwoPhase_AGarbageRecordDoesNotEndServe(t *testing.T) {
	onMemory(t, func(w *world) {
		b := w.accounts("b")[0]
		a := &account{w: w, name: "a"}
		stop := a.serve(w.Open("site a", nil))
		w.served("a")
		stop()
		co := coord.NewCoordinator(w.Open("co", nil), "/tx", &coord.CoordinatorOptions[string]{Unserved: coord.AwaitUnserved})
		p := w.proposal("t1", "a", "b")
		p.Deadline = time.Now()
		mustPropose(w.T, co, p)
		w.over("b")
		_ = b
		// The branch of a is left, the record is removed. An outsider creates a node of its
		// name.
		if _, err := w.Session("x").Commit(context.Background(), backend.Create("/tx/tx/t1", []byte("x"), backend.Persistent)); err != nil {
			w.T.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		h := coord.Handler[string]{Prepare: nothing, Commit: nothing, Abort: nothing}
		err := coord.NewParticipant(w.Open("again", nil), "/tx", "a", h).Serve(ctx)
		if ctx.Err() == nil {
			w.T.Errorf("Serve ended: %v", err)
		}
	})
}

// A callback that ends its goroutine, as t.FailNow does.
func TestTwoPhase_APrepareThatEndsItsGoroutineIsNoVote(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			coord.NewParticipant(w.Open("site a", nil), "/tx", "a", coord.Handler[string]{
				Prepare: func(context.Context, coord.Branch[string]) error { runtime.Goexit(); return nil },
				Commit:  nothing, Abort: nothing,
			}).Serve(ctx)
		}()
		w.served("a")
		d := mustPropose(w.T, coord.NewCoordinator[string](w.Open("co", nil), "/tx", nil), w.proposal("t1", "a"))
		w.T.Log(d)
		cancel()
		select {
		case <-ended:
		case <-time.After(time.Hour):
			panic("Serve does not end an hour after its context")
		}
	})
}

package coord_test

import (
	"context"
	"errors"
	"runtime"
	"slices"
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

// overwrite has an outsider write a node of a recipe.
func (w *world) overwrite(path, data string) {
	w.T.Helper()
	if _, err := w.Session("outsider").Commit(context.Background(), backend.SetData(w.Path(path), []byte(data), backend.AnyVersion)); err != nil {
		w.T.Fatal(err)
	}
}

// doubtful serves the site a with an InDoubt.
func (w *world) doubtful() (a *account, stop func()) {
	a = &account{w: w, name: "a", doubts: make(chan error, 10)}
	stop = a.serve(w.Open("site a", nil))
	w.served("a")
	return a, stop
}

// inDoubtAbout receives the error of a call of InDoubt, which must name the node.
func (a *account) inDoubtAbout(node string) {
	a.w.T.Helper()
	select {
	case err := <-a.doubts:
		coordtest.WantErr(a.w.T, err, coord.ErrInDoubt)
		var e *backend.Error
		if !errors.As(err, &e) || e.Path != a.w.Path(node) {
			a.w.T.Errorf("in doubt about %v, want %s", err, node)
		}
	case <-time.After(time.Minute):
		a.w.T.Fatal("InDoubt is not called")
	}
}

const orphanMark = "00000000-0000-8000-8000-000000000001"

// orphan creates a transaction of one site whose proposer is dead, together with ops.
func (w *world) orphan(id, site string, ops ...backend.Op) {
	w.T.Helper()
	s, ctx := w.Session("dead proposer"), context.Background()
	_, err := s.Commit(ctx, backend.Create(w.Path("/tx/tx"), nil, backend.Persistent))
	if err != nil && !errors.Is(err, coord.ErrExists) {
		w.T.Fatal(err)
	}
	record := `{"mark":"` + orphanMark + `","sites":["` + site + `"],"deadline":99999999999999,"payload":"InAi"}`
	if _, err := s.Commit(ctx, append([]backend.Op{
		backend.Create(w.Path("/tx/tx/"+id), []byte(record), backend.Persistent),
		backend.Create(w.Path("/tx/tx/"+id+"/open-"+orphanMark), nil, backend.Persistent),
		backend.Create(w.Path("/tx/sites/"+site+"/"+id+"~"+orphanMark), nil, backend.Persistent),
	}, ops...)...); err != nil {
		w.T.Fatal(err)
	}
}

// The sites of a transaction with a bad decision are in doubt about it, and serve other
// transactions. List and Recover work too.
func TestABadDecisionCostsItsTransactionOnly(t *testing.T) {
	onEach(t, func(w *world) {
		ctx := context.Background()
		a, stop := w.doubtful()
		b := w.accounts("b")[0]
		b.votes(func(ctx context.Context, tx coord.Branch[string]) error {
			if tx.ID == "bad" {
				<-ctx.Done()
			}
			return ctx.Err()
		})
		co := coord.NewCoordinator[string](w.Open("co", nil), "/tx", nil)
		result := make(chan error, 1)
		go func() {
			_, err := co.Propose(ctx, w.proposal("bad", "a", "b"))
			result <- err
		}()
		w.Eventually("a has voted", func() bool {
			st, err := co.Status(ctx, "bad")
			return err == nil && st.Sites[0].Yes
		})
		st, err := co.Status(ctx, "bad")
		if err != nil {
			w.T.Fatal(err)
		}
		decision := "/tx/tx/bad/" + layout.DecisionName(st.Zxid)
		if _, err := w.Session("outsider").Commit(ctx, backend.Create(w.Path(decision), []byte("{}"), backend.Persistent)); err != nil {
			w.T.Fatal(err)
		}
		coordtest.WantErr(w.T, <-result, coord.ErrInDoubt, coord.ErrDecode)
		a.inDoubtAbout(decision)
		// b has not voted, so there can have been no commit.
		w.Eventually("b aborts", func() bool { return b.did() == "[prepare bad:p abort bad:p]" })

		check := func(id string) {
			w.T.Helper()
			if d := mustPropose(w.T, co, w.proposal(id, "a", "b")); !d.Commit {
				w.T.Errorf("%+v", d)
			}
			w.Eventually("it is finished", func() bool { return slices.Equal(w.Children("/tx/tx"), []string{"bad"}) })
			list, err := co.List(ctx)
			if err != nil || len(list) != 1 || !list[0].InDoubt || list[0].Decided {
				w.T.Errorf("%+v, %v", list, err)
			}
			if list, err := co.Recover(ctx); err != nil || len(list) != 0 {
				w.T.Errorf("%+v, %v", list, err)
			}
			coordtest.WantErr(w.T, co.Forget(ctx, "bad"), coord.ErrInDoubt)
		}
		check("t1")
		stop()
		stop = a.serve(w.Open("site a again", nil))
		w.served("a")
		a.inDoubtAbout(decision)
		check("t2")
		if n := len(a.doubts); n > 0 {
			w.T.Errorf("InDoubt was called %d times more", n)
		}
		// An operator determines the decision, and repairs the node, with coordctl's value set.
		operator := coord.NewValue(w.Open("operator", nil), decision, &coord.ValueOptions[string]{Codec: coord.Text()})
		if _, err := operator.Set(ctx, `{"commit":false}`); err != nil {
			w.T.Fatal(err)
		}
		w.Eventually("a aborts", func() bool { return strings.Contains(a.did(), "abort bad:p") })
		if list, err := co.Recover(ctx); err != nil || len(list) != 1 || list[0].ID != "bad" || list[0].Commit {
			w.T.Errorf("%+v, %v", list, err)
		}
		w.over("a", "b")
		stop()
	})
}

// A site without InDoubt continues to serve too.
func TestASiteWithoutInDoubtContinuesToServe(t *testing.T) {
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

// The record of a committed transaction is overwritten before a site has read it.
func TestACommittedRecordThatIsOverwrittenLeavesItsSiteInDoubt(t *testing.T) {
	onEach(t, func(w *world) {
		a, stop := w.doubtful()
		b := w.accounts("b")[0]
		let := make(chan struct{})
		b.votes(func(context.Context, coord.Branch[string]) error { <-let; return nil })
		co := coord.NewCoordinator[string](w.Open("co", nil), "/tx", nil)
		result := make(chan coord.Decision, 1)
		go func() {
			d, err := co.Propose(context.Background(), w.proposal("t1", "a", "b"))
			if err != nil {
				w.T.Error(err)
			}
			result <- d
		}()
		w.Eventually("a has voted", func() bool {
			st, err := co.Status(context.Background(), "t1")
			return err == nil && st.Sites[0].Yes
		})
		stop()
		close(let)
		if d := <-result; !d.Commit {
			w.T.Errorf("%+v", d)
		}
		record, _, err := w.Session("reader").Get(context.Background(), w.Path("/tx/tx/t1"), nil)
		if err != nil {
			w.T.Fatal(err)
		}
		w.overwrite("/tx/tx/t1", "vandal was here")
		stop = a.serve(w.Open("site a again", nil))
		w.served("a")
		a.inDoubtAbout("/tx/tx/t1")
		b.votes(nil)
		if d := mustPropose(w.T, co, w.proposal("t2", "a", "b")); !d.Commit {
			w.T.Errorf("%+v", d)
		}
		w.Eventually("a continues", func() bool { return a.did() == "[prepare t1:p prepare t2:p commit t2:p]" })
		w.overwrite("/tx/tx/t1", string(record))
		w.over("a", "b")
		if got := a.did(); got != "[prepare t1:p prepare t2:p commit t2:p commit t1:p]" {
			w.T.Error(got)
		}
		stop()
	})
}

// Other nodes that an outsider can overwrite: each transaction ends as it was decided. (If an
// acknowledgement does not match the branch any more, the site is called once more.)
func TestOverwrittenNodesDoNotChangeADecision(t *testing.T) {
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
func TestACommitOfAnOutsiderIsDoubted(t *testing.T) {
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

// The record is destroyed while its sites wait for the decision, an hour before their
// deadline.
func TestASiteInDoubtIsCalledAtOnce(t *testing.T) {
	onEach(t, func(w *world) {
		a, stop := w.doubtful()
		w.accounts("b")[0].votes(func(ctx context.Context, _ coord.Branch[string]) error { <-ctx.Done(); return ctx.Err() })
		co := coord.NewCoordinator[string](w.Open("co", nil), "/tx", nil)
		p := w.proposal("t1", "a", "b")
		p.Deadline = time.Now().Add(time.Hour)
		result := make(chan error, 1)
		go func() {
			_, err := co.Propose(context.Background(), p)
			result <- err
		}()
		w.Eventually("a has voted", func() bool {
			st, err := co.Status(context.Background(), "t1")
			return err == nil && st.Sites[0].Yes
		})
		w.Settle()
		branch := "/tx/sites/a/" + w.Children("/tx/sites/a")[0]
		began := time.Now()
		w.Destroy(w.Path("/tx/tx/t1"))
		coordtest.WantErr(w.T, <-result, coord.ErrInDoubt)
		a.inDoubtAbout(branch)
		if took := time.Since(began); w.Fake && took > 0 {
			w.T.Errorf("called after %v", took)
		}
		// An operator removes the branch, with coordctl's value delete.
		operator := coord.NewValue(w.Open("operator", nil), branch, &coord.ValueOptions[string]{Codec: coord.Text()})
		yes, err := operator.Get(context.Background())
		if err != nil {
			w.T.Fatal(err)
		}
		if err := operator.Delete(context.Background(), yes); err != nil {
			w.T.Fatal(err)
		}
		w.over("a")
		stop()
	})
}

// A server that lags may not show the record yet. The site syncs and looks again before it is
// in doubt.
func TestAServerThatLagsBehindLeavesNoSiteInDoubt(t *testing.T) {
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
func TestASetOpAfterAnotherOperationOnItsValueEnds(t *testing.T) {
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
func TestATransactionThatWasNotSentIsNotUncertain(t *testing.T) {
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
func TestServeCallsInDoubtOnce(t *testing.T) {
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
func TestPutOpRefusesAnItemThatCannotBeBuried(t *testing.T) {
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
func TestAForeignNodeInAnInboxIsLeftAlone(t *testing.T) {
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
func TestATransactionThatRemovesItsOwnDirectoryEnds(t *testing.T) {
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
func TestAGarbageRecordDoesNotEndServe(t *testing.T) {
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
func TestAPrepareThatEndsItsGoroutineIsNoVote(t *testing.T) {
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

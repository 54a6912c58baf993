package coord_test

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
)

// a SetOp that depends on an operation of the same Txn.
func TestAValueIsSetAfterWhatTheTransactionDidToIt(t *testing.T) {
	for _, name := range []string{"twice", "after Create", "after Delete"} {
		t.Run(name, func(t *testing.T) {
			onMemory(t, func(w *world) {
				n := 0
				c := w.open("a", &backendtest.Hooks{Before: func(_ context.Context, c backendtest.Call) error {
					if c.Op == "commit" {
						n++
					}
					return nil
				}})
				v := coord.NewValue[int](c, "/v", nil)
				x := coord.NewTxn(c)
				switch name {
				case "twice":
					x.Do(v.SetOp(1), v.SetOp(2))
				case "after Create":
					x.Create("/v", []byte("1"), backend.Persistent).Do(v.SetOp(2))
				case "after Delete":
					setValue(w.t, v, 1)
					x.Delete("/v").Do(v.SetOp(2))
				}
				n = 0
				ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
				defer cancel()
				start := time.Now()
				_, err := x.Commit(ctx)
				if took := time.Since(start); took > time.Minute {
					w.t.Errorf("%v after %v and %d commits", err, took, n)
				}
			})
		})
	}
}

// only a directory, or a bucket, is uncertain. The transaction was not sent.
func TestWhatWasNotSentIsNotUncertain(t *testing.T) {
	for _, name := range []string{"SetOp", "PutOp"} {
		t.Run(name, func(t *testing.T) {
			onMemory(t, func(w *world) {
				var x nth
				c := w.open("a", &backendtest.Hooks{After: x.after})
				v := coord.NewValue[int](c, "/dir/v", nil)
				q := coord.NewQueue[int](c, "/q", nil)
				setValue(w.t, coord.NewValue[int](c, "/plain", nil), 1) // the slot is there
				x.arm(1, creates, func(_ context.Context, call backendtest.Call, err error) error {
					w.Link("a").Expire(call.Session.ID())
					return backend.Uncertain(backend.ErrSessionLost)
				})
				txn := coord.NewTxn(c).Set("/plain", []byte("2"))
				if name == "SetOp" {
					txn.Do(v.SetOp(2))
				} else {
					txn.Do(q.PutOp(2))
				}
				_, err := txn.Commit(context.Background())
				if errors.Is(err, coord.ErrUncertain) {
					got, stat, _ := w.session("x").Get(context.Background(), "/plain", nil)
					w.t.Errorf("%v; nothing of the transaction was sent: /plain is %s, version %d", err, got, stat.Version)
				}
			})
		})
	}
}

// InDoubt is told once for each Serve.
func TestInDoubtIsToldOnce(t *testing.T) {
	onMemory(t, func(w *world) {
		a := &account{w: w, name: "a", doubts: make(chan error, 10)}
		a.serve(w.open("site a", nil))
		w.accounts("b")[0].votes(func(ctx context.Context, _ coord.Ballot[string]) error { <-ctx.Done(); return ctx.Err() })
		w.served("a", "b")
		go coord.NewCoordinator[string](w.open("co", nil), "/tx", nil).Propose(context.Background(), w.proposal("t1", "a", "b"))
		time.Sleep(time.Second)
		s := w.session("outsider")
		var ops []backend.Op
		for _, name := range w.children("/tx/tx/t1") {
			ops = append(ops, backend.Delete("/tx/tx/t1/"+name, backend.AnyVersion))
		}
		if _, err := s.Commit(context.Background(), append(ops, backend.Delete("/tx/tx/t1", backend.AnyVersion))...); err != nil {
			w.t.Fatal(err)
		}
		<-a.doubts
		stat, err := w.stat("/tx/serving/a/" + w.children("/tx/serving/a")[0])
		if err != nil {
			w.t.Fatal(err)
		}
		w.Link("site a").Expire(stat.EphemeralOwner)
		time.Sleep(10 * time.Second)
		if n := len(a.doubts); n > 0 {
			w.t.Errorf("told %d times more by one Serve", n)
		}
	})
}

// an item that PutOp takes and that can never go to the dead letters.
func TestPutOpRefusesWhatCannotBeBuried(t *testing.T) {
	onMemory(t, func(w *world) {
		c := w.open("a", nil)
		q := coord.NewQueue(c, "/q", &coord.QueueOptions[[]byte]{Codec: coord.Bytes(), MaxAttempts: 1})
		big := make([]byte, backend.MaxRequest-1000)
		_, err := q.Put(context.Background(), big)
		w.t.Log("Put:", err)
		if _, err := coord.NewTxn(c).Do(q.PutOp(big)).Commit(context.Background()); err != nil {
			w.t.Log("PutOp:", err)
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if _, err := q.Put(ctx, []byte("small")); err != nil {
			w.t.Fatal(err)
		}
		item, err := q.Take(ctx)
		if err != nil {
			w.t.Fatal(err)
		}
		w.t.Log("attempt", item.Attempt, "of", len(item.Value), "nack:", item.Nack(0))
		c.Close()
		b := coord.NewQueue(w.open("b", nil), "/q", &coord.QueueOptions[[]byte]{Codec: coord.Bytes(), MaxAttempts: 1})
		for range 2 {
			item, err := b.Take(ctx)
			if err != nil {
				w.t.Errorf("Take of what is behind it: %v", err)
				continue
			}
			w.t.Logf("took %q", item.Value)
		}
	})
}

// a foreign node in an inbox is taken for a ballot: Abort is called, it is deleted.
func TestAForeignNodeInAnInboxIsLeftAlone(t *testing.T) {
	onMemory(t, func(w *world) {
		a := w.accounts("a")[0]
		name := "notes~of-the-operator-of-this-very-site-00"
		name = name[:len("notes~")+36]
		if _, err := w.session("x").Commit(context.Background(), backend.Create("/tx/sites/a/"+name, nil, backend.Persistent)); err != nil {
			w.t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if a.did() != "[]" || len(w.children("/tx/sites/a")) != 1 {
			w.t.Errorf("did %s, left %v", a.did(), w.children("/tx/sites/a"))
		}
	})
}

// the Txn itself removes the directory that SetOp needs.
func TestATransactionInItsOwnWayEnds(t *testing.T) {
	onMemory(t, func(w *world) {
		n := 0
		c := w.open("a", &backendtest.Hooks{Before: func(context.Context, backendtest.Call) error { n++; return nil }})
		if _, err := coord.NewTxn(c).Create("/d", nil, backend.Persistent).Commit(context.Background()); err != nil {
			w.t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
		defer cancel()
		start := time.Now()
		_, err := coord.NewTxn(c).Delete("/d").Do(coord.NewValue[int](c, "/d/v", nil).SetOp(1)).Commit(ctx)
		if took := time.Since(start); took > time.Minute {
			w.t.Errorf("%v after %v, %d calls", err, took, n)
		}
	})
}

// a garbage record ends the Serve of a site.
func TestAGarbageRecordDoesNotEndServe(t *testing.T) {
	onMemory(t, func(w *world) {
		b := w.accounts("b")[0]
		a := &account{w: w, name: "a"}
		stop := a.serve(w.open("site a", nil))
		w.served("a")
		stop()
		co := coord.NewCoordinator(w.open("co", nil), "/tx", &coord.CoordinatorOptions[string]{Unserved: coord.AwaitUnserved})
		p := w.proposal("t1", "a", "b")
		p.Deadline = time.Now()
		mustPropose(w.t, co, p)
		w.over("b")
		_ = b
		// a's ballot is left, the record is not; somebody makes a node of that name.
		if _, err := w.session("x").Commit(context.Background(), backend.Create("/tx/tx/t1", []byte("x"), backend.Persistent)); err != nil {
			w.t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		h := coord.Handler[string]{Prepare: nothing, Commit: nothing, Abort: nothing}
		err := coord.NewParticipant(w.open("again", nil), "/tx", "a", h).Serve(ctx)
		if ctx.Err() == nil {
			w.t.Errorf("Serve ended: %v", err)
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
			coord.NewParticipant(w.open("site a", nil), "/tx", "a", coord.Handler[string]{
				Prepare: func(context.Context, coord.Ballot[string]) error { runtime.Goexit(); return nil },
				Commit:  nothing, Abort: nothing,
			}).Serve(ctx)
		}()
		w.served("a")
		d := mustPropose(w.t, coord.NewCoordinator[string](w.open("co", nil), "/tx", nil), w.proposal("t1", "a"))
		w.t.Log(d)
		cancel()
		select {
		case <-ended:
		case <-time.After(time.Hour):
			panic("Serve does not end an hour after its context")
		}
	})
}

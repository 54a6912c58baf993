package recipetest

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/internal/coordtest"
)

// ackTxnScene is an item that a client has taken from /q.
type ackTxnScene struct {
	w             *world
	c             *coord.Client
	q             *coord.Queue[int]
	item          *coord.Item[int]
	before, after coordtest.Nth
	deletions     atomic.Int64 // commits that delete
}

func newAckTxnScene(w *world, o *coord.QueueOptions[int]) *ackTxnScene {
	w.T.Helper()
	sc := &ackTxnScene{w: w}
	sc.c = w.Open("a", &backendtest.Hooks{
		Before: func(ctx context.Context, c backendtest.Call) error {
			if coordtest.Deletes(c) {
				sc.deletions.Add(1)
			}
			return sc.before.Before(ctx, c)
		},
		After: sc.after.After,
	})
	sc.q = coord.NewQueue[int](sc.c, "/q", o)
	mustPut(w.T, sc.q, 1, 1)
	sc.item = mustTake(w.T, sc.q, 1)
	return sc
}

// txn is a transaction that acknowledges the item, and creates a node.
func (sc *ackTxnScene) txn() *coord.Txn {
	return coord.NewTxn(sc.c).Add(sc.item.AckOp()).Create("/done", nil, backend.Persistent)
}

// outsider commits on a session of its own.
func (sc *ackTxnScene) outsider(ops ...backend.Op) {
	sc.w.T.Helper()
	if _, err := sc.w.Session("outsider").Commit(context.Background(), ops...); err != nil {
		sc.w.T.Fatal(err)
	}
}

// nodes returns the paths of the item, and of its state.
func (sc *ackTxnScene) nodes() (item, state string) {
	sc.w.T.Helper()
	bucket := sc.item.Path()[:strings.LastIndex(sc.item.Path(), "/")]
	for _, name := range sc.w.Children(strings.TrimPrefix(bucket, sc.w.Path(""))) {
		if strings.HasPrefix(name, "i-") {
			item = bucket + "/" + name
		}
	}
	return item, bucket + "/s-" + sc.item.ID
}

// acked checks that the item counts as acknowledged, and is gone.
func (sc *ackTxnScene) acked() {
	sc.w.T.Helper()
	mustBeAcked(sc.w.T, sc.item)
	if n := mustLen(sc.w.T, &sc.q.Consumer); n != 0 {
		sc.w.T.Errorf("%d items", n)
	}
}

func mustBeAcked(t *testing.T, it *coord.Item[int]) {
	t.Helper()
	mustAck(t, it)
	if err := it.Err(); !errors.Is(err, coord.ErrReleased) || errors.Is(err, coord.ErrLost) {
		t.Errorf("the hold has ended with %v", err)
	}
	coordtest.WantErr(t, it.Nack(0), coord.ErrReleased)
	if err := it.Release(); err != nil {
		t.Error(err)
	}
}

func (on txnTests) AnItemIsAcknowledgedWithItsTransaction(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for name, take := range map[string]func(t *testing.T, c *coord.Client) (*coord.Item[int], *coord.Consumer[int]){
		"of a queue": func(t *testing.T, c *coord.Client) (*coord.Item[int], *coord.Consumer[int]) {
			q := coord.NewQueue[int](c, "/q", nil)
			mustPut(t, q, 1, 1)
			return mustTake(t, q, 1), &q.Consumer
		},
		"that was taken before": func(t *testing.T, c *coord.Client) (*coord.Item[int], *coord.Consumer[int]) {
			q := coord.NewQueue[int](c, "/q", nil)
			mustPut(t, q, 1, 1)
			if err := mustTake(t, q, 1).Nack(0); err != nil {
				t.Fatal(err)
			}
			return mustTake(t, q, 1), &q.Consumer
		},
		"of a queue with MaxLen": func(t *testing.T, c *coord.Client) (*coord.Item[int], *coord.Consumer[int]) {
			q := coord.NewQueue(c, "/q", &coord.QueueOptions[int]{MaxLen: 1, FailWhenFull: true})
			mustPut(t, q, 1, 1)
			return mustTake(t, q, 1), &q.Consumer
		},
		"of a priority queue": func(t *testing.T, c *coord.Client) (*coord.Item[int], *coord.Consumer[int]) {
			q := coord.NewPriorityQueue[int](c, "/q", nil)
			if _, err := q.Put(ctx, 3, 1); err != nil {
				t.Fatal(err)
			}
			it, err := q.TryTake(ctx)
			if err != nil {
				t.Fatal(err)
			}
			return it, &q.Consumer
		},
		"of a delay queue": func(t *testing.T, c *coord.Client) (*coord.Item[int], *coord.Consumer[int]) {
			q := coord.NewDelayQueue[int](c, "/q", nil)
			if _, err := q.Put(ctx, time.UnixMilli(1), 1); err != nil {
				t.Fatal(err)
			}
			it, err := q.TryTake(ctx)
			if err != nil {
				t.Fatal(err)
			}
			return it, &q.Consumer
		},
		"of dead letters": func(t *testing.T, c *coord.Client) (*coord.Item[int], *coord.Consumer[int]) {
			q := coord.NewQueue(c, "/live", &coord.QueueOptions[int]{MaxAttempts: 1, DeadLetterPath: "/q"})
			mustPut(t, q, 1, 1)
			if err := mustTake(t, q, 1).Nack(0); err != nil {
				t.Fatal(err)
			}
			dead := coord.NewQueue[int](c, "/q", nil)
			return mustTake(t, dead, 1), &dead.Consumer
		},
	} {
		t.Run(name, func(t *testing.T) {
			on.each(t, func(w *world) {
				var x coordtest.Nth
				c := w.Open("a", &backendtest.Hooks{After: x.After})
				item, from := take(w.T, c)
				next := coord.NewQueue[int](c, "/next", nil)
				txn := coord.NewTxn(c).Add(item.AckOp(), next.PutOp(2))
				x.Arm(1, coordtest.Deletes, coordtest.Lose)
				res := mustCommit(w.T, txn)
				if len(res) != 2 || !strings.Contains(res[0].Path, "/i-"+item.ID+"-") || res[0].Version != -1 || res[0].Zxid == 0 || !x.Idle() {
					w.T.Errorf("results %+v", res)
				}
				mustBeAcked(w.T, item)
				if n := mustLen(w.T, from); n != 0 {
					w.T.Errorf("%d items", n)
				}
				for _, name := range w.Children("/q/items") {
					if strings.HasPrefix(name, "b-") && len(w.Children("/q/items/"+name)) > 0 {
						w.T.Errorf("left in the bucket: %v", w.Children("/q/items/"+name))
					}
				}
				mustTake(w.T, next, 2)
				_, err := txn.Commit(ctx)
				wantConflict(w.T, err, "ack", 0, res[0].Path, coord.ErrReleased)
				if name == "of a queue with MaxLen" {
					mustPut(w.T, coord.NewQueue(c, "/q", &coord.QueueOptions[int]{MaxLen: 1, FailWhenFull: true}), 3, 3)
				}
			})
		})
	}
}

func (on txnTests) ARefusedTransactionLeavesTheClaim(t *testing.T) {
	t.Parallel()
	for name, after := range map[string]func(sc *ackTxnScene){
		"and an Ack": func(sc *ackTxnScene) { mustAck(sc.w.T, sc.item) },
		"and another transaction": func(sc *ackTxnScene) {
			mustCommit(sc.w.T, sc.txn())
			sc.acked()
		},
		"and a loss": func(sc *ackTxnScene) {
			item, state := sc.nodes()
			sc.outsider(backend.Delete(sc.item.Path(), backend.AnyVersion), backend.Delete(state, backend.AnyVersion), backend.Delete(item, backend.AnyVersion))
			coordtest.WantErr(sc.w.T, sc.item.Ack(), coord.ErrLost, coord.ErrDeleted)
		},
	} {
		t.Run(name, func(t *testing.T) {
			on.each(t, func(w *world) {
				sc := newAckTxnScene(w, nil)
				_, err := sc.txn().If(coord.IfExists("/none")).Commit(context.Background())
				coordtest.WantErr(w.T, err, coord.ErrConflict)
				if err := sc.item.Err(); err != nil {
					w.T.Fatal(err)
				}
				after(sc)
			})
		})
	}
}

func (on txnTests) ATransactionIsRefusedWithALostClaim(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		lose func(sc *ackTxnScene)
		want error
	}{
		"unknown": {func(sc *ackTxnScene) { sc.outsider(backend.Delete(sc.item.Path(), backend.AnyVersion)) }, coord.ErrDeleted},
		"with its session": {func(sc *ackTxnScene) {
			sc.w.Link("a").Expire(sc.item.Session())
			<-sc.item.Done()
		}, coord.ErrLost},
	} {
		t.Run(name, func(t *testing.T) {
			on.each(t, func(w *world) {
				sc := newAckTxnScene(w, nil)
				path, _ := sc.nodes()
				tt.lose(sc)
				_, err := sc.txn().Commit(context.Background())
				wantConflict(w.T, err, "ack", 0, path, coord.ErrLost)
				coordtest.WantErr(w.T, err, tt.want)
				coordtest.WantErr(w.T, sc.item.Ack(), coord.ErrLost)
				if _, err := w.stat("/done"); !errors.Is(err, coord.ErrNotFound) {
					w.T.Errorf("the rest of the transaction is applied: %v", err)
				}
				mustAck(w.T, mustTake(w.T, sc.q, 1))
			})
		})
	}
}

func (on txnTests) ABadAckOpIsRefused(t *testing.T) {
	on.each(t, func(w *world) {
		sc := newAckTxnScene(w, nil)
		_, err := sc.txn().Add(sc.item.AckOp()).Commit(context.Background())
		coordtest.WantErr(w.T, err, coord.ErrInvalid)
		_, err = coord.NewTxn(sc.c).Add(new(coord.Item[int]).AckOp()).Commit(context.Background())
		coordtest.WantErr(w.T, err, coord.ErrInvalid)
		path, _ := sc.nodes()
		if err := sc.item.Release(); err != nil {
			w.T.Fatal(err)
		}
		_, err = sc.txn().Commit(context.Background())
		wantConflict(w.T, err, "ack", 0, path, coord.ErrReleased)
		if errors.Is(err, coord.ErrLost) {
			w.T.Error(err)
		}
		mustAck(w.T, mustTake(w.T, sc.q, 1))
	})
}

// As an Ack alone, it continues without a node that another program has removed.
func (on txnTests) AnAckOpNeedsOnlyTheClaim(t *testing.T) {
	on.each(t, func(w *world) {
		sc := newAckTxnScene(w, &coord.QueueOptions[int]{MaxLen: 5})
		_, state := sc.nodes()
		sc.outsider(backend.Delete(state, backend.AnyVersion), backend.Delete(w.Path("/q/items/out"), backend.AnyVersion))
		mustCommit(w.T, sc.txn())
		sc.acked()
	})
}

// The refusal is left to the carrier, so the next transaction looks which nodes are there.
func (on txnTests) ACarriedAckOpThatWasRefusedLooksAgain(t *testing.T) {
	on.each(t, func(w *world) {
		sc, x := newAckTxnScene(w, &coord.QueueOptions[int]{MaxLen: 5}), &carrier{w: w}
		_, state := sc.nodes()
		if _, err := sc.txn().Commit(x.ctx()); err != nil {
			w.T.Fatal(err)
		}
		sc.outsider(backend.Delete(state, backend.AnyVersion), backend.Delete(w.Path("/q/items/out"), backend.AnyVersion))
		coordtest.WantErr(w.T, x.apply(), coord.ErrNotFound)
		looks := func(c backendtest.Call) bool { return len(c.Ops) > 1 && c.Ops[0].Kind == backend.OpCheck }
		sc.after.Arm(1, looks, coordtest.Lose)
		if _, err := sc.txn().Commit(x.ctx()); err != nil || !sc.after.Idle() {
			w.T.Fatal(err)
		}
		if err := x.apply(); err != nil {
			w.T.Fatal(err)
		}
		// The client does not know yet that the carrier has committed, or has heard it from a watch.
		_, err := sc.txn().Commit(x.ctx())
		if coordtest.WantErr(w.T, err, coord.ErrConflict, coord.ErrReleased); errors.Is(err, coord.ErrLost) || x.stages != 2 {
			w.T.Errorf("%v after %d stages", err, x.stages)
		}
		sc.acked()
	})
}

// The client learns from the watch on the claim, or from the Ack, whichever comes first, and from another
// call in flight.
func (on txnTests) AnAckBesideItsTransactionReturnsNil(t *testing.T) {
	t.Parallel()
	for name, first := range map[string]func(sc *ackTxnScene){
		"by an Ack":  func(sc *ackTxnScene) { mustAck(sc.w.T, sc.item) },
		"by a watch": func(sc *ackTxnScene) { <-sc.item.Done() },
	} {
		t.Run(name, func(t *testing.T) {
			on.each(t, func(w *world) {
				sc := newAckTxnScene(w, nil)
				applied, reply := make(chan struct{}), make(chan struct{})
				sc.after.Arm(1, coordtest.Deletes, func(_ context.Context, _ backendtest.Call, err error) error {
					close(applied)
					<-reply
					return err
				})
				result := make(chan error, 1)
				go func() {
					_, err := sc.txn().Commit(context.Background())
					result <- err
				}()
				<-applied
				first(sc)
				sc.acked()
				close(reply)
				if err := <-result; err != nil {
					w.T.Error(err)
				}
			})
		})
	}
}

func (on txnTests) AnUncertainAckOpIsResolvedByTheNextCall(t *testing.T) {
	t.Parallel()
	for name, applied := range map[string]bool{"applied": true, "not applied": false} {
		t.Run(name, func(t *testing.T) {
			on.each(t, func(w *world) {
				sc := newAckTxnScene(w, nil)
				ctx, cancel := context.WithCancel(context.Background())
				x := &sc.before
				if applied {
					x = &sc.after
				}
				x.Arm(1, coordtest.Deletes, func(context.Context, backendtest.Call, error) error {
					cancel()
					return backend.ErrUncertain
				})
				_, err := sc.txn().Commit(ctx)
				coordtest.WantErr(w.T, err, coord.ErrUncertain)
				if !applied && sc.item.Err() != nil {
					w.T.Error(sc.item.Err())
				}
				sc.acked()
			})
		})
	}
}

func (on txnTests) ACarriedAckOpEndsTheClaimWithItsCarrier(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(sc *ackTxnScene){
		"by Ack":    func(sc *ackTxnScene) { mustAck(sc.w.T, sc.item) },
		"by AckAll": func(sc *ackTxnScene) { sc.ackAll() },
		"by Nack":   func(sc *ackTxnScene) { coordtest.WantErr(sc.w.T, sc.item.Nack(time.Hour), coord.ErrReleased) },
		"by Release": func(sc *ackTxnScene) {
			if err := sc.item.Release(); err != nil {
				sc.w.T.Error(err)
			}
		},
		"by Verify": func(sc *ackTxnScene) {
			coordtest.WantErr(sc.w.T, sc.item.Verify(context.Background()), coord.ErrReleased)
		},
		"by a watch": func(sc *ackTxnScene) { <-sc.item.Done() },
		"by an Ack whose first look has no answer": func(sc *ackTxnScene) {
			sc.after.Arm(1, func(c backendtest.Call) bool {
				return c.Op == "commit" && len(c.Ops) == 1 && c.Ops[0].Kind == backend.OpCheck
			}, coordtest.Lose)
			mustAck(sc.w.T, sc.item)
		},
	} {
		t.Run(name, func(t *testing.T) {
			on.each(t, func(w *world) {
				sc, x := newAckTxnScene(w, nil), &carrier{w: w}
				if _, err := sc.txn().Commit(x.ctx()); err != nil {
					w.T.Fatal(err)
				}
				if err := sc.item.Err(); err != nil {
					w.T.Fatal(err)
				}
				if err := x.apply(); err != nil {
					w.T.Fatal(err)
				}
				end(sc)
				sc.acked()
			})
		})
	}
}

// ackAll acknowledges the item together with another one.
func (sc *ackTxnScene) ackAll() {
	sc.w.T.Helper()
	mustPut(sc.w.T, sc.q, 2, 3)
	if err := sc.q.AckAll(mustTake(sc.w.T, sc.q, 2), sc.item, mustTake(sc.w.T, sc.q, 3)); err != nil {
		sc.w.T.Error(err)
	}
}

func (on txnTests) ACarriedAckOpThatIsRolledBackLeavesTheClaim(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(sc *ackTxnScene) error{
		"for an Ack":    func(sc *ackTxnScene) error { return sc.item.Ack() },
		"for an AckAll": func(sc *ackTxnScene) error { sc.ackAll(); return nil },
		"for a Nack":    func(sc *ackTxnScene) error { return sc.item.Nack(0) },
		"for a Release": func(sc *ackTxnScene) error { return sc.item.Release() },
	} {
		t.Run(name, func(t *testing.T) {
			on.each(t, func(w *world) {
				sc, x := newAckTxnScene(w, nil), &carrier{w: w}
				if _, err := sc.txn().Commit(x.ctx()); err != nil {
					w.T.Fatal(err)
				}
				if err := end(sc); err != nil {
					w.T.Fatal(err)
				}
				// If it commits after all, it is refused.
				coordtest.WantErr(w.T, x.apply(), coord.ErrNotFound)
				switch attempt := map[string]int{"for a Nack": 2, "for a Release": 1}[name]; attempt {
				case 0:
					sc.acked()
				default:
					next := mustTake(w.T, sc.q, 1)
					if mustAck(w.T, next); next.Attempt != attempt {
						w.T.Errorf("attempt %d, want %d", next.Attempt, attempt)
					}
				}
			})
		})
	}
}

// A claim whose nodes did not go with the transaction is lost, as without it.
func (on txnTests) ACarriedAckOpDoesNotHideALoss(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(sc *ackTxnScene){
		"an outsider's": func(sc *ackTxnScene) { sc.outsider(backend.Delete(sc.item.Path(), backend.AnyVersion)) },
		"an outsider's, noticed by a watch": func(sc *ackTxnScene) {
			sc.outsider(backend.Delete(sc.item.Path(), backend.AnyVersion))
			<-sc.item.Done()
		},
		"of the session": func(sc *ackTxnScene) {
			sc.w.Link("a").Expire(sc.item.Session())
			<-sc.item.Done()
		},
	} {
		t.Run(name, func(t *testing.T) {
			on.each(t, func(w *world) {
				sc, x := newAckTxnScene(w, nil), &carrier{w: w}
				if _, err := sc.txn().Commit(x.ctx()); err != nil {
					w.T.Fatal(err)
				}
				lose(sc)
				coordtest.WantErr(w.T, sc.item.Ack(), coord.ErrLost)
				coordtest.WantErr(w.T, x.apply(), coord.ErrNotFound)
				mustAck(w.T, mustTake(w.T, sc.q, 1))
			})
		})
	}
}

// The session is lost before the client has seen whether the item went with the mark.
func (on txnTests) ACarriedAckOpIsUncertainIfTheSessionIsLost(t *testing.T) {
	on.each(t, func(w *world) {
		sc, x := newAckTxnScene(w, nil), &carrier{w: w}
		if _, err := sc.txn().Commit(x.ctx()); err != nil {
			w.T.Fatal(err)
		}
		looks := func(c backendtest.Call) bool {
			return c.Op == "commit" && len(c.Ops) == 1 && c.Ops[0].Kind == backend.OpCheck
		}
		sc.before.Arm(1, looks, func(_ context.Context, c backendtest.Call, _ error) error {
			w.Link("a").Expire(c.Session.ID())
			return backend.Uncertain(backend.ErrSessionLost)
		})
		if err := x.apply(); err != nil {
			w.T.Fatal(err)
		}
		err := sc.item.Ack()
		if err == nil && !w.Fake {
			return // the watch was the first to notice, and this look was answered before the session ended
		}
		if coordtest.WantErr(w.T, err, coord.ErrLost); w.Fake && !errors.Is(err, coord.ErrUncertain) {
			w.T.Errorf("%v is not uncertain", err) // elsewhere the watch can be the first to notice
		}
	})
}

// A handler that has committed its transaction returns nil, and Work sends nothing for the item.
func (on txnTests) WorkSendsNoAckAfterAnAckOp(t *testing.T) {
	on.each(t, func(w *world) {
		sc := newAckTxnScene(w, nil)
		mustAck(w.T, sc.item)
		mustPut(w.T, sc.q, 1, 5)
		ctx, cancel := context.WithCancel(context.Background())
		var handled atomic.Int64
		var before int64
		if err := sc.q.Work(ctx, 1, func(_ context.Context, it *coord.Item[int]) error {
			if handled.Add(1) == 1 {
				before = sc.deletions.Load()
			}
			if handled.Load() == 5 {
				defer cancel()
			}
			_, err := coord.NewTxn(sc.c).Add(it.AckOp()).Commit(context.Background())
			return err
		}); err != nil {
			w.T.Fatal(err)
		}
		if n := sc.deletions.Load() - before; handled.Load() != 5 || n != 5 {
			w.T.Errorf("%d items, %d commits", handled.Load(), n)
		}
		if n := mustLen(w.T, &sc.q.Consumer); n != 0 {
			w.T.Errorf("%d items", n)
		}
	})
}

// Each first attempt is rolled back, and its handler fails. Each second one is carried.
func (on txnTests) WorkCarriesItsAcks(t *testing.T) {
	on.each(t, func(w *world) {
		sc := newAckTxnScene(w, nil)
		mustAck(w.T, sc.item)
		mustPut(w.T, sc.q, 1, 6)
		ctx, cancel := context.WithCancel(context.Background())
		var handled, done atomic.Int64
		if err := sc.q.Work(ctx, 3, func(_ context.Context, it *coord.Item[int]) error {
			handled.Add(1)
			x := &carrier{w: w}
			if _, err := coord.NewTxn(sc.c).Add(it.AckOp()).Commit(x.ctx()); err != nil {
				w.T.Error(err)
				return err
			}
			if it.Attempt == 1 {
				return errors.New("rolled back")
			}
			if err := x.apply(); err != nil {
				w.T.Error(err)
				return err
			}
			if done.Add(1) == 6 {
				cancel()
			}
			return nil
		}); err != nil {
			w.T.Fatal(err)
		}
		if handled.Load() != 12 || done.Load() != 6 {
			w.T.Errorf("%d calls, %d items", handled.Load(), done.Load())
		}
		if n := mustLen(w.T, &sc.q.Consumer); n != 0 {
			w.T.Errorf("%d items", n)
		}
	})
}

package recipetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/internal/coordtest"
	"github.com/go-coord/coord/trace"
)

const secretItem = 880066110022

// A delivery after a lost claim is logged and traced, by whatever call. A delivery after a Nack, or
// of an item that was given back, is not.
func TestQueue_DeliveryAfterALostClaimIsTold(t *testing.T) {
	expire := func(w *world, it *coord.Item[int]) { w.Link("first").Expire(it.Session()) }
	nack := func(d time.Duration) func(*world, *coord.Item[int]) {
		return func(w *world, it *coord.Item[int]) {
			if err := it.Nack(d); err != nil {
				w.T.Fatal(err)
			}
		}
	}
	release := func(w *world, it *coord.Item[int]) {
		if err := it.Release(); err != nil {
			w.T.Fatal(err)
		}
	}
	type end = func(*world, *coord.Item[int])
	for _, test := range []struct {
		name string
		ends []end
		lost bool
	}{
		{"never taken", nil, false},
		{"the session expired", []end{expire}, true},
		{"the claim timed out", []end{func(_ *world, it *coord.Item[int]) { <-it.Done() }}, true},
		{"the claim was deleted", []end{func(w *world, it *coord.Item[int]) {
			if _, err := w.Session("outsider").Commit(context.Background(), backend.Delete(it.Path(), backend.AnyVersion)); err != nil {
				w.T.Fatal(err)
			}
			<-it.Done()
		}}, true},
		{"Nack", []end{nack(0)}, false},
		{"Nack with a delay", []end{nack(time.Second)}, false},
		{"Release", []end{release}, false},
		{"lost, then Nack", []end{expire, nack(0)}, false},
		{"Nack, then lost", []end{nack(0), expire}, true},
		{"delay, then lost", []end{nack(time.Second), expire}, true},
		{"Nack, then Release", []end{nack(0), release}, false},
		{"delay, then Release", []end{nack(time.Second), release}, false},
		{"lost, then Release", []end{expire, release}, true},
	} {
		for _, how := range []string{"Take", "All", "Items", "Work", "Pop"} {
			t.Run(test.name+", "+how, func(t *testing.T) {
				onMemory(t, func(w *world) {
					ctx, cancel := context.WithCancel(context.Background())
					defer cancel()
					first := w.queue("first", &coord.QueueOptions[int]{ClaimTimeout: time.Minute})
					mustPut(w.T, first, secretItem, secretItem)
					for _, end := range test.ends {
						end(w, mustTake(w.T, first, secretItem))
						w.Settle()
					}
					q, _, heard := w.heardQueue("second", nil, nil)
					switch how {
					case "Take":
						mustAck(w.T, mustTake(w.T, q, secretItem))
					case "All":
						for it, err := range q.All(ctx) {
							if err != nil {
								w.T.Fatal(err)
							}
							mustAck(w.T, it)
							break
						}
					case "Items":
						mustAck(w.T, receive(w, "the item comes", q.Items(ctx)))
					case "Work":
						if err := q.Work(ctx, 1, func(context.Context, *coord.Item[int]) error { cancel(); return nil }); err != nil {
							w.T.Error(err)
						}
					case "Pop":
						if _, err := q.Pop(ctx); err != nil {
							w.T.Error(err)
						}
					}
					cancel()
					w.drained(&first.Consumer)
					events, log := heard()
					told := 0
					for _, e := range events {
						if e, ok := e.(trace.ItemClaimed); ok {
							told++
							if e.AfterLoss != test.lost {
								w.T.Errorf("%+v, want AfterLoss %t", e, test.lost)
							}
						}
					}
					if told != 1 {
						w.T.Errorf("%d events ItemClaimed", told)
					}
					lines := strings.Count(log, `level=INFO msg="coord: redelivering an item, since an earlier claim on it was lost" path=/q/items/b-0-0/i-`)
					if want := map[bool]int{true: 1}[test.lost]; lines != want {
						w.T.Errorf("%d lines, want %d:\n%s", lines, want, log)
					}
					if strings.Contains(log, fmt.Sprint(secretItem)) {
						w.T.Errorf("the log shows the item:\n%s", log)
					}
				})
			})
		}
	}
}

// Each way into the dead letters is logged once, with its reason, and traced once. The text of the
// error, which can quote the item, is in neither.
func TestQueue_MoveToTheDeadLettersIsTold(t *testing.T) {
	bad := fmt.Errorf("cannot book %d", secretItem)
	for _, test := range []struct {
		name   string
		reason trace.Reason
		line   string
		bury   func(w *world, c *coord.Client, q *coord.Queue[int])
	}{
		{"NackCause", trace.ReasonFailed, "", func(w *world, c *coord.Client, q *coord.Queue[int]) {
			if err := mustTake(w.T, q, secretItem).NackCause(time.Hour, bad); err != nil && !errors.Is(err, coord.ErrDenied) {
				w.T.Error(err)
			}
		}},
		{"Work", trace.ReasonFailed, "", func(w *world, c *coord.Client, q *coord.Queue[int]) {
			ctx, cancel := context.WithCancel(context.Background())
			if err := q.Work(ctx, 1, func(context.Context, *coord.Item[int]) error { cancel(); return bad }); err != nil {
				w.T.Error(err)
			}
		}},
		{"a panic of the codec", trace.ReasonFailed, "", func(w *world, c *coord.Client, q *coord.Queue[int]) {
			func() {
				defer func() { recover() }()
				p := coord.NewQueue(c, "/q", &coord.QueueOptions[int]{MaxAttempts: 1, Codec: coord.Codec[int]{
					Encode: coord.JSON[int]().Encode, Decode: func([]byte) (int, error) { panic(secretItem) },
				}})
				it, err := p.Take(context.Background())
				w.T.Error("taken", it, err)
			}()
		}},
		{"ClaimTimeout", trace.ReasonTimeout, "", func(w *world, c *coord.Client, q *coord.Queue[int]) {
			<-mustTake(w.T, q, secretItem).Done()
		}},
		{"the end of the session", trace.ReasonAbandoned, "", func(w *world, c *coord.Client, q *coord.Queue[int]) {
			dying := w.queue("dying", nil)
			w.Link("dying").Expire(mustTake(w.T, dying, secretItem).Session())
			if _, err := q.TryTake(context.Background()); !errors.Is(err, coord.ErrEmpty) {
				w.T.Error(err)
			}
		}},
		{"a wrong codec", trace.ReasonUndecodable, `level=WARN msg="coord: cannot decode an item, moving it to the dead letters"`, func(w *world, c *coord.Client, q *coord.Queue[int]) {
			p := coord.NewQueue(c, "/q", &coord.QueueOptions[int]{Codec: coord.Codec[int]{
				Encode: coord.JSON[int]().Encode, Decode: func([]byte) (int, error) { return 0, errors.New("no number") },
			}})
			if _, err := p.TryTake(context.Background()); !errors.Is(err, coord.ErrEmpty) {
				w.T.Error(err)
			}
		}},
	} {
		for _, fault := range []string{"", "refused at first"} {
			t.Run(test.name+" "+fault, func(t *testing.T) {
				onMemory(t, func(w *world) {
					var x coordtest.Nth
					q, c, heard := w.heardQueue("a", &backendtest.Hooks{Before: x.Before}, &coord.QueueOptions[int]{MaxAttempts: 1, ClaimTimeout: time.Minute})
					mustPut(w.T, q, secretItem, secretItem)
					if fault != "" {
						x.Arm(1, func(c backendtest.Call) bool {
							return slices.ContainsFunc(c.Ops, func(op backend.Op) bool { return strings.HasPrefix(op.Path, "/q/dead/items/b-0-0/i-") })
						},
							func(context.Context, backendtest.Call, error) error { return backend.ErrDenied })
					}
					if test.bury(w, c, q); fault != "" {
						w.Settle()
						time.Sleep(2 * time.Minute) // it is tried again
						if _, err := q.TryTake(context.Background()); !errors.Is(err, coord.ErrEmpty) {
							w.T.Error(err)
						}
						if !x.Idle() {
							w.T.Error("nothing was refused")
						}
					}
					w.Settle()
					if n := len(letters(w.T, &q.Consumer)); n != 1 {
						w.T.Fatalf("%d dead letters", n)
					}
					events, log := heard()
					line := test.line
					if line == "" {
						line = `level=WARN msg="coord: an item was moved to the dead letters"`
						if !strings.Contains(log, fmt.Sprintf("attempts=1 reason=%s to=/q/dead\n", test.reason)) {
							w.T.Errorf("no reason %s:\n%s", test.reason, log)
						}
					}
					if n := strings.Count(log, line); n != 1 {
						w.T.Errorf("%d lines, want 1:\n%s", n, log)
					}
					if strings.Contains(log, fmt.Sprint(secretItem)) || strings.Contains(fmt.Sprintf("%+v", events), fmt.Sprint(secretItem)) {
						w.T.Errorf("the item is shown:\n%s\n%+v", log, events)
					}
					buried := 0
					for _, e := range events {
						if e, ok := e.(trace.ItemSettled); ok && e.Outcome == trace.ItemDead {
							if buried++; e.Reason != test.reason {
								w.T.Errorf("%+v, want reason %s", e, test.reason)
							}
						}
					}
					if buried != 1 {
						w.T.Errorf("%d events ItemDead:\n%+v", buried, events)
					}
				})
			})
		}
	}
}

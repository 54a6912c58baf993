package recipetest

import (
	"context"
	"testing"

	"github.com/go-coord/coord/backend"
)

// queueProtocolTests are tests of Queue on each service.
type queueProtocolTests struct{ Services }

// An outsider has closed the last bucket, and there is no next one.
func (on queueProtocolTests) AQueueContinuesWhenItsLastBucketWasClosedByHand(t *testing.T) {
	on.each(t, func(w *world) {
		a, b := w.queue("a", nil), w.queue("b", nil)
		mustPut(w.T, a, 1, 2)
		if _, err := w.Session("x").Commit(context.Background(), backend.SetData(w.Path("/q/items/b-0-0"), nil, backend.AnyVersion)); err != nil {
			w.T.Fatal(err)
		}
		mustPut(w.T, a, 3, 4)
		mustPut(w.T, b, 5, 6)
		for n := 1; n <= 6; n++ {
			mustAck(w.T, mustTake(w.T, b, n))
		}
		w.drained(&b.Consumer)
	})
}

// W1, W2: an outsider deletes the nodes of the waiters.
func (on queueProtocolTests) WaitersWhoseNodesAreDeletedStillGetItems(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		var waiting []*taking
		for _, name := range []string{"a", "b", "c", "d", "e"} {
			waiting = append(waiting, w.takeWaits(ctx, w.queue(name, nil)))
		}
		s := w.Session("x")
		for _, name := range w.Children("/q/waiters") {
			if _, err := s.Commit(ctx, backend.Delete(w.Path("/q/waiters/"+name), backend.AnyVersion)); err != nil {
				w.T.Fatal(err)
			}
		}
		p := w.queue("p", nil)
		mustPut(w.T, p, 1, 5)
		sum := 0
		for _, x := range waiting {
			<-x.done
			if x.err != nil {
				w.T.Fatal(x.err)
			}
			sum += x.it.Value
			mustAck(w.T, x.it)
		}
		if sum != 15 {
			w.T.Errorf("the sum is %d, want 15", sum)
		}
		w.drained(&p.Consumer)
	})
}

package queue

import (
	"testing"
	"testing/synctest"

	"github.com/go-coord/coord/backend/memory"
	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/layout"
)

// A claim that ends after a closing client has given its stock back is given back too.
func TestQueue_AnItemThatArrivesAfterTheStockWasGivenBackIsGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memory.New(nil)
		open := func() (*Queue, *Taker[*Claim]) {
			c, err := core.Open(t.Context(), st.Link(""), core.Config{}, nil)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.Close() })
			q := New(c, "/q", layout.KindQueue, Config[any]{})
			return q, NewTaker(q, func(cl *Claim, _ []byte) (*Claim, error) { return cl, nil })
		}
		q, taker := open()
		if _, err := q.PutValue(t.Context(), 0, 0, PutOptions{}, func() ([]byte, error) { return []byte("1"), nil }); err != nil {
			t.Fatal(err)
		}
		late, err := taker.Take(t.Context(), "take", false)
		if err != nil {
			t.Fatal(err)
		}
		stock := &stock[*Claim]{}
		stock.giveBack()
		if it := stock.fill([]*taken[*Claim]{{late, late}}); it != nil {
			t.Errorf("%s is handed out", it.data)
		}
		_, taker = open()
		again, err := taker.Take(t.Context(), "take", false)
		if err != nil || again.e.ID != late.e.ID || again.attempt != 1 {
			t.Fatalf("%+v, %v, want the item without an attempt more", again, err)
		}
		if err := again.Ack(); err != nil {
			t.Error(err)
		}
	})
}

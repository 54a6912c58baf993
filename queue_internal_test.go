package coord

import (
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-coord/coord/backend/memory"
)

// A claim that ends after a closing client has given its stock back is given back too.
func TestQueue_AnItemThatArrivesAfterTheStockWasGivenBackIsGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memory.New(nil)
		open := func() *Queue[int] {
			c, err := Open(t.Context(), st.Link(""), nil)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.Close() })
			return NewQueue[int](c, "/q", nil)
		}
		q := open()
		if _, err := q.Put(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		late, err := q.Take(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		stock := &stock[int]{}
		stock.giveBack()
		if it := stock.fill([]*Item[int]{late}); it != nil {
			t.Errorf("%v is handed out", it.Value)
		}
		again, err := open().Take(t.Context())
		if err != nil || again.ID != late.ID || again.Attempt != 1 {
			t.Fatalf("%+v, %v, want the item without an attempt more", again, err)
		}
		if err := again.Ack(); err != nil {
			t.Error(err)
		}
	})
}

// The delay after a failed attempt grows up to the longest one, and stays there however many attempts fail.
func TestWork_DelayAfterAFailureNeverShrinks(t *testing.T) {
	before := time.Duration(0)
	for attempt := 1; attempt < 1000; attempt++ {
		d := retryDelay(attempt)
		if d < before || d < firstRetry || d > lastRetry {
			t.Fatalf("%v after attempt %d, %v after the one before", d, attempt, before)
		}
		before = d
	}
	if before != lastRetry || retryDelay(math.MaxInt) != lastRetry {
		t.Errorf("%v after many attempts, want %v", before, lastRetry)
	}
}

package queue

import (
	"runtime"
	"testing"
)

// A function that rests before it tells others that it is about to return leaves its hand to the next function.
func TestHands_AHandThatRestsIsUsedAgain(t *testing.T) {
	var h hands
	used := make(map[*hand]int)
	told := make(chan *hand)
	for range 50 {
		h.do(func(w *hand) {
			w.rest()
			told <- w
		})
		used[<-told]++
	}
	h.wait()
	if len(used) != 1 {
		t.Errorf("50 functions, one after the other, ran on %d hands, want 1", len(used))
	}
}

// Functions that run at the same time have a hand each. wait returns when all have returned.
func TestHands_WaitWaitsForAll(t *testing.T) {
	const n = 5
	var h hands
	began, end := make(chan *hand), make(chan struct{})
	over := make([]bool, n)
	used := make(map[*hand]bool)
	for i := range n {
		h.do(func(w *hand) {
			began <- w
			<-end
			over[i] = true
		})
		used[<-began] = true
	}
	if len(used) != n {
		t.Errorf("%d functions that run at the same time have %d hands", n, len(used))
	}
	close(end)
	h.wait()
	for i, over := range over {
		if !over {
			t.Errorf("function %d has not returned", i)
		}
	}
}

// A function ends its goroutine, before or after its hand rests. The next function is called all the same.
func TestHands_AFunctionThatEndsItsGoroutine(t *testing.T) {
	for name, early := range map[string]bool{"before rest": false, "after rest": true} {
		t.Run(name, func(t *testing.T) {
			var h hands
			calls := make(chan *hand)
			for range 20 {
				h.do(func(w *hand) {
					defer func() {
						if early {
							w.rest()
						}
						calls <- w
					}()
					runtime.Goexit()
				})
				<-calls
			}
			h.wait()
			if len(h.idle) > 0 {
				t.Errorf("%d hands are idle after wait", len(h.idle))
			}
		})
	}
}

package coordtest

import (
	"fmt"
	"sync"
	"testing"

	"github.com/go-coord/coord/internal/hook"
)

// insides are internals of the clients of the tests: hook.Queue by the Consumer, and by the Item the
// function that stops the timer of its claim.
var insides sync.Map

// watched returns hooks with which a client shows its queues and items, until the test ends.
func watched(t *testing.T, h hook.Hooks) hook.Hooks {
	var mu sync.Mutex
	var keys []any
	show := func(key, inside any) {
		mu.Lock()
		defer mu.Unlock()
		keys = append(keys, key)
		insides.Store(key, inside)
	}
	t.Cleanup(func() {
		for _, key := range keys {
			insides.Delete(key)
		}
	})
	h.Queue = func(consumer any, q hook.Queue) { show(consumer, q) }
	h.Item = func(item any, stopTimer func()) { show(item, stopTimer) }
	return h
}

// Inside returns the inside of a queue value of a client that Open has opened. consumer is the
// pointer to its Consumer.
func Inside(consumer any) hook.Queue {
	q, ok := insides.Load(consumer)
	if !ok {
		panic(fmt.Sprintf("coordtest: no queue of a client of Open: %T", consumer))
	}
	return q.(hook.Queue)
}

// StopClaimTimer stops the timer of ClaimTimeout of an item, as if it were late.
func StopClaimTimer(item any) {
	stop, ok := insides.Load(item)
	if !ok {
		panic(fmt.Sprintf("coordtest: no item of a client of Open: %T", item))
	}
	stop.(func())()
}

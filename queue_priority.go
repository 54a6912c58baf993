package coord

import "context"

// A PriorityQueue is a Queue whose items are taken by priority, the lowest number
// first, and those of one priority in the order in which they were put (the
// priority queue of the ZooKeeper recipe guide). All that is said of Queue holds
// of it too.
//
// A better item wins over a worse one if it was put before the call of Take began.
// Whoever loses a race for the best item looks for the best again. With Prefetch,
// that holds of the moment in which the items are claimed.
//
// Each priority has nodes of its own: at most 10,000 of them can be in use at a
// time, less the further ones that long queues need (one for some hundred items).
// Beyond that Put fails with ErrLimit, after it has looked for empty ones, as in a
// DelayQueue.
type PriorityQueue[T any] struct {
	Consumer[T]
}

// NewPriorityQueue returns the queue at path. It does no I/O; a bad path or option
// is reported by the first call.
func NewPriorityQueue[T any](c *Client, path string, o *QueueOptions[T]) *PriorityQueue[T] {
	return &PriorityQueue[T]{newConsumer(c, path, priorityQueue, o)}
}

// Put adds a value, as Queue.Put does.
func (q *PriorityQueue[T]) Put(ctx context.Context, priority int64, v T) (id string, err error) {
	return q.putOne(ctx, priority, 0, v)
}

// PutAll adds values of one priority, as Queue.PutAll does.
func (q *PriorityQueue[T]) PutAll(ctx context.Context, priority int64, vs ...T) (ids []string, err error) {
	return q.putAll(ctx, priority, 0, vs)
}

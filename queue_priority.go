package coord

import "context"

// A PriorityQueue is a Queue whose items are taken by priority, the lowest number
// first, and items of one priority in the order in which they were put (the
// priority queue of the ZooKeeper recipe guide). In all other respects it behaves
// as a Queue.
//
// An item with a lower number is taken before one with a higher number if it was
// put before the call of Take began. A consumer that loses a race for the first
// item looks for the first item again. With Prefetch, the comparison is made at the
// moment in which the items are claimed.
//
// Each priority has nodes of its own. At most 10,000 priorities can be in use at a
// time, less the additional nodes of long queues (one for some hundred items).
// Beyond that Put looks for empty nodes, as in a DelayQueue, and if it finds none
// it fails with ErrLimit.
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

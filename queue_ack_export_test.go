package coord

// AcksWaiting is how many Acks of a queue wait for the one under way.
func AcksWaiting[T any](q *Consumer[T]) (n int) {
	q.q.mu.Lock()
	defer q.q.mu.Unlock()
	for _, line := range q.q.acks {
		n += len(line.waiting)
	}
	return n
}

// AckLines is how many sessions have Acks of a queue under way.
func AckLines[T any](q *Consumer[T]) int {
	q.q.mu.Lock()
	defer q.q.mu.Unlock()
	return len(q.q.acks)
}

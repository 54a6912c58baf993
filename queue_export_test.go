package coord

import "time"

// SetBucketSize makes the buckets of a queue small.
func SetBucketSize[T any](q *Consumer[T], n int) { q.q.size = n }

// SetBucketLimit makes a queue have few buckets.
func SetBucketLimit[T any](q *Consumer[T], n int) { q.q.most = n }

// SetClock makes the clock of a consumer go wrong by d.
func SetClock[T any](q *Consumer[T], d time.Duration) { q.q.skew = d }

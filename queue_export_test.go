package coord

// SetBucketSize makes the buckets of a queue small.
func SetBucketSize[T any](q *Consumer[T], n int) { q.q.size = n }

// SetBucketLimit makes a queue have few buckets.
func SetBucketLimit[T any](q *Consumer[T], n int) { q.q.most = n }

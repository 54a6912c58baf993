// Package queue is the engine of the three queues, on bytes.
//
//	queue.go     nodes, protocol and rules; the options
//	put.go       Put, the buckets, and Put as a part of a transaction
//	limit.go     MaxLen
//	walk.go      which items can be taken: one list of a bucket is one snapshot
//	feed.go      one goroutine takes items for all callers of a queue value; wait.go: until there are some
//	slots.go     a few of the clients that wait watch, whatever their number
//	claim.go     a claim is made, and received; open.go: its item is read and decoded
//	claim_end.go its end: Ack, Nack, release, loss, and the item that becomes a dead letter
//	take.go      what a caller takes: one item, a loop with items in stock; work.go: with handlers
//	ack.go       Acks that are called at once share a commit
//	pop.go       Pop deletes an item without a claim
//	letters.go   dead letters; redrive.go: back into the queue
//	purge.go     Peek, Len and Purge; stats.go: Stats
//
// Package coord has the public types, their documentation and the codecs; a Taker calls the codec.
//
// TestQueue, TestPriorityQueue, TestDelayQueue and TestWork of internal/recipetest test it, and
// internal/model/queue_slots_*_test.go explores the rules of the waiting clients.
package queue

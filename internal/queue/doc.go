// Package queue is the engine of the three queues, on bytes.
//
//	rules.go     nodes, protocol and rules
//	queue.go     the queue and its options
//	put.go       Put and PutAll; put_txn.go: Put as a part of a transaction
//	buckets.go   which bucket a put uses, closes or makes
//	limit.go     MaxLen
//	walk.go      which items can be taken: one list of a bucket is one snapshot; turn.go: out of the order of priorities;
//	             passed.go: which buckets need no list yet
//	remembered.go the items of the last list, for the next claims; ahead.go: reads them before they are claimed
//	feed.go      one goroutine takes items for all callers of a queue value; wait.go: its wait for items
//	slots.go     of the clients that wait, a few watch, however many wait
//	claim.go     makes claims, and hands them to callers; open.go: reads and decodes their items
//	claim_end.go ends claims: Ack, Nack, release, loss, and the move to the dead letters
//	take.go      Take, All and Items, with prefetched items in stock; work.go: Work, with handlers
//	ack_txn.go   Ack as a part of a transaction
//	ack.go       Acks that are called at the same time share a commit; ack_next.go: which claims the next items for Work
//	pop.go       Pop, which deletes an item without a claim if it can
//	letters.go   dead letters; redrive.go: moves them back into the queue
//	purge.go     Peek, Len and Purge; stats.go: Stats
//
// Package coord has the public types, their documentation and the codecs; a Taker calls the codec.
//
// TestQueue, TestPriorityQueue, TestDelayQueue and TestWork of internal/recipetest test it, and
// internal/model/queue_slots_*_test.go explores the rules of the waiting clients, queue_next_test.go and
// queue_beside_test.go those of Acks that claim, and queue_keys_*test.go those of keys.
package queue

package coord

import (
	"cmp"
	"context"
	"strings"
	"sync"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/layout"
)

// This file and the queue_*.go beside it are the engine of the three queues.
//
// # Nodes
//
//	<queue>                              a container
//	<queue>/items                        persistent, without data; its version counts the puts into a queue with MaxLen, and the buckets made for a key without an open one (P2)
//	<queue>/items/tally                  its version continues that count when the versions of items are used up
//	<queue>/items/b-<key>-<n>            a bucket; version 0: open, else closed
//	  i-<id>-<due>-<sequence>            an item: the bytes that Put was given, nothing else
//	  s-<id>                             its state, from the first claim on: how often it was claimed
//	  m-<id>-<guid>                      its claim (the mark): ephemeral, made by the consumer
//	  d-<id>-<time>                      the item is put off until then, in milliseconds by the service's clock (W7)
//	<queue>/waiters/_c_<guid>-take-<seq> a client that waits; waiters is a container
//	<queue>/dead                         a queue of its own, for dead letters
//
// The key of a bucket is 0 in a Queue, the priority in a PriorityQueue, and the
// minute of the due time in a DelayQueue. Buckets are read in the order of their
// keys, and those of one key in the order of their numbers.
//
// Why buckets: one packet cannot carry a list of 50,000 names, and no take may read
// the whole queue. Why the states of items stand beside them: one list of a bucket
// is one snapshot of its items, of their claims and of their due times. The size of
// a bucket is bounded by the number of producers, see P3.
//
// # Putting
//
// P1. A put is one commit {check(bucket, version 0), create the items}, applied
// exactly once (commitOnce). So an item never lands in a closed bucket, and a lost
// reply does not create a second item. The id is part of the name, so the caller
// knows it even if the reply is lost.
//
// P2. For each key at most one bucket is open, the one with the highest number.
// Otherwise two producers could put into different buckets, and the order of
// creation would be lost. Hence a bucket is closed and the next one made in one
// commit {set(bucket, version 0), create the next}. If a key has no open bucket,
// one is made by {set(items, version v), create bucket}, where v was read together
// with the list that showed no open bucket. That commit increments the version of
// items, so it fails for a producer that was paused since its list. The directory
// of items is not a container: if it were reaped, its version would begin again,
// and a paused producer could make a second open bucket.
//
// A producer learns from a failed commit that the last bucket of its list is
// closed. That is not sufficient: when all buckets of a key are removed, the
// numbers begin again, and the list can show a new, open bucket of the same name.
// So the producer reads the bucket once more, after a list that is newer than the
// failed commit. If the version is 0, the bucket is open. Otherwise the bucket was
// already closed at the time of the list if its last change is not newer than the
// latest change of the children of items that the list shows, because every close
// creates a child of items. (A close by an outsider creates none. It is accepted if
// a second list shows no change of the children since the first.)
//
// P3. The creation of an item shows how full its bucket is: by the number of siblings
// or, where the service does not tell that, by the sequence number, which counts the
// nodes that the bucket was ever given. A producer whose item makes the bucket reach the
// limit closes the bucket in the same commit as its next put. So a bucket holds at most the limit, 256, plus one put of
// each producer that puts into it at the same time. A put is up to 128 items: 60
// producers that call PutAll at the same moment can make a bucket of 8,000 items,
// whose list takes half a MB, and more if many of its items are claimed. A hundred
// such producers can come near the maximum size of a packet.
//
// # Taking
//
// T1. A consumer lists buckets up to the first one that contains an item to take,
// and none behind it.
//
// T2. A claim is one commit: {check(item), create its state, create the mark} for
// the first claim of an item; {check(item), set(state, version read), create the
// mark, delete d} for a later one. The state has a fixed name and a version that
// each claim increments, so of two consumers with the same snapshot one fails. The
// state is persistent: the attempt is counted even if the consumer dies. The
// version must be that of the snapshot in which the item was free, see
// session.attempts in queue_claim.go.
//
// T3. The name of a mark is never used again. Every later operation of the holder
// (ack, nack, giving back) deletes its mark in the same commit, so it never touches
// the claim of the next consumer, however late it arrives. Only the mark decides:
// if an outsider has removed an item or a state, the operation goes on without it.
// An item without its state is still moved to the dead letters. If an outsider
// created a child of an item, the item cannot be deleted, and the error is
// returned. The mark is the node of the Hold.
//
// T4. Ack = {delete mark, state, item}. Nack = {delete mark, create d}, or just
// {delete mark}. Giving back = {delete mark, decrement the attempts}. The item
// stays where it is, so it keeps its place. When a session expires, its marks are
// deleted and nothing else. Each of these commits is applied exactly once or not at
// all. Several Acks can share a commit, see queue_ack.go.
//
// T5. A claim is not cancellable: it is made for the callers that ask. If a caller
// has given up in the meantime, its item is given back, and until that is done the
// client takes nothing else. If the service refuses to let the item be given back,
// the item stays claimed, the client retries in the background as long as the
// session lives, and it takes later items in the meantime: then the order is not
// kept. A Pop that is refused, or whose context ends, gives its item back in this
// way. If the outcome of the Pop's delete is unknown, the delete may be applied
// before the item is given back; then the mark is gone, and nothing is left to be
// done.
//
// T6. A consumer deletes an empty bucket, unless it is the last one of the list. (A
// closed bucket is never the last.) The service refuses if the bucket is not empty
// any more. The last bucket is kept, so that the numbers of a Queue only grow, and
// a consumer can list the bucket that was first at its last take before it lists
// all buckets. (A bucket that was first stays first as long as it exists.) A Purge
// deletes empty buckets in the same way. So does a producer, with all empty
// buckets, before it fails with ErrLimit.
//
// T7. If an item was claimed as often as MaxAttempts allows, the next consumer that
// sees it moves it to the dead letters. If the service refuses that, the client
// logs it and ignores the item for a minute.
//
// T8. A claim that is not ended within ClaimTimeout is ended by the client that made it.
// The hold is marked as lost before the mark is deleted, and nothing but the hold
// decides whether an Ack or the timeout commits. The commit is that of a Nack or of a
// move to the dead letters (T4). The client takes nothing else until that commit was
// answered once, so it does not pass over the item. An item that no caller has received
// in the time is given back instead, as in T5.
//
// # Waiting
//
// W1. A consumer that finds nothing makes a node in waiters. The first k waiters,
// by sequence number, are the front (k is frontWaiters). They watch everything that
// can make an item available: the list of buckets, the buckets that they have
// passed, and the clock where an item is put off (W7). Every other waiter watches the k
// waiters before it, and lists the waiters again when one of these leaves. So a put
// wakes k clients however many wait, and a claim at most k more.
//
// No waiter can get to the front without an event. The first k waiters are the k
// predecessors of the waiter behind them. So when one of them leaves, that waiter
// is watching it, even if the others are dead. Hence an available item waits only
// while all k waiters at the front are dead, cut off or paused, or have a slow
// clock, and only until the first of them has left. (Fewer watches do not suffice:
// with a single watch on the predecessor, or on the k-th predecessor, one dead
// waiter can stand between the items and all other waiters. internal/model explores
// this.) Dead waiters do collect at the front: k of them within one session timeout
// stop the queue for the rest of that timeout.
//
// W2. A waiter that claims deletes its node in the same commit. That lets the next
// waiter to the front, which then looks for further items. A waiter that gives up
// or dies has the same effect. So whenever an item is available, a waiter at the
// front is awake or has a watch that fires.
//
// W3. The claim of a dead consumer is a deleted child of a bucket that is watched.
//
// W4. The callers of one Queue value share one waiter, one set of watches and one
// claim: see queue_feed.go.
//
// W5. A consumer whose claim fails reads again after a Sync; otherwise it could see
// the same stale snapshot for ever. If the failed snapshot was not read after a
// Sync, the failure proves nothing, and nothing else of the snapshot is claimed:
// the item may be free, and it precedes the others. If it was read after a Sync and
// another consumer has the item, a race was lost. In a Queue, the next attempt then
// skips a random, small number of items, because the competitors look at the same
// head; in a PriorityQueue it is for the first item again. An item that has
// vanished is not a lost race. If it vanishes twice in a row, the tree of the server
// has diverged from those of the others: the list comes from this server, and the
// refusal from the leader. The client ignores the item for a minute, as in T7. No
// live item is ignored, because no name is used twice.
//
// W6. Producers that wait for room do not form a queue: each watches all buckets.
//
// W7. An item that is put off, or not due, can be taken when the service's clock
// certainly shows its time: the session keeps an interval that contains the difference
// of that clock from the local one, see session_offset.go and session_clock.go. The
// clocks of clients do not matter, so a slow one at the front delays nothing, and a
// fast one takes nothing early. Where the interval is not known, a client that waits
// learns it from the creation of its waiter, and any other from a small write (learn).
// A waiter at the front wakes when its lower bound reaches the first due time. If the
// interval will be too wide by then, it wakes when the upper bound does, and learns.
// It also wakes when its contact changes, since the service can have another clock
// then. If the service has no clock, those of the clients count.

const (
	bucketSize = 256    // items that a bucket gets before the next put closes it
	maxBatch   = 128    // maximum of items in one commit
	maxBuckets = 10_000 // their names fit into one packet
	maxOpen    = 1024   // maximum of open buckets that a client remembers
)

// queueKind distinguishes the three queues.
type queueKind int8

const (
	fifoQueue queueKind = iota
	priorityQueue
	delayQueue
)

// queue is the engine of a queue: everything except the type of the values.
type queue struct {
	c       *Client
	path    recipePath
	kind    queueKind
	items   string // <queue>/items
	waiters string // <queue>/waiters

	maxLen       int
	reject       bool
	maxAttempts  int
	claimTimeout time.Duration // zero: none
	size         int           // bucketSize, smaller in tests
	most         int           // maxBuckets, fewer in tests
	dead         *queue        // nil only in the engine that writes the dead letters

	mu      sync.Mutex
	open    map[int64]openBucket  // by key: the bucket of the latest put
	asks    []*queueAsk           // callers that wait for items, see queue_feed.go
	feeding bool                  // feed is running
	idle    context.CancelFunc    // cancels the wait of feed; set while feed runs
	more    chan struct{}         // of capacity 1: signals a new ask
	ending  int                   // number of claims that are being given back in the background
	ended   chan struct{}         // closed when ending returns to 0
	acks    map[*session]*ackLine // the sessions with an Ack under way, see queue_ack.go
	head    string                // fifoQueue: the bucket that was first, "" if not known
	stuck   map[string]int64      // paths of items that cannot be moved or claimed, and until when they are ignored
	swept   time.Time             // when sweepEmpty last found nothing
}

// trail starts the trace of a call.
func (q *queue) trail(op string) *trail {
	return q.c.trail(string(q.kind.recipe()), q.path.full, op)
}

func (k queueKind) recipe() layout.RecipeKind {
	return [...]layout.RecipeKind{fifoQueue: layout.KindQueue, priorityQueue: layout.KindPriorityQueue, delayQueue: layout.KindDelayQueue}[k]
}

func (q *queue) ground() ground { return ground{dir: q.path.full, recipe: q.kind.recipe()} }

// openBucket is the bucket that a put tries first.
type openBucket struct {
	n    int64
	full bool
}

func newQueue(c *Client, path string, kind queueKind) *queue {
	q := &queue{
		c: c, path: c.recipePath(path), kind: kind, size: cmp.Or(c.hooks.BucketSize, bucketSize), most: maxBuckets,
		open: make(map[int64]openBucket), more: make(chan struct{}, 1),
	}
	q.items, q.waiters = q.path.full+"/items", q.path.full+"/waiters"
	return q
}

// makeItems makes the directory of buckets.
func (q *queue) makeItems(ctx context.Context, s *session) error {
	if err := s.occupyAnew(ctx, q.ground()); err != nil {
		return err
	}
	_, err := s.makeNode(ctx, backend.Create(q.items, nil, backend.Persistent), func(string) error { return s.occupyAnew(ctx, q.ground()) })
	return s.notSent(ctx, err)
}

// batch is the maximum number of items in one commit that claims, acknowledges or deletes
// items: maxBatch, or fewer if the path is long or the service takes less.
func (q *queue) batch(s *session) int { return s.most(maxBatch, 5, 1, 5*(len(q.items)+300)) }

// deadPath is the default path of the dead letters of the queue at path.
func deadPath(path string) string { return strings.TrimSuffix(path, "/") + "/dead" }

// keyOf returns the key of the bucket for an item with this priority or due time.
func (q *queue) keyOf(priority, due int64) int64 {
	switch q.kind {
	case priorityQueue:
		return priority
	case delayQueue:
		return due - ((due%layout.DelayGrain)+layout.DelayGrain)%layout.DelayGrain
	}
	return 0
}

package coord

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/go-coord/coord/backend"
)

// This file and the queue_*.go beside it are the engine of the three queues.
//
// # Nodes
//
//	<queue>                              a container
//	<queue>/items                        persistent, holds no data; its version counts the buckets that were made, and limited puts
//	<queue>/items/tally                  its version goes on with that once the versions of items are used up
//	<queue>/items/b-<key>-<n>            a bucket; version 0: open, else closed
//	  i-<id>-<due>-<sequence>            an item: what Put was given, nothing else
//	  s-<id>                             its state, from the first claim on: how often it was claimed
//	  m-<id>-<guid>                      its claim: ephemeral, made by the consumer
//	  d-<id>-<time>                      put off until then
//	<queue>/waiters/_c_<guid>-take-<seq> a client that waits; a container
//	<queue>/dead                         a queue of its own, for dead letters
//
// The key of a bucket is 0 in a Queue, the priority in a PriorityQueue, the
// minute of the due time in a DelayQueue. Buckets are read in the order of their
// keys, those of one key in the order of their numbers.
//
// Why buckets: a list of 50,000 names is more than one packet carries, and no
// take may read the whole queue. Why the states of items stand beside them: one
// list of a bucket is one picture of its items, of who has them and of when they
// are due. Its size is bounded by the number of producers, see P3.
//
// # Putting
//
// P1. A put is one commit {check(bucket, version 0), create the items}, applied
// exactly once (commitOnce). An item never lands in a closed bucket, and a lost
// reply makes no second one. The id is in the name, so it is known even then.
//
// P2. Of each key at most one bucket is open, the one with the highest number.
// Otherwise two producers could put into different buckets, and order by
// creation would be lost. Hence a bucket is closed and the next one made in one
// commit {set(bucket, version 0), create the next}; and where a key has no open
// bucket, one is made by {set(items, version v), create bucket}, v read together
// with the list that showed none. That counts up the version of items, so a
// producer that slept since its list fails. The directory of items is no
// container: if it were reaped, its version would begin again, and a sleeper could
// make a second open bucket.
//
// That the last bucket of a list is closed is learned from a commit that failed.
// That does not suffice: when all buckets of a key are removed its numbers begin
// again, and the list can have a new bucket of the same name, which is open. So
// the bucket is read once more, behind a list that is newer than the commit. With
// version 0 it is open. Else it must have been closed when it was listed: a
// closing makes a child of items, so it is not newer than the latest one that the
// list shows. (An outsider's closing makes none. It is believed if a second list
// shows no change of the children since the first.)
//
// P3. The number that an item gets tells how full its bucket is. Who gets one
// beyond the limit closes the bucket in the same commit as its next put. So a
// bucket holds the limit, 256, and at most one put more of each producer that puts
// into it at the same time. A put is up to 128 items: 60 producers that call PutAll at
// one moment can make a bucket of 8,000, whose list has half a MB, and more when many
// of its items are claimed. A hundred of them can come near to the size of a packet.
//
// # Taking
//
// T1. A consumer lists the first bucket that has something to take, and no
// bucket behind it.
//
// T2. A claim is one commit: {check(item), create its state, create the mark}
// for the first one; {check(item), set(state, version read), create the mark,
// delete d} for a later one. The state has a fixed name and a version that each
// claim counts up, so of two consumers that saw the same picture one fails. It is
// persistent: the attempt is counted although the consumer dies. The version must
// be that of the picture in which the item was free, see attempts.
//
// T3. The mark has a name that is never used again. All that a holder does later
// (ack, nack, giving back) deletes his mark in the same commit, so it never
// touches the claim of the next consumer, whenever it arrives. Only the mark
// decides; if an item or a state has vanished by other hands, the rest goes on
// without it. An item without its state is still buried. An item that an outsider
// made a child of cannot be deleted, and that is told. The mark is the node of the
// Hold.
//
// T4. Ack = {delete mark, state, item}. Nack = {delete mark, create d}, or just
// {delete mark}. Giving back = {delete mark, count the attempt back}. The item
// stays where it is, so it keeps its place. An expired session takes the marks
// with it and nothing else. All of them are applied exactly once or not at all.
// Several Acks can share a commit, see queue_ack.go.
//
// T5. No claim is interrupted by a context. It is made for whoever asks; when he
// has gone, the item is given back, and until that is done the client takes
// nothing else. If the service refuses the giving back, the item stays claimed,
// the client tries again in the background for as long as the session lives, and
// meanwhile it takes what comes after: then the order is not kept. A Pop that is
// refused, or whose context ends, is such a giving back. The delete of a Pop whose
// outcome is not known can precede it: then the mark is gone, and that ends it.
//
// T6. A consumer deletes a bucket that is empty and closed, or empty and in the
// way of a later one. The service refuses if it is not empty any more. The last
// open bucket of a Queue stays: so its numbers only grow, and a consumer can list
// the bucket that was the first one last time before it lists all buckets. (The
// first one of then is the first one as long as it exists.) So does a Purge, and,
// before it fails with ErrLimit, a producer, with all buckets that are empty.
//
// T7. An item that was claimed as often as may be goes to the dead letters when
// the next consumer sees it. If that is refused, the client logs it and leaves the
// item out of what it sees, for a minute.
//
// # Waiting
//
// W1. A consumer that finds nothing makes a node in waiters. The first k waiters,
// by their numbers, are the front (k is frontWaiters). They watch what could bring
// something: the list of buckets, the buckets that they have passed, and the clock
// where an item is put off. Every other waiter watches the k waiters before it, and
// lists the waiters again when one of these goes. So a put wakes k clients however
// many wait, and a claim k more at most.
//
// No waiter can get to the front without being told. The first k of all are the k
// before the one behind them; so when one of them goes, the next one is watching
// it, whichever of the others are dead. Hence something that can be taken waits
// only while all of the k at the front are dead, cut off or paused, or have a slow
// clock, and until the first of them is gone. (Fewer watches do not suffice: with
// one on the predecessor, or on the k-th one before, a single dead waiter can stand
// between the items and all others. internal/model explores it.) Waiters that die
// do collect at the front: k of them within one session timeout stop the queue for
// the rest of it.
//
// W2. A waiter that claims deletes its node in the same commit, which lets the
// next one to the front, and that one looks for what else there is. A waiter that
// gives up, or dies, does the same. So whenever something can be taken, a waiter at
// the front is awake or has a watch that fires.
//
// W3. A claim of a dead consumer is a deleted child of a bucket that is watched.
//
// W4. Callers of one Queue value have one waiter, one set of watches and one
// claim for all of them: see queue_feed.go.
//
// W5. Whose claim fails reads again after a Sync, or it would see the same stale
// picture for ever. If that picture was not read after a Sync, the failure tells
// nothing, and nothing else of it is claimed: the item can be free, and is before
// the rest. If it was, and somebody else has the item, a race was lost: in a Queue
// the next look goes a random, small number of items further, since the others
// look at the same head; in a PriorityQueue it is for the best again. An item that
// has vanished is no lost race.
//
// W6. Producers that wait for room do not queue: each watches all buckets.

const (
	bucketSize = 256     // numbers of a bucket that make its next put close it
	maxBatch   = 128     // items of one commit, at most
	maxBuckets = 10_000  // so that their names fit into a packet
	maxOpen    = 1024    // open buckets that a client remembers
	maxNumber  = 1 << 53 // of a bucket; what is beyond is an outsider's, and ignored
)

// queueKind is what the three queues differ in.
type queueKind int8

const (
	fifoQueue queueKind = iota
	priorityQueue
	delayQueue
)

// queue is the engine: all but the type of the values.
type queue struct {
	c       *Client
	path    recipePath
	kind    queueKind
	items   string // <queue>/items
	waiters string // <queue>/waiters

	maxLen      int
	reject      bool
	maxAttempts int
	size        int           // bucketSize, smaller in tests
	most        int           // maxBuckets, fewer in tests
	skew        time.Duration // of the clock, zero except in tests
	batch       int           // items of one claim: maxBatch, less where the path is long
	dead        *queue        // nil for a queue of dead letters

	mu      sync.Mutex
	open    map[int64]openBucket  // by key: where the latest put went
	asks    []*queueAsk           // callers that want items, see queue_feed.go
	feeding bool                  // feed runs
	idle    context.CancelFunc    // ends what feed waits for; set while it runs
	more    chan struct{}         // of capacity 1: there is a new ask
	ending  int                   // claims that are given back in the background
	ended   chan struct{}         // closed when ending is 0 again
	acks    map[*session]*ackLine // where an Ack is under way, see queue_ack.go
	head    string                // fifoQueue: the bucket that was first, "" if not known
	stuck   map[string]int64      // items that cannot be moved to the dead letters, and until when they are left alone
	swept   time.Time             // when sweepEmpty found nothing
}

// trail begins to tell of a call.
func (q *queue) trail(op string) *trail {
	return q.c.trail(string(q.kind.recipe()), q.path.full, op)
}

func (k queueKind) recipe() recipeKind {
	return [...]recipeKind{fifoQueue: kindQueue, priorityQueue: kindPriorityQueue, delayQueue: kindDelayQueue}[k]
}

func (q *queue) ground() ground { return ground{dir: q.path.full, recipe: q.kind.recipe()} }

// openBucket is the bucket that a put tries first.
type openBucket struct {
	n    int64
	full bool
}

func newQueue(c *Client, path string, kind queueKind) *queue {
	q := &queue{
		c: c, path: c.recipePath(path), kind: kind, size: bucketSize, most: maxBuckets,
		open: make(map[int64]openBucket), more: make(chan struct{}, 1),
	}
	q.items, q.waiters = q.path.full+"/items", q.path.full+"/waiters"
	q.batch = max(1, min(maxBatch, backend.MaxRequest/(5*(len(q.items)+300))))
	return q
}

// makeItems makes the directory of buckets.
func (q *queue) makeItems(ctx context.Context, s *session) error {
	if err := s.occupy(ctx, q.ground()); err != nil {
		return err
	}
	_, err := s.makeNode(ctx, backend.Create(q.items, nil, backend.Persistent), func(string) error { return s.occupyAnew(ctx, q.ground()) })
	return s.notSent(ctx, err)
}

// now is the time by which items are due.
func (q *queue) now() time.Time { return time.Now().Add(q.skew) }

// raced reports whether a commit failed because somebody else was first.
func raced(err error) bool {
	return (errors.Is(err, backend.ErrNotFound) || errors.Is(err, backend.ErrExists) ||
		errors.Is(err, backend.ErrBadVersion) || errors.Is(err, backend.ErrNotEmpty)) && !ofContext(err)
}

// blamed returns the operation that made a commit fail, or -1.
func blamed(err error) int {
	var e *backend.Error
	if !errors.As(err, &e) || !raced(err) {
		return -1
	}
	return e.Index
}

// deadPath is where the dead letters of the queue at path go by default.
func deadPath(path string) string { return strings.TrimSuffix(path, "/") + "/dead" }

// delayGrain is how much time the items of one key of a DelayQueue span.
const delayGrain = int64(time.Minute / time.Millisecond)

// keyOf is the key of the bucket for an item with this priority or due time.
func (q *queue) keyOf(priority, due int64) int64 {
	switch q.kind {
	case priorityQueue:
		return priority
	case delayQueue:
		return due - ((due%delayGrain)+delayGrain)%delayGrain
	}
	return 0
}

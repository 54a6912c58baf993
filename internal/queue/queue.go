package queue

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/hook"
	"github.com/go-coord/coord/internal/kinds"
	"github.com/go-coord/coord/internal/nodepath"
	"github.com/go-coord/coord/internal/tracing"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/layout"
)

const (
	bucketSize = 256    // items that a bucket gets before the next put closes it
	maxBatch   = 128    // maximum of items in one commit, and of those that a put adds to an open bucket
	maxPut     = 1024   // maximum of items in one commit that only puts them
	maxBuckets = 10_000 // their names fit into one packet
	maxOpen    = 1024   // maximum of open buckets that a client remembers
)

// Queue is the engine of a queue: everything except the type of the values.
type Queue struct {
	c         *core.Client
	path      nodepath.Path
	kind      layout.RecipeKind // KindQueue, KindPriorityQueue or KindDelayQueue
	items     string            // <queue>/items
	keys      string            // <queue>/keys
	in, out   string            // in items
	waiters   *slotLine         // <queue>/waiters
	producers *slotLine         // <queue>/producers

	maxLen       int
	reject       bool
	maxAttempts  int
	claimTimeout time.Duration                              // zero: none
	drainTimeout time.Duration                              // of Work; zero: none
	retryDelay   func(attempt int, err error) time.Duration // of Work; nil: the default
	traceParent  func(ctx context.Context) string           // nil: none
	prefetch     int
	fairEvery    int         // of so many takes, one is the turn of a priority behind the first; 0: none
	size         int         // bucketSize, smaller in tests
	most         int         // maxBuckets, fewer in tests
	aheadClaims  int         // aheadClaims, fewer in tests
	dead         *Queue      // nil only in the engine that writes the dead letters
	lim          limit       // of a queue with maxLen
	counted      atomic.Bool // out exists, as far as this client knows
	collecting   atomic.Bool // keys whose time has passed are being deleted

	mu       sync.Mutex
	open     map[int64]openBucket       // by key: the bucket of the latest put
	many     bool                       // of a DelayQueue: the last list of a put showed many buckets
	requests []*itemRequest             // callers that wait for items, see feed.go
	feeding  bool                       // feed is running
	taking   []*itemRequest             // the requests for which it takes items
	idle     context.CancelFunc         // cancels the wait of feed; set while feed runs
	more     chan struct{}              // of capacity 1: signals a new request
	ending   underWay                   // claims that are being given back in the background
	beside   underWay                   // claims that commits of Acks make, until the intake has them
	intake   *intake                    // the latest one for which a commit of Acks has made claims
	acks     map[*core.Session]*ackLine // the sessions with an Ack under way, see ack.go
	head     string                     // the bucket that was first, "" if not known
	ahead    ahead                      // the items of the last list that are not taken yet
	run      int                        // how many items the remembered list before has given; 0 if it has lost a race
	passed   *passed                    // the closed buckets from which nothing can be taken yet; nil: none
	gen      int                        // incremented when a list that is under way must not be kept
	prompt   *core.Session              // the session whose last list found an item at once, for a client without a slot or waiter; nil: none
	popping  map[string]bool            // paths of the items that Pops delete without a claim; true: this client also claims or removes the item
	missed   time.Time                  // when a Pop last found the item gone that it had read ahead
	turn     fairTurn                   // of a queue with fairEvery
	lists    uint                       // how many lists choose has seen
	rivals   int                        // choose skips up to so many items, since other consumers take from the head
	stuck    map[string]time.Time       // paths of items that cannot be moved or claimed, and until when they are ignored
	swept    time.Time                  // when sweepEmpty last found nothing

	largest atomic.Int64 // bytes of the largest item of the latest read; 0: not known

	undecoded int // items in a row that this consumer could not decode, up to maxUndecodable
}

// newSpan starts the trace of a call.
func (q *Queue) newSpan(op string) *tracing.Span {
	return q.c.NewSpan(string(q.kind), q.path.Full(), op)
}

func (q *Queue) recipeDir() kinds.RecipeDir { return kinds.NewRecipeDir(q.path.Full(), q.kind) }

func newQueue(c *core.Client, path string, kind layout.RecipeKind) *Queue {
	q := &Queue{
		c: c, path: c.Path(path), kind: kind, size: cmp.Or(c.Hooks().BucketSize, bucketSize), most: maxBuckets, aheadClaims: cmp.Or(c.Hooks().ListClaims, aheadClaims),
		open: make(map[int64]openBucket), more: make(chan struct{}, 1),
	}
	q.items = q.path.Full() + "/items"
	q.keys = q.path.Full() + "/" + layout.KeysName
	q.in, q.out = q.items+"/"+layout.InName, q.items+"/"+layout.OutName
	q.waiters = newSlotLine(c, q.recipeDir().Part(q.path.Full()+"/waiters", layout.KindWaiters), layout.WaiterInfix, itemSlots)
	q.producers = newSlotLine(c, q.recipeDir().Part(q.path.Full()+"/producers", layout.KindWaiters), layout.RoomInfix, roomSlots)
	q.lim.turn, q.lim.dry = make(chan struct{}, 1), make(chan struct{})
	return q
}

// makeItems makes the directory of buckets.
func (q *Queue) makeItems(ctx context.Context, s *core.Session) error {
	if err := s.ClaimKindAnew(ctx, q.recipeDir()); err != nil {
		return err
	}
	_, err := s.MakeNode(ctx, backend.Create(q.items, nil, backend.Persistent), func(string) error { return s.ClaimKindAnew(ctx, q.recipeDir()) })
	return s.NotSent(ctx, err)
}

// batch is the maximum number of items in one commit that claims, acknowledges or deletes
// items: maxBatch, or fewer if the path is long or the service takes less.
func (q *Queue) batch(s *core.Session) int {
	return mostAtOnce(s, maxBatch, 5, 1, 5*(len(q.items)+300))
}

// fitting returns how many of the first of n items one commit can acknowledge or delete: batch, or fewer if they have keys or trace contexts.
func (q *Queue) fitting(s *core.Session, n int, item func(i int) *layout.QueueEntry) int {
	const plain, key = 5, 3 // operations
	n = min(n, q.batch(s))
	room := mostAtOnce(s, maxBatch*(plain+key), 1, 0, len(q.items)+300)
	for i := range n {
		if room -= plain; item(i).Tag.Hash != "" {
			room -= key
		}
		if item(i).Trace != "" {
			room--
		}
		if room < 0 {
			return max(i, 1)
		}
	}
	return n
}

// mostAtOnce returns how many of n things one commit can write. Each thing takes ops operations and size
// bytes; checks of its operations are conditions. mostAtOnce leaves room for the few operations that
// belong to the whole commit, and returns at least one.
func mostAtOnce(s *core.Session, n, ops, checks, size int) int {
	const whole = 7 // a bucket, a tally and the counts of a queue, a waiter, and the journal entry
	l := s.Backend().Limits()
	n = min(n, l.Bytes/size)
	if l.Ops > 0 {
		n = min(n, (l.Ops-whole)/ops)
	}
	if l.Checks > 0 && checks > 0 {
		n = min(n, (l.Checks-1)/checks)
	}
	return max(n, 1)
}

// deadPath is the default path of the dead letters of the queue at path.
func deadPath(path string) string { return strings.TrimSuffix(path, "/") + "/dead" }

// keyOf returns the key of the bucket for an item with this priority or due time.
func (q *Queue) keyOf(priority, due int64) int64 {
	switch q.kind {
	case layout.KindPriorityQueue:
		return priority
	case layout.KindDelayQueue:
		return spanOf(due, time.Duration(layout.DelayGrain)*time.Millisecond)
	}
	return 0
}

// Config is coord.QueueOptions. C is the codec, which the engine does not use.
type Config[C any] struct {
	Codec          C
	MaxLen         int
	FailWhenFull   bool
	MaxAttempts    int
	DeadLetterPath string
	Prefetch       int
	ClaimTimeout   time.Duration
	DrainTimeout   time.Duration
	RetryDelay     func(attempt int, err error) time.Duration
	FairEvery      int
	TraceParent    func(ctx context.Context) string
}

// New returns the queue at path, with its dead letters. The first call reports bad options.
func New[C any](c *core.Client, path string, kind layout.RecipeKind, opts Config[C]) *Queue {
	q := newQueue(c, path, kind)
	refuse := func(format string, args ...any) {
		q.path.Refuse(fmt.Errorf("%w: "+format, append([]any{backend.ErrInvalid}, args...)...))
	}
	switch {
	case opts.MaxLen < 0:
		refuse("MaxLen %d is negative", opts.MaxLen)
	case opts.MaxAttempts < 0:
		refuse("MaxAttempts %d is negative", opts.MaxAttempts)
	case opts.ClaimTimeout < 0:
		refuse("ClaimTimeout %v is negative", opts.ClaimTimeout)
	case opts.DrainTimeout < 0:
		refuse("DrainTimeout %v is negative", opts.DrainTimeout)
	case opts.Prefetch < 0:
		refuse("Prefetch %d is negative", opts.Prefetch)
	case opts.Prefetch > maxBatch:
		refuse("Prefetch %d exceeds the limit %d", opts.Prefetch, maxBatch)
	case opts.FairEvery < 0 || opts.FairEvery == 1:
		refuse("FairEvery %d, want at least 2, or 0 for no such takes", opts.FairEvery)
	case opts.FairEvery > 0 && kind != layout.KindPriorityQueue:
		refuse("FairEvery is set, which only a PriorityQueue has")
	}
	q.maxLen, q.reject = opts.MaxLen, opts.FailWhenFull
	q.maxAttempts, q.claimTimeout = opts.MaxAttempts, opts.ClaimTimeout
	q.drainTimeout, q.prefetch = opts.DrainTimeout, max(opts.Prefetch, 1)
	q.retryDelay, q.traceParent = opts.RetryDelay, opts.TraceParent
	q.fairEvery, q.turn.left = opts.FairEvery, -1
	deadLetters := "DeadLetterPath"
	if opts.DeadLetterPath == "" {
		deadLetters = "no DeadLetterPath is set, and the default is not valid"
		opts.DeadLetterPath = deadPath(path)
	}
	q.dead = newQueue(c, opts.DeadLetterPath, layout.KindQueue)
	if err := q.dead.path.Err(); err != nil {
		q.path.Refuse(fmt.Errorf("%s: %w", deadLetters, err))
	}
	switch {
	case q.dead.path.Full() == q.path.Full():
		refuse("DeadLetterPath is the path of the queue itself")
	case within(q.dead.path.Full(), q):
		refuse("DeadLetterPath %q is below the items, keys, waiters or producers of the queue", opts.DeadLetterPath)
	case within(q.path.Full(), q.dead):
		refuse("the queue is below the items, keys, waiters or producers of its DeadLetterPath %q", opts.DeadLetterPath)
	}
	return q
}

// within reports whether a queue at path would stand among the nodes of q.
func within(path string, q *Queue) bool {
	return slices.ContainsFunc([]string{q.items, q.keys, q.waiters.g.Dir, q.producers.g.Dir}, func(dir string) bool { return strings.HasPrefix(path+"/", dir+"/") })
}

// Show gives tests access to fields of the queue. face is the coord.Consumer whose engine e is; tests
// tell the queues apart by it.
func (e *Queue) Show(face any) {
	show := e.c.Hooks().Queue
	if show == nil {
		return
	}
	show(face, hook.Queue{
		BucketSize: &e.size, DeadBucketSize: &e.dead.size, BucketLimit: &e.most,
		AcksWaiting: func() (n int) {
			e.mu.Lock()
			defer e.mu.Unlock()
			for _, line := range e.acks {
				n += len(line.waiting)
			}
			return n
		},
		AckLines: func() int {
			e.mu.Lock()
			defer e.mu.Unlock()
			return len(e.acks)
		},
		Rivals: func() int {
			e.mu.Lock()
			defer e.mu.Unlock()
			return e.rivals
		},
		Feeding: func() bool {
			e.mu.Lock()
			defer e.mu.Unlock()
			return e.feeding
		},
	})
}

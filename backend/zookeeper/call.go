package zookeeper

import (
	"context"
	"errors"
	"slices"

	"github.com/go-coord/coord/backend"
)

// keepCall is the size of the largest request whose memory is used for another one.
const keepCall = 4 << 10

var errBroke = errors.New("the connection broke before the reply arrived")

// call is one request of this package. It waits in the session's queue until there is
// contact. Then the connection writes it, and it waits for its reply among the requests that
// the connection has sent. Servers answer the requests of a connection in order.
//
// The queue is that of the session and not of a connection, so requests are sent in the order
// in which their calls were made, whatever happens to connections and contexts in between. A
// call that gives up leaves the queue if its request was not written yet, and that is the
// only way to leave it. So a request is written in its turn or never.
type call struct {
	op    int32
	frame []byte        // the request
	steps []step        // of a commit
	count int           // the number of reads of a multiRead
	done  chan struct{} // capacity 1: the call is over

	givenUp bool // its caller has left it alone
	turn    bool // it may be sent again to a server that throttles, see easeOff

	// Watches that the answer arms.
	path  string
	watch *backend.Watch // of a read
	many  *armList       // of an Arm

	treeWatch *backend.TreeWatch // of a WatchTree
	tree      *tree              // that it belongs to; set when the request is written

	// Guarded by the session's mu.
	stage  stage
	before *call         // in the queue
	behind *call         // likewise
	number uint64        // grows with each call; zero until the call is queued
	over   chan struct{} // of a commit that was throttled: closed when its caller has returned

	// The connection's.
	xid int32
	at  instant // when it was written

	zxid   int64  // of its reply
	answer answer // the connection's until the call is over, then the caller's
}

// A stage is the progress of a call.
type stage int8

const (
	idle      stage = iota // it has not been queued, or has left the queue
	queued                 // it will be sent in its turn
	sent                   // it was written, or is being written
	leftAlone              // likewise, and its caller has given up
	answered               // over: answer is the reply
	broke                  // over: it was written, and contact broke
	unsent                 // over: the session ended before it was written
)

func (s *session) newCall(op int32) *call {
	c, ok := s.calls.Get().(*call)
	if !ok {
		c = &call{done: make(chan struct{}, 1)}
	}
	c.op = op
	return c
}

// release ends the use of a call by its caller.
func (s *session) release(c *call) {
	s.endTurn(c)
	if c.over != nil {
		s.mu.Lock()
		s.throttled = slices.DeleteFunc(s.throttled, func(other *call) bool { return other == c })
		s.mu.Unlock()
		close(c.over)
	}
	if c.givenUp {
		return // its connection still refers to it
	}
	*c = call{frame: c.frame[:0], steps: c.steps[:0], done: c.done}
	if cap(c.frame) > keepCall {
		c.frame = nil
	}
	s.calls.Put(c)
}

// do sends a call and waits until it is over or ctx ends. The error is nil if the call was
// answered. wasSent says that its request may have reached a server; after errBroke the session
// lives and the call can be made again.
func (s *session) do(ctx context.Context, c *call) (wasSent bool, err error) {
	if err := s.queueUp(ctx, c); err != nil {
		return false, err
	}
	select {
	case <-c.done:
	case <-ctx.Done():
		switch s.giveUp(c) {
		case queued:
			return false, s.contextError(ctx, nil)
		case sent:
			c.givenUp = true
			return true, s.contextError(ctx, c)
		}
		<-c.done
	}
	switch c.stage {
	case answered:
		return true, nil
	case broke:
		if s.isSealed() {
			return true, s.ended(ctx)
		}
		if err := s.Err(); err != nil {
			return true, err // Close ended the wait
		}
		return true, errBroke
	}
	return false, s.ended(ctx)
}

// contextError returns the error of a call whose ctx has ended. If there is no contact, it says so.
// The same holds if the call was sent and the server has been silent since, for so long that
// a ping should have been answered.
func (s *session) contextError(ctx context.Context, c *call) error {
	err := backend.ContextError(ctx)
	now := s.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.linked && c != nil && s.lease.From.Mono <= c.at.Mono && c.at.To(now) >= s.lease.Length/8 {
		return &backend.NoContactError{Err: err, For: c.at.To(now), Why: s.conn.target.String() + ": no answer"}
	}
	return s.noContactLocked(err, now)
}

// NoContact returns the error of a context that has ended. If there is no contact, it says so.
func (s *session) NoContact(err error) error {
	now := s.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.noContactLocked(err, now)
}

func (s *session) noContactLocked(err error, now instant) error {
	if s.linked {
		return err
	}
	return s.trouble.NoContact(err, now)
}

// queueUp puts a call at the end of the queue, unless the session is over or ctx has ended.
func (s *session) queueUp(ctx context.Context, c *call) error {
	now := s.now()
	s.mu.Lock()
	switch {
	case s.err != nil:
		defer s.mu.Unlock()
		return s.err
	case s.lease.Left(now) <= 0:
		s.mu.Unlock()
		s.lose(errUnheard)
		return s.ended(ctx)
	case s.isSealed():
		s.mu.Unlock()
		return s.ended(ctx)
	case ctx.Err() != nil:
		s.mu.Unlock()
		return s.contextError(ctx, nil)
	}
	if c.number == 0 {
		s.numbers++
		c.number = s.numbers
	}
	c.stage = queued
	s.queue.push(c)
	s.underWay++
	if conn := s.conn; s.underWay == 1 && conn != nil && conn.direct != nil && conn.startLocked() {
		s.mu.Unlock()
		conn.flushNow()
		return nil
	}
	s.writeLocked()
	s.mu.Unlock()
	return nil
}

// post makes a call for whose answer no caller waits. Without contact it does nothing.
func (s *session) post(op int32, frame []byte, t *tree) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil || s.isSealed() || !s.linked {
		return
	}
	s.queue.push(&call{op: op, frame: frame, tree: t, stage: queued, done: make(chan struct{}, 1)})
	s.underWay++
	s.writeLocked()
}

// giveUp ends a caller's wait. It returns the stage in which the call was: queued, and then it is
// never sent; sent, and then its reply has no caller; or a stage that is over.
func (s *session) giveUp(c *call) stage {
	s.mu.Lock()
	defer s.mu.Unlock()
	was := c.stage
	switch was {
	case queued:
		s.queue.remove(c)
		c.stage = idle
		s.doneLocked()
	case sent:
		c.stage = leftAlone
	}
	return was
}

// overLocked ends a call.
func (s *session) overLocked(c *call, as stage) {
	waiting := c.stage != leftAlone
	c.stage = as
	s.doneLocked()
	if waiting {
		c.done <- struct{}{}
	}
}

// doneLocked counts a call that is no longer under way.
func (s *session) doneLocked() {
	s.underWay--
	if s.underWay == 0 && s.err != nil {
		close(s.idle)
	}
}

// writeLocked starts a goroutine that writes what waits, unless there is a writer already.
func (s *session) writeLocked() {
	if c := s.conn; c != nil && c.startLocked() {
		s.work.Add(1)
		go c.flusher()
	}
}

// throttledBefore returns a commit that began before a call, was throttled by an overloaded
// server, and is not over. Such a commit is sent again behind the call.
func (s *session) throttledBefore(c *call) (over <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, other := range s.throttled {
		if other.number < c.number {
			return other.over
		}
	}
	return nil
}

// ended returns why a session that is sealed is over. If the session is still being ended when
// ctx ends, it returns the error of ctx.
func (s *session) ended(ctx context.Context) error {
	select {
	case <-s.done:
		return s.Err()
	default:
	}
	select {
	case <-s.done:
		return s.Err()
	case <-ctx.Done():
		return backend.ContextError(ctx)
	}
}

// callQueue is the queue of a session. It is linked, since many calls can leave it from the
// middle at the same moment.
type callQueue struct {
	first, last *call
	size        int
}

func (q *callQueue) push(c *call) {
	if c.before = q.last; q.last == nil {
		q.first = c
	} else {
		q.last.behind = c
	}
	q.last = c
	q.size++
}

func (q *callQueue) remove(c *call) {
	if c.before == nil {
		q.first = c.behind
	} else {
		c.before.behind = c.behind
	}
	if c.behind == nil {
		q.last = c.before
	} else {
		c.behind.before = c.before
	}
	c.before, c.behind = nil, nil
	q.size--
}

// fifo holds the calls that a connection has sent.
type fifo struct {
	calls []*call
	head  int
}

func (f *fifo) push(c *call) {
	if len(f.calls) == cap(f.calls) && f.head > len(f.calls)/2 {
		n := copy(f.calls, f.calls[f.head:])
		clear(f.calls[n:])
		f.calls, f.head = f.calls[:n], 0
	}
	f.calls = append(f.calls, c)
}

// pop removes and returns the first call if it has the xid, and returns nil otherwise.
func (f *fifo) pop(xid int32) *call {
	if f.head == len(f.calls) || f.calls[f.head].xid != xid {
		return nil
	}
	return f.next()
}

// first returns the first call, or nil.
func (f *fifo) first() *call {
	if f.head == len(f.calls) {
		return nil
	}
	return f.calls[f.head]
}

// next removes and returns the first call. It returns nil if there is none.
func (f *fifo) next() *call {
	if f.head == len(f.calls) {
		return nil
	}
	c := f.calls[f.head]
	f.calls[f.head] = nil
	if f.head++; f.head == len(f.calls) {
		f.calls, f.head = f.calls[:0], 0
	}
	return c
}

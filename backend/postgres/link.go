package postgres

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// A link is one connection. When it breaks, the session makes another link. Requests are pipelined: each group of
// requests is one transaction and ends with a Sync. Replies and notifications arrive in the order in which the server
// sends them.
type link struct {
	ctx   context.Context // ends when the link is broken
	fail  context.CancelCauseFunc
	conn  net.Conn
	front *pgproto3.Frontend
	heard func(l *link, payload string) // for each notification, on the goroutine that reads
	work  sync.WaitGroup
	wake  chan struct{} // capacity 1: there is something to send

	// pooled has the statements of a connection to a pool, which can give each group another connection of the server. So no
	// statement is prepared. The next group is sent when its predecessor is answered, since pools may mix up the answers. Nil for
	// a connection to the server.
	pooled  map[string]string
	history []byte // that each group to a pool must find, or nil

	// closing is set when the session is closed: the link then sends Terminate, so that the server logs no broken connection.
	closing atomic.Bool

	// With early, each group of commits is followed by a group that waits until they are durable, and the answer to that one counts.
	early bool

	mu         sync.Mutex
	urgent     []*group   // to be sent before the queue
	queue      []*group   // to be sent
	waiting    []*request // commits that wait for the answer to those before them
	committing bool       // a group of commits is queued or sent
	sent       []*group   // without an answer
}

// A group is the requests between two Sync messages: one read or keep-alive, or several commits.
type group struct {
	requests []*request
	commits  []*request // the last request makes them, and has a row for each; nil: not a group of commits
	answered int        // of the requests
	err      error
	early    bool   // its answers count only when the next group is answered
	before   *group // the early group before this one, if the server has answered it
}

// request is one execution of a prepared statement.
type request struct {
	statement string
	args      [][]byte
	see       func(r *request) // called with the rows, at least one, in the order of the stream; can be nil
	alone     bool             // in a group of its own
	rows      []row
	ended     func(r *request) // called at the end, before done is closed; can be nil
	done      chan struct{}

	// Valid when the request has ended.
	err    error
	unsure bool // it may have been applied: the link broke before the answer
	shared bool // another request of the group may have caused err

	// Guarded by the mutex of the link.
	sent, dropped bool
}

type row [][]byte

// mostSent bounds the groups without an answer, since keep-alives wait behind them.
const mostSent = 64

// mostTogether bounds the commits of one transaction: each can be a subtransaction, and more than 64 subtransactions slow
// down all readers of the server.
const mostTogether = 32

// mostBytesTogether bounds the arguments of several commits in one transaction, which are one message: a keep-alive waits behind it.
const mostBytesTogether = 4 << 20

var errBroken = errors.New("postgres: the connection is broken")

// adopt makes a link of a connection that is ready, with all statements prepared.
func adopt(conn *pgconn.PgConn, pooled map[string]string, early bool, heard func(l *link, payload string)) (*link, error) {
	h, err := conn.Hijack()
	if err != nil {
		discard(conn)
		return nil, err
	}
	if err := h.Conn.SetDeadline(time.Time{}); err != nil { // the attempt to connect had one
		abort(h.Conn)
		return nil, err
	}
	return newLink(h.Conn, h.Frontend, pooled, early, heard), nil
}

func newLink(conn net.Conn, front *pgproto3.Frontend, pooled map[string]string, early bool, heard func(l *link, payload string)) *link {
	l := &link{conn: conn, front: front, heard: heard, pooled: pooled, early: early, wake: make(chan struct{}, 1)}
	l.ctx, l.fail = context.WithCancelCause(context.Background())
	l.work.Add(3)
	go l.write()
	go l.read()
	go func() {
		defer l.work.Done()
		<-l.ctx.Done()
		if l.closing.Load() {
			leave(l.conn)
		} else {
			abort(l.conn)
		}
	}()
	return l
}

// leave sends Terminate and closes a connection. Nothing else is left to send.
func leave(c net.Conn) {
	defer c.Close()
	terminate, err := new(pgproto3.Terminate).Encode(nil)
	if err == nil && c.SetWriteDeadline(time.Now().Add(mostLeave)) == nil {
		_, _ = c.Write(terminate) // without it the server logs a broken connection
	}
}

const mostLeave = 100 * time.Millisecond

// discard closes a connection without a Terminate.
func discard(conn *pgconn.PgConn) {
	abort(conn.Conn())
	closed, cancel := context.WithCancel(context.Background())
	cancel()
	conn.Close(closed)
}

// abort closes a connection so that nothing that is not sent yet reaches the server.
func abort(c net.Conn) {
	plain := c
	if t, ok := c.(*tls.Conn); ok {
		plain = t.NetConn()
	}
	if t, ok := plain.(interface{ SetLinger(int) error }); ok {
		t.SetLinger(0)
	}
	plain.Close()
}

// close breaks the link, waits for its goroutines, and ends its requests.
func (l *link) close() {
	l.fail(errBroken)
	l.work.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, g := range l.sent {
		g.abandon(true)
	}
	for _, g := range slices.Concat(l.urgent, l.queue) {
		g.abandon(false)
	}
	for _, r := range l.waiting {
		r.end(errBroken)
	}
	l.sent, l.urgent, l.queue, l.waiting = nil, nil, nil, nil
}

// abandon ends the requests of a group that has no answer.
func (g *group) abandon(sent bool) {
	if g.before != nil {
		g.before.abandon(true)
	}
	for _, r := range slices.Concat(g.requests, g.commits) {
		r.unsure = sent
		r.end(errBroken)
	}
}

func (r *request) end(err error) {
	r.err = err
	if r.ended != nil {
		r.ended(r)
	}
	close(r.done)
}

func newRequest(statement string, args ...[]byte) *request {
	return &request{statement: statement, args: args, done: make(chan struct{})}
}

// size returns the number of bytes of the arguments.
func (r *request) size() int {
	n := 0
	for _, arg := range r.args {
		n += len(arg)
	}
	return n
}

// send queues a request. An urgent one goes before those that are not sent yet.
func (l *link) send(r *request, urgent bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ctx.Err() != nil {
		r.end(errBroken)
		return
	}
	g := &group{requests: []*request{r}}
	if urgent {
		l.urgent = append(l.urgent, g)
	} else {
		l.queue = append(l.queue, g)
	}
	l.wakeWriter()
}

// commit queues a commit. It waits for the commits under way, and shares a transaction and its flush with the others that
// wait.
func (l *link) commit(r *request) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ctx.Err() != nil {
		r.end(errBroken)
		return
	}
	l.waiting = append(l.waiting, r)
	l.wakeWriter()
}

// gather queues the commits that wait, if none is under way. It first yields, so that all callers that the latest answer has woken
// send their next commits. Otherwise every second flush would be for a single commit.
func (l *link) gather() {
	l.mu.Lock()
	due := !l.committing && len(l.waiting) > 0
	l.mu.Unlock()
	if due {
		runtime.Gosched()
		l.mu.Lock()
		defer l.mu.Unlock()
		l.together()
	}
}

// together queues the commits that wait, if none is under way. It needs the mutex.
func (l *link) together() {
	if l.committing || len(l.waiting) == 0 {
		return
	}
	n, size := 1, l.waiting[0].size()
	for !l.waiting[0].alone && n < min(len(l.waiting), mostTogether) && !l.waiting[n].alone {
		if size += l.waiting[n].size(); size > mostBytesTogether {
			break
		}
		n++
	}
	g := &group{commits: l.waiting[:n:n], early: l.early}
	l.waiting = l.waiting[n:]
	l.queue = append(l.queue, g)
	if l.early {
		l.queue = append(l.queue, &group{requests: []*request{newRequest("k_flush")}})
	}
	l.committing = true
}

// expect makes the requests to a pool fail on a server with another history.
func (l *link) expect(history []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.history = history
}

func (l *link) wakeWriter() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// drop withdraws a request. It returns false if the request was sent.
func (l *link) drop(r *request) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	r.dropped = !r.sent
	return r.dropped
}

// ask makes a request of the session itself, which is urgent, and waits for the answer: one row. see is called
// for it in the order of the stream; it can be nil.
func (l *link) ask(ctx context.Context, see func(row), statement string, args ...[]byte) (row, error) {
	r := newRequest(statement, args...)
	if see != nil {
		r.see = func(r *request) { see(r.rows[0]) }
	}
	l.send(r, true)
	select {
	case <-r.done:
		if r.err != nil {
			return nil, r.err
		}
		if len(r.rows) != 1 {
			return nil, fmt.Errorf("postgres: %d rows of %s", len(r.rows), statement)
		}
		return r.rows[0], nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-l.ctx.Done():
		return nil, context.Cause(l.ctx)
	}
}

func (l *link) write() {
	defer l.work.Done()
	for {
		l.gather()
		groups := l.take()
		for _, g := range groups {
			l.put(g)
			l.front.SendSync(&pgproto3.Sync{})
		}
		if len(groups) > 0 {
			if err := l.front.Flush(); err != nil {
				l.fail(err)
				return
			}
			continue
		}
		select {
		case <-l.wake:
		case <-l.ctx.Done():
			return
		}
	}
}

// put puts a group into the buffer, up to its Sync. A transaction has the turn from the Execute of its commits to the Sync. These
// few bytes follow the arguments of all commits, so a client that is paused or cut off while it sends rarely has the turn.
func (l *link) put(g *group) {
	for i, r := range g.requests {
		if len(g.commits) > 0 && i == len(g.requests)-1 {
			r.args = joined(g.commits)
		}
		name := r.statement
		if l.pooled != nil {
			name = ""
			l.front.SendParse(&pgproto3.Parse{Query: l.pooled[r.statement]})
		}
		l.front.SendBind(&pgproto3.Bind{PreparedStatement: name, ParameterFormatCodes: []int16{1}, Parameters: r.args, ResultFormatCodes: []int16{1}})
		l.front.SendExecute(&pgproto3.Execute{})
	}
}

// take returns the groups to send now, without the requests that were withdrawn.
func (l *link) take() []*group {
	l.mu.Lock()
	defer l.mu.Unlock()
	room, first := mostSent-len(l.sent), len(l.urgent)
	if l.pooled != nil {
		room = 1 - len(l.sent)
		first = max(0, min(first, room))
	}
	n := max(0, min(len(l.queue), room-first))
	if l.pooled == nil && n > 0 && l.queue[n-1].early {
		n-- // the next group makes it durable, and must be sent right behind it
	}
	groups := slices.Concat(l.urgent[:first], l.queue[:n])
	l.urgent, l.queue = l.urgent[first:], l.queue[n:]
	for _, g := range groups {
		g.requests, g.commits = kept(g.requests), kept(g.commits)
		if len(g.commits) > 0 {
			g.requests = append(g.requests, newRequest("c_commit"))
		}
		if l.pooled != nil {
			history := l.history
			if len(g.requests) == 1 && g.requests[0].statement == "k_finish" {
				history = nil // Close ends the session on any server
			}
			g.requests = append([]*request{newRequest("k_local", history)}, g.requests...)
		}
		l.sent = append(l.sent, g)
	}
	return groups
}

// kept marks requests as sent, and ends the ones that were withdrawn.
func kept(all []*request) []*request {
	rest := all[:0:0]
	for _, r := range all {
		if r.dropped {
			r.end(context.Canceled)
			continue
		}
		r.sent = true
		rest = append(rest, r)
	}
	return rest
}

func (l *link) read() {
	defer l.work.Done()
	for {
		m, err := l.front.Receive()
		if err != nil {
			l.fail(err)
			return
		}
		switch m := m.(type) {
		case *pgproto3.NotificationResponse:
			l.heard(l, m.Payload)
		case *pgproto3.DataRow:
			if r := l.current(); r != nil {
				values := make(row, len(m.Values))
				for i, v := range m.Values {
					if v != nil {
						values[i] = append([]byte{}, v...)
					}
				}
				r.rows = append(r.rows, values)
			}
		case *pgproto3.CommandComplete:
			if r := l.current(); r != nil {
				if r.see != nil && len(r.rows) > 0 {
					r.see(r)
				}
				l.mu.Lock()
				l.sent[0].answered++
				l.mu.Unlock()
			}
		case *pgproto3.ErrorResponse:
			e := pgconn.ErrorResponseToPgError(m)
			if e.SeverityUnlocalized == "FATAL" || e.SeverityUnlocalized == "PANIC" {
				l.fail(e)
				return
			}
			l.mu.Lock()
			if len(l.sent) > 0 {
				l.sent[0].err = e
			}
			l.mu.Unlock()
		case *pgproto3.NoticeResponse:
			if m.Routine == "SyncRepWaitForLSN" {
				// An administrator has canceled the wait for the standby. The commit is not durable yet: the request that connects
				// the session again waits for that.
				l.fail(fmt.Errorf("postgres: %s", m.Message))
				return
			}
		case *pgproto3.ReadyForQuery:
			if err := l.ready(); err != nil {
				l.fail(err)
				return
			}
		}
	}
}

// current returns the request that the server answers at the moment.
func (l *link) current() *request {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.sent) == 0 || l.sent[0].answered >= len(l.sent[0].requests) {
		return nil
	}
	return l.sent[0].requests[l.sent[0].answered]
}

// ready ends the group that the server has committed or rolled back. Its answers do not count before.
func (l *link) ready() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.sent) == 0 {
		return errors.New("postgres: the server sent an answer without a request")
	}
	g := l.sent[0]
	if g.err == nil && g.answered != len(g.requests) {
		return fmt.Errorf("postgres: %d answers to %d requests", g.answered, len(g.requests))
	}
	if n := len(g.commits); g.err == nil && n > 0 {
		all := g.requests[len(g.requests)-1].rows
		if len(all) != n {
			return fmt.Errorf("postgres: %d answers to %d commits", len(all), n)
		}
		for i, r := range g.commits {
			r.rows = all[i : i+1]
		}
	}
	l.sent = l.sent[1:]
	if len(l.urgent)+len(l.queue) > 0 {
		l.wakeWriter()
	}
	if g.early && g.err == nil {
		l.next().before = g
	} else {
		g.end()
	}
	if g.commits != nil {
		l.committing = false
		l.wakeWriter()
	}
	return nil
}

// next returns the group that follows the one just answered. It needs the mutex.
func (l *link) next() *group {
	if len(l.sent) > 0 {
		return l.sent[0]
	}
	return l.queue[0]
}

// end ends the requests of a group that is answered. If the group has failed, the outcome of the early group before it is
// unknown.
func (g *group) end() {
	if b := g.before; b != nil && g.err == nil {
		b.end()
	} else if b != nil {
		b.abandon(true)
	}
	for _, r := range slices.Concat(g.requests, g.commits) {
		r.shared = len(g.commits) > 1
		r.end(g.err)
	}
}

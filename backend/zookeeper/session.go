package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/internal/contact"
	"github.com/go-coord/coord/internal/outbox"
	"github.com/go-zookeeper/zk"
)

// leastPretended keeps the ping interval of the zk client above zero.
const leastPretended = 12 * time.Millisecond

// The reasons for the loss of a session.
var (
	errExpired    = errors.New("the session has expired on the servers")
	errUnheard    = errors.New("no server answered within its lease")
	errTooShort   = errors.New("the negotiated timeout is not longer than LossMargin")
	errUnanswered = errors.New("no server answers the requests of the session, although pings are answered")
	errNoLogin    = fmt.Errorf("%w: the server refuses the credentials", backend.ErrDenied)
)

// session is one session on the servers.
//
// Its state follows from the frames that its guardConn sees. Close ends the session in two
// steps: first err is set and done is closed (end), then, when the calls under way have
// drained, the session is sealed, after which nothing is sent. A loss does both at once, and
// seals first (lose).
type session struct {
	cfg    *config
	now    func() instant
	hub    *hub
	hosts  hosts
	calls  sync.Pool      // of calls that are not in use
	work   sync.WaitGroup // goroutines that write to a connection, and the timer of the lease
	zk     *zk.Conn
	events <-chan zk.Event // read only to see it closed
	log    *outbox.Logger  // never blocks on the user's Logger, so it may be used under locks too

	mostBytes int // of Limits

	dialing  context.Context // ends when nothing is sent any more
	stopDial context.CancelFunc

	started chan struct{} // closed when there is a zk client
	opened  chan struct{} // closed when the session is ready for the first time
	done    chan struct{} // closed when the session is lost or closed
	idle    chan struct{} // closed when it has ended and no call is under way
	sealed  chan struct{} // closed when nothing is sent any more
	leaving chan struct{} // closed when the client has its farewell
	joined  chan struct{} // closed when every goroutine has ended
	turns   chan struct{} // holds one value while a call has the turn to be sent again, see easeOff

	sealedFlag atomic.Bool // the same as sealed, for the writer
	downOnce   sync.Once
	leaveOnce  sync.Once

	mu                         sync.Mutex
	id                         int64
	password                   string // of the session
	timeout                    time.Duration
	lease                      contact.Lease
	conn                       *guardConn // nil when there is none
	linked                     bool       // there is contact, on conn
	ready                      bool       // opened is closed
	err                        error
	change                     chan struct{} // closed and replaced at each change of phase
	trouble                    *trouble
	seen                       int64 // the latest zxid in a reply
	past                       past
	refusals                   refusals
	silentReads, silentCommits int         // see silenceLocked
	timer                      *time.Timer // of the lease, once the session is ready

	queue     callQueue // calls that have not been written yet
	underWay  int       // calls that are queued or sent
	numbers   uint64    // of calls
	doubt     frameDoubt
	pauses    contact.Pauses
	perRead   int     // the expected bytes of a read of ReadMany
	throttled []*call // commits that were throttled, and whose callers have not returned
}

func newSession(cfg *config) *session {
	lookup := contact.LookupWith(cfg.resolver)
	if cfg.dial != nil {
		lookup = nil
	}
	servers := contact.NewServers(cfg.servers, lookup, cfg.times.Timeout)
	s := &session{
		cfg:     cfg,
		now:     cfg.clock(),
		hub:     newHub(),
		hosts:   hosts{servers},
		started: make(chan struct{}),
		opened:  make(chan struct{}),
		done:    make(chan struct{}),
		idle:    make(chan struct{}),
		sealed:  make(chan struct{}),
		leaving: make(chan struct{}),
		joined:  make(chan struct{}),
		turns:   make(chan struct{}, 1),
		change:  make(chan struct{}),
		trouble: newTrouble(servers),
		log:     outbox.NewLogger(cfg.logger),
		perRead: firstPerRead,

		mostBytes: backend.MaxRequest,
	}
	if most := int(cfg.frameLimit.Load()); most > 0 {
		s.mostBytes = min(s.mostBytes, most*15/16-512) // the rest is for the encoding, as in MaxRequest
	}
	s.dialing, s.stopDial = context.WithCancel(context.Background())
	s.hub.remove = func(t *tree) { s.post(opRemoveWatches, encodeRemoveWatches(nil, t.path, kindAny), t) }
	return s
}

func (s *session) ID() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.id
}

func (s *session) Timeout() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.timeout
}

// Limits returns the limit of the bytes and the end of the numbers; servers limit nothing
// else.
func (s *session) Limits() backend.Limits {
	return backend.Limits{Bytes: s.mostBytes, Sequence: math.MaxInt32}
}

// TellPauses sets the function that is told of pauses of the process, see contact.Pauses.
func (s *session) TellPauses(f func(late time.Duration, asleep bool)) { s.pauses.Tell(f) }

// CheckPath adds the rules of ZooKeeper to those of the contract.
func (s *session) CheckPath(path string) error { return checkPath(path) }

func (s *session) Done() <-chan struct{} { return s.done }

func (s *session) Err() error {
	s.checkLease()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

func (s *session) Status() (backend.Phase, <-chan struct{}) {
	s.checkLease()
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.err != nil:
		return backend.PhaseLost, s.change
	case s.linked:
		return backend.PhaseConnected, s.change
	}
	return backend.PhaseSuspended, s.change
}

// changedLocked, like every method with this suffix, is called with mu held.
func (s *session) changedLocked() {
	close(s.change)
	s.change = make(chan struct{})
}

// greet handles the connect response of the server at the other end of c, whose request was
// sent at the instant. It returns the timeout, in milliseconds, to pass on to the zk client.
// The zk client gives up on a silent server after two thirds of it, which must leave time for
// another server.
func (s *session) greet(c *guardConn, r connectResponse, sent instant) (pretend int32, err error) {
	timeout := time.Duration(r.timeout) * time.Millisecond
	length := s.cfg.times.Lease(timeout)
	now := s.now()

	s.mu.Lock()
	var lost error
	switch {
	case s.isSealed() || s.conn != c:
		err = errSealed
	case s.id != 0 && r.session != s.id:
		// The server returned no session or another one, so this one has expired.
		lost = errExpired
	case r.session == 0 || r.timeout == 0:
		err = errMalformed
	case length <= 0 && s.id != 0:
		lost = errTooShort
	case length <= 0:
		err = contact.Invalid("LossMargin %v: it must be shorter than the timeout that the servers grant, %v", s.cfg.times.Margin, timeout)
		s.trouble.giveUpLocked(err)
	case s.id != 0 && s.lease.Left(now) <= 0:
		lost = errUnheard
	default:
		if s.id == 0 {
			s.lease.From = sent
		}
		s.id, s.password = r.session, r.password
		s.timeout = timeout
		s.lease.Length = length
		if c.look == nil {
			s.lease.Renew(sent)
		}
	}
	s.mu.Unlock()

	if lost != nil {
		s.lose(lost)
		return 0, lost
	}
	if err != nil {
		return 0, err
	}
	s.hub.reconnected()
	return int32(max(length*3/4, leastPretended) / time.Millisecond), nil
}

// contact makes the session connected on c. It is called, on each connection, when the server has
// accepted the credentials, if there are any, and the look has been answered.
func (s *session) contact(c *guardConn) {
	s.mu.Lock()
	if s.conn != c || s.isSealed() || s.linked {
		s.mu.Unlock()
		return
	}
	s.linked = true
	s.trouble.Over()
	s.refusals.inRow = 0
	first := !s.ready
	s.ready = true
	id, timeout := s.id, s.timeout
	s.changedLocked()
	s.writeLocked()
	if first {
		s.watchLeaseLocked(s.lease.Length)
	}
	s.mu.Unlock()
	if first {
		close(s.opened)
	}
	s.log.Info("coord: session connected", "session", contact.Hex(id), "server", c.target.String(), "timeout", timeout)
}

// refusedLogin returns the error of a server that has answered the credentials with a code.
// It ends a session that is ready: each connect response would renew its lease, and the
// session would stay suspended for ever.
func (s *session) refusedLogin(code int32) error {
	err := errNoLogin
	if code != codeAuthFailed {
		err = fmt.Errorf("the server answers the credentials with error %d", code)
	}
	s.mu.Lock()
	ready := s.ready
	if !ready && code == codeAuthFailed {
		s.trouble.giveUpLocked(err)
	}
	s.mu.Unlock()
	if ready {
		s.lose(err)
	}
	return err
}

// lostContact records the end of a connection. Its calls are over; those that it has not
// written yet wait for the next one.
func (s *session) lostContact(c *guardConn, why error) {
	s.mu.Lock()
	c.broken = true
	longest := 0
	for call := c.sent.next(); call != nil; call = c.sent.next() {
		longest = max(longest, len(call.frame)-4)
		if call.op != opClose {
			s.overLocked(call, broke)
		}
	}
	if s.conn != c {
		s.mu.Unlock()
		return
	}
	s.conn = nil
	was, over, id := s.linked, s.err != nil || s.isSealed(), s.id
	s.linked = false
	if was {
		s.trouble.Begins(s.now())
		s.brokeLocked(c, longest, why)
		s.changedLocked()
	}
	s.mu.Unlock()
	if !was {
		s.hosts.Failed(c.target)
		s.failed(c.target, s.inHandshake(why))
	}
	if was && !over {
		s.log.Warn("coord: session suspended, reconnecting", "session", contact.Hex(id), "server", c.target.String(), "error", why)
	}
}

// failed records a failed attempt to connect to a server. While no server can be reached, it
// logs that at growing intervals.
func (s *session) failed(t contact.Target, why error) {
	now := s.now()
	s.mu.Lock()
	if s.isSealed() || s.err != nil {
		s.mu.Unlock()
		return
	}
	s.trouble.Failed(t, why)
	if !s.ready {
		s.trouble.judgeLocked(now)
	}
	report := s.trouble.Report(now)
	id := s.id
	s.mu.Unlock()
	if report != nil {
		s.log.Warn(report.Message(), "session", contact.Hex(id), "attempts", report.Attempts, "for", report.Lasting, "error", report.Failures)
	}
}

// lose declares the session lost. It closes the connection first, which discards the bytes
// that were written but not sent.
func (s *session) lose(why error) {
	s.seal()
	s.end(fmt.Errorf("%w: %w", backend.ErrSessionLost, why))
}

// end sets the reason for the session's end, closes done and fires the watches, in this
// order. The first reason is kept. A loss is not logged here: the session's user learns the
// reason from Err, and knows what is lost with the session.
func (s *session) end(why error) {
	s.mu.Lock()
	if s.err != nil {
		s.mu.Unlock()
		return
	}
	s.err = why
	id := s.id
	close(s.done)
	s.changedLocked()
	if s.underWay == 0 {
		close(s.idle)
	}
	s.mu.Unlock()
	s.hub.end()
	if errors.Is(why, errExpired) {
		s.cfg.reports.Ended(id)
	}
	if errors.Is(why, backend.ErrClosed) {
		s.log.Info("coord: session closed", "session", contact.Hex(id))
	}
}

func (s *session) isSealed() bool { return s.sealedFlag.Load() }

// seal stops all traffic: it closes the connection and stops dialling, and the next
// connection that the zk client makes is its farewell.
func (s *session) seal() {
	s.mu.Lock()
	if s.sealedFlag.Swap(true) {
		s.mu.Unlock()
		return
	}
	conn, stop := s.conn, s.stopDial
	s.mu.Unlock()
	if conn != nil {
		conn.fail(errSealed)
	}
	stop()
	s.mu.Lock()
	for s.queue.size > 0 {
		call := s.queue.first
		s.queue.remove(call)
		s.overLocked(call, unsent)
	}
	s.mu.Unlock()
	close(s.sealed)
	s.shutDown()
}

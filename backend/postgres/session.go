package postgres

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/internal/contact"
	"github.com/go-coord/coord/internal/outbox"
)

// A session is a row of the table session. Each of its connections has an epoch, which each commit compares. So the database
// refuses every commit of an earlier connection, and of a session that has ended.
type session struct {
	*contact.Life
	cfg    *config
	id     int64
	now    func() contact.Instant
	work   sync.WaitGroup
	hub    *hub
	outage *contact.Outage
	log    *outbox.Logger // never blocks

	mu       sync.Mutex
	link     *link // nil without contact
	epoch    int32
	history  []byte        // of the database, when the session saw its latest position
	refused  chan struct{} // closed and replaced when the service refuses the user
	attempts int           // to connect, so far
	denial   denial
	commits  map[*request]struct{} // under way, or given up and without an answer
}

// denial is the latest refusal of the user while the session had no contact.
type denial struct {
	attempt int // to connect, which was refused
	err     error
}

var (
	errMoved   = errors.New("postgres: the database has another history, as after a failover or a restored backup")
	errRevoked = fmt.Errorf("%w: the session has expired in the database, or was ended there", backend.ErrSessionLost)
)

func (s *session) ID() int64                  { return s.id }
func (s *session) Features() backend.Features { return s.cfg.has }
func (s *session) CheckPath(p string) error   { return backend.CheckPath(p) }

func (s *session) Limits() backend.Limits {
	return backend.Limits{Bytes: backend.MaxRequest, Sequence: math.MaxInt64}
}

// end ends the session, once. No request of the session is sent afterwards.
func (s *session) end(err error) {
	s.mu.Lock()
	why := s.Finish(err, func(why error) {
		if !errors.Is(why, backend.ErrClosed) {
			s.cfg.lost.Add(s.id) // before a caller can learn of the loss and open the next session
		}
	})
	if why == nil {
		s.mu.Unlock()
		return
	}
	l := s.link
	s.link = nil
	s.mu.Unlock()
	if l != nil {
		l.fail(why)
	}
	s.hub.end()
	if err == errRevoked { // also while Close is under way
		s.cfg.reports.Ended(s.id)
	}
	if errors.Is(why, backend.ErrClosed) {
		s.log.Info("coord: session closed", "session", contact.Hex(s.id))
	}
}

// run keeps contact until the session is over. l is the first link.
func (s *session) run(l *link) {
	for l != nil {
		select {
		case <-l.ctx.Done():
		case <-s.Done():
			l.fail(s.Err())
		}
		s.detach(l)
		l.close()
		l = s.connect()
	}
}

func (s *session) detach(l *link) {
	s.hub.detach(l)
	s.mu.Lock()
	suspended := s.link == l
	if suspended {
		s.outage.Begins(s.now())
		s.link = nil
		s.Turn(backend.PhaseSuspended)
	}
	s.mu.Unlock()
	if suspended {
		s.log.Warn("coord: session suspended, reconnecting", "session", contact.Hex(s.id), "server", s.cfg.target.String(), "error", context.Cause(l.ctx))
	}
}

// connected records that there is contact.
func (s *session) connected() {
	s.outage.Over()
	s.log.Info("coord: session connected", "session", contact.Hex(s.id), "server", s.cfg.target.String(), "timeout", s.Timeout())
}

// failed records a failed attempt to connect, and logs failures at growing intervals.
func (s *session) failed(why error) {
	s.outage.Failed(s.cfg.target, why)
	if r := s.outage.Report(s.now()); r != nil {
		s.log.Warn(r.Message(), "session", contact.Hex(s.id), "attempts", r.Attempts, "for", r.Lasting, "error", r.Failures)
	}
}

// The pauses between attempts to connect. Contact that breaks at once counts as a failed attempt.
const (
	firstPause = 20 * time.Millisecond
	mostPause  = 2 * time.Second
)

// connect makes the next link. It returns nil when the session is over.
func (s *session) connect() *link {
	for tries := 1; ; tries++ {
		contact.Sleep(s.Context(), nil, contact.Growing(firstPause, min(mostPause, s.Timeout()/8), tries))
		left := s.Left()
		if s.Context().Err() != nil {
			return nil
		}
		s.mu.Lock()
		s.attempts++
		attempt := s.attempts
		s.mu.Unlock()
		s.outage.Trying(s.cfg.target, s.now())
		ctx, cancel := context.WithTimeout(s.Context(), min(max(left/2, s.Timeout()/10), 5*time.Second))
		l, err := s.reattach(ctx, int32(attempt)+1)
		cancel()
		if err == nil {
			s.connected()
			return l
		}
		if s.Context().Err() != nil {
			return nil
		}
		s.failed(err)
		if why := refusal(err); errors.Is(why, backend.ErrDenied) {
			s.mu.Lock()
			s.denial = denial{attempt, why}
			close(s.refused)
			s.refused = make(chan struct{})
			s.mu.Unlock()
		}
	}
}

// reattach makes a link, and continues the session on it, in the next epoch. An attempt that was given up may still reach the
// database, which refuses it after a later attempt.
func (s *session) reattach(ctx context.Context, epoch int32) (*link, error) {
	l, err := s.dial(ctx, false)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	history := s.history
	s.mu.Unlock()
	sent := s.now()
	r, err := s.insist(ctx, l, func(r row) {
		if r[0] != nil {
			s.hub.attach(l, integer(r[0]), string(r[2]))
		}
	}, "k_attach", int8(s.id), int4(epoch), int8(s.hub.position()), history)
	switch {
	case err != nil:
	case r[0] == nil:
		s.end(errRevoked)
		err = errRevoked
	default:
		err = s.attach(l, sent, epoch, r[1])
	}
	if err != nil {
		l.fail(err)
		s.hub.detach(l)
		l.close()
		return nil, err
	}
	return l, nil
}

// insist repeats a request of the session itself until the server executes it: the wait for the turn can exceed the lock timeout.
func (s *session) insist(ctx context.Context, l *link, see func(row), statement string, args ...[]byte) (row, error) {
	for tries := 0; ; tries++ {
		r, err := l.ask(ctx, see, statement, args...)
		var e *pgconn.PgError
		if !errors.As(err, &e) || l.ctx.Err() != nil || !transient(e) {
			return r, err
		}
		s.pause(ctx, tries)
	}
}

// finish ends a session in the database.
func (s *session) finish(ctx context.Context, l *link, id int64) error {
	_, err := s.insist(ctx, l, nil, "k_finish", int8(id))
	if err == nil {
		s.cfg.reports.Ended(id)
	}
	return err
}

// attach gives the session a link that the hub already has. sent is when the request that attached it was sent.
func (s *session) attach(l *link, sent contact.Instant, epoch int32, history []byte) error {
	l.expect(history)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.Renew(sent); err != nil {
		return err
	}
	s.link, s.epoch, s.history = l, epoch, history
	s.Turn(backend.PhaseConnected)
	l.work.Add(1)
	go s.beat(l)
	if s.cfg.poll > 0 {
		l.work.Add(1)
		go s.pollEvents(l)
	}
	return nil
}

// beatInterval is the time between two keep-alives.
func (s *session) beatInterval() time.Duration { return min(s.Timeout()/8, s.Lease()/4) }

// beat renews the session, and ends other sessions that have expired.
func (s *session) beat(l *link) {
	defer l.work.Done()
	renew, reap := s.now(), s.now()
	interval, due := s.beatInterval(), s.Timeout()/8
	for {
		now := s.now()
		wait := min(interval-renew.To(now), due-reap.To(now))
		if wait > 0 {
			contact.Sleep(l.ctx, nil, wait)
		}
		if l.ctx.Err() != nil {
			return
		}
		ctx, cancel := context.WithTimeout(l.ctx, s.Lease()/2)
		err := error(nil)
		if sent := s.now(); renew.To(sent) >= interval {
			err = s.renew(ctx, l, sent)
			renew = sent
		}
		if sent := s.now(); err == nil && reap.To(sent) >= due {
			var r row
			if r, err = l.ask(ctx, nil, "k_reap", int8(s.cfg.interval.Milliseconds())); err == nil {
				due = min(s.Timeout()/8, max(time.Duration(integer(r[0]))*time.Millisecond, leastReap))
			}
			reap = sent
		}
		cancel()
		var e *pgconn.PgError
		switch {
		case err == nil, errors.As(err, &e) && l.ctx.Err() == nil && (transient(e) || errors.Is(translate(e), backend.ErrNoSpace)):
		case errors.Is(err, context.DeadlineExceeded) && !errors.As(err, &e):
			l.fail(fmt.Errorf("%s: no answer within %v", s.cfg.target, s.Lease()/2))
		default:
			l.fail(err)
		}
	}
}

// leastReap is the shortest time between two reaps.
const leastReap = 20 * time.Millisecond

func (s *session) renew(ctx context.Context, l *link, sent contact.Instant) error {
	r, err := l.ask(ctx, nil, "k_beat", int8(s.id))
	switch {
	case err != nil:
		return err
	case !boolean(r[0]):
		s.end(errRevoked)
		return errRevoked
	case r[1] == nil:
		return errMoved
	case s.Left() <= 0: // a late answer renews nothing
		return contact.ErrUnheard
	}
	if err := s.Renew(sent); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.history = r[1]
	return nil
}

// contact waits for a link. Like Open it returns earlier when the service refuses the user, but only if an
// attempt to connect that began after the call shows that: the user may have got access since an earlier attempt.
func (s *session) contact(ctx context.Context) (*link, int32, error) {
	s.mu.Lock()
	before := s.attempts
	s.mu.Unlock()
	for {
		_, changed := s.Status()
		if err := s.over(ctx); err != nil {
			return nil, 0, err
		}
		s.mu.Lock()
		l, refused, epoch, denial := s.link, s.refused, s.epoch, s.denial
		s.mu.Unlock()
		switch {
		case l != nil && l.ctx.Err() == nil:
			return l, epoch, nil
		case denial.attempt > before:
			return nil, 0, &backend.NoContactError{Err: denial.err, For: s.outage.Since(s.now())}
		}
		select { // a link that is broken is about to be replaced, which changes the phase
		case <-changed:
		case <-refused:
		case <-ctx.Done():
		}
	}
}

// over returns why a call has to end, or nil.
func (s *session) over(ctx context.Context) error {
	if err := s.Err(); err != nil {
		return err
	}
	return s.contextError(ctx)
}

// contextError returns the error of ctx, nil while it lasts. If there is no contact, it says so.
func (s *session) contextError(ctx context.Context) error {
	err := backend.ContextError(ctx)
	if err == nil {
		return nil
	}
	return s.NoContact(err)
}

// NoContact returns the error of a context that has ended. If there is no contact, or the answer to a
// keep-alive is overdue, it says so.
func (s *session) NoContact(err error) error {
	s.mu.Lock()
	l := s.link
	s.mu.Unlock()
	if l == nil || l.ctx.Err() != nil {
		return s.outage.NoContact(err, s.now())
	}
	return s.NoAnswer(err, s.cfg.target)
}

// pause waits before a request is repeated, longer each time.
func (s *session) pause(ctx context.Context, tries int) {
	timer := time.NewTimer(min(leastBusy<<min(tries, 10), mostBusy))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	case <-s.Done():
	}
}

// The limits of a pause.
const (
	leastBusy = 2 * time.Millisecond
	mostBusy  = 100 * time.Millisecond
)

// outdated reports whether a connection is of no use any more: it leads to a server that does not accept writes or has another
// history, or its prepared statements are no longer valid.
func outdated(e *pgconn.PgError) bool {
	switch e.Code {
	case codeHistory, "25006", "26000", "0A000", "42P01", "42883", "3F000":
		return true
	}
	return false
}

// transient reports whether the server has not executed a request, and can execute it later.
func transient(e *pgconn.PgError) bool {
	switch e.Code {
	case "40001", "40P01", "55P03", "57014": // serialization, deadlock, lock timeout, canceled
		return true
	}
	return false
}

// translate returns an error of the server as one of the contract.
func translate(e *pgconn.PgError) error {
	switch {
	case e.Code == "42501":
		return fmt.Errorf("%w: %s", backend.ErrDenied, e.Message)
	case e.Code == "53100", e.Code == "54000" && strings.Contains(e.Message, "NOTIFY"):
		return fmt.Errorf("%w: %s", backend.ErrNoSpace, e.Message)
	case e.Code == "54000", e.Code == "53200":
		return fmt.Errorf("%w: %s", backend.ErrTooLarge, e.Message)
	}
	return e
}

// The limits of the parts of Close.
const (
	closeCalls  = time.Second
	closeFinish = 2 * time.Second
	mostDrain   = time.Second // for the last lines of the log
)

func (s *session) Close() error {
	if !s.Closing() {
		<-s.Done()
		s.work.Wait()
		return nil
	}
	s.mu.Lock()
	l := s.link
	s.mu.Unlock()
	if l != nil {
		s.Drain(l.ctx, closeCalls)
		ctx, cancel := context.WithTimeout(l.ctx, closeFinish)
		err := s.finish(ctx, l, s.id) // else it ends by its timeout
		cancel()
		l.closing.Store(err == nil)
	}
	s.end(backend.ErrClosed)
	s.work.Wait()
	s.log.Drain(mostDrain)
	return nil
}

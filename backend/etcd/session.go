package etcd

import (
	"context"
	"errors"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/internal/contact"
	"github.com/go-coord/coord/internal/outbox"
)

// A session is a lease, and a key of that lease: the session key. The version of the session key
// is the epoch. Each commit compares it, so the server refuses every commit of a session that
// has ended. When the outcome of a commit is unknown, the session puts its key again before its
// next call: then the commit has been applied, or it never will be. Deletions that compare nothing
// are repeated with it, see send.
type session struct {
	*contact.Life
	cfg     *config
	id      int64 // of the lease
	bare    bool  // there is no lease, see openBare
	key     string
	now     func() contact.Instant
	work    sync.WaitGroup
	hub     *hub
	servers *contact.Servers
	outage  *contact.Outage
	log     *outbox.Logger // never blocks

	mu       sync.Mutex
	link     *link              // nil without contact
	ending   map[*link]struct{} // links that take no more requests, and may still answer some
	relinked chan struct{}      // closed and replaced when there is another link, or another refusal
	attempts int                // to connect that have begun
	denial   denial
	commits  map[*commit]struct{} // under way
	left     map[*commit]struct{} // commits under way that their callers have given up
	epoch    int64
	doubts   int      // commits of unknown outcome
	settled  int      // the number of them that an epoch has settled
	unsure   []string // keys of which a deletion is not settled
	settler  chan struct{}
	silent   silence
	tried    []contact.Target // by reach; until the session is open
	past     past

	known   *cache
	keys    *keyring
	emptied *emptied
	foreign sync.Once // the log has named a key that is none of a node

	uncollected sync.Once // the log has named a container that cannot be removed
}

func (s *session) ID() int64                  { return s.id }
func (s *session) Features() backend.Features { return s.cfg.has }
func (s *session) CheckPath(p string) error   { return checkPath(p) }

// maxOps is the number of operations of one commit. A server takes 128 compares, and 128
// operations, by default. Each operation needs at most two by the nodes as they are, and the epoch one; a
// guess that needs more is not sent.
const maxOps = 63

func (s *session) Limits() backend.Limits {
	return backend.Limits{Ops: maxOps, Bytes: backend.MaxRequest, Sequence: math.MaxInt64}
}

// end ends the session, once. No request of the session reaches the service afterwards.
func (s *session) end(err error) {
	s.mu.Lock()
	why := s.Finish(err, func(why error) {
		if !errors.Is(why, backend.ErrClosed) && !s.bare {
			s.cfg.lost.Add(s.id) // before a caller can learn of the loss and open the next session
		}
	})
	if why == nil {
		s.mu.Unlock()
		return
	}
	links := slices.Collect(maps.Keys(s.ending))
	if s.link != nil {
		links = append(links, s.link)
	}
	s.link = nil
	s.mu.Unlock()
	for _, l := range links {
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
		case <-l.leaving:
		case <-l.ctx.Done():
		case <-s.Done():
			l.fail(s.Err())
		}
		if l.ctx.Err() == nil {
			l = s.relieve(l)
			continue
		}
		s.detach(l)
		l.close()
		l = s.connect()
	}
}

// relieve makes the next link while the requests under way are still answered on the old one. It does not
// interrupt contact, unless the old one breaks before the next is there.
func (s *session) relieve(old *link) *link {
	s.log.Info("coord: the server is closing the connection, reconnecting", "session", contact.Hex(s.id), "server", old.target.String())
	s.mu.Lock()
	if s.ending == nil {
		s.ending = make(map[*link]struct{})
	}
	s.ending[old] = struct{}{}
	s.mu.Unlock()
	detached := make(chan struct{})
	stop := context.AfterFunc(old.ctx, func() {
		defer close(detached)
		s.detach(old)
	})
	l := s.connect()
	if !stop() {
		<-detached
	}
	s.work.Go(func() {
		limit := newDeadline(s.now(), s.Lease()/2)
		timer := time.NewTimer(limit.next)
		defer timer.Stop()
		for over := false; !over && old.inUse.Load() > 0; {
			select {
			case <-old.unused:
			case <-old.ctx.Done():
				over = true
			case <-s.Done():
				over = true
			case <-timer.C:
				next := limit.look(s.now())
				timer.Reset(next)
				over = next == 0
			}
		}
		old.fail(errSpent)
		s.mu.Lock()
		delete(s.ending, old)
		s.mu.Unlock()
		s.detach(old)
		old.close()
	})
	return l
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
		s.log.Warn("coord: session suspended, reconnecting", "session", contact.Hex(s.id), "server", l.target.String(), "error", l.reason())
	}
}

// connected records that there is contact.
func (s *session) connected(l *link) {
	s.servers.Answered(l.target)
	s.outage.Over()
	s.log.Info("coord: session connected", "session", contact.Hex(s.id), "server", l.target.String(), "timeout", s.Timeout())
}

// failed records a failed attempt to connect to a server. While no server can be reached, it logs
// that at growing intervals.
func (s *session) failed(t contact.Target, why error) {
	s.outage.Failed(t, why)
	if r := s.outage.Report(s.now()); r != nil {
		s.log.Warn(r.Message(), "session", contact.Hex(s.id), "attempts", r.Attempts, "for", r.Lasting, "error", r.Failures)
	}
}

// times returns how long an attempt to connect may take, and after which time the next one begins
// beside it: each address gets its chance within the rest of the lease.
func (s *session) times(addresses int) (budget, step time.Duration) {
	left := s.Left()
	return min(max(left/2, s.Timeout()/10), 5*time.Second), max(left/time.Duration(addresses+1), s.Timeout()/10)
}

// connect makes the next link. It returns nil when the session is over.
func (s *session) connect() *link {
	ctx, cancel := context.WithCancel(s.Context())
	defer cancel()
	failed := func(t contact.Target, err error) error {
		if s.Err() == nil {
			s.failed(t, err)
		}
		return nil
	}
	for {
		s.mu.Lock()
		s.tried = nil
		s.mu.Unlock()
		l, err := s.reach(ctx, s.times, failed)
		if err != nil {
			return nil
		}
		_, step := s.times(len(s.servers.Targets()))
		attempt := s.attempt()
		try, stop := context.WithTimeout(ctx, step)
		err = s.attach(try, l)
		stop()
		if err == nil {
			s.connected(l)
			return l
		}
		l.fail(err)
		s.hub.detach(l)
		l.close()
		if s.Err() != nil {
			return nil
		}
		s.servers.Failed(l.target)
		failed(l.target, err)
		s.denied(attempt, err)
	}
}

// attach gives the session its next link: the watch stream works, the session exists, and the history is
// the same.
func (s *session) attach(ctx context.Context, l *link) error {
	s.adopt(l)
	on, stop := l.call(ctx)
	defer stop()
	if err := s.hub.attach(on, l); err != nil {
		return err
	}
	if err := s.same(on, l); err != nil {
		return err
	}
	l.work.Add(1)
	go s.keepAlive(l)
	s.hub.reconnected(l)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.Ended(); err != nil {
		return err
	}
	s.link = l
	close(s.relinked)
	s.relinked = make(chan struct{})
	s.Turn(backend.PhaseConnected)
	return nil
}

// The limits of the parts of Close.
const (
	closeCalls  = time.Second
	closeRevoke = 2 * time.Second
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
	}
	if l != nil && !s.bare {
		ctx, cancel := context.WithTimeout(l.ctx, closeRevoke)
		_ = s.cfg.revoke(ctx, l.leases, s.id) // else it ends by its timeout
		cancel()
	}
	s.end(backend.ErrClosed)
	s.work.Wait()
	s.log.Drain(mostDrain)
	return nil
}

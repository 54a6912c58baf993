package etcd

import (
	"context"
	"errors"
	"maps"
	"math"
	"slices"
	"strconv"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

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
	cfg     *config
	id      int64 // of the lease
	bare    bool  // there is no lease, see openBare
	key     string
	timeout time.Duration
	now     func() contact.Instant
	done    chan struct{}
	work    sync.WaitGroup
	hub     *hub
	servers *contact.Servers
	outage  *contact.Outage
	log     *outbox.Logger // never blocks

	mu       sync.Mutex
	lease    contact.Lease
	phase    backend.Phase
	changed  chan struct{} // closed and replaced at each change of phase
	err      error
	link     *link              // nil without contact
	ending   map[*link]struct{} // links that take no more requests, and may still answer some
	relinked chan struct{}      // closed and replaced when there is another link, or another refusal
	attempts int                // to connect that have begun
	denial   denial
	closing  bool
	idle     chan struct{} // closed when a closing session has no call under way
	calls    int
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
	pauses  contact.Pauses
	foreign sync.Once // the log has named a key that is none of a node

	uncollected sync.Once // the log has named a container that cannot be removed
}

func (s *session) ID() int64                  { return s.id }
func (s *session) Timeout() time.Duration     { return s.timeout }
func (s *session) Features() backend.Features { return s.cfg.has }
func (s *session) CheckPath(p string) error   { return checkPath(p) }
func (s *session) Done() <-chan struct{}      { return s.done }

// TellPauses sets the function that is told of pauses of the process, see contact.Pauses.
func (s *session) TellPauses(f func(late time.Duration, asleep bool)) { s.pauses.Tell(f) }

// maxOps is the number of operations of one commit. A server takes 128 compares, and 128
// operations, by default. Each operation needs at most two by the nodes as they are, and the epoch one; a
// guess that needs more is not sent.
const maxOps = 63

func (s *session) Limits() backend.Limits {
	return backend.Limits{Ops: maxOps, Bytes: backend.MaxRequest, Sequence: math.MaxInt64}
}

func (s *session) Status() (backend.Phase, <-chan struct{}) {
	s.checkLease()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.phase, s.changed
}

func (s *session) Err() error {
	s.checkLease()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// setPhase needs the mutex.
func (s *session) setPhase(p backend.Phase) {
	s.phase = p
	close(s.changed)
	s.changed = make(chan struct{})
}

// end ends the session, once. No request of the session reaches the service afterwards.
func (s *session) end(err error) {
	s.mu.Lock()
	if s.err != nil {
		s.mu.Unlock()
		return
	}
	if s.closing {
		err = backend.ErrClosed
	}
	s.err = err
	links := slices.Collect(maps.Keys(s.ending))
	if s.link != nil {
		links = append(links, s.link)
	}
	s.link = nil
	s.setPhase(backend.PhaseLost)
	if !errors.Is(err, backend.ErrClosed) && !s.bare {
		s.cfg.lost.add(s.id) // before a caller can learn of the loss and open the next session
	}
	close(s.done)
	s.mu.Unlock()
	for _, l := range links {
		l.fail(err)
	}
	s.hub.end()
	if errors.Is(err, backend.ErrClosed) {
		s.log.Info("coord: session closed", "session", hex(s.id))
	}
}

// run keeps contact until the session is over. l is the first link.
func (s *session) run(l *link) {
	defer s.work.Done()
	for l != nil {
		select {
		case <-l.leaving:
		case <-l.ctx.Done():
		case <-s.done:
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
	s.log.Info("coord: the server is closing the connection, reconnecting", "session", hex(s.id), "server", old.target.String())
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
		limit := newDeadline(s.now(), s.lease.Length/2)
		timer := time.NewTimer(limit.next)
		defer timer.Stop()
		for over := false; !over && old.inUse.Load() > 0; {
			select {
			case <-old.unused:
			case <-old.ctx.Done():
				over = true
			case <-s.done:
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
	suspended := s.link == l && s.err == nil
	if suspended {
		s.outage.Begins(s.now())
		s.link = nil
		s.setPhase(backend.PhaseSuspended)
	}
	s.mu.Unlock()
	if suspended {
		s.log.Warn("coord: session suspended, reconnecting", "session", hex(s.id), "server", l.target.String(), "error", l.reason())
	}
}

// connected records that there is contact.
func (s *session) connected(l *link) {
	s.servers.Answered(l.target)
	s.outage.Over()
	s.log.Info("coord: session connected", "session", hex(s.id), "server", l.target.String(), "timeout", s.timeout)
}

// failed records a failed attempt to connect to a server. While no server can be reached, it logs
// that at growing intervals.
func (s *session) failed(t contact.Target, why error) {
	s.outage.Failed(t, why)
	if r := s.outage.Report(s.now()); r != nil {
		s.log.Warn(r.Message(), "session", hex(s.id), "attempts", r.Attempts, "for", r.Lasting, "error", r.Failures)
	}
}

// times returns how long an attempt to connect may take, and after which time the next one begins
// beside it: each address gets its chance within the rest of the lease.
func (s *session) times(addresses int) (budget, step time.Duration) {
	left := s.checkLease()
	return min(max(left/2, s.timeout/10), 5*time.Second), max(left/time.Duration(addresses+1), s.timeout/10)
}

// connect makes the next link. It returns nil when the session is over.
func (s *session) connect() *link {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	over := make(chan struct{})
	defer close(over)
	s.work.Go(func() {
		select {
		case <-s.done:
			cancel()
		case <-over:
		}
	})
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
	if s.err != nil {
		return s.err
	}
	s.link = l
	close(s.relinked)
	s.relinked = make(chan struct{})
	if s.phase != backend.PhaseConnected {
		s.setPhase(backend.PhaseConnected)
	}
	return nil
}

// hex formats the id of a session as the client and its other backends do. etcd's own tools leave 0x out.
func hex(id int64) string { return "0x" + strconv.FormatUint(uint64(id), 16) }

// The limits of the parts of Close.
const (
	closeCalls  = time.Second
	closeRevoke = 2 * time.Second
	mostDrain   = time.Second // for the last lines of the log
)

func (s *session) Close() error {
	s.mu.Lock()
	first := !s.closing
	s.closing = true
	l := s.link
	var idle chan struct{}
	if first && s.calls > 0 && l != nil && s.err == nil {
		idle = make(chan struct{})
		s.idle = idle
	}
	over := s.err != nil
	s.mu.Unlock()
	if !first {
		<-s.done
		s.work.Wait()
		return nil
	}
	if idle != nil {
		timer := time.NewTimer(closeCalls)
		select {
		case <-idle:
		case <-timer.C:
		case <-s.done:
		case <-l.ctx.Done():
		}
		timer.Stop()
	}
	if !over && l != nil && !s.bare {
		ctx, cancel := context.WithTimeout(l.ctx, closeRevoke)
		_, _ = l.leases.LeaseRevoke(ctx, &pb.LeaseRevokeRequest{ID: s.id}) // else it ends by its timeout
		cancel()
	}
	s.end(backend.ErrClosed)
	s.work.Wait()
	s.log.Drain(mostDrain)
	return nil
}

package etcd

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

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
	left     map[*commit]struct{} // of them, those that their callers have given up
	epoch    int64
	doubts   int      // commits of unknown outcome
	settled  int      // of them, those that an epoch has settled
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

// end ends the session, once. Nothing of it reaches the service any more.
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
		s.cfg.lost.add(s.id) // before anybody can know of the loss, and open the next session
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

// enter begins a call, and returns the error of a session that is over or closing.
func (s *session) enter() error {
	s.checkLease()
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.err != nil:
		return s.err
	case s.closing:
		return backend.ErrClosed
	}
	s.calls++
	return nil
}

func (s *session) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls--
	if s.calls == 0 && s.idle != nil {
		close(s.idle)
		s.idle = nil
	}
}

// denial says that a server has refused the user while the session had no contact.
type denial struct {
	attempt int // in which it did so
	err     error
}

// attempt counts an attempt to connect that begins.
func (s *session) attempt() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.attempts++
	return s.attempts
}

// denied tells the calls that wait for contact if an attempt has failed because a server refuses the user.
func (s *session) denied(attempt int, err error) {
	switch {
	case errors.Is(err, backend.ErrDenied):
	case is(err, rpctypes.ErrGRPCUserEmpty) && s.cfg.user != "":
		return // there was no time to get a token: authentication was switched on a moment ago
	case refusesUser(err):
		err = translate(err)
	default:
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if attempt > s.denial.attempt {
		s.denial = denial{attempt, err}
		close(s.relinked)
		s.relinked = make(chan struct{})
	}
}

// contact waits for a link. Like Open it returns earlier when the service refuses the user, but only if an
// attempt shows that which has begun after the call: the user can have been let in since an earlier one.
func (s *session) contact(ctx context.Context) (*link, error) {
	s.mu.Lock()
	before := s.attempts
	s.mu.Unlock()
	for {
		if err := s.contextError(ctx); err != nil {
			return nil, err
		}
		s.checkLease()
		s.mu.Lock()
		l, err, changed, relinked, denial := s.link, s.err, s.changed, s.relinked, s.denial
		s.mu.Unlock()
		if err != nil {
			return nil, err
		}
		if l != nil && l.ctx.Err() == nil && !l.isLeaving() {
			return l, nil
		}
		if denial.attempt > before {
			return nil, &backend.NoContactError{Err: denial.err, For: s.outage.Since(s.now())}
		}
		select {
		case <-changed:
		case <-relinked:
		case <-ctx.Done():
		}
	}
}

// read runs a read until it is answered. f is called again when contact breaks.
func (s *session) read(ctx context.Context, f func(ctx context.Context, l *link) error) error {
	if err := s.contextError(ctx); err != nil {
		return err
	}
	if err := s.enter(); err != nil {
		return err
	}
	defer s.leave()
	for tries := 0; ; tries++ {
		l, err := s.contact(ctx)
		if err != nil {
			return err
		}
		on, stop := l.call(ctx)
		err = s.settle(on, l)
		if err == nil {
			err = f(on, l)
		}
		stop()
		s.checkLease()
		if over := s.over(ctx); over != nil {
			return over
		}
		switch what := s.judge(l, err); {
		case err == nil:
			return nil
		case what == refused:
			return translate(err)
		case what == throttled:
			s.pause(ctx, tries)
		case what == again, what == unsent:
		default:
			l.fail(err)
		}
	}
}

// over returns why no call can go on, or nil.
func (s *session) over(ctx context.Context) error {
	s.mu.Lock()
	err := s.err
	s.mu.Unlock()
	if err != nil {
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
	now := s.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	silent := s.lease.From.To(now)
	switch {
	case s.link == nil || s.link.ctx.Err() != nil:
		return &backend.NoContactError{Err: err, For: s.outage.Since(now), Why: s.outage.Error(nil, now).Error()}
	case silent >= s.timeout/8+s.lease.Length/8:
		return &backend.NoContactError{Err: err, For: silent, Why: s.link.target.String() + ": no answer"}
	}
	return err
}

// pause waits before a request that an overloaded server has refused is sent again.
func (s *session) pause(ctx context.Context, tries int) {
	sleep(ctx, s.done, min(10*time.Millisecond<<min(tries, 10), time.Second))
}

// sleep waits for d, until over is closed or until ctx ends.
func sleep(ctx context.Context, over <-chan struct{}, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-over:
	case <-ctx.Done():
	}
}

// hex formats the id of a session as the client and its other backends do. etcd's own tools leave 0x out.
func hex(id int64) string { return "0x" + strconv.FormatUint(uint64(id), 16) }

// verdict is what an error of a request means.
type verdict int

const (
	unknown   verdict = iota // it may have been run; the server cannot be used at the moment
	refused                  // it was not run, and never will be
	throttled                // it was not run; a later one can be
	again                    // a read has to be repeated
	stale                    // it was not run, and the token of the link is not valid any more
	unsent                   // it was not sent: the connection takes no more requests
)

var errAgain = errors.New("etcd: read again")

// judge tells what an error of a request means. A server that has no leader, or that is slow or
// stopping, is left for another one.
func (s *session) judge(l *link, err error) verdict {
	switch {
	case err == nil:
		return refused
	case errors.Is(err, errAgain):
		return again
	case unsentBy(err):
		l.leave()
		return unsent
	case errors.Is(err, errBroken) && l.isLeaving() && l.reason() == nil:
		return again // the watches have moved to the next link
	case staleToken(err) && (s.cfg.user != "" || !is(err, rpctypes.ErrGRPCUserEmpty)):
		return stale
	case l.reason() != nil:
		return unknown
	case is(err, rpctypes.ErrGRPCRequestTooManyRequests):
		return throttled
	case is(err, rpctypes.ErrGRPCLeaseNotFound):
		s.end(errRevoked)
		return refused
	}
	var own *backend.Error
	if errors.As(err, &own) || errors.Is(err, errNotOurs) || errors.Is(err, backend.ErrNotFound) {
		return refused
	}
	switch status.Code(err) {
	case codes.InvalidArgument, codes.PermissionDenied, codes.OutOfRange, codes.ResourceExhausted, codes.FailedPrecondition, codes.NotFound:
		return refused
	}
	return unknown
}

// translate returns an error of a server as one of the contract.
func translate(err error) error {
	switch {
	case is(err, rpctypes.ErrGRPCRequestTooLarge), is(err, rpctypes.ErrGRPCTooManyOps),
		status.Code(err) == codes.ResourceExhausted && strings.Contains(err.Error(), "received message larger than max"):
		return fmt.Errorf("%w: %s", backend.ErrTooLarge, rpctypes.ErrorDesc(err))
	case is(err, rpctypes.ErrGRPCNoSpace):
		return fmt.Errorf("%w: %s", backend.ErrNoSpace, rpctypes.ErrorDesc(err))
	case is(err, rpctypes.ErrGRPCUserEmpty):
		return errNoUser
	case refusesUser(err):
		return fmt.Errorf("%w: %s", backend.ErrDenied, rpctypes.ErrorDesc(err))
	}
	return err
}

// inDoubt reports whether there is a commit of unknown outcome.
func (s *session) inDoubt() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.doubts != s.settled || len(s.left) > 0
}

// settle makes certain that no commit of unknown outcome is applied any more, if there is one. It waits
// for the replies to those that were given up.
func (s *session) settle(ctx context.Context, l *link) error {
	if !s.inDoubt() {
		return nil
	}
	if err := s.awaitLeft(ctx); err != nil {
		return err
	}
	select {
	case s.settler <- struct{}{}:
		defer func() { <-s.settler }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	s.mu.Lock()
	doubts, unsure := s.doubts, slices.Clone(s.unsure)
	none := doubts == s.settled
	s.mu.Unlock()
	if none {
		return nil
	}
	if s.bare {
		s.end(errUnsettled)
		return errUnsettled
	}
	for first := true; first || len(unsure) > 0; first = false {
		n, size := 0, 0
		for n < min(len(unsure), mostRequests-1) && (n == 0 || size+len(unsure[n]) <= mostAlone) {
			size += len(unsure[n])
			n++
		}
		if err := s.newEpoch(ctx, l, 0, unsure[:n]...); err != nil {
			return err
		}
		unsure = unsure[n:]
		s.mu.Lock()
		s.unsure = slices.Delete(s.unsure, 0, n)
		s.mu.Unlock()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settled = max(s.settled, doubts)
	return nil
}

// A reply to a commit that was given up is late after a part of the lease, within these limits.
const (
	leastLate = 50 * time.Millisecond
	mostLate  = 500 * time.Millisecond
)

// awaitLeft waits for the replies to the commits that were given up. The outcome of one whose reply is late
// counts as unknown.
func (s *session) awaitLeft(ctx context.Context) error {
	s.mu.Lock()
	left := slices.Collect(maps.Keys(s.left))
	s.mu.Unlock()
	if len(left) == 0 {
		return nil
	}
	timer := time.NewTimer(min(max(s.lease.Length/16, leastLate), mostLate))
	defer timer.Stop()
	late := false
	for _, c := range left {
		if late {
			s.doubtLeft(c)
			continue
		}
		select {
		case <-c.done:
		case <-timer.C:
			late = true
			s.doubtLeft(c)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// newEpoch begins a new epoch, later than a revision, unless another call does so at the same time.
// Commits of the earlier one that the service has not handled by then are refused. In any case it
// deletes the keys.
func (s *session) newEpoch(ctx context.Context, l *link, rev int64, keys ...string) error {
	drop := make([]*pb.RequestOp, len(keys))
	for i, key := range keys {
		drop[i] = remove(key)
	}
	if s.bare {
		return rpctypes.ErrGRPCNoSpace
	}
	s.mu.Lock()
	from := s.epoch
	s.mu.Unlock()
	for epoch := from; ; {
		reply, err := l.kv.Txn(ctx, &pb.TxnRequest{
			Compare: []*pb.Compare{s.inEpoch(epoch)},
			Success: append([]*pb.RequestOp{put(s.key, nil, s.id)}, drop...),
			Failure: append([]*pb.RequestOp{head(s.key)}, drop...),
		})
		if err != nil {
			return err
		}
		if reply.Succeeded {
			s.sawEpoch(epoch + 1)
			return nil
		}
		got := reply.Responses[0].GetResponseRange()
		if err := s.checkEpoch(got); err != nil {
			return err
		}
		if epoch = got.Kvs[0].Version; epoch > from && got.Kvs[0].ModRevision > rev {
			return nil
		}
	}
}

func (s *session) inEpoch(epoch int64) *pb.Compare {
	return compareVersion(s.key, pb.Compare_EQUAL, epoch)
}

func (s *session) sawEpoch(epoch int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.epoch = max(s.epoch, epoch)
}

// checkEpoch learns the epoch from the session key, and ends the session if that is missing.
func (s *session) checkEpoch(r *pb.RangeResponse) error {
	if len(r.Kvs) == 0 {
		s.end(errRevoked)
		return errRevoked
	}
	s.sawEpoch(r.Kvs[0].Version)
	return nil
}

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

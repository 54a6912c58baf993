package coord

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/hook"
	"github.com/go-coord/coord/internal/layout"
	"github.com/go-coord/coord/internal/outbox"
	"github.com/go-coord/coord/trace"
)

// tellTime is the time that Close gives the user's code: the Logger and Trace to receive
// pending lines and events, and the parents of contexts to let go of them.
const tellTime = time.Second

// Options are the options of a Client. Nil means the defaults. The struct is copied.
type Options struct {
	// Namespace is the prefix of the path of every recipe of the client, so that
	// several applications or tests share one service. It is a path, or empty. One
	// trailing slash is ignored: "/a/" is "/a", and "/" is empty.
	Namespace string

	// Logger receives log lines for operators. Error: failures that do not recover
	// without help. Warn: sessions lost, holds lost (except those that end with the
	// client), requests whose outcome was unknown for a while, clean-up that has not
	// succeeded yet. Info: sessions opened after a loss. Debug: waiters that go to the
	// tail of the queue. The backend's Logger gets broken and new connections, with the
	// server and the reason. Lines contain paths, ids and errors, and no data of nodes.
	// Nil means no logging.
	//
	// Only Close waits for the Logger, for a second at most, however slow the Logger
	// is. Lines go through a queue, in order, with the time of the event. When some
	// 16,000 lines are pending, further lines are dropped; a later line reports how
	// many. If the handler panics or ends its goroutine, the line is lost and the client
	// continues with the next line. It reports this with the type of the panic's value and
	// the stack, at most once a minute.
	Logger *slog.Logger

	// Trace is called for every event, in order, and one at a time, on a goroutine of
	// the client that does nothing else. Only Close waits for it, for a second at most. An
	// event can be delivered late: after its call has returned, and for HoldGranted even
	// after the hold has ended. When some 16,000 events are pending, further events are
	// dropped, and EventsDropped reports how many. The context is that of the call to
	// which the event belongs, so that spans nest, or a background context if there is no
	// such call; it can have ended. Trace may use the client, but must not call Close. If
	// Trace panics or ends its goroutine, the event is lost, the client continues with the
	// next event, and logs that at most once a minute. Nil costs nothing.
	Trace func(context.Context, trace.Event)

	// OpenTimeout, if it is not zero, bounds the wait of Open for the service, in addition to its
	// ctx. It bounds nothing else.
	OpenTimeout time.Duration
}

// A Client is a connection to the service, from which all recipes are made. It keeps
// one session open at a time, and opens the next one when a session is lost. It is safe
// for concurrent use.
//
// Close the client when it is no longer needed.
type Client struct {
	backend backend.Backend
	root    string                   // the namespace, "" for none
	log     *outbox.Logger           // only Close waits for it, as for trace
	trace   *outbox.Box[tracedEvent] // nil without Trace
	traced  atomic.Uint64            // the latest ID of an acquisition that was traced
	opened  atomic.Int64             // the number of sessions that were opened
	hooks   hook.Hooks               // only tests set any
	began   time.Time                // for the monotonic clock, see local
	skew    time.Duration            // added to the clocks; only tests set it

	current atomic.Pointer[session]
	state   *latest[State]
	closing chan struct{} // closed when Close begins
	stop    context.CancelFunc

	mu        sync.Mutex
	closed    bool                 // Close was called
	ending    bool                 // the client is about to end the session
	work      sync.WaitGroup       // every goroutine of the client; Add under mu while not closed, or for a clean-up
	calm      map[string]struct{}  // directories, see isCalm
	locals    map[string]any       // the callers of this client on one path, by directory; opaque here, see localQueue
	contended map[string]time.Time // until when no lock is kept, by directory, see keptLock
	seen      map[string]string    // paths of nodes, by directory, see asksKeeper
	ended     chan struct{}        // closed when Close is complete

	idleMu sync.Mutex // locked after the mutex of a queue of locals
	idle   list.List  // the kept locks that are idle, the one that is idle for the longest time first; opaque here, see keptLock

	contexts sync.WaitGroup // contexts of holds that are not removed from their parents yet

	cleanUps   int                   // number of clean-ups under way, see cleanUp
	clean      chan struct{}         // closed when cleanUps drops to zero, nil if finishCleanUps does not wait
	leftBehind map[string][]*cleanUp // noted clean-ups, by directory

	dirs map[string]dirState // knowledge about the recipes' paths, see kinds.go
}

// State is the state of the client's session.
type State struct {
	Phase   Phase
	Session int64 // the id of the present or latest session
	Err     error // why there is no session: set with PhaseLost and PhaseClosed
}

// Phase is a phase in the life of a client's session.
type Phase int8

// The phases. PhaseSuspended: there is no contact at the moment, and nothing is lost
// yet. PhaseLost: the session is over, every hold of it has ended, and the client is
// opening the next session. PhaseClosed is final.
const (
	PhaseConnected Phase = iota + 1
	PhaseSuspended
	PhaseLost
	PhaseClosed
)

// String returns the phase in lower case.
func (p Phase) String() string {
	switch p {
	case PhaseConnected:
		return "connected"
	case PhaseSuspended:
		return "suspended"
	case PhaseLost:
		return "lost"
	case PhaseClosed:
		return "closed"
	}
	return "unknown"
}

// Open connects to the service. It waits until a session is open or ctx ends. If ctx ends
// first, the error matches ErrNoContact and names each tried server with the reason. ctx
// and Options.OpenTimeout bound the opening only. Errors: ErrInvalid and ErrBadPath for bad
// options; ErrDenied, at once, if the service refuses the credentials.
func Open(ctx context.Context, b backend.Backend, o *Options) (*Client, error) {
	needContext(ctx)
	if b == nil {
		return nil, &backend.Error{Op: "open", Err: fmt.Errorf("%w: the backend is nil", ErrInvalid)}
	}
	var opts Options
	if o != nil {
		opts = *o
	}
	c := &Client{
		backend:    b,
		root:       strings.TrimSuffix(opts.Namespace, "/"),
		log:        outbox.NewLogger(opts.Logger),
		hooks:      hook.Of(ctx),
		skew:       hook.Of(ctx).Skew,
		began:      time.Now(),
		closing:    make(chan struct{}),
		calm:       make(map[string]struct{}),
		dirs:       make(map[string]dirState),
		locals:     make(map[string]any),
		ended:      make(chan struct{}),
		leftBehind: make(map[string][]*cleanUp),
	}
	if c.root != "" {
		err := checkPath(c.root)
		if err == nil && c.root == "/" {
			err = checkPath(opts.Namespace) // "//"
		}
		if err != nil {
			return nil, &backend.Error{Op: "open", Path: shortPath(opts.Namespace), Err: err}
		}
	}
	if opts.Trace != nil {
		c.trace = newTrace(opts.Trace, c.log)
		c.traced.Store(c.random("trace") >> 1)
	}
	bs, err := openWithin(ctx, b, opts.OpenTimeout)
	if err != nil {
		return nil, opError("open", "", err)
	}
	s := newSession(c, bs)
	if c.root != "" {
		if err := bs.CheckPath(c.root); err != nil {
			c.closeSession(bs)
			return nil, &backend.Error{Op: "open", Path: c.root, Err: errors.Unwrap(err)}
		}
	}
	c.beginSession(s)
	c.state = newLatest(State{Phase: PhaseConnected, Session: bs.ID()})
	if c.hooks.Opened != nil {
		c.hooks.Opened(func() []hook.Hold { return c.current.Load().standing() })
	}
	emit(ctx, c, trace.StateChanged{Phase: PhaseConnected.String(), Session: bs.ID()})
	life, stop := context.WithCancel(context.WithoutCancel(ctx))
	c.stop = stop
	c.goWork(func() { c.keepSession(life, s) })
	return c, nil
}

// openWithin opens a session within a limit, zero for none.
func openWithin(ctx context.Context, b backend.Backend, limit time.Duration) (backend.Session, error) {
	switch {
	case limit < 0:
		return nil, fmt.Errorf("%w: OpenTimeout %v is negative", ErrInvalid, limit)
	case limit > 0:
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, limit, fmt.Errorf("OpenTimeout %v has passed", limit))
		defer cancel()
	}
	return b.Open(ctx)
}

// Close ends the client. Running and new calls fail with ErrClosed, every hold
// of the client ends, and Close ends the session on the service, if it can reach the
// service; this frees at once everything that the session holds. Before that, Close
// waits for the background clean-up of earlier calls, for two seconds at most and only
// while there is contact; holds last until then. Close returns when every goroutine of
// the client has ended: on ZooKeeper within eight seconds in all, whatever the servers
// do, and at once if they answer. It may be called while a function of the user's runs
// under a hold, and from that function, and does not wait for it. (It does wait for a
// Codec.) Close gives the Logger and Trace together one second to receive pending lines
// and events. If one of them blocks for longer, the rest is dropped, and the blocked
// goroutine ends when the call returns. The same second bounds the calls of the methods of
// a parent of Hold.Context. A second Close waits for the first.
func (c *Client) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		<-c.ended
		return nil
	}
	c.closed = true
	close(c.closing)
	c.mu.Unlock()
	c.finishCleanUps()
	c.stop()
	c.work.Wait()
	c.drain()
	close(c.ended)
	return nil
}

// drain delivers pending lines and events to the Logger and Trace, and waits for the
// goroutines that remove contexts from their parents. All holds have ended.
func (c *Client) drain() {
	start := time.Now()
	left := make(chan struct{})
	go func() {
		c.contexts.Wait()
		close(left)
	}()
	c.log.Drain(tellTime)
	if c.trace != nil {
		c.trace.Drain(tellTime - time.Since(start))
		c.log.Drain(tellTime - time.Since(start)) // lines about Trace
	}
	timer := time.NewTimer(tellTime - time.Since(start))
	defer timer.Stop()
	select {
	case <-left:
	case <-timer.C:
	}
}

// WatchState returns a channel with the present state and then every change. It is
// latest-wins: a slow reader misses intermediate states, never the newest. The channel
// is closed when ctx ends, and after the state PhaseClosed.
func (c *Client) WatchState(ctx context.Context) <-chan State {
	needContext(ctx)
	ch := make(chan State, 1)
	if !c.goWork(func() { c.state.follow(ctx, ch) }) {
		s, _, _ := c.state.get()
		ch <- State{Phase: PhaseClosed, Session: s.Session, Err: ErrClosed}
		close(ch)
	}
	return ch
}

// States is WatchState as a loop: it yields the states of WatchState until ctx ends, the
// client is closed, or the body breaks off. The end of the loop ends the watch, and waits for
// that. A slow body misses intermediate states, never the newest.
func (c *Client) States(ctx context.Context) iter.Seq[State] { return each(ctx, c.WatchState) }

// Session returns the present session, waiting for one until ctx ends. It gives access
// to plain nodes, beside the recipes. Its paths are absolute, outside of the client's
// namespace. The session belongs to the client; do not close it.
func (c *Client) Session(ctx context.Context) (backend.Session, error) {
	s, err := c.session(ctx)
	if err != nil {
		return nil, opError("session", "", err)
	}
	return s.b, nil
}

// session returns a live session, waiting for one until ctx ends. After Close was
// called, only clean-ups get one.
func (c *Client) session(ctx context.Context) (*session, error) {
	needContext(ctx)
	if c.isClosing() && !isCleanUp(ctx) {
		return nil, ErrClosed
	}
	for {
		if s := c.current.Load(); s.b.Err() == nil {
			return s, nil
		}
		// Fetch the channel before checking again, or a change could be missed.
		st, changed, _ := c.state.get()
		if st.Phase == PhaseClosed {
			return nil, ErrClosed
		}
		if s := c.current.Load(); s.b.Err() == nil {
			return s, nil
		}
		closing := c.closing
		if isCleanUp(ctx) {
			closing = nil // PhaseClosed ends the wait
		}
		select {
		case <-changed:
		case <-closing:
			return nil, ErrClosed
		case <-ctx.Done():
			return nil, c.contextError(ctx)
		}
	}
}

// goWork runs f in a goroutine that Close joins. If the client is closed, it does
// nothing and reports false.
func (c *Client) goWork(f func()) bool {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return false
	}
	c.work.Add(1)
	c.mu.Unlock()
	go func() {
		defer c.work.Done()
		f()
	}()
	return true
}

// keepSession follows the session, and opens the next one after a loss, until
// ctx ends.
func (c *Client) keepSession(ctx context.Context, s *session) {
	pause := pauses{c: c}
	for {
		opened := time.Now()
		s.follow(ctx)
		if ctx.Err() != nil {
			s.end(ErrClosed)
			c.publish(State{Phase: PhaseClosed, Session: s.b.ID(), Err: ErrClosed}, true)
			c.closeSession(s.b)
			return
		}
		err := s.b.Err()
		s.end(err)
		c.publish(State{Phase: PhaseLost, Session: s.b.ID(), Err: err}, false)
		c.log.Warn("coord: session lost, opening a new one", "session", sessionID(s.b.ID()), "error", err)
		// Joining the goroutines of the lost session can take a moment. The next
		// session need not wait for that.
		old := s.b
		if !c.goWork(func() { c.closeSession(old) }) {
			c.closeSession(old)
		}
		// Without a pause, sessions that are lost as soon as they are open would follow
		// each other endlessly, and each can occupy the service for its full timeout.
		if time.Since(opened) > mostPause {
			pause.reset()
		}
		pause.wait(ctx.Done(), nil)
		bs, err := c.reopen(ctx)
		if err != nil {
			c.publish(State{Phase: PhaseClosed, Session: s.b.ID(), Err: ErrClosed}, true)
			return
		}
		s = newSession(c, bs)
		c.beginSession(s)
		c.log.Info("coord: session opened", "session", sessionID(bs.ID()))
		c.publish(State{Phase: PhaseConnected, Session: bs.ID()}, false)
	}
}

func (c *Client) closeSession(b backend.Session) {
	if err := b.Close(); err != nil {
		c.log.Error("coord: cannot close a session, the service keeps it until its timeout", "session", sessionID(b.ID()), "error", err)
	}
}

// reopen opens the next session. Backend.Open waits for a server by itself. If it
// returns an error earlier, an operator may remove the cause, so reopen tries again,
// with a growing pause. The error is that of ctx.
func (c *Client) reopen(ctx context.Context) (backend.Session, error) {
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, 10*time.Second) {
		bs, err := c.backend.Open(ctx)
		if err == nil {
			return bs, nil
		}
		if ctx.Err() != nil {
			return nil, err
		}
		st, _, _ := c.state.get()
		c.publish(State{Phase: PhaseLost, Session: st.Session, Err: err}, false)
		c.log.Error("coord: cannot open a session, retrying", "error", err)
		if err := sleep(ctx, pause/2+time.Duration(c.random("open")%uint64(pause))); err != nil {
			return nil, err
		}
	}
}

// random returns a random number. Tests that repeat a run exactly replace it by numbers
// of their own, selected by what.
func (c *Client) random(what string) uint64 {
	if c.hooks.Draw != nil {
		return c.hooks.Draw(what)
	}
	return rand.Uint64()
}

func (c *Client) publish(st State, final bool) {
	c.state.set(st, final)
	emit(context.Background(), c, trace.StateChanged{
		Phase: st.Phase.String(), Session: st.Session, Err: st.Err, Again: st.Phase == PhaseConnected,
	})
}

// recipePath is the path of a recipe with the namespace before it, or the reason why it
// is invalid. Constructors make it, and the first call reports the error.
type recipePath struct {
	given string
	full  string
	err   error
}

func (c *Client) recipePath(path string) recipePath {
	p := c.treePath(path)
	if p.err == nil && path == "/" {
		p.err = fmt.Errorf("%w: a recipe cannot use the root, give a path below it", ErrBadPath)
	}
	return p
}

// treePath is recipePath for calls that need no node of their own. They may use the
// root, which with a namespace is the namespace's node.
func (c *Client) treePath(path string) recipePath {
	c.need()
	p := recipePath{given: path, full: c.root + path}
	if path == "/" && c.root != "" {
		p.full = c.root
	}
	if err := checkPath(path); err != nil {
		p.err = err
	} else if path == ownDir || strings.HasPrefix(path, ownDir+"/") {
		p.err = fmt.Errorf("%w: %s is reserved for the library", ErrBadPath, ownDir)
	} else if layout.HasPin(path) {
		p.err = fmt.Errorf("%w: %s is reserved for the library", ErrBadPath, layout.Pin)
	} else if err := checkPath(p.full); err != nil {
		p.err = err
	} else {
		p.err = errors.Unwrap(c.rules().CheckPath(p.full))
	}
	if p.err != nil {
		p.given, p.full = shortPath(p.given), shortPath(p.full) // used in errors only
	}
	return p
}

// need panics for a nil Client, where a recipe is made of it.
func (c *Client) need() {
	if c == nil {
		panic("coord: nil Client")
	}
}

// rules returns the present or latest session, for what is the same for all sessions of the
// backend: the rules of paths, and the limits.
func (c *Client) rules() backend.Session { return c.current.Load().b }

// maxPath is the greatest length of a path in bytes, the namespace included. Every error
// of a recipe carries its path.
const maxPath = 4096

// checkPath returns the reason why a path is invalid on every service, or nil.
func checkPath(path string) error {
	if len(path) > maxPath {
		return fmt.Errorf("%w: the path has %d bytes, limit %d", ErrBadPath, len(path), maxPath)
	}
	return errors.Unwrap(backend.CheckPath(path))
}

// shortPath truncates a path that exceeds maxPath.
func shortPath(path string) string {
	if len(path) <= maxPath {
		return path
	}
	return strings.ToValidUTF8(path[:maxPath], "") + "…"
}

// check returns the error that op reports for a bad path.
func (p *recipePath) check(op string) error {
	if p.err == nil {
		return nil
	}
	return &backend.Error{Op: op, Path: p.given, Err: p.err}
}

// FullPath returns the path of a recipe with the client's namespace before it: the
// absolute path, as in errors and events, and for the calls of a Session. ErrBadPath: no
// recipe can have the path.
func (c *Client) FullPath(path string) (string, error) {
	p := c.recipePath(path)
	if err := p.check("path"); err != nil {
		return "", err
	}
	return p.full, nil
}

// sessionID formats an id as ZooKeeper's own tools do.
func sessionID(id int64) string { return fmt.Sprintf("0x%x", uint64(id)) }

// sleep waits for d or the end of ctx.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return backend.ContextError(ctx)
	}
}

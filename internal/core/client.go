package core

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/backoff"
	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/hook"
	"github.com/go-coord/coord/internal/kinds"
	"github.com/go-coord/coord/internal/latest"
	"github.com/go-coord/coord/internal/layout"
	"github.com/go-coord/coord/internal/nodepath"
	"github.com/go-coord/coord/internal/outbox"
	"github.com/go-coord/coord/internal/tracing"
	"github.com/go-coord/coord/trace"
)

// tellTime bounds how long Close waits for the user's code: for the Logger and Trace, which receive
// pending lines and events, and for the parents of the contexts of holds, which remove these contexts.
const tellTime = time.Second

// Config is coord.Options.
type Config struct {
	Namespace   string
	Logger      *slog.Logger
	Trace       func(context.Context, trace.Event)
	OpenTimeout time.Duration
}

// A Client is coord.Client.
type Client struct {
	backend      backend.Backend
	root         string          // the namespace, "" for none
	log          *outbox.Logger  // only Close waits for it, as for trace
	trace        *tracing.Tracer // nil without Trace
	opened       atomic.Int64    // the number of sessions that were opened
	hooks        hook.Hooks      // only tests set them
	newKindError func(path, want, found string) error
	began        time.Time     // for the monotonic clock, see Elapsed
	skew         time.Duration // added to the clocks; only tests set it

	current atomic.Pointer[Session]
	state   *latest.Value[state]
	closing chan struct{} // closed when Close begins
	stop    context.CancelFunc

	mu     sync.Mutex
	closed bool           // Close was called
	ending bool           // the client is about to end the session
	work   sync.WaitGroup // every goroutine of the client; Add under mu while not closed, or for a clean-up
	ended  chan struct{}  // closed when Close is complete

	own sync.Map // the values that engines keep for this client, see Kept

	contexts sync.WaitGroup // contexts of holds that are not removed from their parents yet

	cleanUps   int                   // number of clean-ups under way, see CleanUp
	clean      chan struct{}         // closed when cleanUps drops to zero; nil unless finishCleanUps waits
	leftBehind map[string][]*CleanUp // the clean-ups that were noted, by directory

	kinds kinds.Table // knowledge about the recipes' paths
}

// state is coord.State.
type state struct {
	phase   Phase
	session int64 // the id of the present or latest session
	err     error // why there is no session: set with PhaseLost and PhaseClosed
}

// Phase is coord.Phase.
type Phase int8

// The values are those of coord.Phase.
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

// Open is coord.Open. newKindError makes the error for a path that another kind of recipe uses; it
// matches ErrKind.
func Open(ctx context.Context, b backend.Backend, opts Config, newKindError func(path, want, found string) error) (*Client, error) {
	NeedContext(ctx)
	if b == nil {
		return nil, &backend.Error{Op: "open", Err: fmt.Errorf("%w: the backend is nil", backend.ErrInvalid)}
	}
	c := &Client{
		backend:      b,
		root:         strings.TrimSuffix(opts.Namespace, "/"),
		log:          outbox.NewLogger(opts.Logger),
		hooks:        hook.Of(ctx),
		newKindError: newKindError,
		skew:         hook.Of(ctx).Skew,
		began:        time.Now(),
		closing:      make(chan struct{}),
		ended:        make(chan struct{}),
		leftBehind:   make(map[string][]*CleanUp),
	}
	if c.root != "" {
		err := nodepath.Check(c.root)
		if err == nil && c.root == "/" {
			err = nodepath.Check(opts.Namespace) // "//"
		}
		if err != nil {
			return nil, &backend.Error{Op: "open", Path: nodepath.Short(opts.Namespace), Err: err}
		}
	}
	if opts.Trace != nil {
		c.trace = tracing.NewTracer(opts.Trace, c.log, c.Random("trace")>>1)
	}
	bs, err := openWithin(ctx, b, opts.OpenTimeout)
	if err != nil {
		return nil, errs.Op("open", "", err)
	}
	s := newSession(c, bs)
	if c.root != "" {
		if err := bs.CheckPath(c.root); err != nil {
			c.closeSession(bs)
			return nil, &backend.Error{Op: "open", Path: c.root, Err: errors.Unwrap(err)}
		}
	}
	c.beginSession(s)
	c.state = latest.NewValue(state{phase: PhaseConnected, session: bs.ID()})
	if c.hooks.Opened != nil {
		c.hooks.Opened(func() []hook.Hold { return c.current.Load().standing() })
	}
	Emit(ctx, c, trace.StateChanged{Phase: PhaseConnected.String(), Session: bs.ID()})
	life, stop := context.WithCancel(context.WithoutCancel(ctx))
	c.stop = stop
	c.GoWork(func() { c.keepSession(life, s) })
	return c, nil
}

// openWithin opens a session within a limit, zero for none.
func openWithin(ctx context.Context, b backend.Backend, limit time.Duration) (backend.Session, error) {
	switch {
	case limit < 0:
		return nil, fmt.Errorf("%w: OpenTimeout %v is negative", backend.ErrInvalid, limit)
	case limit > 0:
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, limit, fmt.Errorf("OpenTimeout %v has passed", limit))
		defer cancel()
	}
	return b.Open(ctx)
}

// Close is Client.Close of package coord.
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

// WatchState returns a channel with the present state and then every change, see Client.WatchState
// in package coord. as converts a state to an element of the channel.
func WatchState[T any](ctx context.Context, c *Client, as func(p Phase, session int64, err error) T) <-chan T {
	NeedContext(ctx)
	ch := make(chan T, 1)
	if !c.GoWork(func() { latest.Follow(ctx, c.state, ch, func(s state) T { return as(s.phase, s.session, s.err) }) }) {
		s, _, _ := c.state.Get()
		ch <- as(PhaseClosed, s.session, backend.ErrClosed)
		close(ch)
	}
	return ch
}

// Session is Client.Session of package coord.
func (c *Client) Session(ctx context.Context) (backend.Session, error) {
	s, err := c.Live(ctx)
	if err != nil {
		return nil, errs.Op("session", "", err)
	}
	return s.b, nil
}

// Live returns a live session, waiting for one until ctx ends. After Close was
// called, only clean-ups get one.
func (c *Client) Live(ctx context.Context) (*Session, error) {
	NeedContext(ctx)
	if c.IsClosing() && !isCleanUp(ctx) {
		return nil, backend.ErrClosed
	}
	for {
		if s := c.current.Load(); s.b.Err() == nil {
			return s, nil
		}
		// Fetch the channel before checking again, or a change could be missed.
		st, changed, _ := c.state.Get()
		if st.phase == PhaseClosed {
			return nil, backend.ErrClosed
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
			return nil, backend.ErrClosed
		case <-ctx.Done():
			return nil, c.ContextError(ctx)
		}
	}
}

// GoWork runs f in a goroutine that Close joins. If the client is closed, it does
// nothing and reports false.
func (c *Client) GoWork(f func()) bool {
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
func (c *Client) keepSession(ctx context.Context, s *Session) {
	pause := NewPauses(c)
	for {
		opened := time.Now()
		s.follow(ctx)
		if ctx.Err() != nil {
			s.end(backend.ErrClosed)
			c.publish(state{phase: PhaseClosed, session: s.b.ID(), err: backend.ErrClosed}, true)
			c.closeSession(s.b)
			return
		}
		err := s.b.Err()
		s.end(err)
		c.publish(state{phase: PhaseLost, session: s.b.ID(), err: err}, false)
		c.log.Warn("coord: session lost, opening a new one", "session", layout.SessionText(s.b.ID()), "error", err)
		// Joining the goroutines of the lost session can take a moment. The next
		// session need not wait for that.
		old := s.b
		if !c.GoWork(func() { c.closeSession(old) }) {
			c.closeSession(old)
		}
		// Without a pause, sessions that are lost as soon as they are open would follow
		// each other endlessly, and each can occupy the service for its full timeout.
		if time.Since(opened) > backoff.Most {
			pause.Reset()
		}
		pause.Wait(ctx.Done(), nil)
		bs, err := c.reopen(ctx)
		if err != nil {
			c.publish(state{phase: PhaseClosed, session: s.b.ID(), err: backend.ErrClosed}, true)
			return
		}
		s = newSession(c, bs)
		c.beginSession(s)
		c.log.Info("coord: session opened", "session", layout.SessionText(bs.ID()))
		c.publish(state{phase: PhaseConnected, session: bs.ID()}, false)
	}
}

func (c *Client) closeSession(b backend.Session) {
	if err := b.Close(); err != nil {
		c.log.Error("coord: cannot close a session, the service keeps it until its timeout", "session", layout.SessionText(b.ID()), "error", err)
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
		st, _, _ := c.state.Get()
		c.publish(state{phase: PhaseLost, session: st.session, err: err}, false)
		c.log.Error("coord: cannot open a session, retrying", "error", err)
		if err := backoff.Sleep(ctx, pause/2+time.Duration(c.Random("open")%uint64(pause))); err != nil {
			return nil, err
		}
	}
}

// Kept returns the value of type T that an engine keeps for the client. There is one value of each type, and
// it is zero at first.
func Kept[T any](c *Client) *T {
	v, ok := c.own.Load((*T)(nil))
	if !ok {
		v, _ = c.own.LoadOrStore((*T)(nil), new(T))
	}
	return v.(*T)
}

// Random returns a random number. what names its purpose: tests that repeat a run exactly choose the
// number by it.
func (c *Client) Random(what string) uint64 {
	if c.hooks.Draw != nil {
		return c.hooks.Draw(what)
	}
	return rand.Uint64()
}

func (c *Client) publish(st state, final bool) {
	c.state.Set(st, final)
	Emit(context.Background(), c, trace.StateChanged{
		Phase: st.phase.String(), Session: st.session, Err: st.err, Again: st.phase == PhaseConnected,
	})
}

// Path returns the path of a recipe with the namespace before it, or the reason why it is
// invalid.
func (c *Client) Path(path string) nodepath.Path {
	p := c.TreePath(path)
	if path == "/" {
		p.Refuse(fmt.Errorf("%w: a recipe cannot use the root, give a path below it", backend.ErrBadPath))
	}
	return p
}

// TreePath is Path for calls that need no node of their own. Such a call may use the
// root; with a namespace, the root is the node of the namespace.
func (c *Client) TreePath(path string) nodepath.Path {
	c.Need()
	full := c.root + path
	if path == "/" && c.root != "" {
		full = c.root
	}
	err := nodepath.Check(path)
	switch {
	case err != nil:
	case path == ownDir || strings.HasPrefix(path, ownDir+"/"):
		err = fmt.Errorf("%w: %s is reserved for the library", backend.ErrBadPath, ownDir)
	case layout.HasPin(path):
		err = fmt.Errorf("%w: %s is reserved for the library", backend.ErrBadPath, layout.Pin)
	default:
		if err = nodepath.Check(full); err == nil {
			err = errors.Unwrap(c.Rules().CheckPath(full))
		}
	}
	return nodepath.New(path, full, err)
}

// Need panics if c is nil: a later use, on another goroutine, would not show the constructor that got it.
func (c *Client) Need() {
	if c == nil {
		panic("coord: nil Client")
	}
}

// Emit queues an event for the client's Trace. It never blocks, and may be called
// anywhere.
func Emit[E trace.Event](ctx context.Context, c *Client, e E) { tracing.Emit(ctx, c.trace, e) }

// NewSpan begins the span of an acquisition. It is nil without Trace.
func (c *Client) NewSpan(recipe, path, op string) *tracing.Span {
	return c.trace.Begin(recipe, path, op)
}

// IsTraced reports whether the client has a Trace.
func (c *Client) IsTraced() bool { return c.trace != nil }

// Present returns the present or latest session.
func (c *Client) Present() *Session { return c.current.Load() }

// Rules returns the present or latest session, for the properties that all sessions of the backend
// share: the rules of paths, and the limits.
func (c *Client) Rules() backend.Session { return c.current.Load().b }

// FullPath is Client.FullPath of package coord.
func (c *Client) FullPath(path string) (string, error) {
	p := c.Path(path)
	if err := p.Check("path"); err != nil {
		return "", err
	}
	return p.Full(), nil
}

// Hooks returns the hooks that a test has set.
func (c *Client) Hooks() hook.Hooks { return c.hooks }

// Root returns the namespace, "" for none.
func (c *Client) Root() string { return c.root }

// Closing returns a channel that is closed when Close begins.
func (c *Client) Closing() <-chan struct{} { return c.closing }

// Log returns the log, which never blocks.
func (c *Client) Log() *outbox.Logger { return c.log }

package coord

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
	"github.com/go-coord/coord/internal/outbox"
	"github.com/go-coord/coord/trace"
)

// tellTime is how long Close waits for the user's Logger, and for Trace, to take
// what was told before.
const tellTime = time.Second

// Options of a Client. Nil options mean the defaults. The struct is copied.
type Options struct {
	// Namespace is put before the path of every recipe of the client, so that
	// several applications or tests share one service. It is a path, or empty. One
	// slash at its end does not count: "/a/" is "/a", and "/" is empty.
	Namespace string

	// Logger gets what an operator should know. Error: what does not go on by
	// itself. Warn: sessions lost, holds lost (not those that end with the client),
	// requests whose outcome was unknown for a while, clean-up that does not
	// succeed yet. Info: sessions opened after a loss. Debug: waiters that go to the
	// tail of the line. Connections that break and are made again are told by the
	// backend's Logger, which knows the server and the reason. It is told paths,
	// ids and errors, and no data of nodes. Nil means silence.
	//
	// Nothing waits for the Logger, however slow it is, but Close, for a second at
	// most. Lines go through a queue, in order, with the time of the event. When
	// some 16,000 wait, the lines that follow are dropped; a later line tells how
	// many. A goroutine of the client writes them: a panic of the handler ends the
	// program.
	Logger *slog.Logger

	// Trace is called for every event, in order, and one at a time, on a goroutine
	// of the client that does nothing else. Nothing waits for it but Close, for a
	// second at most: a call can have returned before its events are told, and a
	// hold can be over when its HoldGranted is. When some 16,000 events wait, those that
	// follow are dropped, and EventsDropped tells how many. The context is that of the
	// call which the event is a part of, so that spans nest, or a background context
	// if there is none; it can have ended. Trace may use the client, but not call
	// Close. A panic is not recovered: it ends the program. Nil costs nothing.
	Trace func(context.Context, trace.Event)
}

// A Client is what all recipes are made with. It keeps one session open at a
// time, and opens the next one when a session is lost. It is safe for
// concurrent use.
//
// Close the client when it is not needed any more.
type Client struct {
	backend backend.Backend
	root    string                   // the namespace, "" for none
	log     *outbox.Logger           // nothing waits for it, as for trace
	trace   *outbox.Box[tale]        // nil without Trace
	traced  atomic.Uint64            // the latest ID of an acquisition that was traced
	draw    func(what string) uint64 // nil except in tests, see random

	current atomic.Pointer[session]
	state   *latest[State]
	closing chan struct{} // closed when Close begins
	stop    context.CancelFunc

	mu     sync.Mutex
	closed bool                // Close was called
	ending bool                // it is about to end the session
	work   sync.WaitGroup      // every goroutine of the client; Add under mu while not closed, or for a clean-up
	calm   map[string]struct{} // directories, see isCalm
	locals map[string]any      // of this client's callers on one path, by directory; opaque here, see localQueue
	ended  chan struct{}       // closed when Close is complete

	cleanUps int                   // how many are under way, see cleanUp
	clean    chan struct{}         // closed when none is, nil if nobody waits for that
	ghosts   map[string][]*cleanUp // those noted, by directory

	grounds map[string]footing // what is known of the recipes' paths, see kinds.go
}

// State says how the client's session stands.
type State struct {
	Phase   Phase
	Session int64 // the id of the present or latest session
	Err     error // why there is no session: set with PhaseLost and PhaseClosed
}

// Phase is where a client's session is in its life.
type Phase int8

// The phases. PhaseSuspended: no contact at the moment, nothing is lost yet. PhaseLost:
// the session is over, every hold of it has ended, and the next session is being
// opened. PhaseClosed is final.
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

// Open connects to the service. It waits until a session is there or ctx ends;
// the error then says what was tried. ctx bounds the opening only. Bad options
// are ErrInvalid or ErrBadPath; credentials that the service refuses are
// ErrDenied, at once.
func Open(ctx context.Context, b backend.Backend, o *Options) (*Client, error) {
	return open(ctx, b, o, nil)
}

func open(ctx context.Context, b backend.Backend, o *Options, draw func(what string) uint64) (*Client, error) {
	if b == nil {
		return nil, &backend.Error{Op: "open", Err: fmt.Errorf("%w: nil backend", ErrInvalid)}
	}
	var opts Options
	if o != nil {
		opts = *o
	}
	c := &Client{
		backend: b,
		root:    strings.TrimSuffix(opts.Namespace, "/"),
		log:     outbox.NewLogger(opts.Logger),
		draw:    draw,
		closing: make(chan struct{}),
		calm:    make(map[string]struct{}),
		grounds: make(map[string]footing),
		locals:  make(map[string]any),
		ended:   make(chan struct{}),
		ghosts:  make(map[string][]*cleanUp),
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
		c.trace = newTrace(opts.Trace)
		c.traced.Store(c.random("trace") >> 1)
	}
	bs, err := b.Open(ctx)
	if err != nil {
		return nil, opError("open", "", err)
	}
	s := newSession(c, bs)
	c.current.Store(s)
	c.state = newLatest(State{Phase: PhaseConnected, Session: bs.ID()})
	tell(ctx, c, trace.StateChanged{Phase: PhaseConnected.String(), Session: bs.ID()})
	life, stop := context.WithCancel(context.WithoutCancel(ctx))
	c.stop = stop
	c.goWork(func() { c.keepSession(life, s) })
	return c, nil
}

// Close ends the client: calls under way and new ones fail with ErrClosed, every
// hold ends with it, and the session is ended on the service, which frees what
// it holds at once, if the service can be reached. Before that it waits for what
// earlier calls have left to be cleared away in the background, for two seconds at
// most and only while there is contact; holds stand until then. Close returns when
// every goroutine of the client has ended: on ZooKeeper within eight seconds in all,
// whatever the servers do, and at once where they answer. It may be called while
// a function of the user's runs under a hold, and from it, and does not wait for
// it. (It does wait for a Codec.) For the Logger and Trace to take what was told
// before, it waits for a second together; where one of them blocks for longer, what
// it has not taken is dropped, and the goroutine that it blocks ends when it
// returns. A second Close waits for the first.
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

// drain has the Logger and Trace take what was told.
func (c *Client) drain() {
	start := time.Now()
	c.log.Drain(tellTime)
	if c.trace != nil {
		c.trace.Drain(tellTime - time.Since(start))
	}
}

// WatchState returns a channel with the present state and then every change. It is
// latest-wins: a slow reader misses what lies between, never the newest. It is
// closed when ctx ends, and after the state PhaseClosed.
func (c *Client) WatchState(ctx context.Context) <-chan State {
	ch := make(chan State, 1)
	if !c.goWork(func() { c.state.follow(ctx, ch) }) {
		s, _, _ := c.state.get()
		ch <- State{Phase: PhaseClosed, Session: s.Session, Err: ErrClosed}
		close(ch)
	}
	return ch
}

// Session returns the present session, waiting for one until ctx ends: the way
// out of the recipes to the plain nodes. Its paths are absolute, outside of the
// client's namespace. The session belongs to the client; do not close it.
func (c *Client) Session(ctx context.Context) (backend.Session, error) {
	s, err := c.session(ctx)
	if err != nil {
		return nil, opError("session", "", err)
	}
	return s.b, nil
}

// session waits for a session that lives. Once Close was called only clean-ups get one.
func (c *Client) session(ctx context.Context) (*session, error) {
	if c.isClosing() && !isCleanUp(ctx) {
		return nil, ErrClosed
	}
	for {
		if s := c.current.Load(); s.b.Err() == nil {
			return s, nil
		}
		// Fetch the channel before looking again, or the change could slip by.
		st, changed, _ := c.state.get()
		if st.Phase == PhaseClosed {
			return nil, ErrClosed
		}
		if s := c.current.Load(); s.b.Err() == nil {
			return s, nil
		}
		closing := c.closing
		if isCleanUp(ctx) {
			closing = nil // the phase PhaseClosed ends it
		}
		select {
		case <-changed:
		case <-closing:
			return nil, ErrClosed
		case <-ctx.Done():
			return nil, backend.ContextError(ctx)
		}
	}
}

// goWork runs f in a goroutine that Close joins. It reports false, and does
// nothing, when the client is closed.
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
		c.log.Warn("coord: session lost", "session", sessionID(s.b.ID()), "error", err)
		// Joining what the dead session leaves behind can take a moment; the
		// next one need not wait for that.
		old := s.b
		if !c.goWork(func() { c.closeSession(old) }) {
			c.closeSession(old)
		}
		// Sessions that die as soon as they are open would follow each other
		// without end, and each can stand on the service for its full timeout.
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
		c.current.Store(s)
		c.log.Info("coord: session opened", "session", sessionID(bs.ID()))
		c.publish(State{Phase: PhaseConnected, Session: bs.ID()}, false)
	}
}

func (c *Client) closeSession(b backend.Session) {
	if err := b.Close(); err != nil {
		c.log.Error("coord: a session did not close in order", "session", sessionID(b.ID()), "error", err)
	}
}

// reopen opens the next session. Backend.Open waits for a server by itself; what
// makes it return an error earlier may be mended by an operator, so it is tried
// again, with a growing pause. The error is that of ctx.
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
		c.log.Error("coord: cannot open a session", "error", err)
		if err := sleep(ctx, pause/2+time.Duration(c.random("open")%uint64(pause))); err != nil {
			return nil, err
		}
	}
}

// random returns a random number. Tests that repeat a run exactly put numbers of
// their own in place, which what tells apart.
func (c *Client) random(what string) uint64 {
	if c.draw != nil {
		return c.draw(what)
	}
	return rand.Uint64()
}

func (c *Client) publish(st State, final bool) {
	c.state.set(st, final)
	tell(context.Background(), c, trace.StateChanged{Phase: st.Phase.String(), Session: st.Session, Err: st.Err})
}

// recipePath is where a recipe stands: its path with the namespace before it, or why
// that is none. Constructors make it, and the first call reports the error.
type recipePath struct {
	given string
	full  string
	err   error
}

func (c *Client) recipePath(path string) recipePath {
	p := c.treePath(path)
	if p.err == nil && path == "/" {
		p.err = fmt.Errorf("%w: the root is no place for a recipe", ErrBadPath)
	}
	return p
}

// treePath is recipePath for what needs no node of its own: the root will do, which with
// a namespace is that.
func (c *Client) treePath(path string) recipePath {
	p := recipePath{given: path, full: c.root + path}
	if path == "/" && c.root != "" {
		p.full = c.root
	}
	if err := checkPath(path); err != nil {
		p.err = err
	} else if path == ownDir || strings.HasPrefix(path, ownDir+"/") {
		p.err = fmt.Errorf("%w: %s belongs to the library", ErrBadPath, ownDir)
	} else if err := checkPath(p.full); err != nil {
		p.err = err
	}
	if p.err != nil {
		p.given, p.full = shortPath(p.given), shortPath(p.full) // for errors alone
	}
	return p
}

// maxPath is the greatest length of a path in bytes, the namespace included. Every error
// of a recipe carries its path.
const maxPath = 4096

// checkPath returns what is wrong with a path.
func checkPath(path string) error {
	if len(path) > maxPath {
		return fmt.Errorf("%w: %d bytes, limit %d", ErrBadPath, len(path), maxPath)
	}
	return errors.Unwrap(backend.CheckPath(path))
}

// shortPath cuts a path that is too long to be one.
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

// sessionID writes an id as ZooKeeper's own tools do.
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

package coord

import (
	"context"
	"iter"
	"log/slog"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/trace"
)

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
type Client struct{ c *core.Client }

// core returns the client of the engines, nil for a nil Client.
func (c *Client) core() *core.Client {
	if c == nil {
		return nil
	}
	return c.c
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
func (p Phase) String() string { return core.Phase(p).String() }

// Open connects to the service. It waits until a session is open or ctx ends. If ctx ends
// first, the error matches ErrNoContact and names each tried server with the reason. ctx
// and Options.OpenTimeout bound the opening only. Errors, at once: ErrInvalid and ErrBadPath
// for bad options; ErrDenied if the service refuses the credentials. On PostgreSQL, also
// ErrInvalid for a database or schema that a session cannot use, and ErrDenied if the role
// lacks rights in the schema.
func Open(ctx context.Context, b backend.Backend, o *Options) (*Client, error) {
	var opts Options
	if o != nil {
		opts = *o
	}
	c, err := core.Open(ctx, b, core.Config(opts), newKindError)
	if err != nil {
		return nil, err
	}
	return &Client{c}, nil
}

// Close ends the client. Running and new calls fail with ErrClosed, every hold
// of the client ends, and Close ends the session on the service, if it can reach the
// service; this frees at once everything that the session holds. Before that, Close
// waits for the background clean-up of earlier calls, for two seconds at most and only
// while there is contact; holds last until then. Close returns when every goroutine of
// the client has ended: on ZooKeeper and PostgreSQL within eight seconds in all, whatever
// the servers do, and at once if they answer. It may be called while a function of the user's runs
// under a hold, and from that function, and does not wait for it. (It does wait for a
// Codec.) Close gives the Logger and Trace together one second to receive pending lines
// and events. If one of them blocks for longer, the rest is dropped, and the blocked
// goroutine ends when the call returns. The same second bounds the calls of the methods of
// a parent of Hold.Context. A second Close waits for the first.
func (c *Client) Close() error { return c.c.Close() }

// WatchState returns a channel with the present state and then every change. It is
// latest-wins: a slow reader misses intermediate states, never the newest. The channel
// is closed when ctx ends, and after the state PhaseClosed.
func (c *Client) WatchState(ctx context.Context) <-chan State {
	return core.WatchState(ctx, c.c, func(p core.Phase, session int64, err error) State { return State{Phase(p), session, err} })
}

// States is WatchState as a loop: it yields the states of WatchState until ctx ends, the
// client is closed, or the body breaks off. The end of the loop ends the watch, and waits for
// that. A slow body misses intermediate states, never the newest.
func (c *Client) States(ctx context.Context) iter.Seq[State] { return each(ctx, c.WatchState) }

// Session returns the present session, waiting for one until ctx ends. It gives access
// to plain nodes, beside the recipes. Its paths are absolute, outside of the client's
// namespace. The session belongs to the client; do not close it.
func (c *Client) Session(ctx context.Context) (backend.Session, error) { return c.c.Session(ctx) }

// FullPath returns the path of a recipe with the client's namespace before it: the
// absolute path, as in errors and events, and for the calls of a Session. ErrBadPath: no
// recipe can have the path.
func (c *Client) FullPath(path string) (string, error) { return c.c.FullPath(path) }

// faces returns the public forms of the values of an engine, nil for nil.
func faces[E, F any](list []E, face func(E) F) []F {
	if list == nil {
		return nil
	}
	out := make([]F, len(list))
	for i, e := range list {
		out[i] = face(e)
	}
	return out
}

// each returns an iterator over the elements of a watch. The end of the loop ends the watch,
// and waits for that.
func each[T any](ctx context.Context, watch func(context.Context) <-chan T) iter.Seq[T] {
	core.NeedContext(ctx)
	return func(yield func(T) bool) {
		ctx, cancel := context.WithCancel(ctx)
		ch := watch(ctx)
		defer func() {
			cancel()
			for range ch { // it is closed when the watch has ended
			}
		}()
		for x := range ch {
			if !yield(x) {
				return
			}
		}
	}
}

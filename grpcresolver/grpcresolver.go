// Package grpcresolver resolves the targets of gRPC clients to the members of a coord.Group.
//
// A server joins the group, with its address as the value:
//
//	member, err := coord.NewGroup[string](c, "/services/search", nil).Join(ctx, "node-1", "10.0.0.1:8443")
//
// and a client names the path of the group:
//
//	conn, err := grpc.NewClient("coord:///services/search",
//		grpc.WithResolvers(grpcresolver.New(c, grpcresolver.Value, nil)),
//		grpc.WithDefaultServiceConfig(`{"loadBalancingConfig":[{"round_robin":{}}]}`),
//		grpc.WithTransportCredentials(creds))
//
// Without the service config gRPC uses one server at a time (pick_first).
//
// # What the connection sees
//
// Each join, leave and change of a value is a new list of addresses, in the order of the members'
// ids. It costs what Group.Watch costs, and nothing is polled. A server that is killed stays in the
// list until its session has expired; gRPC avoids it when the connection to it breaks.
//
// While the client has no contact to the service, and while it opens its next session, the list
// stays as it is: an outage of the service ends no connection. Before the first list calls wait, as
// they do for every resolver. An empty group makes calls fail with code Unavailable, unless they
// wait for ready. Running calls continue when their server leaves the group.
//
// If the watch ends, for one of the reasons for which Group.Watch ends (ErrClosed, ErrDenied,
// ErrBadPath), gRPC is given the error: it continues with the list that it has. If it has none, calls
// fail: those with pick_first with the error, those with round_robin with a text of gRPC's own. After
// ErrDenied the group is watched again, at the latest after a pause that grows from one second to one
// minute, since gRPC itself asks to resolve again only when a connection breaks. After the other errors
// only such a request begins another watch.
//
// A member whose value cannot be read is left out, and so is one at which the function address panics
// or ends its goroutine; that is logged through grpclog, with the stack and without the value of the
// panic. If none of the members can be read, as with a
// codec that does not fit, gRPC is given that error, and the members keep the addresses that they had.
//
// A server should join when it serves, and leave before it stops: see examples/members.
package grpcresolver

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc/grpclog"
	"google.golang.org/grpc/resolver"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/usercode"
)

// Scheme is the scheme of the targets: coord:///path/of/the/group, below the namespace of the
// client. A target has no authority and no query.
const Scheme = "coord"

// New returns a builder for grpc.WithResolvers, which watches groups with c. It does no I/O. Close
// the connections before c.
//
// The function address returns the address of a member, with ServerName and Attributes if they are
// needed; a member for which it returns an Address without Addr is left out, one that drains for
// example. Value is the function for members whose value is the address. The function is called for
// members whose value can be read. It must be fast, and safe for concurrent use.
//
// The options are those of coord.NewGroup, or nil.
func New[T any](c *coord.Client, address func(coord.Member[T]) resolver.Address, o *coord.GroupOptions[T]) resolver.Builder {
	if c == nil || address == nil {
		panic("grpcresolver: nil Client or function") // here, and not on a goroutine of gRPC
	}
	return &builder[T]{c, address, o}
}

// Value returns the value of a member as its address.
func Value(m coord.Member[string]) resolver.Address { return resolver.Address{Addr: m.Value} }

type builder[T any] struct {
	c       *coord.Client
	address func(coord.Member[T]) resolver.Address
	options *coord.GroupOptions[T]
}

func (b *builder[T]) Scheme() string { return Scheme }

func (b *builder[T]) Build(target resolver.Target, cc resolver.ClientConn, _ resolver.BuildOptions) (resolver.Resolver, error) {
	path := "/" + target.Endpoint()
	if path == "/" || target.URL.Host != "" || target.URL.RawQuery != "" || target.URL.Fragment != "" {
		return nil, fmt.Errorf("grpcresolver: target %q: want %s:///path/of/group", target.URL.String(), Scheme)
	}
	if err := backend.CheckPath(path); err != nil {
		return nil, fmt.Errorf("grpcresolver: target %q: %w", target.URL.String(), err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r := &groupResolver[T]{
		group: coord.NewGroup(b.c, path, b.options), address: b.address, cc: cc,
		again: make(chan struct{}, 1), cancel: cancel, done: make(chan struct{}),
	}
	go r.run(ctx)
	return r, nil
}

// groupResolver follows one group for one connection.
type groupResolver[T any] struct {
	group   *coord.Group[T]
	address func(coord.Member[T]) resolver.Address
	cc      resolver.ClientConn
	known   map[string]resolver.Address // by ID: the last list; of run

	again  chan struct{} // ResolveNow was called
	cancel context.CancelFunc
	done   chan struct{} // closed when run has returned
}

// The pause between a watch that has failed and the next one.
const (
	firstPause = time.Second
	mostPause  = time.Minute
)

// run watches the group until ctx ends. When a watch has failed, the next one begins after a pause,
// or when gRPC asks for it. gRPC asks only when a connection breaks, so never if it has no address.
func (r *groupResolver[T]) run(ctx context.Context) {
	defer close(r.done)
	pause := firstPause
	for {
		listed, err := r.watch(ctx)
		if listed {
			pause = firstPause
		}
		next := time.NewTimer(pause/2 + rand.N(pause/2))
		pause = min(2*pause, mostPause)
		if errors.Is(err, coord.ErrClosed) || errors.Is(err, coord.ErrBadPath) {
			next.Stop() // the next watch would fail as well
		}
		select {
		case <-next.C:
		case <-r.again:
		case <-ctx.Done():
		}
		next.Stop()
		if ctx.Err() != nil {
			return
		}
	}
}

// watch reports what a watch of the group yields, until the watch fails or ctx ends. It returns the
// error, and whether it has seen the members.
func (r *groupResolver[T]) watch(ctx context.Context) (listed bool, err error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	for update := range r.group.Watch(ctx) {
		select {
		case <-r.again: // this update is the answer
		default:
		}
		if update.Err != nil {
			r.cc.ReportError(update.Err)
			return listed, update.Err
		}
		if err := r.update(update.Members); errors.Is(err, coord.ErrDenied) {
			return listed, err // nothing tells the watch that the members may be read again
		}
		listed = true
	}
	return listed, nil
}

// update gives gRPC the addresses of the members. It returns an error if none of them can be read.
func (r *groupResolver[T]) update(members []coord.Member[T]) error {
	list := make([]resolver.Address, 0, len(members))
	known := make(map[string]resolver.Address)
	var unreadable []error
	for _, m := range members {
		a, err := r.addressOf(m)
		if err != nil {
			unreadable = append(unreadable, err)
		} else if a.Addr != "" {
			list, known[m.ID] = append(list, a), a
		}
	}
	var err error
	if len(unreadable) > 0 && len(unreadable) == len(members) {
		err = fmt.Errorf("grpcresolver: none of %d members can be read: %w", len(members), unreadable[0])
		// An empty list would end the connections of members that serve. Those that left must go.
		for _, m := range members {
			if a, ok := r.known[m.ID]; ok {
				list, known[m.ID] = append(list, a), a
			}
		}
	}
	if err == nil || len(r.known) > 0 {
		// The error asks for another attempt soon. The watch reports every change, so an attempt
		// would find the same.
		_ = r.cc.UpdateState(resolver.State{Addresses: list})
	}
	if err != nil {
		r.cc.ReportError(err)
	}
	r.known = known
	return err
}

// addressOf returns the address of a member, or why there is none.
func (r *groupResolver[T]) addressOf(m coord.Member[T]) (a resolver.Address, err error) {
	if m.Err != nil {
		return a, m.Err
	}
	err = usercode.Call(func() error {
		a = r.address(m)
		return nil
	})
	if f := usercode.As(err); f != nil {
		logger.Errorf("no address for the member at %s: %v\n%s", m.Path, f, f.Stack)
		err = fmt.Errorf("the address function failed for the member at %s: %w", m.Path, err)
	}
	return a, err
}

var logger = grpclog.Component("coord")

// ResolveNow begins another watch if the last one has failed.
func (r *groupResolver[T]) ResolveNow(resolver.ResolveNowOptions) {
	select {
	case r.again <- struct{}{}:
	default:
	}
}

func (r *groupResolver[T]) Close() {
	r.cancel()
	<-r.done
}

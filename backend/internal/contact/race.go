package contact

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// How long an attempt may be silent before the next one begins beside it: while there is no
// connection, and while a server that has accepted one gives no answer. A server whose listen queue
// is full seems to accept connections, and learns of the request only when the operating system
// repeats it, after times that double.
const (
	unconnected = 250 * time.Millisecond
	unanswered  = time.Second
)

// ErrBeaten is the error of an attempt that another one has made superfluous.
var ErrBeaten = errors.New("another attempt has succeeded")

// A Race makes attempts at the addresses of some servers until one has succeeded. The next attempt
// begins when the latest one has failed, and also while it is silent, so that an address that leads
// nowhere delays a session little. The functions are called one at a time, except Try.
type Race[C any] struct {
	Servers *Servers

	// Times returns how long one attempt may take, and the longest time after which the next one
	// begins, for so many addresses.
	Times func(addresses int) (budget, step time.Duration)

	// Try makes one attempt. It returns soon after ctx ends. It calls Ask before it sends the
	// request whose answer makes the attempt succeed, and not at all if the request can be sent
	// any number of times.
	Try func(ctx context.Context, a *Attempt) (C, error)

	// Failed records that an attempt has failed. An error ends the race.
	Failed func(t Target, err error) error

	// Begun, if it is not nil, records that an attempt begins.
	Begun func(t Target)

	// Drop ends a connection that is not used because another one is. It does not wait.
	Drop func(c C)

	// Newest says that servers know only the connection of the latest request, so that the answer
	// to an earlier one has to wait for the answers to later ones, except if it is Final.
	Newest bool
	Final  func(c C) bool

	// Go runs an attempt. Attempts that have asked run on after the race unless Newest is set, so
	// that what they have made on a server is dropped.
	Go func(func())
}

// An Attempt is one of a Race.
type Attempt struct {
	Target
	field    *field
	begun    time.Time
	cancel   context.CancelFunc
	replaced time.Duration // its age when a newer attempt at the address replaced it
	accepted atomic.Bool

	// Guarded by the field's mu.
	asked int // its place among the requests, 0 before it
	at    time.Time
}

// field is what the attempts of a race share.
type field struct {
	mu   sync.Mutex
	asks int
	shut bool // no attempt asks any more
}

// Accepted records that there is a connection.
func (a *Attempt) Accepted() { a.accepted.Store(true) }

// Ask records that the request is about to be sent. It reports false if it must not be.
func (a *Attempt) Ask() bool {
	a.Accepted()
	a.field.mu.Lock()
	defer a.field.mu.Unlock()
	if a.field.shut {
		return false
	}
	a.field.asks++
	a.asked, a.at = a.field.asks, time.Now()
	return true
}

func (f *field) place(a *Attempt) int {
	place, _ := f.request(a)
	return place
}

// request returns the place of an attempt among the requests, 0 if it has not asked, and when it
// asked.
func (f *field) request(a *Attempt) (place int, at time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return a.asked, a.at
}

// result is the outcome of an attempt, or of the lookup of a server.
type result[C any] struct {
	attempt *Attempt // nil for a lookup
	server  string
	conn    C
	err     error
}

// results hands outcomes to the race. When that is over, connections are dropped.
type results[C any] struct {
	mu    sync.Mutex
	ready chan struct{} // capacity 1
	list  []result[C]
	over  bool
	drop  func(C)
}

func (r *results[C]) add(one result[C]) {
	r.mu.Lock()
	over := r.over
	if !over {
		r.list = append(r.list, one)
	}
	r.mu.Unlock()
	if over {
		if one.attempt != nil && one.err == nil {
			r.drop(one.conn)
		}
		return
	}
	select {
	case r.ready <- struct{}{}:
	default:
	}
}

func (r *results[C]) take() []result[C] {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := r.list
	r.list = nil
	return list
}

// end drops the connections that are not handed out, and those that come later.
func (r *results[C]) end() {
	r.mu.Lock()
	r.over = true
	list := r.list
	r.list = nil
	r.mu.Unlock()
	for _, one := range list {
		if one.attempt != nil && one.err == nil {
			r.drop(one.conn)
		}
	}
}

// Run returns the first connection that an attempt has made. The error is that of ctx or of
// Failed.
func (r *Race[C]) Run(ctx context.Context) (conn C, at Target, err error) {
	x := &run[C]{Race: r, ctx: ctx, field: new(field), looking: make(map[string]bool),
		results: results[C]{ready: make(chan struct{}, 1), drop: r.Drop}}
	defer x.end()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		for _, one := range x.results.take() {
			if err := x.handle(one); err != nil {
				return conn, at, err
			}
		}
		if x.best != nil && (x.wait.IsZero() || !time.Now().Before(x.wait)) {
			best := x.best
			x.best = nil
			return best.conn, best.attempt.Target, nil
		}
		if ctx.Err() != nil {
			return conn, at, context.Cause(ctx)
		}
		timer.Reset(time.Until(x.step()))
		select {
		case <-timer.C:
		case <-x.results.ready:
		case <-ctx.Done():
		}
	}
}

// run is the state of a race that is being run, used by one goroutine.
type run[C any] struct {
	*Race[C]
	ctx     context.Context
	field   *field
	results results[C]

	round   int             // rounds before the present one
	begun   bool            // there is a present round
	pause   time.Time       // the end of the pause before the next round, zero if there is no pause
	queue   []Target        // to be tried in this round
	looking map[string]bool // servers that are being looked up
	flying  []*Attempt      // in the order in which they began
	latest  time.Time       // when the latest attempt or lookup began
	during  int             // the round in which it began

	best *result[C] // of the attempts that have succeeded, the one that asked last
	wait time.Time  // how long best waits for the answers to later requests
}

// handle deals with the outcome of an attempt or a lookup.
func (x *run[C]) handle(one result[C]) error {
	a := one.attempt
	if a == nil {
		delete(x.looking, one.server)
		known := x.Servers.knownOf(one.server)
		if one.err != nil && len(known) == 0 {
			return x.Failed(Target{Server: one.server}, one.err)
		}
		x.queue = slices.DeleteFunc(x.queue, func(t Target) bool { return t.Server == one.server })
		x.queue = append(x.queue, known...)
		return nil
	}
	x.flying = slices.DeleteFunc(x.flying, func(other *Attempt) bool { return other == a })
	switch {
	case one.err != nil && x.best != nil:
		// It was ended, see decide.
	case one.err != nil:
		if a.replaced > 0 {
			one.err = silence(a.accepted.Load(), a.replaced)
		}
		x.Servers.Failed(a.Target)
		if err := x.Failed(a.Target, one.err); err != nil {
			return err
		}
	case x.best != nil && x.field.place(x.best.attempt) > x.field.place(a):
		x.Drop(one.conn)
	default:
		if x.best != nil {
			x.Drop(x.best.conn)
		}
		x.best = &one
	}
	if x.best != nil {
		x.decide()
	}
	return nil
}

// decide ends the attempts that cannot win any more, and sets how long best waits for the answers to
// later requests: as long as its own took, and a moment.
func (x *run[C]) decide() {
	x.field.mu.Lock()
	x.field.shut = true
	x.field.mu.Unlock()
	now := time.Now()
	best, asked := x.field.request(x.best.attempt)
	var last time.Time // of the later requests
	for _, a := range x.flying {
		if a.begun.Before(x.best.attempt.begun) {
			x.Servers.Failed(a.Target) // it was silent for so long
		}
		place, at := x.field.request(a)
		switch {
		case place == 0:
			a.cancel()
		case x.Newest && place < best:
			a.cancel()
		case x.Newest:
			last = at
		}
	}
	switch {
	case last.IsZero() || x.Final != nil && x.Final(x.best.conn):
		x.wait = time.Time{}
	case x.wait.IsZero():
		_, step := x.Times(len(x.Servers.Targets()))
		x.wait = now.Add(min(step, last.Add(now.Sub(asked)+unconnected).Sub(now)))
	}
}

// step begins what is due, and returns when to look again.
func (x *run[C]) step() time.Time {
	if x.best != nil {
		return x.wait
	}
	for {
		now := time.Now()
		if due := x.due(); now.Before(due) {
			return due
		}
		switch {
		case len(x.queue) > 0:
			t := x.Servers.take(x.queue)
			x.queue = slices.DeleteFunc(x.queue, func(other Target) bool { return other == t })
			x.begin(t)
		case x.pause.IsZero():
			pause := x.Servers.round()
			x.pause = now.Add(pause)
		case now.Before(x.pause):
			return x.pause
		default:
			x.pause = time.Time{}
			if x.begun {
				x.round++
			}
			x.begun = true
			x.fill()
		}
	}
}

// due returns the earliest time of the next attempt.
func (x *run[C]) due() time.Time {
	silent := len(x.looking) > 0 && len(x.queue) == 0
	limit := unconnected
	for _, a := range x.flying {
		if a.begun.Equal(x.latest) {
			silent = true
			if a.accepted.Load() {
				limit = unanswered
			}
		}
	}
	if !silent {
		return time.Time{}
	}
	budget, step := x.Times(len(x.Servers.Targets()))
	return x.latest.Add(min(min(limit, step)<<min(x.during/2, 8), budget))
}

// fill begins a round.
func (x *run[C]) fill() {
	budget, _ := x.Times(len(x.Servers.Targets()))
	for _, server := range x.Servers.list {
		switch {
		case x.Servers.isAddress(server):
			x.queue = append(x.queue, x.Servers.knownOf(server)...)
		case x.looking[server]:
			// The lookup is slow. Its latest result may still hold.
			x.queue = append(x.queue, x.Servers.knownOf(server)...)
		default:
			x.looking[server] = true
			x.latest, x.during = time.Now(), x.round
			x.Go(func() {
				ctx, cancel := context.WithTimeout(x.ctx, budget)
				defer cancel()
				err := x.Servers.resolve(ctx, server)
				x.results.add(result[C]{server: server, err: err})
			})
		}
	}
}

// begin begins an attempt. Two attempts at one address at a time are enough: the older one can be
// that of a slow server, the newer one that of a server which never got the first.
func (x *run[C]) begin(t Target) {
	var same []*Attempt
	for _, a := range x.flying {
		if a.Target == t {
			same = append(same, a)
		}
	}
	if len(same) >= 2 && same[0].replaced == 0 {
		same[0].replaced = time.Since(same[0].begun)
		same[0].cancel()
	}
	budget, _ := x.Times(len(x.Servers.Targets()))
	ctx, cancel := context.WithTimeout(x.ctx, budget)
	a := &Attempt{Target: t, field: x.field, begun: time.Now(), cancel: cancel}
	x.latest, x.during = a.begun, x.round
	x.flying = append(x.flying, a)
	if x.Begun != nil {
		x.Begun(t)
	}
	x.Go(func() {
		defer cancel()
		conn, err := x.Try(ctx, a)
		x.results.add(result[C]{attempt: a, conn: conn, err: err})
	})
}

// end ends the attempts that are still under way.
func (x *run[C]) end() {
	x.field.mu.Lock()
	x.field.shut = true
	x.field.mu.Unlock()
	for _, a := range x.flying {
		if x.Newest || x.field.place(a) == 0 {
			a.cancel()
		}
	}
	if x.best != nil {
		x.Drop(x.best.conn)
	}
	x.results.end()
}

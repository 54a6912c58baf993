//go:build linux

package chaos

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/coordtest"
	"github.com/go-coord/coord/internal/proc"
	"github.com/go-coord/coord/trace"
)

// clientSpec is the argument of a client process.
type clientSpec struct {
	Name     string // unique name of the process
	Number   int64  // unique number of the process, from 1
	Index    int    // of the place of the process
	Site     string // the transaction site that it serves
	Servers  []string
	Resource string // socket
	History  string // file
	Seed     uint64
	Slowness time.Duration // factor of the pauses between calls
}

// The workloads, by the names in histories and in the summary.
var works = []string{"mutex", "rwmutex", "semaphore", "election", "queue", "priority", "delay", "value", "counter", "cache", "txn", "keep", "lockall", "shards", "schedule", "overlap"}

// A client is such a process. It reads commands from standard input:
//
//	linger  the next holder of the mutex, the next leader and the next run of each schedule keep their holds, and report it
//	go      they write to the resource without a check, and continue
//	finish  every worker makes one more successful call, and ends; reported when all have ended
//	drain   finishes the rest of the queue and of the transactions; reported when done
//	look    reports the content of the cache, the group, and the shards
//
// Its answers and its progress are reports on standard output.
type client struct {
	spec clientSpec
	rec  *recorder
	c    *coord.Client

	out      *proc.Output             // nil on memory
	done     map[string]*atomic.Int64 // successful calls, by workload
	finish   atomic.Bool
	ahead    atomic.Int64   // values put, less items taken
	kept     atomic.Int64   // holds with MutexOptions.Keep
	nexts    atomic.Int64   // on memory: commits of Acks that claimed the next items
	session  atomic.Int64   // the present session
	holds    sync.WaitGroup // goroutines that watch for the loss of holds
	watched  sync.Map       // the *watched that are not recorded yet
	cache    *copyOfTree
	members  *membership
	shards   *sharing
	lingerMu sync.Mutex
	lingers  map[string]bool
	goOn     chan struct{}
}

// report is one line of a client's standard output.
type report struct {
	Kind    string
	Counts  map[string]int64               `json:",omitempty"`
	Session int64                          `json:",omitempty"`
	Tree    map[string]coordtest.NodeState `json:",omitempty"` // the cache's copy
	Folded  map[string]coordtest.NodeState `json:",omitempty"` // the tree folded from its events
	Wrong   []string                       `json:",omitempty"` // events that do not follow from earlier ones
	Members *membersReport                 `json:",omitempty"`
	Shards  map[int]int64                  `json:",omitempty"` // the tokens of the shards that it owns
	Text    string                         `json:",omitempty"`
}

func newClient() *client {
	x := &client{done: make(map[string]*atomic.Int64), lingers: make(map[string]bool), goOn: make(chan struct{})}
	for _, w := range works {
		x.done[w] = new(atomic.Int64)
	}
	return x
}

func clientMain(task []byte) int {
	x := newClient()
	x.out = new(proc.Output)
	err := json.Unmarshal(task, &x.spec)
	if err == nil {
		err = x.run()
	}
	if err != nil {
		x.report(report{Kind: "failed", Text: err.Error()})
		return 1
	}
	return 0
}

func (x *client) run() (err error) {
	if x.rec, err = newRecorder(x.spec.History); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var background sync.WaitGroup
	defer background.Wait()
	background.Go(func() { x.beat(ctx) })
	opening, opened := context.WithTimeout(ctx, limit)
	defer opened()
	x.c, err = coord.Open(opening, ending{backendAt(x.spec.Servers, sessionTimeout, lossMargin), x}, &coord.Options{Trace: x.trace})
	if err != nil {
		cancel()
		return err
	}
	defer x.c.Close()
	x.cache = newCopy(x.c, x.rec)
	x.members = newMembership(x.c, x.spec.Name, x.finish.Load)
	x.shards = newSharing(x)

	serving, stopServing := context.WithCancel(ctx)
	defer stopServing()
	var workers, servers sync.WaitGroup
	for i, work := range []func(ctx context.Context, w *worker){
		x.mutex, x.rwmutex, x.semaphore, x.election, x.producer, x.value, x.counter, x.churn, x.proposer, x.home, x.home, x.lockAll,
		x.urge, x.postpone, x.operate,
	} {
		w := &worker{x: x, rand: rand.New(rand.NewPCG(x.spec.Seed, uint64(i)))}
		workers.Go(func() {
			defer w.close()
			work(ctx, w)
		})
	}
	consuming, stopConsuming := context.WithCancel(ctx)
	defer stopConsuming()
	for i, consume := range []func(ctx context.Context, w *worker){x.consumer, x.serve, x.work, x.collect, x.exclusive, x.overlapping} {
		w := &worker{x: x, rand: rand.New(rand.NewPCG(x.spec.Seed, uint64(100+i)))}
		servers.Go(func() { consume(consuming, w) })
	}
	servers.Go(func() { x.site(serving) })
	servers.Go(func() { x.recover(serving) })
	servers.Go(func() { x.cache.keep(serving) })
	servers.Go(func() { x.members.keep(serving) })
	servers.Go(func() { x.shards.keep(serving) })

	x.report(report{Kind: "opened"})
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		switch command := in.Text(); command {
		case "linger":
			x.linger(true)
		case "go":
			x.linger(false)
		case "finish":
			x.finish.Store(true)
			background.Go(func() {
				workers.Wait()
				x.report(report{Kind: "finished"})
			})
		case "drain":
			background.Go(func() {
				if err := x.drain(ctx); err != nil && ctx.Err() == nil {
					x.report(report{Kind: "failed", Text: err.Error()})
					return
				}
				x.report(report{Kind: "drained"})
			})
		case "look":
			r := x.cache.report()
			r.Members, r.Shards = x.members.report(), x.shards.report()
			x.report(r)
		default:
			return fmt.Errorf("no such command: %s", command)
		}
	}
	stopConsuming()
	stopServing()
	cancel()
	workers.Wait()
	servers.Wait()
	err = x.c.Close()
	x.holds.Wait()
	return err
}

// beat reports that the process runs, and its progress.
func (x *client) beat(ctx context.Context) {
	t := time.NewTicker(beatEvery)
	defer t.Stop()
	for {
		x.rec.say(event{Kind: "beat"})
		counts := make(map[string]int64)
		for w, n := range x.done {
			counts[w] = n.Load()
		}
		x.report(report{Kind: "progress", Counts: counts, Session: x.session.Load()})
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
	}
}

func (x *client) report(r report) {
	if x.out != nil {
		x.out.Report(r)
	}
}

func (x *client) trace(_ context.Context, e trace.Event) {
	if e, ok := e.(trace.StateChanged); ok {
		l := event{Kind: "state", Op: e.Phase, Session: e.Session}
		if e.Err != nil {
			l.Err = e.Err.Error()
		}
		if e.Phase == coord.PhaseConnected.String() {
			x.session.Store(e.Session)
		}
		x.rec.say(l)
	}
}

// linger makes the next holders keep their holds, or continue.
func (x *client) linger(on bool) {
	x.lingerMu.Lock()
	defer x.lingerMu.Unlock()
	if on {
		for _, work := range []string{"mutex", "election", "schedule", "overlap"} {
			x.lingers[work] = true
		}
		return
	}
	clear(x.lingers)
	close(x.goOn)
	x.goOn = make(chan struct{})
}

// linger keeps a hold if requested. The holder's next step must not depend on whether it
// still has the hold.
func (w *worker) linger(ctx context.Context, work string) {
	x := w.x
	x.lingerMu.Lock()
	on, goOn := x.lingers[work], x.goOn
	delete(x.lingers, work)
	x.lingerMu.Unlock()
	if !on {
		return
	}
	x.report(report{Kind: "lingering " + work})
	select {
	case <-goOn:
	case <-ctx.Done():
	}
}

// worker is one sequence of calls.
type worker struct {
	x       *client
	rand    *rand.Rand
	conn    net.Conn // connection to the resource
	answers *bufio.Reader
}

func (w *worker) close() {
	if w.conn != nil {
		w.conn.Close()
	}
}

// loop repeats a call until the client has to finish and a call that began after that
// succeeded. between is the mean pause.
func (w *worker) loop(ctx context.Context, between time.Duration, do func(ctx context.Context) (ok bool)) {
	for ctx.Err() == nil {
		last := w.x.finish.Load()
		ok := do(ctx)
		if ok && last {
			return
		}
		w.pause(ctx, between*w.x.spec.Slowness)
	}
}

func (w *worker) pause(ctx context.Context, mean time.Duration) {
	t := time.NewTimer(mean/2 + time.Duration(w.rand.Int64N(int64(mean))))
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// one records the begin of a call, makes it, and records its outcome. The call fills in its
// results.
func (w *worker) one(ctx context.Context, e event, patience time.Duration, do func(ctx context.Context, e *event) error) (kind string, err error) {
	e = w.x.rec.begin(e)
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err = do(ctx, &e)
	return w.end(e, err), err
}

// end records the outcome of a call.
func (w *worker) end(e event, err error) (kind string) {
	kind = "ok"
	switch {
	case errors.Is(err, coord.ErrUncertain), errors.Is(err, coord.ErrInDoubt):
		kind = "unknown"
	case errors.Is(err, coord.ErrNoSpace) && slices.Contains([]string{"ack", "nack", "giveback", "release"}, e.Op):
		kind = "unknown" // the client tries again in the background
	case err != nil:
		kind = "no"
	}
	e.Odd = err != nil && !expected(e, err)
	w.x.rec.end(e, kind, err)
	if kind == "ok" {
		w.x.done[e.Work].Add(1)
	}
	return kind
}

// expected reports whether the faults explain this error of a call.
func expected(e event, err error) bool {
	if err == nil {
		return true
	}
	may := []error{context.DeadlineExceeded, context.Canceled, coord.ErrLost, coord.ErrUncertain, coord.ErrSessionLost, coord.ErrClosed,
		coord.ErrNoSpace, // see checkSpace
	}
	switch e.Work {
	case "value":
		may = append(may, coord.ErrConflict)
	case "txn": // see checkTxns
		may = append(may, coord.ErrInDoubt)
	case "priority":
		switch e.Op {
		case "tryput":
			may = append(may, coord.ErrFull)
		case "redrive", "remove": // what another client has done since the list
			may = append(may, coord.ErrFull, coord.ErrNotFound, coord.ErrLocked, coord.ErrConflict)
		}
	case "cache": // the worker's knowledge of the tree is out of date
		may = append(may, coord.ErrExists, coord.ErrNotFound, coord.ErrNotEmpty, coord.ErrNoChildren)
	}
	return slices.ContainsFunc(may, func(e error) bool { return errors.Is(err, e) })
}

// write writes to the resource, whatever the state of the hold.
func (w *worker) write(register string, h *coord.Hold) {
	if w.conn == nil {
		conn, err := net.Dial("unix", w.x.spec.Resource)
		if err != nil {
			return // the test ends
		}
		w.conn, w.answers = conn, bufio.NewReader(conn)
	}
	fmt.Fprintln(w.conn, register, h.Token(), h.Path())
	_, _ = w.answers.ReadString('\n') // the resource has its own history
}

// watched is a hold whose loss is to be recorded.
type watched struct {
	work, id string
	h        *coord.Hold
	done     <-chan struct{} // of h; the method also compares the lease with the clock
	once     sync.Once
}

// watch records the loss of a hold.
func (x *client) watch(work string, h *coord.Hold, id string) {
	v := &watched{work: work, id: id, h: h, done: h.Done()}
	x.watched.Store(v, nil)
	x.holds.Add(1)
	go func() {
		defer x.holds.Done()
		<-v.done
		x.over(v)
	}()
}

// over records the end of a hold, if it was lost.
func (x *client) over(v *watched) {
	v.once.Do(func() {
		defer x.watched.Delete(v)
		h, err := v.h, v.h.Err()
		if errors.Is(err, coord.ErrReleased) || errors.Is(err, coord.ErrClosed) {
			return
		}
		e := event{Kind: "lost", Work: v.work, ID: v.id, Token: h.Token(), Session: h.Session(), Err: err.Error()}
		// The next holder is granted a round trip after the end by force, which may be before
		// this goroutine runs.
		if q, ok := h.Revocation(); ok && errors.Is(err, coord.ErrRevoked) {
			e.Since = x.rec.now() - int64(time.Since(q.At)-shardForce)
		}
		x.rec.say(e)
	})
}

// ending is the backend of a client. The next session can end the nodes of the one before at once,
// so the losses are recorded before it is opened: the goroutines that wait for them may not have
// run by then.
type ending struct {
	backend.Backend
	x *client
}

func (b ending) Open(ctx context.Context) (backend.Session, error) {
	for v := range b.x.watched.Range {
		select {
		case <-v.(*watched).done:
			b.x.over(v.(*watched))
		default:
		}
	}
	return b.Backend.Open(ctx)
}

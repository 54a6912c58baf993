package recipetest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/inspect"
	"github.com/go-coord/coord/internal/coordtest"
	"github.com/go-coord/coord/internal/hook"
	"github.com/go-coord/coord/trace"
)

// Handlers of Work end in every way, on services that are slow, lose requests and replies, refuse commits and end
// sessions, while Work, clients and producers end and begin again. The judge knows only the documentation.
func TestQueue_WorkAsDocumented(t *testing.T) {
	t.Parallel()
	for seed := range uint64(coordtest.Count(60, 4000)) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			onMemory(t, func(w *world) { newWorkRun(w, seed).play() })
		})
	}
}

// A workRun is one random run.
type workRun struct {
	w    *world
	kind string // "queue", "priority" or "delay"
	o    coord.QueueOptions[int]
	n    int  // handlers of a Work
	wild bool // handlers fail, too

	claims int // that rely on one list; 0: the default

	delay                             time.Duration // of each request and each reply, at most
	lose                              float64       // of commits: the share that loses the request, and that loses the reply
	expire, breaks, full, denied      bool          // faults
	ends, closes, two, beside, during bool          // Work ends, clients close, a second client, a second Work of each queue value, puts during Work
	options                           float64       // the share of the items that have options

	producer *coord.Client
	put      func(ctx context.Context, v int, o *coord.PutOptions) (string, error)
	clean    *coord.Consumer[int]

	mu        sync.Mutex
	rnd       *rand.Rand
	calm      bool // faults have ended
	refused   bool // commits that delete are denied now
	items     map[int]*workItem
	byID      map[string]*workItem
	next      int
	putting   int // handlers that put an item when they end
	order     int // of the latest first delivery
	producing sync.WaitGroup
	sealed    int // items that were put before the first Work
	wrong     []string
	history   []string
	session   backend.Session // beside all clients
	since     time.Time       // the run began
	closers   []func()
}

// A workItem is what the judge knows of an item.
type workItem struct {
	value    int
	rank     int64 // its place in the order of the queue, if all items are put before
	due      time.Time
	id       string
	put      bool // certainly
	max      int  // attempts
	key      string
	keyFor   time.Duration
	putAt    time.Time
	calls    []*workCall
	counted  int  // attempts
	vague    bool // the number of attempts is not known
	buried   bool
	acked    string // why it must not be delivered again
	ackToken int64
	open     bool // an end of it has an unknown outcome
}

type workCall struct {
	item    *workItem
	it      *coord.Item[int]
	work    *workWorker
	began   time.Time
	running bool
}

// A workWorker is one call of Work.
type workWorker struct {
	r        *workRun
	c        *coord.Client
	name     string
	q        *coord.Consumer[int]
	ctx      context.Context
	cancel   context.CancelFunc
	ended    time.Time // when ctx was canceled
	closing  bool
	done     chan struct{}
	err      error
	running  map[*workCall]bool
	calls    []*workCall
	returned bool
}

func newWorkRun(w *world, seed uint64) *workRun {
	rnd := rand.New(rand.NewPCG(seed, 17))
	r := &workRun{w: w, rnd: rnd, items: make(map[int]*workItem), byID: make(map[string]*workItem)}
	some := func(share float64) bool { return rnd.Float64() < share }
	r.kind = []string{"queue", "queue", "priority", "delay"}[rnd.IntN(4)]
	r.n = 1 + rnd.IntN(8)
	if some(0.3) {
		r.n = 1
	}
	r.o.Prefetch = []int{1, 1, 1, 2, 3, 4, 8, 16, 64, 128}[rnd.IntN(10)]
	r.claims = []int{0, 6, 10}[rnd.IntN(3)]
	if some(0.4) {
		r.o.MaxAttempts = 1 + rnd.IntN(4)
	}
	if some(0.25) {
		r.o.MaxLen = 5 + rnd.IntN(100)
	}
	if some(0.3) {
		r.o.ClaimTimeout = time.Duration(20+rnd.IntN(1000)) * time.Millisecond
	}
	if some(0.4) {
		r.o.DrainTimeout = time.Duration(10+rnd.IntN(500)) * time.Millisecond
	}
	if some(0.5) {
		r.o.RetryDelay = func(int, error) time.Duration { return time.Duration(r.pick(50)-5) * time.Millisecond }
	}
	r.wild = some(0.7)
	r.delay = []time.Duration{0, time.Millisecond, 10 * time.Millisecond, 100 * time.Millisecond, 400 * time.Millisecond}[rnd.IntN(5)]
	switch rnd.IntN(9) {
	case 0, 1:
		r.lose = 0.02 + 0.3*rnd.Float64()
	case 2:
		r.expire = true
	case 3:
		r.breaks = true
	case 4:
		r.full = true
	case 5:
		r.denied = true
	}
	r.ends, r.closes, r.two, r.beside, r.during = some(0.5), some(0.2), some(0.3), some(0.2), some(0.5)
	r.beside = r.beside && !r.closes && !r.denied // it does not begin again
	r.options = []float64{0, 0, 0.05, 0.3}[rnd.IntN(4)]
	return r
}

func (r *workRun) String() string {
	return fmt.Sprintf("%s n %d prefetch %d claims %d attempts %d len %d claim %v drain %v wild %v delay %v lose %.2f expire %v breaks %v full %v denied %v ends %v closes %v two %v beside %v during %v", r.kind, r.n, r.o.Prefetch, r.claims,
		r.o.MaxAttempts, r.o.MaxLen, r.o.ClaimTimeout, r.o.DrainTimeout, r.wild, r.delay, r.lose, r.expire, r.breaks, r.full, r.denied, r.ends, r.closes, r.two, r.beside, r.during)
}

// lossy reports whether sessions end without Close.
func (r *workRun) lossy() bool { return r.expire || r.breaks }

func (r *workRun) pick(n int) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.rnd.IntN(n)
}

func (r *workRun) some(share float64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.rnd.Float64() < share
}

func (r *workRun) isCalm() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.calm
}

// note records what happened; r.mu is held.
func (r *workRun) note(format string, args ...any) {
	r.history = append(r.history, fmt.Sprintf("%8.3f ", time.Since(r.since).Seconds())+fmt.Sprintf(format, args...))
}

// bad records a broken promise; r.mu is held.
func (r *workRun) bad(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	r.note("WRONG: %s", text)
	r.wrong = append(r.wrong, text)
}

func (r *workRun) hooks() *backendtest.Hooks {
	wait := func(ctx context.Context) {
		if r.delay == 0 || r.isCalm() {
			return
		}
		select {
		case <-time.After(time.Duration(r.pick(int(r.delay)))):
		case <-ctx.Done():
		}
	}
	return &backendtest.Hooks{
		Before: func(ctx context.Context, c backendtest.Call) error {
			wait(ctx)
			if c.Op != "commit" || r.isCalm() {
				return nil
			}
			r.mu.Lock()
			refused := r.refused
			r.mu.Unlock()
			if refused && coordtest.Deletes(c) {
				return backend.ErrDenied
			}
			if r.lose > 0 && r.some(r.lose) {
				return backend.ErrUncertain
			}
			return nil
		},
		After: func(ctx context.Context, c backendtest.Call, err error) error {
			wait(ctx)
			if c.Op == "commit" && err == nil && !r.isCalm() && r.lose > 0 && r.some(r.lose) {
				return backend.ErrUncertain
			}
			return err
		},
	}
}

// consumer returns the queue of a client, and its puts.
func (r *workRun) consumer(c *coord.Client, o coord.QueueOptions[int]) (*coord.Consumer[int], func(ctx context.Context, v int, o *coord.PutOptions) (string, error)) {
	switch r.kind {
	case "priority":
		q := coord.NewPriorityQueue(c, "/q", &o)
		return &q.Consumer, func(ctx context.Context, v int, o *coord.PutOptions) (string, error) {
			return q.PutWith(ctx, r.item(v).rank, v, o)
		}
	case "delay":
		q := coord.NewDelayQueue(c, "/q", &o)
		return &q.Consumer, func(ctx context.Context, v int, o *coord.PutOptions) (string, error) {
			return q.PutWith(ctx, r.item(v).due, v, o)
		}
	}
	q := coord.NewQueue(c, "/q", &o)
	return &q.Consumer, q.PutWith
}

func (r *workRun) item(v int) *workItem {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.items[v]
}

// add puts one item.
func (r *workRun) add(ctx context.Context) {
	r.mu.Lock()
	v := r.next
	r.next++
	i := &workItem{value: v, max: r.o.MaxAttempts, due: time.Now(), putAt: time.Now()}
	r.items[v] = i
	switch r.kind {
	case "priority":
		i.rank = int64(r.rnd.IntN(3))
	case "delay":
		i.due = time.Now().Add(time.Duration(r.rnd.IntN(3000)-1500) * time.Millisecond)
	}
	var o *coord.PutOptions
	if r.rnd.Float64() < r.options {
		o = &coord.PutOptions{}
		if r.rnd.IntN(2) == 0 {
			o.MaxAttempts = 1 + r.rnd.IntN(3)
			i.max = o.MaxAttempts
		}
		if r.rnd.IntN(2) == 0 {
			o.Key, i.key = fmt.Sprint("key", v), fmt.Sprint("key", v)
			if r.rnd.IntN(2) == 0 {
				o.KeyFor, i.keyFor = time.Hour, time.Hour
			}
		}
	}
	r.mu.Unlock()
	id, err := r.put(ctx, v, o)
	for errors.Is(err, coord.ErrNoSpace) {
		time.Sleep(50 * time.Millisecond)
		id, err = r.put(ctx, v, o)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	i.id = id
	r.byID[id] = i
	i.put = err == nil
	if err != nil {
		r.bad("put: %v", err)
	}
}

// start begins a Work.
func (r *workRun) start(c *coord.Client, name string, q *coord.Consumer[int]) *workWorker {
	x := &workWorker{r: r, c: c, name: name, q: q, done: make(chan struct{}), running: make(map[*workCall]bool)}
	x.ctx, x.cancel = context.WithCancel(r.w.T.Context())
	go func() {
		defer close(x.done)
		err := q.Work(x.ctx, r.n, x.handle)
		r.mu.Lock()
		defer r.mu.Unlock()
		x.err, x.returned = err, true
		r.note("%s Work returned %v", name, err)
		for call := range x.running {
			r.bad("%s Work returned %v while a handler of item %d runs", name, err, call.item.value)
		}
		switch {
		case err == nil && x.ctx.Err() == nil:
			r.bad("%s Work returned nil, and its context has not ended", name)
		case err == nil, errors.Is(err, coord.ErrClosed) && x.closing, errors.Is(err, coord.ErrDenied) && r.denied:
		default:
			r.bad("%s Work returned %v", name, err)
		}
		if err == nil && !r.lossy() && !r.full && !r.denied && r.lose == 0 && !x.closing {
			for _, call := range x.calls {
				if errors.Is(call.it.Err(), coord.ErrClaimTimeout) {
					continue // is given back in the background
				}
				if _, err := r.session.Exists(context.Background(), r.w.Path(call.it.Path()), nil); !errors.Is(err, backend.ErrNotFound) {
					r.bad("%s Work returned, and the claim of item %d is still there: %v", name, call.item.value, err)
				}
			}
		}
	}()
	return x
}

// open opens a client for consumers.
func (r *workRun) open(name string) (*coord.Client, *coord.Consumer[int]) {
	b := backendtest.Intercept(r.w.Link(name), *r.hooks())
	claims := make(map[string]int)
	c := coordtest.OpenWith(r.w.T, b, &coord.Options{Namespace: r.w.Path(""), Trace: func(_ context.Context, e trace.Event) {
		r.mu.Lock()
		defer r.mu.Unlock()
		switch e := e.(type) {
		case trace.ItemClaimed:
			r.note("%s claimed %s attempt %d", name, e.Item, e.Attempt)
			claims[fmt.Sprint(e.Item, " ", e.Attempt)]++
		case trace.ItemSettled:
			key := fmt.Sprint(e.Item, " ", e.Attempt)
			moved := e.Outcome == trace.ItemDead && (e.Reason == trace.ReasonTimeout || e.Reason == trace.ReasonAbandoned) // without a claim
			if moved {
				claims[key]++
			}
			if claims[key]--; claims[key] < 0 && e.Held > 0 {
				r.bad("%s: item %v was settled without a claim: %+v", name, e.Item, e)
			}
			i := r.byID[e.Item]
			r.note("%s settled item %v %s attempt %d held %v: %v %v %v", name, i.name(), e.Item, e.Attempt, e.Held, e.Outcome, e.Reason, e.Err)
			if i != nil && e.Outcome == trace.ItemAcked && e.Err == nil && i.acked == "" {
				i.acked = "it was traced as acked"
				for _, call := range i.calls {
					i.ackToken = max(i.ackToken, call.it.Token())
				}
			}
		}
	}}, hook.Hooks{ListClaims: r.claims})
	q, _ := r.consumer(c, r.o)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closers = append(r.closers, func() {
		c.Close()
		r.mu.Lock()
		defer r.mu.Unlock()
		for key, n := range claims {
			if n != 0 {
				r.bad("%s: %d claims of %s more than settlements", name, n, key)
			}
		}
	})
	return c, q
}

func (i *workItem) name() string {
	if i == nil {
		return "?"
	}
	return fmt.Sprint(i.value)
}

// handle is the handler.
func (x *workWorker) handle(ctx context.Context, it *coord.Item[int]) (err error) {
	r := x.r
	r.mu.Lock()
	i := r.items[it.Value]
	call := &workCall{item: i, it: it, work: x, began: time.Now(), running: true}
	r.began(call)
	how := r.choose(call)
	sleep := time.Duration(0)
	if r.rnd.IntN(3) > 0 {
		sleep = time.Duration(r.rnd.IntN([]int{2, 30, 300}[r.rnd.IntN(3)])) * time.Millisecond
	}
	r.note("%s begins item %d attempt %d token %d: %s after %v", x.name, i.value, it.Attempt, it.Token(), how, sleep)
	r.mu.Unlock()
	result := "nil"
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(x.running, call)
		call.running = false
		r.note("%s ends item %d: %s, hold %v", x.name, i.value, result, it.Err())
		r.ended(call, result)
	}()
	time.Sleep(sleep)
	switch how {
	case "fail":
		result = "fail"
		return errors.New("failed")
	case "panic":
		result = "fail"
		panic("of the handler")
	case "goexit":
		result = "fail"
		runtime.Goexit()
	case "bury":
		result = "bury"
		return fmt.Errorf("buried: %w", coord.Bury(errors.New("bad")))
	case "retryAfter":
		result = "fail"
		return coord.RetryAfter(time.Duration(r.pick(100))*time.Millisecond, errors.New("later"))
	case "give up":
		select {
		case <-x.ctx.Done():
			result = "back"
			return x.ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
		return nil
	case "ackOp":
		_, err := coord.NewTxn(x.c).Create(fmt.Sprintf("/done-%d-%d", i.value, it.Token()), nil, backend.Persistent).Add(it.AckOp()).Commit(context.Background())
		if result = r.outcome(call, err, "ackOp", "acked"); result == "unknown" {
			if !errors.Is(err, coord.ErrUncertain) && it.Err() == nil {
				result = "nil"
			}
			return nil
		}
		if r.some(0.3) {
			return errors.New("after the AckOp")
		}
		return nil
	case "ack":
		result = r.outcome(call, it.Ack(), "Ack", "acked")
		if r.some(0.3) {
			return coord.Bury(errors.New("after the Ack"))
		}
		return nil
	case "ack beside":
		go func() {
			err := it.Ack()
			r.mu.Lock()
			defer r.mu.Unlock()
			r.note("Ack beside of %d: %v", i.value, err)
			if err != nil && !r.faulty() && !x.closing && r.o.ClaimTimeout == 0 && r.o.DrainTimeout == 0 {
				r.bad("the Ack of item %d beside its handler: %v", i.value, err)
			}
		}()
		return nil
	case "nack":
		result = r.outcome(call, it.Nack(time.Duration(r.pick(40)-5)*time.Millisecond), "Nack", "fail")
		return nil
	case "release":
		result = r.outcome(call, it.Release(), "Release", "back")
		return nil
	case "hang":
		time.Sleep(r.o.ClaimTimeout + time.Duration(r.pick(200))*time.Millisecond)
		return nil
	case "until done":
		<-ctx.Done()
		result = "done"
		return context.Cause(ctx)
	case "put":
		r.add(context.Background())
		r.mu.Lock()
		defer r.mu.Unlock()
		r.putting--
	}
	return nil
}

// outcome returns what a call of the handler itself has done with the item.
func (r *workRun) outcome(call *workCall, err error, what, good string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.note("%s of item %d: %v", what, call.item.value, err)
	if err == nil {
		return good
	}
	if !r.faulty() && !call.work.closing && r.o.ClaimTimeout == 0 && r.o.DrainTimeout == 0 {
		r.bad("%s of item %d: %v", what, call.item.value, err)
	}
	return "unknown"
}

// faulty reports whether the run makes faults.
func (r *workRun) faulty() bool {
	return r.lossy() || r.full || r.denied || r.lose > 0
}

// choose returns what a handler does; r.mu is held.
func (r *workRun) choose(call *workCall) string {
	if r.calm || !r.wild {
		return "nil"
	}
	hows := []string{"fail", "panic", "goexit", "bury", "retryAfter", "give up", "ackOp", "ack", "ack beside", "nack", "release"}
	if r.o.ClaimTimeout > 0 {
		hows = append(hows, "hang", "until done")
	}
	if r.o.MaxLen == 0 && r.next < 300 {
		hows = append(hows, "put")
	}
	if r.rnd.Float64() < 0.6 {
		return "nil"
	}
	how := hows[r.rnd.IntN(len(hows))]
	if how == "put" {
		r.putting++
	}
	return how
}

// began judges the begin of a handler; r.mu is held.
func (r *workRun) began(call *workCall) {
	x, i, it := call.work, call.item, call.it
	if i.id != "" && i.id != it.ID {
		r.bad("item %d has id %s, its Put returned %s", i.value, it.ID, i.id)
	}
	r.byID[it.ID] = i
	if i.acked != "" && it.Token() > i.ackToken {
		r.bad("item %d is delivered again with attempt %d and token %d: %s with token %d", i.value, it.Attempt, it.Token(), i.acked, i.ackToken)
	}
	if r.kind == "delay" && time.Now().Before(i.due) {
		r.bad("item %d is delivered %v before its time", i.value, time.Until(i.due))
	}
	ending := false // an earlier handler ends the claim itself, and does not know the result yet
	for _, other := range i.calls {
		ending = ending || other.running && other.it.Err() != nil
		if other.it.Token() >= it.Token() {
			r.bad("item %d: token %d after %d", i.value, it.Token(), other.it.Token())
		}
		if other.running && other.it.Err() == nil {
			r.bad("item %d has two handlers", i.value)
		}
	}
	if counted := i.attempts(); !r.lossy() && !i.vague && !ending && !(r.faulty() && r.closes) && it.Attempt != counted+1 {
		r.bad("item %d has attempt %d, %d were counted", i.value, it.Attempt, counted)
	}
	if i.max > 0 && it.Attempt > i.max {
		r.bad("item %d has attempt %d of %d", i.value, it.Attempt, i.max)
	}
	if x.returned {
		r.bad("%s begins item %d after Work has returned", x.name, i.value)
	}
	if len(i.calls) == 0 && r.n == 1 && !r.faulty() && !r.two && !r.beside && !r.during && !r.closes && r.o.ClaimTimeout == 0 {
		place := i.value
		switch r.kind {
		case "priority":
			place += int(i.rank) * 10000
		case "delay":
			place = -1
		}
		if r.next > 0 && place >= 0 {
			if place < r.order && r.sealed == r.next {
				r.bad("item %d is delivered after an item behind it", i.value)
			}
			r.order = place
		}
	}
	i.calls = append(i.calls, call)
	x.calls = append(x.calls, call)
	x.running[call] = true
	n := 0
	for call := range x.running {
		if hangs := r.o.ClaimTimeout > 0 && errors.Is(call.it.Err(), coord.ErrLost) && time.Since(call.began) >= r.o.ClaimTimeout; !hangs {
			n++
		}
	}
	if n > r.n || len(x.running) > 2*r.n {
		r.bad("%s: %d handlers run, %d of them do not hang, n is %d", x.name, len(x.running), n, r.n)
	}
}

// ended judges the end of a handler; r.mu is held.
func (r *workRun) ended(call *workCall, result string) {
	x, i, it := call.work, call.item, call.it
	now := time.Now()
	inTime := r.o.ClaimTimeout == 0 || now.Sub(call.began) < r.o.ClaimTimeout-2*time.Millisecond
	if r.o.DrainTimeout > 0 && !x.ended.IsZero() && now.Sub(x.ended) > r.o.DrainTimeout-2*time.Millisecond {
		inTime = false
	}
	if x.closing {
		inTime = false
	}
	if r.lossy() {
		if result == "acked" {
			// Its Ack returned nil, whatever happens to the session.
			i.acked, i.ackToken = "its handler has acknowledged it", it.Token()
			return
		}
		i.vague = true
		return
	}
	if (r.full || r.denied) && (r.closes || r.denied && r.o.DrainTimeout > 0) && result != "acked" {
		i.vague, i.open = true, true // a refused end is over with the session, and a Work that is refused drains
		return
	}
	switch {
	case errors.Is(it.Err(), coord.ErrClaimTimeout) && result != "acked":
		return
	case result == "acked" || result == "nil" && inTime && (it.Err() == nil || errors.Is(it.Err(), coord.ErrReleased)):
		i.acked, i.ackToken = "its handler has acknowledged it", it.Token()
		if result == "nil" {
			i.acked = "its handler has returned nil"
		}
	case (result == "fail" || result == "bury") && inTime:
		i.counted++
		if result == "bury" || i.max > 0 && i.attempts() >= i.max {
			i.buried = true
			i.acked, i.ackToken = "it is a dead letter", it.Token()
		}
	case result == "back" && inTime:
	default:
		i.vague = true
		i.open = i.open || result == "unknown" || result == "nil"
	}
	if x.closing || r.closes {
		i.vague = true
	}
}

// attempts returns how many attempts of the item have failed.
func (i *workItem) attempts() int {
	n := i.counted
	for _, call := range i.calls {
		if errors.Is(call.it.Err(), coord.ErrClaimTimeout) {
			n++
		}
	}
	return n
}

// play plays the run.
func (r *workRun) play() {
	w, t := r.w, r.w.T
	r.since, r.session = time.Now(), w.Session("probe")
	r.producer = w.Open("producer", nil)
	r.clean, r.put = r.consumer(r.producer, r.o)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	total := 1 + r.pick(120)
	if r.o.MaxLen > 0 {
		total = min(total, r.o.MaxLen)
	}
	first := total
	if r.during {
		first = r.pick(total)
	}
	for range first {
		r.add(ctx)
	}
	r.sealed = r.next
	if r.during {
		r.producing.Go(func() {
			for range total - first {
				time.Sleep(time.Duration(r.pick(60)) * time.Millisecond)
				r.add(ctx)
			}
		})
	}
	var workers sync.WaitGroup
	var all []*workWorker
	calm := make(chan struct{})
	clients := 1
	if r.two {
		clients = 2
	}
	for k := range clients {
		workers.Go(func() {
			name := fmt.Sprint("c", k)
			c, q := r.open(name)
			link := w.Link(name)
			if r.beside {
				x := r.start(c, name+".beside", q)
				defer func() { r.finish(x) }()
			}
			for round := 0; ; round++ {
				x := r.start(c, fmt.Sprint(name, ".", round), q)
				r.mu.Lock()
				all = append(all, x)
				r.mu.Unlock()
				over := r.disturb(x, link, calm)
				r.finish(x)
				if over {
					return
				}
				if x.closing {
					c, q = r.open(fmt.Sprint(name, "-", round))
				}
			}
		})
	}
	time.Sleep(time.Duration(100+r.pick(4000)) * time.Millisecond)
	r.mu.Lock()
	r.calm = true
	r.refused = false
	r.note("calm")
	r.mu.Unlock()
	w.Service.(coordtest.MemoryService).SetFull(false)
	for k := range clients {
		w.Link(fmt.Sprint("c", k)).Heal()
	}
	close(calm)
	workers.Wait()
	r.judge()
	r.mu.Lock()
	defer r.mu.Unlock()
	if t.Failed() || len(r.wrong) > 0 {
		t.Logf("%v\n%s", r, strings.Join(r.history, "\n"))
		for _, text := range r.wrong {
			t.Error(text)
		}
	}
}

// disturb makes faults until Work has to end, and reports whether the run is over.
func (r *workRun) disturb(x *workWorker, link backendtest.Link, calm chan struct{}) (over bool) {
	service := r.w.Service.(coordtest.MemoryService)
	for {
		select {
		case <-calm:
			return r.empty(x)
		case <-x.done:
			time.Sleep(time.Millisecond) // Work fails at once while the service denies
			return false
		case <-time.After(time.Duration(1+r.pick(700)) * time.Millisecond):
		}
		if r.isCalm() {
			continue
		}
		switch what := r.pick(6); {
		case what == 0 && r.ends:
			return false
		case what == 1 && r.closes:
			r.mu.Lock()
			x.closing = true
			r.note("%s closes", x.name)
			r.mu.Unlock()
			if r.pick(2) == 0 {
				x.cancel()
			}
			x.c.Close()
			return false
		case what < 4 && r.expire:
			r.mu.Lock()
			var id int64
			for call := range x.running {
				id = call.it.Session()
			}
			r.note("%s session %d expires", x.name, id)
			r.mu.Unlock()
			link.Expire(id)
		case what < 4 && r.breaks:
			switch r.pick(3) {
			case 0:
				link.DropNextReply()
			case 1:
				link.DropNextRequest()
			default:
				link.Partition()
				time.Sleep(time.Duration(r.pick(5000)) * time.Millisecond)
				link.Heal()
			}
		case r.full:
			r.mu.Lock()
			on := !r.calm && r.rnd.IntN(2) == 0
			r.note("full %v", on)
			service.SetFull(on)
			r.mu.Unlock()
		case r.denied:
			r.mu.Lock()
			r.refused = !r.calm && r.rnd.IntN(2) == 0
			r.note("denied %v", r.refused)
			r.mu.Unlock()
		}
	}
}

// empty returns true when the queue is empty, and false if x has ended.
func (r *workRun) empty(x *workWorker) bool {
	r.producing.Wait()
	for began := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		n, err := r.clean.Len(r.w.T.Context())
		r.mu.Lock()
		done := err == nil && n == 0 && r.produced()
		r.mu.Unlock()
		if done {
			return true
		}
		select {
		case <-x.done:
			return false
		default:
		}
		if time.Since(began) > 10*time.Minute {
			r.mu.Lock()
			r.bad("the queue is not empty after ten minutes: %d, %v\n%s", n, err, r.w.dump("/q"))
			r.mu.Unlock()
			return true
		}
	}
}

// produced reports whether each item that was begun is put, and no handler will put one.
func (r *workRun) produced() bool {
	if r.putting > 0 {
		return false
	}
	for _, i := range r.items {
		if !i.put {
			return false
		}
	}
	return true
}

// finish ends a Work and waits for it.
func (r *workRun) finish(x *workWorker) {
	r.mu.Lock()
	x.ended = time.Now()
	r.note("%s Work must end", x.name)
	r.mu.Unlock()
	x.cancel()
	select {
	case <-x.done:
	case <-time.After(10 * time.Minute):
		r.mu.Lock()
		r.bad("%s Work does not return", x.name)
		r.mu.Unlock()
		x.c.Close()
		<-x.done
	}
}

// judge judges the end.
func (r *workRun) judge() {
	ctx := r.w.T.Context()
	time.Sleep(5 * time.Second)
	r.w.Settle()
	s, err := r.clean.Stats(ctx)
	r.mu.Lock()
	if err != nil || s.Claimed != 0 || s.Ready != 0 || s.Waiting != 0 {
		r.bad("at the end: %+v, %v", s, err)
	}
	r.mu.Unlock()
	for _, f := range r.closers {
		f()
	}
	r.w.Settle()
	dead := make(map[int]string)
	for letter, err := range r.clean.Dead(ctx) {
		if err != nil {
			r.w.T.Fatal(err)
		}
		dead[letter.Value] = string(letter.Reason)
	}
	r.mu.Lock()
	for _, v := range slices.Sorted(maps.Keys(r.items)) {
		i := r.items[v]
		reason, buried := dead[v]
		switch {
		case buried && i.acked != "" && !i.buried:
			r.bad("item %d is a dead letter (%s), and %s", v, reason, i.acked)
		case i.buried && !buried:
			r.bad("item %d is no dead letter", v)
		case len(i.calls) == 0 && !r.lossy() && !(buried && r.denied && r.closes): // the client could not give it back before its session ended
			r.bad("item %d was never delivered", v)
		case i.acked == "" && !buried && !i.open:
			r.bad("item %d is gone, and nobody has acknowledged it", v)
		}
	}
	r.mu.Unlock()
	if report, err := inspect.Path(ctx, r.producer, "/q", nil); err != nil || report.Queue == nil {
		r.w.T.Error(err)
	} else if q := report.Queue; q.Items != 0 || q.Claimed != 0 || q.Litter != 0 && !r.lossy() {
		r.w.T.Errorf("at the end: %+v\n%s", q, r.w.dump("/q"))
	}
	for _, v := range slices.Sorted(maps.Keys(r.items)) {
		i := r.items[v]
		if i.key == "" {
			continue
		}
		_, buried := dead[v]
		id, err := r.put(ctx, v, &coord.PutOptions{Key: i.key})
		if free := i.keyFor == 0 || buried || time.Since(i.putAt) > i.keyFor; free && err != nil || !free && (!errors.Is(err, coord.ErrExists) || id != i.id) {
			r.w.T.Errorf("the key of item %d (for %v, dead %v): %s, %v; want id %s", v, i.keyFor, buried, id, err, i.id)
		}
	}
	if _, err := r.clean.Purge(ctx); err != nil {
		r.w.T.Error(err)
	}
	if r.o.MaxLen == 0 {
		return
	}
	o := r.o
	o.FailWhenFull = true
	_, put := r.consumer(r.producer, o)
	for k := range r.o.MaxLen + 1 {
		r.items[-k] = &workItem{due: time.Now()}
		if _, err := put(ctx, -k, nil); (err != nil) != (k == r.o.MaxLen) {
			r.w.T.Errorf("put %d of %d at the end: %v", k+1, r.o.MaxLen, err)
		}
	}
}

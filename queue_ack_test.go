package coord_test

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/internal/coordtest"
)

// ackScene is a client whose commits that delete can be counted, held and broken.
type ackScene struct {
	w             *world
	q             *coord.Queue[int]
	before, after coordtest.Nth

	mu      sync.Mutex
	commits int
}

func newAckScene(w *world) *ackScene {
	sc := &ackScene{w: w}
	sc.q = w.hookedQueue("a", sc.hooks(), &coord.QueueOptions[int]{Prefetch: 64})
	*coordtest.Inside(&sc.q.Consumer).BucketSize = 256
	return sc
}

func (sc *ackScene) hooks() *backendtest.Hooks {
	return &backendtest.Hooks{
		Before: func(ctx context.Context, c backendtest.Call) error {
			if coordtest.Deletes(c) {
				sc.mu.Lock()
				sc.commits++
				sc.mu.Unlock()
			}
			return sc.before.Before(ctx, c)
		},
		After: sc.after.After,
	}
}

// batch returns how many Acks one commit takes. Each has up to five operations, and there is room
// for seven more.
func (sc *ackScene) batch() int {
	sc.w.T.Helper()
	if most := sc.w.Session("limits").Limits().Ops; most > 0 {
		return min(128, (most-7)/5)
	}
	return 128
}

// commitsFor returns the number of commits that n Acks take together.
func (sc *ackScene) commitsFor(n int) int { return (n + sc.batch() - 1) / sc.batch() }

// sent returns the number of commits with deletions since its last call.
func (sc *ackScene) sent() int {
	sc.mu.Lock()
	defer sc.mu.Unlock()
	n := sc.commits
	sc.commits = 0
	return n
}

// take puts n items and takes them.
func (sc *ackScene) take(n int) (items []*coord.Item[int]) {
	sc.w.T.Helper()
	if n == 0 {
		return nil
	}
	values := make([]int, n)
	for i := range values {
		values[i] = i
	}
	if _, err := sc.q.PutAll(context.Background(), values...); err != nil {
		sc.w.T.Fatal(err)
	}
	for it, err := range sc.q.All(context.Background()) {
		if err != nil {
			sc.w.T.Fatal(err)
		}
		if items = append(items, it); len(items) == n {
			break
		}
	}
	sc.sent()
	return items
}

// gather acknowledges all items at once. The first Ack is held until the others wait for it.
// Then gather calls meanwhile, and lets the first continue.
func (sc *ackScene) gather(items []*coord.Item[int], meanwhile func()) []error {
	sc.w.T.Helper()
	held, goOn := make(chan struct{}), make(chan struct{})
	sc.before.Arm(1, coordtest.Deletes, func(context.Context, backendtest.Call, error) error {
		close(held)
		<-goOn
		return nil
	})
	errs := make([]error, len(items))
	var wg sync.WaitGroup
	for i, it := range items {
		wg.Go(func() { errs[i] = it.Ack() })
		if i == 0 {
			<-held
		}
	}
	sc.w.Eventually("the others wait", func() bool { return coordtest.Inside(&sc.q.Consumer).AcksWaiting() == len(items)-1 })
	meanwhile()
	close(goOn)
	wg.Wait()
	if n := coordtest.Inside(&sc.q.Consumer).AckLines(); n != 0 {
		sc.w.T.Errorf("%d lines are left", n)
	}
	return errs
}

// nodes returns the paths of the nodes of an item, by kind.
func (sc *ackScene) nodes(it *coord.Item[int]) map[string]string {
	bucket := it.Path()[:strings.LastIndexByte(it.Path(), '/')]
	nodes := make(map[string]string)
	for _, name := range coordtest.Children(sc.w.T, sc.w.Link("observer"), bucket) {
		if kind, rest, _ := strings.Cut(name, "-"); strings.HasPrefix(rest, it.ID) {
			nodes[kind] = bucket + "/" + name
		}
	}
	return nodes
}

// outsider commits operations as another client.
func (sc *ackScene) outsider(ops ...backend.Op) {
	sc.w.T.Helper()
	if _, err := sc.w.Session("x").Commit(context.Background(), ops...); err != nil {
		sc.w.T.Fatal(err)
	}
}

func TestAcksThatArriveDuringACommitShareTheNext(t *testing.T) {
	onEach(t, func(w *world) {
		sc := newAckScene(w)
		for _, err := range sc.gather(sc.take(64), func() {}) {
			if err != nil {
				w.T.Error(err)
			}
		}
		n := sc.sent()
		w.T.Logf("figure: 64 Acks at a time in %d commits", n)
		if want := 1 + sc.commitsFor(63); n != want {
			w.T.Errorf("%d commits, want %d: one for the first Ack, and those for all others", n, want)
		}
		// Without a limit of operations, commits of 1, 128 and 1 of them.
		for _, err := range sc.gather(sc.take(130), func() {}) {
			if err != nil {
				w.T.Error(err)
			}
		}
		if n, want := sc.sent(), 1+sc.commitsFor(129); n != want {
			w.T.Errorf("%d commits, want %d", n, want)
		}
		// Acks one after the other take one commit each.
		for _, it := range sc.take(3) {
			mustAck(w.T, it)
		}
		if n := sc.sent(); n != 3 {
			w.T.Errorf("%d commits for three Acks, one after the other", n)
		}
		w.drained(&sc.q.Consumer)
	})
}

// An outsider has changed the nodes of one item of many: each Ack has the result that it would
// have alone.
func TestOneBadAckAmongManyFailsAlone(t *testing.T) {
	for _, test := range []struct {
		name    string
		ops     func(nodes map[string]string) backend.Op
		want    error
		commits int // the first Ack, the refused commit, that of the good ones, and those of the bad one alone
	}{
		{"its mark is deleted", func(n map[string]string) backend.Op { return backend.Delete(n["m"], backend.AnyVersion) }, coord.ErrDeleted, 4},
		{"its item is deleted", func(n map[string]string) backend.Op { return backend.Delete(n["i"], backend.AnyVersion) }, nil, 5},
		{"its state is deleted", func(n map[string]string) backend.Op { return backend.Delete(n["s"], backend.AnyVersion) }, nil, 5},
		{"a node is below it", func(n map[string]string) backend.Op {
			return backend.Create(n["i"]+"/note", nil, backend.Persistent)
		}, backend.ErrNotEmpty, 4},
	} {
		t.Run(test.name, func(t *testing.T) {
			onEach(t, func(w *world) {
				for _, bad := range []int{1, 5, 11} {
					sc := newAckScene(w)
					items := sc.take(12)
					nodes := sc.nodes(items[bad])
					errs := sc.gather(items, func() { sc.outsider(test.ops(nodes)) })
					sent := sc.sent()
					for i, err := range errs {
						switch {
						case i == bad && test.want != nil:
							coordtest.WantErr(w.T, err, test.want)
							if lost := errors.Is(err, coord.ErrLost); lost != (test.want == coord.ErrDeleted) {
								w.T.Errorf("lost is %v: %v", lost, err)
							}
						case err != nil:
							w.T.Errorf("%d: %v", i, err)
						}
					}
					// A refused Ack is retried in the background.
					if sent < test.commits || sent > test.commits && test.want != backend.ErrNotEmpty {
						w.T.Errorf("%d commits, want %d", sent, test.commits)
					}
					left := 0
					if test.want != nil {
						left = 1
					}
					if test.want == backend.ErrNotEmpty {
						sc.outsider(backend.Delete(nodes["i"]+"/note", backend.AnyVersion))
						w.Eventually("the background acknowledges it", func() bool { return mustLen(w.T, &sc.q.Consumer) == 0 })
						continue
					}
					if n := mustLen(w.T, &sc.q.Consumer); n != left {
						w.T.Errorf("%d items are left, want %d", n, left)
					}
					for range left {
						mustAck(w.T, mustTake(w.T, sc.q, bad))
					}
				}
			})
		})
	}
}

func TestEachOfManyBadAcksFailsAlone(t *testing.T) {
	onEach(t, func(w *world) {
		sc := newAckScene(w)
		items := sc.take(20)
		var ops []backend.Op
		for i, it := range items {
			if i > 0 && i%3 != 0 {
				ops = append(ops, backend.Delete(it.Path(), backend.AnyVersion))
			}
		}
		for i, err := range sc.gather(items, func() { sc.outsider(ops...) }) {
			if i%3 == 0 && err != nil {
				w.T.Errorf("%d: %v", i, err)
			} else if i%3 != 0 {
				coordtest.WantErr(w.T, err, coord.ErrLost, coord.ErrDeleted)
			}
		}
		if n := mustLen(w.T, &sc.q.Consumer); n != len(ops) {
			w.T.Errorf("%d items are left of %d that were lost", n, len(ops))
		}
	})
}

func TestALostMessageOfACombinedAckIsResolved(t *testing.T) {
	for _, name := range []string{"request", "reply"} {
		t.Run(name, func(t *testing.T) {
			onEach(t, func(w *world) {
				sc := newAckScene(w)
				items := sc.take(min(16, 1+sc.batch()))
				x := &sc.after
				if name == "request" {
					x = &sc.before
				}
				lost := false
				errs := sc.gather(items, func() {
					// The first Ack has already passed the hook before it.
					n := 1
					if name == "reply" {
						n = 2
					}
					x.Arm(n, coordtest.Deletes, func(_ context.Context, _ backendtest.Call, err error) error {
						lost = true
						if err != nil {
							w.T.Error(err)
						}
						return backend.ErrUncertain
					})
				})
				for i, err := range errs {
					if err != nil {
						w.T.Errorf("%d: %v", i, err)
					}
				}
				if n := sc.sent(); !lost || name == "request" && n != 3 || name == "reply" && n != 2 {
					w.T.Errorf("%d commits, lost: %v", n, lost)
				}
				w.drained(&sc.q.Consumer)
			})
		})
	}
}

func TestALossOfTheSessionInACombinedAckIsReportedToEach(t *testing.T) {
	for _, name := range []string{"before", "after"} {
		t.Run(name, func(t *testing.T) {
			onMemory(t, func(w *world) {
				sc := newAckScene(w)
				items := sc.take(8)
				x, n := &sc.after, 2
				if name == "before" {
					x, n = &sc.before, 1
				}
				errs := sc.gather(items, func() {
					x.Arm(n, coordtest.Deletes, func(_ context.Context, c backendtest.Call, _ error) error {
						w.Link("a").Expire(c.Session.ID())
						if name == "before" {
							return nil // the commit fails by itself
						}
						return backend.Uncertain(backend.ErrSessionLost)
					})
				})
				if errs[0] != nil {
					w.T.Error(errs[0])
				}
				for i, err := range errs[1:] {
					coordtest.WantErr(w.T, err, coord.ErrLost, coord.ErrSessionLost)
					if name == "after" {
						coordtest.WantErr(w.T, err, coord.ErrUncertain)
					}
					var inner *backend.Error
					for e := err; errors.As(e, &inner); e = inner.Err {
					}
					if path := items[i+1].Path(); inner == nil || inner.Path != path {
						w.T.Errorf("%v does not name %s", err, path)
					}
				}
				if name == "before" {
					for i := 1; i < 8; i++ {
						it := mustTake(w.T, sc.q, i)
						if it.Attempt != 2 {
							w.T.Errorf("attempt %d", it.Attempt)
						}
						mustAck(w.T, it)
					}
				}
				w.drained(&sc.q.Consumer)
			})
		})
	}
}

// An outsider deletes the node that proves the commit whose reply is lost. The error must not
// say that the claims were lost.
func TestACombinedAckOfUnknownOutcomeIsReportedToEach(t *testing.T) {
	onMemory(t, func(w *world) {
		sc := newAckScene(w)
		items := sc.take(8)
		errs := sc.gather(items, func() {
			sc.after.Arm(2, coordtest.Deletes, func(_ context.Context, c backendtest.Call, _ error) error {
				sc.outsider(backend.Delete(c.Ops[len(c.Ops)-1].Path, backend.AnyVersion))
				return backend.ErrUncertain
			})
		})
		for i, err := range errs[1:] {
			coordtest.WantErr(w.T, err, coord.ErrUncertain)
			if errors.Is(err, coord.ErrLost) {
				w.T.Errorf("%d: %v", i+1, err)
			}
		}
		w.drained(&sc.q.Consumer)
	})
}

func TestADeniedCombinedAckIsRepeatedForEachAlone(t *testing.T) {
	onMemory(t, func(w *world) {
		sc := newAckScene(w)
		items := sc.take(8)
		denied := 0
		deny := func(context.Context, backendtest.Call, error) error {
			denied++
			return backend.ErrDenied
		}
		errs := sc.gather(items, func() { sc.before.Arm(1, coordtest.Deletes, deny) })
		for i, err := range errs {
			if err != nil { // each of them alone was not denied
				w.T.Errorf("%d: %v", i, err)
			}
		}
		if n := sc.sent(); denied != 1 || n != 9 {
			w.T.Errorf("%d commits, %d denied", n, denied)
		}
		w.drained(&sc.q.Consumer)
	})
}

func TestACloseEndsTheAcksThatWait(t *testing.T) {
	onEach(t, func(w *world) {
		var sc ackScene
		sc.w = w
		c := w.Open("a", sc.hooks())
		sc.q = coord.NewQueue[int](c, "/q", &coord.QueueOptions[int]{Prefetch: 64})
		items := sc.take(8)
		closed := make(chan error, 1)
		errs := sc.gather(items, func() {
			go func() { closed <- c.Close() }()
			w.Eventually("the client is closed", func() bool {
				_, err := sc.q.Len(context.Background())
				return errors.Is(err, coord.ErrClosed)
			})
		})
		if err := <-closed; err != nil {
			w.T.Error(err)
		}
		acked := 0
		for _, err := range errs {
			if err == nil {
				acked++
				continue
			}
			coordtest.WantErr(w.T, err, coord.ErrLost, coord.ErrClosed)
		}
		// An Ack that returned nil is final.
		q := w.queue("b", nil)
		if n := mustLen(w.T, &q.Consumer); n > 8-acked {
			w.T.Errorf("%d items are left, %d were acknowledged", n, acked)
		}
	})
}

func TestAckAllCostsOneCommit(t *testing.T) {
	onEach(t, func(w *world) {
		sc := newAckScene(w)
		for _, n := range []int{0, 1, 2, 64, 128, 200} {
			items := sc.take(n)
			rand.Shuffle(len(items), func(i, j int) { items[i], items[j] = items[j], items[i] })
			if err := sc.q.AckAll(items...); err != nil {
				w.T.Error(err)
			}
			if sent := sc.sent(); sent != sc.commitsFor(n) {
				w.T.Errorf("AckAll of %d: %d commits, want %d", n, sent, sc.commitsFor(n))
			}
			for _, it := range items {
				coordtest.WantErr(w.T, it.Err(), coord.ErrReleased)
				if err := it.Release(); err != nil {
					w.T.Error(err)
				}
				coordtest.WantErr(w.T, it.Nack(0), coord.ErrReleased)
			}
		}
		w.drained(&sc.q.Consumer)
	})
}

func TestAckAllEndsEachItemAsItsAck(t *testing.T) {
	onEach(t, func(w *world) {
		ctx := context.Background()
		sc := newAckScene(w)
		items := sc.take(12)
		nodes := sc.nodes(items[4])
		note := nodes["i"] + "/note"
		sc.outsider(backend.Create(note, nil, backend.Persistent))
		sc.outsider(backend.Delete(items[5].Path(), backend.AnyVersion))
		if err := items[5].Verify(ctx); !errors.Is(err, coord.ErrLost) {
			w.T.Fatal(err)
		}
		mustAck(w.T, items[1])
		if err := items[2].Nack(0); err != nil {
			w.T.Fatal(err)
		}
		if err := items[3].Release(); err != nil {
			w.T.Fatal(err)
		}
		// Some twice, and in any order.
		args := append(slices.Clone(items), items[6], items[7], items[6], items[1])
		rand.Shuffle(len(args), func(i, j int) { args[i], args[j] = args[j], args[i] })
		err := sc.q.AckAll(args...)
		coordtest.WantErr(w.T, err, coord.ErrReleased, coord.ErrLost, coord.ErrDeleted, backend.ErrNotEmpty)
		bad := map[int]error{2: coord.ErrReleased, 3: coord.ErrReleased, 4: backend.ErrNotEmpty, 5: coord.ErrLost}
		for i, it := range items {
			err := it.Ack()
			if want := bad[i]; want != nil {
				coordtest.WantErr(w.T, err, want)
			} else if err != nil {
				w.T.Errorf("%d: %v", i, err)
			}
		}
		sc.outsider(backend.Delete(note, backend.AnyVersion))
		for _, n := range []int{2, 3, 5} {
			mustAck(w.T, mustTake(w.T, sc.q, n))
		}
		w.Eventually("the background acknowledges the one with a node below it", func() bool { return mustLen(w.T, &sc.q.Consumer) == 0 })
	})
}

func TestAckAllRefusesItemsOfOtherQueues(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx := context.Background()
		c := w.Open("a", nil)
		q, other := coord.NewQueue[int](c, "/q", nil), coord.NewQueue[int](c, "/other", nil)
		mustPut(w.T, q, 1, 1)
		mustPut(w.T, other, 2, 2)
		mine, foreign := mustTake(w.T, q, 1), mustTake(w.T, other, 2)
		for name, items := range map[string][]*coord.Item[int]{
			"nil":              {mine, nil},
			"of another queue": {mine, foreign},
			"made by hand":     {{}, mine},
		} {
			err := q.AckAll(items...)
			coordtest.WantErr(w.T, err, coord.ErrInvalid)
			if mine.Err() != nil || foreign.Err() != nil {
				t.Errorf("%s: an item was acknowledged", name)
			}
		}
		if err := mine.Verify(ctx); err != nil {
			w.T.Error(err)
		}
		mustAck(w.T, mine)
		mustAck(w.T, foreign)
		if err := coord.NewQueue[int](c, "//", nil).AckAll(); err != nil {
			w.T.Error(err)
		}
	})
}

// Concurrent Acks, AckAlls with common items, Nacks and Releases of the same items all return.
// One of them takes effect for each item, and their results agree.
func TestConcurrentAcksOfAllKindsAgree(t *testing.T) {
	rounds := 20
	if coordtest.Long() {
		rounds = 300
	}
	onMemory(t, func(w *world) {
		commits, struck := 0, 0
		for round := range rounds {
			sc := newAckScene(w)
			r := rand.New(rand.NewPCG(uint64(round), 7))
			items := sc.take(12)
			type call struct {
				kind  int
				items []*coord.Item[int]
			}
			var calls []call
			for range 10 {
				c := call{kind: r.IntN(6)}
				for range 1 + r.IntN(12) {
					c.items = append(c.items, items[r.IntN(len(items))])
				}
				calls = append(calls, c)
			}
			if lost := r.IntN(40); lost > 0 && round%2 == 0 {
				sc.after.Arm(1+lost%4, coordtest.Deletes, func(_ context.Context, _ backendtest.Call, err error) error {
					if err != nil {
						return err
					}
					return backend.ErrUncertain
				})
			}
			if round%4 == 1 {
				sc.before.Arm(1+r.IntN(4), coordtest.Deletes, func(_ context.Context, c backendtest.Call, _ error) error {
					struck++
					w.Link("a").Expire(c.Session.ID())
					return nil
				})
			}
			var wg sync.WaitGroup
			for _, c := range calls {
				wg.Go(func() {
					switch c.kind {
					case 0:
						c.items[0].Nack(0)
					case 1:
						c.items[0].Release()
					case 2:
						c.items[0].Ack()
					default:
						sc.q.AckAll(c.items...)
					}
				})
			}
			wg.Wait()
			acked := make(map[string]bool)
			for _, it := range items {
				err := it.Ack() // the first call, for some
				acked[it.ID] = err == nil
				if err != nil && !errors.Is(err, coord.ErrReleased) && !errors.Is(err, coord.ErrLost) {
					w.T.Errorf("round %d: %v", round, err)
				}
			}
			// A fault that these calls were too few for must not meet the next ones.
			sc.before.Arm(0, nil, nil)
			sc.after.Arm(0, nil, nil)
			commits += sc.sent()
			if n := coordtest.Inside(&sc.q.Consumer).AckLines(); n != 0 {
				w.T.Errorf("round %d: %d lines are left", round, n)
			}
			// The remaining items were given back or lost; none of them was acknowledged.
			left := 0
			for {
				it, err := sc.q.TryTake(context.Background())
				if errors.Is(err, coord.ErrEmpty) {
					break
				}
				if err != nil {
					w.T.Fatal(err)
				}
				left++
				if acked[it.ID] {
					w.T.Errorf("round %d: %d came again after its Ack", round, it.Value)
				}
				mustAck(w.T, it)
			}
			want := 0
			for _, done := range acked {
				if !done {
					want++
				}
			}
			if left != want {
				w.T.Errorf("round %d: %d items are left, %d were given back or lost", round, left, want)
			}
		}
		w.T.Logf("figure: Acks of all kinds at a time: %d commits in %d rounds, %d sessions lost", commits, rounds, struck)
		if struck == 0 {
			w.T.Error("no session was lost in a commit")
		}
	})
}

func TestANackOfLessThanAMillisecondIsADelay(t *testing.T) {
	onMemory(t, func(w *world) {
		q := w.queue("a", nil)
		mustPut(w.T, q, 1, 1)
		if err := mustTake(w.T, q, 1).Nack(time.Microsecond); err != nil {
			w.T.Fatal(err)
		}
		began := time.Now()
		_, err := q.TryTake(context.Background())
		coordtest.WantErr(w.T, err, coord.ErrEmpty)
		it := mustTake(w.T, q, 1)
		if d := time.Since(began); d < time.Microsecond || d > 10*time.Millisecond {
			w.T.Errorf("it came back after %v", d)
		}
		if err := it.Nack(-time.Second); err != nil {
			w.T.Fatal(err)
		}
		it, err = q.TryTake(context.Background())
		if err != nil || it.Attempt != 3 {
			w.T.Fatalf("%v, %v, want it at once", it, err)
		}
		mustAck(w.T, it)
		w.drained(&q.Consumer)
	})
}

// The longest delay is a delay, and not a time in the past.
func TestANackForeverIsADelay(t *testing.T) {
	onEach(t, func(w *world) {
		q := w.queue("a", nil)
		mustPut(w.T, q, 1, 1)
		if err := mustTake(w.T, q, 1).Nack(math.MaxInt64); err != nil {
			w.T.Fatal(err)
		}
		_, err := q.TryTake(context.Background())
		coordtest.WantErr(w.T, err, coord.ErrEmpty)
		if n, err := q.Len(context.Background()); n != 1 || err != nil {
			w.T.Errorf("%d items, %v", n, err)
		}
	})
}

// The delay of a Nack counts from its call, also if the Nack is refused at first and repeated later.
func TestTheDelayOfANackBeginsWithItsCall(t *testing.T) {
	onMemory(t, func(w *world) {
		const delay = time.Minute
		var on atomic.Bool
		q := w.hookedQueue("a", refuse(&on, coordtest.Deletes), nil)
		other := w.queue("b", nil)
		mustPut(w.T, q, 1, 1)
		it := mustTake(w.T, q, 1)
		on.Store(true)
		began := time.Now()
		coordtest.WantErr(w.T, it.Nack(delay), coord.ErrDenied)
		time.Sleep(delay / 2)
		on.Store(false)
		time.Sleep(delay/2 - time.Second)
		_, err := other.TryTake(context.Background())
		coordtest.WantErr(w.T, err, coord.ErrEmpty)
		again := mustTake(w.T, other, 1)
		if d := time.Since(began); d < delay || d > delay+time.Second {
			w.T.Errorf("it came back %v after a Nack with a delay of %v", d, delay)
		}
		if again.Attempt != 2 {
			w.T.Errorf("attempt %d", again.Attempt)
		}
		mustAck(w.T, again)
		w.drained(&other.Consumer)
	})
}

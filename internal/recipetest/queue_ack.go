package recipetest

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

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

// queueAckTests are tests of Queue on each service.
type queueAckTests struct{ Services }

func (on queueAckTests) AcksThatArriveDuringACommitShareTheNext(t *testing.T) {
	on.each(t, func(w *world) {
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
func (on queueAckTests) OneBadAckAmongManyFailsAlone(t *testing.T) {
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
			on.each(t, func(w *world) {
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

func (on queueAckTests) EachOfManyBadAcksFailsAlone(t *testing.T) {
	on.each(t, func(w *world) {
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

func (on queueAckTests) ALostMessageOfACombinedAckIsResolved(t *testing.T) {
	for _, name := range []string{"request", "reply"} {
		t.Run(name, func(t *testing.T) {
			on.each(t, func(w *world) {
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

func (on queueAckTests) ACloseEndsTheAcksThatWait(t *testing.T) {
	on.each(t, func(w *world) {
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

func (on queueAckTests) AckAllCostsOneCommit(t *testing.T) {
	on.each(t, func(w *world) {
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

func (on queueAckTests) AckAllEndsEachItemAsItsAck(t *testing.T) {
	on.each(t, func(w *world) {
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

// The longest delay is a delay, and not a time in the past.
func (on queueAckTests) ANackForeverIsADelay(t *testing.T) {
	on.each(t, func(w *world) {
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

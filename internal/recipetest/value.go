package recipetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/internal/coordtest"
)

type settings struct {
	Rate int    `json:"rate"`
	Name string `json:"name,omitempty"`
}

func setValue[T any](t *testing.T, v *coord.Value[T], val T) coord.Versioned[T] {
	t.Helper()
	got, err := v.Set(context.Background(), val)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func getValue[T any](t *testing.T, v *coord.Value[T]) coord.Versioned[T] {
	t.Helper()
	got, err := v.Get(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// outsider commits operations as an outsider.
func (w *world) outsider(ops ...backend.Op) {
	w.T.Helper()
	s := w.Session("outsider")
	defer s.Close()
	if _, err := s.Commit(context.Background(), ops...); err != nil {
		w.T.Fatal(err)
	}
}

// nodeData reads a node as an outsider.
func (w *world) nodeData(p string) (string, backend.Stat) {
	w.T.Helper()
	s := w.Session("outsider")
	defer s.Close()
	if err := s.Sync(context.Background(), w.Path(p)); err != nil {
		w.T.Fatal(err)
	}
	data, stat, err := s.Get(context.Background(), w.Path(p), nil)
	if err != nil {
		w.T.Fatal(err)
	}
	return string(data), stat
}

// valueTests are tests of Value on each service.
type valueTests struct{ Services }

func (on valueTests) AValueIsPlainDataInOnePersistentNode(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		c := w.Open("a", nil)
		v := coord.NewValue[settings](c, "/app/config/limits", nil)
		if _, err := v.Get(ctx); !errors.Is(err, coord.ErrNotFound) {
			w.T.Errorf("got %v", err)
		}
		first := setValue(w.T, v, settings{Rate: 1})
		if first.Czxid == 0 || first.Mzxid != first.Czxid || first.Version != 0 || first.Value.Rate != 1 {
			w.T.Errorf("created: %+v", first)
		}
		second := setValue(w.T, v, settings{Rate: 2, Name: "x"})
		if second.Czxid != first.Czxid || second.Version != 1 || second.Mzxid <= first.Mzxid {
			w.T.Errorf("replaced: %+v after %+v", second, first)
		}
		if got := getValue(w.T, v); got != second {
			w.T.Errorf("got %+v, want %+v", got, second)
		}
		data, stat := w.nodeData("/app/config/limits")
		if data != `{"rate":2,"name":"x"}` || stat.EphemeralOwner != 0 || stat.NumChildren != 0 {
			w.T.Errorf("node %q, %+v", data, stat)
		}
		if stat.Czxid != second.Czxid || stat.Mzxid != second.Mzxid || stat.Version != second.Version {
			w.T.Errorf("stat %+v, returned %+v", stat, second)
		}
		c.Close()
		other := coord.NewValue[settings](w.Open("b", nil), "/app/config/limits", nil)
		if got := getValue(w.T, other); got != second {
			w.T.Errorf("another client got %+v, want %+v", got, second)
		}
	})
}

func (on valueTests) AValueLeavesItsParentAlone(t *testing.T) {
	on.each(t, func(w *world) {
		w.outsider(backend.Create(w.Path("/app"), []byte("theirs"), backend.Persistent))
		v := coord.NewValue(w.Open("a", nil), "/app/v", &coord.ValueOptions[string]{Codec: coord.Text()})
		setValue(w.T, v, "x")
		setValue(w.T, v, "y")
		if err := v.Delete(context.Background(), getValue(w.T, v)); err != nil {
			w.T.Error(err)
		}
		data, stat := w.nodeData("/app")
		if data != "theirs" || stat.Version != 0 || stat.NumChildren != 0 {
			w.T.Errorf("parent %q, %+v", data, stat)
		}
	})
}

// Curator-329: version 0 was treated as "no version", so a write under it replaced anything.
func (on valueTests) Version0IsAVersion(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		v := coord.NewValue[int](w.Open("a", nil), "/v", nil)
		first := setValue(w.T, v, 1)
		if first.Version != 0 {
			w.T.Fatalf("version %d", first.Version)
		}
		second, err := v.CompareAndSet(ctx, first, 2)
		if err != nil || second.Version != 1 || second.Czxid != first.Czxid || second.Mzxid <= first.Mzxid {
			w.T.Fatalf("%+v, %v", second, err)
		}
		got, err := v.CompareAndSet(ctx, first, 3)
		if !errors.Is(err, coord.ErrConflict) || got != (coord.Versioned[int]{}) {
			w.T.Errorf("got %+v, %v", got, err)
		}
		coordtest.WantErr(w.T, v.Delete(ctx, first), coord.ErrConflict)
		if got := getValue(w.T, v); got != second {
			w.T.Errorf("got %+v, want %+v", got, second)
		}
	})
}

// Curator-391: a comparison of versions alone mistakes a recreated node for the one that was
// read.
func (on valueTests) ARecreatedValueIsAnotherOneAtTheSameVersion(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		v := coord.NewValue[int](w.Open("a", nil), "/v", nil)
		old := setValue(w.T, v, 1)
		if err := v.Delete(ctx, old); err != nil {
			w.T.Fatal(err)
		}
		_, err := v.CompareAndSet(ctx, old, 2)
		coordtest.WantErr(w.T, err, coord.ErrConflict, coord.ErrNotFound)
		now := setValue(w.T, v, 1)
		if now.Version != old.Version || now.Czxid == old.Czxid {
			w.T.Fatalf("%+v after %+v", now, old)
		}
		_, err = v.CompareAndSet(ctx, old, 2)
		coordtest.WantErr(w.T, err, coord.ErrConflict)
		coordtest.WantErr(w.T, v.Delete(ctx, old), coord.ErrConflict)
		if got := getValue(w.T, v); got != now {
			w.T.Errorf("got %+v, want %+v", got, now)
		}
	})
}

func (on valueTests) AMissingValueIsCreatedOnce(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		v := coord.NewValue[int](w.Open("a", nil), "/x/v", nil)
		none := coord.Versioned[int]{}
		if err := v.Delete(ctx, none); err != nil {
			w.T.Errorf("nothing to delete: %v", err)
		}
		made, err := v.CompareAndSet(ctx, none, 1)
		if err != nil || made.Czxid == 0 || made.Version != 0 {
			w.T.Fatalf("%+v, %v", made, err)
		}
		_, err = v.CompareAndSet(ctx, none, 2)
		coordtest.WantErr(w.T, err, coord.ErrConflict)
		coordtest.WantErr(w.T, v.Delete(ctx, none), coord.ErrConflict)
		if got := getValue(w.T, v); got != made {
			w.T.Errorf("got %+v, want %+v", got, made)
		}
		if err := v.Delete(ctx, made); err != nil {
			w.T.Error(err)
		}
		coordtest.WantErr(w.T, v.Delete(ctx, made), coord.ErrConflict, coord.ErrNotFound)
	})
}

func (on valueTests) UpdateAppliesItsFunctionToTheCurrentValue(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		v := coord.NewValue[settings](w.Open("a", nil), "/x/y/v", nil)
		var saw []int
		inc := func(s settings) (settings, error) {
			saw = append(saw, s.Rate)
			s.Rate++
			return s, nil
		}
		for i := range 3 {
			got, err := v.Update(ctx, inc)
			if err != nil || got.Value.Rate != i+1 || got.Version != int32(i) {
				w.T.Fatalf("%+v, %v", got, err)
			}
			if now := getValue(w.T, v); now != got {
				w.T.Errorf("got %+v, want %+v", now, got)
			}
		}
		if fmt.Sprint(saw) != "[0 1 2]" {
			w.T.Errorf("fn saw %v", saw)
		}
	})
}

// An error of fn ends the update, whatever it matches.
func (on valueTests) AnErrorOfFnEndsTheUpdate(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		v := coord.NewValue[int](w.Open("a", nil), "/v", nil)
		before := setValue(w.T, v, 7)
		for _, cause := range []error{
			errors.New("no"), coord.ErrConflict, coord.ErrNotFound, context.Canceled,
			coord.ErrSessionLost, backend.Uncertain(coord.ErrSessionLost),
		} {
			calls := 0
			got, err := v.Update(ctx, func(old int) (int, error) {
				if calls++; old != 7 {
					w.T.Errorf("fn saw %d", old)
				}
				return 8, fmt.Errorf("refused: %w", cause)
			})
			var e *backend.Error
			if !errors.Is(err, cause) || !errors.As(err, &e) || e.Op != "update" || e.Path != w.Path("/v") {
				w.T.Errorf("got %v, want one that matches %v", err, cause)
			}
			if calls != 1 || got != (coord.Versioned[int]{}) {
				w.T.Errorf("%d calls, %+v", calls, got)
			}
		}
		if got := getValue(w.T, v); got != before {
			w.T.Errorf("got %+v, want %+v", got, before)
		}
	})
}

func (on valueTests) DataThatCannotBeDecodedCanBeRepaired(t *testing.T) {
	on.each(t, func(w *world) {
		ctx := context.Background()
		v := coord.NewValue[settings](w.Open("a", nil), "/v", nil)
		for _, junk := range []string{"{", "[1]", "\x00\xff", strings.Repeat("9", 100_000)} {
			w.outsider(backend.Create(w.Path("/v"), []byte(junk), backend.Persistent))
			broken, err := v.Get(ctx)
			if !errors.Is(err, coord.ErrDecode) || broken.Czxid == 0 || broken.Value != (settings{}) {
				w.T.Fatalf("%+v, %v", broken, err)
			}
			_, err = v.Update(ctx, func(s settings) (settings, error) {
				w.T.Error("fn was called with data that cannot be decoded")
				return s, nil
			})
			coordtest.WantErr(w.T, err, coord.ErrDecode)
			fixed, err := v.CompareAndSet(ctx, broken, settings{Rate: 5})
			if err != nil || fixed.Czxid != broken.Czxid || fixed.Version != 1 {
				w.T.Fatalf("%+v, %v", fixed, err)
			}
			if err := v.Delete(ctx, fixed); err != nil {
				w.T.Fatal(err)
			}
		}
	})
}

func (on valueTests) ConcurrentUpdatesOfOneClientAllCount(t *testing.T) {
	on.each(t, func(w *world) {
		c := w.Open("a", nil)
		const callers, each = 8, 10
		var wg sync.WaitGroup
		for range callers {
			v := coord.NewValue[int](c, "/p/v", nil)
			wg.Go(func() {
				for range each {
					if _, err := v.Update(context.Background(), func(n int) (int, error) { return n + 1, nil }); err != nil {
						w.T.Error(err)
					}
				}
			})
		}
		wg.Wait()
		got := getValue(w.T, coord.NewValue[int](c, "/p/v", nil))
		if got.Value != callers*each || got.Version != callers*each-1 {
			w.T.Errorf("got %+v, want %d", got, callers*each)
		}
	})
}

// lossy loses a share of the replies to the requests of one client.
type lossy struct {
	link backendtest.Link

	mu      sync.Mutex
	r       *rand.Rand
	on      bool
	calls   int
	lost    int
	commits int // among the lost
}

func (x *lossy) before(_ context.Context, c backendtest.Call) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.on {
		return nil
	}
	x.calls++
	if x.r.IntN(20) == 0 {
		x.lost++
		if c.Op == "commit" {
			x.commits++
		}
		x.link.DropNextReply()
	}
	return nil
}

// crowd returns n clients that lose one reply in twenty.
func (w *world) crowd(n int) ([]*coord.Client, []*lossy) {
	var clients []*coord.Client
	var faults []*lossy
	for i := range n {
		name := fmt.Sprint("c", i)
		if l, ok := w.Link(name).(interface{ SetLatency(time.Duration) }); ok && w.Fake {
			l.SetLatency(time.Millisecond) // else no two updates would overlap
		}
		x := &lossy{link: w.Link(name), r: rand.New(rand.NewPCG(1, uint64(i)))}
		clients = append(clients, w.Open(name, &backendtest.Hooks{Before: x.before}))
		x.mu.Lock()
		x.on = true
		x.mu.Unlock()
		faults = append(faults, x)
	}
	return clients, faults
}

// report logs the figures, and fails the test if no reply, or none of a commit, was lost.
func (w *world) report(what string, faults []*lossy, done int, took time.Duration) {
	w.T.Helper()
	calls, lost, commits := 0, 0, 0
	for _, x := range faults {
		x.mu.Lock()
		calls, lost, commits = calls+x.calls, lost+x.lost, commits+x.commits
		x.mu.Unlock()
	}
	w.T.Logf("figure: %s: %d in %v, %.1f requests each, %d replies lost, %d of them of commits",
		what, done, took.Round(time.Millisecond), float64(calls)/float64(done), lost, commits)
	if lost == 0 || commits == 0 {
		w.T.Error("no reply was lost: this tested nothing")
	}
}

// each returns the number of operations of each client of a crowd.
func each(short, full int) int {
	if coordtest.Long() {
		return full
	}
	return short
}

func (on valueTests) UpdatesOfEightClientsAreExactWhenRepliesAreLost(t *testing.T) {
	on.each(t, func(w *world) {
		clients, faults := w.crowd(8)
		n := each(25, 500)
		start := time.Now()
		var wg sync.WaitGroup
		for _, c := range clients {
			wg.Go(func() {
				v := coord.NewValue[int](c, "/x/v", nil)
				var changed int64
				for range n {
					got, err := v.Update(context.Background(), inc)
					if err != nil {
						w.T.Error(err)
						return
					}
					if got.Mzxid <= changed {
						w.T.Errorf("%+v after %d", got, changed)
					}
					changed = got.Mzxid
				}
			})
		}
		wg.Wait()
		w.report("updates by 8 clients", faults, 8*n, time.Since(start))
		got := getValue(w.T, coord.NewValue[int](w.Open("z", nil), "/x/v", nil))
		if got.Value != 8*n || got.Version != int32(8*n-1) {
			w.T.Errorf("got %+v, want %d", got, 8*n)
		}
	})
}

func (on valueTests) AdditionsOfEightClientsAreExactWhenRepliesAreLost(t *testing.T) {
	on.each(t, func(w *world) {
		clients, faults := w.crowd(8)
		n := each(50, 1000)
		start := time.Now()
		var wg sync.WaitGroup
		for _, c := range clients {
			wg.Go(func() {
				counter := coord.NewCounter(c, "/n")
				last := int64(0)
				for range n {
					got, err := counter.Add(context.Background(), 1)
					if err != nil {
						w.T.Error(err)
						return
					}
					if got <= last {
						w.T.Errorf("%d after %d", got, last)
					}
					last = got
				}
			})
		}
		wg.Wait()
		w.report("additions by 8 clients", faults, 8*n, time.Since(start))
		if data, stat := w.nodeData("/n"); data != fmt.Sprint(8*n) || stat.Version != int32(8*n-1) {
			w.T.Errorf("the node holds %s, version %d, want %d", data, stat.Version, 8*n)
		}
	})
}

func (on valueTests) BlocksReservedByEightClientsAreDisjointWhenRepliesAreLost(t *testing.T) {
	on.each(t, func(w *world) {
		clients, faults := w.crowd(8)
		n := each(25, 500)
		type block struct{ first, count int64 }
		var mu sync.Mutex
		var blocks []block
		start := time.Now()
		var wg sync.WaitGroup
		for i, c := range clients {
			wg.Go(func() {
				counter := coord.NewCounter(c, "/ids")
				r := rand.New(rand.NewPCG(2, uint64(i)))
				for range n {
					b := block{count: 1 + r.Int64N(100)}
					var err error
					if b.first, err = counter.Reserve(context.Background(), b.count); err != nil {
						w.T.Error(err)
						return
					}
					mu.Lock()
					blocks = append(blocks, b)
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		w.report("blocks reserved by 8 clients", faults, 8*n, time.Since(start))
		slices.SortFunc(blocks, func(a, b block) int { return int(a.first - b.first) })
		next := int64(1)
		for _, b := range blocks {
			if b.first != next {
				w.T.Fatalf("a block begins at %d, the one before ends at %d", b.first, next-1)
			}
			next += b.count
		}
		if data, _ := w.nodeData("/ids"); len(blocks) != 8*n || data != fmt.Sprint(next-1) {
			w.T.Errorf("%d blocks, the node holds %s, want %d", len(blocks), data, next-1)
		}
	})
}

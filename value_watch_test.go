package coord_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/backend/memory"
	"github.com/go-coord/coord/internal/coordtest"
)

// nextValue returns the next element of a watch.
func nextValue[T any](t *testing.T, ch <-chan coord.Versioned[T]) coord.Versioned[T] {
	t.Helper()
	select {
	case e, ok := <-ch:
		if !ok {
			t.Fatal("the watch was closed")
		}
		return e
	case <-time.After(30 * time.Second):
		t.Fatal("the watch reports nothing")
	}
	panic("not reached")
}

// quietValue fails the test if a watch reports an element. Only under fake time does it show
// that none is under way.
func quietValue[T any](w *world, ch <-chan coord.Versioned[T]) {
	w.T.Helper()
	w.Settle()
	select {
	case e, ok := <-ch:
		w.T.Errorf("the watch reports %+v, %v, but nothing has changed", e, ok)
	default:
	}
}

func TestAWatchReportsEachState(t *testing.T) {
	onEach(t, func(w *world) {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		v := coord.NewValue[settings](w.Open("a", nil), "/x/v", nil)
		other := coord.NewValue[settings](w.Open("b", nil), "/x/v", nil)
		ch := v.Watch(ctx)
		e := nextValue(w.T, ch)
		var named *backend.Error
		if !errors.Is(e.Err, coord.ErrNotFound) || !errors.As(e.Err, &named) || named.Op != "watch" || e.Czxid != 0 {
			w.T.Errorf("nothing there: %+v", e)
		}
		quietValue(w, ch)
		first := setValue(w.T, other, settings{Rate: 1})
		if e := nextValue(w.T, ch); e != first {
			w.T.Errorf("reported %+v, want %+v", e, first)
		}
		second := setValue(w.T, other, settings{Rate: 2})
		if e := nextValue(w.T, ch); e != second {
			w.T.Errorf("reported %+v, want %+v", e, second)
		}
		quietValue(w, ch)
		// The same value again is a change.
		third := setValue(w.T, other, settings{Rate: 2})
		if e := nextValue(w.T, ch); e != third {
			w.T.Errorf("reported %+v, want %+v", e, third)
		}
		w.outsider(backend.SetData(w.Path("/x/v"), []byte("{"), backend.AnyVersion))
		e = nextValue(w.T, ch)
		if !errors.Is(e.Err, coord.ErrDecode) || e.Version != 3 || e.Czxid != first.Czxid || e.Mzxid <= third.Mzxid {
			w.T.Errorf("undecodable: %+v", e)
		}
		fixed, err := v.CompareAndSet(ctx, e, settings{Rate: 3})
		if err != nil {
			w.T.Fatal(err)
		}
		if e := nextValue(w.T, ch); e != fixed {
			w.T.Errorf("reported %+v, want %+v", e, fixed)
		}
		if err := other.Delete(ctx, fixed); err != nil {
			w.T.Fatal(err)
		}
		if e := nextValue(w.T, ch); !errors.Is(e.Err, coord.ErrNotFound) {
			w.T.Errorf("deleted: %+v", e)
		}
		again := setValue(w.T, other, settings{Rate: 4})
		if e := nextValue(w.T, ch); e != again {
			w.T.Errorf("reported %+v, want %+v", e, again)
		}
		// In one commit, so that there is no state between them; and the version is equal.
		w.outsider(backend.Delete(w.Path("/x/v"), 0), backend.Create(w.Path("/x/v"), []byte(`{"rate":4}`), backend.Persistent))
		if e := nextValue(w.T, ch); e.Version != again.Version || e.Czxid <= again.Czxid || e.Value != again.Value {
			w.T.Errorf("made again: %+v after %+v", e, again)
		}
		cancel()
		w.Eventually("the channel is closed", func() bool {
			select {
			case e, ok := <-ch:
				if ok {
					w.T.Errorf("reported %+v after the end", e)
				}
				return !ok
			default:
				return false
			}
		})
	})
}

func TestASlowReaderOfAWatchSeesTheNewest(t *testing.T) {
	onEach(t, func(w *world) {
		v := coord.NewValue[int](w.Open("a", nil), "/v", nil)
		setValue(w.T, v, 0)
		ch := coord.NewValue[int](w.Open("b", nil), "/v", nil).Watch(w.T.Context())
		var last coord.Versioned[int]
		for i := range 10 {
			last = setValue(w.T, v, i+1)
		}
		var changed int64
		for e := nextValue(w.T, ch); e.Value != 10; e = nextValue(w.T, ch) {
			if e.Mzxid <= changed {
				w.T.Errorf("reported %+v after %d", e, changed)
			}
			changed = e.Mzxid
		}
		quietValue(w, ch)
		if got := getValue(w.T, v); got != last {
			w.T.Errorf("got %+v, want %+v", got, last)
		}
	})
}

func TestCloseEndsAWatchWithErrClosed(t *testing.T) {
	onEach(t, func(w *world) {
		c := w.Open("a", nil)
		v, gone := coord.NewValue[int](c, "/v", nil), coord.NewValue[int](c, "/none", nil)
		setValue(w.T, v, 1)
		watches := []<-chan coord.Versioned[int]{v.Watch(context.Background()), gone.Watch(context.Background())}
		for _, ch := range watches {
			nextValue(w.T, ch)
		}
		c.Close()
		for _, ch := range append(watches, v.Watch(context.Background())) {
			e := nextValue(w.T, ch)
			if !errors.Is(e.Err, coord.ErrClosed) || e.Czxid != 0 {
				w.T.Errorf("last element %+v", e)
			}
			if e, ok := <-ch; ok {
				w.T.Errorf("%+v after the last element", e)
			}
		}
		_, err := v.Set(context.Background(), 2)
		coordtest.WantErr(w.T, err, coord.ErrClosed)
		_, err = coord.NewCounter(c, "/n").Add(context.Background(), 1)
		coordtest.WantErr(w.T, err, coord.ErrClosed)
	})
}

func TestAWatchThatIsRefusedEndsWithTheReason(t *testing.T) {
	onMemory(t, func(w *world) {
		var before coordtest.Nth
		v := coord.NewValue[int](w.Open("a", &backendtest.Hooks{Before: before.Before}), "/v", nil)
		setValue(w.T, v, 1)
		ch := v.Watch(w.T.Context())
		nextValue(w.T, ch)
		before.Arm(1, func(c backendtest.Call) bool { return c.Op == "get" },
			func(context.Context, backendtest.Call, error) error { return backend.ErrDenied })
		setValue(w.T, v, 2)
		if e := nextValue(w.T, ch); !errors.Is(e.Err, coord.ErrDenied) || e.Czxid != 0 {
			w.T.Errorf("last element %+v", e)
		}
		if e, ok := <-ch; ok {
			w.T.Errorf("%+v after the last element", e)
		}
	})
}

// Curator-311: a reader kept what it had read before the connection broke.
func TestAWatchIsNotStaleAfterPartitionAndExpiry(t *testing.T) {
	onEach(t, func(w *world) {
		c := w.Open("a", nil)
		v := coord.NewValue[int](c, "/v", nil)
		other := coord.NewValue[int](w.Open("b", nil), "/v", nil)
		last := setValue(w.T, other, 1)
		ch := v.Watch(w.T.Context())
		none := coord.NewValue[int](c, "/none", nil).Watch(w.T.Context())
		if e := nextValue(w.T, ch); e != last {
			w.T.Errorf("reported %+v, want %+v", e, last)
		}
		nextValue(w.T, none)
		link := w.Link("a")
		states := c.WatchState(w.T.Context())
		until := func(phase coord.Phase) {
			w.T.Helper()
			for st := range states {
				if st.Phase == phase {
					return
				}
			}
		}
		changes := map[string]func(){
			"replaced": func() { last = setValue(w.T, other, last.Value+1) },
			"made again": func() { // at the same version
				if err := other.Delete(context.Background(), last); err != nil {
					w.T.Fatal(err)
				}
				last = setValue(w.T, other, last.Value+1)
				for range 3 {
					last = setValue(w.T, other, last.Value+1)
				}
			},
			"nothing": func() {},
		}
		for _, what := range []string{"nothing", "replaced", "made again", "nothing"} {
			for _, lost := range []bool{false, true} {
				told := last
				until(coord.PhaseConnected)
				link.Partition()
				until(coord.PhaseSuspended)
				if lost {
					until(coord.PhaseLost)
				}
				changes[what]()
				link.Heal()
				if what != "nothing" {
					if e := nextValue(w.T, ch); e != last {
						w.T.Errorf("%s after %v, lost %v: reported %+v, want %+v", what, told, lost, e, last)
					}
				}
				until(coord.PhaseConnected)
				if w.Fake {
					time.Sleep(time.Second)
				}
				quietValue(w, ch)
				quietValue(w, none)
				states = c.WatchState(w.T.Context())
			}
		}
		s, err := c.Session(context.Background())
		if err != nil {
			w.T.Fatal(err)
		}
		link.Expire(s.ID())
		last = setValue(w.T, other, 100)
		if e := nextValue(w.T, ch); e != last {
			w.T.Errorf("after expiry: reported %+v, want %+v", e, last)
		}
	})
}

func TestAValueMadeBetweenTheTwoReadsOfAWatchIsSeen(t *testing.T) {
	onEach(t, func(w *world) {
		var before coordtest.Nth
		c := w.Open("a", &backendtest.Hooks{Before: before.Before})
		before.Arm(1, func(c backendtest.Call) bool { return c.Op == "exists" && c.Path == w.Path("/v") },
			func(context.Context, backendtest.Call, error) error {
				w.outsider(backend.Create(w.Path("/v"), []byte("7"), backend.Persistent))
				return nil
			})
		v := coord.NewValue[int](c, "/v", nil)
		ch := v.Watch(w.T.Context())
		if e := nextValue(w.T, ch); e.Err != nil || e.Value != 7 {
			w.T.Errorf("reported %+v", e)
		}
		last := setValue(w.T, v, 8)
		if e := nextValue(w.T, ch); e != last {
			w.T.Errorf("reported %+v, want %+v", e, last)
		}
	})
}

// lagging is a backend whose sessions read one node from a server that lags behind, until a
// Sync.
type lagging struct {
	backend.Backend
	path string

	mu    sync.Mutex
	stale bool
	data  []byte
	stat  backend.Stat
	err   error
}

type laggingSession struct {
	backend.Session
	l *lagging
}

func (l *lagging) Open(ctx context.Context) (backend.Session, error) {
	s, err := l.Backend.Open(ctx)
	if err != nil {
		return nil, err
	}
	return &laggingSession{s, l}, nil
}

// freeze makes the server keep the current state of the node.
func (l *lagging) freeze(w *world) {
	s := w.Session("observer")
	defer s.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.data, l.stat, l.err = s.Get(context.Background(), l.path, nil)
	l.stale = true
}

func (s *laggingSession) Get(ctx context.Context, path string, w *backend.Watch) ([]byte, backend.Stat, error) {
	data, stat, err := s.Session.Get(ctx, path, w)
	s.l.mu.Lock()
	defer s.l.mu.Unlock()
	if s.l.stale && path == s.l.path {
		return s.l.data, s.l.stat, s.l.err
	}
	return data, stat, err
}

func (s *laggingSession) Exists(ctx context.Context, path string, w *backend.Watch) (backend.Stat, error) {
	stat, err := s.Session.Exists(ctx, path, w)
	s.l.mu.Lock()
	defer s.l.mu.Unlock()
	if s.l.stale && path == s.l.path {
		return s.l.stat, s.l.err
	}
	return stat, err
}

func (s *laggingSession) Sync(ctx context.Context, path string) error {
	err := s.Session.Sync(ctx, path)
	s.l.mu.Lock()
	defer s.l.mu.Unlock()
	s.l.stale = false
	return err
}

func TestAServerThatLagsMakesNoFalseConflict(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		l := &lagging{Backend: w.Link("a"), path: "/v"}
		v := coord.NewValue[int](coordtest.Open(w.T, l, nil), "/v", nil)
		other := coord.NewValue[int](w.Open("b", nil), "/v", nil)

		l.freeze(w)
		theirs := setValue(w.T, other, 1)
		mine, err := v.CompareAndSet(ctx, theirs, 2)
		if err != nil || mine.Version != 1 {
			w.T.Fatalf("created meanwhile: %+v, %v", mine, err)
		}
		l.freeze(w)
		theirs = setValue(w.T, other, 3)
		if mine, err = v.CompareAndSet(ctx, theirs, 4); err != nil || mine.Version != 3 {
			w.T.Fatalf("replaced meanwhile: %+v, %v", mine, err)
		}
		l.freeze(w)
		theirs = setValue(w.T, other, 5)
		if err := v.Delete(ctx, theirs); err != nil {
			w.T.Errorf("delete: %v", err)
		}
		// A server that lags does not make a value missing either.
		l.freeze(w)
		setValue(w.T, other, 6)
		coordtest.WantErr(w.T, v.Delete(ctx, coord.Versioned[int]{}), coord.ErrConflict)
	})
}

func TestUpdateReadsAgainIfTheServerLags(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		l := &lagging{Backend: w.Link("a"), path: "/v"}
		v := coord.NewValue[int](coordtest.Open(w.T, l, nil), "/v", nil)
		other := coord.NewValue[int](w.Open("b", nil), "/v", nil)
		var saw []int
		note := func(f func(int) (int, error)) func(int) (int, error) {
			saw = nil
			return func(n int) (int, error) { saw = append(saw, n); return f(n) }
		}

		l.freeze(w)
		setValue(w.T, other, 10)
		got, err := v.Update(ctx, note(inc))
		if err != nil || got.Value != 11 || fmt.Sprint(saw) != "[0 10]" {
			w.T.Errorf("created meanwhile: %+v, %v, fn saw %v", got, err, saw)
		}
		l.freeze(w)
		setValue(w.T, other, 20)
		got, err = v.Update(ctx, note(inc))
		if err != nil || got.Value != 21 || fmt.Sprint(saw) != "[11 20]" {
			w.T.Errorf("replaced meanwhile: %+v, %v, fn saw %v", got, err, saw)
		}
		// An error of fn counts only for the current value.
		l.freeze(w)
		setValue(w.T, other, 30)
		got, err = v.Update(ctx, note(func(n int) (int, error) {
			if n != 30 {
				return 0, errors.New("not ready")
			}
			return 31, nil
		}))
		if err != nil || got.Value != 31 || fmt.Sprint(saw) != "[21 30]" {
			w.T.Errorf("refused what was old: %+v, %v, fn saw %v", got, err, saw)
		}
		// So does data that cannot be decoded.
		w.outsider(backend.SetData("/v", []byte("{"), backend.AnyVersion))
		l.freeze(w)
		setValue(w.T, other, 40)
		if got, err = v.Update(ctx, inc); err != nil || got.Value != 41 {
			w.T.Errorf("repaired meanwhile: %+v, %v", got, err)
		}
	})
}

func TestAWatchDoesNotGoBackIfTheNextServerLags(t *testing.T) {
	onMemory(t, func(w *world) {
		l := &lagging{Backend: w.Link("a"), path: "/v"}
		c := coordtest.Open(w.T, l, nil)
		v := coord.NewValue[int](c, "/v", nil)
		other := coord.NewValue[int](w.Open("b", nil), "/v", nil)
		ch := v.Watch(w.T.Context())
		nextValue(w.T, ch)
		for i := range 2 {
			l.freeze(w)
			l.mu.Lock()
			l.stale = false
			l.mu.Unlock()
			last := setValue(w.T, other, i)
			if e := nextValue(w.T, ch); e != last {
				w.T.Errorf("reported %+v, want %+v", e, last)
			}
			l.mu.Lock()
			l.stale = true
			l.mu.Unlock()
			s, err := c.Session(context.Background())
			if err != nil {
				w.T.Fatal(err)
			}
			w.Link("a").Expire(s.ID())
			time.Sleep(time.Second)
			quietValue(w, ch)
		}
	})
}

// aged is a backend that shows nodes as if they had been changed very often: it adds to their
// versions.
type aged struct {
	backend.Backend
	by map[int64]int32 // czxid: versions that are added
}

type agedSession struct {
	backend.Session
	b *aged
}

func (b *aged) Open(ctx context.Context) (backend.Session, error) {
	s, err := b.Backend.Open(ctx)
	if err != nil {
		return nil, err
	}
	return &agedSession{s, b}, nil
}

func (b *aged) see(stat *backend.Stat) { stat.Version += b.by[stat.Czxid] }

func (s *agedSession) Children(ctx context.Context, path string, w *backend.Watch) ([]string, backend.Stat, error) {
	names, stat, err := s.Session.Children(ctx, path, w)
	s.b.see(&stat)
	return names, stat, err
}

func (s *agedSession) Get(ctx context.Context, path string, w *backend.Watch) ([]byte, backend.Stat, error) {
	data, stat, err := s.Session.Get(ctx, path, w)
	s.b.see(&stat)
	return data, stat, err
}

func (s *agedSession) Exists(ctx context.Context, path string, w *backend.Watch) (backend.Stat, error) {
	stat, err := s.Session.Exists(ctx, path, w)
	s.b.see(&stat)
	return stat, err
}

func (s *agedSession) ReadMany(ctx context.Context, reads ...backend.Read) ([]backend.ReadResult, error) {
	got, err := s.Session.ReadMany(ctx, reads...)
	for i := range got {
		s.b.see(&got[i].Stat)
	}
	return got, err
}

func (s *agedSession) Commit(ctx context.Context, ops ...backend.Op) ([]backend.Result, error) {
	if err := backend.CheckOps(ops); err != nil {
		return nil, err
	}
	young := append([]backend.Op(nil), ops...)
	for i := range young {
		if stat, err := s.Session.Exists(ctx, young[i].Path, nil); err == nil && young[i].Version != backend.AnyVersion {
			young[i].Version -= s.b.by[stat.Czxid]
		}
	}
	results, err := s.Session.Commit(ctx, young...)
	for i := range results {
		s.b.see(&results[i].Stat)
	}
	return results, err
}

// Curator-688: the version after the largest is negative, and a write conditional on version -1
// is unconditional.
func TestVersionsThatRunOutReplaceNothingBlindly(t *testing.T) {
	for _, c := range []struct {
		first int32
		err   error
	}{{math.MaxInt32 - 2, nil}, {math.MinInt32, coord.ErrLimit}, {-1, coord.ErrLimit}} {
		t.Run(fmt.Sprint(c.first), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx := t.Context()
				b := &aged{Backend: memory.New(nil), by: make(map[int64]int32)}
				client := coordtest.Open(t, b, nil)
				v, n := coord.NewValue[int](client, "/v", nil), coord.NewCounter(client, "/v")
				first := setValue(t, v, 1)
				b.by[first.Czxid] = c.first
				var changed int64
				for i := range 5 {
					now := getValue(t, v)
					if now.Mzxid <= changed {
						t.Errorf("%+v after %d", now, changed)
					}
					changed = now.Mzxid
					got, err := v.CompareAndSet(ctx, now, i+2)
					if !errors.Is(err, c.err) {
						t.Fatalf("at %d: %v", now.Version, err)
					}
					if err != nil {
						_, err = n.Add(ctx, 1)
						coordtest.WantErr(t, err, c.err)
						coordtest.WantErr(t, v.Delete(ctx, now), c.err)
						setValue(t, v, 7) // the way out that the error names
						return
					}
					if read := getValue(t, v); read != got || got.Version < 0 {
						t.Errorf("returned %+v, stored %+v", got, read)
					}
				}
				if got := getValue(t, v); got.Czxid == first.Czxid || got.Version != 2 {
					t.Errorf("got %+v, want another creation", got)
				}
			})
		})
	}
}

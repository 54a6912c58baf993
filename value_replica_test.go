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
	"github.com/go-coord/coord/backend/memory"
)

// lagging is a backend whose sessions read from a server that stands still, as far
// as one node is concerned, until they ask it to catch up.
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

// freeze makes the server stand still where it is.
func (l *lagging) freeze(w *world) {
	s := w.session("observer")
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
		v := coord.NewValue[int](open(w.t, l, nil), "/v", nil)
		other := coord.NewValue[int](w.open("b", nil), "/v", nil)

		l.freeze(w)
		theirs := setValue(w.t, other, 1)
		mine, err := v.CompareAndSet(ctx, theirs, 2)
		if err != nil || mine.Version != 1 {
			w.t.Fatalf("created meanwhile: %+v, %v", mine, err)
		}
		l.freeze(w)
		theirs = setValue(w.t, other, 3)
		if mine, err = v.CompareAndSet(ctx, theirs, 4); err != nil || mine.Version != 3 {
			w.t.Fatalf("replaced meanwhile: %+v, %v", mine, err)
		}
		l.freeze(w)
		theirs = setValue(w.t, other, 5)
		if err := v.Delete(ctx, theirs); err != nil {
			w.t.Errorf("delete: %v", err)
		}
		// Nor a false "nothing there".
		l.freeze(w)
		setValue(w.t, other, 6)
		wantErr(w.t, v.Delete(ctx, coord.Versioned[int]{}), coord.ErrConflict)
	})
}

func TestUpdateLooksAgainWhereTheServerLags(t *testing.T) {
	onMemory(t, func(w *world) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		l := &lagging{Backend: w.Link("a"), path: "/v"}
		v := coord.NewValue[int](open(w.t, l, nil), "/v", nil)
		other := coord.NewValue[int](w.open("b", nil), "/v", nil)
		var saw []int
		note := func(f func(int) (int, error)) func(int) (int, error) {
			saw = nil
			return func(n int) (int, error) { saw = append(saw, n); return f(n) }
		}

		l.freeze(w)
		setValue(w.t, other, 10)
		got, err := v.Update(ctx, note(inc))
		if err != nil || got.Value != 11 || fmt.Sprint(saw) != "[0 10]" {
			w.t.Errorf("created meanwhile: %+v, %v, fn saw %v", got, err, saw)
		}
		l.freeze(w)
		setValue(w.t, other, 20)
		got, err = v.Update(ctx, note(inc))
		if err != nil || got.Value != 21 || fmt.Sprint(saw) != "[11 20]" {
			w.t.Errorf("replaced meanwhile: %+v, %v, fn saw %v", got, err, saw)
		}
		// An error of fn counts only for what stands there.
		l.freeze(w)
		setValue(w.t, other, 30)
		got, err = v.Update(ctx, note(func(n int) (int, error) {
			if n != 30 {
				return 0, errors.New("not ready")
			}
			return 31, nil
		}))
		if err != nil || got.Value != 31 || fmt.Sprint(saw) != "[21 30]" {
			w.t.Errorf("refused what was old: %+v, %v, fn saw %v", got, err, saw)
		}
		// So does data that nobody understands.
		w.outsider(backend.SetData("/v", []byte("{"), backend.AnyVersion))
		l.freeze(w)
		setValue(w.t, other, 40)
		if got, err = v.Update(ctx, inc); err != nil || got.Value != 41 {
			w.t.Errorf("repaired meanwhile: %+v, %v", got, err)
		}
	})
}

func TestAWatchDoesNotGoBackWhereTheNextServerLags(t *testing.T) {
	onMemory(t, func(w *world) {
		l := &lagging{Backend: w.Link("a"), path: "/v"}
		c := open(w.t, l, nil)
		v := coord.NewValue[int](c, "/v", nil)
		other := coord.NewValue[int](w.open("b", nil), "/v", nil)
		ch := v.Watch(w.t.Context())
		nextValue(w.t, ch)
		for i := range 2 {
			l.freeze(w)
			l.mu.Lock()
			l.stale = false
			l.mu.Unlock()
			last := setValue(w.t, other, i)
			if e := nextValue(w.t, ch); e != last {
				w.t.Errorf("told %+v, want %+v", e, last)
			}
			l.mu.Lock()
			l.stale = true
			l.mu.Unlock()
			s, err := c.Session(context.Background())
			if err != nil {
				w.t.Fatal(err)
			}
			w.Link("a").Expire(s.ID())
			time.Sleep(time.Second)
			quietValue(w, ch)
		}
	})
}

// aged is a backend whose nodes have been changed very often before they are
// seen for the first time.
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

// Curator-688: the version after the largest is negative, and at -1 a write under
// the version is one under any version.
func TestVersionsThatRunOutReplaceNothingBlindly(t *testing.T) {
	for _, c := range []struct {
		first int32
		err   error
	}{{math.MaxInt32 - 2, nil}, {math.MinInt32, coord.ErrLimit}, {-1, coord.ErrLimit}} {
		t.Run(fmt.Sprint(c.first), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx := t.Context()
				b := &aged{Backend: memory.New(nil), by: make(map[int64]int32)}
				client := open(t, b, nil)
				v, n := coord.NewValue[int](client, "/v", nil), coord.NewCounter(client, "/v", nil)
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
						wantErr(t, err, c.err)
						wantErr(t, v.Delete(ctx, now), c.err)
						setValue(t, v, 7) // what it says is the way out
						return
					}
					if read := getValue(t, v); read != got || got.Version < 0 {
						t.Errorf("told %+v, there is %+v", got, read)
					}
				}
				if got := getValue(t, v); got.Czxid == first.Czxid || got.Version != 2 {
					t.Errorf("got %+v, want another creation", got)
				}
			})
		})
	}
}

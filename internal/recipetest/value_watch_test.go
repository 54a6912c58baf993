package recipetest

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

func TestValue_AWatchThatIsRefusedEndsWithTheReason(t *testing.T) {
	onMemory(t, func(w *world) {
		var before coordtest.Nth
		v := coord.NewValue[int](w.Open("a", &backendtest.Hooks{Before: before.Before}), "/v", nil)
		setValue(w.T, v, 1)
		ch := v.Watch(w.T.Context())
		next(w.T, ch)
		before.Arm(1, func(c backendtest.Call) bool { return c.Op == "get" },
			func(context.Context, backendtest.Call, error) error { return backend.ErrDenied })
		setValue(w.T, v, 2)
		if e := next(w.T, ch); !errors.Is(e.Err, coord.ErrDenied) || e.Czxid != 0 {
			w.T.Errorf("last element %+v", e)
		}
		if e, ok := <-ch; ok {
			w.T.Errorf("%+v after the last element", e)
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
	if s.lags(path, err) {
		return s.l.data, s.l.stat, s.l.err
	}
	return data, stat, err
}

func (s *laggingSession) Exists(ctx context.Context, path string, w *backend.Watch) (backend.Stat, error) {
	stat, err := s.Session.Exists(ctx, path, w)
	s.l.mu.Lock()
	defer s.l.mu.Unlock()
	if s.lags(path, err) {
		return s.l.stat, s.l.err
	}
	return stat, err
}

// lags reports whether a read, which the server has answered with err, shows the old state. A session that has ended
// reads nothing. It needs the mutex.
func (s *laggingSession) lags(path string, err error) bool {
	return s.l.stale && path == s.l.path && (err == nil || errors.Is(err, backend.ErrNotFound))
}

func (s *laggingSession) Sync(ctx context.Context, path string) error {
	err := s.Session.Sync(ctx, path)
	s.l.mu.Lock()
	defer s.l.mu.Unlock()
	s.l.stale = false
	return err
}

func TestValue_AServerThatLagsMakesNoFalseConflict(t *testing.T) {
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

func TestValue_UpdateReadsAgainIfTheServerLags(t *testing.T) {
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

func TestValue_AWatchDoesNotGoBackIfTheNextServerLags(t *testing.T) {
	onMemory(t, func(w *world) {
		l := &lagging{Backend: w.Link("a"), path: "/v"}
		c := coordtest.Open(w.T, l, nil)
		v := coord.NewValue[int](c, "/v", nil)
		other := coord.NewValue[int](w.Open("b", nil), "/v", nil)
		ch := v.Watch(w.T.Context())
		next(w.T, ch)
		for i := range 2 {
			l.freeze(w)
			l.mu.Lock()
			l.stale = false
			l.mu.Unlock()
			last := setValue(w.T, other, i)
			if e := next(w.T, ch); e != last {
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
func TestValue_VersionsThatRunOutReplaceNothingBlindly(t *testing.T) {
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

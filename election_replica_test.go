package coord_test

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/backend/memory"
)

// frozenServer is a server that shows what it showed when it was frozen, until Sync.
type frozenServer struct {
	backend.Backend
	mu    sync.Mutex
	on    bool
	names []string
	data  map[string][]byte
	stat  map[string]backend.Stat
}
type frozenSession struct {
	backend.Session
	f *frozenServer
}

func (f *frozenServer) Open(ctx context.Context) (backend.Session, error) {
	s, err := f.Backend.Open(ctx)
	if err != nil {
		return nil, err
	}
	return &frozenSession{s, f}, nil
}
func (s *frozenSession) Children(ctx context.Context, p string, w *backend.Watch) ([]string, backend.Stat, error) {
	n, st, err := s.Session.Children(ctx, p, w)
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	if s.f.on && p == "/e" {
		return append([]string(nil), s.f.names...), st, nil
	}
	return n, st, err
}
func (s *frozenSession) Get(ctx context.Context, p string, w *backend.Watch) ([]byte, backend.Stat, error) {
	d, st, err := s.Session.Get(ctx, p, w)
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	if old, ok := s.f.stat[p]; s.f.on && ok {
		return s.f.data[p], old, nil
	}
	return d, st, err
}
func (s *frozenSession) Sync(ctx context.Context, p string) error {
	err := s.Session.Sync(ctx, p)
	s.f.mu.Lock()
	s.f.on = false
	s.f.mu.Unlock()
	return err
}

func TestObserveDoesNotGoBackOverALostSession(t *testing.T) {
	onMemory(t, func(w *world) {
		a, b := w.candidate("a", nil), w.candidate("b", nil)
		f := &frozenServer{Backend: w.Link("reader")}
		c := open(w.t, f, nil)
		ch := coord.NewElection(c, "/e", nil).Observe(context.Background())
		ta := mustLead(w.t, a)
		for l := next(w.t, ch); l.ID != "a"; l = next(w.t, ch) {
		}
		// where the reader's next server stands still
		s := w.session("observer")
		f.data, f.stat = map[string][]byte{}, map[string]backend.Stat{}
		f.names = w.children("/e")
		for _, n := range f.names {
			f.data["/e/"+n], f.stat["/e/"+n], _ = s.Get(context.Background(), "/e/"+n, nil)
		}
		mustRelease(w.t, ta.Hold)
		tb := mustLead(w.t, b)
		for l := next(w.t, ch); l.ID != "b"; l = next(w.t, ch) {
		}
		f.mu.Lock()
		f.on = true
		f.mu.Unlock()
		w.Link("reader").Expire(sessionOf(w.t, c))
		time.Sleep(time.Second)
		w.settle()
		select {
		case l := <-ch:
			w.t.Errorf("after leader b (token %d) Observe told %v: it went back", tb.Token(), l)
		default:
		}
		mustRelease(w.t, tb.Hold)
	})
}

func TestAFailureToObserveIsNoVacancy(t *testing.T) {
	onMemory(t, func(w *world) {
		c := w.open("a", nil)
		c.Close()
		l := next(w.t, coord.NewElection(c, "/e", nil).Observe(context.Background()))
		if l.Err == nil || l.Vacant() {
			w.t.Errorf("Vacant %t with Err %v", l.Vacant(), l.Err)
		}
	})
}

func TestABlipRightAfterTheGrantEndsATermThatStepsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memory.New(nil)
		l := st.Link("a")
		var blip atomic.Bool
		c := open(t, l, &coord.Options{Trace: func(_ context.Context, e coord.Event) {
			if _, ok := e.(coord.Granted); ok {
				l.Partition()
				l.Heal()
				blip.Store(true)
			}
		}})
		term, err := coord.NewElection(c, "/e", &coord.ElectionOptions{StepDown: true}).Campaign(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond)
		synctest.Wait()
		if blip.Load() && term.Err() == nil {
			t.Error("contact was lost after the grant and the term stands")
		}
	})
}

// A server that lags behind is asked to catch up first.
func TestWhoIsThereIsNotOlderThanTheQuestion(t *testing.T) {
	for name, take := range map[string]func(w *world) *coord.Hold{
		"election": func(w *world) *coord.Hold { return mustLead(w.t, w.candidate("a", nil)).Hold },
		"mutex":    func(w *world) *coord.Hold { return mustLock(w.t, coord.NewMutex(w.open("a", nil), "/e", nil)) },
	} {
		t.Run(name, func(t *testing.T) {
			onMemory(t, func(w *world) {
				h := take(w)
				s := w.session("observer")
				stat, err := s.Exists(context.Background(), h.Path(), nil)
				if err != nil {
					w.t.Fatal(err)
				}
				f := &frozenServer{Backend: w.Link("reader"), names: w.children("/e"), stat: map[string]backend.Stat{h.Path(): stat}}
				c := open(w.t, f, nil)
				mustRelease(w.t, h)
				freeze := func() {
					f.mu.Lock()
					f.on = true
					f.mu.Unlock()
				}
				freeze()
				if name == "mutex" {
					list, err := coord.NewMutex(c, "/e", nil).Contenders(context.Background())
					if err != nil || len(list) != 0 {
						w.t.Errorf("contenders: %v, %v", list, err)
					}
					return
				}
				e := coord.NewElection(c, "/e", nil)
				if l, err := e.Leader(context.Background()); err != nil || !l.Vacant() {
					w.t.Errorf("leads: %v, %v", l, err)
				}
				freeze()
				if list, err := e.Contenders(context.Background()); err != nil || len(list) != 0 {
					w.t.Errorf("candidates: %v, %v", list, err)
				}
			})
		})
	}
}

// statusBackend calls a hook after each call of Session.Status.
type statusBackend struct {
	backend.Backend
	then func()
}

func (b *statusBackend) Open(ctx context.Context) (backend.Session, error) {
	s, err := b.Backend.Open(ctx)
	return &statusSession{s, b}, err
}

type statusSession struct {
	backend.Session
	b *statusBackend
}

func (s *statusSession) Status() (backend.Phase, <-chan struct{}) {
	phase, changed := s.Session.Status()
	s.b.then()
	return phase, changed
}

// The term has begun with the look at the contact, and not when something watches it.
func TestABlipBeforeTheContactIsWatchedEndsATermThatStepsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := memory.New(nil).Link("a")
		var made, blip atomic.Bool
		c := open(t, backendtest.Intercept(&statusBackend{l, func() {
			if made.CompareAndSwap(true, false) {
				l.Partition()
				l.Heal()
				blip.Store(true)
			}
		}}, backendtest.Hooks{After: func(_ context.Context, c backendtest.Call, err error) error {
			if creates(c) && err == nil && strings.Contains(c.Path, "latch-") {
				made.Store(true)
			}
			return err
		}}), nil)
		term, err := coord.NewElection(c, "/e", &coord.ElectionOptions{StepDown: true}).Campaign(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if !blip.Load() {
			t.Fatal("contact was not lost")
		}
		wantErr(t, term.Err(), coord.ErrLost, coord.ErrSuspended)
	})
}

// A waiter's own node is deleted, and then that of the holder. The waiter is told of
// both, and reads the line from a server that is behind both: there the holder is the
// head, and the waiter is next. The deletion that it was told of before is no grant: it
// has no node.
func TestADeletionBeforeTheListIsNoGrant(t *testing.T) {
	onMemory(t, func(w *world) {
		h := mustLock(w.t, coord.NewMutex(w.open("a", nil), "/e", nil))
		f := &frozenServer{Backend: w.Link("b"), data: make(map[string][]byte), stat: make(map[string]backend.Stat)}
		var mu sync.Mutex
		var head *backend.Watch // of the waiter
		var own string
		behind := 0 // lists that the waiter got of the server that is behind
		c := open(w.t, backendtest.Intercept(f, backendtest.Hooks{
			Before: func(_ context.Context, call backendtest.Call) error {
				mu.Lock()
				defer mu.Unlock()
				switch {
				case call.Op == "arm": // the server has caught up
					f.mu.Lock()
					f.on = false
					f.mu.Unlock()
					for _, target := range call.Targets {
						if target.Path == h.Path() {
							head = target.Watch
						}
					}
				case call.Op == "get" && call.Path == own && behind == 0: // woken by its own node
					if err := h.Release(); err != nil {
						w.t.Error(err)
					}
					<-head.Fired()
					f.mu.Lock()
					f.on = true
					f.mu.Unlock()
				}
				return nil
			},
			Names: func(call backendtest.Call, names []string) []string {
				mu.Lock()
				defer mu.Unlock()
				if head != nil && head.Kind() == backend.Deleted && len(names) == 2 {
					behind++
				}
				return names
			},
		}), nil)
		waiter := w.lock(context.Background(), coord.NewMutex(c, "/e", nil))
		w.settle()
		s := w.session("outsider")
		f.names = w.children("/e")
		for _, name := range f.names {
			path := "/e/" + name
			var err error
			if f.data[path], f.stat[path], err = s.Get(context.Background(), path, nil); err != nil {
				w.t.Fatal(err)
			}
			if path != h.Path() {
				mu.Lock()
				own = path
				mu.Unlock()
			}
		}
		if _, err := s.Commit(context.Background(), backend.Delete(own, backend.AnyVersion)); err != nil {
			w.t.Fatal(err)
		}
		granted := waiter.hold()
		if _, err := s.Exists(context.Background(), granted.Path(), nil); err != nil {
			w.t.Errorf("granted without a node: %v", err)
		}
		mu.Lock()
		lists := behind
		mu.Unlock()
		if lists == 0 {
			w.t.Error("the waiter never read the line from the server that is behind: this tested nothing")
		}
		mustRelease(w.t, granted)
	})
}

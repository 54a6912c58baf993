package recipetest

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
	"github.com/go-coord/coord/internal/coordtest"
	"github.com/go-coord/coord/trace"
)

// frozenServer is a server that lags behind: once frozen it returns old state, until Sync.
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

// keep stores the state at which the server is frozen, as s sees it, and returns the names.
func (f *frozenServer) keep(tb testing.TB, s backend.Session) []string {
	tb.Helper()
	names, _, err := s.Children(context.Background(), "/e", nil)
	if err != nil {
		tb.Fatal(err)
	}
	data, stat := make(map[string][]byte), make(map[string]backend.Stat)
	for _, n := range names {
		p := "/e/" + n
		if data[p], stat[p], err = s.Get(context.Background(), p, nil); err != nil {
			tb.Fatal(err)
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.names, f.data, f.stat = names, data, stat
	return names
}

func TestElection_ObserveDoesNotGoBackOverALostSession(t *testing.T) {
	onMemory(t, func(w *world) {
		a, b := w.candidate("a", nil), w.candidate("b", nil)
		f := &frozenServer{Backend: w.Link("reader")}
		c := coordtest.Open(w.T, f, nil)
		ch := coord.NewElection(c, "/e", nil).WatchLeader(context.Background())
		ta := mustLead(w.T, a)
		for l := next(w.T, ch); l.ID != "a"; l = next(w.T, ch) {
		}
		// The state at which the reader's next server is frozen.
		f.keep(w.T, w.Session("observer"))
		coordtest.MustRelease(w.T, ta.Hold)
		tb := mustLead(w.T, b)
		for l := next(w.T, ch); l.ID != "b"; l = next(w.T, ch) {
		}
		f.mu.Lock()
		f.on = true
		f.mu.Unlock()
		w.Link("reader").Expire(sessionOf(w.T, c))
		time.Sleep(time.Second)
		w.Settle()
		select {
		case l := <-ch:
			w.T.Errorf("after leader b (token %d) WatchLeader reported %v: it went back", tb.Token(), l)
		default:
		}
		coordtest.MustRelease(w.T, tb.Hold)
	})
}

func TestElection_AFailureToObserveIsNoVacancy(t *testing.T) {
	onMemory(t, func(w *world) {
		c := w.Open("a", nil)
		c.Close()
		l := next(w.T, coord.NewElection(c, "/e", nil).WatchLeader(context.Background()))
		if l.Err == nil || l.Vacant() {
			w.T.Errorf("Vacant %t with Err %v", l.Vacant(), l.Err)
		}
	})
}

func TestElection_ABlipRightAfterTheGrantEndsATermThatStepsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memory.New(nil)
		l := st.Link("a")
		var blip atomic.Bool
		c := coordtest.Open(t, l, &coord.Options{Trace: func(_ context.Context, e trace.Event) {
			if _, ok := e.(trace.HoldGranted); ok {
				l.Partition()
				l.Heal()
				blip.Store(true)
			}
		}})
		term, err := coord.NewElection(c, "/e", &coord.ElectionOptions{StepDownOnSuspend: true}).Campaign(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond)
		synctest.Wait()
		if blip.Load() && term.Err() == nil {
			t.Error("contact was lost after the grant and the term has not ended")
		}
	})
}

// Leader and Contenders let a server that lags behind catch up first.
func TestElection_LeaderAndContendersAreNotOlderThanTheCall(t *testing.T) {
	for name, take := range map[string]func(w *world) *coord.Hold{
		"election": func(w *world) *coord.Hold { return mustLead(w.T, w.candidate("a", nil)).Hold },
		"mutex": func(w *world) *coord.Hold {
			return coordtest.MustLock(w.T, coord.NewMutex(w.Open("a", nil), "/e", nil))
		},
	} {
		t.Run(name, func(t *testing.T) {
			onMemory(t, func(w *world) {
				h := take(w)
				s := w.Session("observer")
				stat, err := s.Exists(context.Background(), h.Path(), nil)
				if err != nil {
					w.T.Fatal(err)
				}
				f := &frozenServer{Backend: w.Link("reader"), names: w.Children("/e"), stat: map[string]backend.Stat{h.Path(): stat}}
				c := coordtest.Open(w.T, f, nil)
				coordtest.MustRelease(w.T, h)
				freeze := func() {
					f.mu.Lock()
					f.on = true
					f.mu.Unlock()
				}
				freeze()
				if name == "mutex" {
					list, err := coord.NewMutex(c, "/e", nil).Contenders(context.Background())
					if err != nil || len(list) != 0 {
						w.T.Errorf("contenders: %v, %v", list, err)
					}
					return
				}
				e := coord.NewElection(c, "/e", nil)
				if l, err := e.Leader(context.Background()); err != nil || !l.Vacant() {
					w.T.Errorf("leads: %v, %v", l, err)
				}
				freeze()
				if list, err := e.Contenders(context.Background()); err != nil || len(list) != 0 {
					w.T.Errorf("candidates: %v, %v", list, err)
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

// The term begins with the first look at the contact, not when the contact is watched.
func TestElection_ABlipBeforeTheContactIsWatchedEndsATermThatStepsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := memory.New(nil).Link("a")
		var made, blip atomic.Bool
		c := coordtest.Open(t, backendtest.Intercept(&statusBackend{l, func() {
			if made.CompareAndSwap(true, false) {
				l.Partition()
				l.Heal()
				blip.Store(true)
			}
		}}, backendtest.Hooks{After: func(_ context.Context, c backendtest.Call, err error) error {
			if coordtest.Creates(c) && err == nil && strings.Contains(c.Path, "latch-") {
				made.Store(true)
			}
			return err
		}}), nil)
		synctest.Wait() // the client has seen that there is contact
		term, err := coord.NewElection(c, "/e", &coord.ElectionOptions{StepDownOnSuspend: true}).Campaign(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if !blip.Load() {
			t.Fatal("contact was not lost")
		}
		coordtest.WantErr(t, term.Err(), coord.ErrLost, coord.ErrSuspended)
	})
}

// A waiter's own node is deleted, and then that of the holder. Both watches fire, and the
// waiter reads the queue from a server that lags behind both deletions: there the holder is the
// head, and the waiter is next. A deletion that was reported before this listing is no grant:
// the waiter has no node.
func TestElection_ADeletionBeforeTheListIsNoGrant(t *testing.T) {
	onMemory(t, func(w *world) {
		h := coordtest.MustLock(w.T, coord.NewMutex(w.Open("a", nil), "/e", nil))
		f := &frozenServer{Backend: w.Link("b")}
		var mu sync.Mutex
		var head *backend.Watch // of the waiter
		var own string
		behind := 0 // listings that the waiter read from the server that lags
		c := coordtest.Open(w.T, backendtest.Intercept(f, backendtest.Hooks{
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
						w.T.Error(err)
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
		waiter := w.Lock(context.Background(), coord.NewMutex(c, "/e", nil))
		w.Settle()
		s := w.Session("outsider")
		for _, name := range f.keep(w.T, s) {
			if path := "/e/" + name; path != h.Path() {
				mu.Lock()
				own = path
				mu.Unlock()
			}
		}
		if _, err := s.Commit(context.Background(), backend.Delete(own, backend.AnyVersion)); err != nil {
			w.T.Fatal(err)
		}
		granted := waiter.Hold()
		if _, err := s.Exists(context.Background(), granted.Path(), nil); err != nil {
			w.T.Errorf("granted without a node: %v", err)
		}
		mu.Lock()
		lists := behind
		mu.Unlock()
		if lists == 0 {
			w.T.Error("the waiter never read the queue from the server that lags: nothing was tested")
		}
		coordtest.MustRelease(w.T, granted)
	})
}

// Found by the simulation: the node of an announcement was created after the announcements had
// been removed, and before the candidate's node, on which it depends, was removed.
func TestElection_AnAnnouncementUnderWayWhileSteppingDownIsRemoved(t *testing.T) {
	onMemory(t, func(w *world) {
		late := &backendtest.Hooks{Before: func(_ context.Context, c backendtest.Call) error {
			ready := strings.Contains(c.Path, "-ready-")
			switch {
			case c.Op == "commit" && len(c.Ops) == 2 && c.Ops[0].Kind == backend.OpCheck:
				time.Sleep(200 * time.Millisecond)
			case coordtest.Deletes(c) && !ready:
				time.Sleep(400 * time.Millisecond)
			}
			return nil
		}}
		e := coord.NewElection(w.Open("a", late), "/e", &coord.ElectionOptions{ID: "a", StepDownOnSuspend: true})
		term := mustLead(w.T, e)
		announced := make(chan error)
		go func() { announced <- term.Announce(context.Background(), []byte("here")) }()
		w.Settle()
		w.Link("a").Partition()
		w.Link("a").Heal()
		<-announced
		coordtest.WantErr(w.T, term.Err(), coord.ErrSuspended)
		w.Empty("/e")
	})
}

// An Announce is under way while the leader resigns: its commit is applied between the commit that
// would remove both nodes, which is refused, and the removal of the leader's node.
func TestElection_AnAnnouncementUnderWayWhileResigningIsRemoved(t *testing.T) {
	onMemory(t, func(w *world) {
		deny := true
		c := w.Open("a", &backendtest.Hooks{Before: func(ctx context.Context, c backendtest.Call) error {
			switch {
			case c.Op != "commit" || c.Ops[0].Kind == backend.OpCreate:
			case deny && len(c.Ops) == 2:
				deny = false
				return backend.ErrDenied // of the announcement, so that there is none yet
			case len(c.Ops) == 1 && c.Ops[0].Kind == backend.OpDelete && strings.Contains(c.Path, "-latch-"):
				ready := strings.Replace(c.Path, "-latch-", "-ready-", 1)
				if _, err := c.Session.Commit(ctx, backend.Check(c.Path, backend.AnyVersion), backend.Create(ready, nil, backend.Ephemeral)); err != nil {
					w.T.Error(err)
				}
			}
			return nil
		}})
		term := mustLead(w.T, coord.NewElection(c, "/e", nil))
		coordtest.WantErr(w.T, term.Announce(context.Background(), nil), coord.ErrDenied)
		coordtest.MustRelease(w.T, term.Hold)
		w.Empty("/e")
	})
}

package recipetest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/memory"
	"github.com/go-coord/coord/inspect"
	"github.com/go-coord/coord/internal/coordtest"
	"github.com/go-coord/coord/trace"
)

func TestClient_StatesReportSuspensionLossAndReopening(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memory.New(&memory.Options{SessionTimeout: 3 * time.Second})
		var mu sync.Mutex
		var traced []string
		c := coordtest.Open(t, st.Link("a"), &coord.Options{Trace: func(_ context.Context, e trace.Event) {
			if e, ok := e.(trace.StateChanged); ok {
				mu.Lock()
				traced = append(traced, e.Phase)
				mu.Unlock()
			}
		}})
		ctx, cancel := context.WithCancel(t.Context())
		states := c.WatchState(ctx)
		next := func(want coord.Phase) coord.State {
			t.Helper()
			got := <-states
			if got.Phase != want {
				t.Fatalf("state %v, want %v", got.Phase, want)
			}
			return got
		}
		first := next(coord.PhaseConnected)
		st.Link("a").Partition()
		next(coord.PhaseSuspended)
		st.Link("a").Heal()
		next(coord.PhaseConnected)
		start := time.Now()
		st.Link("a").Partition()
		next(coord.PhaseSuspended)
		lost := next(coord.PhaseLost)
		if !errors.Is(lost.Err, coord.ErrSessionLost) || lost.Session != first.Session {
			t.Errorf("lost: %+v", lost)
		}
		if d := time.Since(start); d != 2*time.Second {
			t.Errorf("lost after %v, want the timeout less a third", d)
		}
		st.Link("a").Heal()
		if again := next(coord.PhaseConnected); again.Session == first.Session {
			t.Error("the same session after a loss")
		}
		cancel()
		for range states { // closed
		}
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		want := []coord.Phase{coord.PhaseConnected, coord.PhaseSuspended, coord.PhaseConnected, coord.PhaseSuspended, coord.PhaseLost, coord.PhaseConnected}
		if len(traced) != len(want) {
			t.Fatalf("traced %v, want %v", traced, want)
		}
		for i := range want {
			if traced[i] != want[i].String() {
				t.Fatalf("traced %v, want %v", traced, want)
			}
		}
	})
}

// A WatchState that begins while Close is under way ends with PhaseClosed too.
func TestClient_StatesAskedForDuringCloseEndWithClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memory.New(nil)
		c := coordtest.Open(t, slowClose{st}, nil)
		go c.Close()
		synctest.Wait()
		var last coord.State
		for last = range c.WatchState(t.Context()) {
		}
		if last.Phase != coord.PhaseClosed || !errors.Is(last.Err, coord.ErrClosed) {
			t.Errorf("last state %+v", last)
		}
	})
}

// slowClose has sessions that take a while to close.
type slowClose struct{ backend.Backend }

func (b slowClose) Open(ctx context.Context) (backend.Session, error) {
	s, err := b.Backend.Open(ctx)
	return slowlyClosed{s}, err
}

type slowlyClosed struct{ backend.Session }

func (s slowlyClosed) Close() error {
	time.Sleep(time.Second)
	return s.Session.Close()
}

// Sessions that die at once are not opened one after the other without pauses.
func TestClient_SessionsThatDieAtOnceAreOpenedWithPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memory.New(nil)
		var opened int
		link := st.Link("a")
		b := backendFunc(func(ctx context.Context) (backend.Session, error) {
			s, err := link.Open(ctx)
			if opened++; err == nil && opened > 1 {
				link.Expire(s.ID())
			}
			return s, err
		})
		c := coordtest.Open(t, b, nil)
		s, err := c.Session(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		link.Expire(s.ID())
		time.Sleep(10 * time.Second)
		c.Close()
		if opened < 5 || opened > 50 {
			t.Errorf("%d sessions in ten seconds", opened)
		}
	})
}

type backendFunc func(context.Context) (backend.Session, error)

func (f backendFunc) Open(ctx context.Context) (backend.Session, error) { return f(ctx) }

func TestClient_BadInputIsRefusedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, err := coord.Open(t.Context(), nil, nil)
		coordtest.WantErr(t, err, coord.ErrInvalid)
		_, err = coord.Open(t.Context(), memory.New(nil), &coord.Options{Namespace: "no slash"})
		coordtest.WantErr(t, err, coord.ErrBadPath)
		for _, namespace := range []string{"//", "/a//"} {
			_, err = coord.Open(t.Context(), memory.New(nil), &coord.Options{Namespace: namespace})
			coordtest.WantErr(t, err, coord.ErrBadPath)
		}
		_, err = coord.Open(t.Context(), memory.New(&memory.Options{SessionTimeout: -time.Second}), nil)
		coordtest.WantErr(t, err, coord.ErrInvalid)
		_, err = coord.Open(t.Context(), memory.New(&memory.Options{SessionTimeout: time.Second, LossMargin: time.Second}), nil)
		coordtest.WantErr(t, err, coord.ErrInvalid)

		st := memory.New(nil)
		_, err = coord.Open(t.Context(), coordtest.Ruled(st), &coord.Options{Namespace: "/zookeeper/a"})
		var bad *backend.Error
		if !errors.Is(err, coord.ErrBadPath) || !errors.As(err, &bad) || bad.Op != "open" || bad.Path != "/zookeeper/a" {
			t.Errorf("a namespace that the service refuses: %v", err)
		}
		c := coordtest.Open(t, coordtest.Ruled(st), nil)
		for _, path := range []string{
			"", "/", "relative", "/a//b", "/a/", "/a/../b", "/./a", "/a\x00b", "/a\nb", "/a\u202eb", "/a\u200bb", "/a\ue000b",
			"/a\xffb", "/zookeeper", "/zookeeper/quota", "/_coord", "/_coord/journal",
		} {
			m := coord.NewMutex(c, path, nil)
			for op, call := range map[string]func() error{
				"lock":       func() error { _, err := m.Lock(t.Context()); return err },
				"trylock":    func() error { _, err := m.TryLock(t.Context()); return err },
				"contenders": func() error { _, err := m.Contenders(t.Context()); return err },
			} {
				err := call()
				var e *backend.Error
				if !errors.Is(err, coord.ErrBadPath) || !errors.As(err, &e) || e.Op != op || e.Path != path {
					t.Errorf("%s %q: %v", op, path, err)
				}
				if strings.ContainsAny(err.Error(), "\x00\n\u202e\u200b") {
					t.Errorf("%s: the error repeats characters that could confuse a log: %q", op, err)
				}
			}
		}
		_, err = coord.NewMutex(c, "/l", &coord.MutexOptions{Data: make([]byte, backend.MaxRequest+1)}).Lock(t.Context())
		coordtest.WantErr(t, err, coord.ErrTooLarge)
		var e *backend.Error
		if !errors.As(err, &e) || !strings.HasPrefix(e.Path, "/l") {
			t.Errorf("too large: %v", err)
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		reason := errors.New("no time")
		cancel(reason)
		_, err = coord.NewMutex(c, "/l", nil).Lock(ctx)
		coordtest.WantErr(t, err, context.Canceled, reason)
		synctest.Wait()
		if left := coordtest.Children(t, st, "/l"); len(left) != 0 {
			t.Errorf("left behind: %v", left)
		}
	})
}

// Errors are stored, sent and shown, so the text of an error is not as long as the argument of
// its call.
func TestClient_AnErrorCarriesNoOverlongPath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := coordtest.Open(t, memory.New(nil), &coord.Options{Namespace: "/ns"})
		ctx := t.Context()
		calls := func(path string) map[string]error {
			all := make(map[string]error)
			_, all["a value"] = coord.NewValue[int](c, path, nil).Get(ctx)
			_, all["a mutex"] = coord.NewMutex(c, path, nil).TryLock(ctx)
			_, all["an election"] = coord.NewElection(c, path, nil).Leader(ctx)
			_, all["a queue"] = coord.NewQueue[int](c, path, nil).TryTake(ctx)
			_, all["a transaction"] = coord.NewTxn(c).Delete(path).Commit(ctx)
			_, all["a condition"] = coord.NewTxn(c).If(coord.IfExists(path)).Commit(ctx)
			_, all["an inspection"] = inspect.Path(ctx, c, path, nil)
			all["a cache"] = coord.NewCache(c, path, nil).Run(ctx)
			_, all["a namespace"] = coord.Open(ctx, memory.New(nil), &coord.Options{Namespace: path})
			return all
		}
		for _, tail := range []string{"", "\x00", "\u202e"} {
			path := "/" + strings.Repeat("\u65e5", 300_000) + tail
			for what, err := range calls(path) {
				var e *backend.Error
				if !errors.Is(err, coord.ErrBadPath) || !errors.As(err, &e) {
					t.Errorf("%s: %.100v", what, err)
					continue
				}
				if len(e.Path) < 4000 || len(e.Path) > 4200 || !strings.HasPrefix(e.Path, path[:3000]) || !utf8.ValidString(e.Path) {
					t.Errorf("%s: a path of %d bytes: %.100q", what, len(e.Path), e.Path)
				}
				if text := err.Error(); len(text) > 2000 {
					t.Errorf("%s: a text of %d bytes: %.100q", what, len(text), text)
				}
			}
		}

		// A path of a permitted length is kept whole.
		path := "/" + strings.Repeat("p", 4096-len("/ns/"))
		_, err := coord.NewValue[int](c, path, nil).Get(ctx)
		coordtest.WantErr(t, err, coord.ErrNotFound)
		var e *backend.Error
		if !errors.As(err, &e) || e.Path != "/ns"+path {
			t.Errorf("a path of %d bytes", len(e.Path))
		}
		_, err = coord.NewValue[int](c, path+"p", nil).Get(ctx)
		coordtest.WantErr(t, err, coord.ErrBadPath)
	})
}

func TestClient_ANamespaceSeparatesClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memory.New(nil)
		a := coord.NewMutex(coordtest.Open(t, st, &coord.Options{Namespace: "/app/a"}), "/l", nil)
		b := coord.NewMutex(coordtest.Open(t, st, &coord.Options{Namespace: "/app/b/"}), "/l", nil)
		c := coord.NewMutex(coordtest.Open(t, st, &coord.Options{Namespace: "/"}), "/l", nil)
		ha, hb, hc := coordtest.MustLock(t, a), coordtest.MustLock(t, b), coordtest.MustLock(t, c)
		if !strings.HasPrefix(ha.Path(), "/app/a/l/") || !strings.HasPrefix(hb.Path(), "/app/b/l/") || !strings.HasPrefix(hc.Path(), "/l/") {
			t.Error(ha.Path(), hb.Path(), hc.Path())
		}
		coordtest.MustRelease(t, ha)
		coordtest.MustRelease(t, hb)
		coordtest.MustRelease(t, hc)
	})
}

// A call without contact waits until its ctx ends, on the session that is suspended and on
// the next one, which cannot be opened.
func TestClient_ACallWithoutContactWaitsForItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New(nil)
		link := store.Link("a")
		c := coordtest.Open(t, link, nil)
		value := coord.NewValue[string](c, "/value", nil)
		if _, err := value.Set(t.Context(), "before"); err != nil {
			t.Fatal(err)
		}
		link.Partition()
		queue := coord.NewQueue[string](c, "/queue", nil)
		calls := map[string]func(ctx context.Context) error{
			"Open": func(ctx context.Context) error {
				_, err := coord.Open(ctx, link, nil)
				return err
			},
			"Lock": func(ctx context.Context) error {
				_, err := coord.NewMutex(c, "/lock", nil).Lock(ctx)
				return err
			},
			"TryLock": func(ctx context.Context) error {
				_, err := coord.NewMutex(c, "/try", nil).TryLock(ctx)
				return err
			},
			"Get": func(ctx context.Context) error {
				_, err := value.Get(ctx)
				return err
			},
			"Set": func(ctx context.Context) error {
				_, err := value.Set(ctx, "after")
				return err
			},
			"Put": func(ctx context.Context) error {
				_, err := queue.Put(ctx, "item")
				return err
			},
			"TryTake": func(ctx context.Context) error {
				_, err := queue.TryTake(ctx)
				return err
			},
			"Commit": func(ctx context.Context) error {
				_, err := coord.NewTxn(c).Delete("/value").Commit(ctx)
				return err
			},
			"Leader": func(ctx context.Context) error {
				_, err := coord.NewElection(c, "/election", nil).Leader(ctx)
				return err
			},
			"Members": func(ctx context.Context) error {
				_, err := coord.NewGroup[string](c, "/group", nil).Members(ctx)
				return err
			},
		}
		const longEnough = time.Hour // for the session to be lost meanwhile
		ctx, cancel := context.WithTimeout(t.Context(), longEnough)
		defer cancel()
		ended := make(chan error, len(calls))
		began := time.Now()
		for name, call := range calls {
			go func() {
				err := call(ctx)
				switch waited := time.Since(began); {
				case !errors.Is(err, context.DeadlineExceeded):
					ended <- fmt.Errorf("%s: %w", name, err)
				case waited < longEnough || waited > longEnough+time.Minute:
					ended <- fmt.Errorf("%s returned after %v", name, waited)
				default:
					ended <- nil
				}
			}()
		}
		for range calls {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
	})
}

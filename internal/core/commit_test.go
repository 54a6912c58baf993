package core

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/backend/memory"
)

// onceScene is a client whose commits with an increment are counted and can be
// tampered with.
type onceScene struct {
	t      *testing.T
	st     *memory.Store
	link   *memory.Link
	c      *Client
	s      *Session
	before func(n int, c backendtest.Call) error // of the n-th commit to /value, from 1
	after  func(n int, c backendtest.Call, err error) error
	sent   int
}

func newOnceScene(t *testing.T) *onceScene {
	x := &onceScene{t: t, st: memory.New(nil)}
	x.link = x.st.Link("a")
	counts := func(c backendtest.Call) bool { return c.Op == "commit" && c.Path == "/value" && len(c.Ops) > 1 }
	c, err := Open(t.Context(), backendtest.Intercept(x.link, backendtest.Hooks{
		Before: func(_ context.Context, c backendtest.Call) error {
			if !counts(c) {
				return nil
			}
			x.sent++
			if x.before != nil {
				return x.before(x.sent, c)
			}
			return nil
		},
		After: func(_ context.Context, c backendtest.Call, err error) error {
			if counts(c) && x.after != nil {
				return x.after(x.sent, c, err)
			}
			return err
		},
	}), Config{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	x.c = c
	x.s, err = c.Live(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := x.s.b.Commit(t.Context(), backend.Create("/value", nil, backend.Persistent)); err != nil {
		t.Fatal(err)
	}
	return x
}

// set is a write that would be applied twice by a blind retry.
func (x *onceScene) set(ctx context.Context) ([]backend.Result, int64, error) {
	return x.s.CommitOnce(ctx, backend.SetData("/value", []byte("x"), backend.AnyVersion))
}

func (x *onceScene) version() int32 {
	x.t.Helper()
	s, err := x.st.Open(context.Background())
	if err != nil {
		x.t.Fatal(err)
	}
	defer s.Close()
	stat, err := s.Exists(context.Background(), "/value", nil)
	if err != nil {
		x.t.Fatal(err)
	}
	return stat.Version
}

func TestCommitOnce_AppliesOnceWhateverIsLost(t *testing.T) {
	uncertain := func(n int, _ backendtest.Call, err error) error {
		if n == 1 {
			return backend.ErrUncertain
		}
		return err
	}
	cases := map[string]struct {
		tamper func(x *onceScene)
		sent   int
	}{
		"nothing":      {func(*onceScene) {}, 1},
		"the request":  {func(x *onceScene) { x.before = func(n int, c backendtest.Call) error { return uncertain(n, c, nil) } }, 2},
		"the reply":    {func(x *onceScene) { x.after = uncertain }, 1},
		"both by link": {func(x *onceScene) { x.link.DropNextReply() }, 1},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				x := newOnceScene(t)
				if _, _, err := x.set(t.Context()); err != nil { // makes the journal entry
					t.Fatal(err)
				}
				x.sent = 0
				c.tamper(x)
				_, zxid, err := x.set(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if v := x.version(); v != 2 {
					t.Errorf("version %d, want 2", v)
				}
				if x.sent != c.sent {
					t.Errorf("sent %d times, want %d", x.sent, c.sent)
				}
				stat, err := x.s.b.Exists(t.Context(), "/value", nil)
				if err != nil || stat.Mzxid != zxid {
					t.Errorf("zxid %d, the node says %d, %v", zxid, stat.Mzxid, err)
				}
			})
		})
	}
}

func TestCommitOnce_UsesOneEntryForEachCommitUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newOnceScene(t)
		for range 20 {
			if _, _, err := x.set(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		names, _, err := x.s.b.Children(t.Context(), journalDir, nil)
		if err != nil || len(names) != 1 {
			t.Errorf("journal entries %v, %v, want one", names, err)
		}
	})
}

func TestCommitOnce_NamesTheOperationThatFailed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newOnceScene(t)
		_, _, err := x.s.CommitOnce(t.Context(),
			backend.SetData("/value", nil, backend.AnyVersion), backend.SetData("/missing", nil, backend.AnyVersion))
		var e *backend.Error
		if !errors.Is(err, backend.ErrNotFound) || !errors.As(err, &e) || e.Index != 1 || e.Path != "/missing" {
			t.Errorf("got %v", err)
		}
		if v := x.version(); v != 0 {
			t.Errorf("version %d, want 0: nothing applied", v)
		}
	})
}

func TestCommitOnce_SurvivesTheDeletionOfItsEntry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newOnceScene(t)
		x.before = func(n int, c backendtest.Call) error {
			if n == 1 {
				entry := c.Ops[len(c.Ops)-1].Path
				if _, err := c.Session.Commit(t.Context(), backend.Delete(entry, backend.AnyVersion)); err != nil {
					t.Error(err)
				}
			}
			return nil
		}
		if _, _, err := x.set(t.Context()); err != nil {
			t.Fatal(err)
		}
		if v := x.version(); v != 1 {
			t.Errorf("version %d, want 1", v)
		}
	})
}

func TestCommitOnce_ReportsAnUnknownOutcome(t *testing.T) {
	t.Run("the session was lost", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			x := newOnceScene(t)
			x.after = func(n int, c backendtest.Call, err error) error {
				x.link.Expire(c.Session.ID())
				return backend.Uncertain(backend.ErrSessionLost)
			}
			if _, _, err := x.set(t.Context()); !errors.Is(err, backend.ErrUncertain) || !errors.Is(err, backend.ErrSessionLost) {
				t.Errorf("got %v", err)
			}
		})
	})
	t.Run("ctx ended", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			x := newOnceScene(t)
			ctx, cancel := context.WithCancel(t.Context())
			x.after = func(int, backendtest.Call, error) error {
				cancel()
				return backend.Uncertain(context.Canceled)
			}
			if _, _, err := x.set(ctx); !errors.Is(err, backend.ErrUncertain) || !errors.Is(err, context.Canceled) {
				t.Errorf("got %v", err)
			}
			synctest.Wait()
			// The journal entry could show the outcome of the abandoned operation, so it is removed.
			names, _, err := x.s.b.Children(t.Context(), journalDir, nil)
			if err != nil || len(names) != 0 {
				t.Errorf("journal entries %v, %v, want none", names, err)
			}
			x.after = nil
			if _, _, err := x.set(t.Context()); err != nil {
				t.Error(err)
			}
		})
	})
}

// If the journal entry cannot be created, nothing of the caller is sent.
func TestCommitOnce_WithoutAnEntryIsNotUncertain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memory.New(nil)
		link := st.Link("a")
		var once sync.Once
		c, err := Open(t.Context(), backendtest.Intercept(link, backendtest.Hooks{
			After: func(_ context.Context, c backendtest.Call, err error) error {
				if len(c.Ops) == 1 && c.Ops[0].Mode == backend.Ephemeral && err == nil {
					once.Do(func() {
						link.Expire(c.Session.ID())
						err = backend.Uncertain(backend.ErrSessionLost)
					})
				}
				return err
			},
		}), Config{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		s, err := c.Live(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		_, _, err = s.CommitOnce(t.Context(), backend.Create("/x", nil, backend.Persistent))
		if !errors.Is(err, backend.ErrSessionLost) || errors.Is(err, backend.ErrUncertain) {
			t.Errorf("got %v, want a definite loss", err)
		}
	})
}

func TestCommitOnce_IsExactUnderManyFaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newOnceScene(t)
		const n = 300
		x.before = func(n int, _ backendtest.Call) error {
			if n%7 == 0 {
				return backend.ErrUncertain
			}
			return nil
		}
		x.after = func(n int, _ backendtest.Call, err error) error {
			if n%5 == 0 {
				return backend.ErrUncertain
			}
			return err
		}
		for i := range n {
			if _, _, err := x.set(t.Context()); err != nil {
				t.Fatal(fmt.Errorf("%d: %w", i, err))
			}
		}
		if v := x.version(); v != n {
			t.Errorf("version %d, want %d", v, n)
		}
		if x.sent == n {
			t.Error("no fault was injected")
		}
	})
}

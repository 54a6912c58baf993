package coord_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
)

// A kindUse is a use of a path by one kind of recipe.
type kindUse struct {
	kind string
	// use uses the path once and leaves it idle; hold uses it and keeps it in use
	// until the function that it returns is called.
	use  func(ctx context.Context, c *coord.Client, path string) error
	hold func(ctx context.Context, c *coord.Client, path string) (func(), error)
}

func kindUses() []kindUse {
	locker := func(kind string, lock func(ctx context.Context, c *coord.Client, path string) (*coord.Hold, error)) kindUse {
		return kindUse{kind,
			func(ctx context.Context, c *coord.Client, path string) error {
				h, err := lock(ctx, c, path)
				if err != nil {
					return err
				}
				return h.Release()
			},
			func(ctx context.Context, c *coord.Client, path string) (func(), error) {
				h, err := lock(ctx, c, path)
				if err != nil {
					return nil, err
				}
				return func() { h.Release() }, nil
			},
		}
	}
	return []kindUse{
		locker("mutex", func(ctx context.Context, c *coord.Client, path string) (*coord.Hold, error) {
			return coord.NewMutex(c, path, nil).Lock(ctx)
		}),
		locker("rwmutex", func(ctx context.Context, c *coord.Client, path string) (*coord.Hold, error) {
			return coord.NewRWMutex(c, path, nil).RLock(ctx)
		}),
		locker("election", func(ctx context.Context, c *coord.Client, path string) (*coord.Hold, error) {
			term, err := coord.NewElection(c, path, nil).Campaign(ctx)
			if err != nil {
				return nil, err
			}
			return term.Hold, nil
		}),
	}
}

// wantKind fails the test unless err refuses found on the path of want.
func wantKind(t *testing.T, err error, path, want, found string) {
	t.Helper()
	var e *coord.KindError
	if !errors.Is(err, coord.ErrKind) || !errors.As(err, &e) {
		t.Errorf("%s on the path of a %s: %v, want ErrKind", want, found, err)
		return
	}
	if *e != (coord.KindError{Path: path, Want: want, Found: found}) {
		t.Errorf("%s on the path of a %s: %+v", want, found, *e)
	}
}

// dump is all that stands at and below a path.
func (w *world) dump(path string) string {
	w.t.Helper()
	s := w.session("dump")
	defer s.Close()
	var text string
	var walk func(path string)
	walk = func(path string) {
		data, stat, err := s.Get(context.Background(), path, nil)
		if err != nil {
			return
		}
		text += fmt.Sprintf("%s %q version %d, %d children, created %d\n", path, data, stat.Version, stat.NumChildren, stat.Czxid)
		names, _, err := s.Children(context.Background(), path, nil)
		if err != nil {
			w.t.Fatal(err)
		}
		for _, name := range names {
			walk(path + "/" + name)
		}
	}
	walk(w.path(path))
	return text
}

// Whatever recipe has used a path, or has it in use, another kind of recipe refuses
// there and writes nothing.
func TestOnePathOneRecipe(t *testing.T) {
	onEach(t, func(w *world) {
		ctx := context.Background()
		uses := kindUses()
		for i, first := range uses {
			for j, second := range uses {
				if i == j {
					continue
				}
				a, b := w.open(fmt.Sprint("a", i, j), nil), w.open(fmt.Sprint("b", i, j), nil)
				for _, state := range []string{"idle", "in use"} {
					path := fmt.Sprintf("/%s-%s-%s", first.kind, second.kind, state[:2])
					done := func() {}
					var err error
					if state == "idle" {
						err = first.use(ctx, a, path)
					} else {
						done, err = first.hold(ctx, a, path)
					}
					if err != nil {
						w.t.Fatal(err)
					}
					w.settle()
					before := w.dump(path)
					for range 2 {
						wantKind(w.t, second.use(ctx, b, path), w.path(path), second.kind, first.kind)
					}
					w.settle()
					if after := w.dump(path); after != before {
						w.t.Errorf("a %s at the path of a %s, %s: it was\n%sand is\n%s", second.kind, first.kind, state, before, after)
					}
					done()
					if err := first.use(ctx, a, path); err != nil {
						w.t.Errorf("%s after a %s was refused: %v", first.kind, second.kind, err)
					}
				}
				a.Close()
				b.Close()
			}
		}
	})
}

// Of two kinds that come to a path at once, only one is ever granted, whatever
// either client knows of the path.
func TestTwoKindsAreNeverGrantedAtOnce(t *testing.T) {
	onEach(t, func(w *world) {
		ctx := context.Background()
		a, b := w.open("a", nil), w.open("b", nil)
		m, rw := coord.NewMutex(a, "/l", nil), coord.NewRWMutex(b, "/l", nil)
		s := w.session("x")
		// Both know the path as theirs: it was deleted, and made anew, between.
		prime(w.t, m)
		if _, err := s.Commit(ctx, backend.Delete(w.path("/l"), backend.AnyVersion)); err != nil {
			w.t.Fatal(err)
		}
		h, err := rw.Lock(ctx)
		if err != nil {
			w.t.Fatal(err)
		}
		_, err = m.Lock(ctx)
		wantKind(w.t, err, w.path("/l"), "mutex", "rwmutex")
		mustRelease(w.t, h)
		// A waiter is not disturbed by one that comes behind it and is refused.
		h, err = rw.Lock(ctx)
		if err != nil {
			w.t.Fatal(err)
		}
		waiting := make(chan error, 1)
		n := w.waits.Load()
		go func() { waiting <- rw.Do(ctx, func(context.Context, *coord.Hold) error { return nil }) }()
		w.eventually("the second writer waits", func() bool { return w.waits.Load() > n })
		_, err = m.TryLock(ctx)
		wantKind(w.t, err, w.path("/l"), "mutex", "rwmutex")
		mustRelease(w.t, h)
		if err := <-waiting; err != nil {
			w.t.Error(err)
		}
	})
}

package recipetest

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/internal/coordtest"
)

// If the removal of its node gets no reply, a Join that gives up returns after a second. The
// next Join of the same client waits for the removal, bounded by its own ctx, and is not refused
// because of the node of the first.
func TestGroup_TheNextJoinIsOrderedBehindTheRemoval(t *testing.T) {
	onMemory(t, func(w *world) {
		answer := make(chan struct{})
		var list, removal coordtest.Nth
		c := w.Open("a", &backendtest.Hooks{Before: func(ctx context.Context, c backendtest.Call) error {
			if err := list.Before(ctx, c); err != nil {
				return err
			}
			return removal.Before(ctx, c)
		}})
		mustJoin(w.T, w.group("b", nil), "other", "1") // a member that is alone does not list
		join := func(ctx context.Context) (*coord.Membership[string], time.Duration, error) {
			start := time.Now()
			m, err := textGroup(c, false).Join(ctx, "x", "1")
			return m, time.Since(start), err
		}
		ctx, cancel := context.WithCancel(context.Background())
		list.Arm(1, listsGroup, func(ctx context.Context, _ backendtest.Call, _ error) error {
			cancel()
			return ctx.Err()
		})
		removal.Arm(1, removes, func(context.Context, backendtest.Call, error) error {
			<-answer
			return nil
		})
		_, d, err := join(ctx)
		coordtest.WantErr(w.T, err, context.Canceled)
		if d != time.Second || len(w.nodesOf("x")) != 1 {
			w.T.Errorf("the Join took %v, want a second for the removal; left: %v", d, w.nodesOf("x"))
		}

		ctx, cancel = context.WithTimeout(context.Background(), 50*time.Millisecond)
		defer cancel()
		_, _, err = join(ctx)
		coordtest.WantErr(w.T, err, context.DeadlineExceeded)
		if names := w.nodesOf("x"); len(names) != 1 {
			w.T.Errorf("a Join that waits for the removal has made a node: %v", names)
		}

		time.AfterFunc(time.Minute, func() { close(answer) })
		m, d, err := join(context.Background())
		if err != nil {
			w.T.Fatal(err)
		}
		if d != time.Minute {
			w.T.Errorf("the next Join took %v, want a minute", d)
		}
		mustLeave(w.T, m)
	})
}

// Leave is called while a member joins again, and the service does not let the member settle in.
// Leave returns when the new node is gone, or with the error with which the service refuses to
// remove it.
func TestGroup_ALeaveDuringARefusedRejoin(t *testing.T) {
	for name, x := range map[string]struct {
		lost    bool // the reply to the creation
		refused bool // the removal
		cut     bool // contact is lost before the removal
		kind    bool // another kind of recipe has taken the path
	}{
		"removed":                         {},
		"refused":                         {refused: true},
		"no contact":                      {cut: true},
		"refused, and no reply before it": {lost: true, refused: true},
		"refused, of another kind":        {kind: true, refused: true},
	} {
		t.Run(name, func(t *testing.T) {
			onMemory(t, func(w *world) {
				var denies atomic.Bool
				proceed := make(chan struct{})
				c := w.Open("a", &backendtest.Hooks{
					Before: func(_ context.Context, c backendtest.Call) error {
						switch {
						case !denies.Load():
							return nil
						case listsGroup(c):
							if <-proceed; !x.kind {
								return backend.ErrDenied
							}
						case coordtest.Deletes(c) && x.refused:
							return backend.ErrDenied
						}
						return nil
					},
					After: func(_ context.Context, c backendtest.Call, err error) error {
						if denies.Load() && x.lost && coordtest.Creates(c) {
							return backend.ErrUncertain
						}
						return err
					},
				})
				mustJoin(w.T, w.group("b", nil), "other", "1") // a member that is alone does not list
				m := mustJoin(w.T, textGroup(c, false), "x", "1")
				denies.Store(true)
				var ops []backend.Op
				if x.kind {
					for _, name := range w.Children("/g") {
						ops = append(ops, backend.Delete("/g/"+name, backend.AnyVersion))
					}
					lock := "/g/_c_00000000-0000-4000-8000-000000000000-lock-0000000000"
					ops = append(ops, backend.Delete("/g", backend.AnyVersion), backend.Create("/g", nil, backend.Persistent), backend.Create(lock, nil, backend.Persistent))
				} else {
					ops = append(ops, backend.Delete("/g/"+w.nodesOf("x")[0], backend.AnyVersion))
				}
				if _, err := w.Session("outsider").Commit(context.Background(), ops...); err != nil {
					w.T.Fatal(err)
				}
				w.Settle() // it has its new node, and lists the group
				left := make(chan error, 1)
				go func() { left <- m.Leave() }()
				<-m.Done()
				if x.cut {
					w.Link("a").Partition()
				}
				close(proceed)
				w.Settle()
				if x.cut {
					select {
					case err := <-left:
						w.T.Errorf("without contact Leave returned %v, and %v are left", err, w.nodesOf("x"))
						left <- err
					default:
					}
					w.Link("a").Heal()
				}
				err := <-left
				if x.refused {
					coordtest.WantErr(w.T, err, coord.ErrDenied)
					if n := len(w.nodesOf("x")); n != 1 {
						w.T.Errorf("%d nodes, want the one that could not be removed", n)
					}
					denies.Store(false)
					w.Eventually("the node is removed", func() bool { return len(w.nodesOf("x")) == 0 })
					return
				}
				if names := w.nodesOf("x"); err != nil || len(names) != 0 {
					w.T.Errorf("Leave returned %v, and %v are left", err, names)
				}
			})
		})
	}
}

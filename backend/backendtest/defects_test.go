package backendtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/go-coord/coord/backend"
)

// A defect turns a session into a mutant, and names the leaf that must detect it.
type defect struct {
	name  string
	group string
	leaf  string
	make  func(l Link, m *mutant)
}

func defects() []defect {
	return slices.Concat([]defect{
		{"none", "", "", func(Link, *mutant) {}},
		{"every event is a deletion", "watch", "reacts to a change of the data as the contract says", func(_ Link, m *mutant) {
			m.watched(func(_ string, _ bool, w *backend.Watch) *backend.Watch {
				return relay(w, func(backend.Kind) backend.Kind { return backend.Deleted })
			})
		}},
		{"a deletion is a change", "watch", "reacts to the deletion of the node as the contract says", func(_ Link, m *mutant) {
			m.watched(func(_ string, _ bool, w *backend.Watch) *backend.Watch {
				return relay(w, func(backend.Kind) backend.Kind { return backend.LookAgain })
			})
		}},
		{"one watch in ten is lost", "watch", "is never missed while others write", func(_ Link, m *mutant) {
			var mu sync.Mutex
			n := 0
			m.watched(func(_ string, _ bool, w *backend.Watch) *backend.Watch {
				mu.Lock()
				defer mu.Unlock()
				if n++; n%10 == 9 {
					return nil
				}
				return w
			})
		}},
		{"the children's watch fires for the data", "watch", "reacts to a change of the data as the contract says", func(_ Link, m *mutant) {
			m.children = func(ctx context.Context, path string, w *backend.Watch) ([]string, backend.Stat, error) {
				if _, _, err := m.Session.Get(ctx, path, w); err != nil {
					return nil, backend.Stat{}, err
				}
				return m.Session.Children(ctx, path, w)
			}
		}},
		{"get on a missing node is armed", "watch", "of get and children on a missing node is not armed", func(_ Link, m *mutant) {
			m.get = func(ctx context.Context, path string, w *backend.Watch) ([]byte, backend.Stat, error) {
				if _, err := m.Session.Exists(ctx, path, w); err != nil {
					var e *backend.Error
					if errors.As(err, &e) {
						e.Op = "get"
					}
					return nil, backend.Stat{}, err
				}
				return m.Session.Get(ctx, path, nil)
			}
		}},
		{"events come after reads", "watch order", "delivers the event of a child before any read that shows it", late},
		{"events come after reads of other nodes", "watch order", "delivers the events of the nodes above and below before any read that shows them", late},
		{"events come after reads of distant nodes", "watch order", "delivers the events of nodes far above and below before any read that shows them", late},
		{"events come after own reads", "watch order", "delivers the event of an own write before the next read", late},
		{"events come out of order", "watch order", "(may) is that of the operations of one commit", func(_ Link, m *mutant) {
			m.watched(func(path string, _ bool, w *backend.Watch) *backend.Watch {
				return relay(w, func(k backend.Kind) backend.Kind {
					time.Sleep(time.Duration(path[len(path)-1]) * time.Millisecond) // in a bubble this fixes the order
					return k
				})
			})
		}},
		{"a reconnect is silent", "watch after a break", "(may) all fire LookAgain, though nothing happened", func(_ Link, m *mutant) {
			m.watched(func(_ string, _ bool, w *backend.Watch) *backend.Watch {
				_, changed := m.Status()
				return relay(w, func(k backend.Kind) backend.Kind {
					if isClosed(changed) {
						return 0
					}
					return k
				})
			})
		}},
		{"a deletion is guessed after a reconnect", "watch after a break", "(may) all fire LookAgain for a node deleted and created again meanwhile", func(_ Link, m *mutant) {
			m.watched(func(path string, _ bool, w *backend.Watch) *backend.Watch {
				before, _ := m.Session.Exists(context.Background(), path, nil)
				return relay(w, func(k backend.Kind) backend.Kind {
					if after, err := m.Session.Exists(context.Background(), path, nil); err != nil || after.Czxid != before.Czxid {
						return backend.Deleted
					}
					return k
				})
			})
		}},
		{"results are in the wrong order", "atomic", "reports the path of what it created and the Stat of what it set", func(_ Link, m *mutant) {
			m.commit = func(ctx context.Context, ops ...backend.Op) ([]backend.Result, error) {
				r, err := m.Session.Commit(ctx, ops...)
				slices.Reverse(r)
				return r, err
			}
		}},
		{"times are the writer's", "stat", "has times of the service's own clock, if it has one", func(_ Link, m *mutant) {
			m.commit = timed(m, func(ms int64) int64 { return ms + m.Session.ID()%2*3_600_000 })
		}},
		{"times are those of an earlier commit", "stat", "has times of the service's own clock, if it has one", func(_ Link, m *mutant) {
			var mu sync.Mutex
			var last int64
			m.commit = timed(m, func(ms int64) (was int64) {
				mu.Lock()
				defer mu.Unlock()
				if was = last; was == 0 {
					was = ms
				}
				last = ms
				return was
			})
		}},
		{"the first operation is always to blame", "atomic", "applies nothing when one operation is refused, and says which", func(_ Link, m *mutant) {
			m.commit = func(ctx context.Context, ops ...backend.Op) ([]backend.Result, error) {
				r, err := m.Session.Commit(ctx, ops...)
				var e *backend.Error
				if errors.As(err, &e) {
					e.Index = 0
				}
				return r, err
			}
		}},
		{"a commit is not atomic", "atomic", "applies nothing when one operation is refused, and says which", piecemeal},
		{"a commit is applied as several", "atomic", "applies all operations, with one zxid", piecemeal},
		{"other sessions see half a commit", "atomic", "is never partly visible to other sessions", piecemeal},
		{"numbers of deleted children are reused", "sequence", "does not use the number of a deleted child again", func(_ Link, m *mutant) {
			m.commit = func(ctx context.Context, ops ...backend.Op) ([]backend.Result, error) {
				if len(ops) == 1 && ops[0].Mode.Sequential() {
					stat, err := m.Session.Exists(ctx, "/", nil)
					if err != nil {
						return nil, err
					}
					op := ops[0]
					op.Path = fmt.Sprintf("%s%010d", op.Path, stat.NumChildren)
					op.Mode = backend.Ephemeral
					return m.Session.Commit(ctx, op)
				}
				return m.Session.Commit(ctx, ops...)
			}
		}},
		{"a read is stale after a write", "order", "lets a session read its own writes", func(_ Link, m *mutant) {
			cache := make(map[string][]byte)
			m.get = func(ctx context.Context, path string, w *backend.Watch) ([]byte, backend.Stat, error) {
				data, stat, err := m.Session.Get(ctx, path, w)
				old, ok := cache[path]
				cache[path] = data
				if ok {
					data = old
				}
				return data, stat, err
			}
		}},
		{"data is shared with the reader", "data", "is copied on the way out", func(_ Link, m *mutant) {
			shared := make(map[string][]byte)
			m.get = func(ctx context.Context, path string, w *backend.Watch) ([]byte, backend.Stat, error) {
				data, stat, err := m.Session.Get(ctx, path, w)
				if shared[path] == nil {
					shared[path] = data
				}
				return shared[path], stat, err
			}
		}},
		{"what a node carries is only checked to exist", "atomic", "tells the same beside data that the parent carries, and keeps or replaces other data", func(_ Link, m *mutant) {
			m.commit = func(ctx context.Context, ops ...backend.Op) ([]backend.Result, error) {
				for i, op := range ops {
					if data, _, err := m.Session.Get(ctx, op.Path, nil); op.Kind == backend.OpCarry && err == nil {
						ops[i].Data = data
					}
				}
				return m.Session.Commit(ctx, ops...)
			}
		}},
		{"a creation beside carried data tells no siblings", "atomic", "tells the same beside data that the parent carries, and keeps or replaces other data", func(_ Link, m *mutant) {
			m.commit = func(ctx context.Context, ops ...backend.Op) ([]backend.Result, error) {
				results, err := m.Session.Commit(ctx, ops...)
				if err == nil && ops[len(ops)-1].Kind == backend.OpCarry {
					results[0].Siblings = 0
				}
				return results, err
			}
		}},
		{"empty data is not nil", "data", "that is empty reads as nil, like absent data", func(_ Link, m *mutant) {
			m.get = func(ctx context.Context, path string, w *backend.Watch) ([]byte, backend.Stat, error) {
				data, stat, err := m.Session.Get(ctx, path, w)
				return append([]byte{}, data...), stat, err
			}
		}},
		{"an uncertain commit is repeated", "lost packets", "leave a commit uncertain: not applied with its request, applied once with its reply", func(_ Link, m *mutant) {
			m.commit = func(ctx context.Context, ops ...backend.Op) ([]backend.Result, error) {
				for {
					r, err := m.Session.Commit(ctx, ops...)
					if !errors.Is(err, backend.ErrUncertain) {
						return r, err
					}
				}
			}
		}},
		{"an abandoned commit does not report its outcome", "context", "that ends while a commit is under way leaves its outcome uncertain", func(_ Link, m *mutant) {
			m.commit = func(ctx context.Context, ops ...backend.Op) ([]backend.Result, error) {
				r, err := m.Session.Commit(ctx, ops...)
				if err != nil && ctx.Err() != nil {
					err = &backend.Error{Op: "commit", Index: -1, Err: backend.ContextError(ctx)}
				}
				return r, err
			}
		}},
		{"an abandoned commit is applied late", "order", "keeps an abandoned commit ahead of a later one", overtaken},
		{"a commit abandoned as it began is applied late", "order", "keeps calls in their order when contexts end", overtaken},
		{"Sync does not wait for an abandoned commit", "order", "has every abandoned commit applied or dropped when Sync returns", overtaken},
		{"a call ignores its context", "context", "that ends while the session is suspended ends every call", func(_ Link, m *mutant) {
			m.children = func(ctx context.Context, path string, w *backend.Watch) ([]string, backend.Stat, error) {
				return m.Session.Children(context.WithoutCancel(ctx), path, w)
			}
		}},
		{"the cause of a context is dropped", "context", "that has ended stops every call before it begins", func(_ Link, m *mutant) {
			m.sync = func(ctx context.Context, path string) error {
				if ctx.Err() != nil {
					return &backend.Error{Op: "sync", Path: path, Err: ctx.Err()}
				}
				return m.Session.Sync(ctx, path)
			}
		}},
		{"Close leaves the nodes", "close", "removes the session's nodes at once", func(_ Link, m *mutant) {
			m.close = func() error { return nil }
		}},
		{"a commit does not end with its session", "close", "ends the calls that are queued behind an abandoned one on a slow link", func(_ Link, m *mutant) {
			m.commit = func(ctx context.Context, ops ...backend.Op) ([]backend.Result, error) {
				r, err := m.Session.Commit(ctx, ops...)
				if errors.Is(err, backend.ErrClosed) {
					<-time.After(2 * closeLimit)
				}
				return r, err
			}
		}},
		{"a lost session is silently replaced", "loss", "means that no commit of the session is applied any more", func(l Link, m *mutant) {
			m.commit = func(ctx context.Context, ops ...backend.Op) ([]backend.Result, error) {
				r, err := m.Session.Commit(ctx, ops...)
				if errors.Is(err, backend.ErrSessionLost) {
					next, openErr := l.Open(ctx)
					if openErr != nil {
						return nil, openErr
					}
					defer next.Close()
					return next.Commit(ctx, ops...)
				}
				return r, err
			}
		}},
		{"the loss is due to a context", "loss", "ends every call at once with ErrSessionLost, calls under way and new ones", func(_ Link, m *mutant) {
			m.sync = func(ctx context.Context, path string) error {
				err := m.Session.Sync(ctx, path)
				if errors.Is(err, backend.ErrSessionLost) {
					return &backend.Error{Op: "sync", Path: path, Err: errors.Join(backend.ErrSessionLost, context.DeadlineExceeded)}
				}
				return err
			}
		}},
		{"the loss is noticed late", "loss", "is declared before the service deletes the session's nodes", func(_ Link, m *mutant) {
			var once sync.Once
			late := make(chan struct{})
			m.done = func() <-chan struct{} {
				once.Do(func() {
					go func() {
						<-m.Session.Done()
						time.Sleep(m.Timeout())
						close(late)
					}()
				})
				return late
			}
			m.err = func() error {
				if err := m.Session.Err(); errors.Is(err, backend.ErrClosed) || isClosed(m.done()) {
					return err
				}
				return nil
			}
		}},
	}, armDefects(), treeDefects(), manyDefects())
}

// late makes every watch fire a moment after its event.
func late(_ Link, m *mutant) {
	m.watched(func(_ string, _ bool, w *backend.Watch) *backend.Watch {
		return relay(w, func(k backend.Kind) backend.Kind {
			time.Sleep(time.Millisecond) // in a bubble this ends when everything else waits
			return k
		})
	})
}

// piecemeal applies the operations of a commit one by one, with pauses in which other
// sessions can read.
func piecemeal(_ Link, m *mutant) {
	m.commit = func(ctx context.Context, ops ...backend.Op) ([]backend.Result, error) {
		if err := backend.CheckOps(ops); err != nil {
			return nil, err
		}
		var all []backend.Result
		for i, op := range ops {
			for n := 0; i > 0 && n < 3; n++ {
				if err := m.Session.Sync(ctx, op.Path); err != nil {
					return nil, err
				}
			}
			r, err := m.Session.Commit(ctx, op)
			var e *backend.Error
			if errors.As(err, &e) {
				e.Index = i
			}
			if err != nil {
				return nil, err
			}
			all = append(all, r...)
		}
		return all, nil
	}
}

// overtaken sends commits on goroutines of their own, so that a later call may overtake an
// abandoned commit.
func overtaken(_ Link, m *mutant) {
	m.commit = func(ctx context.Context, ops ...backend.Op) ([]backend.Result, error) {
		type reply struct {
			r   []backend.Result
			err error
		}
		replies := make(chan reply, 1)
		given := make(chan struct{})
		defer close(given)
		ops = slices.Clone(ops)
		for i := range ops {
			ops[i].Data = slices.Clone(ops[i].Data)
		}
		go func() {
			select {
			case <-given:
				time.Sleep(10 * time.Millisecond) // in a bubble this ends after the next call
			case <-time.After(time.Microsecond):
			}
			r, err := m.Session.Commit(context.WithoutCancel(ctx), ops...)
			replies <- reply{r, err}
		}()
		select {
		case got := <-replies:
			return got.r, got.err
		case <-ctx.Done():
			return nil, &backend.Error{Op: "commit", Index: -1, Err: backend.Uncertain(backend.ContextError(ctx))}
		}
	}
}

// timed commits, and changes the times that the results show.
func timed(m *mutant, change func(ms int64) int64) func(context.Context, ...backend.Op) ([]backend.Result, error) {
	return func(ctx context.Context, ops ...backend.Op) ([]backend.Result, error) {
		r, err := m.Session.Commit(ctx, ops...)
		for i := range r {
			if ops[i].Kind == backend.OpSetData {
				r[i].Stat.Mtime = change(r[i].Stat.Mtime)
			}
		}
		return r, err
	}
}

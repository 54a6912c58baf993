package recipetest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/backend/memory"
	"github.com/go-coord/coord/internal/coordtest"
)

// plain is a backend of a service that reports nothing that is advisory.
type plain struct{ backend.Backend }

func (b plain) Open(ctx context.Context) (backend.Session, error) {
	s, err := b.Backend.Open(ctx)
	if err != nil {
		return nil, err
	}
	return plainSession{s}, nil
}

type plainSession struct{ backend.Session }

func without(stat backend.Stat) backend.Stat {
	stat.Pzxid, stat.Cversion = 0, 0
	return stat
}

func (s plainSession) Get(ctx context.Context, path string, w *backend.Watch) ([]byte, backend.Stat, error) {
	data, stat, err := s.Session.Get(ctx, path, w)
	return data, without(stat), err
}

func (s plainSession) Exists(ctx context.Context, path string, w *backend.Watch) (backend.Stat, error) {
	stat, err := s.Session.Exists(ctx, path, w)
	return without(stat), err
}

func (s plainSession) Children(ctx context.Context, path string, w *backend.Watch) ([]string, backend.Stat, error) {
	names, stat, err := s.Session.Children(ctx, path, w)
	return names, without(stat), err
}

func (s plainSession) Commit(ctx context.Context, ops ...backend.Op) ([]backend.Result, error) {
	results, err := s.Session.Commit(ctx, ops...)
	for i := range results {
		results[i].Stat = without(results[i].Stat)
	}
	return results, err
}

// Recipes learn the order of reads and commits from the positions of their reads. So they
// do the same, with the same requests, where the service reports no Pzxid and no
// Cversion.
func TestAdvisory_NoRecipeNeedsWhatIsAdvisory(t *testing.T) {
	play := func(t *testing.T, wrap func(backend.Backend) backend.Backend) (steps []string) {
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		ctx := t.Context()
		var r callCount
		st := memory.New(nil)
		a := coordtest.Open(t, backendtest.Intercept(wrap(st), *r.hooks()), nil)
		b := coordtest.Open(t, wrap(st.Link("b")), nil)
		step := func(name string, f func()) {
			t.Helper()
			f()
			synctest.Wait()
			steps = append(steps, fmt.Sprint(name, " ", r.reset()))
		}
		m := coord.NewMutex(a, "/l", nil)
		for range 3 {
			step("lock", func() { coordtest.MustRelease(t, coordtest.MustLock(t, m)) })
		}
		others := coordtest.MustLock(t, coord.NewMutex(b, "/l", nil))
		step("locked", func() {
			if _, err := m.TryLock(ctx); !errors.Is(err, coord.ErrLocked) {
				t.Error(err)
			}
		})
		coordtest.MustRelease(t, others)

		queueOf := func(c *coord.Client) *coord.Queue[string] {
			q := coord.NewQueue(c, "/q", &coord.QueueOptions[string]{Codec: coord.Text()})
			*coordtest.Inside(&q.Consumer).BucketSize = 3
			return q
		}
		q, other := queueOf(a), queueOf(b)
		n := 0
		for range 5 { // the clients close each other's buckets
			for _, p := range []*coord.Queue[string]{q, other} {
				step("put", func() {
					_, err := p.PutAll(ctx, fmt.Sprint(n), fmt.Sprint(n+1))
					must(err)
					n += 2
				})
			}
		}
		for range 4 {
			step("transaction", func() {
				_, err := coord.NewTxn(a).Add(q.PutOp(fmt.Sprint(n))).Commit(ctx)
				must(err)
				n++
			})
		}
		for i := range n {
			step("take", func() {
				it, err := q.Take(ctx)
				must(err)
				must(it.Nack(0))
			})
			step("take again", func() {
				it, err := q.Take(ctx)
				must(err)
				if it.Value != fmt.Sprint(i) || it.Attempt != 2 {
					t.Errorf("item %d is %q, attempt %d", i, it.Value, it.Attempt)
				}
				must(it.Ack())
			})
		}
		k := coord.NewCache(a, "/c", nil)
		run, stop := context.WithCancel(ctx)
		ended := make(chan error, 1)
		go func() { ended <- k.Run(run) }()
		synctest.Wait()
		s, err := b.Session(ctx)
		must(err)
		for i, ops := range [][]backend.Op{
			{backend.Create("/c", nil, backend.Persistent), backend.Create("/c/a", nil, backend.Persistent)},
			{backend.SetData("/c", []byte("x"), 0), backend.Create("/c/b", nil, backend.Persistent)},
			{backend.Delete("/c/a", 0), backend.Create("/c/a", []byte("again"), backend.Persistent)},
			{backend.Delete("/c/b", 0), backend.SetData("/c", nil, 1)},
			{backend.Create("/c/d", nil, backend.Persistent)},
			{backend.SetData("/c/d", []byte("y"), 0)},
			{backend.Delete("/c/d", 1)},
		} {
			change := func() {
				_, err := s.Commit(ctx, ops...)
				must(err)
			}
			if len(ops) == 1 {
				step("cache", change)
			} else { // the cache can take the changes of a commit together, or one after the other
				change()
				synctest.Wait()
				r.reset()
			}
			want, stat, err := s.Get(ctx, "/c", nil)
			must(err)
			if got, ok := k.Get("/c"); !ok || got.Stat.NumChildren != stat.NumChildren || string(got.Data) != string(want) || got.Stat.AsOf < stat.Mzxid {
				t.Errorf("step %d: the cache has %+v, the service %+v", i, got.Stat, stat)
			}
		}
		stop()
		<-ended
		return steps
	}
	var with, instead []string
	t.Run("with", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { with = play(t, func(b backend.Backend) backend.Backend { return b }) })
	})
	t.Run("without", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { instead = play(t, func(b backend.Backend) backend.Backend { return plain{b} }) })
	})
	for i := range with {
		if len(instead) <= i || with[i] != instead[i] {
			t.Errorf("step %d: %q without what is advisory, want %q as with it", i, instead[min(i, len(instead)-1)], with[i])
		}
	}
}

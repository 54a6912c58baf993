package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-coord/coord"
)

// An operation is the main use of a recipe: steps that one caller makes one after the other,
// repeatedly.
type operation struct {
	what  string
	steps []string
	// open prepares a caller of c, at a path of its own. It does not make any step.
	open func(ctx context.Context, c *coord.Client, path string) (*caller, error)
}

// A caller makes the steps of an operation.
type caller struct {
	steps []step
	close func() error // nil if nothing needs to be closed
}

func (c *caller) Close() error {
	if c.close == nil {
		return nil
	}
	return c.close()
}

// cycle makes every step once.
func (c *caller) cycle(ctx context.Context) error {
	for _, s := range c.steps {
		if err := s(ctx); err != nil {
			return err
		}
	}
	return nil
}

// operations are the main operations of all recipes.
func operations() []*operation {
	return []*operation{
		{"Mutex", []string{"Lock", "Release"}, func(_ context.Context, c *coord.Client, path string) (*caller, error) {
			return holding(coord.NewMutex(c, path, nil).Lock), nil
		}},
		{"RWMutex, writer", []string{"Lock", "Release"}, func(_ context.Context, c *coord.Client, path string) (*caller, error) {
			return holding(coord.NewRWMutex(c, path, nil).Lock), nil
		}},
		{"RWMutex, reader", []string{"RLock", "Release"}, func(_ context.Context, c *coord.Client, path string) (*caller, error) {
			return holding(coord.NewRWMutex(c, path, nil).RLock), nil
		}},
		{"Semaphore", []string{"Acquire", "Release"}, func(_ context.Context, c *coord.Client, path string) (*caller, error) {
			s := coord.NewSemaphore(c, path, 2, nil)
			return holding(func(ctx context.Context) (*coord.Hold, error) { return s.Acquire(ctx, 1) }), nil
		}},
		{"LockAll of 3", []string{"Lock", "Release"}, func(_ context.Context, c *coord.Client, path string) (*caller, error) {
			return lockingAll(c, path, 3, func(m *coord.Mutex) coord.Locker { return m }), nil
		}},
		{"Election", []string{"Campaign", "Release"}, func(_ context.Context, c *coord.Client, path string) (*caller, error) {
			e := coord.NewElection(c, path, &coord.ElectionOptions{ID: "a"})
			return holding(func(ctx context.Context) (*coord.Hold, error) {
				t, err := e.Campaign(ctx)
				if err != nil {
					return nil, err
				}
				return t.Hold, nil
			}), nil
		}},
		{"Barrier", []string{"Set", "Remove", "Wait"}, func(_ context.Context, c *coord.Client, path string) (*caller, error) {
			b := coord.NewBarrier(c, path, nil)
			return &caller{steps: []step{b.Set, b.Remove, b.Wait}}, nil
		}},
		{"DoubleBarrier of 1", []string{"Enter", "Leave"}, openDoubleBarrier},
		{"Queue", []string{"Put", "Take", "Ack"}, func(_ context.Context, c *coord.Client, path string) (*caller, error) {
			q := coord.NewQueue(c, path, &coord.QueueOptions[string]{Codec: coord.Text()})
			return consuming(func(ctx context.Context) (string, error) { return q.Put(ctx, payload) }, &q.Consumer), nil
		}},
		{"Queue, at most once", []string{"Put", "Pop"}, func(_ context.Context, c *coord.Client, path string) (*caller, error) {
			q := coord.NewQueue(c, path, &coord.QueueOptions[string]{Codec: coord.Text()})
			return &caller{steps: []step{
				func(ctx context.Context) error { _, err := q.Put(ctx, payload); return err },
				func(ctx context.Context) error { _, err := q.Pop(ctx); return err },
			}}, nil
		}},
		{"Queue, batches of 100", []string{"PutAll", "Purge"}, func(_ context.Context, c *coord.Client, path string) (*caller, error) {
			q := coord.NewQueue(c, path, &coord.QueueOptions[string]{Codec: coord.Text()})
			vs := slices.Repeat([]string{payload}, 100)
			return &caller{steps: []step{
				func(ctx context.Context) error { _, err := q.PutAll(ctx, vs...); return err },
				func(ctx context.Context) error { _, err := q.Purge(ctx); return err },
			}}, nil
		}},
		{"PriorityQueue", []string{"Put", "Take", "Ack"}, func(_ context.Context, c *coord.Client, path string) (*caller, error) {
			q := coord.NewPriorityQueue(c, path, &coord.QueueOptions[string]{Codec: coord.Text()})
			return consuming(func(ctx context.Context) (string, error) { return q.Put(ctx, 1, payload) }, &q.Consumer), nil
		}},
		{"DelayQueue", []string{"Put", "Take", "Ack"}, func(_ context.Context, c *coord.Client, path string) (*caller, error) {
			q := coord.NewDelayQueue(c, path, &coord.QueueOptions[string]{Codec: coord.Text()})
			due := time.Now().Add(-time.Hour)
			return consuming(func(ctx context.Context) (string, error) { return q.Put(ctx, due, payload) }, &q.Consumer), nil
		}},
		{"Txn under a guard", []string{"Commit"}, openTxn},
		{"two-phase commit, 1 site", []string{"Propose"}, func(ctx context.Context, c *coord.Client, path string) (*caller, error) {
			return openTwoPhase(ctx, []*coord.Client{c}, path, 1)
		}},
		{"Group", []string{"Join", "Members", "Leave"}, openGroup},
		{"Value", []string{"Set", "Get", "Update"}, openValue},
		{"Counter", []string{"Add", "Get"}, func(ctx context.Context, c *coord.Client, path string) (*caller, error) {
			n := coord.NewCounter(c, path)
			return &caller{steps: []step{
				func(ctx context.Context) error { _, err := n.Add(ctx, 1); return err },
				func(ctx context.Context) error { _, err := n.Get(ctx); return err },
			}}, nil
		}},
		{"Counter, blocks of 100", []string{"Reserve"}, func(_ context.Context, c *coord.Client, path string) (*caller, error) {
			n := coord.NewCounter(c, path)
			return &caller{steps: []step{func(ctx context.Context) error { _, err := n.Reserve(ctx, 100); return err }}}, nil
		}},
		{"Cache", []string{"change, until seen"}, openCache},
		{"Cache, read", []string{"Get"}, openCacheRead},
	}
}

// payload is the data of queue items.
var payload = string(make([]byte, 100))

// holding returns a caller that acquires and releases a hold.
func holding(take func(context.Context) (*coord.Hold, error)) *caller {
	var h *coord.Hold
	return &caller{steps: []step{
		func(ctx context.Context) (err error) {
			h, err = take(ctx)
			return err
		},
		func(context.Context) error { return h.Release() },
	}}
}

// consuming returns a caller that puts an item, takes it and acknowledges it.
func consuming(put func(context.Context) (string, error), q *coord.Consumer[string]) *caller {
	var it *coord.Item[string]
	return &caller{steps: []step{
		func(ctx context.Context) error { _, err := put(ctx); return err },
		func(ctx context.Context) (err error) {
			it, err = q.Take(ctx)
			return err
		},
		func(context.Context) error { return it.Ack() },
	}}
}

func openDoubleBarrier(_ context.Context, c *coord.Client, path string) (*caller, error) {
	d := coord.NewDoubleBarrier(c, path, 1, nil)
	var e *coord.Entry
	return &caller{steps: []step{
		func(ctx context.Context) (err error) {
			e, err = d.Enter(ctx)
			return err
		},
		func(ctx context.Context) error { return e.Leave(ctx) },
	}}, nil
}

func openTxn(ctx context.Context, c *coord.Client, path string) (*caller, error) {
	h, err := coord.NewMutex(c, path+"-lock", nil).Lock(ctx)
	if err != nil {
		return nil, err
	}
	v := coord.NewValue(c, path, &coord.ValueOptions[string]{Codec: coord.Text()})
	if _, err := v.Set(ctx, payload); err != nil {
		return nil, errors.Join(err, h.Release())
	}
	return &caller{
		steps: []step{func(ctx context.Context) error {
			_, err := coord.NewTxn(c).Under(h.Guard()).Set(path, []byte(payload)).Commit(ctx)
			return err
		}},
		close: h.Release,
	}, nil
}

func openGroup(ctx context.Context, c *coord.Client, path string) (*caller, error) {
	g := coord.NewGroup(c, path, &coord.GroupOptions[string]{Codec: coord.Text()})
	// Nine other members exist.
	var others []*coord.Membership[string]
	leave := func() (err error) {
		for _, m := range others {
			err = errors.Join(err, m.Leave())
		}
		return err
	}
	for i := range 9 {
		m, err := g.Join(ctx, fmt.Sprint("other-", i), payload)
		if err != nil {
			return nil, errors.Join(err, leave())
		}
		others = append(others, m)
	}
	var me *coord.Membership[string]
	return &caller{
		steps: []step{
			func(ctx context.Context) (err error) {
				me, err = g.Join(ctx, "me", payload)
				return err
			},
			func(ctx context.Context) error {
				ms, err := g.Members(ctx)
				if err == nil && len(ms) != 10 {
					err = fmt.Errorf("%d members, want 10", len(ms))
				}
				return err
			},
			func(context.Context) error { return me.Leave() },
		},
		close: leave,
	}, nil
}

func openValue(ctx context.Context, c *coord.Client, path string) (*caller, error) {
	v := coord.NewValue(c, path, &coord.ValueOptions[string]{Codec: coord.Text()})
	return &caller{steps: []step{
		func(ctx context.Context) error { _, err := v.Set(ctx, payload); return err },
		func(ctx context.Context) error { _, err := v.Get(ctx); return err },
		func(ctx context.Context) error {
			_, err := v.Update(ctx, func(old string) (string, error) { return old, nil })
			return err
		},
	}}, nil
}

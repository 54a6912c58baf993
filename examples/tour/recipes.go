package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/go-coord/coord"
)

// jobs shows a typed queue, and a consumer that dies in the middle of its work. The end of its
// client stands for the end of its process. After a loss of contact the items would be delivered
// again when the timeout of its session has passed.
func (t *tour) jobs(ctx context.Context) error {
	t.title("A worker is killed in the middle of its work.")
	type job struct{ Dish string }
	const path = "/kitchen"
	ids, err := coord.NewQueue[job](t.ann.client, path, nil).PutAll(ctx, job{"soup"}, job{"pie"}, job{"tea"})
	if err != nil {
		return err
	}
	t.Say("ann", "puts %d jobs into the queue %s", len(ids), path)
	dan, err := t.newPerson(ctx, "dan")
	if err != nil {
		return err
	}
	lost, err := coord.NewQueue[job](dan.client, path, nil).Take(ctx)
	if err != nil {
		return err
	}
	t.Say("dan", "takes %q, attempt %d, and is killed", lost.Value.Dish, lost.Attempt)
	if err := dan.client.Close(); err != nil {
		return err
	}
	if err := lost.Ack(); !errors.Is(err, coord.ErrLost) {
		return fmt.Errorf("dan's claim ended with %v, want a loss", err)
	}
	queue := coord.NewQueue[job](t.cid.client, path, nil)
	for range ids {
		item, err := queue.Take(ctx)
		if err != nil {
			return err
		}
		want := 1
		if item.ID == lost.ID {
			want = 2
		}
		if item.Attempt != want {
			return fmt.Errorf("%q comes at attempt %d, want %d", item.Value.Dish, item.Attempt, want)
		}
		if err := item.Ack(); err != nil {
			return err
		}
		t.Say("cid", "takes %q, attempt %d, and is done with it", item.Value.Dish, item.Attempt)
	}
	if n, err := queue.Len(ctx); err != nil || n != 0 {
		return fmt.Errorf("%d jobs are left, error %v", n, err)
	}
	t.Say("", "No job is left.")
	return nil
}

// together shows a double barrier.
func (t *tour) together(ctx context.Context) error {
	t.title("Three begin together and end together.")
	all := []*person{t.ann, t.bob, t.cid}
	type entered struct {
		p   *person
		e   *coord.Entry
		err error
	}
	in := make(chan entered, len(all))
	for i, p := range all {
		p.forget()
		b := coord.NewDoubleBarrier(p.client, "/dinner", len(all), nil)
		t.waiters.Go(func() {
			e, err := b.Enter(ctx)
			in <- entered{p, e, err}
		})
		if i == len(all)-1 {
			break
		}
		select {
		case <-p.waiting:
			t.Say(p.name, "has come, and waits for the others")
		case got := <-in:
			return fmt.Errorf("%s does not wait for the others, error %v", got.p.name, got.err)
		case <-ctx.Done():
			return fmt.Errorf("%s does not come: %w", p.name, context.Cause(ctx))
		}
	}
	t.Say(t.cid.name, "comes")
	var leaving atomic.Int32
	left := make(chan error, len(all))
	for range all {
		got := <-in // Enter ends with ctx
		if got.err != nil {
			return got.err
		}
		t.Say(got.p.name, "begins")
		t.waiters.Go(func() {
			leaving.Add(1)
			err := got.e.Leave(ctx)
			if n := leaving.Load(); err == nil && int(n) != len(all) {
				err = fmt.Errorf("%s may go when %d of %d want to leave", got.p.name, n, len(all))
			}
			left <- err
		})
	}
	for range all {
		if err := <-left; err != nil {
			return err
		}
	}
	t.Say("", "All have ended, and the next round can begin.")
	return nil
}

// leaders shows an election.
func (t *tour) leaders(ctx context.Context) error {
	t.title("One of them leads.")
	t.holder.Store(nil)
	campaign := func(p *person) func(context.Context) (*coord.Hold, error) {
		e := coord.NewElection(p.client, "/chair", &coord.ElectionOptions{ID: p.name})
		return func(ctx context.Context) (*coord.Hold, error) {
			term, err := e.Campaign(ctx)
			if err != nil {
				return nil, err
			}
			return term.Hold, nil
		}
	}
	h, err := campaign(t.ann)(ctx)
	if err := t.took(t.granted(t.ann, h, err), t.ann, "leads"); err != nil {
		return err
	}
	if err := t.wait(ctx, t.bob, campaign(t.bob)); err != nil {
		return err
	}
	if err := t.wait(ctx, t.cid, campaign(t.cid)); err != nil {
		return err
	}
	t.Say("ann", "is killed")
	if err := t.ann.client.Close(); err != nil {
		return err
	}
	if err := t.next(ctx, t.bob, "leads"); err != nil {
		return err
	}
	t.Say("bob", "resigns")
	if err := t.bob.hold.Release(); err != nil {
		return err
	}
	if err := t.next(ctx, t.cid, "leads"); err != nil {
		return err
	}
	leader, err := coord.NewElection(t.bob.client, "/chair", nil).Leader(ctx)
	if err != nil {
		return err
	}
	// Bob's own change is visible to bob, and so is everything before it.
	if leader.ID != "cid" {
		return fmt.Errorf("bob sees %s as the leader", leader.ID)
	}
	t.Say("bob", "sees that %s leads", leader.ID)
	return t.cid.hold.Release()
}

// shares shows shards: pieces of work that are divided among the members.
func (t *tour) shares(ctx context.Context) error {
	t.title("They share six tables.")
	const tables = 6
	working, stop := context.WithCancel(ctx)
	defer stop()
	var mu sync.Mutex
	owner, changed := make(map[int]string), make(chan struct{}, 1)
	set := func(i int, name string, owns bool) {
		mu.Lock()
		defer mu.Unlock()
		if owns {
			owner[i] = name
		} else if owner[i] == name {
			delete(owner, i)
		}
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	ended := make(chan error, 3)
	come := func(p *person) {
		t.Say(p.name, "comes")
		t.waiters.Go(func() {
			s := coord.NewShards(p.client, "/tables", tables, &coord.ShardsOptions{ID: p.name})
			ended <- s.Run(working, func(ctx context.Context, sh *coord.Shard) error {
				set(sh.Index, p.name, true)
				<-ctx.Done() // serve the table until it is to move
				set(sh.Index, p.name, false)
				return nil
			})
		})
	}
	evenly := func(all ...*person) error {
		for {
			owns := make(map[string][]int)
			mu.Lock()
			for i := range tables {
				owns[owner[i]] = append(owns[owner[i]], i)
			}
			mu.Unlock()
			even := true
			for _, p := range all {
				even = even && len(owns[p.name]) == tables/len(all)
			}
			if even {
				for _, p := range all {
					t.Say(p.name, "serves the tables %v", owns[p.name])
				}
				return nil
			}
			select {
			case <-changed:
			case err := <-ended:
				return fmt.Errorf("a member has left, error %v", err)
			case <-ctx.Done():
				return fmt.Errorf("%d do not share the tables evenly: %w", len(all), context.Cause(ctx))
			}
		}
	}
	eve, err := t.newPerson(ctx, "eve")
	if err != nil {
		return err
	}
	var all []*person
	for _, p := range []*person{t.bob, t.cid, eve} {
		come(p)
		all = append(all, p)
		if err := evenly(all...); err != nil {
			return err
		}
	}
	t.Say("eve", "is killed")
	if err := eve.client.Close(); err != nil {
		return err
	}
	if err := <-ended; !errors.Is(err, coord.ErrClosed) {
		return fmt.Errorf("eve's work ended with %v, want the end of the client", err)
	}
	if err := evenly(t.bob, t.cid); err != nil {
		return err
	}
	stop()
	for range 2 {
		if err := <-ended; err != nil {
			return err
		}
	}
	t.Say("", "All have gone home.")
	return nil
}

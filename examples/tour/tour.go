package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/examples/internal/service"
	"github.com/go-coord/coord/trace"
)

const lockPath = "/lock"

// tour is three clients, and the objects that they share on the service: a lock, and a report
// that only the holder of the lock may write.
type tour struct {
	*service.Service
	ann, bob, cid *person
	grants        chan grant                 // one for each acquisition that ended
	waiters       sync.WaitGroup             // the goroutines that acquire
	holder        atomic.Pointer[coord.Hold] // the latest hold of the current chapter's recipe
	report        string                     // its expected content
	chapter       int
}

// person is one client. In production each runs in a process of its own.
type person struct {
	name    string
	link    service.Link
	client  *coord.Client
	lock    *coord.Mutex
	waiting chan struct{} // gets a value when a call finds that it must wait
	hold    *coord.Hold   // the latest
}

// grant is the result of an acquisition.
type grant struct {
	to   *person
	hold *coord.Hold
	err  error
}

// story is the tour. Each step checks its result.
func story(ctx context.Context, s *service.Service) error {
	ctx, cancel := context.WithCancel(ctx)
	t := &tour{Service: s, grants: make(chan grant, 3)}
	defer t.waiters.Wait()
	defer cancel()
	steps := []func(context.Context) error{
		t.open, t.queue, t.handOver, t.cutOff, t.comeBack, t.finish, // the lock
		t.jobs, t.together, t.leaders, t.shares,
	}
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (t *tour) open(ctx context.Context) (err error) {
	if t.ann, err = t.newPerson(ctx, "ann"); err != nil {
		return err
	}
	if t.bob, err = t.newPerson(ctx, "bob"); err != nil {
		return err
	}
	if t.cid, err = t.newPerson(ctx, "cid"); err != nil {
		return err
	}
	s, err := t.cid.client.Session(ctx)
	if err != nil {
		return err
	}
	t.Say("", "Three clients of %s, each with a link of its own.", t.About)
	t.Say("", "The service ends a session after %v without contact.", s.Timeout())
	return nil
}

func (t *tour) newPerson(ctx context.Context, name string) (*person, error) {
	p := &person{name: name, link: t.Link(name), waiting: make(chan struct{}, 1)}
	trace := func(_ context.Context, e trace.Event) {
		if _, ok := e.(trace.WaitBegan); ok {
			select {
			case p.waiting <- struct{}{}:
			default: // Trace must not block
			}
		}
	}
	var err error
	if p.client, err = t.OpenWith(ctx, p.link, trace); err != nil {
		return nil, err
	}
	p.lock = coord.NewMutex(p.client, lockPath, &coord.MutexOptions{Data: []byte(name)})
	return p, nil
}

func (t *tour) queue(ctx context.Context) error {
	t.title("They queue for the lock %s.", lockPath)
	h, err := t.ann.lock.TryLock(ctx)
	if err := t.took(t.granted(t.ann, h, err), t.ann, "has the lock"); err != nil {
		return err
	}
	if err := t.wait(ctx, t.bob, t.bob.lock.Lock); err != nil {
		return err
	}
	if err := t.wait(ctx, t.cid, t.cid.lock.Lock); err != nil {
		return err
	}
	return t.list(ctx, t.ann, t.bob, t.cid)
}

func (t *tour) handOver(ctx context.Context) error {
	t.title("The lock is handed over in order.")
	if err := t.create(ctx, t.ann); err != nil {
		return err
	}
	if err := t.release(ctx, t.ann, t.bob); err != nil {
		return err
	}
	if err := t.wait(ctx, t.ann, t.ann.lock.Lock); err != nil { // once more, behind the others
		return err
	}
	if err := t.list(ctx, t.bob, t.cid, t.ann); err != nil {
		return err
	}
	return t.write(ctx, t.bob, "bob's draft")
}

func (t *tour) cutOff(ctx context.Context) error {
	t.title("The holder loses contact with the service.")
	t.bob.link.Partition()
	cut := time.Now()
	t.Say("bob", "is cut off, and has the lock for now")
	select {
	case <-t.bob.hold.Done():
	case <-ctx.Done():
		return fmt.Errorf("bob's hold did not end: %w", context.Cause(ctx))
	}
	t.Say("bob", "notices the loss by the lease, %.2fs after the cut", time.Since(cut).Seconds())
	err := t.bob.hold.Err()
	if !errors.Is(err, coord.ErrLost) || !errors.Is(err, coord.ErrSessionLost) {
		return fmt.Errorf("bob's hold ended with %q, want the loss of the session", err)
	}
	t.Say("", "     Err: %v", err)
	// Only now does the service end bob's session and delete its node.
	return t.next(ctx, t.cid, "has the lock")
}

func (t *tour) comeBack(ctx context.Context) error {
	t.title("The old holder comes back, and writes as if nothing had happened.")
	t.bob.link.Heal()
	err := t.write(ctx, t.bob, "bob's final version")
	if !errors.Is(err, coord.ErrNotFound) {
		return fmt.Errorf("bob wrote under a lost hold: error %v, want the guard to refuse", err)
	}
	t.Say("bob", "is refused, because the guard of the old hold fails")
	t.Say("", "     %v", err)
	if err := t.read(ctx); err != nil {
		return err
	}
	if err := t.write(ctx, t.cid, "cid's version"); err != nil {
		return err
	}
	return t.read(ctx)
}

func (t *tour) finish(ctx context.Context) error {
	t.title("The rest goes on.")
	if err := t.release(ctx, t.cid, t.ann); err != nil {
		return err
	}
	if err := t.ann.hold.Release(); err != nil {
		return err
	}
	t.Say("ann", "releases the lock")
	return t.list(ctx)
}

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-coord/coord"
)

// tour is three clients, one lock, and a report that only the holder of the lock
// may write.
type tour struct {
	out        io.Writer
	start      time.Time
	service    string        // for people
	timeout    time.Duration // of sessions, as asked for
	lockPath   string
	reportPath string
	link       func(name string) link

	ann, bob, cid *contender
	grants        chan grant                 // one for each Lock that ended
	waiters       sync.WaitGroup             // the goroutines in Lock
	holder        atomic.Pointer[coord.Hold] // the latest
	report        string                     // what it must say
	chapter       int
}

// contender is one client. In real life each is in a process of its own.
type contender struct {
	name    string
	link    link
	client  *coord.Client
	lock    *coord.Mutex
	waiting chan struct{} // gets a value when a Lock finds that it must wait
	hold    *coord.Hold   // the latest
}

// grant is how a Lock ended.
type grant struct {
	to   *contender
	hold *coord.Hold
	err  error
}

// show tells the story. Each step checks what it tells.
func (t *tour) show(ctx context.Context) error {
	t.start = time.Now()
	steps := []func(context.Context) error{t.open, t.queue, t.handOver, t.cutOff, t.comeBack, t.finish}
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (t *tour) open(ctx context.Context) (err error) {
	t.grants = make(chan grant, 3)
	if t.ann, err = t.newContender(ctx, "ann"); err != nil {
		return err
	}
	if t.bob, err = t.newContender(ctx, "bob"); err != nil {
		return err
	}
	if t.cid, err = t.newContender(ctx, "cid"); err != nil {
		return err
	}
	s, err := t.cid.client.Session(ctx)
	if err != nil {
		return err
	}
	t.say("", "Three clients of %s, each with a link of its own.", t.service)
	t.say("", "The service ends a session after %v without contact.", s.Timeout())
	return nil
}

func (t *tour) newContender(ctx context.Context, name string) (*contender, error) {
	p := &contender{name: name, link: t.link(name), waiting: make(chan struct{}, 1)}
	trace := func(_ context.Context, e coord.Event) {
		if _, ok := e.(coord.WaitBegan); ok {
			select {
			case p.waiting <- struct{}{}:
			default: // Trace must not block
			}
		}
	}
	// A service that cannot be reached is waited for, so bound the wait.
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	var err error
	if p.client, err = coord.Open(ctx, p.link, &coord.Options{Trace: trace}); err != nil {
		return nil, err
	}
	p.lock = coord.NewMutex(p.client, t.lockPath, &coord.MutexOptions{Data: []byte(name)})
	return p, nil
}

func (t *tour) queue(ctx context.Context) error {
	t.title("They queue for the lock %s.", t.lockPath)
	h, err := t.ann.lock.TryLock(ctx)
	if errors.Is(err, coord.ErrLocked) {
		return fmt.Errorf("%w: does another tour work there? Choose another -path", err)
	}
	if err := t.took(t.granted(t.ann, h, err), t.ann); err != nil {
		return err
	}
	if err := t.wait(ctx, t.bob); err != nil {
		return err
	}
	if err := t.wait(ctx, t.cid); err != nil {
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
	if err := t.wait(ctx, t.ann); err != nil { // once more, behind the others
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
	t.say("bob", "is cut off, and has the lock for now")
	select {
	case <-t.bob.hold.Done():
	case <-ctx.Done():
		return fmt.Errorf("bob's hold did not end: %w", context.Cause(ctx))
	}
	t.say("bob", "knows by himself that it is lost, %.2fs after the cut", time.Since(cut).Seconds())
	err := t.bob.hold.Err()
	if !errors.Is(err, coord.ErrLost) || !errors.Is(err, coord.ErrSessionLost) {
		return fmt.Errorf("bob's hold ended with %q, want the loss of his session", err)
	}
	t.say("", "     Err: %v", err)
	// Only now does the service end bob's session, and his node goes with it.
	return t.next(ctx, t.cid)
}

func (t *tour) comeBack(ctx context.Context) error {
	t.title("The old holder comes back, and writes as if nothing had happened.")
	t.bob.link.Heal()
	err := t.write(ctx, t.bob, "bob's final version")
	if !errors.Is(err, coord.ErrNotFound) {
		return fmt.Errorf("bob wrote under a hold that he had lost: error %v, want the guard to refuse", err)
	}
	t.say("bob", "is refused, for the guard of his old hold fails")
	t.say("", "     %v", err)
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
	t.say("ann", "releases the lock")
	if err := t.list(ctx); err != nil {
		return err
	}
	t.say("", "All was as told.")
	return nil
}

// close cleans up, whether the story came to its end or not.
func (t *tour) close() error {
	var err error
	for _, p := range []*contender{t.ann, t.bob, t.cid} {
		if p == nil {
			continue
		}
		p.link.Heal()
		if p == t.cid && t.report != "" {
			err = t.remove()
		}
		err = errors.Join(err, p.client.Close()) // ends every Lock and every hold
	}
	t.waiters.Wait()
	return err
}

package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
)

// wait puts p in line for the lock, and returns when it stands there.
func (t *tour) wait(ctx context.Context, p *contender) error {
	t.waiters.Go(func() {
		h, err := p.lock.Lock(ctx)
		t.grants <- t.granted(p, h, err)
	})
	select {
	case <-p.waiting:
		t.say(p.name, "waits")
		return nil
	case g := <-t.grants:
		return fmt.Errorf("%s did not wait for the holder: granted %v, error %v", p.name, g.to.name, g.err)
	case <-ctx.Done():
		return fmt.Errorf("%s does not get in line: %w", p.name, context.Cause(ctx))
	}
}

// granted is called at once when a Lock has returned. At this moment the holder
// before must know that it is none any more, and must have a lower token.
func (t *tour) granted(p *contender, h *coord.Hold, err error) grant {
	if err != nil {
		return grant{to: p, err: err}
	}
	if before := t.holder.Swap(h); before != nil {
		switch {
		case before.Err() == nil:
			err = fmt.Errorf("%s was granted the lock while the holder before still had it", p.name)
		case h.Token() <= before.Token():
			err = fmt.Errorf("%s has token %d after token %d", p.name, h.Token(), before.Token())
		}
	}
	return grant{to: p, hold: h, err: err}
}

// next waits until the lock is granted, which must be to p.
func (t *tour) next(ctx context.Context, p *contender) error {
	select {
	case g := <-t.grants:
		return t.took(g, p)
	case <-ctx.Done():
		return fmt.Errorf("%s is not granted the lock: %w", p.name, context.Cause(ctx))
	}
}

func (t *tour) took(g grant, want *contender) error {
	if g.err != nil {
		return g.err
	}
	if g.to != want {
		return fmt.Errorf("%s has the lock, and it is the turn of %s", g.to.name, want.name)
	}
	want.hold = g.hold
	t.say(want.name, "has the lock, with token %d", g.hold.Token())
	return nil
}

// release passes the lock on from its holder to the next in line.
func (t *tour) release(ctx context.Context, from, to *contender) error {
	t.say(from.name, "releases the lock")
	if err := from.hold.Release(); err != nil {
		return err
	}
	return t.next(ctx, to)
}

// list shows who is in line for the lock, who must be these in this order.
func (t *tour) list(ctx context.Context, want ...*contender) error {
	// Others made and removed their nodes: catch up with them first.
	s, err := t.cid.client.Session(ctx)
	if err != nil {
		return err
	}
	if err := s.Sync(ctx, t.lockPath); err != nil {
		return err
	}
	list, err := t.cid.lock.Contenders(ctx)
	if err != nil {
		return err
	}
	if len(list) != len(want) {
		return fmt.Errorf("%d contenders for the lock, want %d", len(list), len(want))
	}
	if len(list) == 0 {
		t.say("", "Nobody is in line, and no node of anybody is left.")
		return nil
	}
	t.say("", "In line are:")
	for i, c := range list {
		role := "waits"
		if i == 0 {
			role = "has the lock"
		}
		t.say("", "  %d. %s  token %d, session 0x%x  %s", i+1, c.Data, c.Token, c.Session, role)
		if string(c.Data) != want[i].name {
			return fmt.Errorf("place %d is %s's, want %s's", i+1, c.Data, want[i].name)
		}
		if i > 0 && c.Token <= list[i-1].Token {
			return fmt.Errorf("token %d stands behind token %d", c.Token, list[i-1].Token)
		}
	}
	return nil
}

// commit applies operations through p's present session if p's hold still
// stands at this moment. It is the service that checks the hold, in the same
// transaction, so it does not matter what p believes.
func (p *contender) commit(ctx context.Context, ops ...backend.Op) error {
	s, err := p.client.Session(ctx)
	if err != nil {
		return err
	}
	_, err = s.Commit(ctx, append(p.hold.Guard().Ops(), ops...)...)
	return err
}

// create makes the report. One that an earlier tour left is taken over.
func (t *tour) create(ctx context.Context, p *contender) error {
	t.report = p.name + "'s notes"
	err := p.commit(ctx, backend.Create(t.reportPath, []byte(t.report), backend.Persistent))
	if errors.Is(err, coord.ErrExists) {
		err = p.commit(ctx, backend.SetData(t.reportPath, []byte(t.report), backend.AnyVersion))
	}
	if err != nil {
		return err
	}
	t.say(p.name, "makes %s with %q, under the guard of the hold", t.reportPath, t.report)
	return nil
}

// write changes the report under the hold of p, the latest that p had.
func (t *tour) write(ctx context.Context, p *contender, text string) error {
	t.say(p.name, "writes %q under the guard of the hold with token %d", text, p.hold.Token())
	err := p.commit(ctx, backend.SetData(t.reportPath, []byte(text), backend.AnyVersion))
	if err != nil {
		return err
	}
	t.report = text
	t.say(p.name, "has written")
	return nil
}

// read shows the report and checks it.
func (t *tour) read(ctx context.Context) error {
	s, err := t.cid.client.Session(ctx)
	if err != nil {
		return err
	}
	if err := s.Sync(ctx, t.reportPath); err != nil {
		return err
	}
	data, _, err := s.Get(ctx, t.reportPath, nil)
	if err != nil {
		return err
	}
	if string(data) != t.report {
		return fmt.Errorf("the report says %q, want %q", data, t.report)
	}
	t.say("", "The report says %q.", data)
	return nil
}

// remove deletes the report. The lock's directory is a container, which the
// service removes by itself when it is empty.
func (t *tour) remove() error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	s, err := t.cid.client.Session(ctx)
	if err == nil {
		_, err = s.Commit(ctx, backend.Delete(t.reportPath, backend.AnyVersion))
	}
	if err != nil && !errors.Is(err, coord.ErrNotFound) {
		return fmt.Errorf("%s stays behind: %w", t.reportPath, err)
	}
	return nil
}

// say prints a line with the time since the start and who it is about.
func (t *tour) say(who, format string, args ...any) {
	if who == "" {
		fmt.Fprintf(t.out, "%7.3fs  %s\n", time.Since(t.start).Seconds(), fmt.Sprintf(format, args...))
		return
	}
	fmt.Fprintf(t.out, "%7.3fs  %-4s %s\n", time.Since(t.start).Seconds(), who, fmt.Sprintf(format, args...))
}

// title begins a step of the story.
func (t *tour) title(format string, args ...any) {
	t.chapter++
	fmt.Fprintln(t.out)
	t.say("", "%d. %s", t.chapter, fmt.Sprintf(format, args...))
}

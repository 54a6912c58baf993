package main

import (
	"context"
	"fmt"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
)

// wait makes p a waiter, and returns when it waits.
func (t *tour) wait(ctx context.Context, p *person, acquire func(context.Context) (*coord.Hold, error)) error {
	p.forget()
	t.waiters.Go(func() {
		h, err := acquire(ctx)
		t.grants <- t.granted(p, h, err)
	})
	select {
	case <-p.waiting:
		t.Say(p.name, "waits")
		return nil
	case g := <-t.grants:
		return fmt.Errorf("%s did not wait for the holder: granted %v, error %v", p.name, g.to.name, g.err)
	case <-ctx.Done():
		return fmt.Errorf("%s does not become a waiter: %w", p.name, context.Cause(ctx))
	}
}

// forget drops the values that an earlier call has left in waiting.
func (p *person) forget() {
	select {
	case <-p.waiting:
	default:
	}
}

// granted is called as soon as an acquisition has returned. At this moment the previous
// holder must know that its hold has ended, and must have a lower token.
func (t *tour) granted(p *person, h *coord.Hold, err error) grant {
	if err != nil {
		return grant{to: p, err: err}
	}
	if before := t.holder.Swap(h); before != nil {
		switch {
		case before.Err() == nil:
			err = fmt.Errorf("%s was granted while the previous holder still held", p.name)
		case h.Token() <= before.Token():
			err = fmt.Errorf("%s has token %d after token %d", p.name, h.Token(), before.Token())
		}
	}
	return grant{to: p, hold: h, err: err}
}

// next waits until a waiter is granted, which must be p.
func (t *tour) next(ctx context.Context, p *person, what string) error {
	select {
	case g := <-t.grants:
		return t.took(g, p, what)
	case <-ctx.Done():
		return fmt.Errorf("%s is not granted: %w", p.name, context.Cause(ctx))
	}
}

func (t *tour) took(g grant, want *person, what string) error {
	if g.err != nil {
		return g.err
	}
	if g.to != want {
		return fmt.Errorf("%s was granted instead of %s", g.to.name, want.name)
	}
	want.hold = g.hold
	t.Say(want.name, "%s, with token %d", what, g.hold.Token())
	return nil
}

// release passes the lock from its holder to the next waiter.
func (t *tour) release(ctx context.Context, from, to *person) error {
	t.Say(from.name, "releases the lock")
	if err := from.hold.Release(); err != nil {
		return err
	}
	return t.next(ctx, to, "has the lock")
}

// list shows the contenders for the lock, which must be these in this order.
func (t *tour) list(ctx context.Context, want ...*person) error {
	// Other clients created and removed their nodes: catch up with them first.
	s, err := t.cid.client.Session(ctx)
	if err != nil {
		return err
	}
	if err := s.Sync(ctx, t.Root+lockPath); err != nil {
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
		t.Say("", "There are no contenders, and no node is left.")
		return nil
	}
	t.Say("", "The contenders are:")
	for i, c := range list {
		role := "waits"
		if i == 0 {
			role = "has the lock"
		}
		t.Say("", "  %d. %s  token %d, session 0x%x  %s", i+1, c.Data, c.Token, c.Session, role)
		if string(c.Data) != want[i].name {
			return fmt.Errorf("place %d is %s's, want %s's", i+1, c.Data, want[i].name)
		}
		if i > 0 && c.Token <= list[i-1].Token {
			return fmt.Errorf("token %d follows token %d", c.Token, list[i-1].Token)
		}
	}
	return nil
}

const reportPath = "/report"

// create creates the report under the guard of p's hold: the service checks the hold in the
// transaction that writes, so p's own view does not matter.
func (t *tour) create(ctx context.Context, p *person) error {
	t.report = p.name + "'s notes"
	_, err := coord.NewTxn(p.client).Under(p.hold.Guard()).
		Create(reportPath, []byte(t.report), backend.Persistent).
		Commit(ctx)
	if err != nil {
		return err
	}
	t.Say(p.name, "makes %s with %q, under the guard of the hold", reportPath, t.report)
	return nil
}

// write changes the report under p's latest hold.
func (t *tour) write(ctx context.Context, p *person, text string) error {
	t.Say(p.name, "writes %q under the guard of the hold with token %d", text, p.hold.Token())
	_, err := coord.NewTxn(p.client).Under(p.hold.Guard()).Set(reportPath, []byte(text)).Commit(ctx)
	if err != nil {
		return err
	}
	t.report = text
	t.Say(p.name, "has written")
	return nil
}

// read shows the report and checks it.
func (t *tour) read(ctx context.Context) error {
	s, err := t.cid.client.Session(ctx)
	if err != nil {
		return err
	}
	if err := s.Sync(ctx, t.Root+reportPath); err != nil {
		return err
	}
	data, _, err := s.Get(ctx, t.Root+reportPath, nil)
	if err != nil {
		return err
	}
	if string(data) != t.report {
		return fmt.Errorf("the report says %q, want %q", data, t.report)
	}
	t.Say("", "The report says %q.", data)
	return nil
}

// title begins a step of the story.
func (t *tour) title(format string, args ...any) {
	t.chapter++
	t.Break()
	t.Say("", "%d. %s", t.chapter, fmt.Sprintf(format, args...))
}

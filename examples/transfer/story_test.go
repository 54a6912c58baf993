package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/examples/internal/service"
)

// site is one process that serves a site.
type site struct {
	link service.Link
	stop context.CancelFunc
}

// bank is the story's two accounts and the processes that serve them. In production each site
// runs in a process of its own, and so does the coordinator.
type bank struct {
	s        *service.Service
	accounts map[string]*account
	fail     context.CancelCauseFunc
	serving  sync.WaitGroup
}

func story(ctx context.Context, s *service.Service) error {
	ctx, fail := context.WithCancelCause(ctx)
	b := &bank{s: s, fail: fail, accounts: map[string]*account{
		"ann": {balance: 100, pending: make(map[int64]int)},
		"bob": {balance: 20, pending: make(map[int64]int)},
	}}
	defer b.serving.Wait()
	defer fail(nil)
	atOnce := func(context.Context) error { return nil }
	if _, err := b.start(ctx, "ann", "ann", atOnce); err != nil {
		return err
	}
	// Bob's process is killed before its booking of the third transfer.
	booked, stuck := 0, make(chan struct{}, 1)
	bob, err := b.start(ctx, "bob", "bob", func(ctx context.Context) error {
		if booked++; booked == 1 {
			return nil
		}
		stuck <- struct{}{}
		<-ctx.Done()
		return context.Cause(ctx)
	})
	if err != nil {
		return err
	}
	c, _, err := s.Open(ctx, "office")
	if err != nil {
		return err
	}
	office := coord.NewCoordinator[Transfer](c, "/transfers", nil)
	s.Say("", "at first: ann has 100, bob has 20")

	if err := b.propose(ctx, office, "t-1", Transfer{"ann", "bob", 30}, true); err != nil {
		return err
	}
	if err := b.settled(ctx, office, 70, 50); err != nil {
		return err
	}
	if err := b.propose(ctx, office, "t-2", Transfer{"ann", "bob", 500}, false); err != nil {
		return err
	}
	if err := b.settled(ctx, office, 70, 50); err != nil {
		return err
	}

	if err := b.propose(ctx, office, "t-3", Transfer{"ann", "bob", 25}, true); err != nil {
		return err
	}
	select {
	case <-stuck:
	case <-ctx.Done():
		return fmt.Errorf("bob does not come to the booking: %w", context.Cause(ctx))
	}
	bob.link.Partition()
	bob.stop()
	s.Say("bob", "has voted yes, and is killed before the booking")
	if ann, bob, _ := b.read(); ann != 45 || bob != 50 {
		return fmt.Errorf("ann has %d, bob has %d while 25 are on the way", ann, bob)
	}
	s.Say("", "now: ann has 45, bob has 50, and 25 are on the way")
	if _, err := b.start(ctx, "bob", "bob again", atOnce); err != nil {
		return err
	}
	s.Say("bob", "is started again, and serves when the session of the dead process has ended")
	if err := b.settled(ctx, office, 45, 75); err != nil {
		return err
	}
	if err := b.propose(ctx, office, "t-4", Transfer{"bob", "ann", 75}, true); err != nil {
		return err
	}
	if err := b.settled(ctx, office, 120, 0); err != nil {
		return err
	}
	return b.officeKilled(ctx, office, c)
}

// officeKilled: the coordinator is killed while it proposes, and its successor does not know
// how far it came. With KeepRecords the record stays until Forget, so the same proposal again cannot
// make a second transfer.
func (b *bank) officeKilled(ctx context.Context, office *coord.Coordinator[Transfer], c *coord.Client) error {
	keep := &coord.CoordinatorOptions[Transfer]{KeepRecords: true}
	victim, link, err := b.s.Open(ctx, "another office")
	if err != nil {
		return err
	}
	t := Transfer{"ann", "bob", 20}
	living, kill := context.WithCancel(ctx)
	defer kill()
	dead := make(chan struct{})
	go func() {
		defer close(dead)
		co := coord.NewCoordinator(victim, "/transfers", keep)
		// The process is dead, so its result is lost.
		_, _ = co.Propose(living, coord.Proposal[Transfer]{ID: "t-5", Sites: []string{t.From, t.To}, Payload: t})
	}()
	if err := pause(ctx); err != nil {
		return err
	}
	link.Partition()
	kill()
	<-dead
	b.s.Say("office", "another one is killed while it proposes t-5")
	again := coord.NewCoordinator(c, "/transfers", keep)
	if err := b.propose(ctx, again, "t-5", t, true); err != nil {
		return err
	}
	if err := again.Forget(ctx, "t-5"); err != nil {
		return err
	}
	return b.settled(ctx, office, 100, 20)
}

// start begins to serve a site.
func (b *bank) start(ctx context.Context, name, process string, booking func(context.Context) error) (*site, error) {
	c, link, err := b.s.Open(ctx, process)
	if err != nil {
		return nil, err
	}
	serving, stop := context.WithCancel(ctx)
	b.serving.Go(func() {
		err := serve(serving, c, name, b.accounts[name], booking)
		if serving.Err() == nil {
			b.fail(fmt.Errorf("%s: %w", process, err))
		}
	})
	return &site{link, stop}, nil
}

// propose makes a transfer, which must be decided as expected.
func (b *bank) propose(ctx context.Context, office *coord.Coordinator[Transfer], id string, t Transfer, commit bool) error {
	p := coord.Proposal[Transfer]{ID: id, Sites: []string{t.From, t.To}, Payload: t}
	d, err := office.Propose(ctx, p)
	for errors.Is(err, coord.ErrNotFound) { // a site is not served yet
		if err := pause(ctx); err != nil {
			return err
		}
		d, err = office.Propose(ctx, p)
	}
	if err != nil {
		return err // after a crash, or any error, the same proposal again returns the decision
	}
	outcome := "is committed"
	if !d.Commit {
		outcome = "is aborted by " + d.By + ": " + d.Reason
	}
	b.s.Say("office", "%s, %d from %s to %s, %s", id, t.Amount, t.From, t.To, outcome)
	if d.Commit != commit {
		return fmt.Errorf("%s: commit %v, want %v", id, d.Commit, commit)
	}
	return nil
}

// settled waits until the sites have carried out the decision, and checks the accounts. It
// calls Recover, as every coordinator does from time to time. The locks of a dead coordinator
// are released with its session. Its last request can arrive late and create the transfer
// again after it is completed; that one has no proposer, so it aborts.
func (b *bank) settled(ctx context.Context, office *coord.Coordinator[Transfer], wantAnn, wantBob int) error {
	for { // there is no signal for it
		left, err := office.Recover(ctx)
		if err != nil {
			return err
		}
		for _, d := range left {
			if err := office.Forget(ctx, d.ID); err != nil { // with KeepRecords the record stays until then
				return err
			}
		}
		list, err := office.List(ctx)
		if err != nil {
			return err
		}
		// A site that has not voted on an aborted transfer may not have learned of it yet.
		ann, bob, pending := b.read()
		if len(list) == 0 && pending == 0 {
			b.s.Say("", "now: ann has %d, bob has %d", ann, bob)
			if ann != wantAnn || bob != wantBob {
				return fmt.Errorf("ann has %d, bob has %d, want %d and %d", ann, bob, wantAnn, wantBob)
			}
			return nil
		}
		if err := pause(ctx); err != nil {
			return fmt.Errorf("%d transfers do not end: %w", len(list), err)
		}
	}
}

func (b *bank) read() (ann, bob, pending int) {
	ann, out := b.accounts["ann"].read()
	bob, in := b.accounts["bob"].read()
	return ann, bob, out + in
}

func (a *account) read() (balance, pending int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.balance, len(a.pending)
}

func pause(ctx context.Context) error {
	select {
	case <-time.After(10 * time.Millisecond):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

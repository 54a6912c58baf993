package main

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/go-coord/coord/backend/memory"
	"github.com/go-coord/coord/examples/internal/exampletest"
	"github.com/go-coord/coord/examples/internal/service"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestTheTour(t *testing.T) {
	exampletest.Tells(t, "tour", story,
		`ann +has the lock, with token \d+`,
		`1\. ann +token .* has the lock`,
		`2\. bob +token .* waits`,
		`3\. cid +token .* waits`,
		`ann +releases the lock`,
		`bob +has the lock, with token \d+`,
		`bob +has written`,
		`bob +is cut off`,
		`bob +notices the loss by the lease`,
		`Err: coord: hold .* lost: session lost`,
		`cid +has the lock, with token \d+`,
		`bob +writes "bob's final version"`,
		`bob +is refused`,
		`The report says "bob's draft"`,
		`cid +has written`,
		`The report says "cid's version"`,
		`ann +has the lock, with token \d+`,
		`There are no contenders`,
		`dan +takes "soup", attempt 1, and is killed`,
		`cid +takes "soup", attempt 2`,
		`No job is left`,
		`ann +has come, and waits`,
		`bob +has come, and waits`,
		`cid +comes`,
		`\w+ +begins`,
		`All have ended`,
		`ann +leads, with token \d+`,
		`ann +is killed`,
		`bob +leads, with token \d+`,
		`bob +sees that cid leads`,
		`bob +serves the tables \[0 1 2 3 4 5\]`,
		`eve +serves the tables \[\d \d\]`,
		`eve +is killed`,
		`cid +serves the tables \[\d \d \d\]`,
		`All have gone home`,
	)
}

func TestTheTourFailsWhenAStepHasAnotherResult(t *testing.T) {
	exampletest.Doubts(t, story, "bob's hold did not end")
}

// interrupting is a link that interrupts the tour when the tour cuts it.
type interrupting struct {
	*memory.Link
	interrupt func()
}

func (l interrupting) Partition() {
	l.Link.Partition()
	l.interrupt()
}

func TestATourThatIsInterruptedCleansUp(t *testing.T) {
	store := memory.New(nil)
	ctx, interrupt := context.WithCancel(t.Context())
	link := func(name string) service.Link { return interrupting{store.Link(name), interrupt} }
	tour := service.New("/tours/one", time.Second, link, io.Discard)
	err := errors.Join(story(ctx, tour), tour.Close(t.Context()))
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want the interruption", err)
	}
	s, err := store.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	names, _, err := s.Children(t.Context(), "/tours", nil)
	if err != nil || len(names) != 0 {
		t.Errorf("left under /tours: %v, %v", names, err)
	}
}

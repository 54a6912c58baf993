package coord_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/memory"
	"github.com/go-coord/coord/trace"
)

func ExampleMutex_Do() {
	ctx := context.Background()
	c, err := coord.Open(ctx, memory.New(nil), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	m := coord.NewMutex(c, "/locks/reindex", nil)
	err = m.Do(ctx, func(ctx context.Context, h *coord.Hold) error {
		fmt.Println("working")
		return ctx.Err() // not nil as soon as the lock is lost
	})
	fmt.Println(err)
	// Output:
	// working
	// <nil>
}

func ExampleMutex_TryLock() {
	ctx := context.Background()
	c, err := coord.Open(ctx, memory.New(nil), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	m := coord.NewMutex(c, "/locks/reindex", nil)
	h, err := m.TryLock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer h.Release()

	_, err = m.TryLock(ctx)
	fmt.Println(errors.Is(err, coord.ErrLocked))
	// Output: true
}

// Select over the loss of a lock and the work under it.
func ExampleHold_Done() {
	ctx := context.Background()
	c, err := coord.Open(ctx, memory.New(nil), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	h, err := coord.NewMutex(c, "/locks/consumer", nil).Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer h.Release()

	work := make(chan string, 2)
	work <- "first"
	work <- "second"
	close(work)
	for {
		select {
		case <-h.Done():
			log.Fatal(h.Err()) // stop: another client may have the lock now
		case w, ok := <-work:
			if !ok {
				return
			}
			fmt.Println(w)
		}
	}
	// Output:
	// first
	// second
}

// A write under the guard of a hold is applied only while the hold lasts.
func ExampleHold_Guard() {
	ctx := context.Background()
	c, err := coord.Open(ctx, memory.New(nil), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	if _, err := coord.NewTxn(c).Create("/balance", []byte("100"), backend.Persistent).Commit(ctx); err != nil {
		log.Fatal(err)
	}

	h, err := coord.NewMutex(c, "/locks/balance", nil).Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	write := func(data string) error {
		_, err := coord.NewTxn(c).Under(h.Guard()).Set("/balance", []byte(data)).Commit(ctx)
		return err
	}
	fmt.Println("while held:", write("90"))
	h.Release()
	fmt.Println("refused afterwards:", errors.Is(write("80"), coord.ErrNotFound))
	// Output:
	// while held: <nil>
	// refused afterwards: true
}

// Without a function: the hold is released by the caller.
func ExampleMutex_Lock() {
	ctx := context.Background()
	c, err := coord.Open(ctx, memory.New(nil), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	m := coord.NewMutex(c, "/locks/reindex", nil)
	wait, cancel := context.WithTimeout(ctx, 10*time.Second) // bounds the wait, not the hold
	h, err := m.Lock(wait)
	cancel()
	if err != nil {
		log.Fatal(err)
	}
	defer h.Release()
	work := h.Context(ctx) // ends if the lock is lost
	fmt.Println(work.Err(), h.Err())
	// Output: <nil> <nil>
}

// A service that shows whether it has contact. Holds last while the session is suspended, and
// end when it is lost.
func ExampleClient_WatchState() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	link := memory.New(nil).Link("a")
	c, err := coord.Open(ctx, link, nil)
	if err != nil {
		log.Fatal(err)
	}
	states := c.WatchState(ctx)
	fmt.Println((<-states).Phase)
	link.Partition() // contact breaks
	fmt.Println((<-states).Phase)
	link.Heal()
	fmt.Println((<-states).Phase)
	c.Close()
	for s := range states {
		fmt.Println(s.Phase) // the last one
	}
	// Output:
	// connected
	// suspended
	// connected
	// closed
}

// Wait for contact again, for at most ten seconds. The end of the loop ends the watch.
func ExampleClient_States() {
	ctx := context.Background()
	link := memory.New(nil).Link("a")
	c, err := coord.Open(ctx, link, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	link.Partition() // contact breaks
	link.Heal()

	waiting, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for s := range c.States(waiting) {
		if s.Phase == coord.PhaseConnected {
			fmt.Println(s.Phase)
			break
		}
	}
	// Output: connected
}

// Trace counts what matters here and ignores the rest: there will be more events.
func ExampleEvent() {
	ctx := context.Background()
	c, err := coord.Open(ctx, memory.New(nil), &coord.Options{
		Trace: func(_ context.Context, e trace.Event) {
			switch e := e.(type) {
			case trace.HoldGranted:
				fmt.Println("granted", e.Recipe, e.Path)
			case trace.HoldReleased:
				fmt.Println("released", e.Recipe, e.Path, e.Err)
			case trace.HoldLost:
				fmt.Println("lost", e.Recipe, e.Path, e.Err)
			}
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	h, err := coord.NewMutex(c, "/locks/reindex", nil).Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	h.Release()
	// Output:
	// granted mutex /locks/reindex
	// released mutex /locks/reindex <nil>
}

// The memory backend works under fake time: a user's test can cut a client off and let the time
// of a session pass in no time.
func TestExampleOfFakeTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New(&memory.Options{SessionTimeout: 30 * time.Second})
		a, err := coord.Open(t.Context(), store.Link("a"), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer a.Close()
		b, err := coord.Open(t.Context(), store.Link("b"), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()

		first, err := coord.NewMutex(a, "/lock", nil).Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		store.Link("a").Partition()
		second, err := coord.NewMutex(b, "/lock", nil).Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if d := time.Since(start); d != 30*time.Second {
			t.Errorf("handed over after %v", d)
		}
		if !errors.Is(first.Err(), coord.ErrLost) || second.Token() <= first.Token() {
			t.Errorf("first %v, tokens %d, %d", first.Err(), first.Token(), second.Token())
		}
	})
}

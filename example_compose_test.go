package coord_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/memory"
)

// Four workers take jobs off one queue until all are done. The first error ends them all; other
// consumers get the items that a worker has not acknowledged.
func Example_workers() {
	c, err := coord.Open(context.Background(), memory.New(nil), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	jobs := coord.NewQueue[int](c, "/jobs", nil)
	if _, err := jobs.PutAll(context.Background(), 1, 2, 3, 4, 5, 6, 7, 8); err != nil {
		log.Fatal(err)
	}

	var sum, done atomic.Int64
	errDone := errors.New("no jobs are left")
	workers, ctx := errgroup.WithContext(context.Background())
	for range 4 {
		workers.Go(func() error {
			for item, err := range jobs.All(ctx) {
				if err != nil {
					return err
				}
				sum.Add(int64(item.Value))
				if err := item.Ack(); err != nil {
					return err
				}
				if done.Add(1) == 8 {
					return errDone
				}
			}
			return nil
		})
	}
	if err := workers.Wait(); err != errDone && !errors.Is(err, context.Canceled) {
		log.Fatal(err)
	}
	fmt.Println(done.Load(), "jobs, sum", sum.Load())
	// Output: 8 jobs, sum 36
}

// A worker with retries: an item that fails goes back with a delay, and to the dead letters
// when it has failed three times.
func Example_retries() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	c, err := coord.Open(ctx, memory.New(nil), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	type Mail struct{ To string }
	send := func(_ context.Context, m Mail) error {
		if m.To == "zoe" {
			return errors.New("no such mailbox")
		}
		return nil
	}
	mails := coord.NewQueue(c, "/mails", &coord.QueueOptions[Mail]{MaxAttempts: 3})
	if _, err := mails.PutAll(ctx, Mail{"ann"}, Mail{"zoe"}); err != nil {
		log.Fatal(err)
	}
	for item, err := range mails.All(ctx) { // any number of these, in any process
		if err != nil {
			log.Fatal(err)
		}
		failed := send(item.Context(ctx), item.Value)
		fmt.Println(item.Value.To, item.Attempt, failed)
		if failed != nil {
			err = item.Nack(time.Duration(item.Attempt) * time.Millisecond)
		} else {
			err = item.Ack()
		}
		if err != nil {
			log.Print(err) // ErrLost: another consumer has the item, or will get it
		}
		if item.Attempt == 3 {
			break // a service continues until ctx ends
		}
	}
	dead, err := coord.NewQueue[Mail](c, "/mails/dead", nil).Take(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("dead:", dead.Value.To, dead.Ack())
	// Output:
	// ann 1 <nil>
	// zoe 1 no such mailbox
	// zoe 2 no such mailbox
	// zoe 3 no such mailbox
	// dead: zoe <nil>
}

// A leader writes under the guard of its term: a late write, when another candidate leads
// already, is refused, however it was delayed.
func Example_leaderWrites() {
	ctx := context.Background()
	c, err := coord.Open(ctx, memory.New(nil), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	e := coord.NewElection(c, "/election/scheduler", nil)
	plan := coord.NewValue(c, "/plan", &coord.ValueOptions[string]{Codec: coord.Text()})
	var late *coord.Txn
	errResigned := errors.New("resigned")
	err = e.Run(ctx, func(ctx context.Context, t *coord.Term) error {
		if _, err := coord.NewTxn(c).Under(t.Guard()).Add(plan.SetOp("first")).Commit(ctx); err != nil {
			return err
		}
		late = coord.NewTxn(c).Under(t.Guard()).Add(plan.SetOp("too late"))
		return errResigned
	})
	fmt.Println(errors.Is(err, errResigned))

	_, err = late.Commit(ctx)
	fmt.Println("refused:", errors.Is(err, coord.ErrNotFound))
	now, err := plan.Get(ctx)
	fmt.Println(now.Value, err)
	// Output:
	// true
	// refused: true
	// first <nil>
}

// A job that is put at most once for each user, whichever process asks, and however often.
func Example_onlyOnce() {
	ctx := context.Background()
	c, err := coord.Open(ctx, memory.New(nil), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	jobs := coord.NewQueue[string](c, "/mails", nil)
	welcome := func(user string) error {
		// The mark and the job are created together or not at all.
		_, err := coord.NewTxn(c).
			Create("/welcomed/"+user, nil, backend.Persistent).
			Add(jobs.PutOp("welcome " + user)).
			Commit(ctx)
		return err
	}
	s, err := c.Session(ctx)
	if err != nil {
		log.Fatal(err)
	}
	if _, err := s.Commit(ctx, backend.Create("/welcomed", nil, backend.Persistent)); err != nil {
		log.Fatal(err)
	}
	fmt.Println(welcome("ann"))
	fmt.Println("again:", errors.Is(welcome("ann"), coord.ErrExists))
	n, err := jobs.Len(ctx)
	fmt.Println("mails:", n, err)
	// Output:
	// <nil>
	// again: true
	// mails: 1 <nil>
}

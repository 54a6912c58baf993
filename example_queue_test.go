package coord_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"sync/atomic"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend/memory"
)

type Job struct {
	Name string
}

func ExampleQueue() {
	ctx := context.Background()
	c, err := coord.Open(ctx, memory.New(nil), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	q := coord.NewQueue(c, "/jobs", &coord.QueueOptions[Job]{Prefetch: 10})
	if _, err := q.PutAll(ctx, Job{"build"}, Job{"test"}, Job{"ship"}); err != nil {
		log.Fatal(err)
	}
	for item, err := range q.All(ctx) {
		if err != nil {
			log.Fatal(err)
		}
		work := item.Context(ctx) // ends if the claim is lost
		fmt.Println(item.Value.Name, item.Attempt, work.Err())
		if err := item.Ack(); err != nil {
			log.Print(err) // another consumer does it again
		}
		if item.Value.Name == "ship" {
			break
		}
	}
	// Output:
	// build 1 <nil>
	// test 1 <nil>
	// ship 1 <nil>
}

// Four handlers at a time. When ctx ends, Work waits for those that run, and the handlers stop
// at the latest when their own time, which the caller chooses, is over.
func ExampleConsumer_Work() {
	c, err := coord.Open(context.Background(), memory.New(nil), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	jobs := coord.NewQueue[int](c, "/jobs", nil)
	if _, err := jobs.PutAll(context.Background(), 1, 2, 3, 4, 5, 6, 7, 8); err != nil {
		log.Fatal(err)
	}

	ctx, stop := context.WithCancel(context.Background()) // for example of signal.NotifyContext
	defer stop()
	drain, hurry := context.WithCancel(context.Background())
	defer hurry()
	context.AfterFunc(ctx, func() { time.AfterFunc(20*time.Second, hurry) })

	var sum, done atomic.Int64
	err = jobs.Work(ctx, 4, func(ctx context.Context, item *coord.Item[int]) error {
		ctx, cancel := context.WithCancel(ctx) // ends if the claim is lost
		defer cancel()
		defer context.AfterFunc(drain, cancel)()
		if err := ctx.Err(); err != nil {
			return err
		}
		sum.Add(int64(item.Value))
		if done.Add(1) == 8 {
			stop()
		}
		return nil
	})
	fmt.Println(done.Load(), "jobs, sum", sum.Load(), err)
	// Output: 8 jobs, sum 36 <nil>
}

func ExampleItem_Nack() {
	ctx := context.Background()
	c, err := coord.Open(ctx, memory.New(nil), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	q := coord.NewQueue(c, "/jobs", &coord.QueueOptions[string]{MaxAttempts: 2})
	if _, err := q.Put(ctx, "divide by zero"); err != nil {
		log.Fatal(err)
	}
	for range 2 {
		item, err := q.Take(ctx)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("attempt", item.Attempt)
		if err := item.Nack(0); err != nil {
			log.Fatal(err)
		}
	}
	dead, err := coord.NewQueue[string](c, "/jobs/dead", nil).Pop(ctx)
	fmt.Println("dead letter:", dead, err)
	// Output:
	// attempt 1
	// attempt 2
	// dead letter: divide by zero <nil>
}

func ExamplePriorityQueue() {
	ctx := context.Background()
	c, err := coord.Open(ctx, memory.New(nil), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	q := coord.NewPriorityQueue[string](c, "/tickets", nil)
	for _, t := range []struct {
		priority int64
		text     string
	}{{5, "typo"}, {1, "outage"}, {5, "colour"}} {
		if _, err := q.Put(ctx, t.priority, t.text); err != nil {
			log.Fatal(err)
		}
	}
	for range 3 {
		text, err := q.Pop(ctx) // for good: no Ack
		fmt.Println(text, err)
	}
	// Output:
	// outage <nil>
	// typo <nil>
	// colour <nil>
}

func ExampleDelayQueue() {
	ctx := context.Background()
	c, err := coord.Open(ctx, memory.New(nil), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	q := coord.NewDelayQueue[string](c, "/reminders", nil)
	now := time.Now()
	if _, err := q.Put(ctx, now.Add(40*time.Millisecond), "later"); err != nil {
		log.Fatal(err)
	}
	if _, err := q.Put(ctx, now.Add(20*time.Millisecond), "sooner"); err != nil {
		log.Fatal(err)
	}
	for range 2 {
		text, err := q.Pop(ctx)
		fmt.Println(text, err)
	}
	// Output:
	// sooner <nil>
	// later <nil>
}

// What failed too often waits in the dead letters. Once the cause is mended, it goes back.
func ExampleConsumer_Redrive() {
	ctx := context.Background()
	c, err := coord.Open(ctx, memory.New(nil), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	jobs := coord.NewQueue(c, "/jobs", &coord.QueueOptions[Job]{MaxAttempts: 1})
	if _, err := jobs.PutAll(ctx, Job{"build"}, Job{"bulid"}); err != nil {
		log.Fatal(err)
	}
	for range 2 {
		item, err := jobs.Take(ctx)
		if err != nil {
			log.Fatal(err)
		}
		if err := item.NackCause(time.Second, errors.New("disk full")); err != nil {
			log.Fatal(err)
		}
	}

	for dead, err := range jobs.Dead(ctx) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(dead.Value.Name, dead.Reason, dead.Error, dead.Attempts)
		if dead.Value.Name != "build" {
			if err := jobs.Remove(ctx, dead.ID); err != nil {
				log.Fatal(err)
			}
		}
	}
	fmt.Println(jobs.Redrive(ctx))
	job, err := jobs.Pop(ctx)
	fmt.Println(job.Name, err)
	// Output:
	// build failed disk full 1
	// bulid failed disk full 1
	// 1 <nil>
	// build <nil>
}

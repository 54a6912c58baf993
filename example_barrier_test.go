package coord_test

import (
	"context"
	"fmt"
	"log"
	"sync"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend/memory"
)

// Workers wait until everything is prepared.
func ExampleBarrier() {
	ctx := context.Background()
	c, err := coord.Open(ctx, memory.New(nil), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	b := coord.NewBarrier(c, "/import/hold", nil)
	if err := b.Set(ctx); err != nil {
		log.Fatal(err)
	}
	var workers sync.WaitGroup
	for range 3 {
		workers.Go(func() {
			if err := b.Wait(ctx); err != nil {
				log.Fatal(err)
			}
			fmt.Println("working")
		})
	}
	fmt.Println("preparing")
	if err := b.Remove(ctx); err != nil {
		log.Fatal(err)
	}
	workers.Wait()
	// Output:
	// preparing
	// working
	// working
	// working
}

// Three workers make two rounds of a computation; no worker begins the second before all have
// finished the first.
func ExampleDoubleBarrier() {
	ctx := context.Background()
	c, err := coord.Open(ctx, memory.New(nil), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	d := coord.NewDoubleBarrier(c, "/computation", 3, nil)
	var workers sync.WaitGroup
	for range 3 {
		workers.Go(func() {
			for round := range 2 {
				e, err := d.Enter(ctx)
				if err != nil {
					log.Fatal(err)
				}
				compute(e.Context(ctx), round) // ended by a loss of the session
				if err := e.Leave(ctx); err != nil {
					log.Fatal(err)
				}
			}
		})
	}
	workers.Wait()
	// Output:
	// round 0
	// round 0
	// round 0
	// round 1
	// round 1
	// round 1
}

func compute(_ context.Context, round int) { fmt.Println("round", round) }

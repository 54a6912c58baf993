package coord_test

import (
	"context"
	"fmt"
	"log"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend/memory"
)

func ExampleElection_Run() {
	ctx := context.Background()
	c, err := coord.Open(ctx, memory.New(nil), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	e := coord.NewElection(c, "/election/billing", &coord.ElectionOptions{ID: "node-a"})
	err = e.Run(ctx, func(ctx context.Context, term *coord.Term) error {
		fmt.Println("leading")
		work(ctx)  // until ctx ends; f is called again after a loss
		return nil // resigns
	})
	fmt.Println(err)
	// Output:
	// leading
	// working: true
	// <nil>
}

func work(ctx context.Context) { fmt.Println("working:", ctx.Err() == nil) }

// The loop body leads. When the loop ends, the term is released, and the candidate is gone.
func ExampleElection_Terms() {
	ctx := context.Background()
	c, err := coord.Open(ctx, memory.New(nil), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	e := coord.NewElection(c, "/election/billing", &coord.ElectionOptions{ID: "node-a"})
	for term, err := range e.Terms(ctx) {
		if err != nil {
			log.Fatal(err)
		}
		work(term.Context(ctx)) // until the context ends
		break                   // without it, the candidate campaigns again
	}
	l, err := e.Leader(ctx)
	fmt.Println(l.Vacant(), err)
	// Output:
	// working: true
	// true <nil>
}

// Select over leadership beside other work. The receiver of a term releases it when it stops
// working.
func ExampleElection_Leadership() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	c, err := coord.Open(ctx, memory.New(nil), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	e := coord.NewElection(c, "/election/billing", &coord.ElectionOptions{ID: "node-a"})
	leadership := e.Leadership(ctx)
	requests := make(chan string, 1)
	var term *coord.Term
	var lost <-chan struct{} // of the present term; nil while another leads
	defer func() {
		if term != nil {
			term.Release()
		}
	}()
	for {
		select {
		case t, ok := <-leadership:
			if !ok {
				return // ctx has ended
			}
			if t.Token() == 0 {
				log.Fatal(t.Err()) // campaigning failed for good
			}
			term, lost = t, t.Done()
			fmt.Println("leading")
			requests <- "first"
		case <-lost:
			lost = nil
			fmt.Println("another candidate may lead now")
		case r := <-requests:
			fmt.Println("served", r, "as leader:", lost != nil)
			return
		}
	}
	// Output:
	// leading
	// served first as leader: true
}

// Other processes follow which candidate leads, and whether it is ready.
func ExampleElection_WatchLeader() {
	ctx := context.Background()
	c, err := coord.Open(ctx, memory.New(nil), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	e := coord.NewElection(c, "/election/billing", &coord.ElectionOptions{ID: "node-a"})
	leaders := e.WatchLeader(ctx)
	fmt.Println("vacant:", (<-leaders).Vacant())

	term, err := e.Campaign(ctx)
	if err != nil {
		log.Fatal(err)
	}
	l := <-leaders
	fmt.Println(l.ID, "ready:", l.Ready)
	if err := term.Announce(ctx, []byte("10.0.0.1:80")); err != nil {
		log.Fatal(err)
	}
	l = <-leaders
	fmt.Println(l.ID, "ready:", l.Ready, string(l.Announcement))
	// Output:
	// vacant: true
	// node-a ready: false
	// node-a ready: true 10.0.0.1:80
}

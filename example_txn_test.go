package coord_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"sync"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/memory"
)

// A write under a lock that is refused once the lock is lost, and once another client has
// changed the data.
func ExampleTxn() {
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
	write := coord.NewTxn(c).
		Under(h.Guard()).
		If(coord.IfVersion("/balance", 0)).
		Set("/balance", []byte("90"))
	_, err = write.Commit(ctx)
	fmt.Println(err)
	_, err = write.Commit(ctx)
	fmt.Println("again:", err)
	h.Release()
	_, err = write.Commit(ctx)
	var conflict *coord.ConflictError
	fmt.Println("after the release:", errors.As(err, &conflict), conflict.Op)
	// Output:
	// <nil>
	// again: coord: transaction refused: condition 0 (version /balance): version does not match
	// after the release: true guard
}

// A transfer between two accounts that different processes keep.
func ExampleCoordinator() {
	type transfer struct {
		From, To string
		Amount   int
	}
	ctx, cancel := context.WithCancel(context.Background())
	c, err := coord.Open(ctx, memory.New(nil), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	var mu sync.Mutex
	balance := map[string]int{"alice": 100, "bob": 0}
	done := make(map[string]bool) // what was applied; to be stored with the balance
	var serving sync.WaitGroup
	for _, name := range []string{"alice", "bob"} {
		p := coord.NewParticipant(c, "/transfers", name, coord.Handler[transfer]{
			Prepare: func(_ context.Context, tx coord.Branch[transfer]) error {
				mu.Lock()
				defer mu.Unlock()
				if name == tx.Payload.From && balance[name] < tx.Payload.Amount {
					return errors.New("not enough money")
				}
				return nil // a real site sets the amount aside here, durably
			},
			Commit: func(_ context.Context, tx coord.Branch[transfer]) error {
				mu.Lock()
				defer mu.Unlock()
				amount := tx.Payload.Amount
				if name == tx.Payload.From {
					amount = -amount
				}
				if key := fmt.Sprint(name, tx.Zxid); !done[key] { // it may be called again
					done[key] = true
					balance[name] += amount
				}
				return nil
			},
			Abort: func(context.Context, coord.Branch[transfer]) error { return nil },
		})
		serving.Go(func() { p.Serve(ctx) })
	}

	co := coord.NewCoordinator[transfer](c, "/transfers", nil)
	propose := func(id string, amount int) {
		p := coord.Proposal[transfer]{
			ID: id, Sites: []string{"alice", "bob"},
			Payload:  transfer{From: "alice", To: "bob", Amount: amount},
			Deadline: time.Now().Add(10 * time.Second),
		}
		d, err := co.Propose(ctx, p)
		for errors.Is(err, coord.ErrNotFound) { // a site is not served yet
			time.Sleep(time.Millisecond)
			d, err = co.Propose(ctx, p)
		}
		fmt.Println(d.ID, d.Commit, d.Reason, err)
	}
	propose("t-1", 70)
	for { // the sites commit in their own time
		if list, err := co.List(ctx); err == nil && len(list) == 0 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	propose("t-2", 70)
	cancel()
	serving.Wait()
	fmt.Println(balance["alice"], balance["bob"])
	// Output:
	// t-1 true  <nil>
	// t-2 false not enough money <nil>
	// 30 70
}

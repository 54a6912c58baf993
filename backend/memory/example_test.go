package memory_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend/memory"
)

// Two clients use one store, and the link of the first is partitioned. In a testing/synctest bubble the
// waiting takes no time.
func Example() {
	ctx := context.Background()
	store := memory.New(&memory.Options{SessionTimeout: 200 * time.Millisecond})
	open := func(name string) *coord.Client {
		c, err := coord.Open(ctx, store.Link(name), nil)
		if err != nil {
			log.Fatal(err)
		}
		return c
	}
	a, b := open("a"), open("b")
	defer a.Close()
	defer b.Close()

	first, err := coord.NewMutex(a, "/lock", nil).Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	store.Link("a").Partition()
	second, err := coord.NewMutex(b, "/lock", nil).Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("the first was notified:", errors.Is(first.Err(), coord.ErrLost))
	fmt.Println("tokens grow:", second.Token() > first.Token())
	// Output:
	// the first was notified: true
	// tokens grow: true
}

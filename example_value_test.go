package coord_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend/memory"
)

func ExampleValue_Watch() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	c, err := coord.Open(ctx, memory.New(nil), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	type Limits struct{ Rate int }
	limits := coord.NewValue[Limits](c, "/app/limits", nil)
	if _, err := limits.Set(ctx, Limits{Rate: 100}); err != nil {
		log.Fatal(err)
	}
	for now := range limits.Watch(ctx) {
		if now.Err != nil {
			log.Print(now.Err) // deleted or not decodable: keep the current limits
			continue
		}
		fmt.Println("rate", now.Value.Rate)
		break
	}
	// Output: rate 100
}

func ExampleValue_Update() {
	ctx := context.Background()
	c, err := coord.Open(ctx, memory.New(nil), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	hosts := coord.NewValue[[]string](c, "/app/hosts", nil)
	for _, host := range []string{"a", "b"} {
		_, err := hosts.Update(ctx, func(old []string) ([]string, error) {
			return append(old, host), nil
		})
		if err != nil {
			log.Fatal(err)
		}
	}
	now, err := hosts.Get(ctx)
	fmt.Println(now.Value, err)
	// Output: [a b] <nil>
}

func ExampleCounter_Reserve() {
	ctx := context.Background()
	c, err := coord.Open(ctx, memory.New(nil), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	ids := coord.NewCounter(c, "/app/ids")
	first, err := ids.Reserve(ctx, 100) // first to first+99 are reserved for this caller
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(first)
	first, _ = ids.Reserve(ctx, 100)
	fmt.Println(first)
	// Output:
	// 1
	// 101
}

// A service reads its limits at each request, without a round trip. It starts only with limits,
// and keeps the last good ones when somebody writes bad ones.
func ExampleValue_Load() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	c, err := coord.Open(ctx, memory.New(nil), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	type Limits struct{ Rate int }
	limits := coord.NewValue[Limits](c, "/app/limits", nil)
	if _, err := limits.Set(ctx, Limits{Rate: 100}); err != nil {
		log.Fatal(err)
	}

	first := <-limits.Watch(ctx) // keeps Load current until ctx ends
	if first.Err != nil {
		log.Fatal(first.Err)
	}
	serve := func() {
		now, age := limits.Load()
		if now.Err != nil || age > time.Minute {
			log.Print("old limits: ", now.Err, age) // better a metric
		}
		fmt.Println("rate", now.Value.Rate)
	}
	serve()
	// Output: rate 100
}

package coord_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend/memory"
)

// Each process that runs this works on its share of the tenants. Writes are fenced by the token of
// the shard, so a process that was paused cannot overwrite what its successor has written.
func ExampleShards_Run() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	c, err := coord.Open(ctx, memory.New(nil), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	var ready sync.WaitGroup
	ready.Add(3)
	go func() {
		ready.Wait()
		stop()
	}()
	err = coord.NewShards(c, "/tenants", 3, nil).Run(ctx, func(ctx context.Context, sh *coord.Shard) error {
		ready.Done()
		<-ctx.Done() // work here, in steps, until the shard is to move
		return nil
	})
	fmt.Println(err)
	// Output: <nil>
}

// With All the caller says when a shard is given up.
func ExampleShards_All() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	c, err := coord.Open(ctx, memory.New(nil), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	owned := make(map[int]bool)
	for sh, err := range coord.NewShards(c, "/buckets", 4, &coord.ShardsOptions{ID: "host-1"}).All(ctx) {
		if err != nil {
			log.Fatal(err)
		}
		owned[sh.Index] = true
		go func() {
			<-sh.Revoked() // it is to move, or the loop has ended
			sh.Release()
		}()
		if len(owned) == 4 {
			stop()
		}
	}
	fmt.Println(len(owned), "shards")
	// Output: 4 shards
}

// Who owns what, for an operator or a client that looks for the owner of a key.
func ExampleShards_Owners() {
	ctx := context.Background()
	c, err := coord.Open(ctx, memory.New(nil), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	s := coord.NewShards(c, "/buckets", 2, &coord.ShardsOptions{ID: "host-1", Data: []byte("10.0.0.1:80")})
	for sh, err := range s.All(ctx) {
		if err != nil {
			log.Fatal(err)
		}
		defer sh.Release()
		if owners, _ := s.Owners(ctx); owners[0].Token != 0 && owners[1].Token != 0 {
			for i, o := range owners {
				fmt.Printf("%d: %s at %s\n", i, o.ID, o.Data)
			}
			break
		}
	}
	// Output:
	// 0: host-1 at 10.0.0.1:80
	// 1: host-1 at 10.0.0.1:80
}

// A user's test of its own failover: the worker that is cut off loses its shards, and the other one
// has all of them when the session has expired, and no earlier.
func TestUserOfShardsSeesThemMove(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New(&memory.Options{SessionTimeout: 30 * time.Second})
		var mu sync.Mutex
		owner := make(map[int]string)
		lost := 0
		worker := func(name string) {
			c, err := coord.Open(t.Context(), store.Link(name), nil)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.Close() })
			go coord.NewShards(c, "/work", 8, nil).Run(t.Context(), func(ctx context.Context, sh *coord.Shard) error {
				mu.Lock()
				owner[sh.Index] = name
				mu.Unlock()
				<-ctx.Done()
				if errors.Is(sh.Err(), coord.ErrLost) {
					mu.Lock()
					lost++
					mu.Unlock()
				}
				return nil
			})
		}
		count := func(name string) (n int) {
			mu.Lock()
			defer mu.Unlock()
			for _, who := range owner {
				if who == name {
					n++
				}
			}
			return n
		}
		worker("a")
		worker("b")
		synctest.Wait()
		if count("a") != 4 || count("b") != 4 {
			t.Fatalf("a owns %d, b %d", count("a"), count("b"))
		}

		store.Link("a").Partition() // a reaches the service no more
		time.Sleep(29 * time.Second)
		if count("b") != 4 {
			t.Error("b took over before the session of a expired")
		}
		time.Sleep(2 * time.Second)
		if count("b") != 8 || lost != 4 {
			t.Errorf("b owns %d, and a knows that it lost %d", count("b"), lost)
		}
	})
}

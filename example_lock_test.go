package coord_test

import (
	"context"
	"fmt"
	"log"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend/memory"
)

// A writer changes what readers read, and continues as a reader.
func ExampleRWMutex() {
	ctx := context.Background()
	c, err := coord.Open(ctx, memory.New(nil), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	rw := coord.NewRWMutex(c, "/locks/index", nil)
	writer, err := rw.Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer writer.Release()
	_, err = rw.TryRLock(ctx)
	fmt.Println("a reader beside the writer:", err != nil)

	if err := rw.Downgrade(ctx, writer); err != nil {
		log.Fatal(err)
	}
	reader, err := rw.RLock(ctx)
	fmt.Println("a reader beside the former writer:", err)
	reader.Release()
	// Output:
	// a reader beside the writer: true
	// a reader beside the former writer: <nil>
}

// Of ten permits, a large job takes four.
func ExampleSemaphore() {
	ctx := context.Background()
	c, err := coord.Open(ctx, memory.New(nil), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	uploads := coord.NewSemaphore(c, "/limits/uploads", 10, nil)
	large, err := uploads.Acquire(ctx, 4)
	if err != nil {
		log.Fatal(err)
	}
	defer large.Release()

	for _, n := range []int{7, 6} {
		h, err := uploads.TryAcquire(ctx, n)
		fmt.Println(n, "more:", err == nil)
		if err == nil {
			h.Release()
		}
	}
	// Output:
	// 7 more: false
	// 6 more: true
}

// A transfer needs both accounts. LockAll makes all callers acquire them in the same order.
func ExampleLockAll() {
	ctx := context.Background()
	c, err := coord.Open(ctx, memory.New(nil), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	alice := coord.NewMutex(c, "/accounts/alice", nil)
	bob := coord.NewMutex(c, "/accounts/bob", nil)
	both, err := coord.LockAll(ctx, bob, alice)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(len(both.Holds()), "locks,", both.Context(ctx).Err())
	fmt.Println(both.Release())
	// Output:
	// 2 locks, <nil>
	// <nil>
}

// A holder that can be asked to release: it finishes its step, and releases.
func ExampleHold_Revoked() {
	ctx := context.Background()
	c, err := coord.Open(ctx, memory.New(nil), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	m := coord.NewMutex(c, "/locks/reindex", nil)
	h, err := m.Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	go func() {
		// In another process.
		if err := m.Revoke(ctx, &coord.RevokeOptions{By: "ops", Reason: "maintenance"}); err != nil {
			log.Print(err)
		}
	}()

	<-h.Revoked()
	if r, ok := h.Revocation(); ok {
		fmt.Printf("%s asks: %s\n", r.By, r.Reason)
	}
	fmt.Println(h.Release())
	// Output:
	// ops asks: maintenance
	// <nil>
}

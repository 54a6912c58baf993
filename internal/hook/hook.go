// Package hook passes to a client what only other packages of this module set: its tests,
// and package status. The client reads the hooks once, from the context of Open.
package hook

import (
	"context"
	"time"
)

// Hooks replace parts of a client. The zero value replaces nothing.
type Hooks struct {
	// Draw returns the random numbers of the client. what says what a number is for, so
	// that goroutines that draw at the same moment do not shift each other's numbers.
	Draw func(what string) uint64

	// BucketSize is the number of items at which a queue begins another bucket.
	BucketSize int

	// ListClaims is the number of claims of a queue that rely on one list.
	ListClaims int

	// Skew is by how much the clocks of the client are wrong.
	Skew time.Duration

	// Queue is called when a queue value is made: consumer is a pointer to its Consumer.
	Queue func(consumer any, q Queue)

	// Item is called before an item is handed out. item is the pointer to it. stopTimer stops the
	// timer of its ClaimTimeout, as if it were late.
	Item func(item any, stopTimer func())

	// Opened is called by Open when the client has a session. standing returns the holds of
	// the client that stand when it is called, as Hold.Err would say: it compares the lease
	// with the clock.
	Opened func(standing func() []Hold)
}

// Queue shows the inside of a queue value.
type Queue struct {
	// BucketSize is the number of items at which it begins another bucket, DeadBucketSize that of
	// its dead letters, and BucketLimit the number of its buckets. They may be changed before its first
	// call.
	BucketSize, DeadBucketSize, BucketLimit *int

	AcksWaiting func() int  // Acks that wait for the one under way
	AckLines    func() int  // sessions that have Acks under way
	Rivals      func() int  // how many items further it looks because others take from the head
	Feeding     func() bool // a goroutine takes items for the callers
}

// Hold is a hold that stands.
type Hold struct {
	ID    uint64 // of its events; zero without Trace
	Node  string
	Token int64
}

type key struct{}

// With returns a context for Open that carries h.
func With(ctx context.Context, h Hooks) context.Context { return context.WithValue(ctx, key{}, h) }

// Of returns the hooks that ctx carries.
func Of(ctx context.Context) Hooks {
	h, _ := ctx.Value(key{}).(Hooks)
	return h
}

package recipetest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/memory"
	"github.com/go-coord/coord/internal/coordtest"
	"github.com/go-coord/coord/trace"
)

// A service may take a few operations, or bytes, in one commit only.
func TestQueue_DeadLettersFitIntoSmallCommits(t *testing.T) {
	for name, limits := range map[string]backend.Limits{
		"operations": {Ops: 12}, "without room for reasons": {Ops: 8}, "conditions": {Checks: 2}, "bytes": {Bytes: 4000}, "all": {Ops: 12, Checks: 2, Bytes: 4000},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx := t.Context()
				c := coordtest.Open(t, memory.New(&memory.Options{Limits: limits}), nil)
				q := coord.NewQueue(c, "/q", &coord.QueueOptions[string]{Codec: coord.Text(), MaxAttempts: 1})
				*coordtest.Inside(&q.Consumer).BucketSize = 6
				large := strings.Repeat("d", 2000)
				if limits.Bytes > 0 {
					for errors.Is(fits(q, large), coord.ErrTooLarge) {
						large = large[:len(large)-1]
					}
				}
				vs := []string{large}
				for i := range 30 {
					vs = append(vs, fmt.Sprint(i))
				}
				if _, err := q.PutAll(ctx, vs...); err != nil {
					t.Fatal(err)
				}
				for range vs {
					it, err := q.Take(ctx)
					if err != nil {
						t.Fatal(err)
					}
					if err := it.NackCause(0, errors.New(strings.Repeat("e", 2000))); err != nil {
						t.Fatal(err)
					}
				}
				l := letters(t, &q.Consumer)
				if len(l) != len(vs) || limits.Ops != 8 && l[7].Reason != trace.ReasonFailed {
					t.Fatalf("%d letters: %+v", len(l), l[7])
				}
				if n, err := q.Redrive(ctx); n != len(vs) || err != nil {
					t.Fatal(n, err)
				}
				for _, v := range vs {
					if got, err := q.Pop(ctx); got != v || err != nil {
						t.Fatalf("%q, %v, want %q", got, err, v)
					}
				}
			})
		})
	}
}

// fits puts and removes a value.
func fits(q *coord.Queue[string], v string) error {
	id, err := q.Put(context.Background(), v)
	if err == nil {
		err = q.Remove(context.Background(), id)
	}
	return err
}

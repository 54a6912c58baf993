//go:build linux

package faulttest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/go-coord/coord"
)

// queued is an item of a queue: a unique value, and the id that it got.
type queued struct {
	Value string
	ID    string `json:",omitempty"`
}

// The reports of a worker that uses a queue:
//
//	putting      the values of one Put or PutAll
//	put          those values that are in the queue for certain, and "ok" or the error
//	produced     all requested values
//	took         an item, with the attempt; reported before any other use of it
//	acking       the item
//	acked        "ok", "lost", or "unknown" if even that is not known
//	finished     it does not consume any more
//
// The commands:
//
//	produce QUEUE NAME FROM N   puts the values NAME-FROM and so on, some alone and some together
//	consume QUEUE PREFETCH      begins to take; 0 means Take, other values mean All
//	check-holds                 from now on, verifies the claim of each item at the service, as its work
//	keep                        takes one more item, and no other, and does not acknowledge it
//	finish
type queueing struct {
	cancel context.CancelFunc // of the present consumption
	over   sync.WaitGroup     // of the present consumption
	verify atomic.Bool
	keep   atomic.Bool
}

// obeyQueue reports whether the command is one of these.
func (w *worker) obeyQueue(ctx context.Context, work *sync.WaitGroup, command string) (known bool, err error) {
	v := &w.queueing
	switch c := strings.Fields(command); {
	case len(c) == 5 && c[0] == "produce":
		from, err1 := strconv.Atoi(c[3])
		n, err2 := strconv.Atoi(c[4])
		if err := errors.Join(err1, err2); err != nil {
			return true, err
		}
		q := coord.NewQueue(w.c, c[1], &coord.QueueOptions[string]{Codec: coord.Text()})
		work.Go(func() {
			w.produce(ctx, q, c[2], from, n)
			w.say(line{Kind: "produced"})
		})
	case len(c) == 3 && c[0] == "consume":
		prefetch, err := strconv.Atoi(c[2])
		if err != nil {
			return true, err
		}
		q := coord.NewQueue(w.c, c[1], &coord.QueueOptions[string]{Codec: coord.Text(), Prefetch: prefetch})
		ctx, v.cancel = context.WithCancel(ctx)
		v.over.Add(1)
		work.Go(func() {
			defer v.over.Done()
			if err := w.consume(ctx, q, prefetch); err != nil {
				w.say(line{Kind: "failed", Text: err.Error()})
			}
		})
	case command == "check-holds":
		v.verify.Store(true)
	case command == "keep":
		v.keep.Store(true)
	case command == "finish":
		v.cancel()
		v.over.Wait()
		w.say(line{Kind: "finished"})
	default:
		return false, nil
	}
	return true, nil
}

// produce continues with the next values after an unknown outcome.
func (w *worker) produce(ctx context.Context, q *coord.Queue[string], name string, from, n int) {
	for n > 0 && ctx.Err() == nil {
		k := 1
		if rand.N(4) == 0 {
			k = min(n, 1+rand.N(16))
		}
		values := make([]string, k)
		items := make([]queued, k)
		for i := range k {
			values[i] = fmt.Sprintf("%s-%d", name, from+i)
			items[i].Value = values[i]
		}
		from, n = from+k, n-k
		w.say(line{Kind: "putting", Items: items})
		var ids []string
		var err error
		if k == 1 {
			var id string
			if id, err = q.Put(ctx, values[0]); err == nil {
				ids = []string{id}
			}
		} else {
			ids, err = q.PutAll(ctx, values...)
		}
		for i, id := range ids {
			items[i].ID = id
		}
		w.say(line{Kind: "put", Items: items[:len(ids)], Text: verdict(err)})
		if err != nil && !errors.Is(err, coord.ErrUncertain) && ctx.Err() == nil {
			w.say(line{Kind: "failed", Text: err.Error()})
			return
		}
	}
}

func (w *worker) consume(ctx context.Context, q *coord.Queue[string], prefetch int) error {
	if prefetch > 0 {
		for it, err := range q.All(ctx) {
			if err != nil {
				return err
			}
			w.process(ctx, it)
		}
		return nil
	}
	for {
		it, err := q.Take(ctx)
		if ctx.Err() != nil && err != nil {
			return nil
		}
		if err != nil {
			return err
		}
		w.process(ctx, it)
	}
}

func (w *worker) process(ctx context.Context, it *coord.Item[string]) {
	l := w.about(it.Hold, "took", "")
	l.Items, l.Attempt = []queued{{it.Value, it.ID}}, it.Attempt
	w.say(l)
	if w.queueing.keep.Load() {
		<-ctx.Done()
		return
	}
	if w.queueing.verify.Load() {
		_ = it.Verify(ctx) // without a check the ack reports it
	}
	l.Kind = "acking"
	w.say(l)
	l.Kind, l.Text = "acked", ackVerdict(it.Ack())
	w.say(l)
}

func ackVerdict(err error) string {
	switch {
	case errors.Is(err, coord.ErrUncertain):
		return "unknown"
	case errors.Is(err, coord.ErrLost):
		return "lost"
	}
	return verdict(err)
}

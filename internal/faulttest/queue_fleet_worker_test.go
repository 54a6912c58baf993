//go:build linux

package faulttest

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/internal/proc"
)

// The reports of a worker of the fleet, beside those of queueing. The text of asking, took and
// hanging is "q" for the queue or "d" for the delay queue.
//
//	asking           a call that takes an item is about to begin
//	putting          the delay is that of a PutAfter
//	hanging          the handler will return only after ClaimTimeout
//	nacking, nacked  as acking and acked; with the delay
//	gap              the process did not run for that delay
//
// The commands:
//
//	fleet-produce QUEUE DELAYED NAME FROM N EXACT     with EXACT, some due times are by its own clock
//	fleet-consume QUEUE DELAYED HOW                   takes from both; HOW is a prefetch as in consume, or work
//
// The end is finish.
const (
	fleetAttempts     = 4
	fleetClaimTimeout = 2 * time.Second
	fleetHandlers     = 3 // of a consumer that uses Work
)

// fate is what the handler does with an item. It depends on the value only, so that the
// checker knows it.
type fate string

const (
	fateAck    fate = "ack"
	fateSlow   fate = "slow"         // takes some time
	fateFail   fate = "fail once"    // Nack of the first attempt
	fateDelay  fate = "put off once" // the same, with a delay
	fateHang   fate = "hang once"    // beyond ClaimTimeout
	fatePoison fate = "fail always"  // goes to the dead letters
)

func fateOf(value string) fate {
	h := fnv.New32a()
	h.Write([]byte(value))
	// The low bits of similar texts are similar.
	switch n := h.Sum32() * 2654435761 >> 16 % 1000; {
	case n < 6:
		return fatePoison
	case n < 11:
		return fateHang
	case n < 41:
		return fateFail
	case n < 71:
		return fateDelay
	case n < 101:
		return fateSlow
	}
	return fateAck
}

// obeyFleet reports whether the command is one of these.
func (w *worker) obeyFleet(ctx context.Context, work *sync.WaitGroup, command string) (known bool, err error) {
	v := &w.queueing
	c := strings.Fields(command)
	switch {
	case len(c) == 7 && c[0] == "fleet-produce":
		from, err1 := strconv.Atoi(c[4])
		n, err2 := strconv.Atoi(c[5])
		exact, err3 := strconv.ParseBool(c[6])
		if err := errors.Join(err1, err2, err3); err != nil {
			return true, err
		}
		p := fleetProducer{w: w, queue: w.fifo(c[1], 0), delayed: w.delayed(c[2]), name: c[3], exact: exact}
		work.Go(func() {
			p.run(ctx, from, n)
			w.say(line{Kind: "produced"})
		})
	case len(c) == 4 && c[0] == "fleet-consume":
		prefetch, handlers := 0, 0
		if c[3] == "work" {
			handlers = fleetHandlers
		} else if prefetch, err = strconv.Atoi(c[3]); err != nil {
			return true, err
		}
		ctx, v.cancel = context.WithCancel(ctx)
		lanes := map[string]*coord.Consumer[string]{"q": &w.fifo(c[1], prefetch).Consumer, "d": &w.delayed(c[2]).Consumer}
		for name, q := range lanes {
			v.over.Add(1)
			work.Go(func() {
				defer v.over.Done()
				l := fleetLane{w: w, name: name, handlers: handlers, prefetch: prefetch}
				if err := l.run(ctx, q); err != nil {
					w.say(line{Kind: "failed", Text: err.Error()})
				}
			})
		}
		work.Go(func() { watchGaps(ctx, func(l line) { w.say(l) }) })
	default:
		return false, nil
	}
	return true, nil
}

func fleetOptions(prefetch int) *coord.QueueOptions[string] {
	return &coord.QueueOptions[string]{
		Codec: coord.Text(), Prefetch: prefetch, MaxAttempts: fleetAttempts, ClaimTimeout: fleetClaimTimeout,
	}
}

func (w *worker) fifo(path string, prefetch int) *coord.Queue[string] {
	return coord.NewQueue(w.c, path, fleetOptions(prefetch))
}

func (w *worker) delayed(path string) *coord.DelayQueue[string] {
	return coord.NewDelayQueue(w.c, path, fleetOptions(0))
}

// leastGap is the shortest time in which a process did not run that is reported.
const leastGap = 100 * time.Millisecond

// watchGaps reports the times in which the process did not run.
func watchGaps(ctx context.Context, say func(line)) {
	const step = 20 * time.Millisecond
	tick := time.NewTicker(step)
	defer tick.Stop()
	for last := proc.Now(); ; {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		now := proc.Now()
		if now-last > leastGap {
			say(line{At: now, Kind: "gap", Delay: now - last})
		}
		last = now
	}
}

// fleetProducer puts most values into the queue, and the others into the delay queue.
type fleetProducer struct {
	w       *worker
	queue   *coord.Queue[string]
	delayed *coord.DelayQueue[string]
	name    string
	exact   bool
}

// run continues with the next values after an unknown outcome.
func (p *fleetProducer) run(ctx context.Context, from, n int) {
	for n > 0 && ctx.Err() == nil {
		k := 1
		if rand.N(8) == 0 {
			k = min(n, 1+rand.N(16))
		}
		values := make([]string, k)
		items := make([]queued, k)
		for i := range k {
			values[i] = fmt.Sprintf("%s-%d", p.name, from+i)
			items[i].Value = values[i]
		}
		from, n = from+k, n-k
		ids, err := p.put(ctx, items, values)
		for i, id := range ids {
			items[i].ID = id
		}
		p.w.say(line{Kind: "put", Items: items[:len(ids)], Text: verdict(err)})
		if err != nil && !errors.Is(err, coord.ErrUncertain) && ctx.Err() == nil {
			p.w.say(line{Kind: "failed", Text: err.Error()})
			return
		}
	}
}

func (p *fleetProducer) put(ctx context.Context, items []queued, values []string) (ids []string, err error) {
	delay := rand.N(800 * time.Millisecond)
	way := rand.N(10)
	l := line{Kind: "putting", Items: items}
	if way < 2 && len(values) == 1 || way < 3 && !p.exact {
		l.Delay = delay
	}
	p.w.say(l)
	one := func(id string, err error) ([]string, error) {
		if err != nil {
			return nil, err
		}
		return []string{id}, nil
	}
	switch {
	case l.Delay > 0:
		for _, v := range values {
			id, err := p.delayed.PutAfter(ctx, delay, v)
			if err != nil {
				return ids, err
			}
			ids = append(ids, id)
		}
		return ids, nil
	case way < 3:
		return p.delayed.PutAll(ctx, time.Now().Add(delay), values...)
	case len(values) == 1:
		return one(p.queue.Put(ctx, values[0]))
	}
	return p.queue.PutAll(ctx, values...)
}

// fleetLane is the taking from one queue.
type fleetLane struct {
	w        *worker
	name     string
	handlers int
	prefetch int

	mu      sync.Mutex
	running int            // handlers, of Work
	asking  bool           // of Work
	acks    sync.WaitGroup // Acks of Work that are not reported yet
}

func (l *fleetLane) run(ctx context.Context, q *coord.Consumer[string]) error {
	ask := func() { l.w.say(line{Kind: "asking", Text: l.name}) }
	ask()
	switch {
	case l.handlers > 0:
		l.asking = true
		defer l.acks.Wait()
		return q.Work(ctx, l.handlers, func(_ context.Context, it *coord.Item[string]) error {
			l.step(1, it)
			defer l.step(-1, nil)
			l.handle(ctx, it)
			return nil
		})
	case l.prefetch > 0:
		for it, err := range q.All(ctx) {
			if err != nil {
				return err
			}
			l.took(it)
			l.handle(ctx, it)
			ask()
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
		l.took(it)
		l.handle(ctx, it)
		ask()
	}
}

// step notes that a handler of Work begins or has ended. Work asks for an item while a handler
// is free.
func (l *fleetLane) step(d int, it *coord.Item[string]) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.running += d
	if it != nil {
		l.took(it)
		l.asking = false
	}
	if free := l.running < l.handlers; free && !l.asking {
		l.asking = true
		l.w.say(line{Kind: "asking", Text: l.name})
	}
}

func (l *fleetLane) about(it *coord.Item[string], kind, text string) line {
	a := l.w.about(it.Hold, kind, text)
	a.Items, a.Attempt = []queued{{it.Value, it.ID}}, it.Attempt
	return a
}

func (l *fleetLane) took(it *coord.Item[string]) { l.w.say(l.about(it, "took", l.name)) }

// handle processes an item, and ends its claim, or leaves its Ack to Work.
func (l *fleetLane) handle(ctx context.Context, it *coord.Item[string]) {
	f := fateOf(it.Value)
	nack := f == fatePoison
	var delay, work time.Duration
	switch first := it.Attempt == 1; {
	case f == fateFail && first:
		nack = true
	case f == fateDelay && first:
		nack, delay = true, 20*time.Millisecond+rand.N(500*time.Millisecond)
	case f == fateHang && first:
		l.w.say(l.about(it, "hanging", l.name))
		work = fleetClaimTimeout + 200*time.Millisecond
	case f == fateSlow:
		work = rand.N(150 * time.Millisecond)
	}
	if work > 0 {
		select {
		case <-time.After(work):
		case <-ctx.Done():
		}
	}
	if nack {
		a := l.about(it, "nacking", "")
		a.Delay = delay
		l.w.say(a)
		err := it.Nack(delay)
		a.At, a.Kind, a.Text = 0, "nacked", ackVerdict(err)
		l.w.say(a)
		return
	}
	l.w.say(l.about(it, "acking", ""))
	acked := func() { l.w.say(l.about(it, "acked", ackVerdict(it.Ack()))) }
	if l.handlers == 0 {
		acked()
		return
	}
	l.acks.Go(func() { // Work acknowledges the item, and claims the next one in the same commit
		<-it.Done()
		acked() // the result of that Ack
	})
}

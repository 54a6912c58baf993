package simulation_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/coordtest"
	"github.com/go-coord/coord/internal/layout"
)

// queueScenario is a queue of one kind.
func queueScenario(kind string, share int) *scenario {
	const at = "/sim/q"
	must := []string{"put", "put with options", "put with a key", "key in use", "uncertain put", "delivered", "received", "again", "ack", "uncertain ack", "nack", "retry after", "release", "loss", "gave up", "empty", "cancel", "outsider's delete", "pop"}
	if kind == "dead letters" {
		must = append(must, "dead letter", "redrive", "remove", "bury", "buried letter", "letter with options", "redriven with options")
	}
	if kind == "limited" {
		must = append(must, "full")
	}
	if kind == "fifo" {
		must = append(must, "key after its time")
	}
	if kind != "priority" {
		must = append(must, "ack and claim", "refused ack and claim", "returned next item")
	}
	return &scenario{
		name: "queue, " + kind, share: share, clients: 4, bucket: simBucket, dir: at + "/waiters", must: must,
		play: func(x *sim) {
			q := &queuePlay{simulation: simulation{t: x.simulation.t, seed: x.arbiter.seed, count: make(map[string]int)}, l: coordtest.NewLedger(), kind: kind,
				next: make(map[string]bool), most: make(map[int]int), buried: make(map[int]bool), letter: make(map[int]bool), due: make(map[int]time.Time), keys: make(map[string][]*keySpan), tags: make(map[string]string)}
			x.queue = q
			x.producing = 2
			x.committed = func(c *simCall) {
				x.noteNext(q, c)
				if c.err == nil {
					x.checkKeys(q, at)
				}
				if kind == "limited" && c.err == nil {
					x.checkLimit(at + "/items")
				}
			}
			ctx, cancel := context.WithCancel(context.Background())
			x.stop = cancel
			for i := range 2 {
				x.act("producer", i, func(a *actor) {
					x.produce(a, q, i)
					x.mu().Lock()
					x.producing--
					x.mu().Unlock()
				})
				x.act("consumer", 2+i, func(a *actor) { x.consume(ctx, a, q) })
			}
			x.act("looker", 0, func(a *actor) {
				for {
					a.linger(40)
					x.mu().Lock()
					busy := x.producing > 0
					x.mu().Unlock()
					if busy {
						continue
					}
					if kind == "dead letters" {
						x.revive(a, q)
					}
					n, err := newSimQueue(a.client(), at, kind, coord.QueueOptions[int]{}).Len(context.Background())
					switch {
					case err != nil:
						if !a.excused(err) {
							a.errorf("len: %v", err)
							cancel()
							return
						}
					case n == 0:
						cancel()
						return
					case kind == "limited" && n > simMaxLen:
						a.errorf("%d items, the limit is %d", n, simMaxLen)
					}
				}
			})
		},
		finish: func(x *sim, a *actor) {
			x.letters(a, x.queue)
			dead := coord.NewQueue[int](a.client(), at+"/dead", nil)
			for {
				it, err := dead.TryTake(context.Background())
				if errors.Is(err, coord.ErrEmpty) {
					break
				}
				if err != nil {
					a.errorf("dead letters: %v", err)
					break
				}
				if kind != "dead letters" {
					a.errorf("a dead letter: %d", it.Value)
				}
				a.note("dead letter")
				x.queue.l.Ended(it, it.Ack())
			}
			if _, err := newSimQueue(a.client(), at, kind, coord.QueueOptions[int]{}).TryTake(context.Background()); !errors.Is(err, coord.ErrEmpty) {
				a.errorf("in the end: %v", err)
			}
		},
		end: func(x *sim) {
			for _, wrong := range x.queue.l.Check() {
				x.errorf("%s", wrong)
			}
			x.checkTimes(x.queue)
			x.freeKeys(at + "/" + layout.KeysName)
			x.empty(at + "/waiters")
			buckets, _, _ := x.truth.Children(context.Background(), at+"/items", nil)
			for _, b := range buckets {
				x.empty(at + "/items/" + b)
			}
		},
	}
}

// noteNext notes commits of Acks that claim the next items, and the end of such claims that no handler has got.
func (x *sim) noteNext(q *queuePlay, c *simCall) {
	var made, ended []string // marks
	acks := false
	for _, op := range c.ops {
		name := op.Path[strings.LastIndexByte(op.Path, '/')+1:]
		switch {
		case op.Kind == backend.OpDelete && strings.HasPrefix(name, "i-"):
			acks = true
		case op.Kind == backend.OpDelete && strings.HasPrefix(name, "m-"):
			ended = append(ended, op.Path)
		case op.Kind == backend.OpCreate && strings.HasPrefix(name, "m-"):
			made = append(made, op.Path)
		}
	}
	what := ""
	x.mu().Lock()
	switch {
	case acks && len(made) > 0 && c.err != nil:
		what = "refused ack and claim"
	case acks && len(made) > 0:
		what = "ack and claim"
		for _, mark := range made {
			q.next[mark] = true
		}
	case !acks && len(ended) > 0 && q.next[ended[0]] && c.err == nil:
		what = "returned next item"
	}
	x.mu().Unlock()
	if what != "" {
		x.note(what)
	}
}

// checkLimit checks the length of a limited queue, and the nodes that count its items.
func (x *sim) checkLimit(items string) {
	ctx := context.Background()
	buckets, _, _ := x.truth.Children(ctx, items, nil)
	n := 0
	for _, b := range buckets {
		names, _, _ := x.truth.Children(ctx, items+"/"+b, nil)
		for _, name := range names {
			if strings.HasPrefix(name, "i-") {
				n++
			}
		}
	}
	in, _, err := x.truth.Get(ctx, items+"/in", nil)
	if err != nil && n == 0 {
		return // nothing was put yet
	}
	came, wrong := strconv.ParseUint(string(in), 10, 32)
	out, err := x.truth.Exists(ctx, items+"/out", nil)
	if length := int(came) - int(out.Version); wrong != nil || err != nil || length != n || n > simMaxLen {
		x.errorf("%d items, the limit is %d, and the nodes count %d - %d, %v, %v", n, simMaxLen, came, out.Version, wrong, err)
	}
	if n == simMaxLen {
		x.note("full")
	}
}

// produce puts some values of its own.
func (x *sim) produce(a *actor, q *queuePlay, who int) {
	for n := 0; n < 6; {
		vs := []int{who*1000 + n}
		for len(vs) < 3 && n+len(vs) < 6 && a.r.IntN(3) == 0 {
			vs = append(vs, vs[0]+len(vs))
		}
		n += len(vs)
		var ids []string
		var err error
		a.say("put")
		c := newSimQueue(a.client(), "/sim/q", q.kind, coord.QueueOptions[int]{})
		o := coord.PutOptions{MaxAttempts: mostAttempts}
		if q.kind == "dead letters" {
			o.MaxAttempts = simAttempts - 1 + 2*a.r.IntN(2) // fewer or more than the queue has
		}
		options := len(vs) == 1 && a.r.IntN(2) == 0
		if options {
			if a.r.IntN(2) == 0 {
				o.Key, o.KeyFor = "key", time.Duration(a.r.IntN(2)*a.r.IntN(1000))*time.Millisecond
				a.linger(40) // the item that had the key can leave the queue
				if a.r.IntN(2) == 0 {
					o.MaxAttempts = 0 // its claim can be made by an Ack
				}
			}
			x.mu().Lock()
			q.most[vs[0]] = o.MaxAttempts
			x.mu().Unlock()
			var id string
			from := time.Now()
			if id, err = c.putWith(context.Background(), a.r, vs[0], &o); err == nil {
				ids = []string{id}
			} else if errors.Is(err, coord.ErrExists) && !x.hadKey(q, o.Key, id, from) {
				a.errorf("the key was free, and the put was refused for the item %q", id)
			}
		} else {
			ids, err = c.putAll(context.Background(), a.r, vs...)
		}
		x.mu().Lock()
		for _, v := range vs {
			q.due[v] = c.due
		}
		x.mu().Unlock()
		for i, v := range vs {
			if i < len(ids) {
				q.l.Did(v, nil)
			} else {
				q.l.Did(v, err)
			}
		}
		switch {
		case err == nil && o.Key != "":
			a.note("put with a key")
		case err == nil && options:
			a.note("put with options")
		case errors.Is(err, coord.ErrExists) && o.Key != "":
			a.note("key in use")
		case err == nil:
			a.note("put")
		case errors.Is(err, coord.ErrUncertain):
			a.note("uncertain put")
		case errors.Is(err, coord.ErrClosed):
			a.note("closed")
		default:
			a.errorf("put: %v", err)
		}
		a.linger(3)
	}
}

// consume takes until ctx ends.
func (x *sim) consume(ctx context.Context, a *actor, q *queuePlay) {
	for ctx.Err() == nil {
		c := newSimQueue(a.client(), "/sim/q", q.kind, coord.QueueOptions[int]{Prefetch: 1 + a.r.IntN(3)})
		var items []*coord.Item[int]
		how := a.r.IntN(11)
		if how > 7 {
			x.work(ctx, a, q)
			a.pause()
			continue
		}
		a.try("take", func(own context.Context) error {
			own, cancel := context.WithCancel(own)
			defer cancel()
			if ctx.Err() != nil {
				cancel()
			}
			defer context.AfterFunc(ctx, cancel)()
			switch how {
			case 0:
				it, err := c.TryTake(own)
				if errors.Is(err, coord.ErrEmpty) {
					a.note("empty")
					return nil
				}
				items = append(items, it)
				return err
			case 1:
				for it, err := range c.All(own) {
					if err != nil {
						return err
					}
					if x.consumed(a, q, it); a.r.IntN(2) == 0 {
						break
					}
				}
				return nil
			case 2:
				ch := c.Items(own)
				it, ok := <-ch
				if !ok {
					return cmp.Or(own.Err(), coord.ErrClosed)
				}
				items = append(items, it)
				a.note("received")
				a.pause() // the next one is claimed, or there is none
				cancel()
				for it := range ch {
					it.Release() // it was sent in the same moment
				}
				return nil
			case 3, 4:
				for range 1 + a.r.IntN(3) { // those that follow the first need no claim
					v, err := c.Pop(own)
					q.l.Popped(v, err)
					if err == nil {
						x.came(q, v, math.MaxInt64)
					}
					if errors.Is(err, coord.ErrUncertain) {
						a.note("uncertain pop")
						return nil
					}
					if err != nil {
						return err
					}
					a.note("pop")
				}
				return nil
			default:
				it, err := c.Take(own)
				items = append(items, it)
				return err
			}
		})
		for _, it := range items {
			if it != nil {
				x.consumed(a, q, it)
			}
		}
		a.pause()
	}
}

// work handles items by Work until some are handled, or ctx ends, or the arbiter gives the call up.
func (x *sim) work(ctx context.Context, a *actor, q *queuePlay) {
	o := coord.QueueOptions[int]{}
	if a.r.IntN(8) == 0 {
		o.Prefetch = 2
	}
	c := newSimQueue(a.client(), "/sim/q", q.kind, o)
	most := 1 + a.r.IntN(6)
	var done []*coord.Item[int]
	var off, buried []*coord.Item[int]
	var until, since []time.Time
	a.try("work", func(own context.Context) error {
		own, cancel := context.WithCancel(own)
		defer cancel()
		if ctx.Err() != nil {
			cancel()
		}
		defer context.AfterFunc(ctx, cancel)()
		return c.Work(own, 1, func(_ context.Context, it *coord.Item[int]) error {
			x.mu().Lock()
			delete(q.next, it.Path())
			x.mu().Unlock()
			x.took(a, q, it)
			a.linger(2)
			if most--; most == 0 {
				time.AfterFunc(time.Duration(1+a.r.IntN(12))*time.Millisecond, cancel) // during the Ack, or later
			}
			switch a.r.IntN(9) {
			case 0:
				return errors.New("failed")
			case 1:
				it.Release()
			case 2:
				d := time.Duration(a.r.IntN(2)*a.r.IntN(100)) * time.Millisecond
				off, until = append(off, it), append(until, time.Now().Add(d))
				return coord.RetryAfter(d, nil)
			case 3:
				if q.kind == "dead letters" {
					x.mu().Lock()
					q.buried[it.Value] = true
					x.mu().Unlock()
					buried, since = append(buried, it), append(since, time.Now())
					return coord.Bury(errors.New("bad"))
				}
				done = append(done, it)
			default:
				done = append(done, it) // Work calls Ack
			}
			return nil
		})
	})
	for i, it := range off {
		if it.Nack(0) == nil { // the result of the Nack of Work
			a.note("retry after")
			x.putOff(q, it, until[i])
		}
	}
	for i, it := range buried {
		if err := it.Ack(); errors.Is(err, coord.ErrReleased) && !errors.Is(err, coord.ErrLost) { // Work has ended the claim
			a.note("bury")
			x.mu().Lock()
			q.dead = append(q.dead, moment{it.Value, it.Token(), since[i]})
			x.mu().Unlock()
		}
	}
	for _, it := range done {
		err := it.Ack() // the result of that Ack
		q.l.Ended(it, err)
		switch {
		case err == nil:
			a.note("ack")
		case errors.Is(err, coord.ErrUncertain):
			a.note("uncertain ack")
		case errors.Is(err, coord.ErrLost):
			x.note("loss")
		default:
			a.errorf("ack by work: %v", err)
		}
	}
}

// took records a delivery, and checks its attempt.
func (x *sim) took(a *actor, q *queuePlay, it *coord.Item[int]) {
	q.l.Took(it)
	a.note("delivered")
	a.say(fmt.Sprint(it.Value, " attempt ", it.Attempt))
	if it.Attempt > 1 {
		x.note("again")
	}
	x.came(q, it.Value, it.Token())
	x.mu().Lock()
	most, letter := q.mostOf(it.Value), q.letter[it.Value]
	x.mu().Unlock()
	if letter {
		a.note("redriven with options")
	}
	if it.Attempt > most {
		a.errorf("attempt %d of %d, which has %d", it.Attempt, it.Value, most)
	}
}

// came records when a consumer had an item. A Pop has no token.
func (x *sim) came(q *queuePlay, v int, token int64) {
	x.mu().Lock()
	defer x.mu().Unlock()
	q.came = append(q.came, moment{v, token, time.Now()})
}

// putOff records that an item cannot be taken again before a time. After its last attempt it is a dead letter instead.
func (x *sim) putOff(q *queuePlay, it *coord.Item[int], until time.Time) {
	x.mu().Lock()
	defer x.mu().Unlock()
	if it.Attempt == q.mostOf(it.Value) {
		return
	}
	q.off = append(q.off, moment{it.Value, it.Token(), until})
}

// checkTimes finds the items that came before they were due, while they were put off, or after a burial without a
// Redrive.
func (x *sim) checkTimes(q *queuePlay) {
	for _, c := range q.came {
		if due := q.due[c.v]; c.at.Before(due) {
			x.errorf("%d came %v before it was due", c.v, due.Sub(c.at))
		}
		for _, off := range q.off {
			if off.v == c.v && off.token < c.token && c.at.Before(off.at) {
				x.errorf("%d came %v too early after its Nack", c.v, off.at.Sub(c.at))
			}
		}
		for _, dead := range q.dead {
			if dead.v == c.v && dead.token < c.token && !slices.ContainsFunc(q.redrives, func(r [2]time.Time) bool {
				return r[0].Before(c.at) && r[1].After(dead.at)
			}) {
				x.errorf("%d came again after Bury, without a Redrive", c.v)
			}
		}
	}
}

// checkKeys checks the keys of the items after a commit: no two items of the queue have one key, and each key names its
// item.
func (x *sim) checkKeys(q *queuePlay, at string) {
	ctx, now := context.Background(), time.Now()
	has := make(map[string]string) // by the hash of the key: the id of the item
	buckets, _, _ := x.truth.Children(ctx, at+"/items", nil)
	for _, b := range buckets {
		names, _, _ := x.truth.Children(ctx, at+"/items/"+b, nil)
		for _, name := range names {
			if id, _, ok := layout.CutID(name, layout.ItemPrefix); ok {
				x.mu().Lock()
				tag := q.tags[id]
				x.mu().Unlock()
				if tag != "" && !slices.Contains(names, tag) {
					x.errorf("the item %s has lost its key", id)
				}
			}
			id, k, ok := layout.ParseTag(name)
			if !ok || !slices.ContainsFunc(names, func(name string) bool { return strings.HasPrefix(name, layout.ItemPrefix+id) }) {
				continue
			}
			if other := has[k.Hash]; other != "" {
				x.errorf("the items %s and %s have one key", other, id)
			}
			has[k.Hash] = id
			data, _, err := x.truth.Get(ctx, k.In(at+"/"+layout.KeysName)+"/"+k.HolderName(), nil)
			if h, ok := layout.ParseKeyHolder(data); !ok || h.ID != id {
				x.errorf("the key of the item %s names %q, %v", id, data, err)
			}
			if other := x.keyCame(q, id, name, k, now); other != "" {
				x.errorf("the key of the item %s was free before its time, for the item %s", other, id)
			}
		}
	}
	x.mu().Lock()
	defer x.mu().Unlock()
	for hash, all := range q.keys {
		if last := all[len(all)-1]; has[hash] != last.id && last.to.IsZero() {
			last.to = now
		}
	}
}

// keyCame records an item with a key. It returns the id of the item that had the key before, if its time has not passed. In
// the queue with dead letters, not only an Ack and a Pop end it.
func (x *sim) keyCame(q *queuePlay, id, tag string, k layout.ItemKey, now time.Time) (other string) {
	x.mu().Lock()
	defer x.mu().Unlock()
	q.tags[id] = tag
	all := q.keys[k.Hash]
	if n := len(all); n > 0 {
		last := all[n-1]
		if last.id == id && last.to.IsZero() {
			return ""
		}
		if q.kind != "dead letters" && now.UnixMilli() < last.until {
			other = last.id
		}
		if last.until > 0 && last.id != id {
			x.count["key after its time"]++
		}
	}
	q.keys[k.Hash] = append(all, &keySpan{id: id, from: now, until: k.Until})
	return other
}

// hadKey reports whether an item with this id had the key during a call that began at from.
func (x *sim) hadKey(q *queuePlay, key, id string, from time.Time) bool {
	const slack = 300 * time.Millisecond // until a client is certain that the time of a key has passed
	x.mu().Lock()
	defer x.mu().Unlock()
	return slices.ContainsFunc(q.keys[layout.HashKey(key)], func(s *keySpan) bool {
		return s.id == id && (s.to.IsZero() || !s.to.Before(from) || s.until > 0 && !time.UnixMilli(s.until).Add(slack).Before(from))
	})
}

// freeKeys checks that no key without a time is in use when the queue is empty.
func (x *sim) freeKeys(keys string) {
	ctx := context.Background()
	dirs, _, _ := x.truth.Children(ctx, keys, nil)
	for _, dir := range dirs {
		names, _, _ := x.truth.Children(ctx, keys+"/"+dir, nil)
		for _, name := range names {
			if data, _, _ := x.truth.Get(ctx, keys+"/"+dir+"/"+name, nil); strings.HasPrefix(name, layout.HolderPrefix) {
				if h, ok := layout.ParseKeyHolder(data); !ok || h.Until == 0 {
					x.errorf("a key is in use in the empty queue: %s %s", name, data)
				}
			}
		}
	}
}

// mostOf returns the MaxAttempts of an item.
func (q *queuePlay) mostOf(v int) int {
	if most := q.most[v]; most > 0 {
		return most
	}
	if q.kind == "dead letters" {
		return simAttempts
	}
	return mostAttempts
}

// letters checks the dead letters: an item whose handler did not bury it has used up its attempts.
func (x *sim) letters(a *actor, q *queuePlay) {
	for l, err := range newSimQueue(a.client(), "/sim/q", q.kind, coord.QueueOptions[int]{}).Dead(context.Background()) {
		if err != nil {
			if !a.excused(err) {
				a.errorf("dead: %v", err)
			}
			return
		}
		x.mu().Lock()
		most, buried, options := q.mostOf(l.Value), q.buried[l.Value], q.most[l.Value] > 0
		x.mu().Unlock()
		switch {
		case l.Queue == "": // it was put back, or removed, between the reads of its nodes
		case l.Attempts > most, l.Attempts < most && !buried:
			a.errorf("a dead letter after %d attempts of %d: %+v", l.Attempts, most, l)
		case l.Attempts < most:
			a.note("buried letter")
		}
		if options {
			a.note("letter with options")
			x.mu().Lock()
			q.letter[l.Value] = true
			x.mu().Unlock()
		}
	}
}

// revive puts dead letters back into their queue, or removes one of them.
func (x *sim) revive(a *actor, q *queuePlay) {
	c := newSimQueue(a.client(), "/sim/q", q.kind, coord.QueueOptions[int]{})
	switch a.r.IntN(3) {
	case 0:
		x.letters(a, q)
		from := time.Now()
		n, err := c.Redrive(context.Background())
		x.mu().Lock()
		q.redrives = append(q.redrives, [2]time.Time{from, time.Now()})
		x.mu().Unlock()
		switch {
		case errors.Is(err, coord.ErrExists):
			a.note("redrive with a key in use")
		case errors.Is(err, coord.ErrUncertain):
			a.note("uncertain redrive")
		case err != nil && !a.excused(err):
			a.errorf("redrive: %v", err)
		}
		if n > 0 {
			a.note("redrive")
		}
	case 1:
		var letter *coord.DeadLetter[int]
		for l, err := range c.Dead(context.Background()) {
			if err != nil {
				if !a.excused(err) {
					a.errorf("dead: %v", err)
				}
				return
			}
			letter = l
		}
		if letter == nil {
			return
		}
		err := c.Remove(context.Background(), letter.ID)
		q.l.Removed(letter.Value, err)
		switch {
		case err == nil:
			a.note("remove")
		case errors.Is(err, coord.ErrUncertain):
			a.note("uncertain remove")
		case !a.excused(err):
			a.errorf("remove: %v", err)
		}
	}
}

// consumed does something with an item.
func (x *sim) consumed(a *actor, q *queuePlay, it *coord.Item[int]) {
	x.took(a, q, it)
	a.linger(3)
	switch a.r.IntN(6) {
	case 0:
		d := time.Duration(a.r.IntN(2)*a.r.IntN(100)) * time.Millisecond
		until := time.Now().Add(d)
		if it.Nack(d) == nil {
			a.note("nack")
			x.putOff(q, it, until)
		}
		return
	case 1:
		if it.Release() == nil {
			a.note("release")
		}
		return
	}
	err := it.Ack()
	q.l.Ended(it, err)
	if errors.Is(it.Err(), coord.ErrLost) {
		x.note("loss")
	}
	switch {
	case err == nil:
		a.note("ack")
	case !errors.Is(err, coord.ErrLost):
		a.errorf("ack: %v", err)
	case errors.Is(err, coord.ErrUncertain):
		a.note("uncertain ack")
	}
}

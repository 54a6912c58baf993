package queue

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"sync"

	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/tracing"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/layout"
)

// This file keeps MaxLen: see L1 to L6 in rules.go.

// limit is what a queue with MaxLen knows of its length. One producer at a time has the turn: it
// puts, or waits for room. So the producers of one queue value do not compete, and only one of
// them watches.
type limit struct {
	turn chan struct{} // of capacity 1; full while a producer has the turn

	// These belong to the producer that has the turn.
	nth    int64 // the number of the session that has read the counts
	counts counts
	proof  proof
	spare  int // how many producers may find the queue full before the next one counts the items

	mu  sync.Mutex
	dry chan struct{} // closed while the producer that has the turn waits for room
}

// counts is what a producer knows of the two nodes that count the items, in and out. Both
// numbers wrap at 2^32.
type counts struct {
	in      uint32
	out     uint32
	entry   entryState
	version int32 // of the node in
	exit    bool  // the node out exists
	asOf    int64 // the position at which out was read
	age     countsAge

	// repair is set if the numbers were found by listing the items and the nodes have to be
	// set right.
	repair bool
}

// entryState is the state of the node in.
type entryState int8

const (
	entryMissing entryState = iota
	entryUnreadable
	entryWorn // an outsider wrote it until its version became negative
	entryGood
)

// countsAge is how current counts are.
type countsAge int8

const (
	countsUnknown    countsAge = iota
	countsRemembered           // from an earlier put
	countsRead                 // from the server of the session, which can lag behind
	countsCurrent              // read after a Sync
)

// length is the number of items.
func (c counts) length() int { return int(int32(c.in - c.out)) }

// broken reports whether only a list of the items can tell the length.
func (c counts) broken() bool {
	return !c.repair && (c.entry != entryGood || !c.exit || c.length() < 0)
}

// remember returns the counts for the next put: none if they have to be repaired first.
func (c counts) remember() counts {
	if c.repair || c.broken() {
		return counts{}
	}
	c.age = min(c.age, countsRemembered)
	return c
}

// ops returns the operations that count n new items, or fail if the nodes have changed since.
func (c counts) ops(q *Queue, n int) []backend.Op {
	data := []byte(strconv.FormatUint(uint64(c.after(n).in), 10))
	var ops []backend.Op
	switch {
	case c.entry == entryMissing:
		ops = append(ops, backend.Create(q.in, data, backend.Persistent))
	case c.version == math.MaxInt32:
		// There is no version after this one. A new node begins with version 0.
		ops = append(ops, backend.Delete(q.in, c.version), backend.Create(q.in, data, backend.Persistent))
	default:
		ops = append(ops, backend.SetData(q.in, data, c.version))
	}
	switch {
	case c.repair && c.exit:
		ops = append(ops, backend.SetData(q.out, nil, backend.AnyVersion)) // wakes the producers that wait
	case c.repair:
		ops = append(ops, backend.Create(q.out, nil, backend.Persistent))
	}
	return ops
}

// after returns the counts after the commit of ops.
func (c counts) after(n int) counts {
	c.in += uint32(n)
	if c.repair && c.exit {
		c.in++ // the write that wakes counts as an item that went out
		c.out++
	}
	if c.version++; c.entry == entryMissing || c.version == math.MinInt32 {
		c.version = 0
	}
	c.entry, c.exit, c.repair, c.age = entryGood, true, false, countsRemembered
	return c
}

// readCounts reads the two nodes. It reads in first: so if the queue seems to be full, it was
// full when out was read.
func (q *Queue) readCounts(ctx context.Context, s *core.Session, age countsAge) (counts, error) {
	if age == countsCurrent {
		if err := s.Backend().Sync(ctx, q.items); err != nil {
			return counts{}, err
		}
	}
	var got []backend.ReadResult
	if s.Backend().Features().Has(backend.Batches) {
		var err error
		if got, err = s.Backend().ReadMany(ctx, backend.Read{Path: q.in}, backend.Read{Path: q.out}); err != nil && !errors.Is(err, backend.ErrUnsupported) {
			return counts{}, err
		}
	}
	if len(got) == 0 {
		got = make([]backend.ReadResult, 2)
		got[0].Data, got[0].Stat, got[0].Err = s.Backend().Get(ctx, q.in, nil)
		got[1].Stat, got[1].Err = s.Backend().Exists(ctx, q.out, nil)
	}
	for _, r := range got {
		if r.Err != nil && !errs.IsNotFound(r.Err) {
			return counts{}, r.Err
		}
	}
	c := counts{version: got[0].Stat.Version, out: uint32(got[1].Stat.Version), exit: got[1].Err == nil, asOf: got[1].Stat.AsOf, age: age}
	n, err := strconv.ParseUint(string(got[0].Data), 10, 32)
	switch {
	case got[0].Err != nil:
		c.entry = entryMissing
	case c.version < 0:
		c.entry = entryWorn // -1 would mean any version
	case err != nil:
		c.entry = entryUnreadable
	default:
		c.entry, c.in = entryGood, uint32(n)
	}
	return c, nil
}

// proof is a sample of the items at the time of the latest count. If an item of it is gone and
// out does not account for that, a client deletes items without counting them.
type proof struct {
	out  uint32   // when the count began
	left []string // paths of the items that are not known to be gone
	gone int
}

// proofs is the number of items in a proof.
const proofs = 4

// refuted reports whether the length that the counts show is in doubt.
func (p *proof) refuted(c counts) bool {
	return len(p.left) == 0 || p.gone > int(int32(c.out-p.out))
}

// shortList is the most buckets that a client lists for each put that finds the queue full. It lists a longer
// queue less often, see L5.
const shortList = 4

// choose makes a proof of some of the items, spread evenly. The last one is among them.
func (p *proof) choose(out uint32, items []string) {
	*p = proof{out: out}
	n := min(len(items), proofs)
	for i := range n {
		p.left = append(p.left, items[(i+1)*len(items)/n-1])
	}
}

// recount lists the items. If their number contradicts the counts, it returns counts to be
// repaired. They are never too small: no limited put can come between the read of in and the
// repair, and each item that is deleted after the read of out at the end is counted there.
func (p *limitedPut) recount(ctx context.Context, c counts) (counts, error) {
	q, s := p.q, p.s
	began := c.out
	n, buckets := 0, 0
	var sample []string
	err := q.eachBucket(ctx, s, func(_ layout.Bucket, _ bool, b layout.BucketContents) error {
		buckets++
		n += len(b.Items)
		step := max(1, len(b.Items)/proofs)
		for i := (len(b.Items) - 1) % step; i >= 0 && i < len(b.Items); i += step { // up to the last
			sample = append(sample, b.Items[i].Path())
		}
		return nil
	})
	if err != nil && !errs.IsNotFound(err) {
		return counts{}, err
	}
	if c.exit {
		stat, err := s.Backend().Exists(ctx, q.out, nil)
		if err != nil && !errs.IsNotFound(err) {
			return counts{}, err
		}
		c.out, c.asOf, c.exit = uint32(stat.Version), stat.AsOf, err == nil
	}
	if !c.exit {
		c.out = 0
	}
	if p.lim.spare = buckets - 1; buckets <= shortList {
		p.lim.spare = 0
	}
	p.lim.proof.choose(began, sample)
	c.repair = c.broken()
	if moved := int(int32(c.out - began)); c.repair || c.length() > n || c.length() < n-moved {
		c.in, c.repair = c.out+uint32(n), true
	}
	c.age = countsCurrent
	return c, nil
}

// limitedPut is a put into a queue with MaxLen.
type limitedPut struct {
	q        *Queue
	lim      *limit
	s        *core.Session
	span     *tracing.Span
	key, due int64
	batch    []newItem
	with     []backend.Op // that are committed with the items, before all others
	now      bool         // fails with errs.ErrFull instead of waiting
	place    slotPlace    // among the producers that wait
	counted  bool         // the items need not be counted once more for this put
	traced   bool         // the wait is reported to the span, or there is no span
}

// putLimited puts as much of the batch as there is room for. If there is no room, it waits for
// some, or fails with ErrFull.
func (q *Queue) putLimited(ctx context.Context, s *core.Session, span *tracing.Span, key, due int64, batch []newItem) (int, error) {
	p := &limitedPut{q: q, lim: &q.lim, s: s, span: span, key: key, due: due, batch: batch, traced: span == nil}
	for {
		if err := q.takeTurn(ctx, s, span, batch); err != nil {
			return 0, err
		}
		n, err := p.run(ctx)
		q.giveTurn()
		if !errors.Is(err, errs.ErrAgain) {
			return n, err
		}
		// Without the turn, for which others wait: this calls the user's Trace.
		span.Waiting(ctx, "", -1)
		p.traced = true
	}
}

// run makes the put. The caller has the turn. run returns errs.ErrAgain if the put is about to wait and that
// is not reported to the span yet.
func (p *limitedPut) run(ctx context.Context) (n int, err error) {
	q, s := p.q, p.s
	p.place = slotPlace{l: q.producers, s: s}
	defer p.place.leave()
	if p.lim.nth != s.Number() { // the service can have another history, with other versions
		p.lim.nth, p.lim.counts = s.Number(), counts{}
	}
	c := p.lim.counts.remember()
	defer func() { p.lim.counts = c }()
	looked := false // no key is in use since the queue was found full
	for {
		room := q.maxLen - c.length()
		switch {
		case c.age == countsUnknown, c.age == countsRemembered && room < len(p.batch):
			c, err = q.readCounts(ctx, s, countsRead)
		case c.entry == entryWorn:
			if _, err = s.Backend().Commit(ctx, backend.Delete(q.in, backend.AnyVersion)); err == nil || errs.Raced(err) || errs.MayRepeat(ctx, err) {
				c, err = q.readCounts(ctx, s, countsCurrent)
			}
			err = s.NotSent(ctx, err)
		case c.broken() && c.age < countsCurrent && c.entry == entryGood && c.exit:
			c, err = q.readCounts(ctx, s, countsCurrent)
		case c.broken():
			c, err = p.recount(ctx, c)
		case room > 0:
			batch := p.batch[:min(room, len(p.batch))]
			var put bool
			if c, put, err = p.commit(ctx, c, batch); put {
				return len(batch), nil
			}
		case c.age < countsCurrent:
			c, err = q.readCounts(ctx, s, countsCurrent)
		case c.repair:
			c, _, err = p.commit(ctx, c, nil)
		case p.doubts(c):
			c, err = p.recount(ctx, c)
		case !looked:
			err = q.lookUpOnly(ctx, s, p.batch)
			looked = true
		case q.reject, p.now:
			return 0, fmt.Errorf("%w: items in the queue: %d", errs.ErrFull, c.length())
		case !p.traced:
			return 0, errs.ErrAgain
		default:
			err = p.awaitRoom(ctx, c)
			c.age, looked = countsRemembered, false
		}
		if err != nil {
			return 0, err
		}
	}
}

// doubts reports whether the items of a queue that seems to be full have to be counted. After a
// count of n requests, unless it was short, the next n-1 puts do without.
func (p *limitedPut) doubts(c counts) bool {
	switch l := p.lim; {
	case l.proof.refuted(c):
	case p.counted:
		return false
	case l.spare > 0:
		l.spare--
		p.counted = true
		return false
	}
	p.counted = true
	return true
}

// commit puts the batch and counts it, in one commit. If the counts have changed, it puts
// nothing and reads them again.
func (p *limitedPut) commit(ctx context.Context, c counts, batch []newItem) (_ counts, done bool, err error) {
	q, s := p.q, p.s
	count := c.ops(q, len(batch))
	before, repeat := 0, false
	if len(batch) > 0 {
		before = len(p.with)
		_, err = q.putItems(ctx, s, p.key, p.due, batch, append(p.with[:before:before], count...))
	} else {
		_, _, err = s.CommitOnce(ctx, count...)
		repeat = errs.MayRepeat(ctx, err)
		err = s.NotSent(ctx, err)
	}
	if err == nil {
		return c.after(len(batch)), true, nil
	}
	if i := errs.Blamed(err); (i < before || i >= before+len(count)) && !repeat {
		return c, false, err
	}
	if errs.IsNotFound(err) {
		q.forgetOpen(p.key) // the directory of items can be gone: putItems makes it when a list does not find it
	}
	now, err := q.readCounts(ctx, s, countsRead)
	if err == nil && now.entry == c.entry && now.version == c.version && now.exit == c.exit {
		now, err = q.readCounts(ctx, s, countsCurrent) // the server lags behind
	}
	return now, false, err
}

// roomSlots is the number of producers that watch while they wait for room, see slotLine.
const roomSlots = 2

// awaitRoom returns when an item may have been deleted since the counts were read. The caller has
// the turn, so one producer of each queue value waits. If it has a slot, it watches out, which
// every counted deletion changes, and the items of the proof.
func (p *limitedPut) awaitRoom(ctx context.Context, c counts) error {
	q, s := p.q, p.s
	q.setDry(true)
	defer q.setDry(false)
	wait := func(fired, ready <-chan struct{}) error {
		select {
		case <-fired:
		case <-ready:
		case <-q.c.Closing():
			return backend.ErrClosed
		case <-s.Backend().Done():
			return s.Backend().Err()
		case <-ctx.Done():
			return s.ContextError(ctx)
		}
		return nil
	}
	for !p.place.slot {
		var err error
		if p.place.path == "" {
			err = p.place.enter(ctx)
		} else {
			err = p.place.stand(ctx, wait)
		}
		if err != nil {
			return err
		}
	}
	out, ws := backend.NewWatch(), backend.NewWatchSet()
	defer out.Stop()
	defer ws.Stop()
	targets := []backend.Target{{Path: q.out, Watch: out}}
	items := make(map[*backend.Watch]string)
	for _, path := range p.lim.proof.left {
		w := ws.New()
		items[w] = path
		targets = append(targets, backend.Target{Path: path, Watch: w})
	}
	// If a node has changed since the counts were read, its watch fires at once.
	if err := s.Backend().Arm(ctx, c.asOf, targets...); err != nil {
		return err
	}
	if err := wait(out.Fired(), ws.Ready()); err != nil {
		return err
	}
	for _, w := range ws.Take() {
		if w.Kind() != backend.Deleted { // all fire after a reconnect
			if _, err := s.Backend().Exists(ctx, items[w], nil); !errs.IsNotFound(err) {
				if err != nil {
					return err
				}
				continue
			}
		}
		proof := &p.lim.proof
		proof.gone++
		proof.left = slices.DeleteFunc(proof.left, func(path string) bool { return path == items[w] })
	}
	return nil
}

// takeTurn waits until no other producer of the queue value has the turn. If that one waits for room, takeTurn returns a
// keyInUse if the key of the only item of batch is in use.
func (q *Queue) takeTurn(ctx context.Context, s *core.Session, span *tracing.Span, batch []newItem) error {
	q.lim.mu.Lock()
	dry := q.lim.dry
	q.lim.mu.Unlock()
	for {
		select {
		case q.lim.turn <- struct{}{}:
			return nil
		case <-dry:
			dry = nil
			if err := q.lookUpOnly(ctx, s, batch); err != nil {
				return err
			}
			span.Waiting(ctx, "", -1)
		case <-s.Backend().Done():
			return s.Backend().Err()
		case <-ctx.Done():
			return s.ContextError(ctx)
		}
	}
}

func (q *Queue) giveTurn() { <-q.lim.turn }

// setDry says whether the producer that has the turn waits for room.
func (q *Queue) setDry(dry bool) {
	q.lim.mu.Lock()
	defer q.lim.mu.Unlock()
	if dry {
		close(q.lim.dry)
	} else {
		q.lim.dry = make(chan struct{})
	}
}

// counting returns the operations that count n items that are deleted in the same commit, one
// for each: it is the version of out that counts. There are none if the queue has no such node,
// as far as this client knows.
func (q *Queue) counting(n int) []backend.Op {
	if !q.counted.Load() {
		return nil
	}
	return slices.Repeat([]backend.Op{backend.SetData(q.out, nil, backend.AnyVersion)}, n)
}

// commitOnce is CommitOnce of the session. If the service has no space, it commits deletions without
// counting them, since the count is a write. A producer corrects the count later (L5).
func (q *Queue) commitOnce(ctx context.Context, s *core.Session, ops ...backend.Op) (zxid int64, err error) {
	_, zxid, err = s.CommitOnce(ctx, ops...)
	if !errs.Answers(err, backend.ErrNoSpace) || backend.IsUncertain(err) {
		return zxid, err
	}
	rest := slices.DeleteFunc(slices.Clone(ops), func(op backend.Op) bool { return op.Path == q.out })
	if len(rest) < len(ops) && backend.OnlyDeletes(rest) {
		_, zxid, err = s.CommitOnce(ctx, rest...)
	}
	return zxid, err
}

// noteCounting notes that a list of the directory of items shows the node out. Only a commit
// proves that it is missing.
func (q *Queue) noteCounting(names []string) {
	if slices.Contains(names, layout.OutName) {
		q.counted.Store(true)
	}
}

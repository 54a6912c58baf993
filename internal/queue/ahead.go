package queue

import (
	"context"
	"slices"

	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/errs"

	"github.com/go-coord/coord/internal/layout"
)

// This file reads remembered items before they are claimed or popped. The rules are T13 in rules.go.

// The limits of one read of remembered items.
const (
	aheadReads = 16
	aheadBytes = 64 << 10
	aheadRun   = 4 // so many items are taken from a list before the client reads items of it together
)

// readAhead is the read of a remembered item. The items of one request share done.
type readAhead struct {
	e    layout.QueueEntry
	done chan struct{} // closed when the read is over
	data []byte
	err  error
}

// get waits for the read and returns the data. It reports false if the item is still to be read: r is nil or has
// failed, or ctx has ended.
func (r *readAhead) get(ctx context.Context) (data []byte, ok bool) {
	if r == nil {
		return nil, false
	}
	select {
	case <-r.done:
	case <-ctx.Done():
	}
	return r.have() // also if ctx has ended since
}

// have is get for a caller that does not wait.
func (r *readAhead) have() (data []byte, ok bool) {
	if r == nil {
		return nil, false
	}
	select {
	case <-r.done:
		return r.data, r.err == nil
	default:
		return nil, false
	}
}

// fresh returns how many of the first items were never claimed and have no options.
func fresh(items []layout.QueueEntry) int {
	for i := range items {
		if e := &items[i]; e.State || e.PutOff != "" || e.Options {
			return i
		}
	}
	return len(items)
}

// readLocked begins to read remembered items, from the first that is not read on, if it is one of the n first: least
// items, or more if that is worth it. Without Prefetch, the client also begins when it is the next one behind them, if items are read
// together: otherwise the claim of that item would wait for the read. The caller holds q.mu.
func (q *Queue) readLocked(n, least int) {
	a := &q.ahead
	k := slices.Index(a.reads, nil)
	var more int
	switch {
	case k >= 0 && k < n:
		more = max(least, q.together(n)-k)
	case k == n && q.prefetch == 1:
		more = q.together(n)
	}
	if more <= 0 {
		return
	}
	items := a.items[k:min(k+more, len(a.items))]
	items = items[:fresh(items)]
	if len(items) == 0 {
		return
	}
	s, done := a.s, make(chan struct{})
	reads, paths := make([]*readAhead, len(items)), make([]string, len(items))
	for i, e := range items {
		reads[i], paths[i] = &readAhead{e: e, done: done}, e.Path()
	}
	// It outlasts the call, which does not wait for it.
	if q.c.GoWork(func() {
		defer close(done)
		q.readAll(s, paths, reads)
	}) {
		copy(a.reads[k:], reads)
	}
}

// together returns how many of the first remembered items are worth a read in one request, before the n first are
// taken: at least n, or none. The caller holds q.mu.
func (q *Queue) together(n int) int {
	a := &q.ahead
	size := int(q.largest.Load())
	if !a.many || a.rival || q.rivals > 0 || size == 0 || max(q.run, len(a.taken)) < aheadRun {
		return 0
	}
	more := q.run - len(a.taken) // as many as the list before has given, and then as many as this list so far
	if more <= 0 {
		more = len(a.taken)
	}
	if !q.renews() {
		more = min(more, a.left*n)
	}
	if most := min(more, aheadReads, aheadBytes/size); most >= n {
		return most
	}
	return 0
}

// readAll reads items in one request. It drops the data beyond aheadBytes.
func (q *Queue) readAll(s *core.Session, paths []string, reads []*readAhead) {
	got, err := s.GetAll(context.Background(), paths)
	size, largest := 0, 1
	for i, r := range reads {
		if r.err = err; err != nil {
			continue
		}
		r.data, r.err = got[i].Data, got[i].Err
		largest = max(largest, len(r.data))
		if size += len(r.data); i > 0 && size > aheadBytes {
			r.data, r.err = nil, errs.ErrAgain
		}
	}
	if err == nil {
		q.largest.Store(int64(largest))
	}
}

package queue

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/layout"
)

// A Retry is coord.Retry.
type Retry struct {
	ID       string
	Attempts int
	Next     time.Time
	Error    string
}

// putOffBuckets is the number of buckets that are listed at once to find the items that are put off.
const putOffBuckets = 64

// EachRetry calls f with the items that a Nack has put off, the next one first, until f returns false. No
// session is needed while f runs.
func (q *Queue) EachRetry(ctx context.Context, f func(Retry) bool) error {
	if err := q.path.Check("retries"); err != nil {
		return err
	}
	return errs.Op("retries", q.path.Full(), q.eachRetry(ctx, f))
}

func (q *Queue) eachRetry(ctx context.Context, f func(Retry) bool) error {
	buckets, err := core.OnSession(ctx, q.c, func(s *core.Session) ([]layout.Bucket, error) {
		if err := s.CheckKind(ctx, q.recipeDir()); err != nil {
			return nil, err
		}
		names, err := s.List(ctx, q.items)
		return layout.Buckets(q.items, names), err
	})
	if err != nil {
		return err
	}
	var all []layout.QueueEntry
	for some := range slices.Chunk(buckets, putOffBuckets) {
		found, err := core.OnSession(ctx, q.c, func(s *core.Session) ([]layout.QueueEntry, error) { return listPutOff(ctx, s, some) })
		if err != nil {
			return err
		}
		all = append(all, found...)
	}
	slices.SortStableFunc(all, func(a, b layout.QueueEntry) int { return cmp.Compare(a.Ready(), b.Ready()) })
	for some := range slices.Chunk(all, lettersAtOnce) {
		retries, err := core.OnSession(ctx, q.c, func(s *core.Session) ([]Retry, error) { return readRetries(ctx, s, some) })
		if err != nil {
			return err
		}
		for _, r := range retries {
			if !f(r) {
				return nil
			}
		}
	}
	return nil
}

// listPutOff lists the items of buckets that are put off.
func listPutOff(ctx context.Context, s *core.Session, buckets []layout.Bucket) (found []layout.QueueEntry, err error) {
	paths := make([]string, len(buckets))
	for i, b := range buckets {
		paths[i] = b.Path
	}
	lists, err := standingLists(ctx, s, paths...)
	if err != nil {
		return nil, err
	}
	for i, names := range lists {
		for _, e := range layout.ParseBucket(paths[i], names, 0).Items {
			if e.PutOff != "" {
				found = append(found, e)
			}
		}
	}
	return found, nil
}

// readRetries reads what is known of items that are put off. It leaves out the items that are not put off
// any more.
func readRetries(ctx context.Context, s *core.Session, items []layout.QueueEntry) (retries []Retry, err error) {
	var paths []string
	for i := range items {
		e := &items[i]
		paths = append(paths, e.StateAt(), e.PutOffAt())
	}
	read, err := s.GetAll(ctx, paths)
	if err != nil {
		return nil, err
	}
	for i := range items {
		e, state, off := &items[i], read[2*i], read[2*i+1]
		r := Retry{ID: e.ID, Next: time.UnixMilli(e.Ready()), Error: layout.ParsePutOff(off.Data).Error}
		if state.Err == nil {
			r.Attempts, _ = layout.ParseAttempts(state.Data)
		}
		switch {
		case off.Err == nil && (state.Err == nil || errs.IsNotFound(state.Err)):
			retries = append(retries, r)
		case !errs.IsNotFound(off.Err):
			return nil, cmp.Or(off.Err, state.Err)
		}
	}
	return retries, nil
}

// putOff returns the operation that puts e off until a time, with the reason, and without it if the commit
// of ops would be too large.
func putOff(s *core.Session, e *layout.QueueEntry, until int64, why deadReason, ops []backend.Op) backend.Op {
	name := layout.PutOffPrefix + e.ID + "-" + strconv.FormatInt(until, 10)
	op := backend.Create(e.Bucket+"/"+name, nil, backend.Persistent)
	if why.text == "" {
		return op
	}
	op.Data = layout.PutOff{Error: why.text}.Encode()
	if s.Backend().Limits().Refuse(append(slices.Clip(ops), op, s.Client().Proof())) != nil {
		op.Data = nil
	}
	return op
}

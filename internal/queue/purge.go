package queue

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/layout"
	"github.com/go-coord/coord/internal/nodepath"
)

// first returns the item that the next take would get, and its data.
func (q *Queue) first(ctx context.Context, s *core.Session) (*layout.QueueEntry, []byte, error) {
	stuck := q.stuckItems()
	if stuck == nil {
		stuck = make(map[string]time.Time)
	}
	for {
		if err := s.Backend().Sync(ctx, q.items); err != nil {
			return nil, nil, err
		}
		v, err := q.walk(ctx, s, 1, nil, nil, stuck, learnsNow)
		if err != nil {
			return nil, nil, err
		}
		if len(v.found) == 0 {
			return nil, nil, errs.ErrEmpty
		}
		e := &v.found[0]
		if e.State && (q.maxAttempts > 0 || e.Options) {
			r, o, err := readRecord(ctx, s, e)
			switch {
			case errs.IsNotFound(err), errors.Is(err, errs.ErrAgain):
				continue
			case err != nil:
				return nil, nil, err
			case q.isUsedUp(o, r.n):
				stuck[e.Path()] = time.Now().Add(ignoreTime) // a take moves it to the dead letters
				continue
			}
		}
		data, _, err := s.Backend().Get(ctx, e.Path(), nil)
		if !errs.IsNotFound(err) {
			q.forget() // an earlier list can show a later item as the first
			return e, data, err
		}
	}
}

// purge deletes the unclaimed items, bucket after bucket. An item that was never
// claimed is claimed and deleted in one commit, which fails if another consumer has
// claimed the item. For an item that was claimed before, the commit deletes the
// state at the version that was read.
func (q *Queue) purge(ctx context.Context, s *core.Session, total *int) error {
	if err := s.Backend().Sync(ctx, q.items); err != nil {
		return err
	}
	err := q.eachBucket(ctx, s, func(b layout.Bucket, last bool, c layout.BucketContents) error {
		claimed := slices.ContainsFunc(c.Items, func(e layout.QueueEntry) bool { return e.Marked })
		for len(c.Items) > 0 {
			n := q.fitting(s, len(c.Items), func(i int) *layout.QueueEntry { return &c.Items[i] })
			if err := q.purgeSome(ctx, s, c.Items[:n], total); err != nil {
				return err
			}
			c.Items = c.Items[n:]
		}
		q.sweep(ctx, s, b, c.Litter, !last && !claimed)
		return nil
	})
	if errs.IsNotFound(err) {
		return nil
	}
	return err
}

func (q *Queue) purgeSome(ctx context.Context, s *core.Session, items []layout.QueueEntry, total *int) error {
	var each [][]backend.Op
	for i := range items {
		e := &items[i]
		ops, err := takeOut(ctx, s, e, true)
		switch {
		case errs.IsNotFound(err), errors.Is(err, errs.ErrAgain):
			continue
		case err != nil:
			return err
		}
		each = append(each, ops)
	}
	for len(each) > 0 {
		var ops []backend.Op
		var owner []int
		for i, o := range each {
			ops = append(ops, o...)
			for range o {
				owner = append(owner, i)
			}
		}
		err := q.commitRemoval(ctx, s, items, append(ops, q.counting(len(each))...)...)
		if err == nil {
			*total += len(each)
			return nil
		}
		i := errs.Blamed(err)
		if i < 0 {
			return err
		}
		if i >= len(owner) {
			q.counted.Store(false)
			continue
		}
		if rest, ok := withoutNote(each[owner[i]], ops[i].Path); ok {
			each[owner[i]] = rest
			continue
		}
		each = slices.Delete(each, owner[i], owner[i]+1)
	}
	return nil
}

// takeOut returns the operations that delete an item that no consumer has claimed, with its
// other nodes. If a consumer has claimed it since the list, they are refused. If that is
// known already, takeOut returns errs.ErrAgain, or ErrNotFound. With free they free its key, whatever its time.
func takeOut(ctx context.Context, s *core.Session, e *layout.QueueEntry, free bool) ([]backend.Op, error) {
	if e.Marked {
		return nil, errs.ErrAgain
	}
	ops := []backend.Op{backend.Delete(e.Path(), backend.AnyVersion)}
	if e.State {
		r, err := readAttempts(ctx, s, e)
		if err != nil {
			return nil, err
		}
		ops = append(ops, backend.Delete(e.StateAt(), r.version))
	} else {
		ops = append(ops, backend.Absent(e.StateAt()))
	}
	if e.PutOff != "" {
		ops = append(ops, backend.Delete(e.PutOffAt(), backend.AnyVersion))
	}
	return append(ops, deleteNotes(e, free)...), nil
}

// withoutNote removes the operation on the path of a note from those on one item. It reports false if path is that of
// another node. So an item can be deleted although an outsider has changed these nodes. Without its tag, the item need
// not have the key any more (K3): then the operations on the other nodes of the key are removed too.
func withoutNote(ops []backend.Op, path string) (rest []backend.Op, ok bool) {
	if !layout.IsNote(path) {
		return ops, false
	}
	id, key, tag := layout.ParseTag(nodepath.Base(path))
	return slices.DeleteFunc(slices.Clone(ops), func(op backend.Op) bool {
		name := nodepath.Base(op.Path)
		return op.Path == path || tag && (name == key.HolderName() || name == key.UntilName(id))
	}), true
}

// Length is Consumer.Len of package coord.
func (q *Queue) Length(ctx context.Context) (int, error) {
	if err := q.path.Check("len"); err != nil {
		return 0, err
	}
	n, err := core.OnSession(ctx, q.c, func(s *core.Session) (int, error) {
		if err := s.Backend().Sync(ctx, q.items); err != nil {
			return 0, err
		}
		n, err := q.countItems(ctx, s)
		if errs.IsNotFound(err) {
			return 0, nil
		}
		return n, err
	})
	return n, errs.Op("len", q.path.Full(), err)
}

// PurgeAll is Consumer.Purge of package coord.
func (q *Queue) PurgeAll(ctx context.Context) (int, error) {
	if err := q.path.Check("purge"); err != nil {
		return 0, err
	}
	total := 0
	_, err := core.OnSessionOnce(ctx, q.c, func(s *core.Session) (struct{}, error) {
		if err := s.CheckKind(ctx, q.recipeDir()); err != nil {
			return struct{}{}, err
		}
		return struct{}{}, q.purge(ctx, s, &total)
	})
	return total, errs.Op("purge", q.path.Full(), err)
}

// Peek is Consumer.Peek of package coord. It calls decode with the bytes of the item.
func (q *Queue) Peek(ctx context.Context, decode func([]byte) error) error {
	if err := q.path.Check("peek"); err != nil {
		return err
	}
	data, err := core.OnSession(ctx, q.c, func(s *core.Session) ([]byte, error) {
		_, data, err := q.first(ctx, s)
		return data, err
	})
	if err == nil {
		err = decode(data)
	}
	return errs.Op("peek", q.path.Full(), err)
}

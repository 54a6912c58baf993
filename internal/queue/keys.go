package queue

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/layout"
	"github.com/go-coord/coord/internal/nodepath"
	"github.com/go-coord/coord/internal/serviceclock"
)

// This file has the keys of items. The rules are K1 to K7 in rules.go.

// maxKey is the maximum number of bytes of a key.
const maxKey = 1024

// newKey is the key of an item to put. The zero newKey means that the item has no key.
type newKey struct {
	layout.ItemKey               // without Until, if keep is not zero, until it is dated
	keep           time.Duration // KeyFor

	// What the service has refused so far.
	stale  *keyState // of the item that had the key before; nil: h is created
	tagged bool      // k is there
	timed  bool      // u is there
}

// keyInUse is the error of a put whose key another item has.
type keyInUse struct {
	holder string // the id of the item that has the key
	item   string // the id of the item that was not put
}

func (e *keyInUse) Error() string {
	return fmt.Sprintf("%v: the item %s has the key", backend.ErrExists, e.holder)
}
func (e *keyInUse) Unwrap() error { return backend.ErrExists }

// checkKey refuses a key that no client may put.
func checkKey(key string, keep time.Duration) error {
	switch {
	case len(key) > maxKey:
		return fmt.Errorf("%w: the key has %d bytes, limit %d", backend.ErrInvalid, len(key), maxKey)
	case keep < 0:
		return fmt.Errorf("%w: KeyFor %v is negative", backend.ErrInvalid, keep)
	case keep > 0 && key == "":
		return fmt.Errorf("%w: KeyFor without a Key", backend.ErrInvalid)
	}
	return nil
}

// dateKeys returns batch with the times until which its keys stay in use.
func dateKeys(ctx context.Context, s *core.Session, batch []newItem) ([]newItem, error) {
	if !slices.ContainsFunc(batch, func(p newItem) bool { return p.key.keep > 0 }) {
		return batch, nil
	}
	now, err := s.Learn(ctx)
	if err != nil {
		return nil, err
	}
	batch = slices.Clone(batch)
	for i := range batch {
		if k := &batch[i].key; k.keep > 0 {
			k.Until = max(now.After(k.keep), 1)
		}
	}
	return batch, nil
}

// withKeys appends the operations that create the nodes of the keys of items.
func (q *Queue) withKeys(ops []backend.Op, bucket string, batch []newItem) []backend.Op {
	for i := range batch {
		ops = q.withKey(ops, bucket, &batch[i])
	}
	return ops
}

func (q *Queue) withKey(ops []backend.Op, bucket string, p *newItem) []backend.Op {
	k := &p.key
	if k.Hash == "" {
		return ops
	}
	dir := k.In(q.keys)
	h, data := dir+"/"+k.HolderName(), layout.KeyHolder{ID: p.id, Bucket: nodepath.Base(bucket), Until: k.Until}.Encode()
	if !k.tagged {
		ops = append(ops, backend.Create(bucket+"/"+layout.TagName(p.id, k.ItemKey), nil, backend.Persistent))
	}
	if k.stale == nil {
		ops = append(ops, backend.Create(h, data, backend.Persistent))
	} else {
		ops = append(ops, backend.SetData(h, data, k.stale.version))
		if k.stale.timed {
			ops = append(ops, backend.Delete(dir+"/"+k.stale.key(k.Hash).UntilName(k.stale.holder.ID), backend.AnyVersion))
		}
	}
	if k.Until > 0 && !k.timed {
		ops = append(ops, backend.Create(dir+"/"+k.UntilName(p.id), nil, backend.Persistent))
	}
	return ops
}

// refusedKey is called when the service has refused the operation op, on a node of a key, with err. It returns batch for
// the next attempt, or a keyInUse.
func (q *Queue) refusedKey(ctx context.Context, s *core.Session, batch []newItem, op backend.Op, err error) ([]newItem, error) {
	batch = slices.Clone(batch)
	name := nodepath.Base(op.Path)
	i := slices.IndexFunc(batch, func(p newItem) bool {
		k := &p.key
		switch {
		case k.Hash == "":
			return false
		case name == layout.TagName(p.id, k.ItemKey), name == k.HolderName(), name == k.UntilName(p.id):
			return true
		}
		return k.stale != nil && name == k.stale.key(k.Hash).UntilName(k.stale.holder.ID)
	})
	if i < 0 {
		return nil, err
	}
	p := &batch[i]
	created, exists := op.Kind == backend.OpCreate, errors.Is(err, backend.ErrExists)
	switch {
	case name == layout.TagName(p.id, p.key.ItemKey):
		if !exists {
			return nil, err
		}
		p.key.tagged = true
	case created && errs.IsNotFound(err):
		return batch, q.makeKeys(ctx, s, nodepath.Parent(op.Path))
	case created && exists && name == p.key.UntilName(p.id):
		p.key.timed = true
	case errors.Is(err, backend.ErrNotEmpty): // an outsider made a node below the time of the item that had the key
		p.key.stale.timed = false
	default:
		p.key.stale, err = q.resolveKey(ctx, s, p, nil)
		return batch, err
	}
	return batch, nil
}

// makeKeys makes a directory of keys, and the one above it.
func (q *Queue) makeKeys(ctx context.Context, s *core.Session, dir string) error {
	_, err := s.MakeNode(ctx, backend.Create(dir, nil, backend.Persistent), func(keys string) error {
		claim := func(string) error { return s.ClaimKindAnew(ctx, q.recipeDir()) }
		if err := claim(""); err != nil {
			return err
		}
		_, err := s.MakeNode(ctx, backend.Create(keys, nil, backend.Persistent), claim)
		return err
	})
	return s.NotSent(ctx, err)
}

// keyState is what the service shows of a key.
type keyState struct {
	there   bool // h exists
	holder  layout.KeyHolder
	version int32 // of h
	queued  bool  // k of the holder exists
	timed   bool  // u of the holder exists
	changed bool  // h has changed during the reads, so the rest means nothing
}

// key returns the key as its holder has it.
func (st *keyState) key(hash string) layout.ItemKey {
	return layout.ItemKey{Hash: hash, Until: st.holder.Until}
}

// tagAt returns the path of the k of the item that h names.
func (q *Queue) tagAt(st *keyState, hash string) string {
	return q.items + "/" + st.holder.Bucket + "/" + layout.TagName(st.holder.ID, st.key(hash))
}

// readKeys reads the states of keys, as they are behind the operations before. See K4 for the order of the reads.
func (q *Queue) readKeys(ctx context.Context, s *core.Session, keys []layout.ItemKey, before []backend.Op) ([]keyState, error) {
	states := make([]keyState, len(keys))
	at := make([]int64, len(keys)) // the latest changes of h
	holder := func(i int) string { return keys[i].In(q.keys) + "/" + keys[i].HolderName() }
	// read reads a node of each key that wants it.
	read := func(path func(i int) string, got func(i int, r *backend.ReadResult)) error {
		var paths []string
		var index []int
		for i := range keys {
			if p := path(i); p != "" {
				paths, index = append(paths, p), append(index, i)
			}
		}
		if len(paths) == 0 {
			return nil
		}
		results, err := s.GetAll(ctx, paths)
		if err != nil {
			return err
		}
		for j := range results {
			if r := &results[j]; r.Err != nil && !errs.IsNotFound(r.Err) {
				return r.Err
			}
			got(index[j], &results[j])
		}
		return nil
	}
	free := func(i int) bool { return states[i].there && !states[i].queued }
	err := read(holder, func(i int, r *backend.ReadResult) {
		st := &states[i]
		if st.there = r.Err == nil; st.there {
			st.version, at[i] = r.Stat.Version, r.Stat.Mzxid
			st.holder, _ = layout.ParseKeyHolder(r.Data)
		}
	})
	if err == nil {
		err = read(func(i int) string {
			st := &states[i]
			if !st.there || st.holder.ID == "" {
				return ""
			}
			tag := q.tagAt(st, keys[i].Hash)
			if slices.ContainsFunc(before, func(op backend.Op) bool { return op.Kind == backend.OpDelete && op.Path == tag }) {
				return "" // an AckOp of the item
			}
			return tag
		}, func(i int, r *backend.ReadResult) { states[i].queued = r.Err == nil })
	}
	if err == nil {
		err = read(func(i int) string {
			st := &states[i]
			if !free(i) || st.holder.Until == 0 {
				return ""
			}
			return keys[i].In(q.keys) + "/" + st.key(keys[i].Hash).UntilName(st.holder.ID)
		}, func(i int, r *backend.ReadResult) { states[i].timed = r.Err == nil })
	}
	if err == nil {
		err = read(func(i int) string {
			if !free(i) {
				return ""
			}
			return holder(i)
		}, func(i int, r *backend.ReadResult) { states[i].changed = r.Err != nil || r.Stat.Mzxid != at[i] })
	}
	return states, err
}

// resolveKey finds out, after the service has shown that h exists, whether the key of p is in use: then it returns a
// keyInUse. Otherwise it returns the state of the key behind the operations before, or nil if h is gone.
func (q *Queue) resolveKey(ctx context.Context, s *core.Session, p *newItem, before []backend.Op) (*keyState, error) {
	k := p.key.ItemKey
	for {
		if err := s.Backend().Sync(ctx, k.In(q.keys)); err != nil {
			return nil, err
		}
		states, err := q.readKeys(ctx, s, []layout.ItemKey{k}, before)
		if err != nil {
			return nil, err
		}
		st := &states[0]
		switch {
		case st.changed:
			continue
		case !st.there:
			return nil, nil
		case st.queued:
			return nil, &keyInUse{st.holder.ID, p.id}
		case st.holder.Until > 0 && st.holder.ID != p.id:
			now, err := s.Learn(ctx)
			if err != nil {
				return nil, err
			}
			if now.Judge(st.holder.Until) != serviceclock.Reached {
				return nil, &keyInUse{st.holder.ID, p.id}
			}
		}
		return st, nil
	}
}

// lookUpKey is resolveKey before a put: it need not find h.
func (q *Queue) lookUpKey(ctx context.Context, s *core.Session, p *newItem, before []backend.Op) (*keyState, error) {
	k := p.key.ItemKey
	_, err := s.Backend().Exists(ctx, k.In(q.keys)+"/"+k.HolderName(), nil)
	switch {
	case errs.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, err
	}
	return q.resolveKey(ctx, s, p, before)
}

// lookUpOnly returns a keyInUse if the key of the only item of batch is in use. Of several items none has a key.
func (q *Queue) lookUpOnly(ctx context.Context, s *core.Session, batch []newItem) error {
	if len(batch) != 1 || batch[0].key.Hash == "" {
		return nil
	}
	_, err := q.lookUpKey(ctx, s, &batch[0], nil)
	return err
}

// On average, one of collectEvery puts with KeyFor looks for keys whose time has passed.
const collectEvery = 32

// collectSometimes begins to collect the keys of a directory, in the background, unless that is under way.
func (q *Queue) collectSometimes(dir string) {
	if q.c.Random("collect")%collectEvery > 0 || !q.collecting.CompareAndSwap(false, true) {
		return
	}
	if !q.c.GoWork(func() {
		defer q.collecting.Store(false)
		ctx := context.Background() // ends with the session, at the latest when the client closes
		s, err := q.c.Live(ctx)
		if err == nil {
			q.collect(ctx, s, dir) // if it fails, the next one collects
		}
	}) {
		q.collecting.Store(false)
	}
}

// collect deletes the nodes of keys of a directory whose time has passed and whose items are gone, see K6.
func (q *Queue) collect(ctx context.Context, s *core.Session, dir string) error {
	names, _, err := s.Backend().Children(ctx, dir, nil)
	if err != nil {
		return err
	}
	type passed struct {
		layout.ItemKey
		id  string
		ops []backend.Op
	}
	var all []*passed
	now := s.Clock().Now()
	for _, name := range names {
		if id, k, ok := layout.ParseUntil(name); ok && now.Judge(k.Until) == serviceclock.Reached {
			all = append(all, &passed{ItemKey: k, id: id, ops: []backend.Op{backend.Delete(dir+"/"+name, backend.AnyVersion)}})
		}
	}
	if most := mostAtOnce(s, maxBatch, 2, 1, 2*(len(dir)+300)); len(all) > most {
		// From anywhere: the items of any of these keys can stay in the queue for long.
		first := q.c.Random("collect from") % uint64(len(all))
		all = slices.Concat(all[first:], all[:first])[:most]
	}
	keys := make([]layout.ItemKey, len(all))
	for i, p := range all {
		keys[i] = p.ItemKey
	}
	states, err := q.readKeys(ctx, s, keys, nil)
	if err != nil {
		return err
	}
	for i, p := range all {
		switch st := &states[i]; {
		case !st.there: // an outsider has deleted h; a Redrive can make it again
			p.ops = append(p.ops, backend.Absent(dir+"/"+p.HolderName()))
		case st.holder.ID != p.id || st.holder.Until != p.Until: // another item has the key
			if st.queued { // as long as k is there, no Redrive can have made u again
				p.ops = append(p.ops, backend.Check(q.tagAt(st, p.Hash), backend.AnyVersion))
			} else {
				p.ops = nil
			}
		case st.changed, st.queued:
			p.ops = nil
		default:
			p.ops = append(p.ops, backend.Delete(dir+"/"+p.HolderName(), st.version))
		}
	}
	for {
		var ops []backend.Op
		var owner []*passed
		for _, p := range all {
			for _, op := range p.ops {
				ops, owner = append(ops, op), append(owner, p)
			}
		}
		if len(ops) == 0 {
			return nil
		}
		_, err := s.Backend().Commit(ctx, ops...)
		i := errs.Blamed(err)
		if i < 0 {
			return err
		}
		owner[i].ops = nil
	}
}

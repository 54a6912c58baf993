package queue

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/internal/core"
	"github.com/go-coord/coord/internal/errs"
	"github.com/go-coord/coord/internal/layout"
	"github.com/go-coord/coord/internal/nodepath"
	"github.com/go-coord/coord/internal/parallel"
)

// This file has the options of single items. The rules are O1 to O4 in rules.go.

// PutOptions is coord.PutOptions.
type PutOptions struct {
	MaxAttempts int
	Key         string
	KeyFor      time.Duration
}

// check refuses options that no client may put.
func (o PutOptions) check() error {
	if o.MaxAttempts < 0 {
		return fmt.Errorf("%w: MaxAttempts %d of an item is negative", backend.ErrInvalid, o.MaxAttempts)
	}
	return checkKey(o.Key, o.KeyFor)
}

// node returns the data of the node with the options of the item, or nil if it has none.
func (o PutOptions) node() []byte { return layout.ItemOptions{MaxAttempts: o.MaxAttempts}.Encode() }

func (o PutOptions) newKey() (k newKey) {
	if o.Key != "" {
		k.Hash, k.keep = layout.HashKey(o.Key), o.KeyFor
	}
	return k
}

// withOptions appends the operations that create the nodes with the options of items.
func withOptions(ops []backend.Op, bucket string, batch []newItem) []backend.Op {
	for _, p := range batch {
		if p.options != nil {
			ops = append(ops, backend.Create(bucket+"/"+layout.OptionsPrefix+p.id, p.options, backend.Persistent))
		}
	}
	return ops
}

// withTrace appends the operation that creates the node with the trace context of an item.
func withTrace(ops []backend.Op, bucket string, p *newItem) []backend.Op {
	if p.trace == "" {
		return ops
	}
	return append(ops, backend.Create(bucket+"/"+layout.TraceName(p.id, p.trace), nil, backend.Persistent))
}

// traceOf returns the traceparent of an item that is put with ctx, or "".
func (q *Queue) traceOf(ctx context.Context) (traceparent string) {
	if q.traceParent == nil {
		return ""
	}
	err := q.c.Call("TraceParent", []any{"path", q.path.Full()}, func() error {
		traceparent = q.traceParent(ctx)
		return nil
	})
	if err != nil || !layout.IsTraceParent(traceparent) {
		return ""
	}
	return traceparent
}

// withoutOptions returns batch without the options or the trace context whose node is at path.
func withoutOptions(batch []newItem, path string) []newItem {
	rest := slices.Clone(batch)
	for i := range rest {
		if nodepath.Base(path) == layout.OptionsPrefix+rest[i].id {
			rest[i].options = nil
		}
		if rest[i].trace != "" && nodepath.Base(path) == layout.TraceName(rest[i].id, rest[i].trace) {
			rest[i].trace = ""
		}
	}
	return rest
}

// itemOptions are the options of an item, as they were read.
type itemOptions struct {
	layout.ItemOptions
	data []byte // of the node, if it is valid
}

// optionsOf returns the options from the read of their node. One that is gone, or that an outsider has
// overwritten, has none.
func optionsOf(r backend.ReadResult) (itemOptions, error) {
	switch {
	case errs.IsNotFound(r.Err):
		return itemOptions{}, nil
	case r.Err != nil:
		return itemOptions{}, r.Err
	}
	o, ok := layout.ParseItemOptions(r.Data)
	if !ok {
		return itemOptions{}, nil
	}
	return itemOptions{o, r.Data}, nil
}

// readRecord is readAttempts, and reads the options of the item beside it, if the list has shown some.
func readRecord(ctx context.Context, s *core.Session, e *layout.QueueEntry) (r record, o itemOptions, err error) {
	if !e.Options {
		r, err = readAttempts(ctx, s, e)
		return r, o, err
	}
	var failed error
	parallel.Do(2, func(i int) {
		if i == 0 {
			r, err = readAttempts(ctx, s, e)
			return
		}
		var read backend.ReadResult
		read.Data, _, read.Err = s.Backend().Get(ctx, e.OptionsAt(), nil)
		o, failed = optionsOf(read)
	})
	if err == nil {
		err = failed
	}
	return r, o, err
}

// mostAttempts returns how often an item with these options may be taken; 0: no limit.
func (q *Queue) mostAttempts(o itemOptions) int {
	if o.MaxAttempts > 0 {
		return o.MaxAttempts
	}
	return q.maxAttempts
}

// isUsedUp reports whether an item with these options that was taken n times goes to the dead letters.
func (q *Queue) isUsedUp(o itemOptions, n int) bool {
	most := q.mostAttempts(o)
	return most > 0 && n >= most && q.dead != nil
}

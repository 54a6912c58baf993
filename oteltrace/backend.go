package oteltrace

import (
	"context"
	"errors"
	"time"

	"github.com/go-coord/coord/backend"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/metric"
)

// Backend returns b with the histogram coord.backend.duration around every call that goes to the
// service:
//
//	c, err := coord.Open(ctx, oteltrace.Backend(b, nil), &coord.Options{Trace: oteltrace.New(nil)})
//
// The attribute coord.op is that of backend.Error: "open", "get", "exists", "children", "arm",
// "watch", "read", "sync", or "commit" for every Commit. The attribute coord.outcome is
//
//   - ok: the service did what it was asked for;
//   - refused: the service answered that the tree is not in the state that the call needs: a
//     missing node, another version. Recipes ask so that this happens, so it is no failure;
//   - canceled: the context of the call ended first;
//   - lost: the session is over, or was closed;
//   - uncertain: the reply to a Commit was lost, for whatever reason;
//   - failed: everything else: no permission, too large, credentials refused.
//
// A duration is that which the caller waits. It includes the time without contact, since a call
// waits for the next connection as long as its session lives. The duration of open includes the
// wait for a server.
//
// The sessions of b keep their features, limits, watches and errors. A call costs two readings of
// the clock and one Record. Of the options only MeterProvider counts.
func Backend(b backend.Backend, o *Options) backend.Backend {
	opts := o.orDefaults()
	h, err := opts.MeterProvider.Meter(Scope).Float64Histogram("coord.backend.duration", metric.WithUnit("s"),
		metric.WithDescription("Of calls to the service, as their callers wait for them."),
		metric.WithExplicitBucketBoundaries(buckets...))
	if err != nil {
		otel.Handle(err)
	}
	m := &calls{duration: h}
	for op := range m.attrs {
		for oc := range m.attrs[op] {
			m.attrs[op][oc] = []metric.RecordOption{
				metric.WithAttributes(keyOp.String(ops[op]), keyOutcome.String(outcomes[oc])),
			}
		}
	}
	return &measured{b, m}
}

type op int

const (
	opOpen op = iota
	opGet
	opExists
	opChildren
	opArm
	opWatch
	opRead
	opSync
	opCommit
)

var ops = [...]string{
	opOpen: "open", opGet: "get", opExists: "exists", opChildren: "children", opArm: "arm",
	opWatch: "watch", opRead: "read", opSync: "sync", opCommit: "commit",
}

type outcome int

const (
	callOK outcome = iota
	callRefused
	callCanceled
	callLost
	callUncertain
	callFailed
)

var outcomes = [...]string{
	callOK: "ok", callRefused: "refused", callCanceled: "canceled", callLost: "lost",
	callUncertain: "uncertain", callFailed: "failed",
}

// refusals are the errors with which a service describes its tree.
var refusals = [...]error{
	backend.ErrNotFound, backend.ErrExists, backend.ErrBadVersion, backend.ErrNotEmpty, backend.ErrNoChildren,
}

func outcomeOf(err error) outcome {
	switch {
	case err == nil:
		return callOK
	case backend.IsUncertain(err): // matches the reason too
		return callUncertain
	case canceled(err): // matches the cause of the context too
		return callCanceled
	case errors.Is(err, backend.ErrSessionLost), errors.Is(err, backend.ErrClosed):
		return callLost
	}
	for _, r := range refusals {
		if errors.Is(err, r) {
			return callRefused
		}
	}
	return callFailed
}

// calls is the histogram, with the attributes of each kind of call made beforehand.
type calls struct {
	duration metric.Float64Histogram
	attrs    [len(ops)][len(outcomes)][]metric.RecordOption
}

func (m *calls) record(ctx context.Context, op op, began time.Time, err error) {
	m.duration.Record(ctx, time.Since(began).Seconds(), m.attrs[op][outcomeOf(err)]...)
}

type measured struct {
	below backend.Backend
	calls *calls
}

func (b *measured) Open(ctx context.Context) (backend.Session, error) {
	began := time.Now()
	s, err := b.below.Open(ctx)
	b.calls.record(ctx, opOpen, began, err)
	if err != nil {
		return nil, err
	}
	return &measuredSession{s, b.calls}, nil
}

// measuredSession measures the calls that go to the service; the other methods are those of the
// session.
type measuredSession struct {
	backend.Session
	calls *calls
}

// TellPauses passes on what the session notices of pauses of the process.
func (s *measuredSession) TellPauses(f func(late time.Duration, asleep bool)) {
	if p, ok := s.Session.(interface {
		TellPauses(func(time.Duration, bool))
	}); ok {
		p.TellPauses(f)
	}
}

func (s *measuredSession) Get(ctx context.Context, path string, w *backend.Watch) ([]byte, backend.Stat, error) {
	began := time.Now()
	data, stat, err := s.Session.Get(ctx, path, w)
	s.calls.record(ctx, opGet, began, err)
	return data, stat, err
}

func (s *measuredSession) Exists(ctx context.Context, path string, w *backend.Watch) (backend.Stat, error) {
	began := time.Now()
	stat, err := s.Session.Exists(ctx, path, w)
	s.calls.record(ctx, opExists, began, err)
	return stat, err
}

func (s *measuredSession) Children(ctx context.Context, path string, w *backend.Watch) ([]string, backend.Stat, error) {
	began := time.Now()
	names, stat, err := s.Session.Children(ctx, path, w)
	s.calls.record(ctx, opChildren, began, err)
	return names, stat, err
}

func (s *measuredSession) Arm(ctx context.Context, since int64, targets ...backend.Target) error {
	began := time.Now()
	err := s.Session.Arm(ctx, since, targets...)
	s.calls.record(ctx, opArm, began, err)
	return err
}

func (s *measuredSession) WatchTree(ctx context.Context, path string, w *backend.TreeWatch) error {
	began := time.Now()
	err := s.Session.WatchTree(ctx, path, w)
	s.calls.record(ctx, opWatch, began, err)
	return err
}

func (s *measuredSession) ReadMany(ctx context.Context, reads ...backend.Read) ([]backend.ReadResult, error) {
	began := time.Now()
	results, err := s.Session.ReadMany(ctx, reads...)
	s.calls.record(ctx, opRead, began, err)
	return results, err
}

func (s *measuredSession) Sync(ctx context.Context, path string) error {
	began := time.Now()
	err := s.Session.Sync(ctx, path)
	s.calls.record(ctx, opSync, began, err)
	return err
}

func (s *measuredSession) Commit(ctx context.Context, ops ...backend.Op) ([]backend.Result, error) {
	began := time.Now()
	results, err := s.Session.Commit(ctx, ops...)
	s.calls.record(ctx, opCommit, began, err)
	return results, err
}

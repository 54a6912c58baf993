package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/etcd"
)

// A server takes 2 MiB in one request. What a call asks of nodes with long paths is more, also where
// their number alone would fit.
func TestReadsOfLongPathsAreSplit(t *testing.T) {
	s := newService(t, shared.get(t), etcd.Options{})
	a := open(t, s.link("a"))
	path := func(i int) string { return fmt.Sprintf("/%s-%d", strings.Repeat("x", 12_000), i) }
	reads := make([]backend.Read, 200)
	for i := range reads {
		reads[i] = backend.Read{Path: path(i), Children: i%2 == 0}
	}
	results, err := a.ReadMany(t.Context(), reads...)
	if err != nil {
		t.Fatalf("reads: %.100v", err)
	}
	for i, r := range results {
		if !errors.Is(r.Err, backend.ErrNotFound) {
			t.Errorf("read %d: %.100v", i, r.Err)
		}
	}
	targets := make([]backend.Target, 80)
	for i := range targets {
		targets[i] = backend.Target{Path: path(i), Children: true, Watch: backend.NewWatch()}
	}
	if err := a.Arm(t.Context(), 1, targets...); err != nil {
		t.Fatalf("arm: %.100v", err)
	}
	for i, target := range targets {
		if target.Watch.Kind() != backend.LookAgain {
			t.Errorf("the watch of missing node %d has kind %q", i, target.Watch.Kind())
		}
	}
}

// What a session asks of the children of one node has the path up to seven times.
func TestArmForTheChildrenOfAVeryLongPath(t *testing.T) {
	s := newService(t, shared.get(t), etcd.Options{})
	a := open(t, s.link("a"))
	for _, c := range []struct {
		size  int
		since int64
		want  error
	}{
		{280_000, 1, nil},
		{500_000, math.MaxInt64, nil},
		{500_000, 0, nil}, // fires in any case
		{500_000, 1, backend.ErrTooLarge},
	} {
		target := backend.Target{Path: "/" + strings.Repeat("x", c.size), Children: true, Watch: backend.NewWatch()}
		if err := a.Arm(t.Context(), c.since, target); !errors.Is(err, c.want) {
			t.Errorf("arm of a path of %d bytes since %d: %.100v, want %v", c.size, c.since, err, c.want)
		} else if err == nil && target.Watch.Kind() != backend.LookAgain {
			t.Errorf("the watch of a missing node has kind %q", target.Watch.Kind())
		}
	}
}

// While Arm asks for its nodes in several requests, other watches of the session fire.
func TestArmReturnsWhileOtherWatchesFire(t *testing.T) {
	s := newService(t, shared.get(t), etcd.Options{})
	l := s.link("a")
	a, b := open(t, l), open(t, s.link("b"))
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	var targets []backend.Target
	for i := range 80 {
		path := commit(t, b, backend.Create(fmt.Sprint("/n", i), nil, backend.Persistent))[0].Path
		targets = append(targets, backend.Target{Path: path, Children: true, Watch: backend.NewWatch()})
	}
	since := commit(t, b, backend.Create("/busy", nil, backend.Persistent))[0].Czxid
	tree := backend.NewTreeWatch(0)
	if err := a.WatchTree(t.Context(), "/busy", tree); err != nil {
		t.Fatal(err)
	}
	requests := 0
	l.always(func(method string, body []byte) bool {
		var r pb.TxnRequest
		return method == "/etcdserverpb.KV/Txn" && r.Unmarshal(body) == nil && len(r.Success) > 50
	}, func() {
		if requests++; requests > 20 {
			cancel(errors.New("20 requests have been sent"))
			return
		}
		_, err := b.Commit(t.Context(), backend.SetData("/busy", nil, backend.AnyVersion))
		if err == nil && requests == 2 {
			_, err = b.Commit(t.Context(), backend.Create("/n0/child", nil, backend.Persistent))
		}
		if err != nil {
			t.Errorf("write: %v", err)
		}
		select {
		case <-tree.Ready():
			tree.Take()
		case <-ctx.Done():
		}
	})
	if err := a.Arm(ctx, since, targets...); err != nil {
		t.Fatal(err)
	}
	if kind := targets[0].Watch.Kind(); kind != backend.LookAgain {
		t.Errorf("a child was created while Arm read other nodes, and the watch has kind %q", kind)
	}
	for _, target := range targets[1:] {
		if kind := target.Watch.Kind(); kind != 0 {
			t.Errorf("the watch of %s has kind %q", target.Path, kind)
		}
	}
}

// endedLate is a context that has ended, and says so from some moment on.
type endedLate struct {
	context.Context
	ended func() bool
}

func (c *endedLate) Done() <-chan struct{} { return nil }

func (c *endedLate) Err() error {
	if c.ended() {
		return c.Context.Err()
	}
	return nil
}

// The context of Exists ends when the watch of a missing node is armed. Its cause is the error of a
// missing node.
func TestExistsStopsItsWatchWhenItsContextEnds(t *testing.T) {
	s := newService(t, shared.get(t), etcd.Options{})
	l := s.link("a")
	a, b := open(t, l), open(t, s.link("b"))
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(backend.ErrNotFound)
	const txn = "/etcdserverpb.KV/Txn"
	before := l.requested(txn)
	w := backend.NewWatch()
	_, err := a.Exists(&endedLate{ctx, func() bool { return l.requested(txn) > before }}, "/n", w)
	if !errors.Is(err, context.Canceled) || !errors.Is(err, backend.ErrNotFound) {
		t.Fatalf("exists: %v, want %v and %v", err, context.Canceled, backend.ErrNotFound)
	}
	commit(t, b, backend.Create("/n", nil, backend.Persistent))
	if err := a.Sync(t.Context(), "/"); err != nil {
		t.Fatal(err)
	}
	if kind := w.Kind(); kind != 0 {
		t.Errorf("the watch of a call that has failed has kind %q", kind)
	}
}

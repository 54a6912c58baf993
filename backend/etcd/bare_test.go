package etcd_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/etcd"
)

// fill fills the database of a small service with items, and returns the queue's ids.
func fill(t *testing.T, c *coord.Client) (ids []string) {
	t.Helper()
	q := coord.NewQueue(c, "/q", &coord.QueueOptions[[]byte]{Codec: coord.Bytes()})
	for size := 100_000; size > 0; size /= 10 {
		for {
			id, err := q.Put(t.Context(), make([]byte, size))
			if errors.Is(err, coord.ErrNoSpace) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			ids = append(ids, id)
		}
	}
	return ids
}

// A new session without space deletes and reads, writes nothing, and is renewed; with space again Open gives an
// ordinary one. Without the option there is no session.
func TestEtcd_OpenWithoutSpace(t *testing.T) {
	t.Parallel()
	const timeout = 6 * time.Second
	s := smallService(t)
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	writer, err := coord.Open(ctx, s.link("a"), nil)
	must(err)
	for _, path := range []string{"/v", "/w"} {
		_, err = coord.NewValue[string](writer, path, nil).Set(ctx, "x")
		must(err)
	}
	must(coord.NewBarrier(writer, "/bar", nil).Set(ctx))
	control, err := etcd.New([]string{s.server}, &etcd.Options{SessionTimeout: timeout, Prefix: s.opts.Prefix}).Open(ctx)
	must(err)
	defer control.Close()
	ids := fill(t, writer)
	must(writer.Close())

	open := func(bare bool) (backend.Session, error) {
		b := etcd.New([]string{s.server}, &etcd.Options{SessionTimeout: timeout, Prefix: s.opts.Prefix, OpenWithoutSpace: bare})
		short, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		if bare {
			short = ctx
		}
		return b.Open(short)
	}
	if _, err := open(false); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Open without the option: %v", err)
	}
	rev := s.revision(t)
	bare, err := open(true)
	must(err)
	defer bare.Close()
	c, err := coord.Open(ctx, etcd.New([]string{s.server}, &etcd.Options{SessionTimeout: 20 * time.Second, Prefix: s.opts.Prefix, OpenWithoutSpace: true}), nil)
	must(err)
	defer c.Close()
	if now := s.revision(t); now != rev {
		t.Errorf("opening sessions has written: revision %d after %d", now, rev)
	}
	q := coord.NewQueue(c, "/q", &coord.QueueOptions[[]byte]{Codec: coord.Bytes()})
	v := coord.NewValue[string](c, "/v", nil)
	got, err := v.Get(ctx)
	must(err)
	for _, call := range []struct {
		what string
		f    func() error
	}{
		{"Remove", func() error { return q.Remove(ctx, ids[0]) }},
		{"Remove of a barrier", func() error { return coord.NewBarrier(c, "/bar", nil).Remove(ctx) }},
		{"Delete of a value", func() error { return v.Delete(ctx, got) }},
		{"Delete in a Txn", func() error { _, err := coord.NewTxn(c).Delete("/w").Commit(ctx); return err }},
		{"Purge", func() error {
			n, err := q.Purge(ctx)
			if n < len(ids)-1 {
				t.Errorf("Purge has removed %d items of %d", n, len(ids))
			}
			return err
		}},
	} {
		if err := call.f(); err != nil {
			t.Errorf("%s without space: %v", call.what, err)
		}
	}
	for _, path := range []string{"/v", "/w", "/bar"} {
		if _, err := bare.Exists(ctx, path, nil); !errors.Is(err, backend.ErrNotFound) {
			t.Errorf("%s: %v", path, err)
		}
	}
	refused := func(when string) {
		t.Helper()
		before := s.revision(t)
		for _, op := range []backend.Op{
			backend.Create("/new", nil, backend.Persistent), backend.Create("/new", nil, backend.Ephemeral),
			backend.Create("/new-", nil, backend.EphemeralSequential), backend.SetData("/q", []byte("x"), backend.AnyVersion),
		} {
			if _, err := bare.Commit(ctx, op); !errors.Is(err, backend.ErrNoSpace) || backend.IsUncertain(err) {
				t.Errorf("%v of %s %s: %v", op.Kind, op.Path, when, err)
			}
		}
		if now := s.revision(t); now != before {
			t.Errorf("refused commits have written %s", when)
		}
	}
	refused("without space")
	if _, err := coord.NewMutex(c, "/m", nil).TryLock(ctx); !errors.Is(err, coord.ErrNoSpace) {
		t.Errorf("a lock: %v", err)
	}
	time.Sleep(timeout + time.Second)
	if bare.Err() != nil && control.Err() == nil {
		t.Errorf("the session has ended, and an ordinary one has not: %v", bare.Err())
	}
	s.enlarge(t)
	refused("with space again")
	must(bare.Close())
	with, err := open(true)
	must(err)
	defer with.Close()
	if _, err := with.Commit(ctx, backend.Create("/new", nil, backend.Ephemeral)); err != nil {
		t.Errorf("an ordinary session: %v", err)
	}
}

// deletes reports whether a request is a transaction that deletes a key.
func deletes(method string, body []byte) bool {
	var r pb.TxnRequest
	if method != "/etcdserverpb.KV/Txn" || r.Unmarshal(body) != nil {
		return false
	}
	return slices.ContainsFunc(r.Success, func(op *pb.RequestOp) bool { return op.GetRequestDeleteRange() != nil })
}

// A commit without a reply ends a session without a lease, since no epoch can settle it. If it arrives late it deletes no node
// that has followed at the path.
func TestEtcd_WithoutSpaceALateDeletionSparesALaterNode(t *testing.T) {
	t.Parallel()
	s := smallService(t)
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	writer, err := coord.Open(ctx, s.link("a"), nil)
	must(err)
	defer writer.Close()
	v := coord.NewValue[string](writer, "/v", nil)
	_, err = v.Set(ctx, "x")
	must(err)
	fill(t, writer)
	s.opts.OpenWithoutSpace = true
	l := s.link("b")
	bare, err := l.Open(ctx)
	must(err)
	defer bare.Close()
	held := l.holdNext(deletes)
	short, cancel := context.WithCancel(ctx)
	failed := make(chan error, 1)
	go func() {
		_, err := bare.Commit(short, backend.Delete("/v", backend.AnyVersion))
		failed <- err
	}()
	<-held.hit
	cancel()
	if err := <-failed; !backend.IsUncertain(err) {
		t.Errorf("the deletion: %v", err)
	}
	if _, err := bare.Exists(ctx, "/v", nil); !errors.Is(err, backend.ErrSessionLost) {
		t.Errorf("the next call: %v", err)
	}
	got, err := v.Get(ctx)
	must(err)
	must(v.Delete(ctx, got))
	_, err = coord.NewQueue(writer, "/q", &coord.QueueOptions[[]byte]{Codec: coord.Bytes()}).Purge(ctx)
	must(err)
	s.enlarge(t)
	_, err = v.Set(ctx, "later")
	must(err)
	close(held.release)
	<-held.done
	if got, err := v.Get(ctx); err != nil || got.Value != "later" {
		t.Errorf("the later value: %v, %v", got, err)
	}
}

// The server ends a connection in good order while a deletion is under way, and its answer takes longer than the time
// between two renewals.
func TestEtcd_WithoutSpaceADeletionAtTheEndOfAConnectionIsAnswered(t *testing.T) {
	t.Parallel()
	s := smallService(t)
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	writer, err := coord.Open(ctx, s.link("a"), nil)
	must(err)
	defer writer.Close()
	_, err = coord.NewValue[string](writer, "/v", nil).Set(ctx, "x")
	must(err)
	fill(t, writer)
	f := newFront(t, s.server, grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionAge: 2 * time.Second, MaxConnectionAgeGrace: time.Minute}))
	hit, release := make(chan struct{}), make(chan struct{})
	f.delay = func(method string, body []byte) {
		if deletes(method, body) {
			close(hit)
			<-release
		}
	}
	bare, err := etcd.New([]string{f.addr}, &etcd.Options{SessionTimeout: time.Minute, Prefix: s.opts.Prefix, OpenWithoutSpace: true}).Open(ctx)
	must(err)
	defer bare.Close()
	_, suspended := bare.Status()
	result := make(chan error, 1)
	go func() {
		_, err := bare.Commit(context.Background(), backend.Delete("/v", backend.AnyVersion))
		result <- err
	}()
	<-hit
	// Each connection lasts for nearly two seconds, and a renewal is due after seven and a half. The session waits at
	// least twenty seconds for the answer, since a busy machine makes the connections later.
	for f.conns.Load() < 6 {
		time.Sleep(time.Millisecond)
	}
	close(release)
	must(<-result)
	select {
	case <-suspended:
		t.Error("the session was suspended")
	default:
	}
}

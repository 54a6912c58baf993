package etcd_test

import (
	"context"
	"errors"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/embed"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend/etcd"
)

// smallService returns a service on a server with a quota of 6 MB.
func smallService(t *testing.T) *service {
	t.Helper()
	if binary != "" {
		t.Skip("with the embedded server only")
	}
	srv, err := startEmbedded(t.TempDir(), "127.0.0.1:0", func(cfg *embed.Config) { cfg.QuotaBackendBytes = 6 << 20 })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(srv.stop)
	return newService(t, srv.addr, etcd.Options{SessionTimeout: 20 * time.Second})
}

// enlarge compacts and defragments the database, and ends the alarm.
func (s *service) enlarge(t *testing.T) {
	t.Helper()
	ctx := t.Context()
	if _, err := pb.NewKVClient(s.admin).Compact(ctx, &pb.CompactionRequest{Revision: s.revision(t), Physical: true}); err != nil {
		t.Fatal(err)
	}
	m := pb.NewMaintenanceClient(s.admin)
	if _, err := m.Defragment(ctx, &pb.DefragmentRequest{}); err != nil {
		t.Fatal(err)
	}
	alarms, err := m.Alarm(ctx, &pb.AlarmRequest{Action: pb.AlarmRequest_GET})
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range alarms.Alarms {
		if _, err := m.Alarm(ctx, &pb.AlarmRequest{Action: pb.AlarmRequest_DEACTIVATE, MemberID: a.MemberID, Alarm: a.Alarm}); err != nil {
			t.Fatal(err)
		}
	}
}

// A queue without consumers fills the database. Deletions still succeed, a consumer waits, and the deletions make
// room for it.
func TestEtcd_WithoutSpaceDeletionsGoOn(t *testing.T) {
	t.Parallel()
	s := smallService(t)
	c, err := coord.Open(t.Context(), s.link("a"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	h, err := coord.NewMutex(c, "/m", nil).Lock(ctx)
	must(err)
	v := coord.NewValue[string](c, "/v", nil)
	version, err := v.Set(ctx, "x")
	must(err)
	_, err = coord.NewValue[string](c, "/w", nil).Set(ctx, "x")
	must(err)
	bar := coord.NewBarrier(c, "/bar", nil)
	must(bar.Set(ctx))
	other := coord.NewQueue(c, "/other", &coord.QueueOptions[[]byte]{Codec: coord.Bytes()})
	worked := make(chan string, 16)
	ended := make(chan error, 1)
	working, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		ended <- other.Work(working, 1, func(_ context.Context, it *coord.Item[[]byte]) error { worked <- string(it.Value); return nil })
	}()
	_, err = other.Put(ctx, []byte("before"))
	must(err)
	<-worked
	q := coord.NewQueue(c, "/q", &coord.QueueOptions[[]byte]{Codec: coord.Bytes()})
	for range 6 {
		_, err := q.Put(ctx, []byte("small"))
		must(err)
	}
	item, err := q.Take(ctx)
	must(err)
	var ids []string
	for size := 100_000; size > 0; size /= 10 {
		for {
			id, err := q.Put(ctx, make([]byte, size))
			if err != nil {
				if !errors.Is(err, coord.ErrNoSpace) {
					t.Fatalf("a Put without space: %v", err)
				}
				break
			}
			ids = append(ids, id)
		}
	}
	if _, err := coord.NewMutex(c, "/new", nil).Lock(ctx); !errors.Is(err, coord.ErrNoSpace) {
		t.Errorf("a lock without space: %v", err)
	}
	for _, c := range []struct {
		what string
		f    func() error
	}{
		{"Ack", item.Ack},
		{"Pop", func() error { _, err := q.Pop(ctx); return err }},
		{"Remove", func() error { return q.Remove(ctx, ids[0]) }},
		{"Release", h.Release},
		{"Remove of a barrier", func() error { return bar.Remove(ctx) }},
		{"Delete of a value", func() error { return v.Delete(ctx, version) }},
		{"Delete in a Txn", func() error { _, err := coord.NewTxn(c).Delete("/w").Commit(ctx); return err }},
		{"Purge", func() error {
			n, err := q.Purge(ctx)
			if err == nil && n < len(ids) {
				t.Errorf("Purge has removed %d items", n)
			}
			return err
		}},
	} {
		if err := c.f(); err != nil {
			t.Errorf("%s without space: %v", c.what, err)
		}
	}
	s.enlarge(t)
	_, err = other.Put(ctx, []byte("after"))
	must(err)
	select {
	case got := <-worked:
		if got != "after" {
			t.Errorf("the consumer got %q", got)
		}
	case err := <-ended:
		t.Fatalf("the consumer has ended: %v", err)
	}
}

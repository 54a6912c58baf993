//go:build linux

package etcd_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/etcd"
	"github.com/go-coord/coord/internal/ensemble"
	"github.com/go-coord/coord/internal/zklog"
)

// Ensembles are clusters for the tests with several servers.
var Ensembles = &ensemble.Service{
	Start: func(t *testing.T) ensemble.Ensemble { return record(t, startCluster(t, nil)) },
	StartFragile: func(t *testing.T) ensemble.FragileEnsemble {
		f := new(fragile)
		var dirs []string
		if f.disk, f.noDisk = mountDisk(t); binary != "" {
			f.noDisk = errors.New("with the embedded server only")
		}
		if f.noDisk == nil {
			dirs = []string{f.disk.dir, "", ""}
		}
		f.recorded = record(t, startClusterOn(t, dirs, true))
		return f
	},
	Backend: func(servers []string, timeout, margin time.Duration, without backend.Features) backend.Backend {
		return etcd.New(servers, &etcd.Options{SessionTimeout: timeout, LossMargin: margin, Prefix: recordedPrefix, Without: without})
	},
	One: func(t *testing.T) string {
		s, err := start(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.stop)
		return s.addr
	},
	Line: func(server string) (ensemble.Line, error) { return newLine(server) },
	Expire: func(ctx context.Context, server string, session int64) error {
		cc, err := dial(server)
		if err != nil {
			return err
		}
		defer cc.Close()
		_, err = pb.NewLeaseClient(cc).LeaseRevoke(ctx, &pb.LeaseRevokeRequest{ID: session})
		return err
	},
}

const recordedPrefix = "recorded"

// record starts the record of a cluster.
func record(t *testing.T, c *cluster) *recorded {
	e := &recorded{cluster: c, moved: make(chan struct{})}
	ctx, cancel := context.WithCancel(context.Background())
	e.wg.Go(func() { e.follow(ctx) })
	t.Cleanup(func() { cancel(); e.wg.Wait() })
	return e
}

// fragile is a cluster with a network that can be parted, and a disk that can be full, which is that
// of its first member.
type fragile struct {
	*recorded
	disk   *disk
	noDisk error
}

func (f *fragile) CutOff(s ensemble.Server, on bool) { f.peers.cutOff(s.(*member), on) }

func (f *fragile) Disk() (ensemble.Server, error) { return f.members[0], f.noDisk }

// FillDisk writes until the member notices that its disk is full, and ends.
func (f *fragile) FillDisk(ctx context.Context) error {
	if err := f.disk.limit(true); err != nil {
		return err
	}
	ballast := &pb.PutRequest{Key: []byte("ballast"), Value: make([]byte, 100_000)}
	for m := f.members[0]; m.running(); {
		err := f.callAt(ctx, 1, func(ctx context.Context, cc *grpc.ClientConn) error {
			_, err := pb.NewKVClient(cc).Put(ctx, ballast)
			return err
		})
		if ctx.Err() != nil {
			return fmt.Errorf("the member goes on without a disk: %w", cmp.Or(err, ctx.Err()))
		}
	}
	if said := f.members[0].lastWords(); !strings.Contains(said, "no space left on device") {
		return fmt.Errorf("the member has ended: %s", said)
	}
	return nil
}

func (f *fragile) EmptyDisk() error { return f.disk.limit(false) }

// recorded is a cluster whose history is recorded from a watcher of all keys of a tree.
type recorded struct {
	*cluster
	wg sync.WaitGroup

	mu    sync.Mutex
	txns  []zklog.Txn
	rev   int64 // up to which the record is complete
	err   error
	moved chan struct{} // closed and replaced when rev grows, or with err

	writes int // tries of Write; of its only caller
}

// follow records the history, from the first revision on, from whichever member serves.
func (e *recorded) follow(ctx context.Context) {
	for i := 0; ctx.Err() == nil; i++ {
		if err := e.followAt(ctx, e.members[i%len(e.members)].addr); err != nil {
			e.advance(nil, 0, err)
			return
		}
		select {
		case <-time.After(50 * time.Millisecond): // before the next member
		case <-ctx.Done():
		}
	}
}

// followAt returns nil when contact breaks. A member that answers nothing for a second, not even
// the request for a progress report, is given up.
func (e *recorded) followAt(ctx context.Context, addr string) error {
	cc, err := dial(addr, grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(1<<30)))
	if err != nil {
		return err
	}
	defer cc.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := pb.NewWatchClient(cc).Watch(ctx)
	if err != nil {
		return nil
	}
	e.mu.Lock()
	from := e.rev + 1
	e.mu.Unlock()
	err = stream.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: &pb.WatchCreateRequest{
		Key: []byte(recordedPrefix), RangeEnd: []byte(recordedPrefix + "\xff"), StartRevision: from, PrevKv: true,
	}}})
	if err != nil {
		return nil
	}
	silence := time.AfterFunc(time.Second, cancel)
	defer silence.Stop()
	asking := time.NewTicker(100 * time.Millisecond)
	defer asking.Stop()
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() {
		for {
			select {
			case <-asking.C:
			case <-ctx.Done():
				return
			}
			if stream.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_ProgressRequest{ProgressRequest: &pb.WatchProgressRequest{}}}) != nil {
				return
			}
		}
	})
	for {
		r, err := stream.Recv()
		switch {
		case err != nil:
			return nil
		case r.CompactRevision != 0:
			return fmt.Errorf("the history from revision %d is compacted up to %d", from, r.CompactRevision)
		case r.Canceled:
			return nil
		}
		silence.Reset(time.Second)
		if r.Created {
			continue
		}
		txns, err := txnsOf(r)
		if err != nil {
			return err
		}
		upTo := r.Header.Revision // a progress report
		if len(r.Events) > 0 {
			upTo = r.Events[len(r.Events)-1].Kv.ModRevision
		}
		e.advance(txns, upTo, nil)
	}
}

// txnsOf returns the transactions of a reply, which has all events of each. Their time is that
// of the reply.
func txnsOf(r *pb.WatchResponse) (txns []zklog.Txn, err error) {
	now := time.Now()
	for _, event := range r.Events {
		ops, owner, ended, err := etcd.OpsOf(recordedPrefix, event)
		if err != nil {
			return nil, err
		}
		if n := len(txns); n == 0 || txns[n-1].Zxid != event.Kv.ModRevision {
			txns = append(txns, zklog.Txn{Zxid: event.Kv.ModRevision, Type: zklog.Multi, Time: now})
		}
		x := &txns[len(txns)-1]
		x.Ops = append(x.Ops, ops...)
		if ended != 0 {
			x.Type = zklog.CloseSession
		}
		x.Session = cmp.Or(x.Session, owner, ended)
	}
	return txns, nil
}

func (e *recorded) advance(txns []zklog.Txn, upTo int64, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.txns = append(e.txns, txns...)
	if err != nil {
		e.err = err
	}
	if upTo <= e.rev && err == nil {
		return
	}
	e.rev = max(e.rev, upTo)
	close(e.moved)
	e.moved = make(chan struct{})
}

func (e *recorded) Log(ctx context.Context) ([]zklog.Txn, error) {
	var last int64
	for {
		_, rev, err := e.Write(ctx)
		if err == nil {
			last = rev
			break
		}
		if ctx.Err() != nil {
			return nil, err
		}
	}
	for {
		e.mu.Lock()
		txns, rev, err, moved := e.txns, e.rev, e.err, e.moved
		e.mu.Unlock()
		if err != nil || rev >= last {
			return txns, err
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return nil, fmt.Errorf("the record of revision %d: %w", last, ctx.Err())
		}
	}
}

// call makes a request to one member after the other until one answers.
func (c *cluster) call(ctx context.Context, do func(ctx context.Context, cc *grpc.ClientConn) error) error {
	for i := 0; ; i++ {
		err := c.callAt(ctx, i, do)
		if err == nil || ctx.Err() != nil {
			return err
		}
	}
}

func (c *cluster) callAt(ctx context.Context, i int, do func(ctx context.Context, cc *grpc.ClientConn) error) error {
	cc, err := dial(c.members[i%len(c.members)].addr)
	if err != nil {
		return err
	}
	defer cc.Close()
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	return do(ctx, cc)
}

func (e *recorded) Expire(ctx context.Context, session int64) error {
	return e.call(ctx, func(ctx context.Context, cc *grpc.ClientConn) error {
		_, err := pb.NewLeaseClient(cc).LeaseRevoke(ctx, &pb.LeaseRevokeRequest{ID: session})
		if status.Code(err) == codes.NotFound { // it has ended, or an earlier request was applied
			return nil
		}
		return err
	})
}

// Compact keeps what has not been recorded yet.
func (e *recorded) Compact(ctx context.Context) error {
	e.mu.Lock()
	rev := e.rev
	e.mu.Unlock()
	return e.call(ctx, func(ctx context.Context, cc *grpc.ClientConn) error {
		_, err := pb.NewKVClient(cc).Compact(ctx, &pb.CompactionRequest{Revision: rev, Physical: true})
		if status.Code(err) == codes.OutOfRange { // it is compacted already
			return nil
		}
		return err
	})
}

func (e *recorded) Write(ctx context.Context) (version int32, zxid int64, err error) {
	err = e.callAt(ctx, e.writes, func(ctx context.Context, cc *grpc.ClientConn) error {
		r, err := pb.NewKVClient(cc).Put(ctx, &pb.PutRequest{Key: []byte("control"), PrevKv: true})
		if err == nil {
			zxid = r.Header.Revision
			if r.PrevKv != nil {
				version = int32(r.PrevKv.Version)
			}
			version++
		}
		return err
	})
	if err != nil {
		e.writes++ // the next member, then
	}
	return version, zxid, err
}

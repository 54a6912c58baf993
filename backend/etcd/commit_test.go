package etcd_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/etcd/server/v3/embed"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/etcd"
)

// A session remembers the key of its sequential node. The node is deleted, and another client creates
// one of the same name, which has another key.
func TestTheDeletionOfANodeWithTheNameOfAnEphemeralSequentialOne(t *testing.T) {
	s := newService(t, shared.get(t), etcd.Options{})
	a, b := open(t, s.link("a")), open(t, s.link("b"))
	n := commit(t, a, backend.Create("/n-", nil, backend.EphemeralSequential))[0].Path
	commit(t, b, backend.Delete(n, backend.AnyVersion))
	commit(t, b, backend.Create(n, nil, backend.Persistent))
	commit(t, b, backend.Create(n+"/x", nil, backend.Persistent))
	if _, err := a.Commit(t.Context(), backend.Delete(n, backend.AnyVersion)); !errors.Is(err, backend.ErrNotEmpty) {
		t.Errorf("a deletion of a node with a child: %v", err)
	}
	commit(t, b, backend.Delete(n+"/x", backend.AnyVersion))
	commit(t, a, backend.Delete(n, backend.AnyVersion))
	if _, err := b.Exists(t.Context(), n, nil); !errors.Is(err, backend.ErrNotFound) {
		t.Errorf("after its deletion: %v", err)
	}
}

// A server that finds its quota exceeded only when it applies a transaction says so, and has
// applied it.
func TestACommitThatWasAppliedWithoutSpaceIsUncertain(t *testing.T) {
	s := newService(t, shared.get(t), etcd.Options{})
	l := s.link("a")
	a := open(t, l)
	commit(t, a, backend.Create("/n", []byte("before"), backend.Persistent))
	for _, op := range []backend.Op{
		backend.SetData("/n", []byte("after"), backend.AnyVersion),
		backend.Create("/m", nil, backend.Ephemeral),
		backend.Create("/s-", nil, backend.PersistentSequential),
	} {
		l.answerNext(rpctypes.ErrGRPCNoSpace)
		if _, err := a.Commit(t.Context(), op); !errors.Is(err, backend.ErrUncertain) {
			t.Errorf("%v: %v", op.Kind, err)
		}
	}
	if phase, _ := a.Status(); phase != backend.PhaseConnected {
		t.Errorf("%v after commits without space", phase)
	}
	if data, _, err := a.Get(t.Context(), "/n", nil); err != nil || string(data) != "after" {
		t.Errorf("the node holds %q, %v", data, err)
	}
}

// The database reaches its quota while many commits are under way. A commit whose error is definite
// was not applied; reads and deletions go on, and commits do so when there is space.
func TestADatabaseWithoutSpace(t *testing.T) {
	t.Parallel()
	if binary != "" {
		t.Skip("with the embedded server only")
	}
	srv, err := startEmbedded(t.TempDir(), "127.0.0.1:0", func(cfg *embed.Config) { cfg.QuotaBackendBytes = 4 << 20 })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(srv.stop)
	b := etcd.New([]string{srv.addr}, nil)
	a := open(t, b)
	commit(t, a, backend.Create("/full", nil, backend.Persistent))
	var wg sync.WaitGroup
	var definite, uncertain, wrong atomic.Int32
	for k := range 32 {
		wg.Go(func() {
			for n := 0; ; n++ {
				path := fmt.Sprintf("/n%d-%d", k, n)
				_, err := a.Commit(t.Context(), backend.Create(path, make([]byte, 20_000), backend.Persistent))
				if err == nil {
					continue
				}
				_, missing := a.Exists(t.Context(), path, nil)
				switch {
				case !strings.Contains(err.Error(), "space"):
					t.Errorf("%s: %v", path, err)
				case errors.Is(err, backend.ErrUncertain):
					uncertain.Add(1)
				case missing == nil:
					wrong.Add(1)
				case !errors.Is(missing, backend.ErrNotFound):
					t.Errorf("%s: %v", path, missing)
				default:
					definite.Add(1)
				}
				return
			}
		})
	}
	wg.Wait()
	t.Logf("figure: without space %d definite errors, %d uncertain", definite.Load(), uncertain.Load())
	if n := wrong.Load(); n > 0 {
		t.Errorf("%d commits were applied and have a definite error", n)
	}
	// Again, in turn: nothing else is under way, so nothing is uncertain.
	if _, err := a.Commit(t.Context(), backend.SetData("/full", []byte("x"), backend.AnyVersion)); err == nil || errors.Is(err, backend.ErrUncertain) {
		t.Errorf("a commit without space: %v", err)
	}
	if err := a.Sync(t.Context(), "/"); err != nil {
		t.Errorf("sync without space: %v", err)
	}
	commit(t, a, backend.Delete("/full", 0))
	if phase, _ := a.Status(); phase != backend.PhaseConnected {
		t.Errorf("%v without space", phase)
	}
}

// A server does not take the token of a connection any more. The commit was not run, so the session
// sends it on another connection, which has a new token.
func TestACommitWithAnOldTokenIsSentAgain(t *testing.T) {
	s := newService(t, shared.get(t), etcd.Options{})
	l := s.link("a")
	a := open(t, l)
	commit(t, a, backend.Create("/n", nil, backend.Persistent))
	for version, err := range []error{rpctypes.ErrGRPCInvalidAuthToken, rpctypes.ErrGRPCAuthOldRevision} {
		l.rejectNext(err)
		commit(t, a, backend.SetData("/n", nil, int32(version)))
	}
	// An overloaded server answers on the same connection.
	_, changed := a.Status()
	l.rejectNext(rpctypes.ErrGRPCRequestTooManyRequests)
	commit(t, a, backend.SetData("/n", nil, 2))
	select {
	case <-changed:
		t.Error("contact broke because a server was overloaded")
	default:
	}
}

// The nodes of a commit are read in two requests, as of one revision. It is compacted in between.
func TestACommitWhoseNodesAreCompactedWhileItReadsThem(t *testing.T) {
	t.Parallel()
	srv, err := start(t.TempDir()) // of its own, since the compaction is of all its keys
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(srv.stop)
	s := newService(t, srv.addr, etcd.Options{})
	l := s.link("a")
	a, b := open(t, l), open(t, s.link("b"))
	var ops []backend.Op
	for i := range 63 {
		dir := fmt.Sprintf("/d%d-0000000128", i) // can be a sequential node: the session has to look
		commit(t, b, backend.Create(dir, nil, backend.Persistent))
		ops = append(ops, backend.Create(dir+"/n", nil, backend.Persistent))
	}
	hit := false
	l.before(func(method string, body []byte) bool {
		var r pb.TxnRequest
		return method == "/etcdserverpb.KV/Txn" && r.Unmarshal(body) == nil && len(r.Success) > 1 &&
			r.Success[1].GetRequestRange() != nil && r.Success[1].GetRequestRange().Revision > 0
	}, func() {
		hit = true
		rev := commit(t, b, backend.Create("/x", nil, backend.Persistent))[0].Czxid
		if _, err := pb.NewKVClient(s.admin).Compact(t.Context(), &pb.CompactionRequest{Revision: rev}); err != nil {
			t.Errorf("compact: %v", err)
		}
	})
	if _, err := a.Commit(t.Context(), ops...); err != nil || !hit {
		t.Errorf("%v, compacted: %v", err, hit)
	}
}

// Several operations of one commit are for one node: a Carry shows the write before it.
func TestACarryShowsTheWriteBeforeIt(t *testing.T) {
	s := newService(t, shared.get(t), etcd.Options{})
	a := open(t, s.link("a"))
	commit(t, a, backend.Create("/n", nil, backend.Persistent))
	r := commit(t, a, backend.SetData("/n", []byte("v"), 0), backend.Carry("/n", []byte("v")))
	if r[0].Stat != r[1].Stat || r[1].Stat.Mzxid != r[1].Stat.AsOf || r[1].Stat.Version != 1 {
		t.Errorf("after the write: %+v\nafter the carry: %+v", r[0].Stat, r[1].Stat)
	}
}

// A path is in a request several times.
func TestLongPaths(t *testing.T) {
	s := newService(t, shared.get(t), etcd.Options{})
	a := open(t, s.link("a"))
	var ops []backend.Op
	for i := range 63 {
		ops = append(ops, backend.Create(fmt.Sprintf("/%s%d", strings.Repeat("n", 4_000), i), nil, backend.Persistent))
	}
	commit(t, a, ops...)
	if _, err := a.Commit(t.Context(), ops...); !errors.Is(err, backend.ErrExists) {
		t.Errorf("again: %v", err)
	}
	_, err := a.Commit(t.Context(), backend.Create("/"+strings.Repeat("n", 900_000), nil, backend.Persistent))
	if err != nil && !errors.Is(err, backend.ErrTooLarge) {
		t.Errorf("a path of 900 kB: %v", err)
	}
	if phase, _ := a.Status(); phase != backend.PhaseConnected {
		t.Errorf("%v after a request that is too large", phase)
	}
}

// A server answers, and ends the connection when the session is there, again and again.
func TestContactThatNeverLastsIsMadeMoreAndMoreSlowly(t *testing.T) {
	t.Parallel()
	s := newService(t, shared.get(t), etcd.Options{SessionTimeout: 6 * time.Second})
	l := s.link("a")
	a := open(t, l)
	const keepAlive = "/etcdserverpb.Lease/LeaseKeepAlive"
	l.always(func(method string, _ []byte) bool { return method == keepAlive }, func() { l.bytes.Cut() })
	await(t, a.Done(), "the loss")
	if n := l.requested(keepAlive); n < 3 || n > 60 {
		t.Errorf("%d connections while the lease of 4 s passed", n)
	}
}

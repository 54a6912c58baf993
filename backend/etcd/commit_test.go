package etcd_test

import (
	"context"
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
	"github.com/go-coord/coord/internal/pace"
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
// was not applied; reads and deletions continue, and commits do so when there is space.
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
	m := pace.Start(t, nil)
	await(t, a.Done(), "the loss")
	if n := l.requested(keepAlive); n < 3 && m.Lost() > time.Second {
		t.Logf("not judged: %d connections, and the machine did other work for %v", n, m.Lost())
	} else if n < 3 || n > 60 {
		t.Errorf("%d connections while the lease of 4 s passed", n)
	}
}

const (
	deleteRange = "/etcdserverpb.KV/DeleteRange"
	txn         = "/etcdserverpb.KV/Txn"
)

func isDeletion(method string, _ []byte) bool { return method == deleteRange }

// A session deletes a node of its own that has a number with one plain request. What another session
// owns, and what is not ephemeral, it deletes with a transaction.
func TestASessionDeletesItsOwnNodeWithoutATransaction(t *testing.T) {
	s := newService(t, shared.get(t), etcd.Options{SessionTimeout: 10 * time.Minute}) // no renewal tells of its end
	l, m := s.link("a"), s.link("b")
	a, b := open(t, l), open(t, m)
	make := func(mode backend.CreateMode) string { return commit(t, a, backend.Create("/n-", nil, mode))[0].Path }
	own, other, lasts, literal := make(backend.EphemeralSequential), make(backend.EphemeralSequential), make(backend.PersistentSequential), "/e"
	commit(t, a, backend.Create(literal, nil, backend.Ephemeral))
	if _, _, err := b.Get(t.Context(), other, nil); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name  string
		s     backend.Session
		l     *link
		path  string
		plain int
	}{
		{"its own", a, l, own, 1}, {"another session's", b, m, other, 0}, {"one that lasts", a, l, lasts, 0}, {"one without a number", a, l, literal, 0},
	} {
		plain, txns := c.l.requested(deleteRange), c.l.requested(txn)
		commit(t, c.s, backend.Delete(c.path, backend.AnyVersion))
		if p, n := c.l.requested(deleteRange)-plain, c.l.requested(txn)-txns; p != c.plain || n != 1-c.plain {
			t.Errorf("%s: %d plain requests and %d transactions", c.name, p, n)
		}
		if _, err := b.Exists(t.Context(), c.path, nil); !errors.Is(err, backend.ErrNotFound) {
			t.Errorf("%s, after its deletion: %v", c.name, err)
		}
	}
	for _, c := range []struct {
		name string
		end  func(path string)
		want error
	}{
		{"deleted by another client", func(path string) { commit(t, b, backend.Delete(path, backend.AnyVersion)) }, backend.ErrNotFound},
		{"gone with its session", func(string) {
			l.silence(true) // the session does not learn of it
			l.Expire(a.ID())
		}, backend.ErrSessionLost},
	} {
		path := make(backend.EphemeralSequential)
		c.end(path)
		if _, err := a.Commit(t.Context(), backend.Delete(path, backend.AnyVersion)); !errors.Is(err, c.want) || errors.Is(err, backend.ErrUncertain) {
			t.Errorf("a node that is %s: %v", c.name, err)
		}
	}
}

// The plain deletion is sent again when it has no answer. If the node is gone then, the session
// cannot know by which of the two, or by another client.
func TestADeletionWithoutAnAnswerIsSentAgain(t *testing.T) {
	s := newService(t, shared.get(t), etcd.Options{})
	l := s.link("a")
	a := open(t, l)
	for _, c := range []struct {
		name      string
		drop      func()
		uncertain bool
	}{{"request", l.DropNextRequest, false}, {"reply", l.DropNextReply, true}} {
		path := commit(t, a, backend.Create("/n-", nil, backend.EphemeralSequential))[0].Path
		before := l.requested(deleteRange)
		c.drop()
		_, err := a.Commit(t.Context(), backend.Delete(path, backend.AnyVersion))
		if uncertain := errors.Is(err, backend.ErrUncertain); uncertain != c.uncertain || !uncertain && err != nil || errors.Is(err, backend.ErrNotFound) {
			t.Errorf("with a lost %s: %v", c.name, err)
		}
		if n := l.requested(deleteRange) - before; n != 2 {
			t.Errorf("with a lost %s: %d requests", c.name, n)
		}
		if _, err := a.Exists(t.Context(), path, nil); !errors.Is(err, backend.ErrNotFound) {
			t.Errorf("with a lost %s, the node: %v", c.name, err)
		}
	}
}

// The caller of a plain deletion gives it up while the request is under way. The next call of the session
// makes it happen, so that it has happened before or in that call, and not later.
func TestADeletionThatIsGivenUpHappensBeforeTheNextCall(t *testing.T) {
	s := newService(t, shared.get(t), etcd.Options{})
	l := s.link("a")
	a, b := open(t, l), open(t, s.link("b"))
	// More than one request takes, by their number and by their size.
	const nodes = 300
	paths := make([]string, nodes)
	held := make([]*hold, nodes)
	for i := range paths {
		name := "/n-"
		if i%25 == 0 {
			name = "/" + strings.Repeat("n", 200_000) + "-"
		}
		paths[i] = commit(t, a, backend.Create(name, nil, backend.EphemeralSequential))[0].Path
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var wg sync.WaitGroup
	for i, path := range paths {
		held[i] = l.holdNext(isDeletion)
		wg.Go(func() {
			if _, err := a.Commit(ctx, backend.Delete(path, backend.AnyVersion)); !errors.Is(err, backend.ErrUncertain) {
				t.Errorf("a deletion that is given up: %v", err)
			}
		})
		await(t, held[i].hit, "the deletion")
	}
	cancel()
	wg.Wait()
	if names, _, err := b.Children(t.Context(), "/", nil); err != nil || len(names) != nodes {
		t.Fatalf("%d nodes are left, %v", len(names), err)
	}
	// An epoch that the service has begun meanwhile, for another call, has not deleted the nodes.
	from, end := s.opts.Prefix+":session/", s.opts.Prefix+":session0"
	all, err := pb.NewKVClient(s.admin).Range(t.Context(), &pb.RangeRequest{Key: []byte(from), RangeEnd: []byte(end), KeysOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	begun := 0
	for _, kv := range all.Kvs {
		if strings.HasSuffix(string(kv.Key), fmt.Sprintf(":session/%016x", a.ID())) {
			begun++
			if _, err = pb.NewKVClient(s.admin).Put(t.Context(), &pb.PutRequest{Key: kv.Key, Lease: a.ID()}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if begun != 1 {
		t.Fatalf("%d keys of the session", begun)
	}
	if err := a.Sync(t.Context(), "/"); err != nil {
		t.Fatal(err)
	}
	names, _, err := b.Children(t.Context(), "/", nil)
	if err != nil || len(names) != 0 {
		t.Errorf("%d nodes are left after the next call, %v", len(names), err)
	}
	commit(t, a, backend.Create(paths[1], nil, backend.Persistent)) // of the same name, and another key
	for _, h := range held {
		close(h.release)
		<-h.done
	}
	after, _, err := b.Children(t.Context(), "/", nil)
	if err != nil || len(after) != 1 {
		t.Errorf("after the late requests there are %v, %v", after, err)
	}
	// All is settled: the next call is one request.
	before := l.requested(txn)
	commit(t, a, backend.Delete(paths[1], 0))
	if n := l.requested(txn) - before; n != 1 {
		t.Errorf("%d requests when all is settled", n)
	}
}

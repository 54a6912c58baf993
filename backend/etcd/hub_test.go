package etcd

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/internal/contact"
)

// stage is a hub with a stream that the test plays.
type stage struct {
	*testing.T
	h   *hub
	l   *link
	set *backend.WatchSet
}

func newStage(t *testing.T, ordered bool) *stage {
	s := &session{cfg: &config{prefix: "p"}, key: "p:session/1", known: newCache(), now: contact.Clock()}
	s.Life, s.hub = contact.NewLife(s.now, s.end), newHub(s)
	st := &stage{t, s.hub, &link{ordered: ordered, wake: make(chan struct{}, 1)}, backend.NewWatchSet()}
	s.hub.link = st.l
	s.hub.own = s.hub.watcherLocked(watchKey{nodeRange, s.key})
	st.created(1, 1)
	return st
}

func (st *stage) handle(r *pb.WatchResponse) {
	st.Helper()
	if err := st.h.handle(st.l, r); err != nil {
		st.Fatal(err)
	}
}

func (st *stage) created(id, rev int64) {
	st.Helper()
	st.handle(&pb.WatchResponse{Header: &pb.ResponseHeader{Revision: rev}, WatchId: id, Created: true})
}

func (st *stage) progress(rev int64) {
	st.Helper()
	st.handle(&pb.WatchResponse{Header: &pb.ResponseHeader{Revision: rev}, WatchId: -1})
}

// deleted plays the deletion of a node.
func (st *stage) deleted(i *interest, rev int64) {
	st.Helper()
	st.handle(&pb.WatchResponse{Header: &pb.ResponseHeader{Revision: rev}, WatchId: i.node.id,
		Events: []*mvccpb.Event{{Type: mvccpb.DELETE, Kv: &mvccpb.KeyValue{Key: []byte(i.node.key.key), ModRevision: rev}}}})
}

// arm arms a watch of a node as of a revision. The server has made the watcher.
func (st *stage) arm(path string, rev int64) *interest {
	st.Helper()
	return st.armAt(path, st.h.s.cfg.literalKey(path), false, rev)
}

// begin requests the watchers for a watch of the node with a key.
func (st *stage) begin(path, key string, children bool) *interest {
	st.Helper()
	all, err := st.h.begin(st.l, map[string]string{path: key}, backend.Target{Path: path, Children: children, Watch: st.set.New()})
	if err != nil {
		st.Fatal(err)
	}
	return all[0]
}

// armAt arms a watch of the node with a key.
func (st *stage) armAt(path, key string, children bool, rev int64) *interest {
	st.Helper()
	i := st.begin(path, key, children)
	st.created(i.node.id, rev)
	if children {
		st.created(i.kids.id, rev)
	}
	st.h.settle(i, &view{path: path, found: &record{key: key, created: 1, mod: 1}, rev: rev})
	return i
}

// waits checks up to which revision events must have fired before a read returns.
func (st *stage) waits(want int64, v *view, listed bool) {
	st.Helper()
	if got := st.h.need(v, listed); got != want {
		st.Errorf("the read of %s waits for the events up to %d, want %d", v.path, got, want)
	}
}

func (st *stage) fired(want ...*interest) {
	st.Helper()
	got := st.set.Take()
	if len(got) != len(want) {
		st.Fatalf("%d watches have fired, want %d", len(got), len(want))
	}
	for n, i := range want {
		if got[n] != i.watch || got[n].Kind() != backend.Deleted {
			st.Fatalf("watch %d is another one, or has kind %q", n, got[n].Kind())
		}
	}
}

// A watcher that was made while a commit was under way lags behind: its event comes after a
// later one of another watcher.
func TestAnEventWaitsForWatchersThatMayLagBehind(t *testing.T) {
	st := newStage(t, true)
	a := st.arm("/a", 5)
	st.progress(5)
	b := st.arm("/b", 5)
	st.deleted(a, 7)
	st.fired()
	st.deleted(b, 6)
	st.fired()
	st.progress(7)
	st.fired(b, a)
	// With every watcher covered, an event fires at once.
	c := st.arm("/c", 8)
	st.progress(8)
	st.deleted(c, 9)
	st.fired(c)
}

// A server can send a progress reply before it tells that it has made a watcher, although it
// has made it earlier. The events of that watcher follow the telling.
func TestAReplyThatOvertakesTheMakingOfAWatcherProvesNothingOfIt(t *testing.T) {
	st := newStage(t, true)
	a := st.arm("/a", 5)
	st.progress(5)
	b := st.begin("/b", "p//b", false)
	st.h.ask()
	st.progress(7)
	st.created(b.node.id, 5)
	st.h.settle(b, &view{path: "/b", found: &record{}, rev: 5})
	st.waits(6, &view{path: "/b", found: &record{mod: 6}, rev: 6}, false)
	st.deleted(a, 8)
	st.fired()
	st.deleted(b, 6)
	st.progress(8)
	st.fired(b, a)
}

// requests returns what the hub has queued for the stream, and empties the queue.
func (st *stage) requests() (creates, progress int) {
	for _, r := range st.h.queue {
		if r.GetCreateRequest() != nil {
			creates++
		}
		if r.GetProgressRequest() != nil {
			progress++
		}
	}
	st.h.queue = nil
	return creates, progress
}

// The hub requests one progress reply for all watchers of a call, when the server has confirmed the
// last of them. An earlier reply could come before a confirmation and prove nothing, and an event
// would wait for a second reply.
func TestOneReplyProvesTheWatchersOfACall(t *testing.T) {
	for _, refused := range []bool{false, true} {
		st := newStage(t, true)
		st.requests()
		keys, targets := make(map[string]string), make([]backend.Target, 3)
		for n, path := range []string{"/a", "/b", "/c"} {
			keys[path], targets[n] = st.h.s.cfg.literalKey(path), backend.Target{Path: path, Watch: st.set.New()}
		}
		all, err := st.h.begin(st.l, keys, targets...)
		if err != nil {
			t.Fatal(err)
		}
		st.created(all[0].node.id, 5)
		st.h.abandon(all[1])
		st.created(all[1].node.id, 5)
		if creates, progress := st.requests(); creates != 3 || progress != 0 {
			t.Errorf("%d watchers and %d replies were requested, want 3 and none", creates, progress)
		}
		if last := all[2].node; refused {
			st.handle(&pb.WatchResponse{Header: &pb.ResponseHeader{}, Created: true, Canceled: true, WatchId: -1, CancelReason: rpctypes.ErrorDesc(rpctypes.ErrGRPCPermissionDenied)})
		} else {
			st.h.abandon(all[2])
			st.created(last.id, 5)
		}
		if _, progress := st.requests(); progress != 1 {
			t.Errorf("refused: %v: %d replies were requested, want 1", refused, progress)
		}
		st.progress(5)
		st.h.settle(all[0], &view{path: "/a", found: &record{}, rev: 5})
		st.deleted(all[0], 7)
		st.fired(all[0])
	}
}

// A server leaves requests without a reply while a watcher lags behind. The replies to later
// requests prove what they would without those.
func TestRequestsWithoutAReplyAreForgotten(t *testing.T) {
	st := newStage(t, true)
	a := st.arm("/a", 5)
	for range 10 {
		st.h.ask() // without a reply
	}
	b := st.arm("/b", 6)
	st.progress(7)
	if len(st.h.asked) > 1 {
		t.Errorf("%d requests wait for a reply", len(st.h.asked))
	}
	st.deleted(b, 8)
	st.fired(b)
	// The watcher is older than the reply, whatever request it answers.
	c := st.arm("/c", 8)
	st.h.ask()
	st.progress(9)
	st.deleted(c, 10)
	st.fired(c)
	st.deleted(a, 11)
	st.fired(a)
}

// So does a session that makes no watcher for long: then it makes one for that purpose.
func TestAMarkShowsWhichRequestsHadNoReply(t *testing.T) {
	st := newStage(t, true)
	a := st.arm("/a", 5)
	st.progress(5)
	for range 10 {
		st.h.mark()
		st.h.ask() // without a reply, except the last one
		st.created(st.h.next, 6)
	}
	st.progress(7)
	if len(st.h.asked) > 1 {
		t.Errorf("%d requests wait for a reply", len(st.h.asked))
	}
	if n := len(st.h.byID); n != 2 {
		t.Errorf("%d watchers, want that of the session and that of the node", n)
	}
	st.deleted(a, 8)
	st.fired(a)
}

// Between two replies more than fit into the buffer of the server have come. A request that
// had no reply is older than both, and does not count for the later one.
func TestHeldEventsAreAskedForAgainAtOnce(t *testing.T) {
	st := newStage(t, true)
	a := st.arm("/a", 5)
	st.h.ask() // without a reply
	for range mostUnproved {
		st.handle(&pb.WatchResponse{Header: &pb.ResponseHeader{Revision: 5}, WatchId: 99, Events: []*mvccpb.Event{{Kv: &mvccpb.KeyValue{ModRevision: 6}}}})
	}
	st.progress(5)
	st.deleted(a, 8)
	asked := len(st.h.asked)
	st.progress(7) // to a request that is older than all of them
	if len(st.h.asked) < asked {
		t.Error("an event is held, and no reply is requested")
	}
	for range asked {
		st.progress(8)
	}
	st.fired(a)
}

// A server sends events, and proves nothing.
func TestTooManyHeldEventsEndTheLink(t *testing.T) {
	st := newStage(t, true)
	a := st.arm("/a", 5)
	r := &pb.WatchResponse{Header: &pb.ResponseHeader{Revision: 6}, WatchId: a.node.id}
	for n := range int64(mostHeld + 1) {
		r.Events = append(r.Events, &mvccpb.Event{Kv: &mvccpb.KeyValue{Key: []byte(a.node.key.key), CreateRevision: 1, ModRevision: 6 + n, Version: 6 + n}})
	}
	if err := st.h.handle(st.l, r); !errors.Is(err, errNoProgress) {
		t.Errorf("%d events are held: %v, want %v", len(st.h.held), err, errNoProgress)
	}
	st.h.detach(st.l)
	st.fired()
	if len(st.h.held) > 0 {
		t.Errorf("%d events are held without a link", len(st.h.held))
	}
}

// A read that shows a change returns after the watches for that change have fired.
func TestAReadWaitsForTheWatchesOfWhatItShows(t *testing.T) {
	st := newStage(t, true)
	key := "p/d//n-\x0000u"
	n, kids, literal := st.armAt("/d/n-0000000640", key, false, 5), st.armAt("/d/n-0000000640", key, true, 5), st.armAt("/d/x", "p/d//x", true, 5)
	st.waits(9, &view{path: n.path, key: "p/d//n-0000000640", rev: 9}, false) // deleted
	n.watch.Stop()
	st.waits(9, &view{path: n.path, key: "p/d//n-0000000640", rev: 9}, false)
	kids.watch.Stop()
	st.waits(0, &view{path: n.path, key: "p/d//n-0000000640", rev: 9}, false)
	st.waits(9, &view{path: literal.path, found: &record{created: 8, mod: 8}, rev: 9}, false) // another node
	st.waits(0, &view{path: literal.path, found: &record{created: 1, mod: 8}, rev: 9}, false) // other data
	dir := &record{created: 1, mod: 1}
	st.waits(0, &view{path: "/d", found: dir, rev: 9, names: []string{"x", "y"}, children: 2}, true)
	st.waits(9, &view{path: "/d", found: dir, rev: 9, names: []string{"y"}, children: 1}, true) // without x
	st.deleted(literal, 9)
	st.progress(9)
	st.waits(0, &view{path: "/d", found: dir, rev: 9, names: []string{"y"}, children: 1}, true)
	if len(st.h.places) > 0 {
		t.Errorf("%d places are left", len(st.h.places))
	}
}

// A read shows more than the state of its own node: the nodes above it exist, and those below a
// missing one do not.
func TestAReadWaitsForTheWatchesAboveAndBelowItsNode(t *testing.T) {
	st := newStage(t, true)
	missing := st.begin("/a", "p//a", false)
	st.created(missing.node.id, 5)
	st.h.settle(missing, &view{path: "/a", key: "p//a", rev: 5})
	st.waits(8, &view{path: "/a/b", found: &record{created: 8, mod: 9}, rev: 9}, false)
	st.waits(8, &view{path: "/a/b/c", found: &record{created: 8, mod: 9}, rev: 9}, false)
	st.waits(0, &view{path: "/a/b", rev: 9}, false)
	x, again, none := st.arm("/d/x", 5), st.arm("/d/x", 5), st.begin("/d/none", "p/d//none", false)
	st.created(none.node.id, 5)
	st.h.settle(none, &view{path: "/d/none", key: "p/d//none", rev: 5})
	dir, next := &record{created: 1, mod: 1}, &record{created: 7, mod: 7}
	st.waits(9, &view{path: "/d", rev: 9}, false)
	st.waits(9, &view{path: "/d", rev: 9}, true)
	st.waits(9, &view{path: "/d", found: dir, rev: 9}, false) // without children
	st.waits(0, &view{path: "/d", found: dir, rev: 9, children: 1}, false)
	st.waits(0, &view{path: "/d", found: dir, rev: 5}, false)
	st.waits(9, &view{path: "/d", found: next, rev: 9, children: 1}, false) // a later node
	st.waits(9, &view{path: "/d", found: next, rev: 9, names: []string{"x"}, children: 1}, true)
	st.deleted(x, 9)
	st.progress(9)
	st.fired(x, again)
	st.waits(0, &view{path: "/d", rev: 9}, false)
}

// So it is with nodes that lie further apart.
func TestAReadWaitsForTheWatchesFarAboveAndBelowItsNode(t *testing.T) {
	st := newStage(t, true)
	kids := st.armAt("/a", "p//a", true, 5)
	st.waits(8, &view{path: "/a/b/c/d", found: &record{created: 8, mod: 9}, rev: 9}, false)
	st.waits(0, &view{path: "/a/b/c/d", found: &record{created: 4, mod: 9}, rev: 9}, false)
	st.waits(0, &view{path: "/a/b/c/d", rev: 9}, false) // it says nothing of /a/b
	kids.watch.Stop()
	z, dir := st.arm("/d/x/y/z", 5), &record{created: 1, mod: 1}
	none := st.begin("/d/v/none", "p/d/v//none", false)
	st.created(none.node.id, 5)
	st.h.settle(none, &view{path: "/d/v/none", key: "p/d/v//none", rev: 5})
	for _, listed := range []bool{false, true} {
		st.waits(9, &view{path: "/", found: dir, rev: 9}, listed)
		st.waits(9, &view{path: "/d", rev: 9}, listed)
		st.waits(9, &view{path: "/d", found: dir, rev: 9}, listed)
		st.waits(9, &view{path: "/d", found: &record{created: 7, mod: 7}, rev: 9, names: []string{"x"}, children: 1}, listed)
		st.waits(0, &view{path: "/d", found: dir, rev: 9, names: []string{"v", "x"}, children: 2}, listed)
	}
	st.waits(9, &view{path: "/d", found: dir, rev: 9, names: []string{"v", "w"}, children: 2}, true)
	st.waits(0, &view{path: "/d", found: dir, rev: 9, children: 2}, false)
	z.watch.Stop()
	none.watch.Stop()
	if len(st.h.places) > 0 {
		t.Errorf("%d places are left", len(st.h.places))
	}
}

// answering is a server that the test plays: each transaction gets the reply of a function.
type answering struct {
	pb.KVClient
	txn func(*pb.TxnRequest) (*pb.TxnResponse, error)
}

func (a answering) Txn(_ context.Context, r *pb.TxnRequest, _ ...grpc.CallOption) (*pb.TxnResponse, error) {
	return a.txn(r)
}

// A node is given children more often than a list of them takes. A list with a watch returns all the
// same, and what it does not show has fired the watch.
func TestAListWithAWatchReturnsWhileChildrenCome(t *testing.T) {
	st := newStage(t, true)
	i := st.begin("/d", "p//d", true)
	lists := int64(0)
	st.l.kv = answering{txn: func(r *pb.TxnRequest) (*pb.TxnResponse, error) {
		if lists++; lists > 5 {
			return nil, errors.New("five lists were made")
		}
		if lists == 1 {
			st.created(i.node.id, 10)
			st.created(i.kids.id, 10)
		}
		rev := 10 + lists
		reply := &pb.TxnResponse{Header: &pb.ResponseHeader{Revision: rev}}
		for _, op := range r.Success {
			ans := &pb.RangeResponse{}
			if string(op.GetRequestRange().Key) == i.node.key.key {
				ans.Kvs = []*mvccpb.KeyValue{{Key: []byte(i.node.key.key), Value: (&record{}).value(), CreateRevision: 1, ModRevision: 1, Version: 1}}
			}
			reply.Responses = append(reply.Responses, &pb.ResponseOp{Response: &pb.ResponseOp_ResponseRange{ResponseRange: ans}})
		}
		child := &mvccpb.KeyValue{Key: []byte(i.kids.key.key + "x"), Value: (&record{}).value(), CreateRevision: rev + 1, ModRevision: rev + 1, Version: 1}
		st.handle(&pb.WatchResponse{Header: &pb.ResponseHeader{Revision: rev + 1}, WatchId: i.kids.id, Events: []*mvccpb.Event{{Kv: child}}})
		st.progress(rev + 1)
		return reply, nil
	}}
	v, err := st.h.s.lookBeside(t.Context(), st.l, i, true)
	if err != nil {
		t.Fatal(err)
	}
	st.h.settle(i, v)
	if lists != 1 || i.watch.Kind() != backend.LookAgain {
		t.Errorf("%d lists, and the watch has kind %q", lists, i.watch.Kind())
	}
}

// Several reads want a new epoch at the same time. One transaction begins it, and the others that were
// sent meanwhile find it begun.
func TestReadsThatWaitShareANewEpoch(t *testing.T) {
	s := &session{key: "p:session/1"}
	const readers = 8
	var mu sync.Mutex
	var sent, puts int64
	all := make(chan struct{})
	l := &link{kv: answering{txn: func(r *pb.TxnRequest) (*pb.TxnResponse, error) {
		mu.Lock()
		if sent++; sent == readers {
			close(all)
		}
		mu.Unlock()
		<-all
		mu.Lock()
		defer mu.Unlock()
		reply := &pb.TxnResponse{Header: &pb.ResponseHeader{Revision: 10 + puts}, Succeeded: r.Compare[0].GetVersion() == puts}
		if reply.Succeeded {
			puts++
			return reply, nil
		}
		key := &mvccpb.KeyValue{Version: puts, ModRevision: 9 + puts}
		reply.Responses = []*pb.ResponseOp{{Response: &pb.ResponseOp_ResponseRange{ResponseRange: &pb.RangeResponse{Kvs: []*mvccpb.KeyValue{key}}}}}
		return reply, nil
	}}}
	errs := make(chan error, readers)
	for range readers {
		go func() { errs <- s.newEpoch(t.Context(), l, 9) }()
	}
	for range readers {
		if err := <-errs; err != nil {
			t.Fatal(err)
		}
	}
	if sent != readers || puts != 1 || s.epoch != 1 {
		t.Errorf("%d transactions made %d epochs, and the session knows of %d", sent, puts, s.epoch)
	}
	// One that was begun at the revision that a read waits for, or before, does not do for it.
	s.epoch = 0
	if err := s.newEpoch(t.Context(), l, 10); err != nil || puts != 2 {
		t.Errorf("%v, %d epochs", err, puts)
	}
}

// A call that arms a watch waits for the events before those that have fired.
func TestACallWaitsForEventsWhileItsWatchIsNotArmed(t *testing.T) {
	st := newStage(t, true)
	i := st.begin("/a", "p//a", false)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := st.h.flush(ctx, st.l, 7); !errors.Is(err, context.Canceled) {
		t.Errorf("with a watch to be armed: %v, want %v", err, context.Canceled)
	}
	st.h.abandon(i)
	if err := st.h.flush(ctx, st.l, 7); err != nil {
		t.Errorf("without a watch: %v", err)
	}
}

// A request without a reply, of which a later reply could be mistaken.
func TestAReplyCoversOnlyTheWatchersOfTheOldestRequest(t *testing.T) {
	st := newStage(t, true)
	a := st.arm("/a", 5)
	b := st.arm("/b", 5)
	st.progress(5) // to either of two requests
	st.deleted(a, 7)
	st.fired()
	st.deleted(b, 6)
	st.progress(7)
	st.fired(b, a)
}

// So many responses came since the latest proof that the server may have put an event back.
func TestAnEventWaitsWhenTheBufferOfTheServerMayHaveBeenFull(t *testing.T) {
	st := newStage(t, true)
	a, b := st.arm("/a", 5), st.arm("/b", 5)
	st.progress(5)
	st.progress(5)
	for range mostUnproved {
		st.handle(&pb.WatchResponse{Header: &pb.ResponseHeader{Revision: 5}, WatchId: 99, Events: []*mvccpb.Event{{Kv: &mvccpb.KeyValue{ModRevision: 6}}}})
	}
	st.deleted(a, 8)
	st.fired()
	st.deleted(b, 7)
	st.progress(8)
	st.fired(b, a)
}

func TestWithoutOrderedProgressEventsFireAsTheyCome(t *testing.T) {
	st := newStage(t, false)
	a, b := st.arm("/a", 5), st.arm("/b", 5)
	st.deleted(a, 7)
	st.deleted(b, 6)
	st.fired(a, b)
}

// The creation of the node of a tree is not to come: it was before its watcher, which is
// younger than that of the nodes below, or the node has another key by now.
func TestAnEventDoesNotWaitForOneThatDoesNotCome(t *testing.T) {
	for name, play := range map[string]func(st *stage, begin func(key string) *armedTree) *armedTree{
		"before the watcher": func(st *stage, begin func(key string) *armedTree) *armedTree {
			first := begin("p/d//n-\x0000u")
			st.created(first.node.id, 5)
			st.created(first.below.id, 5)
			second := begin("p/d//n-0000000640")
			st.created(second.node.id, 8)
			st.h.settleTree(second, 8)
			st.progress(5)
			return second
		},
		"another key": func(st *stage, begin func(key string) *armedTree) *armedTree {
			tree := begin("p/d//n-\x0000u")
			st.created(tree.node.id, 3)
			st.created(tree.below.id, 3)
			st.h.settleTree(tree, 3)
			st.progress(5)
			return tree
		},
	} {
		t.Run(name, func(t *testing.T) {
			st := newStage(t, true)
			tree := play(st, func(key string) *armedTree {
				tree, err := st.h.beginTree(st.l, "/d/n-0000000640", key, backend.NewTreeWatch(0))
				if err != nil {
					t.Fatal(err)
				}
				return tree
			})
			x := st.arm("/x", 8)
			st.progress(8)
			st.handle(&pb.WatchResponse{Header: &pb.ResponseHeader{Revision: 7}, WatchId: tree.below.id, Events: []*mvccpb.Event{{
				Kv: &mvccpb.KeyValue{Key: []byte("p/d/n-0000000640//c"), Value: (&record{flags: flagNewParent}).value(), CreateRevision: 7, ModRevision: 7, Version: 1}}}})
			st.deleted(x, 9)
			st.progress(9)
			st.fired(x)
			st.h.end()
		})
	}
}

// A commit creates the node of a tree, and a child. The events of the two watchers come in
// either order.
func TestATreeIsToldOfANodeBeforeItsChildren(t *testing.T) {
	for _, childFirst := range []bool{false, true} {
		st := newStage(t, true)
		w := backend.NewTreeWatch(0)
		tree, err := st.h.beginTree(st.l, "/n", "p//n", w)
		if err != nil {
			t.Fatal(err)
		}
		st.created(tree.node.id, 5)
		st.created(tree.below.id, 5)
		st.h.settleTree(tree, 5)
		st.progress(5)
		event := func(of *watcher, key string, flags byte) {
			st.handle(&pb.WatchResponse{Header: &pb.ResponseHeader{Revision: 6}, WatchId: of.id, Events: []*mvccpb.Event{{
				Kv: &mvccpb.KeyValue{Key: []byte(key), Value: (&record{flags: flags}).value(), CreateRevision: 6, ModRevision: 6, Version: 1}}}})
		}
		if childFirst {
			event(tree.below, "p/n//x", flagNewParent)
			if got, over := w.Take(); len(got) > 0 || over {
				t.Errorf("told %v, over %v, before the node was", got, over)
			}
		}
		event(tree.node, "p//n", 0)
		if !childFirst {
			event(tree.below, "p/n//x", flagNewParent)
		}
		got, over := w.Take()
		if over || len(got) != 2 || got[0].Path != "/n" || got[1].Path != "/n/x" {
			t.Errorf("the child first: %v: told %v, over %v", childFirst, got, over)
		}
		st.h.end()
	}
}

// The deletion of an earlier node with the key of the tree's node comes late, or again: it is older than
// the read beside the tree watch.
func TestATreeIsNotOverByTheDeletionOfAnEarlierNode(t *testing.T) {
	const path, key = "/d/n-0000001024", "p/d//\x0000u" // created in revision 8
	for _, late := range []bool{false, true} {          // than the arming
		st := newStage(t, true)
		earlier := st.armAt("/d/n-0000000384", key, false, 3)
		st.progress(3)
		w := backend.NewTreeWatch(0)
		tree, err := st.h.beginTree(st.l, path, key, w)
		if err != nil {
			t.Fatal(err)
		}
		st.created(tree.later.id, 8)
		st.created(tree.below.id, 8)
		settle := func() { st.h.settleTree(tree, 8) }
		if late {
			settle()
		}
		st.deleted(earlier, 7)
		st.handle(&pb.WatchResponse{Header: &pb.ResponseHeader{Revision: 8}, WatchId: tree.node.id, Events: []*mvccpb.Event{{
			Kv: &mvccpb.KeyValue{Key: []byte(key), Value: (&record{flags: flagEphemeral, name: "n-"}).value(), CreateRevision: 8, ModRevision: 8, Version: 1}}}})
		st.progress(8)
		st.fired(earlier)
		if !late {
			settle()
		}
		if got, over := w.Take(); len(got) > 0 || over {
			t.Errorf("late %v: told %v, over %v of what was before", late, got, over)
		}
		st.handle(&pb.WatchResponse{Header: &pb.ResponseHeader{Revision: 9}, WatchId: tree.node.id,
			Events: []*mvccpb.Event{{Type: mvccpb.DELETE, Kv: &mvccpb.KeyValue{Key: []byte(key), ModRevision: 9}}}})
		st.progress(9)
		if got, over := w.Take(); over || len(got) != 1 || got[0].Kind != backend.TreeDeleted || got[0].Path != path {
			t.Errorf("late %v: told %v, over %v of the deletion", late, got, over)
		}
		st.h.end()
	}
}

// A commit replaces the sequential node of a tree by another one of its path, and creates a child. The
// events of the three watchers come in any order.
func TestATreeIsToldOfAReplacementInItsOrder(t *testing.T) {
	const path, key = "/n-0000000384", "p//\x0000u" // created in revision 3
	for _, order := range [][3]int{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}} {
		st := newStage(t, true)
		w := backend.NewTreeWatch(0)
		tree, err := st.h.beginTree(st.l, path, key, w)
		if err != nil {
			t.Fatal(err)
		}
		st.created(tree.node.id, 5)
		st.created(tree.later.id, 5)
		st.created(tree.below.id, 5)
		st.h.settleTree(tree, 5)
		st.progress(5)
		put := func(key string, flags byte) *mvccpb.Event {
			return &mvccpb.Event{Kv: &mvccpb.KeyValue{Key: []byte(key), Value: (&record{flags: flags}).value(), CreateRevision: 6, ModRevision: 6, Version: 1}}
		}
		responses := []*pb.WatchResponse{
			{WatchId: tree.node.id, Events: []*mvccpb.Event{{Type: mvccpb.DELETE, Kv: &mvccpb.KeyValue{Key: []byte(key), ModRevision: 6}}}},
			{WatchId: tree.later.id, Events: []*mvccpb.Event{put("p/"+path, 0)}},
			{WatchId: tree.below.id, Events: []*mvccpb.Event{put("p"+path+"//c", flagNewParent)}},
		}
		for _, n := range order {
			responses[n].Header = &pb.ResponseHeader{Revision: 6}
			st.handle(responses[n])
		}
		st.progress(6)
		got, over := w.Take()
		want := []backend.TreeChange{{Path: path, Kind: backend.TreeDeleted, Zxid: 6}, {Path: path, Kind: backend.TreeCreated, Zxid: 6}, {Path: path + "/c", Kind: backend.TreeCreated, Zxid: 6}}
		if over || !slices.Equal(got, want) {
			t.Errorf("events in the order %v: told %v, over %v, want %v", order, got, over, want)
		}
		st.h.end()
	}
}

// A server leaves a progress request without a reply. The hub asks again as long as an event is held, for half
// the lease.
func TestHub_AProofIsAskedForAgainWhileAnEventIsHeld(t *testing.T) {
	st := newStage(t, true)
	st.h.s.Grant(0, contact.Lease{Length: 10 * lagging})
	a := st.arm("/a", 5)
	st.progress(5)
	st.arm("/b", 5) // its watcher may lag behind
	again := func() (progress int, err error) {
		st.requests()
		err = st.h.askAgain(st.l)
		_, progress = st.requests()
		return progress, err
	}
	if n, err := again(); n != 0 || err != nil {
		t.Errorf("nothing is held, and %d replies were requested: %v", n, err)
	}
	st.deleted(a, 7)
	st.fired()
	for range 5 {
		if n, err := again(); n != 1 || err != nil {
			t.Errorf("an event is held, and %d replies were requested: %v", n, err)
		}
	}
	if _, err := again(); !errors.Is(err, errNoProgress) {
		t.Errorf("after half the lease: %v", err)
	}
}

// A read waits for the events of a tree watch if it can show one: its node is in the tree or above it, and the read
// is later than the watch.
func TestHub_AReadWaitsForTheTreeWatchesAboveItsNode(t *testing.T) {
	st := newStage(t, true)
	begin := func(path string) *armedTree {
		tree, err := st.h.beginTree(st.l, path, st.h.s.cfg.literalKey(path), backend.NewTreeWatch(0))
		if err != nil {
			t.Fatal(err)
		}
		st.created(tree.node.id, 5)
		st.created(tree.below.id, 5)
		return tree
	}
	st.h.settleTree(begin("/d"), 7)
	begin("/later") // it is not armed yet
	node := &record{created: 1, mod: 8}
	for path, want := range map[string]int64{"/d": 9, "/d/x": 9, "/d/x/y": 9, "/": 9, "/dx": 0, "/e": 0, "/later": 0} {
		st.waits(want, &view{path: path, found: node, rev: 9}, false)
	}
	st.waits(0, &view{path: "/d/x", found: node, rev: 7}, false)
	st.h.end()
}

// A progress request that was answered is not taken for one that is still without a reply: the responses since then
// would count as unproved, and events would wait.
func TestHub_AnAnsweredRequestIsForgotten(t *testing.T) {
	st := newStage(t, true)
	a := st.arm("/a", 5)
	st.progress(5)
	for range 3 {
		for range mostUnproved - 1 {
			st.handle(&pb.WatchResponse{Header: &pb.ResponseHeader{Revision: 5}, WatchId: 99, Events: []*mvccpb.Event{{Kv: &mvccpb.KeyValue{ModRevision: 6}}}})
		}
		st.h.ask()
		st.progress(7)
	}
	if n := len(st.h.asked); n > 0 {
		t.Errorf("%d requests wait for a reply", n)
	}
	st.deleted(a, 8)
	st.fired(a)
}

package etcd

import (
	"context"
	"fmt"
	"math"
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/go-coord/coord/backend"
)

// question is what to read of one node.
type question struct {
	path  string
	names bool  // of the children, and not only their number
	since int64 // whether the children have changed since this revision; negative: not asked
	alone bool  // nothing about the children
}

// view is what a read shows of one node.
type view struct {
	path     string
	key      string  // of the node, or the key that it would be created with
	found    *record // nil: missing
	rev      int64
	children int64
	names    []string
	changed  bool // the children have changed since question.since
}

// reader is the part of a request that reads one node.
type reader struct {
	q     question
	known string // the key of the node, if it is a sequential one that was seen before
	ways  []sequence
	// beyond is the first revision whose sequential nodes ops do not find: at the revision of the
	// reply there must be none of them.
	beyond int64
	ops    []*pb.RequestOp
}

// mostModified is the number of children, changed since a revision, that are read to find a new one:
// only the value of a key shows whether it replaces an earlier node of its path. So many count as
// a change of the children.
const mostModified = 4

// reader returns the part of a request that reads a node. rev is the latest revision that the session has
// seen.
func (s *session) reader(q question, rev int64) *reader {
	r := &reader{q: q, known: s.known.key(q.path), beyond: math.MaxInt64}
	if r.known != "" {
		r.ops = append(r.ops, get(r.known))
	} else {
		r.ways, r.beyond = near(s.cfg.sequences(q.path), rev)
	}
	r.ops = append(r.ops, get(s.cfg.literalKey(q.path)))
	for _, way := range r.ways {
		r.ops = append(r.ops, find(way))
	}
	kids := s.cfg.kids(q.path)
	if q.alone {
		return r
	}
	if q.names {
		r.ops = append(r.ops, list(kids)...)
	} else {
		r.ops = append(r.ops, count(kids))
	}
	if q.since >= 0 {
		past := count(kids)
		past.GetRequestRange().Revision = q.since
		r.ops = append(r.ops, past, modified(kids, q.since, mostModified))
	}
	return r
}

// view reads the answers to the operations of the reader. It returns errAgain if the service has passed
// the revision of a sequential node that the reader did not look for.
func (r *reader) view(s *session, rev int64, answers []*pb.ResponseOp) (*view, error) {
	v := &view{path: r.q.path, key: s.cfg.literalKey(r.q.path), rev: rev}
	at := 0
	next := func() *pb.RangeResponse { at++; return answers[at-1].GetResponseRange() }
	nodes := 1 + len(r.ways)
	if r.known != "" {
		nodes++
	}
	for range nodes {
		kvs := next().Kvs
		if len(kvs) == 0 || v.found != nil {
			continue
		}
		found, err := decode(kvs[0])
		if err != nil {
			return nil, err
		}
		if isNumbered(found.key) {
			// A find can show a node of another name, and a known key can be that of a later node.
			if path, ok := s.cfg.pathOf(kvs[0]); !ok || path != r.q.path {
				continue
			}
		}
		v.found, v.key = found, found.key
	}
	if v.found == nil {
		if rev >= r.beyond {
			return nil, errAgain
		}
		s.known.forget(r.q.path)
	} else {
		if v.key != s.cfg.literalKey(r.q.path) {
			s.known.setKey(r.q.path, keyOfNode{v.key, v.found.created, v.found.ephemeral()})
		} else {
			s.known.forgetKey(r.q.path) // of an earlier node of that path
		}
		s.known.see(r.q.path, v.found)
	}
	if r.q.alone {
		return v, nil
	}
	kids := next()
	v.children = kids.Count
	if r.q.names {
		rest := next()
		v.children = int64(len(kids.Kvs) + len(rest.Kvs))
		v.names = make([]string, 0, v.children)
		for _, kv := range slices.Concat(kids.Kvs, rest.Kvs) {
			path, ok := s.cfg.pathOf(kv)
			dir, name := "", ""
			if ok {
				dir, name = split(path)
			}
			if dir != r.q.path {
				s.foreign.Do(func() {
					s.log.Warn("coord: ignoring a key below the prefix that was not written by this library", "key", fmt.Sprintf("%.200q", kv.Key))
				})
				v.children--
				continue
			}
			v.names = append(v.names, name)
			if key := string(kv.Key); isNumbered(key) {
				s.known.setKey(path, keyOfNode{key, kv.CreateRevision, kv.Lease != 0})
			}
		}
	}
	if r.q.since >= 0 {
		past, modified := next(), next()
		v.changed = past.Count != v.children || len(modified.Kvs) == mostModified
		for _, kv := range modified.Kvs {
			child, err := decode(kv)
			if err != nil {
				v.changed = true // of another program
				continue
			}
			v.changed = v.changed || child.czxid() > r.q.since
		}
	}
	return v, nil
}

// mostRequests is the number of operations that a server takes in one request.
const mostRequests = 128

// mostAsked is the size of the operations in one request that reads several nodes. A server takes
// 2 MiB.
const mostAsked = 1 << 20

// lookAll reads many nodes: as many with each request as it takes, up to most.
func (s *session) lookAll(ctx context.Context, l *link, questions []question, most int) ([]*view, error) {
	views := make([]*view, 0, len(questions))
	for len(views) < len(questions) {
		var readers []*reader
		var ops []*pb.RequestOp
		size := 0
		for _, q := range questions[len(views):] {
			r := s.reader(q, l.revision.Load())
			for _, op := range r.ops {
				size += op.Size()
			}
			if len(readers) == most || len(readers) > 0 && (len(ops)+len(r.ops) > mostRequests || size > mostAsked) {
				break
			}
			readers = append(readers, r)
			ops = append(ops, r.ops...)
		}
		reply, err := l.kv.Txn(ctx, &pb.TxnRequest{Success: ops})
		if err != nil {
			return nil, err
		}
		if size := reply.Size(); size < 1<<18 {
			most = min(2*most, mostRequests)
		} else if size > 1<<21 {
			most = max(1, most/2)
		}
		answers := reply.Responses
		for _, r := range readers {
			v, err := r.view(s, reply.Header.Revision, answers[:len(r.ops)])
			if err != nil {
				return nil, err
			}
			views, answers = append(views, v), answers[len(r.ops):]
		}
	}
	return views, nil
}

// firstReads is the number of nodes in the first request of several. It is not known how large they
// are.
const firstReads = 16

// look reads one node.
func (s *session) look(ctx context.Context, l *link, path string, names bool) (*view, error) {
	views, err := s.lookAll(ctx, l, []question{{path: path, names: names, since: -1}}, 1)
	if err != nil {
		return nil, err
	}
	return views[0], nil
}

// keyOf returns the key of a node, or the key that it would be created with. It reads a node whose name can
// end with a sequence number, if the session does not know its key.
func (s *session) keyOf(ctx context.Context, l *link, path string) (string, error) {
	if key := s.known.key(path); key != "" {
		return key, nil
	}
	if ways, _ := near(s.cfg.sequences(path), l.revision.Load()); len(ways) == 0 {
		return s.cfg.literalKey(path), nil
	}
	v, err := s.look(ctx, l, path, false)
	if err != nil {
		return "", err
	}
	return v.key, nil
}

// observe reads a node, and arms the watch unless the node is missing and must not be.
func (s *session) observe(ctx context.Context, op, path string, names bool, w *backend.Watch) (*view, error) {
	if err := s.CheckPath(path); err != nil {
		e := *err.(*backend.Error)
		e.Op = op
		return nil, &e
	}
	var v *view
	err := s.read(ctx, func(ctx context.Context, l *link) (err error) {
		if w == nil {
			if v, err = s.look(ctx, l, path, names); err != nil {
				return err
			}
			return s.fired(ctx, l, v, names)
		}
		key, err := s.keyOf(ctx, l, path)
		if err != nil {
			return err
		}
		all, err := s.hub.begin(l, map[string]string{path: key}, backend.Target{Path: path, Children: names, Watch: w})
		if err != nil {
			return err
		}
		i := all[0]
		v, err = s.lookBeside(ctx, l, i, names)
		if err != nil || v.found == nil && op != "exists" {
			s.hub.abandon(i)
		} else {
			s.hub.settle(i, v)
		}
		return err
	})
	missing := err == nil && v.found == nil
	if missing {
		err = backend.ErrNotFound
	}
	if err != nil {
		if !missing || op != "exists" {
			w.Stop()
		}
		return nil, &backend.Error{Op: op, Path: path, Err: err}
	}
	return v, nil
}

// lookBeside reads a node while the server makes the watchers of an interest. The result is no
// older than they are; what changed later fires the watch when it is armed.
func (s *session) lookBeside(ctx context.Context, l *link, i *interest, names bool) (*view, error) {
	for {
		v, err := s.look(ctx, l, i.path, names)
		if err != nil {
			return nil, err
		}
		if !i.fits(v) {
			return nil, errAgain
		}
		start, err := s.hub.wait(ctx, i.node, i.kids)
		if err != nil {
			return nil, err
		}
		if v.rev >= start {
			return v, s.follow(ctx, l, v, names, s.hub.latest())
		}
	}
}

// follow waits for the events that must fire before a watch is armed by a read: those that the
// read shows, and those up to a revision that has fired. Events of that revision can be later than
// the read, and one before them still on its way: that of a watcher whose creation the server had
// not reported when they came.
func (s *session) follow(ctx context.Context, l *link, v *view, names bool, latest int64) error {
	if l.ordered && v.rev < latest {
		if err := s.hub.flush(ctx, l, latest); err != nil {
			return err
		}
	}
	return s.fired(ctx, l, v, names)
}

// fired waits until the watches have fired for what a read shows.
func (s *session) fired(ctx context.Context, l *link, v *view, names bool) error {
	if need := s.hub.need(v, names); need > 0 {
		return s.hub.flush(ctx, l, need)
	}
	return nil
}

func (s *session) Get(ctx context.Context, path string, w *backend.Watch) ([]byte, backend.Stat, error) {
	v, err := s.observe(ctx, "get", path, false, w)
	if err != nil {
		return nil, backend.Stat{}, err
	}
	return v.data(), v.stat(), nil
}

func (s *session) Exists(ctx context.Context, path string, w *backend.Watch) (backend.Stat, error) {
	v, err := s.observe(ctx, "exists", path, false, w)
	if err != nil {
		return backend.Stat{}, err
	}
	return v.stat(), nil
}

func (s *session) Children(ctx context.Context, path string, w *backend.Watch) ([]string, backend.Stat, error) {
	v, err := s.observe(ctx, "children", path, true, w)
	if err != nil {
		return nil, backend.Stat{}, err
	}
	return v.names, v.stat(), nil
}

func (v *view) stat() backend.Stat { return v.found.stat(v.children, v.rev) }

func (v *view) data() []byte {
	if len(v.found.data) == 0 {
		return nil
	}
	return v.found.data
}

func (s *session) Arm(ctx context.Context, since int64, targets ...backend.Target) error {
	stop := func() {
		for _, t := range targets {
			t.Watch.Stop()
		}
	}
	if err := s.checkTargets(targets); err != nil {
		stop()
		return err
	}
	err := s.read(ctx, func(ctx context.Context, l *link) error { return s.arm(ctx, l, since, targets) })
	if err != nil {
		stop()
		return &backend.Error{Op: "arm", Path: targets[0].Path, Err: err}
	}
	return nil
}

func (s *session) checkTargets(targets []backend.Target) error { return backend.CheckTargets(targets) }

func (s *session) arm(ctx context.Context, l *link, since int64, targets []backend.Target) (err error) {
	// Each node is read once, for its children if a target wants them.
	var questions []question
	index := make(map[string]int)
	keys := make(map[string]string)
	for _, t := range targets {
		if _, ok := keys[t.Path]; !ok {
			if keys[t.Path], err = s.keyOf(ctx, l, t.Path); err != nil {
				return err
			}
		}
	}
	interests, err := s.hub.begin(l, keys, targets...)
	if err != nil {
		return err
	}
	settled := false
	defer func() {
		for _, i := range interests {
			if !settled {
				s.hub.abandon(i)
			}
		}
	}()
	for n, t := range targets {
		at, ok := index[t.Path]
		if !ok {
			at = len(questions)
			index[t.Path] = at
			questions = append(questions, question{path: t.Path, since: -1})
		}
		if interests[n].kids != nil && since > 0 && since < math.MaxInt64 {
			questions[at].since = since
		}
	}
	var views []*view
	for {
		views, err = s.lookAll(ctx, l, questions, mostRequests)
		late := is(err, rpctypes.ErrGRPCCompacted)
		if late || is(err, rpctypes.ErrGRPCFutureRev) {
			// Nothing has changed since a revision that is to come. What has changed since one
			// that the service has forgotten, the client cannot know.
			for n := range questions {
				questions[n].since = -1
			}
			if late {
				since = 0
			} else {
				since = math.MaxInt64
			}
			continue
		}
		if err != nil {
			return err
		}
		// All watchers exist after this loop, so the second reading is not older than any of them.
		old := false
		for _, i := range interests {
			v := views[index[i.path]]
			if !i.fits(v) {
				return errAgain
			}
			start, err := s.hub.wait(ctx, i.node, i.kids)
			if err != nil {
				return err
			}
			old = old || v.rev < start
		}
		if !old {
			break
		}
	}
	latest := s.hub.latest()
	for _, v := range views {
		if err := s.follow(ctx, l, v, false, latest); err != nil {
			return err
		}
	}
	settled = true
	for _, i := range interests {
		v := views[index[i.path]]
		if v.found == nil || i.changedAfter(v, since) {
			i.watch.Fire(backend.LookAgain)
			s.hub.abandon(i)
			continue
		}
		s.hub.settle(i, v)
	}
	return nil
}

// changedAfter reports whether what the interest watches has changed after a revision.
func (i *interest) changedAfter(v *view, since int64) bool {
	if !i.children {
		return v.found.mod > since
	}
	return v.found.czxid() > since || i.kids != nil && (v.changed || since <= 0)
}

func (s *session) ReadMany(ctx context.Context, reads ...backend.Read) ([]backend.ReadResult, error) {
	first := ""
	if len(reads) > 0 {
		first = reads[0].Path
	}
	if !s.cfg.has.Has(backend.Batches) {
		return nil, &backend.Error{Op: "read", Path: first, Err: backend.ErrUnsupported}
	}
	if err := backend.CheckReads(reads); err != nil {
		return nil, err
	}
	questions := make([]question, len(reads))
	for i, r := range reads {
		questions[i] = question{path: r.Path, names: r.Children, since: -1}
	}
	var views []*view
	err := s.read(ctx, func(ctx context.Context, l *link) (err error) {
		if views, err = s.lookAll(ctx, l, questions, firstReads); err != nil {
			return err
		}
		for i, v := range views {
			if err := s.fired(ctx, l, v, questions[i].names); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, &backend.Error{Op: "read", Path: first, Err: err}
	}
	results := make([]backend.ReadResult, len(reads))
	for i, v := range views {
		switch {
		case v.found == nil:
			op := "get"
			if reads[i].Children {
				op = "children"
			}
			results[i].Err = &backend.Error{Op: op, Path: reads[i].Path, Err: backend.ErrNotFound}
		case reads[i].Children:
			results[i].Names = v.names
		default:
			results[i].Data, results[i].Stat = v.data(), v.stat()
		}
	}
	return results, nil
}

func (s *session) Sync(ctx context.Context, path string) error {
	if err := s.CheckPath(path); err != nil {
		e := *err.(*backend.Error)
		e.Op = "sync"
		return &e
	}
	before := s.underWay()
	err := s.read(ctx, func(ctx context.Context, l *link) error {
		for _, done := range before {
			select {
			case <-done:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		if err := s.settle(ctx, l); err != nil {
			return err
		}
		reply, err := l.kv.Range(ctx, &pb.RangeRequest{Key: []byte(s.key)})
		if err != nil {
			return err
		}
		if err := s.checkEpoch(reply); err != nil {
			return err
		}
		return s.hub.flush(ctx, l, reply.Header.Revision)
	})
	if err != nil {
		return &backend.Error{Op: "sync", Path: path, Err: err}
	}
	return nil
}

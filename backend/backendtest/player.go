package backendtest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-coord/coord/backend"
)

// A player plays a script on one service, and records results in a form that is the same for
// every service: paths relative to the root, sessions by the order of their opening, and
// zxids separately.
type player struct {
	ctx        context.Context
	svc        Service
	limit      time.Duration
	slots      [scriptSessions]*actor
	opened     map[int64]int // session ID to its number
	sequential []string      // paths of sequential nodes, oldest first
	prefixes   []string      // their prefixes
	watches    []*played
	trees      []*playedTree
	zxids      []int64        // all zxids seen, oldest first
	counts     map[string]int // number of events by kind
	unlike     unlike
}

// unlike has the clauses that Differ does not compare, since one of the services may keep them otherwise.
type unlike struct {
	advisory  bool // Pzxid and Cversion
	numbers   bool // sequence numbers, except their order
	refusals  bool // whether a commit is uncertain that is refused, and whose request or reply is lost
	transient bool // what watches report of a commit with several operations for one node
	arming    bool // whether an Arm that finds a change fires the earlier watches of the node too
}

// unlikeOf returns the groups in which one of two services keeps a clause that begins with "(may)"
// otherwise.
func unlikeOf(a, b Harness) (u unlike) {
	for _, name := range slices.Concat(a.Unlike, b.Unlike) {
		group, _, _ := strings.Cut(name, "/")
		u.advisory = u.advisory || group == "stat"
		u.numbers = u.numbers || group == "sequence"
		u.refusals = u.refusals || group == "lost packets"
		u.transient = u.transient || group == "watch"
		u.arming = u.arming || group == "watch" || group == "arm"
	}
	return u
}

// An actor is a session in a slot.
type actor struct {
	backend.Session
	link Link
}

// A played watch belongs to a step of the script.
type played struct {
	*backend.Watch
	owner   *actor
	path    string // of its node
	parent  string // the node whose children it watches, if it does
	armed   bool
	stopped bool
	told    bool // its firing has been reported, or is not compared
}

// A played tree watch belongs to a step of the script.
type playedTree struct {
	*backend.TreeWatch
	owner *actor
	path  string
	ended bool // it was stopped, or has been reported as over
}

func newPlayer(t *testing.T, h Harness, u unlike) *player {
	return &player{
		unlike: u,
		ctx:    t.Context(),
		svc:    h.New(t),
		limit:  10*time.Second + 4*h.SessionTimeout,
		opened: make(map[int64]int),
		counts: make(map[string]int),
	}
}

// end closes all open sessions.
func (p *player) end() error {
	var errs []error
	for _, a := range p.slots {
		if a != nil {
			errs = append(errs, a.Close())
		}
	}
	return errors.Join(errs...)
}

// play plays one step and then checks all watches.
func (p *player) play(st step) *observation {
	o := new(observation)
	ctx, cancel := context.WithTimeout(p.ctx, p.limit)
	defer cancel()
	a := p.slots[st.session]
	if a == nil {
		link := p.svc.Link(fmt.Sprint("slot", st.session))
		s, err := link.Open(ctx)
		if err != nil {
			o.addf("open: %v\n", err)
			return o
		}
		a = &actor{s, link}
		p.slots[st.session] = a
		p.opened[s.ID()] = len(p.opened) + 1
	}
	p.act(ctx, o, st, a)
	p.zxids = append(p.zxids, o.zxids...)
	p.lookAround(ctx, o, st, a)
	return o
}

func (p *player) act(ctx context.Context, o *observation, st step, a *actor) {
	var w *backend.Watch
	if st.watch {
		w = backend.NewWatch()
	}
	path := p.path(st.node)
	switch st.what {
	case commitStep, lostRequestStep, lostReplyStep:
		switch st.what {
		case lostRequestStep:
			a.link.DropNextRequest()
		case lostReplyStep:
			a.link.DropNextReply()
		}
		ops := p.ops(st.ops)
		if p.unlike.transient && severalFor(ops) {
			ops = ops[:1]
		}
		results, err := a.Commit(ctx, ops...)
		if st.what != commitStep && (backend.CheckOps(ops) != nil || p.unlike.refusals && !errors.Is(err, backend.ErrUncertain)) {
			a.Sync(ctx, "/") // consumes the fault, which the refused commit did not
		}
		if p.unlike.refusals && st.what != commitStep {
			if errors.Is(err, backend.ErrUncertain) {
				p.counts["error: uncertain"]++
			}
			break
		}
		p.tell(o, err)
		for i, r := range results {
			if ops[i].Kind == backend.OpCreate && ops[i].Mode.Sequential() {
				p.sequential, p.prefixes = append(p.sequential, r.Path), append(p.prefixes, p.short(ops[i].Path))
			}
			o.addf("result %d: %s ", i, p.short(r.Path))
			p.stat(o, r.Stat, ops[i].Kind == backend.OpSetData || ops[i].Kind == backend.OpCarry)
			if ops[i].Kind == backend.OpCreate && ops[i].Mode.Sequential() {
				switch {
				case strings.Contains(r.Path, "--"):
					p.counts["number past the end"]++
				case strings.HasSuffix(r.Path, "2147483647"):
					p.counts["last number"]++
				}
			}
		}
	case getStep:
		data, stat, err := a.Get(ctx, path, w)
		p.keep(w, a, path, err == nil)
		p.tell(o, err)
		o.addf("data %s nil %v ", brief(string(data)), data == nil)
		p.stat(o, stat, err == nil)
	case existsStep:
		stat, err := a.Exists(ctx, path, w)
		p.keep(w, a, path, err == nil || errors.Is(err, backend.ErrNotFound))
		p.tell(o, err)
		p.stat(o, stat, err == nil)
	case childrenStep:
		names, stat, err := a.Children(ctx, path, w)
		p.keep(w, a, path, err == nil)
		if w != nil {
			p.watches[len(p.watches)-1].parent = path
		}
		p.tell(o, err)
		o.addf("children %q ", p.names(path, names))
		p.stat(o, stat, err == nil)
	case syncStep:
		p.tell(o, a.Sync(ctx, path))
	case collectStep:
		p.collect(ctx, o, a, path, w)
	case armStep:
		var targets []backend.Target
		for _, t := range st.targets {
			targets = append(targets, backend.Target{Path: p.path(t.node), Children: t.children, Watch: backend.NewWatch()})
		}
		err := a.Arm(ctx, p.since(st.since), targets...)
		p.tell(o, err)
		for i, t := range targets {
			p.keep(t.Watch, a, t.Path, err == nil)
			if t.Children {
				p.watches[len(p.watches)-1].parent = t.Path
			}
			if t.Children && (p.unlike.transient || p.startles(a, t.Path, targets)) {
				continue
			}
			o.addf("target %d: %v\n", i, t.Watch.Kind())
			if err == nil {
				p.counts["arm: "+t.Watch.Kind().String()]++
			}
		}
		for _, w := range p.watches {
			if w.owner == a && !w.told && !w.stopped && (w.parent != "" && p.startles(a, w.parent, targets) || p.unlike.arming && aimed(w, targets)) {
				w.Stop()
				w.told = true
				p.counts["arm: not compared"]++
			}
		}
	case treeStep:
		w := backend.NewTreeWatch(0)
		err := a.WatchTree(ctx, path, w)
		p.tell(o, err)
		if err == nil {
			p.trees = append(p.trees, &playedTree{TreeWatch: w, owner: a, path: path})
		}
	case manyStep:
		var reads []backend.Read
		for _, t := range st.targets {
			reads = append(reads, backend.Read{Path: p.path(t.node), Children: t.children})
		}
		results, err := a.ReadMany(ctx, reads...)
		p.tell(o, err)
		for i, r := range results {
			p.tell(o, r.Err)
			switch {
			case r.Err != nil:
				p.counts["read of many: error"]++
			case reads[i].Children:
				p.counts["read of many: children"]++
			default:
				p.counts["read of many: data"]++
			}
			o.addf("read %d: data %s nil %v children %q ", i, brief(string(r.Data)), r.Data == nil, p.names(reads[i].Path, r.Names))
			p.stat(o, r.Stat, r.Err == nil && !reads[i].Children)
		}
	case stopTreeStep:
		var own []*playedTree
		for _, w := range p.trees {
			if w.owner == a && !w.ended {
				own = append(own, w)
			}
		}
		if len(own) > 0 {
			w := own[st.victim%len(own)]
			w.Stop()
			w.ended = true
		}
	case stopStep:
		var own []*played
		for _, w := range p.watches {
			if w.owner == a && !w.told && !w.stopped {
				own = append(own, w)
			}
		}
		if len(own) > 0 {
			w := own[st.victim%len(own)]
			w.Stop()
			w.stopped = true
		}
	case closeStep:
		p.tell(o, a.Close())
		p.slots[st.session] = nil
	case expireStep:
		a.link.Expire(a.ID())
		select {
		case <-a.Done():
			p.tell(o, a.Err())
		case <-ctx.Done():
			o.addf("the session has not ended\n")
		}
		p.tell(o, a.Close())
		p.slots[st.session] = nil
	}
	p.counts[st.what.String()]++
}

// startles reports whether an Arm may fire the watches of a for the children of parent, without
// a change of them: a has, or had, a tree watch there, and a target is a child.
func (p *player) startles(a *actor, parent string, targets []backend.Target) bool {
	watched := slices.ContainsFunc(p.trees, func(w *playedTree) bool { return w.owner == a && w.path == parent })
	return watched && slices.ContainsFunc(targets, func(t backend.Target) bool { return t.Path != parent && path.Dir(t.Path) == parent })
}

// lookAround lets all sessions catch up and records the watches that have fired.
func (p *player) lookAround(ctx context.Context, o *observation, st step, actor *actor) {
	for i, a := range p.slots {
		if a == nil {
			continue
		}
		if err := a.Sync(ctx, "/"); err != nil {
			o.addf("session %d does not sync: %v\n", i, err)
		}
	}
	broke := st.what >= lostRequestStep && st.what <= expireStep
	p.lookAtTrees(ctx, o, broke, st.what == armStep, actor)
	for i, w := range p.watches {
		if w.told || w.stopped {
			if w.stopped && hasFired(w.Watch) {
				o.addf("stopped watch %d has fired\n", i)
			}
			continue
		}
		own := broke && w.owner == actor
		if own && w.armed {
			// A break or the end of the session fires all its watches, in time.
			select {
			case <-w.Fired():
			case <-ctx.Done():
			}
		}
		kind := w.Kind()
		if kind == 0 {
			if own && w.armed {
				o.addf("watch %d is silent\n", i)
			}
			continue
		}
		w.told = true
		p.counts["watch fired: "+kind.String()]++
		if own {
			// Whether the deletion or the break came first is random.
			o.addf("watch %d has fired\n", i)
		} else {
			o.addf("watch %d has fired: %v\n", i, kind)
		}
	}
}

// lookAtTrees records the changes that the tree watches have reported. The tree watches of a session that
// breaks or ends are over soon; the deletions of its ephemerals have no order. An Arm may make them report
// again a change that it has found.
func (p *player) lookAtTrees(ctx context.Context, o *observation, broke, arms bool, actor *actor) {
	for i, w := range p.trees {
		if w.ended {
			if all, _ := w.Take(); len(all) > 0 {
				o.addf("tree watch %d told %v when it had ended\n", i, all)
			}
			continue
		}
		all, over := w.Take()
		for broke && w.owner == actor && !over {
			select {
			case <-w.Ready():
				_, over = w.Take()
				continue
			case <-ctx.Done():
				o.addf("tree watch %d is not over\n", i)
			}
			break
		}
		if over {
			w.ended = true
			p.counts["tree watch over"]++
			o.addf("tree watch %d is over\n", i)
			continue
		}
		if arms && w.owner == actor {
			continue
		}
		for _, c := range all {
			p.learn([]string{c.Path})
		}
		slices.SortStableFunc(all, func(a, b backend.TreeChange) int { return strings.Compare(p.short(a.Path), p.short(b.Path)) })
		for _, c := range all {
			p.counts["tree: "+c.Kind.String()]++
			o.addf("tree watch %d: %v %s\n", i, c.Kind, p.short(c.Path))
		}
	}
}

// collect makes a container at path, uses it, with a watch of it if w is not nil, and waits until the
// service has removed it.
func (p *player) collect(ctx context.Context, o *observation, a *actor, path string, w *backend.Watch) {
	_, err := a.Commit(ctx, backend.Create(path, []byte("box"), backend.Container))
	p.tell(o, err)
	if err != nil {
		return
	}
	if w != nil {
		_, stat, err := a.Get(ctx, path, w)
		p.keep(w, a, path, err == nil)
		p.tell(o, err)
		p.stat(o, stat, err == nil)
	}
	child := path + "/x"
	for _, op := range []backend.Op{backend.Create(child, nil, backend.Ephemeral), backend.Delete(child, backend.AnyVersion)} {
		_, err := a.Commit(ctx, op)
		p.tell(o, err)
		if err != nil {
			return
		}
	}
	for {
		fired := backend.NewWatch()
		_, err := a.Exists(ctx, path, fired)
		if err != nil {
			fired.Stop()
			p.tell(o, err)
			break
		}
		select {
		case <-fired.Fired():
		case <-ctx.Done():
			fired.Stop()
			o.addf("the container is not removed\n")
			return
		}
	}
	p.counts["container collected"]++
}

func (p *player) keep(w *backend.Watch, a *actor, path string, armed bool) {
	if w != nil {
		p.watches = append(p.watches, &played{Watch: w, owner: a, path: path, armed: armed})
	}
}

// severalFor reports whether a commit has several operations that change one node.
func severalFor(ops []backend.Op) bool {
	changed := make(map[string]bool)
	for _, op := range ops {
		if op.Kind == backend.OpCheck || op.Kind == backend.OpAbsent || op.Kind == backend.OpCreate && op.Mode.Sequential() {
			continue
		}
		if changed[op.Path] {
			return true
		}
		changed[op.Path] = true
	}
	return false
}

// aimed reports whether a watch is at a node of an Arm, which may fire it, or is for children
// and belongs to the Arm.
func aimed(w *played, targets []backend.Target) bool {
	return slices.ContainsFunc(targets, func(t backend.Target) bool {
		return t.Path == w.path && (t.Watch != w.Watch || t.Children)
	})
}

// since returns a zxid that denotes the same moment on every service.
func (p *player) since(r sinceRef) int64 {
	if r.latest == 0 || len(p.zxids) == 0 {
		return math.MaxInt64
	}
	z := p.zxids[len(p.zxids)-1-(r.latest-1)%len(p.zxids)]
	if r.before {
		z--
	}
	return z
}

// path returns the full path of a node.
func (p *player) path(r nodeRef) string {
	if r.below {
		r.below = false
		return p.path(r) + "/z"
	}
	if r.latest > 0 && len(p.sequential) > 0 {
		return p.sequential[len(p.sequential)-1-(r.latest-1)%len(p.sequential)]
	}
	root := strings.TrimSuffix(p.svc.Root(), "/")
	if r.path == "" {
		return p.svc.Root()
	}
	return root + "/" + r.path
}

func (p *player) ops(ops []scriptOp) []backend.Op {
	all := make([]backend.Op, len(ops))
	for i, op := range ops {
		all[i] = backend.Op{Kind: op.kind, Path: p.path(op.node)}
		switch op.kind {
		case backend.OpCreate:
			all[i].Data, all[i].Mode = []byte(op.data), op.mode
			if op.node.latest == 0 && op.node.path == "" {
				all[i].Path = "/" // a root cannot be created, whatever its path
			}
		case backend.OpSetData, backend.OpCarry:
			all[i].Data, all[i].Version = []byte(op.data), op.version
		default:
			all[i].Version = op.version
			if op.kind == backend.OpDelete && op.node.latest == 0 && op.node.path == "" {
				all[i].Path = "/"
			}
		}
	}
	return all
}

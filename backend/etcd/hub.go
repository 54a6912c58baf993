package etcd

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/internal/contact"
)

// hub holds the watches of a session, and the watchers on the server that serve them. A watcher
// covers the key of one node, the keys of its children, or all keys below it. Watches of one node
// share its watchers. A watcher is made from "now", in parallel with the read whose watch it
// serves: the read then shows at least what came before the watcher.
//
// Under the lock the hub only marks watches: no I/O, and no foreign code except Arm and Fire
// of backend.Watch, which call none.
type hub struct {
	s *session

	mu    sync.Mutex
	ended bool
	link  *link  // whose stream serves the watches, or nil
	token string // with which the stream was opened

	queue    []*pb.WatchRequest // to be sent
	next     int64              // the last id of a watcher
	watchers map[watchKey]*watcher
	byID     map[int64]*watcher
	creating []*watcher // without an answer, in the order of their requests
	own      *watcher   // of the session key
	places   map[string]*place
	trees    []*armedTree
	order    int64
	armed    int // interests and trees that are armed

	// The order of the events: see order.go.
	asked     []ask // progress requests without a reply
	pending   bool  // one of them was made after the latest reply
	unproved  map[int64]*watcher
	pulse     pulse
	looked    contact.Instant // the latest look at the pulse
	since     int             // responses since the request of the latest reply
	held      []*batch        // events whose turn is not certain
	tries     int             // repeated progress requests since one of those events has fired
	delivered int64           // all events of proved watchers up to this revision have come
	fired     int64           // the latest revision whose events have fired
	moved     chan struct{}   // closed and replaced when events have come, or the link changes
}

type watchRange int8

const (
	nodeRange watchRange = iota + 1
	kidsRange
	belowRange
	markRange // no events
)

type watchKey struct {
	what watchRange
	key  string // of the node, or the prefix of the keys
}

// watcher is one watcher of a stream.
type watcher struct {
	id      int64
	key     watchKey
	created chan struct{}   // closed when the server has made it, or the link is broken
	since   contact.Instant // when it was requested
	start   int64           // all events after this revision come; 0 before it is made
	refused error           // why the server has not made it
	latest  int64           // the revision of its latest event that has fired
	came    int64           // likewise, of the latest one that has come
	made    int64           // the revision at which the server has made it on this stream
	moving  bool            // requested on this stream, and made on the previous stream
	last    bool            // of those that were requested at once
	users   map[*interest]struct{}
	trees   map[*armedTree]struct{}
}

func newHub(s *session) *hub {
	return &hub{
		s: s, watchers: make(map[watchKey]*watcher), byID: make(map[int64]*watcher),
		unproved: make(map[int64]*watcher), places: make(map[string]*place), moved: make(chan struct{}),
	}
}

// attach makes the stream of a new link, with the watcher of the session key.
func (h *hub) attach(ctx context.Context, l *link) error {
	token := l.currentToken()
	stream, err := l.watches.Watch(l.ctx)
	if err != nil {
		return err
	}
	h.mu.Lock()
	if h.ended {
		h.mu.Unlock()
		return errBroken
	}
	moves := h.link != nil // the server ends the connection of the previous link
	h.link, h.token, h.pulse = l, token, pulse{proved: h.s.now()}
	h.looked = h.pulse.proved
	h.queue = nil
	if moves {
		h.moveWatchers()
	}
	h.own = h.watcherLocked(watchKey{nodeRange, h.s.key})
	own := h.own
	h.mu.Unlock()
	l.work.Add(2)
	go h.send(l, stream)
	go h.receive(l, stream)
	select {
	case <-own.created:
	case <-ctx.Done():
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}

// detach forgets the stream of a broken link. The watches stay armed until reconnected or end.
func (h *hub) detach(l *link) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.link != l {
		return
	}
	h.link = nil
	h.queue = nil
	for _, w := range h.byID {
		w.make(0)
	}
	h.own = nil
	h.forgetStream()
	h.held, h.delivered = nil, 0
	h.move()
}

func (h *hub) forgetStream() {
	h.byID, h.unproved = make(map[int64]*watcher), make(map[int64]*watcher)
	h.creating, h.asked, h.pending, h.since, h.tries = nil, nil, false, 0, 0
}

// reconnected fires all watches of earlier links, and ends their trees: events may be lost.
func (h *hub) reconnected(l *link) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.fireAll(func(w *watcher) bool { return w.id == 0 || h.byID[w.id] != w })
}

// end fires all watches, and each one that is armed later. It ends the trees.
func (h *hub) end() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ended = true
	h.fireAll(func(*watcher) bool { return true })
	for _, w := range h.byID {
		w.make(0)
	}
	h.move()
}

// fireAll fires the watches of some watchers in the order of their arming.
func (h *hub) fireAll(of func(*watcher) bool) {
	for _, t := range slices.Clone(h.trees) {
		if of(t.below) {
			t.watch.Over()
			h.dropTree(t)
		}
	}
	var all []*interest
	for _, w := range h.watchers {
		if of(w) {
			for i := range w.users {
				all = append(all, i)
			}
		}
	}
	slices.SortFunc(all, func(a, b *interest) int { return int(a.order - b.order) })
	for _, i := range all {
		if i.armed && !i.gone {
			i.watch.Fire(backend.LookAgain)
		}
		h.drop(i)
	}
}

// watcherLocked returns the watcher of some keys, and requests it if there is none.
func (h *hub) watcherLocked(key watchKey) *watcher {
	w := h.watchers[key]
	if w != nil && h.byID[w.id] == w {
		return w
	}
	h.next++
	w = &watcher{id: h.next, key: key, created: make(chan struct{}), users: make(map[*interest]struct{}), trees: make(map[*armedTree]struct{})}
	if key.key != h.s.key {
		h.watchers[key] = w
	}
	h.requestWatcher(w, 0)
	return w
}

// moveWatchers requests the watchers on the stream of another link, from where the old stream has ended
// for them.
func (h *hub) moveWatchers() {
	upTo := h.certain()
	old := slices.Collect(maps.Values(h.byID))
	slices.SortFunc(old, func(a, b *watcher) int { return int(a.id - b.id) })
	h.forgetStream()
	var latest *watcher
	for _, w := range old {
		if w.key.key == h.s.key {
			w.make(0)
			continue
		}
		if w.last = false; w.start > 0 {
			w.start = max(w.start, w.came, upTo)
		}
		w.moving = w.start > 0
		h.requestWatcher(w, w.start)
		latest = w
	}
	if latest != nil && h.link.ordered {
		latest.last = true
	}
	if len(h.held) > 0 {
		h.fireHeld()
	}
}

// requestWatcher requests a watcher for the events after a revision, or from now on.
func (h *hub) requestWatcher(w *watcher, after int64) {
	w.since = h.s.now()
	h.byID[w.id] = w
	h.creating = append(h.creating, w)
	if w.key.key != h.s.key && h.link.ordered {
		h.unproved[w.id] = w
	}
	from, to := w.key.bounds()
	r := &pb.WatchCreateRequest{Key: from, RangeEnd: to, WatchId: w.id}
	if after > 0 {
		r.StartRevision = after + 1
	}
	switch w.key.what {
	case markRange:
		r.Filters = []pb.WatchCreateRequest_FilterType{pb.WatchCreateRequest_NOPUT, pb.WatchCreateRequest_NODELETE}
	case belowRange:
		r.PrevKv = true // a deletion does not show the name and the number of a sequential node
	}
	h.request(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: r}})
}

// bounds returns the first key of the range, and the key behind it; none if the range is one key.
func (k watchKey) bounds() (from, to []byte) {
	if k.what == kidsRange || k.what == belowRange {
		to = []byte(after(k.key))
	}
	return []byte(k.key), to
}

// make marks the watcher as made, or as broken.
func (w *watcher) make(start int64) {
	select {
	case <-w.created:
	default:
		w.start = start
		close(w.created)
	}
}

// request queues a request for the stream.
func (h *hub) request(r *pb.WatchRequest) {
	if h.link == nil {
		return
	}
	h.queue = append(h.queue, r)
	h.link.stir()
}

// release cancels a watcher that nothing uses.
func (h *hub) release(w *watcher) {
	if w == nil || w == h.own || len(w.users) > 0 || len(w.trees) > 0 {
		return
	}
	if h.watchers[w.key] == w {
		delete(h.watchers, w.key)
	}
	if h.byID[w.id] == w {
		delete(h.byID, w.id)
		delete(h.unproved, w.id)
		h.request(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CancelRequest{CancelRequest: &pb.WatchCancelRequest{WatchId: w.id}}})
	}
}

// send writes the requests of the stream. While events are held, it asks for a progress reply
// again and again, for half the lease. It supervises the stream, see prove.
func (h *hub) send(l *link, stream pb.Watch_WatchClient) {
	defer l.work.Done()
	look := time.NewTicker(max(h.s.Lease()/pulses, time.Millisecond))
	defer look.Stop()
	again := time.NewTimer(lagging)
	again.Stop()
	defer again.Stop()
	for waiting := false; ; {
		h.mu.Lock()
		var queue []*pb.WatchRequest
		held := false
		if h.link == l {
			queue, h.queue = h.queue, nil
			held = len(h.held) > 0
		}
		h.mu.Unlock()
		for _, r := range queue {
			if err := stream.Send(r); err != nil {
				return // the receiver learns the reason
			}
		}
		if held && !waiting {
			again.Reset(lagging)
			waiting = true
		}
		if len(queue) > 0 {
			continue
		}
		select {
		case <-l.wake:
		case <-again.C:
			waiting = false
			if err := h.askAgain(l); err != nil {
				l.fail(err)
				return
			}
		case <-look.C:
			fence, err := h.prove(l)
			if err != nil {
				l.fail(err)
				return
			}
			if fence {
				l.work.Add(1)
				go h.fence(l)
			}
		case <-l.ctx.Done():
			return
		}
	}
}

// receive reads the stream.
func (h *hub) receive(l *link, stream pb.Watch_WatchClient) {
	defer l.work.Done()
	for {
		r, err := stream.Recv()
		if err == nil {
			err = h.handle(l, r)
		}
		if err != nil {
			l.fail(fmt.Errorf("watch: %w", err))
			return
		}
	}
}

// handle handles a response of the stream. An error means that events may be lost.
func (h *hub) handle(l *link, r *pb.WatchResponse) error {
	h.mu.Lock()
	if h.link != l || h.ended {
		h.mu.Unlock()
		return nil
	}
	w := h.byID[r.WatchId]
	if err := checkWatch(r, w); err != nil {
		h.mu.Unlock()
		return err
	}
	if err := h.s.past.events(r); err != nil {
		h.mu.Unlock()
		return h.s.another(err)
	}
	h.since++
	for i := range h.asked {
		h.asked[i].received++
	}
	revoked := false
	switch {
	case r.Created && r.Canceled:
		if err := h.refuse(r); err != nil {
			h.mu.Unlock()
			return err
		}
	case r.Created:
		last := false
		h.creating = slices.DeleteFunc(h.creating, func(c *watcher) bool {
			last = last || c.id == r.WatchId && c.last
			return c.id == r.WatchId
		})
		if w != nil {
			w.make(r.Header.Revision)
			w.made, w.moving = r.Header.Revision, false
			h.told(w)
		}
		if last {
			h.ask() // an earlier reply could overtake this response, and prove nothing of them
		}
	case r.Canceled || r.CompactRevision != 0:
		if w != nil {
			h.mu.Unlock()
			return fmt.Errorf("etcd: the server has ended a watch: %s (compacted at %d)", r.CancelReason, r.CompactRevision)
		}
	case len(r.Events) == 0:
		h.progress(r.Header.Revision)
	case w == h.own:
		revoked = h.ownEvents(r.Events)
	case w != nil:
		for len(r.Events) > 0 {
			rev, n := r.Events[0].Kv.ModRevision, 1
			for n < len(r.Events) && r.Events[n].Kv.ModRevision == rev {
				n++
			}
			h.held = append(h.held, &batch{rev, w, r.Events[:n:n]})
			w.came = rev
			r.Events = r.Events[n:]
		}
		h.fireHeld()
		if len(h.held) > mostHeld {
			h.mu.Unlock()
			return errNoProgress
		}
	}
	h.mu.Unlock()
	if revoked {
		h.s.end(errRevoked)
	}
	return nil
}

// refuse handles the refusal of a watcher, which does not name it. Servers answer in order, so it
// is the oldest one. A missing permission affects only the watches that need the watcher.
func (h *hub) refuse(r *pb.WatchResponse) error {
	missing := rpctypes.ErrGRPCPermissionDenied
	if strings.Contains(r.CancelReason, rpctypes.ErrorDesc(rpctypes.ErrGRPCUserEmpty)) {
		missing = rpctypes.ErrGRPCUserEmpty // authentication has been switched on
	}
	own := len(h.creating) > 0 && h.creating[0] == h.own
	switch {
	case own && h.refusesUser(r):
		return fmt.Errorf("etcd: the server has refused the watch of the session: %w", translate(missing))
	case own || len(h.creating) == 0 || h.creating[0].moving || !strings.Contains(r.CancelReason, rpctypes.ErrorDesc(missing)):
		return fmt.Errorf("etcd: the server has refused a watch: %s", r.CancelReason)
	}
	w := h.creating[0]
	h.creating = h.creating[1:]
	if w.last {
		h.ask() // for the watchers that were requested before it
	}
	w.refused = missing
	delete(h.unproved, w.id)
	if h.byID[w.id] == w {
		delete(h.byID, w.id)
	}
	if h.watchers[w.key] == w {
		delete(h.watchers, w.key)
	}
	w.make(0)
	return nil
}

// refusesUser reports whether the refusal of the watcher of the session key is one of the user, and not of a token
// that is missing or old because authentication or the user was changed a moment ago. See wait for servers
// that do not tell an old token from a missing permission. Without a user there is no token.
func (h *hub) refusesUser(r *pb.WatchResponse) bool {
	if strings.Contains(r.CancelReason, rpctypes.ErrorDesc(rpctypes.ErrGRPCUserEmpty)) {
		return h.s.cfg.user == ""
	}
	return (h.link.tells || h.s.cfg.user == "") && strings.Contains(r.CancelReason, rpctypes.ErrorDesc(rpctypes.ErrGRPCPermissionDenied))
}

var errOldToken = errors.New("etcd: the authentication token of the watch stream is no longer valid")

// wait waits until the server has made some watchers; one can be nil. It returns the revision
// after which the events of all of them come.
//
// The caller has read the nodes before, so the link has a new token if that of the stream was not
// valid any more. Servers before 3.4.22 and 3.5.6 refuse a watcher for an old token as they do for
// a missing permission. A new link tells which of the two it is.
func (h *hub) wait(ctx context.Context, all ...*watcher) (start int64, err error) {
	for _, w := range all {
		if w == nil {
			continue
		}
		select {
		case <-w.created:
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
		h.mu.Lock()
		begun, alive, refused := w.start, h.byID[w.id] == w, w.refused
		old := h.link != nil && h.link.currentToken() != h.token
		h.mu.Unlock()
		switch {
		case refused != nil && old:
			return 0, errOldToken
		case refused != nil:
			return 0, refused
		case !alive:
			return 0, errBroken
		}
		start = max(start, begun)
	}
	return start, nil
}

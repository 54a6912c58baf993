package postgres

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/go-coord/coord/backend"
)

// hub holds the watches of a session. Each commit sends a notification, in the order of the commits. A reply has the position
// of the latest commit that it shows.
type hub struct {
	s *session

	mu       sync.Mutex
	ended    bool
	link     *link  // nil without contact
	secret   string // of the notifications
	received int64  // all events up to this position have arrived
	seen     int64  // the highest position of a reply or an event
	paths    map[string][]*armed
	trees    []*armedTree
	watches  int   // in paths and trees
	order    int64 // of the latest watch
	early    []early
	polls    bool
	wanted   chan struct{} // capacity 1: a reply is ahead of the events
}

type armed struct {
	w       *backend.Watch
	path    string
	kids    bool
	existed bool
	from    int64 // the events after this position fire it
	order   int64
}

type armedTree struct {
	w    *backend.TreeWatch
	path string
	from int64
}

// early is a reply whose events have not all arrived.
type early struct {
	z    int64
	free chan struct{}
}

func newHub(s *session) *hub {
	return &hub{s: s, paths: make(map[string][]*armed), polls: s.cfg.poll > 0, wanted: make(chan struct{}, 1)}
}

// sealOf is the seal of tell in schema.sql.
func sealOf(secret, payload string) string {
	sum := sha256.Sum256([]byte(secret + payload + secret))
	return hex.EncodeToString(sum[:16])
}

// endEvent is the event of the end of the session.
func (s *session) endEvent() string { return "x" + strconv.FormatInt(s.id, 10) }

// reached returns a channel that is closed when all events up to the position of a reply have arrived. It is nil if
// they have arrived, or if the session has no watch.
func (h *hub) reached(z int64) <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	if z <= h.received || h.watches == 0 || h.ended || h.link == nil {
		return nil
	}
	e := early{z, make(chan struct{})}
	h.early = append(h.early, e)
	select {
	case h.wanted <- struct{}{}:
	default:
	}
	return e.free
}

// saw records the position of a reply before its caller can know of it, and before the session can attach again.
func (h *hub) saw(z int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.seen = max(h.seen, z)
}

// position returns the highest position that the session has seen.
func (h *hub) position() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return max(h.seen, h.received)
}

// attach gives the hub its next link, whose events begin after z. Earlier watches may have missed events, so they fire.
func (h *hub) attach(l *link, z int64, secret string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.fireAll()
	h.link, h.received, h.secret = l, z, secret
}

func (h *hub) detach(l *link) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.link == l {
		h.link = nil
		h.releaseAll()
	}
}

// end fires all watches. The session has its error already.
func (h *hub) end() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ended = true
	h.fireAll()
	h.releaseAll()
}

// heard handles a notification: a seal, a position, the number of the part, '+' if more parts follow and '.' otherwise,
// and a line for each event. A notification without a valid seal is of another program, and ignored.
func (h *hub) heard(l *link, payload string) {
	seal, payload, _ := strings.Cut(payload, " ")
	h.mu.Lock()
	ours := h.link == l && seal == sealOf(h.secret, payload)
	h.mu.Unlock()
	if !ours {
		return
	}
	head, body, _ := strings.Cut(payload, "\n")
	number, part, _ := strings.Cut(head, " ")
	z, err := strconv.ParseInt(number, 10, 64)
	if err != nil || body == "" {
		return
	}
	if strings.HasPrefix(body+"\n", h.s.endEvent()+"\n") {
		h.s.end(errRevoked) // before the events of its nodes
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.link != l || h.ended || z <= h.received {
		return
	}
	for e := range strings.SplitSeq(body, "\n") {
		h.event(e, z)
	}
	if strings.HasSuffix(part, ".") {
		h.received = z
		h.release()
	}
}

// The methods below need the mutex.

func (h *hub) release() {
	h.early = slices.DeleteFunc(h.early, func(e early) bool {
		if e.z <= h.received {
			close(e.free)
		}
		return e.z <= h.received
	})
}

func (h *hub) releaseAll() {
	for _, e := range h.early {
		close(e.free)
	}
	h.early = nil
}

// arm arms a watch for the events after position from, on the link whose reply shows that position.
func (h *hub) arm(l *link, w *backend.Watch, path string, kids, existed bool, from int64) {
	if h.ended || h.link != l {
		w.Fire(backend.LookAgain)
		return
	}
	h.order++
	a := &armed{w, path, kids, existed, from, h.order}
	if !w.Arm(func(*backend.Watch) { h.mu.Lock(); defer h.mu.Unlock(); h.remove(a) }) {
		return
	}
	h.paths[path] = append(h.paths[path], a)
	h.counts(from)
}

func (h *hub) remove(a *armed) {
	all := h.paths[a.path]
	i := slices.Index(all, a)
	switch {
	case i < 0:
		return
	case len(all) == 1:
		delete(h.paths, a.path)
	default:
		h.paths[a.path] = slices.Delete(all, i, i+1)
	}
	h.watches--
}

func (h *hub) armTree(l *link, w *backend.TreeWatch, path string, from int64) {
	if h.ended || h.link != l {
		w.Over()
		return
	}
	t := &armedTree{w, path, from}
	if !w.Arm(func(*backend.TreeWatch) { h.mu.Lock(); defer h.mu.Unlock(); h.removeTree(t) }) {
		return
	}
	h.trees = append(h.trees, t)
	h.counts(from)
}

// counts counts a watch that needs the events after a position. A session that polls skips the events before its first watch.
func (h *hub) counts(from int64) {
	if h.watches == 0 && h.polls {
		h.received = max(h.received, from)
	}
	h.watches++
}

func (h *hub) removeTree(t *armedTree) {
	if i := slices.Index(h.trees, t); i >= 0 {
		h.trees = slices.Delete(h.trees, i, i+1)
		h.watches--
	}
}

func (h *hub) fireAll() {
	for _, t := range h.trees {
		t.w.Over()
	}
	var all []*armed
	for _, list := range h.paths {
		all = append(all, list...)
	}
	slices.SortFunc(all, func(a, b *armed) int { return int(a.order - b.order) })
	for _, a := range all {
		a.w.Fire(backend.LookAgain)
	}
	h.trees, h.watches = nil, 0
	clear(h.paths)
}

// event fires the watches of one event: a letter, and the path.
func (h *hub) event(e string, z int64) {
	var kind backend.TreeKind
	switch e[:min(1, len(e))] {
	case "c":
		kind = backend.TreeCreated
	case "s":
		kind = backend.TreeChanged
	case "d":
		kind = backend.TreeDeleted
	default:
		return
	}
	path := e[1:]
	for _, t := range slices.Clone(h.trees) {
		if z > t.from && within(path, t.path) && !t.w.Tell(backend.TreeChange{Path: path, Kind: kind, Zxid: z}) {
			h.removeTree(t)
		}
	}
	for _, a := range slices.Clone(h.paths[path]) {
		if z <= a.from || a.kids && kind != backend.TreeDeleted {
			continue
		}
		h.remove(a)
		if kind == backend.TreeDeleted && a.existed {
			a.w.Fire(backend.Deleted)
		} else {
			a.w.Fire(backend.LookAgain)
		}
	}
	if kind == backend.TreeChanged {
		return
	}
	for _, a := range slices.Clone(h.paths[parent(path)]) {
		if z > a.from && a.kids {
			h.remove(a)
			a.w.Fire(backend.LookAgain)
		}
	}
}

// within reports whether a path is top, or below it.
func within(path, top string) bool {
	return top == "/" || strings.HasPrefix(path, top) && (len(path) == len(top) || path[len(top)] == '/')
}

func parent(path string) string { return path[:max(1, strings.LastIndexByte(path, '/'))] }
